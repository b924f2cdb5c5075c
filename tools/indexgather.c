/* SPDX-License-Identifier: MIT */
/* sstar indexgather: reads of a table that is spread over the ranks, asked and answered. */
#include "tools/workload.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct gather {
    struct sstar_exchange *exchange;
    uint64_t *got; /* [items] */
};

static uint64_t value_of(uint64_t entry, int ranks, int rank)
{
    return entry * (uint64_t)ranks + (uint64_t)rank + 1;
}

static void answer(void *context, int asker, const void *questions, void *answers, uint32_t n)
{
    const struct workload *w = context;
    const uint64_t *values = w->table_of_rank, table = w->table;
    (void)asker;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t entry;
        memcpy(&entry, (const char *)questions + i * sizeof entry, sizeof entry);
        memcpy((char *)answers + i * sizeof entry, &values[entry < table ? entry : 0],
               sizeof entry);
    }
}

static int gather_open(struct workload *w, const struct sstar_aggregator_attr *way)
{
    struct sstar_exchange_attr attr = {.way = *way,
                                       .question_bytes = sizeof(uint64_t),
                                       .answer_bytes = sizeof(uint64_t),
                                       .answer = answer,
                                       .context = w};
    struct gather *g = w->state = calloc(1, sizeof *g);
    if (!g)
        return -ENOMEM;
    g->got = calloc(w->items + 1, sizeof *g->got);
    if (!g->got)
        return -ENOMEM;
    memset(g->got, 0xff, w->items * sizeof *g->got); /* its pages are there before the clock runs */
    for (uint32_t t = 0; t < w->table; t++)
        w->table_of_rank[t] = value_of(t, w->ranks, w->rank);
    return sstar_exchange_open(w->world, &attr, &g->exchange);
}

/* Variables of their own, as in histogram.c. */
static int ask(struct workload *w, struct gather *g, uint64_t *done)
{
    struct sstar_exchange *x = g->exchange;
    const uint16_t *to = w->to;
    const uint32_t *entries = w->entry;
    uint64_t i = *done, items = w->items;
    int err = 0;
    for (; i < items; i++) {
        uint64_t entry = entries[i];
        if ((err = sstar_ask(x, to[i], &entry, sizeof entry, i)))
            break;
    }
    *done = i;
    return err == -EAGAIN ? 0 : err;
}

static int take_answers(struct gather *g)
{
    struct sstar_exchange *x = g->exchange;
    uint64_t *values = g->got;
    struct sstar_answer came;
    int got;
    while ((got = sstar_pull_answer(x, &came)) > 0)
        memcpy(&values[came.tag], came.data, sizeof *values);
    return got;
}

static int gather_run(struct workload *w)
{
    struct gather *g = w->state;
    uint64_t done = 0;
    int left;
    do {
        int err = ask(w, g, &done);
        if (err || (err = take_answers(g)))
            return err;
        left = sstar_exchange_advance(g->exchange, done == w->items);
    } while (left > 0);
    return left;
}

static int gather_check(struct workload *w, uint64_t *wrong)
{
    const struct gather *g = w->state;
    *wrong = 0;
    for (uint64_t i = 0; i < w->items; i++)
        *wrong += g->got[i] != value_of(w->entry[i], w->ranks, w->to[i]);
    return 0;
}

static void gather_close(struct workload *w)
{
    struct gather *g = w->state;
    if (!g)
        return;
    sstar_exchange_close(g->exchange);
    free(g->got);
    free(g);
    w->state = NULL;
}

static const struct workload_kind kind = {.name = "indexgather",
                                          .items_word = "requests",
                                          .open = gather_open,
                                          .run = gather_run,
                                          .check = gather_check,
                                          .close = gather_close};

static int indexgather_main(int argc, char **argv)
{
    return workload_main(&kind,
                         "Read random entries of a table that is spread over the ranks, as bale's "
                         "indexgather does: a question of 8 B for each, an answer of 8 B.\v"
                         "Time runs from a barrier until the slowest rank has all its answers; "
                         "each is checked. Exit status 1 if one is wrong.",
                         argc, argv);
}

const struct command command_indexgather = {"indexgather", indexgather_main,
                                            "time reads of a table spread over the ranks"};
