/* SPDX-License-Identifier: MIT */
/* sstar allreduce and its kin on one rank: over algorithms, types, operations and sizes, to table
 * and record.
 */
#include "tools/collective.h"
#include "tools/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIZES = 1000000 };

struct run {
    const struct collective_arguments *arguments;
    struct sstar_world *world;
    bool priced;
    char device_class[24];
    struct collective_trial trial;
    enum sstar_algorithm asked;
    uint64_t wrong;
    double begun, all; /* sizes; of progress */
    json_t *rows;      /* rank 0 */
};

static const struct column columns[] = {
    {"size_bytes", "size(B)", "%d", 12},
    {"count", "count", "%d", 11},
    {"type", "type", "%s", 7},
    {"op", "redop", "%s", 6},
    {"algorithm", "algorithm", "%s", 21},
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

static const struct column overlap_columns[] = {
    {"size_bytes", "size(B)", "%d", 12},
    {"type", "type", "%s", 7},
    {"op", "redop", "%s", 6},
    {"algorithm", "algorithm", "%s", 21},
    {"communication_us", "communication", "%.2f", 15},
    {"computation_us", "computation", "%.2f", 13},
    {"both_us", "both", "%.2f", 11},
    {"hidden", "hidden", "%.3f", 8},
    {"wrong", "#wrong", "%d", 7},
    {"device", "device", "%s", 15},
};
enum { N_OVERLAP_COLUMNS = sizeof overlap_columns / sizeof *overlap_columns };

/* What the prices of an algorithm are made with; auto has those of each that it may take. */
static void print_cost(const struct run *run)
{
    const struct sstar_collective *plan = run->trial.plan;
    for (int i = SSTAR_RING; i < SSTAR_ALGORITHMS && run->asked != SSTAR_AUTO; i++) {
        struct sstar_cost cost = sstar_collective_cost(plan, (enum sstar_algorithm)i);
        if (cost.alpha_us > 0)
            printf("# %s predicted on alpha %.4g us, g %.4g us, beta %.4g GB/s, o %.3g us, gamma "
                   "%.3g ns/B, node %.3g us and %.3g ns/B\n",
                   sstar_algorithm_name((enum sstar_algorithm)i), cost.alpha_us, cost.gap_us,
                   cost.beta_gbps, cost.overhead_us, cost.byte_ns, cost.node_us, cost.node_byte_ns);
    }
}

static void print_head(const struct run *run)
{
    const struct collective_arguments *a = run->arguments;
    const struct sstar_world *world = run->world;
    printf("# sstar %s: %d ranks on %s, %u iterations after %u, through %s\n",
           sstar_operation_name(a->operation), sstar_size(world),
           nodes_text(sstar_node_count(world)).text, a->iterations, a->warmup, run->device_class);
    if (a->overlap_ms > 0) {
        printf("# times in us: the operation alone, %g ms of arithmetic alone, arithmetic between "
               "start and wait%s\n",
               a->overlap_ms, a->progress_thread ? " with a progress thread" : "");
        table_head(stdout, overlap_columns, N_OVERLAP_COLUMNS);
        return;
    }
    printf("# times in us, bandwidths in GB/s: out of place, then in place\n");
    table_head(stdout, columns, N_COLUMNS);
}

static void set_if(json_t *row, const char *key, bool known, double value)
{
    json_object_set_new(row, key, known ? record_real(value) : json_null());
}

/* Bytes of the whole vector, for one element of the call. */
static size_t bytes_of_one(const struct run *run)
{
    enum sstar_operation operation = run->arguments->operation;
    bool blocks = operation == SSTAR_ALL_GATHER || operation == SSTAR_REDUCE_SCATTER;
    return sstar_type_bytes(run->trial.type) * (blocks ? (size_t)sstar_size(run->world) : 1);
}

/* nccl-tests' factor between algbw and busbw. */
static double bus_factor(const struct run *run)
{
    double n = sstar_size(run->world);
    switch (run->arguments->operation) {
    case SSTAR_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case SSTAR_ALL_GATHER:
    case SSTAR_REDUCE_SCATTER:
        return (n - 1) / n;
    default:
        return 1;
    }
}

static void set_price(const struct run *run, json_t *row, const struct sstar_price *price)
{
    struct sstar_cost cost = sstar_collective_cost(run->trial.plan, price->algorithm);
    set_if(row, "predicted_us", run->priced, price->us);
    set_if(row, "wire_us", run->priced, price->wire_us);
    set_if(row, "alpha_us", run->priced, price->alpha_us);
    set_if(row, "gap_us", run->priced, price->gap_us);
    set_if(row, "beta_us", run->priced, price->beta_us);
    set_if(row, "work_us", run->priced, price->work_us);
    set_if(row, "overhead_us", run->priced, cost.overhead_us);
    set_if(row, "byte_ns", run->priced, cost.byte_ns);
    set_if(row, "node_us", run->priced, cost.node_us);
    set_if(row, "node_byte_ns", run->priced, cost.node_byte_ns);
}

/* What every row says of the trial. */
static json_t *trial_row(const struct run *run, uint64_t wrong, const struct sstar_price *price)
{
    const struct collective_trial *t = &run->trial;
    size_t bytes = t->count * bytes_of_one(run);
    json_t *row = json_object();
    json_object_set_new(row, "algorithm", json_string(sstar_algorithm_name(price->algorithm)));
    json_object_set_new(row, "asked", json_string(sstar_algorithm_name(run->asked)));
    json_object_set_new(row, "size_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(row, "count", json_integer((json_int_t)t->count));
    json_object_set_new(row, "type", json_string(sstar_type_name(t->type)));
    json_object_set_new(row, "op", json_string(sstar_op_name(t->op)));
    json_object_set_new(row, "in_place", json_boolean(t->in_place));
    json_object_set_new(row, "wrong",
                        run->arguments->check ? json_integer((json_int_t)wrong) : json_null());
    json_object_set_new(row, "wire_type", json_string(sstar_type_name(run->arguments->wire_type)));
    json_object_set_new(row, "device", json_string(run->device_class));
    return row;
}

static json_t *new_row(const struct run *run, double us, uint64_t wrong,
                       const struct sstar_price *price)
{
    double bytes = (double)(run->trial.count * bytes_of_one(run));
    double algbw = us > 0 ? bytes / us / 1e3 : 0;
    json_t *row = trial_row(run, wrong, price);
    json_object_set_new(row, "time_us", record_real(us));
    json_object_set_new(row, "algbw_GBps", record_real(algbw));
    json_object_set_new(row, "busbw_GBps", record_real(algbw * bus_factor(run)));
    set_price(run, row, price);
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

/* Only rank 0 asks for prices: the others would compute the same. */
static int price(const struct run *run, struct sstar_price *price)
{
    const struct collective_trial *t = &run->trial;
    if (run->priced && run->rows)
        return sstar_collective_price(t->plan, t->count, t->type, price);
    price->algorithm = sstar_collective_choice(t->plan, t->count, t->type);
    return 0;
}

static int measure(struct run *run, size_t count)
{
    const struct collective_arguments *a = run->arguments;
    struct sstar_price due = {0};
    json_t *rows[2] = {NULL, NULL};
    run->trial.count = count;
    int err = price(run, &due);
    for (int in_place = 0; !err && in_place < 2; in_place++) {
        uint64_t wrong = 0;
        double us = 0;
        run->trial.in_place = in_place;
        err = a->check ? collective_check(&run->trial, &wrong) : 0;
        if (!err)
            err = collective_time(&run->trial, a->warmup, a->iterations, &us);
        run->wrong += wrong;
        if (err || !run->rows)
            continue;
        rows[in_place] = new_row(run, us, wrong, &due);
        json_array_append_new(run->rows, rows[in_place]);
    }
    if (!err && run->rows)
        print_rows(run, rows[0], rows[1]);
    return err;
}

static int measure_overlap(struct run *run, size_t count)
{
    const struct collective_arguments *a = run->arguments;
    struct sstar_price due = {0};
    struct overlap overlap;
    uint64_t wrong = 0;
    run->trial.count = count;
    run->trial.in_place = false;
    int err = price(run, &due);
    if (!err && a->check)
        err = collective_check(&run->trial, &wrong);
    if (!err)
        err = collective_overlap(&run->trial, a->overlap_ms,
                                 &(struct collective_rounds){a->warmup, a->iterations}, &overlap);
    run->wrong += wrong;
    if (err || !run->rows)
        return err;
    json_t *row = trial_row(run, wrong, &due);
    json_object_set_new(row, "communication_us", record_real(overlap.communication_us));
    json_object_set_new(row, "computation_us", record_real(overlap.computation_us));
    json_object_set_new(row, "both_us", record_real(overlap.both_us));
    json_object_set_new(row, "hidden", record_real(overlap.hidden));
    json_array_append_new(run->rows, row);
    progress_clear(&a->common, run->world);
    table_row(stdout, overlap_columns, N_OVERLAP_COLUMNS, row);
    if (overlap.hidden > 1)
        printf("# more than all is hidden: the machine was busier while the parts were timed than "
               "while both were; take it again\n");
    return 0;
}

/* The size after this one; 0: none. */
static uint64_t next_size(const struct collective_arguments *a, uint64_t bytes,
                          size_t element_bytes)
{
    uint64_t step = a->step_bytes ? a->step_bytes : bytes ? bytes * (a->factor - 1) : element_bytes;
    return a->end_bytes - bytes < step ? 0 : bytes + step;
}

static int measure_sizes(struct run *run)
{
    const struct collective_arguments *a = run->arguments;
    size_t element_bytes = bytes_of_one(run), last = SIZE_MAX;
    uint64_t bytes = a->begin_bytes;
    int err;
    do {
        progress_show(&a->common, run->world, sstar_operation_name(a->operation),
                      run->begun / run->all);
        size_t count = a->operation == SSTAR_BARRIER ? 0 : bytes / element_bytes;
        err = count == last       ? 0
              : a->overlap_ms > 0 ? measure_overlap(run, count)
                                  : measure(run, count);
        last = count;
        run->begun++;
        bytes = a->operation == SSTAR_BARRIER ? 0 : next_size(a, bytes, element_bytes);
    } while (!err && bytes);
    return err;
}

static int open_plan(struct run *run, enum sstar_algorithm algorithm)
{
    struct sstar_collective_attr attr = {.operation = run->arguments->operation,
                                         .algorithm = algorithm,
                                         .root = run->arguments->root,
                                         .slice_bytes = run->arguments->slice_bytes,
                                         .wire_type = run->arguments->wire_type,
                                         .progress_thread = run->arguments->progress_thread};
    int err = sstar_collective_open(run->world, &attr, &run->trial.plan);
    if (!err && run->priced)
        err = sstar_collective_measure(run->trial.plan);
    return err;
}

static int measure_algorithm(struct run *run, enum sstar_algorithm algorithm)
{
    const struct collective_arguments *a = run->arguments;
    int err = open_plan(run, algorithm);
    if (err)
        return err;
    run->asked = algorithm;
    progress_clear(&a->common, run->world);
    if (run->rows && run->priced)
        print_cost(run);
    for (int type = 0; type < SSTAR_TYPES; type++)
        for (int op = 0; !err && op < SSTAR_OPS; op++) {
            if (!a->types[type] || !a->ops[op])
                continue;
            run->trial.type = (enum sstar_type)type;
            run->trial.op = (enum sstar_op)op;
            err = measure_sizes(run);
        }
    if (!err && run->rows && a->explain && algorithm == SSTAR_AUTO)
        collective_explain(run->rows, run->trial.plan, a, sstar_size(run->world), run->trial.type);
    sstar_collective_close(run->trial.plan);
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
    const struct collective_arguments *a = run->arguments;
    struct sstar_world *world = run->world;
    strcpy(run->device_class, "memory");
    if (sstar_node_count(world) > 1) {
        struct sstar_device_info device;
        int err = sstar_device_info(world, &device);
        if (err)
            return err;
        strcpy(run->device_class, device.device_class);
        run->priced = true;
    }
    size_t bytes = a->end_bytes ? a->end_bytes : 1;
    int err = sstar_alloc(world, bytes, &run->trial.send);
    if (!err)
        err = sstar_alloc(world, bytes, &run->trial.recv);
    uint64_t sizes = 1;
    for (uint64_t at = a->begin_bytes; sizes < MOST_SIZES && (at = next_size(a, at, 8)) != 0;)
        sizes++;
    run->all = (double)sizes * chosen(a->types, SSTAR_TYPES) * chosen(a->ops, SSTAR_OPS) *
               chosen(a->algorithms, SSTAR_ALGORITHMS);
    return err;
}

static int write_record(const struct run *run)
{
    const struct common_options *common = &run->arguments->common;
    const char *name = sstar_operation_name(run->arguments->operation);
    json_t *record = record_new(run->world, name);
    json_object_set_new(record, "seed", json_integer((json_int_t)common->seed));
    json_object_set(record, name, run->rows);
    int status =
        record_write_json(record, common->json) || record_write_csv(record, name, common->csv);
    json_decref(record);
    return status;
}

/* 0, or a negative errno whose sentence the world has. */
static int measure_algorithms(struct run *run, int *status)
{
    const struct collective_arguments *a = run->arguments;
    int err = prepare(run);
    if (!err && run->rows)
        print_head(run);
    for (int i = 0; !err && i < SSTAR_ALGORITHMS; i++) {
        int algorithm = (i + SSTAR_RING) % SSTAR_ALGORITHMS; /* auto last */
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
            fprintf(stderr, "sstar %s: %llu values are wrong\n", sstar_operation_name(a->operation),
                    (unsigned long long)run->wrong);
    }
    return 0;
}

int collective_run(struct sstar_world *world, void *collective_arguments, int *status)
{
    const struct collective_arguments *arguments = collective_arguments;
    struct run run = {.arguments = arguments, .world = world};
    run.trial = (struct collective_trial){.world = world,
                                          .operation = arguments->operation,
                                          .root = arguments->root,
                                          .wire_type = arguments->wire_type,
                                          .seed = arguments->common.seed};
    run.rows = sstar_rank(world) == 0 ? json_array() : NULL;
    int err = measure_algorithms(&run, status);
    json_decref(run.rows);
    return err;
}
