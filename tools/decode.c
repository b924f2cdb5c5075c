/* SPDX-License-Identifier: MIT */
/* sstar decode: what the wire costs a token when layers are split over nodes. */
#include "tools/decode.h"
#include "tools/record.h"
#include "tools/tool.h"
#include "transport/world.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CASES = OPTION_REALS_MOST, MOST = 1 << 20, BYTES_PER_NUMBER = 2 };

struct arguments {
    struct common_options common;
    long batches[MOST_CASES], hidden, layers, per_layer, tokens;
    double factors[MOST_CASES];
    int n_batches, n_factors;
    double time_scale, size_scale; /* what is measured stands for times / and sizes * these */
};

/* ---- arguments
 * ------------------------------------------------------------------------------------ */

static void set_batches(void *arguments, const char *text, struct argp_state *state)
{
    struct arguments *a = arguments;
    double values[MOST_CASES];
    a->n_batches = option_reals("--batch", text, 1, MOST, values, state);
    for (int i = 0; i < a->n_batches; i++)
        a->batches[i] = (long)values[i];
}

static void set_scale(void *arguments, const char *text, struct argp_state *state)
{
    struct arguments *a = arguments;
    double values[MOST_CASES];
    if (option_reals("--scale", text, 1, MOST, values, state) != 2)
        argp_error(state, "--scale takes two numbers, TIMES,SIZES as in 10,100, not '%s'", text);
    a->time_scale = values[0];
    a->size_scale = values[1];
}

static void set_factors(void *arguments, const char *text, struct argp_state *state)
{
    struct arguments *a = arguments;
    a->n_factors = option_reals("--factors", text, 1, MOST, a->factors, state);
}

#define A(MEMBER) SETS(struct arguments, MEMBER)

static const struct setting settings[] = {
    {"batch", "LIST", "Sequences decoded together, at most 16 numbers separated by commas (1,16)",
     .call = set_batches},
    {"hidden", "N", "Numbers of a token's state (8192), two bytes each", A(hidden),
     FROM_TO(1, MOST)},
    {"layers", "N", "Layers of the model (32)", A(layers), FROM_TO(1, MOST)},
    {"per-layer", "N", "AllReduces of a layer (2)", A(per_layer), FROM_TO(1, MOST)},
    {"tokens", "N", "Tokens timed of each kind (9)", A(tokens), FROM_TO(1, MOST)},
    {"factors", "LIST",
     "By how much to raise beta (1,2,4); measured if --wire imposes it, else predicted",
     .call = set_factors},
    {"scale", "TIMES,SIZES",
     "What runs here is so many times slower and smaller than what it stands for (1,1)",
     .call = set_scale},
    {0},
};

static const char doc[] =
    "Time per token of tensor-parallel decoding across nodes: --layers times --per-layer "
    "AllReduces of batch x hidden x 2 bytes (bfloat16), one after the other, while beta is "
    "raised.\v"
    "Without a launcher it starts its own two ranks as two nodes. With --wire each beta is "
    "imposed and measured; on a real wire beta is what it is, and the other rows are the "
    "model's. predicted is the price of the schedule on the wire; its alpha part is the same "
    "price that is not due to bandwidth, its beta part the rest. With --scale 10,100 a wire of "
    "100 us and 0.025 GB/s stands for one of 10 us and 25 GB/s: the times shown are those "
    "measured, and beside them stands what they stand for.";

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

/* On a wire that is imposed beta is so many times what was asked for. */
static int open_plan(struct run *run, double factor)
{
    const struct sstar_wire *wire = &run->arguments->common.config.wire;
    struct sstar_device_info device;
    int err = sstar_collective_open(run->world, NULL, &run->plan);
    if (!err)
        err = sstar_device_info(run->world, &device);
    if (!err && wire->beta_gbps > 0)
        run->cost = (struct sstar_cost){.alpha_us = wire->alpha_us,
                                        .gap_us = wire->gap_us,
                                        .beta_gbps = wire->beta_gbps * factor};
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
    int err = open_plan(run, 1);
    double beta = run->cost.beta_gbps;
    for (int i = 0; i < a->n_factors && !err; i++) {
        run->cost.beta_gbps = beta * a->factors[i];
        err = run_batches(run, a->factors[i] == 1);
    }
    close_plan(run);
    return err;
}

/* A wire is imposed when a world opens: so one beside ours for each beta but that which it has. */
static int open_beside(struct run *run, double factor)
{
    struct sstar_world *ours = run->world;
    struct sstar_config config = run->arguments->common.config;
    char error[512];
    config.wire.beta_gbps *= factor;
    snprintf(config.token + strlen(config.token), sizeof config.token - strlen(config.token), "d");
    int err = sstar_world_open(&run->world, &config, error, sizeof error);
    if (!err)
        return 0;
    run->world = ours;
    return world_fail(ours, err, "a wire of %g GB/s: %s", config.wire.beta_gbps, error);
}

static int on_imposed_wires(struct run *run)
{
    const struct arguments *a = run->arguments;
    struct sstar_world *ours = run->world;
    int err = 0;
    for (int i = 0; i < a->n_factors && !err; i++) {
        if (a->factors[i] != 1 && (err = open_beside(run, a->factors[i])))
            break;
        err = open_plan(run, a->factors[i]);
        if (!err)
            err = run_batches(run, true);
        close_plan(run);
        if (run->world == ours)
            continue;
        if (err)
            world_fail(ours, err, "%s", sstar_last_error(run->world));
        sstar_world_close(run->world);
        run->world = ours;
    }
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

static int decode_run(struct sstar_world *world, void *arguments, int *status)
{
    const struct arguments *a = arguments;
    struct run run = {.arguments = a, .world = world};
    run.rows = sstar_rank(world) == 0 ? json_array() : NULL;
    if (run.rows)
        print_head(&run);
    int err = a->common.config.wire.beta_gbps > 0 ? on_imposed_wires(&run) : on_real_wire(&run);
    if (!err && run.rows) {
        decode_advise(run.rows);
        *status = write_record(&run);
    }
    json_decref(run.rows);
    return err;
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
    static const struct measurement measurement = {.line = {.settings = settings, .doc = doc},
                                                   .default_ranks = 2,
                                                   .across_nodes = true,
                                                   .run = decode_run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_decode = {
    "decode", decode_main, "time per token of tensor-parallel decoding, and what would help"};
