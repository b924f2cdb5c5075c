/* SPDX-License-Identifier: MIT */
/* sstar allreduce: nccl-tests' flags and columns, with the price of the schedule beside the time.
 */
#include "tools/allreduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_ALGORITHM = 0x4000, OPTION_SLICE, MOST_ITERATIONS = 1000000 };
static const uint64_t most_bytes = (uint64_t)1 << 40;

static const struct argp_option options[] = {
    {.name = "minbytes", .key = 'b', .arg = "BYTES", .doc = "Least size (8)"},
    {.name = "maxbytes", .key = 'e', .arg = "BYTES", .doc = "Largest size (1M)"},
    {.name = "stepfactor", .key = 'f', .arg = "N", .doc = "From size to size times N (4)"},
    {.name = "stepbytes", .key = 'i', .arg = "BYTES", .doc = "From size to size plus BYTES"},
    {.name = "iters", .key = 'n', .arg = "N", .doc = "Iterations; the median counts (20)"},
    {.name = "warmup_iters", .key = 'w', .arg = "N", .doc = "Iterations before (5)"},
    {.name = "check", .key = 'c', .arg = "0|1", .doc = "Check the results of each size (1)"},
    {.name = "op", .key = 'o', .arg = "LIST", .doc = "sum, prod, min, max, avg or all (sum)"},
    {.name = "datatype",
     .key = 'd',
     .arg = "LIST",
     .doc = "float, double, half, bfloat16, fp8_e4m3, fp8_e5m2, int8, int16, int32, int64, uint8, "
            "uint32, uint64 or all (float)"},
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

static void check_arguments(const struct allreduce_arguments *a, struct argp_state *state)
{
    if (a->end_bytes < a->begin_bytes)
        argp_error(state, "-e %llu is less than -b %llu", (unsigned long long)a->end_bytes,
                   (unsigned long long)a->begin_bytes);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct allreduce_arguments *a = state->input;
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
        choose("-o", arg, op_name, SSTAR_OPS, 0, a->ops, state);
        return 0;
    case 'd':
        choose("-d", arg, type_name, SSTAR_TYPES, 0, a->types, state);
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
        "behind a barrier. algbw is size / time, busbw is algbw * 2(n-1)/n, GB is 1e9 bytes. wire "
        "alone is the price of the schedule: its steps on the wire that is imposed (--wire), else "
        "on alpha, g and beta measured beforehand. predicted adds what the ranks add, measured "
        "beforehand too: the overhead o for each message (waiting for a core included) and the "
        "time of a node's steps through memory. There is no price for a single node. "
        "Exit status 1 if a value is wrong.",
};

static int allreduce_main(int argc, char **argv)
{
    struct allreduce_arguments a = {.begin_bytes = 8,
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
    int err = allreduce_run(world, &a, &status);
    return common_finish(world, argv[0], err, status);
}

const struct command command_allreduce = {
    "allreduce", allreduce_main,
    "time AllReduce and check its results: nccl-tests' flags and columns"};
