/* SPDX-License-Identifier: MIT */
/* sstar allreduce: its arguments (allreduce.c), its run (allreduce_run.c), what it measures. */
#ifndef SSTAR_TOOLS_ALLREDUCE_H
#define SSTAR_TOOLS_ALLREDUCE_H

#include "collectives/reduce.h"
#include "tools/tool.h"

enum { N_ALGORITHMS = 3 };

struct allreduce_arguments {
    struct common_options common;
    uint64_t begin_bytes, end_bytes, step_bytes; /* step 0: by the factor */
    uint32_t factor, iterations, warmup, slice_bytes;
    bool check;
    bool types[SSTAR_TYPES], ops[SSTAR_OPS], algorithms[N_ALGORITHMS];
};
/* Measure what is asked for; rank 0 prints and writes. 0 with the exit status, or a negative errno
 * whose sentence the world has. */
int allreduce_run(struct sstar_world *world, const struct allreduce_arguments *arguments,
                  int *status);

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
