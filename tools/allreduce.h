/* SPDX-License-Identifier: MIT */
/* What `sstar allreduce` measures. Private to tools/allreduce*.c. */
#ifndef SSTAR_TOOLS_ALLREDUCE_H
#define SSTAR_TOOLS_ALLREDUCE_H

#include "collectives/collectives.h"

/* One size of one plan. */
struct allreduce_trial {
    struct sstar_world *world;
    struct sstar_allreduce *plan;
    void *send, *recv; /* of the largest size */
    size_t count;
    enum sstar_type type;
    enum sstar_op op;
    bool in_place;
    uint64_t seed;
};

/* Run once with values whose sums are exact: how many elements, over all ranks, are not what they
 * must be. Collective, like all here; the same answer on all ranks. */
int allreduce_check(const struct allreduce_trial *trial, uint64_t *wrong);
/* Median over `iterations` of the time that the slowest rank took, after `warmup` that do not
 * count; an untimed barrier stands before each. */
int allreduce_time(const struct allreduce_trial *trial, uint32_t warmup, uint32_t iterations,
                   double *us);

#endif
