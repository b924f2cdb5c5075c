/* SPDX-License-Identifier: MIT */
/* sstar allreduce, reducescatter, allgather, broadcast, reduce, barrier: nccl-tests' flags and
 * columns, with the price of the schedule beside the time.
 */
#include "tools/collective.h"
#include "tools/strategies.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ITERATIONS = 1000000 };
#define MOST_BYTES ((uint64_t)1 << 40)

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

static void check_arguments(void *arguments, struct argp_state *state)
{
    struct collective_arguments *a = arguments;
    if (a->end_bytes < a->begin_bytes)
        argp_error(state, "-e %llu is less than -b %llu", (unsigned long long)a->end_bytes,
                   (unsigned long long)a->begin_bytes);
    if (a->overlap_ms > 0 && a->explain)
        argp_error(state, "--overlap and --explain print tables of their own; choose one");
    if (a->root && a->operation != SSTAR_BROADCAST && a->operation != SSTAR_REDUCE)
        argp_error(state, "--root is for broadcast and reduce; %s has none",
                   sstar_operation_name(a->operation));
    if (a->wire_type != SSTAR_FLOAT32 && !a->types[SSTAR_FLOAT32])
        argp_error(state, "--wire-type shortens float where it crosses nodes; -d leaves it out");
    check_algorithms(a, state);
}

/* Before ranks are started. */
static int check_root(void *arguments, int *default_ranks)
{
    const struct collective_arguments *a = arguments;
    const struct sstar_config *config = &a->common.config;
    int ranks = strcmp(config->launcher, "none") != 0 ? config->size
                : a->common.ranks                     ? a->common.ranks
                                                      : *default_ranks;
    if (a->root < ranks)
        return 0;
    fprintf(stderr, "sstar %s: --root %d is none of the %d ranks, 0 to %d\n",
            sstar_operation_name(a->operation), a->root, ranks, ranks - 1);
    return EXIT_USAGE;
}

static void set_factor(void *arguments, const char *text, struct argp_state *state)
{
    struct collective_arguments *a = arguments;
    a->factor = (uint32_t)option_whole("-f", text, 2, 1 << 20, state);
    a->step_bytes = 0;
}

static void set_check(void *arguments, const char *text, struct argp_state *state)
{
    ((struct collective_arguments *)arguments)->check = option_whole("-c", text, 0, 1, state);
}

static void set_ops(void *arguments, const char *text, struct argp_state *state)
{
    struct collective_arguments *a = arguments;
    choose(&(struct names){"-o", op_name, SSTAR_OPS, 0}, text, a->ops, state);
}

static void set_types(void *arguments, const char *text, struct argp_state *state)
{
    struct collective_arguments *a = arguments;
    choose(&(struct names){"-d", type_name, SSTAR_TYPES, 0}, text, a->types, state);
}

static void set_algorithms(void *arguments, const char *text, struct argp_state *state)
{
    struct collective_arguments *a = arguments;
    choose(&(struct names){"--algorithm", algorithm_name, SSTAR_ALGORITHMS, SSTAR_RING}, text,
           a->algorithms, state);
}

static void set_explain(void *arguments, const char *text, struct argp_state *state)
{
    struct collective_arguments *a = arguments;
    (void)text, (void)state;
    a->explain = true;
    for (int i = SSTAR_AUTO; i < SSTAR_ALGORITHMS; i++)
        a->algorithms[i] = i != SSTAR_HIERARCHICAL;
}

#define A(MEMBER) SETS(struct collective_arguments, MEMBER)

static const struct setting settings[] = {
    {"minbytes", "BYTES", "Least size (8)", .letter = 'b', A(begin_bytes), FROM_TO(0, MOST_BYTES),
     .what = "a size"},
    {"maxbytes", "BYTES", "Largest size (1M)", .letter = 'e', A(end_bytes), FROM_TO(0, MOST_BYTES),
     .what = "a size"},
    {"stepfactor", "N", "From size to size times N (4)", .letter = 'f', .call = set_factor},
    {"stepbytes", "BYTES", "From size to size plus BYTES", .letter = 'i', A(step_bytes),
     FROM_TO(1, MOST_BYTES), .what = "a size"},
    {"iters", "N", "Iterations; the median counts (20)", .letter = 'n', A(iterations),
     FROM_TO(1, MOST_ITERATIONS)},
    {"warmup_iters", "N", "Iterations before (5)", .letter = 'w', A(warmup),
     FROM_TO(0, MOST_ITERATIONS)},
    {"check", "0|1", "Check the results of each size (1)", .letter = 'c', .call = set_check},
    {"op", "LIST", "sum, prod, min, max, avg or all (sum)", .letter = 'o', .call = set_ops},
    {"datatype", "LIST",
     "float, double, half, bfloat16, fp8_e4m3, fp8_e5m2, int8, int16, int32, int64, uint8, "
     "uint32, uint64 or all (float)",
     .letter = 'd', .call = set_types},
    {"algorithm", "LIST",
     "ring, doubling, halving, circulant, tree, hierarchical (hierarchical-ring and so on), "
     "auto or all, one after the other (auto)",
     .call = set_algorithms},
    {"slice", "BYTES", "Largest piece that is sent as one message (chosen)", A(slice_bytes),
     FROM_TO(8, 64 << 20), .what = "a size"},
    {"root", "RANK", "From or to which rank, for broadcast and reduce (0)", A(root),
     FROM_TO(0, MAX_RANKS - 1)},
    {"explain", NULL,
     "All algorithms: price, what it is made of, and time; from where on auto takes which",
     .call = set_explain},
    {"wire-type", "TYPE",
     "What float is shortened to where it crosses nodes: half, bfloat16, fp8_e4m3, fp8_e5m2 "
     "(float: not at all)",
     TAKES_FLOAT_TYPE(struct collective_arguments, wire_type)},
    {"overlap", "MS",
     "Start the operation, do MS of arithmetic, wait for it: how much of it is hidden",
     A(overlap_ms), FROM_TO(0.001, 1e5), .what = "ms"},
    {"progress-thread", NULL, "A thread of the library moves on what was started",
     A(progress_thread)},
    {0},
};

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
        .line = {.settings = settings, .doc = doc, .check = check_arguments},
        .default_ranks = 2,
        .prepare = check_root,
        .run = collective_run};
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
