/* SPDX-License-Identifier: MIT */
/*
 * One element of a vector of any type as a number, and numbers for checking reductions: what rank
 * `rank` of `size` puts at element i, and what the reduction over all ranks must then be, exactly,
 * in every type and in whatever order it is computed. Not for hot paths.
 */
#ifndef SSTAR_COLLECTIVES_ELEMENT_H
#define SSTAR_COLLECTIVES_ELEMENT_H

#include "collectives/collectives.h"

double element_get(const void *vector, size_t i, enum sstar_type type);
/* Rounds as the type does; integers must fit. */
void element_set(void *vector, size_t i, enum sstar_type type, double number);

int element_of_rank(int rank, int size, size_t i, uint64_t salt, enum sstar_type type,
                    enum sstar_op op);
double element_reduced(int size, size_t i, uint64_t salt, enum sstar_type type, enum sstar_op op);

/* An operation on such vectors. */
struct element_case {
    enum sstar_operation operation;
    int size, root;
    size_t count;
    enum sstar_type type;
    enum sstar_op op;
    bool in_place;
    uint64_t salt;
};
/* Where a rank's input and result lie in two vectors of the whole length, in elements, and how many
 * they are; in place both lie in the second. */
struct element_layout {
    size_t send_at, send_count, recv_at, recv_count;
};
struct element_layout element_layout(const struct element_case *it, int rank);
/* Element i of what a rank gets. */
double element_expected(const struct element_case *it, int rank, size_t i);

#endif
