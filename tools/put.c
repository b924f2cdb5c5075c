/* SPDX-License-Identifier: MIT */
/* sstar put: perftest's questions, asked of put with signal and get. */
#include "tools/put.h"
#include "tools/record.h"
#include "tools/tool.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LATENCY_ITERATIONS = 1000, /* perftest's defaults */
    BANDWIDTH_ITERATIONS = 5000,
    LATENCY_BYTES = 2,
    BANDWIDTH_BYTES = 65536,
    TX_DEPTH = 128,
    ALL_FIRST_BYTES = 2,
    ALL_LAST_BYTES = 8 << 20,
    MAX_BYTES = 1 << 30,
    MAX_ITERATIONS = 10000000,
    MAX_TX_DEPTH = 8192,
    UNASKED_BYTES = 256 << 20, /* moved at most per size when -n is not given */
};

struct arguments {
    struct common_options common;
    bool bandwidth, get, no_signal, all;
    uint64_t bytes;
    uint32_t iterations, post_list, tx_depth;
};

#define A(MEMBER) SETS(struct arguments, MEMBER)

static const struct setting settings[] = {
    {"latency", NULL, "Time of lone messages (the default)", CLEARS(struct arguments, bandwidth)},
    {"bandwidth", NULL, "Rate of a stream of messages", A(bandwidth)},
    {"get", NULL, "Read from the peer instead of put with signal", A(get)},
    {"no-signal", NULL, "A stream of puts without signals, as ib_write_bw's", A(no_signal)},
    {"size", "BYTES", "Size of a message (2; bandwidth: 65536)", .letter = 's', A(bytes),
     FROM_TO(1, MAX_BYTES), .what = "a size"},
    {"all", NULL, "All sizes from 2 B to 8 MiB", .letter = 'a', A(all)},
    {"iters", "N", "Messages per size (1000; bandwidth: 5000; fewer of the long ones)",
     .letter = 'n', A(iterations), FROM_TO(1, MAX_ITERATIONS)},
    {"qp", "K", "Queue pairs of the link (4)", .letter = 'q', A(common.config.queue_pairs),
     FROM_TO(1, MAX_QUEUE_PAIRS)},
    {"post-list", "N", "Messages per doorbell (1)", .letter = 'l', A(post_list),
     FROM_TO(1, MAX_TX_DEPTH)},
    {"tx-depth", "N", "Messages under way at most (128)", .letter = 't', A(tx_depth),
     FROM_TO(1, MAX_TX_DEPTH)},
    {NULL, "NAME", "The same as --ib-dev", .letter = 'd', .call = option_device},
    {NULL, "I", "The same as --gid-index", .letter = 'x', A(common.config.gid_index),
     FROM_TO(-1, MAX_GID_INDEX)},
    {NULL, NULL, "Nothing; perftest's scripts give it", .letter = 'F'},
    {0},
};

static void check_arguments(void *arguments, struct argp_state *state)
{
    struct arguments *a = arguments;
    if (a->post_list > a->tx_depth)
        argp_error(state, "--post-list %u is more than --tx-depth %u: such a batch never fits",
                   a->post_list, a->tx_depth);
    if (a->common.ranks && a->common.ranks != 2)
        argp_error(state, "--ranks %d, but a put is between 2 ranks", a->common.ranks);
    if (a->no_signal && (a->get || !a->bandwidth))
        argp_error(state, "--no-signal is for a stream of puts: give --bandwidth, and not --get");
    if (!a->bytes)
        a->bytes = a->bandwidth ? BANDWIDTH_BYTES : LATENCY_BYTES;
}

static const char doc[] =
    "Latency or bandwidth of one-sided operations between two ranks, as perftest shows them.\v"
    "Without a launcher it starts its own two ranks as two nodes, so that messages go through "
    "the NIC; --ranks-per-node 2 makes them one node and measures memory. The latency of a put "
    "with signal is half of a round trip, that of a get the whole time. MB is 1e6 bytes. The "
    "data of every size is checked before it is timed. Inline sending is used below the "
    "device's limit.";

/* ---- figures ----------------------------------------------------------------------------------
 */

static const struct column latency_columns[] = {
    {"size_bytes", "#bytes", "%d", 10},
    {"iterations", "#iterations", "%d", 11},
    {"min_us", "t_min[usec]", "%.2f", 12},
    {"max_us", "t_max[usec]", "%.2f", 12},
    {"typical_us", "t_typical[usec]", "%.2f", 15},
    {"mean_us", "t_avg[usec]", "%.2f", 12},
    {"stdev_us", "t_stdev[usec]", "%.2f", 13},
    {"p99_us", "99%[usec]", "%.2f", 11},
    {"p999_us", "99.9%[usec]", "%.2f", 12},
    {"device_class", "device", "%s", 15},
};
static const struct column bandwidth_columns[] = {
    {"size_bytes", "#bytes", "%d", 10},
    {"iterations", "#iterations", "%d", 11},
    {"peak_MBps", "BW peak[MB/sec]", "%.2f", 16},
    {"average_MBps", "BW average[MB/sec]", "%.2f", 19},
    {"message_rate_Mpps", "MsgRate[Mpps]", "%.6f", 14},
    {"device_class", "device", "%s", 15},
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest sample that `share` of all do not exceed. */
static double percentile(const double *sorted, uint32_t n, double share)
{
    uint32_t rank = (uint32_t)ceil(share * n);
    return sorted[rank ? rank - 1 : 0];
}

static void add_latency(json_t *row, double *us, uint32_t n)
{
    double sum = 0, squares = 0;
    qsort(us, n, sizeof(*us), compare);
    for (uint32_t i = 0; i < n; i++)
        sum += us[i];
    for (uint32_t i = 0; i < n; i++)
        squares += (us[i] - sum / n) * (us[i] - sum / n);
    json_object_set_new(row, "min_us", record_real(us[0]));
    json_object_set_new(row, "max_us", record_real(us[n - 1]));
    json_object_set_new(row, "typical_us", record_real(percentile(us, n, 0.5)));
    json_object_set_new(row, "mean_us", record_real(sum / n));
    json_object_set_new(row, "stdev_us", record_real(sqrt(squares / n)));
    json_object_set_new(row, "p99_us", record_real(percentile(us, n, 0.99)));
    json_object_set_new(row, "p999_us", record_real(percentile(us, n, 0.999)));
}

static void add_bandwidth(json_t *row, const struct put_rate *rate)
{
    json_object_set_new(row, "peak_MBps", record_real(rate->peak_gbps * 1e3));
    json_object_set_new(row, "average_MBps", record_real(rate->average_gbps * 1e3));
    json_object_set_new(row, "message_rate_Mpps", record_real(rate->messages_per_us));
    json_object_set_new(row, "peak_GBps", record_real(rate->peak_gbps));
    json_object_set_new(row, "average_GBps", record_real(rate->average_gbps));
    json_object_set_new(row, "wqes", json_integer((json_int_t)rate->spent.wqes));
    json_object_set_new(row, "doorbells", json_integer((json_int_t)rate->spent.doorbells));
    json_object_set_new(row, "cqes", json_integer((json_int_t)rate->spent.cqes));
}

/* ---- measuring --------------------------------------------------------------------------------
 */

struct run {
    const struct arguments *arguments;
    struct put_test test;
    const char *device_class;
    json_t *rows; /* rank 0 */
};

static uint32_t iterations_of(const struct arguments *a, uint64_t bytes)
{
    uint64_t n = a->bandwidth ? BANDWIDTH_ITERATIONS : LATENCY_ITERATIONS;
    if (a->iterations)
        return a->iterations;
    return (uint32_t)(n * bytes > UNASKED_BYTES ? (UNASKED_BYTES + bytes - 1) / bytes : n);
}

static json_t *new_row(const struct run *run, uint64_t bytes, uint32_t n)
{
    const struct arguments *a = run->arguments;
    json_t *row = json_object();
    json_object_set_new(row, "test", json_string(a->bandwidth ? "bandwidth" : "latency"));
    json_object_set_new(row, "operation", json_string(a->get ? "get" : "put"));
    json_object_set_new(row, "signal", json_boolean(!a->get && !a->no_signal));
    json_object_set_new(row, "size_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(row, "iterations", json_integer(n));
    json_object_set_new(row, "device_class", json_string(run->device_class));
    json_object_set_new(row, "queue_pairs",
                        json_integer(run->test.local ? 0 : a->common.config.queue_pairs));
    json_object_set_new(row, "tx_depth", json_integer(a->bandwidth ? a->tx_depth : 1));
    json_object_set_new(row, "post_list", json_integer(a->bandwidth ? a->post_list : 1));
    return row;
}

static int measure_latency(struct run *run, uint64_t bytes, uint32_t n)
{
    double *us = calloc(n, sizeof(*us));
    if (!us) {
        fprintf(stderr, "sstar put: no memory for %u samples; take fewer with -n\n", n);
        return -ENOMEM;
    }
    int err = put_latency(&run->test, bytes, n, us);
    if (!err && run->rows) {
        json_t *row = new_row(run, bytes, n);
        add_latency(row, us, n);
        json_array_append_new(run->rows, row);
    }
    free(us);
    return err;
}

static int measure_bandwidth(struct run *run, uint64_t bytes, uint32_t n)
{
    struct put_rate rate = {0};
    int err = put_bandwidth(&run->test, bytes, n, &rate);
    if (!err && run->rows) {
        json_t *row = new_row(run, bytes, n);
        add_bandwidth(row, &rate);
        json_array_append_new(run->rows, row);
    }
    return err;
}

static int measure(struct run *run, uint64_t bytes)
{
    const struct arguments *a = run->arguments;
    uint32_t n = iterations_of(a, bytes);
    int err = put_check(&run->test, bytes, a->common.seed);
    if (!err)
        err = a->bandwidth ? measure_bandwidth(run, bytes, n) : measure_latency(run, bytes, n);
    if (err || !run->rows)
        return err;
    const json_t *row = json_array_get(run->rows, json_array_size(run->rows) - 1);
    progress_clear(&a->common, run->test.world);
    if (a->bandwidth)
        table_row(stdout, bandwidth_columns, sizeof(bandwidth_columns) / sizeof(struct column),
                  row);
    else
        table_row(stdout, latency_columns, sizeof(latency_columns) / sizeof(struct column), row);
    return 0;
}

static int measure_all(struct run *run)
{
    const struct arguments *a = run->arguments;
    uint64_t first = a->all ? ALL_FIRST_BYTES : a->bytes, last = a->all ? ALL_LAST_BYTES : a->bytes;
    int err = 0;
    for (uint64_t bytes = first; bytes <= last && !err; bytes *= 2) {
        progress_show(&a->common, run->test.world, "put",
                      first == last ? 0 : log2((double)bytes / first) / log2((double)last / first));
        err = measure(run, bytes);
    }
    progress_clear(&a->common, run->test.world);
    return err;
}

static const char *operation_of(const struct arguments *a)
{
    return a->get ? "get" : a->no_signal ? "put" : "put with signal";
}

static void print_head(const struct run *run, const struct sstar_device_info *device)
{
    const struct arguments *a = run->arguments;
    printf("# sstar put: %s of %s", a->bandwidth ? "bandwidth" : "latency", operation_of(a));
    if (run->test.local) {
        printf(" inside a node, through memory\n");
    } else {
        printf(" through %s (%s), %d queue pairs", device->name, device->device_class,
               a->common.config.queue_pairs);
        if (device->wire.alpha_us || device->wire.gap_us || device->wire.beta_gbps)
            printf(", wire %g us, %g us, %g GB/s", device->wire.alpha_us, device->wire.gap_us,
                   device->wire.beta_gbps);
        putchar('\n');
    }
    if (a->bandwidth) {
        printf("# MB is 1e6 bytes; %u under way, %u per doorbell\n", a->tx_depth, a->post_list);
        table_head(stdout, bandwidth_columns, sizeof(bandwidth_columns) / sizeof(struct column));
    } else {
        printf("# %s\n", a->get ? "from asking to having" : "half of a round trip");
        table_head(stdout, latency_columns, sizeof(latency_columns) / sizeof(struct column));
    }
}

static int write_record(struct run *run)
{
    const struct common_options *common = &run->arguments->common;
    json_t *record = record_new(run->test.world, "put");
    json_object_set_new(record, "seed", json_integer((json_int_t)common->seed));
    json_object_set(record, "put", run->rows);
    int status =
        record_write_json(record, common->json) || record_write_csv(record, "put", common->csv);
    json_decref(record);
    return status;
}

/* 0, or a negative errno whose sentence the world has. */
static int run_put(struct run *run, int *status)
{
    struct put_test *test = &run->test;
    struct sstar_device_info device;
    int err = put_open(test);
    if (err)
        return err;
    err = sstar_device_info(test->world, &device);
    if (!err) {
        run->device_class = test->local ? "memory" : device.device_class;
        if (run->rows)
            print_head(run, &device);
        err = measure_all(run);
    }
    if (!err && run->rows)
        *status = write_record(run);
    put_close(test);
    return err;
}

static int run(struct sstar_world *world, void *arguments, int *status)
{
    const struct arguments *a = arguments;
    if (sstar_size(world) != 2) {
        fprintf(stderr,
                "sstar put: a put is between 2 ranks, but the launcher started %d; start 2\n",
                sstar_size(world));
        *status = EXIT_USAGE;
        return 0;
    }
    struct run run = {.arguments = a,
                      .test = {.world = world,
                               .get = a->get,
                               .no_signal = a->no_signal,
                               .post_list = a->post_list,
                               .tx_depth = a->tx_depth,
                               .max_bytes = a->all ? ALL_LAST_BYTES : a->bytes}};
    run.rows = sstar_rank(world) == 0 ? json_array() : NULL;
    int err = run_put(&run, status);
    json_decref(run.rows);
    if (!err || *sstar_last_error(world))
        return err;
    *status = EXIT_FAILURE; /* it has been said */
    return 0;
}

static int put_main(int argc, char **argv)
{
    struct arguments a = {.post_list = 1, .tx_depth = TX_DEPTH};
    static const struct measurement measurement = {
        .line = {.settings = settings, .doc = doc, .check = check_arguments},
        .default_ranks = 2,
        .across_nodes = true,
        .run = run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_put = {"put", put_main,
                                    "latency and bandwidth of put with signal and get, two ranks"};
