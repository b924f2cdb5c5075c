/* SPDX-License-Identifier: MIT */
/* sstar allreduce, reducescatter, allgather, broadcast, reduce, barrier: nccl-tests' flags and
 * columns, with the price of the schedule beside the time.
 */
#include "tools/collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_ALGORITHM = 0x4000,
    OPTION_SLICE,
    OPTION_ROOT,
    OPTION_EXPLAIN,
    OPTION_OVERLAP,
    OPTION_PROGRESS_THREAD,
    OPTION_WIRE_TYPE,
    MOST_ITERATIONS = 1000000
};
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
     .doc = "ring, doubling, halving, circulant, tree, hierarchical (hierarchical-ring and so on), "
            "auto or all, one after the other (auto)"},
    {.name = "slice",
     .key = OPTION_SLICE,
     .arg = "BYTES",
     .doc = "Largest piece that is sent as one message (chosen)"},
    {.name = "root",
     .key = OPTION_ROOT,
     .arg = "RANK",
     .doc = "From or to which rank, for broadcast and reduce (0)"},
    {.name = "explain",
     .key = OPTION_EXPLAIN,
     .doc = "All algorithms: price, what it is made of, and time; from where on auto takes which"},
    {.name = "wire-type",
     .key = OPTION_WIRE_TYPE,
     .arg = "TYPE",
     .doc = "What float is shortened to where it crosses nodes: half, bfloat16, fp8_e4m3, fp8_e5m2 "
            "(float: not at all)"},
    {.name = "overlap",
     .key = OPTION_OVERLAP,
     .arg = "MS",
     .doc = "Start the operation, do MS of arithmetic, wait for it: how much of it is hidden"},
    {.name = "progress-thread",
     .key = OPTION_PROGRESS_THREAD,
     .doc = "A thread of the library moves on what was started"},
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

struct names {
    const char *option;
    const char *(*name)(int);
    int n, first; /* "all" are those from `first` */
};

static void refuse_name(const struct names *names, const char *text, int length,
                        struct argp_state *state)
{
    char list[256] = "";
    for (int i = 0; i < names->n; i++)
        if (*names->name(i))
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s, ", names->name(i));
    argp_error(state, "%s takes names from: %sall, separated by commas, not '%.*s'", names->option,
               list, length, text);
}

/* A list of names, or "all". */
static void choose(const struct names *names, const char *text, bool *chosen,
                   struct argp_state *state)
{
    memset(chosen, 0, (size_t)names->n * sizeof *chosen);
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        bool all = length == 3 && !strncmp(at, "all", 3), found = all;
        for (int i = 0; i < names->n; i++) {
            const char *name = names->name(i);
            bool this = *name && strlen(name) == length && !strncmp(at, name, length);
            chosen[i] |= this || (all && *name && i >= names->first);
            found |= this;
        }
        if (!found) {
            refuse_name(names, at, (int)length, state);
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

/* What the operation does not know goes from a list, or is refused if nothing else was asked for.
 */
static void check_algorithms(struct collective_arguments *a, struct argp_state *state)
{
    bool any = false;
    int refused = 0;
    for (int i = 0; i < SSTAR_ALGORITHMS; i++) {
        if (a->algorithms[i] && !sstar_algorithm_exists(a->operation, (enum sstar_algorithm)i)) {
            a->algorithms[i] = false;
            refused = i;
        }
        any |= a->algorithms[i];
    }
    if (!any)
        argp_error(state, "%s cannot be done by %s", sstar_operation_name(a->operation),
                   algorithm_name(refused));
}

static void check_arguments(struct collective_arguments *a, struct argp_state *state)
{
    if (a->end_bytes < a->begin_bytes)
        argp_error(state, "-e %llu is less than -b %llu", (unsigned long long)a->end_bytes,
                   (unsigned long long)a->begin_bytes);
    if (a->overlap_ms > 0 && a->explain)
        argp_error(state, "--overlap and --explain print tables of their own; choose one");
    check_algorithms(a, state);
}

static enum sstar_type wire_type(const char *text, struct argp_state *state)
{
    static const enum sstar_type types[] = {SSTAR_FLOAT32, SSTAR_FLOAT16, SSTAR_BFLOAT16,
                                            SSTAR_FLOAT8_E4M3, SSTAR_FLOAT8_E5M2};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(text, sstar_type_name(types[i])) == 0)
            return types[i];
    argp_error(state, "--wire-type takes float, half, bfloat16, fp8_e4m3 or fp8_e5m2, not '%s'",
               text);
    return SSTAR_FLOAT32;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct collective_arguments *a = state->input;
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
        a->factor = (uint32_t)option_whole("-f", arg, 2, 1 << 20, state);
        a->step_bytes = 0;
        return 0;
    case 'i':
        a->step_bytes = size("-i", arg, 1, state);
        return 0;
    case 'n':
        a->iterations = (uint32_t)option_whole("-n", arg, 1, MOST_ITERATIONS, state);
        return 0;
    case 'w':
        a->warmup = (uint32_t)option_whole("-w", arg, 0, MOST_ITERATIONS, state);
        return 0;
    case 'c':
        a->check = (uint32_t)option_whole("-c", arg, 0, 1, state);
        return 0;
    case 'o':
        choose(&(struct names){"-o", op_name, SSTAR_OPS, 0}, arg, a->ops, state);
        return 0;
    case 'd':
        choose(&(struct names){"-d", type_name, SSTAR_TYPES, 0}, arg, a->types, state);
        return 0;
    case OPTION_ALGORITHM:
        choose(&(struct names){"--algorithm", algorithm_name, SSTAR_ALGORITHMS, SSTAR_RING}, arg,
               a->algorithms, state);
        return 0;
    case OPTION_SLICE:
        a->slice_bytes = (uint32_t)size("--slice", arg, 8, state);
        if (a->slice_bytes > 64 << 20)
            argp_error(state, "--slice takes a size from 8 to 64M, not '%s'", arg);
        return 0;
    case OPTION_ROOT:
        a->root = (int)(uint32_t)option_whole("--root", arg, 0, MAX_RANKS - 1, state);
        return 0;
    case OPTION_EXPLAIN:
        a->explain = true;
        for (int i = SSTAR_AUTO; i < SSTAR_ALGORITHMS; i++)
            a->algorithms[i] = i != SSTAR_HIERARCHICAL;
        return 0;
    case OPTION_WIRE_TYPE:
        a->wire_type = wire_type(arg, state);
        return 0;
    case OPTION_OVERLAP:
        if (parse_real(arg, 0.001, 1e5, &a->overlap_ms))
            argp_error(state, "--overlap takes ms from 0.001 to 100000, not '%s'", arg);
        return 0;
    case OPTION_PROGRESS_THREAD:
        a->progress_thread = true;
        return 0;
    case ARGP_KEY_END:
        check_arguments(a, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{.argp = &common_argp}, {0}};
static const char doc[] =
    "Time the operation over sizes, out of place and in place, as nccl-tests shows it.\v"
    "Without a launcher it starts its own ranks (2, or --ranks). Each size is checked on every "
    "rank before it is timed. The time of an iteration is that from when the last rank leaves "
    "the barrier before it until the last has done; on several hosts that of the slowest rank. "
    "size is that of the whole vector (allgather, reducescatter: of all ranks' "
    "blocks), algbw is size / time, busbw is algbw * 2(n-1)/n for allreduce, (n-1)/n for allgather "
    "and reducescatter, GB is 1e9 bytes. wire alone is the price of the schedule: its steps on the "
    "wire that is imposed (--wire), else on alpha, g and beta measured beforehand. predicted adds "
    "what the ranks add, measured beforehand too: the overhead o for each message (waiting for a "
    "core included), the time gamma for each byte, and that of a node's steps through memory. "
    "Exit status 1 if a value is wrong.";
static const struct argp argp = {
    .options = options, .parser = parse_option, .children = children, .doc = doc};

static int collective_main(enum sstar_operation operation, int argc, char **argv)
{
    struct collective_arguments a = {.operation = operation,
                                     .begin_bytes = 8,
                                     .end_bytes = 1 << 20,
                                     .factor = 4,
                                     .iterations = 20,
                                     .warmup = 5,
                                     .check = true,
                                     .types = {[SSTAR_FLOAT32] = true},
                                     .ops = {[SSTAR_SUM] = true},
                                     .algorithms = {[SSTAR_AUTO] = true}};
    static const struct measurement measurement = {
        .argp = &argp, .default_ranks = 2, .run = collective_run};
    return measurement_main(&measurement, &a, argc, argv);
}

#define COMMAND(NAME, OPERATION, SUMMARY)                                                          \
    static int NAME##_main(int argc, char **argv)                                                  \
    {                                                                                              \
        return collective_main(OPERATION, argc, argv);                                             \
    }                                                                                              \
    const struct command command_##NAME = {#NAME, NAME##_main, SUMMARY};

COMMAND(allreduce, SSTAR_ALL_REDUCE,
        "time AllReduce and check its results: nccl-tests' flags and columns")
COMMAND(reducescatter, SSTAR_REDUCE_SCATTER, "the same for ReduceScatter")
COMMAND(allgather, SSTAR_ALL_GATHER, "the same for AllGather")
COMMAND(broadcast, SSTAR_BROADCAST, "the same for Broadcast")
COMMAND(reduce, SSTAR_REDUCE, "the same for Reduce")
COMMAND(barrier, SSTAR_BARRIER, "the same for a barrier")
