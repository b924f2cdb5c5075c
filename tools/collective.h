/* SPDX-License-Identifier: MIT */
/* sstar allreduce and its kin: arguments (collective.c), the run (collective_run.c), what is
 * measured (collective_measure.c, collective_overlap.c), the table of --explain
 * (collective_explain.c). */
#ifndef SSTAR_TOOLS_COLLECTIVE_H
#define SSTAR_TOOLS_COLLECTIVE_H

#include "collectives/reduce.h"
#include "tools/tool.h"
#include <jansson.h>

struct collective_arguments {
    struct common_options common;
    enum sstar_operation operation;
    int root;
    uint64_t begin_bytes, end_bytes, step_bytes; /* step 0: by the factor */
    uint32_t factor, iterations, warmup, slice_bytes;
    double overlap_ms; /* 0: not asked for */
    bool check, explain, progress_thread;
    enum sstar_type wire_type;
    bool types[SSTAR_TYPES], ops[SSTAR_OPS], algorithms[SSTAR_ALGORITHMS];
};
/* Measure what is asked for (struct collective_arguments); rank 0 prints and writes. 0 with the
 * exit status, or a negative errno whose sentence the world has. */
int collective_run(struct sstar_world *world, void *arguments, int *status);

/* One size of one plan. */
struct collective_trial {
    struct sstar_world *world;
    struct sstar_collective *plan;
    enum sstar_operation operation;
    int root;
    void *send, *recv; /* each of a whole vector of the largest size */
    size_t count;
    enum sstar_type type;
    enum sstar_op op;
    enum sstar_type wire_type;
    bool in_place;
    uint64_t seed;
};

/* Run once with values whose sums are exact: how many elements, over all ranks, are not what they
 * must be. Collective, like all here; the same answer on all ranks. */
int collective_check(const struct collective_trial *trial, uint64_t *wrong);
/* Begin it; values are whatever the vectors hold. */
int collective_begin(const struct collective_trial *trial);
/* Zeros, which stay what they are however often they are reduced in place. */
void collective_clear(const struct collective_trial *trial);

/* Median over `iterations` of the time from when the last rank begins until the last has done
 * (rounds.h), after `warmup` that do not count; an untimed barrier stands before each. */
int collective_time(const struct collective_trial *trial, uint32_t warmup, uint32_t iterations,
                    double *us);

/* Times of a round as above: the operation alone, arithmetic of so many ms in the caller alone, and
 * with that between start and wait; the share of the shorter that hides behind the longer. */
struct collective_rounds {
    uint32_t warmup, iterations;
};
struct overlap {
    double communication_us, computation_us, both_us, hidden;
};
int collective_overlap(const struct collective_trial *trial, double ms,
                       const struct collective_rounds *rounds, struct overlap *overlap);

/* From the rows of all algorithms: price and parts beside the time, size by size; then from which
 * size on the plan takes what. */
void collective_explain(const json_t *rows, const struct sstar_collective *chosen,
                        const struct collective_arguments *arguments, int ranks,
                        enum sstar_type type);

#endif
