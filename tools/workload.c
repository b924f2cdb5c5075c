/* SPDX-License-Identifier: MIT */
#include "tools/workload.h"
#include "collectives/wire_cost.h"
#include "tools/random.h"
#include "tools/record.h"
#include "tools/strategies.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS_MOST = 99, ITEMS_MOST = 1 << 30, TABLE_MOST = 1 << 22 };

struct workload_arguments {
    struct common_options common; /* first: measurement_main looks there */
    const struct workload_kind *kind;
    bool strategies[SSTAR_STRATEGIES];
    uint64_t items;
    uint32_t table, repeat, flush_bytes, hops;
    double max_age_us;
};

#define A(MEMBER) SETS(struct workload_arguments, MEMBER)

static const struct setting settings[] = {
    {"items", "N", "Updates or requests of each rank (5000000)", .letter = 'n', A(items),
     FROM_TO(0, ITEMS_MOST)},
    {"table", "N", "Entries of the table on each rank (10000)", .letter = 'T', A(table),
     FROM_TO(1, TABLE_MOST)},
    {"strategy", "LIST",
     "none, rank, node, mesh, adaptive, or several with commas, run in turn (rank)",
     TAKES_STRATEGIES(struct workload_arguments)},
    {"flush-bytes", "BYTES", "A buffer is sent by the message that makes it this long (4*S*)",
     A(flush_bytes), FROM_TO(64, 64 << 20)},
    {"max-age-us", "US",
     "A buffer is sent at this age of its first message (0: no bound; indexgather: 200)",
     A(max_age_us), FROM_TO(0, 1e9), .what = "microseconds"},
    {"hops", "N", "Of mesh, 2 or 3 (chosen)", A(hops), FROM_TO(2, 3)},
    {"repeat", "N", "Run each strategy N times, in turn, and show the median (3)", A(repeat),
     FROM_TO(1, REPEATS_MOST)},
    {0},
};

/* ---- measuring ----------------------------------------------------------------------------------
 */

static int draw(struct workload *w, uint64_t seed)
{
    uint64_t state = seed * 1000003 + (uint64_t)w->rank, ranks = (uint64_t)w->ranks;
    w->to = calloc(w->items + 1, sizeof *w->to);
    w->entry = calloc(w->items + 1, sizeof *w->entry);
    w->table_of_rank = calloc(w->table, sizeof *w->table_of_rank);
    if (!w->to || !w->entry || !w->table_of_rank)
        return world_fail(w->world, -ENOMEM, "rank %d: no memory for %llu items", w->rank,
                          (unsigned long long)w->items);
    for (uint64_t i = 0; i < w->items; i++) {
        uint64_t index = (next_random(&state) >> 32) * (w->table * ranks) >> 32;
        w->to[i] = (uint16_t)(index % ranks);
        w->entry[i] = (uint32_t)(index / ranks);
    }
    return 0;
}

struct told {
    double seconds;
    uint64_t wrong;
};

/* One run: the slowest rank's time, the errors of all. */
static int run_once(struct workload *w, const struct workload_kind *kind,
                    const struct sstar_aggregator_attr *way, struct told *out)
{
    struct told mine, *all = calloc((size_t)w->ranks, sizeof *all);
    int err = all ? kind->open(w, way) : -ENOMEM;
    if (!err)
        err = sstar_fast_barrier(w->world);
    uint64_t begun = clock_ns();
    if (!err)
        err = kind->run(w);
    mine.seconds = (double)(clock_ns() - begun) * 1e-9;
    if (!err)
        err = kind->check(w, &mine.wrong);
    if (!err)
        err = sstar_allgather(w->world, &mine, sizeof mine, all);
    *out = (struct told){0};
    for (int r = 0; !err && r < w->ranks; r++) {
        out->seconds = all[r].seconds > out->seconds ? all[r].seconds : out->seconds;
        out->wrong += all[r].wrong;
    }
    kind->close(w);
    free(all);
    return err;
}

struct outcome {
    double seconds[REPEATS_MOST];
    uint64_t wrong;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All strategies in turn, so that a drift of the machine hits all alike; once before, not counted,
 * for pages and connections. */
static int measure(struct workload *w, const struct workload_arguments *a,
                   struct sstar_aggregator_attr *way, struct outcome *outcomes)
{
    int err = 0;
    for (uint32_t i = 0; !err && i <= a->repeat; i++)
        for (int s = 0; !err && s < SSTAR_STRATEGIES; s++) {
            struct told told;
            if (!a->strategies[s])
                continue;
            way->strategy = (enum sstar_strategy)s;
            if ((err = run_once(w, a->kind, way, &told)))
                break;
            outcomes[s].wrong += told.wrong;
            if (i)
                outcomes[s].seconds[i - 1] = told.seconds;
            progress_show(&a->common, w->world, a->kind->name, (double)i / a->repeat);
        }
    progress_clear(&a->common, w->world);
    for (int s = 0; s < SSTAR_STRATEGIES; s++)
        qsort(outcomes[s].seconds, a->repeat, sizeof *outcomes[s].seconds, by_value);
    return err;
}

/* ---- report -------------------------------------------------------------------------------------
 */

static const struct column columns[] = {
    {"strategy", "strategy", "%s", 8},       {"items", "items", "%llu", 10},
    {"time_ms", "time(ms)", "%.3f", 10},     {"least_ms", "least(ms)", "%.3f", 10},
    {"greatest_ms", "most(ms)", "%.3f", 10}, {"million_per_s_rank", "M/s/rank", "%.2f", 9},
    {"wrong", "wrong", "%llu", 6},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static json_t *row_of(const struct workload *w, const struct workload_arguments *a,
                      const char *device_class, const char *strategy, const struct outcome *o)
{
    json_t *row = json_object();
    double seconds = o->seconds[(a->repeat - 1) / 2];
    record_text(row, "strategy", strategy);
    record_text(row, "device", device_class);
    record_count(row, "items", w->items);
    record_count(row, "table", w->table);
    record_number(row, "seconds", seconds);
    record_number(row, "time_ms", seconds * 1e3);
    record_number(row, "least_ms", o->seconds[0] * 1e3);
    record_number(row, "greatest_ms", o->seconds[a->repeat - 1] * 1e3);
    record_number(row, "million_per_s_rank", seconds > 0 ? (double)w->items / seconds * 1e-6 : 0);
    record_count(row, "wrong", o->wrong);
    return row;
}

static int report(const struct workload *w, const struct workload_arguments *a,
                  const struct outcome *outcomes)
{
    struct sstar_device_info device;
    uint64_t wrong = 0;
    if (sstar_device_info(w->world, &device)) {
        fprintf(stderr, "sstar %s: %s\n", a->kind->name, sstar_last_error(w->world));
        return EXIT_FAILURE;
    }
    json_t *record = record_new(w->world, a->kind->name), *rows = json_array();
    printf("# sstar %s: %d ranks on %s, %s, %llu %s and %u entries on each\n", a->kind->name,
           w->ranks, nodes_text(sstar_node_count(w->world)).text,
           sstar_node_count(w->world) > 1 ? device.device_class : "memory",
           (unsigned long long)w->items, a->kind->items_word, w->table);
    table_head(stdout, columns, COLUMNS);
    for (int s = 0; s < SSTAR_STRATEGIES; s++) {
        if (!a->strategies[s])
            continue;
        json_t *row = row_of(w, a, device.device_class, sstar_strategy_name((enum sstar_strategy)s),
                             &outcomes[s]);
        table_row(stdout, columns, COLUMNS, row);
        json_array_append_new(rows, row);
        wrong += outcomes[s].wrong;
    }
    record_count(record, "seed", a->common.seed);
    json_object_set_new(record, a->kind->name, rows);
    int status = record_write_json(record, a->common.json);
    status = record_write_csv(record, a->kind->name, a->common.csv) || status;
    json_decref(record);
    if (wrong)
        fprintf(stderr, "sstar %s: %llu results are wrong\n", a->kind->name,
                (unsigned long long)wrong);
    return status || wrong ? EXIT_FAILURE : 0;
}

static int run(struct sstar_world *world, void *arguments, int *status)
{
    const struct workload_arguments *a = arguments;
    struct sstar_cost cost;
    struct workload w = {.world = world,
                         .rank = sstar_rank(world),
                         .ranks = sstar_size(world),
                         .items = a->items,
                         .table = a->table};
    struct outcome *outcomes = calloc(SSTAR_STRATEGIES, sizeof *outcomes);
    int err = outcomes ? draw(&w, a->common.seed) : -ENOMEM;
    if (!err)
        err = wire_cost(world, &cost);
    if (!err) {
        struct sstar_aggregator_attr way = {.flush_bytes = a->flush_bytes ? a->flush_bytes
                                                                          : flush_bytes_of(&cost),
                                            .max_age_us = a->max_age_us,
                                            .hops = a->hops};
        err = measure(&w, a, &way, outcomes);
    }
    if (!err && w.rank == 0)
        *status = report(&w, a, outcomes);
    free(w.to);
    free(w.entry);
    free(w.table_of_rank);
    free(outcomes);
    return err;
}

static int prepare(void *arguments, int *default_ranks)
{
    struct workload_arguments *a = arguments;
    bool any = false;
    (void)default_ranks;
    for (int s = 0; s < SSTAR_STRATEGIES; s++)
        any = any || a->strategies[s];
    a->strategies[SSTAR_PER_RANK] |= !any;
    return 0;
}

int workload_main(const struct workload_kind *kind, const char *doc, int argc, char **argv)
{
    struct workload_arguments a = {.kind = kind, .items = 5000000, .table = 10000, .repeat = 3};
    struct measurement measurement = {
        .line = {.settings = settings,
                 .doc = doc,
                 .too_much = "the number of items is given with -n N"},
        .default_ranks = 8,
        .prepare = prepare,
        .run = run};
    return measurement_main(&measurement, &a, argc, argv);
}
