/* SPDX-License-Identifier: MIT */
/* sstar allreduce on one rank: over algorithms, types, operations and sizes, to table and record.
 */
#include "collectives/allreduce_plan.h"
#include "tools/allreduce.h"
#include "tools/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIZES = 1000000 };

struct run {
    const struct allreduce_arguments *arguments;
    struct sstar_world *world;
    struct sstar_cost cost, costs[N_ALGORITHMS]; /* the wire alone; as each algorithm meets it */
    bool priced;
    char device_class[24];
    struct allreduce_trial trial;
    enum sstar_algorithm asked, algorithm; /* what auto came to */
    uint64_t wrong;
    double begun, all; /* sizes; of progress */
    json_t *rows;      /* rank 0 */
};

static const struct column columns[] = {
    {"size_bytes", "size(B)", "%d", 12},
    {"count", "count", "%d", 11},
    {"type", "type", "%s", 7},
    {"op", "redop", "%s", 6},
    {"algorithm", "algorithm", "%s", 13},
    {"time_us", "time(us)", "%.2f", 11},
    {"algbw_GBps", "algbw", "%.3f", 8},
    {"busbw_GBps", "busbw", "%.3f", 8},
    {"wrong", "#wrong", "%d", 7},
    {"in_place_time_us", "time(us)", "%.2f", 11},
    {"in_place_algbw_GBps", "algbw", "%.3f", 8},
    {"in_place_busbw_GBps", "busbw", "%.3f", 8},
    {"in_place_wrong", "#wrong", "%d", 7},
    {"predicted_us", "predicted", "%.2f", 11},
    {"wire_us", "wire alone", "%.2f", 11},
    {"device", "device", "%s", 15},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

/* o and the node step are what the ranks add, as measured with the links of each algorithm. */
static void print_cost(const struct run *run)
{
    for (int i = 0; i < N_ALGORITHMS; i++) {
        int algorithm = (i + SSTAR_RING) % N_ALGORITHMS;
        const struct sstar_cost *cost = &run->costs[algorithm];
        if (run->arguments->algorithms[algorithm])
            printf("# %s predicted on alpha %.4g us, g %.4g us, beta %.4g GB/s, o %.3g us, node "
                   "%.3g us\n",
                   sstar_algorithm_name((enum sstar_algorithm)algorithm), cost->alpha_us,
                   cost->gap_us, cost->beta_gbps, cost->overhead_us, cost->node_us);
    }
}

static void print_head(const struct run *run)
{
    const struct allreduce_arguments *a = run->arguments;
    const struct sstar_world *world = run->world;
    printf("# sstar allreduce: %d ranks on %d node%s, %u iterations after %u, through %s\n",
           sstar_size(world), sstar_node_count(world), sstar_node_count(world) == 1 ? "" : "s",
           a->iterations, a->warmup, run->device_class);
    if (run->priced)
        print_cost(run);
    printf("# times in us, bandwidths in GB/s: out of place, then in place\n");
    table_head(stdout, columns, N_COLUMNS);
}

static void set_if(json_t *row, const char *key, bool known, double value)
{
    json_object_set_new(row, key, known ? record_real(value) : json_null());
}

struct price {
    double predicted_us, wire_us;
};
static json_t *new_row(const struct run *run, double us, uint64_t wrong, const struct price *price)
{
    const struct sstar_cost *cost = &run->costs[run->asked];
    const struct allreduce_trial *t = &run->trial;
    double bytes = (double)(t->count * sstar_type_bytes(t->type)), n = sstar_size(run->world);
    double algbw = us > 0 ? bytes / us / 1e3 : 0;
    json_t *row = json_object();
    json_object_set_new(row, "algorithm", json_string(sstar_algorithm_name(run->algorithm)));
    json_object_set_new(row, "size_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(row, "count", json_integer((json_int_t)t->count));
    json_object_set_new(row, "type", json_string(sstar_type_name(t->type)));
    json_object_set_new(row, "op", json_string(sstar_op_name(t->op)));
    json_object_set_new(row, "in_place", json_boolean(t->in_place));
    json_object_set_new(row, "time_us", record_real(us));
    json_object_set_new(row, "algbw_GBps", record_real(algbw));
    json_object_set_new(row, "busbw_GBps", record_real(algbw * 2 * (n - 1) / n));
    set_if(row, "predicted_us", run->priced, price->predicted_us);
    set_if(row, "wire_us", run->priced, price->wire_us);
    set_if(row, "overhead_us", run->priced, cost->overhead_us);
    set_if(row, "node_us", run->priced, cost->node_us);
    json_object_set_new(row, "wrong",
                        run->arguments->check ? json_integer((json_int_t)wrong) : json_null());
    json_object_set_new(row, "device", json_string(run->device_class));
    return row;
}

/* Both rows of a size as one line. */
static void print_rows(const struct run *run, json_t *out_of_place, json_t *in_place)
{
    static const char *const keys[] = {"time_us", "algbw_GBps", "busbw_GBps", "wrong"};
    json_t *line = json_copy(out_of_place);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[64];
        snprintf(key, sizeof key, "in_place_%s", keys[i]);
        json_object_set(line, key, json_object_get(in_place, keys[i]));
    }
    progress_clear(&run->arguments->common, run->world);
    table_row(stdout, columns, N_COLUMNS, line);
    json_decref(line);
}

static int price(const struct run *run, size_t count, struct price *price)
{
    const struct allreduce_trial *t = &run->trial;
    if (!run->priced)
        return 0;
    int err = sstar_allreduce_price(t->plan, count, t->type, &run->cost, &price->wire_us);
    return err ? err
               : sstar_allreduce_price(t->plan, count, t->type, &run->costs[run->asked],
                                       &price->predicted_us);
}

static int measure(struct run *run, size_t count)
{
    const struct allreduce_arguments *a = run->arguments;
    struct price due = {0};
    json_t *rows[2] = {NULL, NULL};
    run->trial.count = count;
    int err = price(run, count, &due);
    for (int in_place = 0; !err && in_place < 2; in_place++) {
        uint64_t wrong = 0;
        double us = 0;
        run->trial.in_place = in_place;
        err = a->check ? allreduce_check(&run->trial, &wrong) : 0;
        if (!err)
            err = allreduce_time(&run->trial, a->warmup, a->iterations, &us);
        if (err || !run->rows) {
            run->wrong += wrong;
            continue;
        }
        run->wrong += wrong;
        rows[in_place] = new_row(run, us, wrong, &due);
        json_array_append_new(run->rows, rows[in_place]);
    }
    if (!err && run->rows)
        print_rows(run, rows[0], rows[1]);
    return err;
}

/* The size after this one; 0: none. */
static uint64_t next_size(const struct allreduce_arguments *a, uint64_t bytes, size_t element_bytes)
{
    uint64_t step = a->step_bytes ? a->step_bytes : bytes ? bytes * (a->factor - 1) : element_bytes;
    return a->end_bytes - bytes < step ? 0 : bytes + step;
}

static int measure_sizes(struct run *run)
{
    const struct allreduce_arguments *a = run->arguments;
    size_t element_bytes = sstar_type_bytes(run->trial.type), last = SIZE_MAX;
    uint64_t bytes = a->begin_bytes;
    int err;
    do {
        progress_show(&a->common, run->world, "allreduce", run->begun / run->all);
        size_t count = bytes / element_bytes;
        err = count == last ? 0 : measure(run, count);
        last = count;
        run->begun++;
        bytes = next_size(a, bytes, element_bytes);
    } while (!err && bytes);
    return err;
}

static int open_plan(struct run *run, enum sstar_algorithm algorithm)
{
    struct sstar_allreduce_attr attr = {.algorithm = algorithm,
                                        .slice_bytes = run->arguments->slice_bytes};
    return sstar_allreduce_open(run->world, &attr, &run->trial.plan);
}

/* What the ranks add to the wire with this algorithm. The plan is closed again, so that the next
 * one is timed without its links. */
static int measure_overhead(struct run *run, enum sstar_algorithm algorithm)
{
    run->costs[algorithm] = run->cost;
    int err = run->priced ? open_plan(run, algorithm) : 0;
    if (err || !run->priced)
        return err;
    err = sstar_measure_overhead(run->trial.plan, &run->costs[algorithm]);
    sstar_allreduce_close(run->trial.plan);
    return err;
}

static int measure_algorithm(struct run *run, enum sstar_algorithm algorithm)
{
    const struct allreduce_arguments *a = run->arguments;
    int err = open_plan(run, algorithm);
    if (err)
        return err;
    struct sstar_allreduce *plan = run->trial.plan;
    run->asked = algorithm;
    run->algorithm = plan->algorithm;
    for (int type = 0; type < SSTAR_TYPES; type++)
        for (int op = 0; !err && op < SSTAR_OPS; op++) {
            if (!a->types[type] || !a->ops[op])
                continue;
            run->trial.type = (enum sstar_type)type;
            run->trial.op = (enum sstar_op)op;
            err = measure_sizes(run);
        }
    sstar_allreduce_close(plan);
    return err;
}

static int chosen(const bool *list, int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += list[i];
    return sum;
}

/* The wire, the device, the buffers. */
static int prepare(struct run *run)
{
    const struct allreduce_arguments *a = run->arguments;
    struct sstar_world *world = run->world;
    strcpy(run->device_class, "memory");
    if (sstar_node_count(world) > 1) {
        struct sstar_device_info device;
        int err = sstar_device_info(world, &device);
        if (err)
            return err;
        strcpy(run->device_class, device.device_class);
        const struct sstar_wire *wire = &device.wire;
        run->priced = true;
        run->cost = (struct sstar_cost){
            .alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps};
        if (wire->alpha_us == 0 && wire->gap_us == 0 && wire->beta_gbps == 0)
            err = sstar_measure_cost(world, &run->cost);
        if (err)
            return err;
    }
    size_t bytes = a->end_bytes ? a->end_bytes : 1;
    int err = sstar_alloc(world, bytes, &run->trial.send);
    if (!err)
        err = sstar_alloc(world, bytes, &run->trial.recv);
    uint64_t sizes = 1;
    for (uint64_t at = a->begin_bytes; sizes < MOST_SIZES && (at = next_size(a, at, 8)) != 0;)
        sizes++;
    run->all = (double)sizes * chosen(a->types, SSTAR_TYPES) * chosen(a->ops, SSTAR_OPS) *
               chosen(a->algorithms, N_ALGORITHMS);
    return err;
}

static int write_record(const struct run *run)
{
    const struct common_options *common = &run->arguments->common;
    json_t *record = record_new(run->world, "allreduce");
    json_object_set_new(record, "seed", json_integer((json_int_t)common->seed));
    json_object_set(record, "allreduce", run->rows);
    int status = record_write_json(record, common->json) ||
                 record_write_csv(record, "allreduce", common->csv);
    json_decref(record);
    return status;
}

/* 0, or a negative errno whose sentence the world has. */
static int measure_algorithms(struct run *run, int *status)
{
    const struct allreduce_arguments *a = run->arguments;
    int err = prepare(run);
    for (int algorithm = 0; !err && algorithm < N_ALGORITHMS; algorithm++)
        if (a->algorithms[algorithm])
            err = measure_overhead(run, (enum sstar_algorithm)algorithm);
    if (!err && run->rows)
        print_head(run);
    for (int i = 0; !err && i < N_ALGORITHMS; i++) {
        int algorithm = (i + SSTAR_RING) % N_ALGORITHMS; /* auto last */
        if (a->algorithms[algorithm])
            err = measure_algorithm(run, (enum sstar_algorithm)algorithm);
    }
    progress_clear(&a->common, run->world);
    if (err)
        return err;
    if (run->rows)
        *status = write_record(run);
    if (run->wrong) {
        *status = EXIT_FAILURE;
        if (run->rows)
            fprintf(stderr, "sstar allreduce: %llu values are wrong\n",
                    (unsigned long long)run->wrong);
    }
    return 0;
}

int allreduce_run(struct sstar_world *world, const struct allreduce_arguments *arguments,
                  int *status)
{
    struct run run = {.arguments = arguments, .world = world};
    run.trial = (struct allreduce_trial){.world = world, .seed = arguments->common.seed};
    run.rows = sstar_rank(world) == 0 ? json_array() : NULL;
    int err = measure_algorithms(&run, status);
    json_decref(run.rows);
    return err;
}
