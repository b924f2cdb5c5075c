/* SPDX-License-Identifier: MIT */
/* sstar histogram: updates of a table that is spread over the ranks, aggregated. */
#include "tools/workload.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int histogram_open(struct workload *w, const struct sstar_aggregator_attr *way)
{
    struct sstar_aggregator_attr attr = *way;
    struct sstar_aggregator *a = NULL;
    attr.item_bytes = sizeof(uint64_t);
    memset(w->table_of_rank, 0, w->table * sizeof *w->table_of_rank);
    int err = sstar_aggregator_open(w->world, &attr, &a);
    w->state = a;
    return err;
}

/* What the loops need stands in variables of their own: a pushed message might lie over *w, for all
 * that the compiler knows. */
static int push_updates(struct workload *w, uint64_t *done)
{
    struct sstar_aggregator *a = w->state;
    const uint16_t *to = w->to;
    const uint32_t *entries = w->entry;
    uint64_t i = *done, items = w->items;
    int err = 0;
    for (; i < items; i++) {
        uint64_t entry = entries[i];
        if ((err = sstar_push(a, to[i], &entry, sizeof entry)))
            break;
    }
    *done = i;
    return err == -EAGAIN ? 0 : err;
}

static int pull_updates(struct workload *w)
{
    struct sstar_aggregator *a = w->state;
    uint64_t *counts = w->table_of_rank, table = w->table;
    struct sstar_item item;
    int got;
    while ((got = sstar_pull(a, &item)) > 0) {
        uint64_t entry;
        memcpy(&entry, item.data, sizeof entry);
        counts[entry < table ? entry : 0]++;
    }
    return got;
}

static int histogram_run(struct workload *w)
{
    uint64_t done = 0;
    int left;
    do {
        int err = push_updates(w, &done);
        if (err || (err = pull_updates(w)))
            return err;
        left = sstar_advance(w->state, done == w->items);
    } while (left > 0);
    return left;
}

/* Each rank's own counts of what it sent, added up over all ranks. */
static int histogram_check(struct workload *w, uint64_t *wrong)
{
    size_t ranks = (size_t)w->ranks, bytes = ranks * w->table * sizeof(uint32_t);
    uint32_t *mine = calloc(1, bytes), *all = malloc(bytes);
    int err = mine && all ? 0 : -ENOMEM;
    for (uint64_t i = 0; !err && i < w->items; i++)
        mine[w->to[i] * (size_t)w->table + w->entry[i]]++;
    if (!err)
        err = sstar_allreduce(w->world, mine, all, ranks * w->table, SSTAR_UINT32, SSTAR_SUM);
    *wrong = 0;
    for (uint32_t t = 0; !err && t < w->table; t++)
        *wrong += all[(size_t)w->rank * w->table + t] != w->table_of_rank[t];
    free(mine);
    free(all);
    return err;
}

static void histogram_close(struct workload *w)
{
    sstar_aggregator_close(w->state);
    w->state = NULL;
}

static const struct workload_kind kind = {.name = "histogram",
                                          .items_word = "updates",
                                          .open = histogram_open,
                                          .run = histogram_run,
                                          .check = histogram_check,
                                          .close = histogram_close};

static int histogram_main(int argc, char **argv)
{
    return workload_main(&kind,
                         "Count updates of random entries of a table that is spread over the "
                         "ranks, as bale's histogram does: 8 B for each update, pushed to the rank "
                         "that has the entry.\v"
                         "Time runs from a barrier until the slowest rank is done; the counts are "
                         "checked. Exit status 1 if one is wrong.",
                         argc, argv);
}

const struct command command_histogram = {"histogram", histogram_main,
                                          "time updates of a table spread over the ranks"};
