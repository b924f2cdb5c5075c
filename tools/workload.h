/* SPDX-License-Identifier: MIT */
/* What `sstar histogram` and `sstar indexgather` have in common. Private to tools. */
#ifndef SSTAR_TOOLS_WORKLOAD_H
#define SSTAR_TOOLS_WORKLOAD_H

#include "collectives/collectives.h"
#include "tools/tool.h"

/* As bale defines both: a table spread over the ranks, entry i on rank i mod ranks as its entry
 * i / ranks, and each rank's list of entries, drawn uniformly. */
struct workload {
    struct sstar_world *world;
    int rank, ranks;
    uint64_t items; /* of each rank */
    uint32_t table; /* entries of each rank */
    uint16_t *to;   /* [items] */
    uint32_t *entry;
    uint64_t *table_of_rank; /* [table] */
    void *state;             /* of the workload */
};
struct workload_kind {
    const char *name, *items_word; /* "histogram", "updates" */
    /* Before the clock runs. Collective. */
    int (*open)(struct workload *w, const struct sstar_aggregator_attr *way);
    /* What is timed. 0 or a negative errno. */
    int (*run)(struct workload *w);
    /* How many entries or answers are wrong here. Collective. 0 or a negative errno. */
    int (*check)(struct workload *w, uint64_t *wrong);
    void (*close)(struct workload *w);
};

/* `doc`: what --help says first. */
int workload_main(const struct workload_kind *kind, const char *doc, int argc, char **argv);

#endif
