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

#endif
