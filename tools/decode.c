/* SPDX-License-Identifier: MIT */
/* sstar decode: what the wire costs a token when layers are split over nodes. */
#include "tools/decode.h"
#include "tools/record.h"
#include "tools/tool.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_BATCH = 0x2000,
    OPTION_WIDTH,
    OPTION_LAYERS,
    OPTION_PER_LAYER,
    OPTION_TOKENS,
    OPTION_FACTORS,
    OPTION_SCALE,
};
enum { MOST_CASES = OPTION_REALS_MOST, MOST = 1 << 20, BYTES_PER_NUMBER = 2 };

struct arguments {
    struct common_options common;
    long batches[MOST_CASES], hidden, layers, per_layer, tokens;
    double factors[MOST_CASES];
    int n_batches, n_factors;
    double time_scale, size_scale; /* what is measured stands for times / and sizes * these */
};

static const struct argp_option options[] = {
    {.name = "batch",
     .key = OPTION_BATCH,
     .arg = "LIST",
     .doc = "Sequences decoded together, at most 16 numbers separated by commas (1,16)"},
    {.name = "hidden",
     .key = OPTION_WIDTH,
     .arg = "N",
     .doc = "Numbers of a token's state (8192), two bytes each"},
    {.name = "layers", .key = OPTION_LAYERS, .arg = "N", .doc = "Layers of the model (32)"},
    {.name = "per-layer", .key = OPTION_PER_LAYER, .arg = "N", .doc = "AllReduces of a layer (2)"},
    {.name = "tokens", .key = OPTION_TOKENS, .arg = "N", .doc = "Tokens timed of each kind (9)"},
    {.name = "factors",
     .key = OPTION_FACTORS,
     .arg = "LIST",
     .doc = "By how much to raise beta (1,2,4); measured if --wire imposes it, else predicted"},
    {.name = "scale",
     .key = OPTION_SCALE,
     .arg = "TIMES,SIZES",
     .doc = "What runs here is so many times slower and smaller than what it stands for (1,1)"},
    {0},
};

/* ---- arguments
 * ------------------------------------------------------------------------------------ */

static void set_batches(struct arguments *a, const char *text, struct argp_state *state)
{
    double values[MOST_CASES];
    a->n_batches = option_reals("--batch", text, 1, MOST, values, state);
    for (int i = 0; i < a->n_batches; i++)
        a->batches[i] = (long)values[i];
}

static void set_scale(struct arguments *a, const char *text, struct argp_state *state)
{
    double values[MOST_CASES];
    if (option_reals("--scale", text, 1, MOST, values, state) != 2)
        argp_error(state, "--scale takes two numbers, TIMES,SIZES as in 10,100, not '%s'", text);
    a->time_scale = values[0];
    a->size_scale = values[1];
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_BATCH:
        set_batches(a, arg, state);
        return 0;
    case OPTION_WIDTH:
        a->hidden = option_whole("--hidden", arg, 1, MOST, state);
        return 0;
    case OPTION_LAYERS:
        a->layers = option_whole("--layers", arg, 1, MOST, state);
        return 0;
    case OPTION_PER_LAYER:
        a->per_layer = option_whole("--per-layer", arg, 1, MOST, state);
        return 0;
    case OPTION_TOKENS:
        a->tokens = option_whole("--tokens", arg, 1, MOST, state);
        return 0;
    case OPTION_FACTORS:
        a->n_factors = option_reals("--factors", arg, 1, MOST, a->factors, state);
        return 0;
    case OPTION_SCALE:
        set_scale(a, arg, state);
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
        "Time per token of tensor-parallel decoding across nodes: --layers times --per-layer "
        "AllReduces of batch x hidden x 2 bytes (bfloat16), one after the other, while beta is "
        "raised.\v"
        "Without a launcher it starts its own two ranks as two nodes. With --wire each beta is "
        "imposed and measured; on a real wire beta is what it is, and the other rows are the "
        "model's. predicted is the price of the schedule on the wire; its alpha part is the same "
        "price that is not due to bandwidth, its beta part the rest. With --scale 10,100 a wire of "
        "100 us and 0.025 GB/s stands for one of 10 us and 25 GB/s: the times shown are those "
        "measured, and beside them stands what they stand for.",
};

/* ---- one wire
 * ------------------------------------------------------------------------------------- */

struct run {
    const struct arguments *arguments;
    struct sstar_world *world;
    struct sstar_collective *plan;
    struct sstar_cost cost;
    char device_class[32];
    json_t *rows; /* rank 0 */
};

static const struct column columns[] = {
    {"batch", "batch", "%d", 6},
    {"stands_for_bytes", "message(B)", "%d", 11},
    {"size_bytes", "sent(B)", "%d", 8},
    {"beta_GBps", "beta(GB/s)", "%.4g", 10},
    {"allreduce_us", "AllReduce(us)", "%.2f", 13},
    {"predicted_us", "predicted", "%.2f", 9},
    {"ratio", "ratio", "%.3f", 6},
    {"alpha_us", "alpha part", "%.2f", 10},
    {"beta_us", "beta part", "%.2f", 9},
    {"token_us", "token(us)", "%.0f", 10},
    {"stands_for_token_us", "stands for", "%.0f", 10},
    {"sequence_token_us", "a sequence", "%.1f", 10},
    {"source", "source", "%s", 14},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void add_row(struct run *run, long batch, const struct decode_case *one, const char *source)
{
    const struct arguments *a = run->arguments;
    bool measured = one->measured_us > 0;
    double us = measured ? one->measured_us : one->predicted_us, token = us * one->allreduces;
    json_t *row = json_object();
    json_object_set_new(row, "batch", json_integer(batch));
    json_object_set_new(row, "stands_for_bytes",
                        json_integer(batch * a->hidden * BYTES_PER_NUMBER));
    json_object_set_new(row, "size_bytes", json_integer((json_int_t)one->count * BYTES_PER_NUMBER));
    json_object_set_new(row, "beta_GBps", record_real(run->cost.beta_gbps));
    if (measured) {
        json_object_set_new(row, "allreduce_us", record_real(us));
        json_object_set_new(row, "ratio", record_real(us / one->predicted_us));
    }
    json_object_set_new(row, "predicted_us", record_real(one->predicted_us));
    json_object_set_new(row, "alpha_us", record_real(one->alpha_us));
    json_object_set_new(row, "beta_us", record_real(one->predicted_us - one->alpha_us));
    json_object_set_new(row, "token_us", record_real(token));
    json_object_set_new(row, "stands_for_token_us", record_real(token / a->time_scale));
    json_object_set_new(row, "sequence_token_us",
                        record_real(token / a->time_scale / (double)batch));
    json_object_set_new(row, "source", json_string(source));
    json_array_append(run->rows, row);
    table_row(stdout, columns, COLUMNS, row);
    json_decref(row);
}

static size_t count_of(const struct arguments *a, long batch)
{
    double count = (double)batch * (double)a->hidden / a->size_scale;
    return count < 1 ? 1 : (size_t)(count + 0.5);
}

/* All batches on the wire that the plan's world has, or on one that exists only as a cost. */
static int run_batches(struct run *run, bool measured)
{
    const struct arguments *a = run->arguments;
    int err = 0;
    for (int i = 0; i < a->n_batches && !err; i++) {
        struct decode_case one = {.count = count_of(a, a->batches[i]),
                                  .allreduces = (int)(a->layers * a->per_layer),
                                  .tokens = (int)a->tokens};
        progress_show(&a->common, run->world, "decode", (double)i / a->n_batches);
        err = measured ? decode_measure(run->world, run->plan, &run->cost, &one)
                       : decode_predict(run->plan, &run->cost, &one);
        progress_clear(&a->common, run->world);
        if (!err && run->rows)
            add_row(run, a->batches[i], &one, measured ? run->device_class : "model");
    }
    return err;
}

static int open_plan(struct run *run)
{
    const struct sstar_wire *wire = &run->arguments->common.config.wire;
    struct sstar_device_info device;
    int err = sstar_collective_open(run->world, NULL, &run->plan);
    if (!err)
        err = sstar_device_info(run->world, &device);
    if (!err && wire->beta_gbps > 0)
        run->cost = (struct sstar_cost){
            .alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps};
    else if (!err)
        err = sstar_measure_cost(run->world, &run->cost);
    if (!err)
        err = sstar_collective_measure(run->plan);
    if (!err)
        snprintf(run->device_class, sizeof run->device_class, "%s", device.device_class);
    return err;
}

static void close_plan(struct run *run)
{
    sstar_collective_close(run->plan);
    run->plan = NULL;
}

/* ---- all wires
 * ------------------------------------------------------------------------------------ */

static int on_real_wire(struct run *run)
{
    const struct arguments *a = run->arguments;
    int err = open_plan(run);
    double beta = run->cost.beta_gbps;
    for (int i = 0; i < a->n_factors && !err; i++) {
        run->cost.beta_gbps = beta * a->factors[i];
        err = run_batches(run, a->factors[i] == 1);
    }
    close_plan(run);
    return err;
}

/* A wire is imposed when a world opens: so a world for each. */
static int on_imposed_wires(struct run *run, struct arguments *a)
{
    double beta = a->common.config.wire.beta_gbps;
    int err = 0;
    for (int i = 0; i < a->n_factors && !err; i++) {
        char error[512];
        a->common.config.wire.beta_gbps = beta * a->factors[i];
        if (i || a->factors[i] != 1) {
            sstar_world_close(run->world);
            run->world = NULL;
            if (sstar_world_open(&run->world, &a->common.config, error, sizeof error)) {
                fprintf(stderr, "sstar decode: %s\n", error);
                return -EIO;
            }
        }
        err = open_plan(run);
        if (!err)
            err = run_batches(run, true);
        close_plan(run);
    }
    a->common.config.wire.beta_gbps = beta;
    return err;
}

static void print_head(const struct run *run)
{
    const struct arguments *a = run->arguments;
    printf("# sstar decode: %d ranks on %s; %ld layers of %ld AllReduces of batch x %ld x 2 "
           "bytes\n",
           sstar_size(run->world), nodes_text(sstar_node_count(run->world)).text, a->layers,
           a->per_layer, a->hidden);
    if (a->time_scale != 1 || a->size_scale != 1)
        printf("# times here are %g times as long, sizes 1/%g of what they stand for\n",
               a->time_scale, a->size_scale);
    table_head(stdout, columns, COLUMNS);
}

static int write_record(const struct run *run)
{
    const struct common_options *common = &run->arguments->common;
    json_t *record = record_new(run->world, "decode");
    json_object_set(record, "decode", run->rows);
    int status =
        record_write_json(record, common->json) || record_write_csv(record, "decode", common->csv);
    json_decref(record);
    return status;
}

static int decode_main(int argc, char **argv)
{
    struct arguments a = {.batches = {1, 16},
                          .n_batches = 2,
                          .hidden = 8192,
                          .layers = 32,
                          .per_layer = 2,
                          .tokens = 9,
                          .factors = {1, 2, 4},
                          .n_factors = 3,
                          .time_scale = 1,
                          .size_scale = 1};
    struct run run = {.arguments = &a};
    int status = common_init(&a.common);
    if (status)
        return status;
    if (argp_parse(&argp, argc, argv, 0, NULL, &a))
        return EXIT_USAGE;
    if (!a.common.ranks_per_node)
        a.common.ranks_per_node = 1;
    if (common_start(&a.common, 2, argc, argv, &run.world, &status) || !run.world)
        return status;
    run.rows = sstar_rank(run.world) == 0 ? json_array() : NULL;
    if (run.rows)
        print_head(&run);
    int err = a.common.config.wire.beta_gbps > 0 ? on_imposed_wires(&run, &a) : on_real_wire(&run);
    if (!err && run.rows) {
        decode_advise(run.rows);
        status = write_record(&run);
    }
    json_decref(run.rows);
    return run.world ? common_finish(run.world, argv[0], err, status) : EXIT_FAILURE;
}

const struct command command_decode = {
    "decode", decode_main, "time per token of tensor-parallel decoding, and what would help"};
