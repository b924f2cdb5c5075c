/* SPDX-License-Identifier: MIT */
/* What the files of `sstar alltoall` share. Private to tools/alltoall*.c. */
#ifndef SSTAR_TOOLS_ALLTOALL_H
#define SSTAR_TOOLS_ALLTOALL_H

#include "collectives/collectives.h"
#include "tools/record.h"
#include "tools/tool.h"

enum { STRATEGIES = SSTAR_STRATEGIES };

struct alltoall_arguments {
    struct common_options common;
    bool strategies[STRATEGIES];
    uint32_t message_bytes; /* or of a token */
    uint64_t messages;      /* per rank, if there is no routing */
    const char *routing;
    uint32_t experts;     /* 0: as the file says */
    uint32_t flush_bytes; /* 0: 4*S* */
    double max_age_us;
    enum sstar_flush flush;
    uint32_t hops;   /* 0: chosen */
    uint32_t repeat; /* every strategy so many times, in turn; the median counts */
    bool per_layer, check;
};
enum { MOST_REPEATS = 99 };

/* The messages of this rank, in the order of sending, and how many everybody sends whom. */
struct plan {
    uint32_t layers;
    size_t *begin;    /* [layers + 1], into `to` */
    uint16_t *to;     /* destination of each message */
    uint64_t *matrix; /* [layers][ranks][ranks] */
    int ranks;
};
/* alltoall_plan.c. Collective. 0, or a negative errno with a sentence in `error` (one rank says it:
 * *teller). */
int plan_make(struct sstar_world *world, const struct alltoall_arguments *a, struct plan *plan,
              char *error, size_t error_size, int *teller);
void plan_free(struct plan *plan);
static inline const uint64_t *plan_matrix(const struct plan *plan, uint32_t layer)
{
    return plan->matrix + (size_t)layer * (size_t)plan->ranks * (size_t)plan->ranks;
}

/* What a strategy did; sums over ranks, the same on all of them. */
struct outcome {
    enum sstar_strategy strategy;
    double seconds, predicted_seconds;
    uint32_t flush_bytes;
    uint64_t lost, doubled, altered; /* in all repeats together */
    struct sstar_ledger ledger;
};
/* alltoall_run.c. Collective. */
int alltoall_measure(struct sstar_world *world, const struct alltoall_arguments *a,
                     const struct plan *plan, const struct sstar_cost *cost,
                     enum sstar_strategy strategy, struct outcome *out);

/* alltoall_report.c: table and record, on rank 0. The exit status. */
int alltoall_report(struct sstar_world *world, const struct alltoall_arguments *a,
                    const struct plan *plan, const struct sstar_cost *cost,
                    const struct outcome *outcomes, int n);

#endif
