/* SPDX-License-Identifier: MIT */
/* What the files of `sstar alltoall` share. Private to tools/alltoall*.c. */
#ifndef SSTAR_TOOLS_ALLTOALL_H
#define SSTAR_TOOLS_ALLTOALL_H

#include "collectives/collectives.h"
#include "tools/record.h"
#include "tools/tool.h"

enum { STRATEGIES = SSTAR_STRATEGIES };

/* Where messages go by chance: anywhere; rank r as often as 1/(r + 1) says; all to one. */
enum alltoall_pattern { PATTERN_UNIFORM, PATTERN_SKEWED, PATTERN_TO_ONE, PATTERN_OTHERS, PATTERNS };
enum alltoall_sweep { SWEEP_NOTHING, SWEEP_BYTES, SWEEP_AGE, SWEEP_STRATEGY, SWEEPS };
extern const char *const alltoall_pattern_names[PATTERNS], *const alltoall_sweep_names[SWEEPS];

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
    bool per_layer, check, ledger;
    enum alltoall_pattern pattern;
    /* Offered load: messages a second of each rank (0: as fast as it goes), evenly, at random
     * times, or so many at a time; or what a trace says. */
    double rate;
    bool poisson;
    uint32_t burst;
    const char *trace;
    enum alltoall_sweep sweep;
    int memory_ranks, memory_per_node; /* say what such a world would take; 0: measure */
};
enum { MOST_REPEATS = 99 };

/* The messages of this rank, in the order of sending, and how many everybody sends whom. */
struct plan {
    uint32_t layers;
    size_t *begin;    /* [layers + 1], into `to` */
    uint16_t *to;     /* destination of each message */
    uint64_t *matrix; /* [layers][ranks][ranks] */
    int ranks;
    uint64_t *due_ns; /* NULL, or when each is to be pushed, from the beginning */
    uint32_t *bytes;  /* NULL, or how long each is */
    uint32_t most_bytes;
    double pause_seconds;   /* the longest in which no message is due, where that is known */
    double offered_seconds; /* until the last is due, of any rank; 0: no offered load */
    uint64_t mean_bytes;    /* of all messages */
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

/* alltoall_load.c: destinations by the pattern, and when they are due, for a plan that has room;
 * or all of it from a trace. 0, or a negative errno, with a sentence if it is the file's fault. */
void load_by_chance(const struct alltoall_arguments *a, int rank, struct plan *plan);
int load_offer(const struct alltoall_arguments *a, int rank, struct plan *plan);
int load_trace(const struct alltoall_arguments *a, int rank, struct plan *plan, char *error,
               size_t error_size);

/* A point of a sweep. */
struct alltoall_point {
    uint32_t flush_bytes;
    double max_age_us;
};
enum { POINTS_MOST = 16 };

/* What a strategy did; sums over ranks, the same on all of them. */
struct outcome {
    enum sstar_strategy strategy;
    double seconds, predicted_seconds;
    struct alltoall_point point;
    uint64_t busiest_wire_bytes;     /* sent by the rank that sends most */
    double hottest_share;            /* of what crosses, to the node that gets most */
    uint64_t lost, doubled, altered; /* in all repeats together */
    struct sstar_ledger ledger;
    struct sstar_link_ledger *links; /* [ranks][ranks], NULL unless asked for */
    uint64_t taken_bytes;            /* of memory, by open, by the rank that took most */
    int ranks;
};
/* alltoall_run.c. Collective. */
int alltoall_measure(struct sstar_world *world, const struct alltoall_arguments *a,
                     const struct plan *plan, const struct sstar_cost *cost,
                     enum sstar_strategy strategy, const struct alltoall_point *point,
                     struct outcome *out);
void outcome_free(struct outcome *outcome);

/* alltoall_ledger.c: a row's part of the record, all of it in words, and where aggregation does not
 * pay. */
void ledger_record(json_t *row, const struct outcome *o);
void ledger_print(const struct outcome *o);
void ledger_explain(struct sstar_world *world, const struct plan *plan,
                    const struct sstar_cost *cost, const struct outcome *o);

/* alltoall_report.c: table and record, on rank 0. The exit status. */
int alltoall_report(struct sstar_world *world, const struct alltoall_arguments *a,
                    const struct plan *plan, const struct sstar_cost *cost,
                    const struct outcome *outcomes, int n);

/* alltoall_memory.c: bytes that this process has of the memory that ranks and device share, and of
 * its own. */
uint64_t memory_held(void);
/* `world` is of one rank. The exit status. */
int alltoall_memory(struct sstar_world *world, const struct alltoall_arguments *a);

#endif
