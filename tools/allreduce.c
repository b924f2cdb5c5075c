/* SPDX-License-Identifier: MIT */
/* sstar allreduce: nccl-tests' flags and columns, with the price of the schedule beside the time.
 */
#include "tools/allreduce.h"
#include "collectives/allreduce_plan.h"
#include "tools/record.h"
#include "tools/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_ALGORITHM = 0x4000, OPTION_SLICE };
enum { N_TYPES = 4, N_OPS = 3, N_ALGORITHMS = 3, MOST_ITERATIONS = 1000000, MOST_SIZES = 1000000 };
static const uint64_t most_bytes = (uint64_t)1 << 40;

struct arguments {
    struct common_options common;
    uint64_t begin_bytes, end_bytes, step_bytes; /* step 0: by the factor */
    uint32_t factor, iterations, warmup, slice_bytes;
    bool check;
    bool types[N_TYPES], ops[N_OPS], algorithms[N_ALGORITHMS];
};

static const struct argp_option options[] = {
    {.name = "minbytes", .key = 'b', .arg = "BYTES", .doc = "Least size (8)"},
    {.name = "maxbytes", .key = 'e', .arg = "BYTES", .doc = "Largest size (1M)"},
    {.name = "stepfactor", .key = 'f', .arg = "N", .doc = "From size to size times N (4)"},
    {.name = "stepbytes", .key = 'i', .arg = "BYTES", .doc = "From size to size plus BYTES"},
    {.name = "iters", .key = 'n', .arg = "N", .doc = "Iterations; the median counts (20)"},
    {.name = "warmup_iters", .key = 'w', .arg = "N", .doc = "Iterations before (5)"},
    {.name = "check", .key = 'c', .arg = "0|1", .doc = "Check the results of each size (1)"},
    {.name = "op", .key = 'o', .arg = "LIST", .doc = "sum, min, max or all (sum)"},
    {.name = "datatype",
     .key = 'd',
     .arg = "LIST",
     .doc = "float, double, int32, int64 or all (float)"},
    {.name = "algorithm",
     .key = OPTION_ALGORITHM,
     .arg = "LIST",
     .doc = "ring, hierarchical, auto or all, one after the other (auto)"},
    {.name = "slice",
     .key = OPTION_SLICE,
     .arg = "BYTES",
     .doc = "Largest piece that is sent as one message (chosen)"},
    {0},
};

/* ---- arguments ----------------------------------------------------------------------------------
 */

static const char *type_name(int i)
{
    return sstar_type_name((enum sstar_type)i);
}
static const char *op_name(int i)
{
    return sstar_op_name((enum sstar_op)i);
}
static const char *algorithm_name(int i)
{
    return sstar_algorithm_name((enum sstar_algorithm)i);
}

/* A list of names, or "all"; of the algorithms all are those that are not auto. */
static void choose(const char *option, const char *text, const char *(*name)(int), int n, int first,
                   bool *chosen, struct argp_state *state)
{
    memset(chosen, 0, (size_t)n * sizeof *chosen);
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        bool all = length == 3 && !strncmp(at, "all", 3), found = all;
        for (int i = 0; i < n; i++) {
            bool this = strlen(name(i)) == length && !strncmp(at, name(i), length);
            chosen[i] |= this || (all && i >= first);
            found |= this;
        }
        if (!found) {
            char names[128] = "";
            for (int i = 0; i < n; i++)
                snprintf(names + strlen(names), sizeof names - strlen(names), "%s, ", name(i));
            argp_error(state, "%s takes names from: %sall, separated by commas, not '%.*s'", option,
                       names, (int)length, at);
            return;
        }
        at += length;
        if (!*at)
            return;
    }
}

static uint64_t size(const char *option, const char *text, uint64_t low, struct argp_state *state)
{
    uint64_t bytes = low;
    if (parse_size(text, &bytes) || bytes < low || bytes > most_bytes)
        argp_error(state, "%s takes a size from %llu to 1024G, not '%s'", option,
                   (unsigned long long)low, text);
    return bytes;
}

static uint32_t whole(const char *option, const char *text, long low, long high,
                      struct argp_state *state)
{
    long value = low;
    if (parse_whole(text, low, high, &value))
        argp_error(state, "%s takes a whole number from %ld to %ld, not '%s'", option, low, high,
                   text);
    return (uint32_t)value;
}

static void check_arguments(const struct arguments *a, struct argp_state *state)
{
    if (a->end_bytes < a->begin_bytes)
        argp_error(state, "-e %llu is less than -b %llu", (unsigned long long)a->end_bytes,
                   (unsigned long long)a->begin_bytes);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case 'b':
        a->begin_bytes = size("-b", arg, 0, state);
        return 0;
    case 'e':
        a->end_bytes = size("-e", arg, 0, state);
        return 0;
    case 'f':
        a->factor = whole("-f", arg, 2, 1 << 20, state);
        a->step_bytes = 0;
        return 0;
    case 'i':
        a->step_bytes = size("-i", arg, 1, state);
        return 0;
    case 'n':
        a->iterations = whole("-n", arg, 1, MOST_ITERATIONS, state);
        return 0;
    case 'w':
        a->warmup = whole("-w", arg, 0, MOST_ITERATIONS, state);
        return 0;
    case 'c':
        a->check = whole("-c", arg, 0, 1, state);
        return 0;
    case 'o':
        choose("-o", arg, op_name, N_OPS, 0, a->ops, state);
        return 0;
    case 'd':
        choose("-d", arg, type_name, N_TYPES, 0, a->types, state);
        return 0;
    case OPTION_ALGORITHM:
        choose("--algorithm", arg, algorithm_name, N_ALGORITHMS, SSTAR_RING, a->algorithms, state);
        return 0;
    case OPTION_SLICE:
        a->slice_bytes = (uint32_t)size("--slice", arg, 8, state);
        if (a->slice_bytes > 64 << 20)
            argp_error(state, "--slice takes a size from 8 to 64M, not '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        check_arguments(a, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{.argp = &common_argp}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse_option,
    .children = children,
    .doc =
        "Time AllReduce over sizes, out of place and in place, as nccl-tests shows it.\v"
        "Without a launcher it starts its own ranks (2, or --ranks). Each size is checked on every "
        "rank before it is timed. The time of an iteration is that of the slowest rank, from "
        "behind a "
        "barrier. algbw is size / time, busbw is algbw * 2(n-1)/n, GB is 1e9 bytes. predicted is "
        "the "
        "price of the schedule: its steps on the wire that is imposed (--wire), else on alpha, g "
        "and "
        "beta measured beforehand; work inside ranks and nodes counts as free, so there is none "
        "for a single node. Exit status 1 if a value is wrong.",
};

/* ---- the run ------------------------------------------------------------------------------------
 */

struct run {
    const struct arguments *arguments;
    struct sstar_world *world;
    struct sstar_cost cost;
    bool priced;
    char device_class[24];
    struct allreduce_trial trial;
    enum sstar_algorithm algorithm; /* what auto came to */
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
    {"device", "device", "%s", 15},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static void print_head(const struct run *run)
{
    const struct arguments *a = run->arguments;
    const struct sstar_world *world = run->world;
    printf("# sstar allreduce: %d ranks on %d node%s, %u iterations after %u, through %s\n",
           sstar_size(world), sstar_node_count(world), sstar_node_count(world) == 1 ? "" : "s",
           a->iterations, a->warmup, run->device_class);
    if (run->priced)
        printf("# predicted on alpha %.4g us, g %.4g us, beta %.4g GB/s\n", run->cost.alpha_us,
               run->cost.gap_us, run->cost.beta_gbps);
    printf("# times in us, bandwidths in GB/s: out of place, then in place\n");
    table_head(stdout, columns, N_COLUMNS);
}

static json_t *new_row(const struct run *run, double us, uint64_t wrong, double predicted_us)
{
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
    json_object_set_new(row, "predicted_us", run->priced ? record_real(predicted_us) : json_null());
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

static int measure(struct run *run, size_t count)
{
    const struct arguments *a = run->arguments;
    double predicted_us = 0;
    json_t *rows[2] = {NULL, NULL};
    run->trial.count = count;
    int err = 0;
    if (run->priced)
        err = sstar_allreduce_price(run->trial.plan, count, run->trial.type, &run->cost,
                                    &predicted_us);
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
        rows[in_place] = new_row(run, us, wrong, predicted_us);
        json_array_append_new(run->rows, rows[in_place]);
    }
    if (!err && run->rows)
        print_rows(run, rows[0], rows[1]);
    return err;
}

/* The size after this one; 0: none. */
static uint64_t next_size(const struct arguments *a, uint64_t bytes, size_t element_bytes)
{
    uint64_t step = a->step_bytes ? a->step_bytes : bytes ? bytes * (a->factor - 1) : element_bytes;
    return a->end_bytes - bytes < step ? 0 : bytes + step;
}

static int measure_sizes(struct run *run)
{
    const struct arguments *a = run->arguments;
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

static int measure_algorithm(struct run *run, enum sstar_algorithm algorithm)
{
    const struct arguments *a = run->arguments;
    struct sstar_allreduce_attr attr = {.algorithm = algorithm, .slice_bytes = a->slice_bytes};
    struct sstar_allreduce *plan;
    int err = sstar_allreduce_open(run->world, &attr, &plan);
    if (err)
        return err;
    run->trial.plan = plan;
    run->algorithm = plan->algorithm;
    for (int type = 0; type < N_TYPES; type++)
        for (int op = 0; !err && op < N_OPS; op++) {
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
    const struct arguments *a = run->arguments;
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
        run->cost = (struct sstar_cost){wire->alpha_us, wire->gap_us, wire->beta_gbps};
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
    run->all = (double)sizes * chosen(a->types, N_TYPES) * chosen(a->ops, N_OPS) *
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
static int run_all(struct run *run, int *status)
{
    const struct arguments *a = run->arguments;
    int err = prepare(run);
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

static int allreduce_main(int argc, char **argv)
{
    struct arguments a = {.begin_bytes = 8,
                          .end_bytes = 1 << 20,
                          .factor = 4,
                          .iterations = 20,
                          .warmup = 5,
                          .check = true,
                          .types = {[SSTAR_FLOAT32] = true},
                          .ops = {[SSTAR_SUM] = true},
                          .algorithms = {[SSTAR_AUTO] = true}};
    struct sstar_world *world;
    int status = common_init(&a.common);
    if (status)
        return status;
    if (argp_parse(&argp, argc, argv, 0, NULL, &a))
        return EXIT_USAGE;
    if (common_start(&a.common, 2, argc, argv, &world, &status) || !world)
        return status;
    struct run run = {.arguments = &a, .world = world};
    run.trial = (struct allreduce_trial){.world = world, .seed = a.common.seed};
    run.rows = sstar_rank(world) == 0 ? json_array() : NULL;
    int err = run_all(&run, &status);
    if (err) {
        const char *why = sstar_last_error(world);
        fprintf(stderr, "sstar allreduce: rank %d: %s\n", sstar_rank(world),
                *why ? why : strerror(-err));
    }
    json_decref(run.rows);
    sstar_world_close(world);
    return err ? EXIT_FAILURE : status;
}

const struct command command_allreduce = {
    "allreduce", allreduce_main,
    "time AllReduce and check its results: nccl-tests' flags and columns"};
