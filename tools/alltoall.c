/* SPDX-License-Identifier: MIT */
/* sstar alltoall: the aggregating all-to-all under several strategies, measured and checked. */
#include "tools/alltoall.h"
#include "collectives/wire_cost.h"
#include "tools/alltoall_check.h"
#include "tools/routing.h"
#include "tools/strategies.h"
#include "transport/world.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_STRATEGY = 0x5000,
    OPTION_MESSAGE_BYTES,
    OPTION_MESSAGES,
    OPTION_ROUTING,
    OPTION_TOKEN_BYTES,
    OPTION_EXPERTS,
    OPTION_FLUSH_BYTES,
    OPTION_MAX_AGE,
    OPTION_FLUSH,
    OPTION_HOPS,
    OPTION_PER_LAYER,
    OPTION_CHECK,
    OPTION_NO_CHECK,
    OPTION_REPEAT,
    OPTION_MEMORY,
    OPTION_PATTERN,
    OPTION_RATE,
    OPTION_POISSON,
    OPTION_BURST,
    OPTION_TRACE,
    OPTION_LEDGER,
    OPTION_SWEEP,
};
enum { MESSAGE_BYTES_MOST = 16 << 20 };

static const struct argp_option options[] = {
    {.name = "strategy",
     .key = OPTION_STRATEGY,
     .arg = "LIST",
     .doc = "none, rank, node, mesh, adaptive, or several with commas, run in turn (all)"},
    {.name = "message-bytes",
     .key = OPTION_MESSAGE_BYTES,
     .arg = "BYTES",
     .doc = "Of a message (64)"},
    {.name = "messages",
     .key = OPTION_MESSAGES,
     .arg = "N",
     .doc = "Messages of each rank, to ranks by chance (10000)"},
    {.name = "routing",
     .key = OPTION_ROUTING,
     .arg = "FILE",
     .doc = "Messages of a mixture-of-experts routing instead, plain or gzip: lines "
            "sequence,token,layer,expert,...; one message per token and expert"},
    {.name = "token-bytes",
     .key = OPTION_TOKEN_BYTES,
     .arg = "BYTES",
     .doc = "Of a message of a routing (64)"},
    {.name = "experts",
     .key = OPTION_EXPERTS,
     .arg = "N",
     .doc = "Experts of the routing (as its comments say, else the largest + 1)"},
    {.name = "flush-bytes",
     .key = OPTION_FLUSH_BYTES,
     .arg = "BYTES",
     .doc = "A buffer is sent by the message that makes it this long (4*S*)"},
    {.name = "flush",
     .key = OPTION_FLUSH,
     .arg = "RULE",
     .doc = "bytes: when it is full; marginal: also when the wire is free and waiting would save "
            "less than it takes (bytes)"},
    {.name = "hops",
     .key = OPTION_HOPS,
     .arg = "N",
     .doc = "Of mesh, 2 or 3 (2, in worlds of more than 256 ranks 3); adaptive then uses a mesh"},
    {.name = "max-age-us",
     .key = OPTION_MAX_AGE,
     .arg = "US",
     .doc = "A buffer is sent at this age of its first message (0: no bound)"},
    {.name = "per-layer",
     .key = OPTION_PER_LAYER,
     .doc = "A barrier after each layer of a routing"},
    {.name = "repeat",
     .key = OPTION_REPEAT,
     .arg = "N",
     .doc = "Run each strategy N times, in turn, and show the median (1)"},
    {.name = "memory",
     .key = OPTION_MEMORY,
     .arg = "RANKS",
     .doc = "Start nothing: what a world of so many ranks, --ranks-per-node on each node, would "
            "take for messages, as it is computed at open"},
    {.name = "pattern",
     .key = OPTION_PATTERN,
     .arg = "NAME",
     .doc = "Where messages by chance go: uniform; skewed, to rank r as often as 1/(r+1) says; "
            "to-one; others, uniform but never to itself (uniform)"},
    {.name = "rate",
     .key = OPTION_RATE,
     .arg = "R",
     .doc = "Offered load: each rank pushes R messages a second, at even times (as fast as it "
            "goes)"},
    {.name = "poisson", .key = OPTION_POISSON, .doc = "The same at random times"},
    {.name = "burst", .key = OPTION_BURST, .arg = "N", .doc = "The same, N at a time"},
    {.name = "trace",
     .key = OPTION_TRACE,
     .arg = "FILE",
     .doc = "Messages and their times from a file instead, plain or gzip: lines "
            "time_us,source,destination,bytes"},
    {.name = "sweep",
     .key = OPTION_SWEEP,
     .arg = "WHAT",
     .doc = "bytes: thresholds from S*/32 to 16*S*; age: bounds from alpha/4 to 16*alpha; "
            "strategy: all of them. tools/alltoall-plot draws the record"},
    {.name = "ledger",
     .key = OPTION_LEDGER,
     .doc = "Print where messages, bytes and time went, and keep each link's part in the record"},
    {.name = "check",
     .key = OPTION_CHECK,
     .doc = "Count lost, doubled and altered messages (default)"},
    {.name = "no-check",
     .key = OPTION_NO_CHECK,
     .doc = "As fast as it goes: count what came and add it up"},
    {0},
};

const char *const alltoall_sweep_names[SWEEPS] = {"nothing", "bytes", "age", "strategy"};

/* Which of the names from `first` on. */
static int choose_name(const char *option, const char *const *names, int first, int n,
                       const char *text, struct argp_state *state)
{
    char all[128] = "";
    for (int i = first; i < n; i++) {
        if (!strcmp(text, names[i]))
            return i;
        strcat(strcat(all, i > first ? ", " : ""), names[i]);
    }
    argp_error(state, "%s takes one of %s, not '%s'", option, all, text);
    return first;
}

static void choose_rule(struct alltoall_arguments *a, const char *text, struct argp_state *state)
{
    for (int f = 0; f < SSTAR_FLUSH_RULES; f++)
        if (!strcmp(text, sstar_flush_name((enum sstar_flush)f))) {
            a->flush = (enum sstar_flush)f;
            return;
        }
    argp_error(state, "--flush takes bytes or marginal, not '%s'", text);
}

static void check_load(struct alltoall_arguments *a, struct argp_state *state)
{
    bool offered = a->rate > 0 || a->trace;
    if ((a->poisson || a->burst) && !(a->rate > 0))
        argp_error(state, "%s is for an offered load; add --rate R",
                   a->poisson ? "--poisson" : "--burst");
    if (a->poisson && a->burst)
        argp_error(state, "--poisson and --burst exclude each other");
    if (a->trace && (a->routing || a->rate > 0))
        argp_error(state, "a trace says what goes where and when; leave --routing and --rate out");
    if (offered && (!a->check || a->per_layer))
        argp_error(state, "--rate and --trace go with neither --no-check nor --per-layer");
    if (a->routing && a->pattern != PATTERN_UNIFORM)
        argp_error(state, "a routing says what goes where; leave --pattern out");
    if (a->sweep == SWEEP_STRATEGY)
        for (int s = 0; s < STRATEGIES; s++)
            a->strategies[s] = true;
}

static void check_arguments(struct alltoall_arguments *a, struct argp_state *state)
{
    if (a->check && !a->trace && a->message_bytes < CHECK_BYTES_LEAST)
        argp_error(state,
                   "a message of %u bytes has no room for what the check needs, %d bytes; "
                   "take longer ones or --no-check",
                   a->message_bytes, CHECK_BYTES_LEAST);
    if (!a->routing && (a->per_layer || a->experts))
        argp_error(state, "%s is for a routing; add --routing FILE",
                   a->per_layer ? "--per-layer" : "--experts");
    check_load(a, state);
    strategies_default(a->strategies);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct alltoall_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_STRATEGY:
        option_strategies(arg, a->strategies, state);
        return 0;
    case OPTION_MESSAGE_BYTES:
        a->message_bytes =
            (uint32_t)option_size("--message-bytes", arg, 1, MESSAGE_BYTES_MOST, state);
        return 0;
    case OPTION_TOKEN_BYTES:
        a->message_bytes =
            (uint32_t)option_size("--token-bytes", arg, 1, MESSAGE_BYTES_MOST, state);
        return 0;
    case OPTION_MESSAGES:
        a->messages = option_size("--messages", arg, 0, 100000000, state);
        return 0;
    case OPTION_ROUTING:
        a->routing = arg;
        return 0;
    case OPTION_EXPERTS:
        a->experts = (uint32_t)option_size("--experts", arg, 1, ROUTING_MAX_EXPERTS, state);
        return 0;
    case OPTION_FLUSH_BYTES:
        a->flush_bytes = (uint32_t)option_size("--flush-bytes", arg, 64, 64 << 20, state);
        return 0;
    case OPTION_MAX_AGE:
        if (parse_real(arg, 0, 1e9, &a->max_age_us))
            argp_error(state, "--max-age-us takes microseconds from 0 to 1e9, not '%s'", arg);
        return 0;
    case OPTION_FLUSH:
        choose_rule(a, arg, state);
        return 0;
    case OPTION_HOPS:
        a->hops = (uint32_t)option_size("--hops", arg, 2, 3, state);
        return 0;
    case OPTION_PER_LAYER:
        a->per_layer = true;
        return 0;
    case OPTION_REPEAT:
        a->repeat = (uint32_t)option_size("--repeat", arg, 1, MOST_REPEATS, state);
        return 0;
    case OPTION_MEMORY:
        a->memory_ranks = (int)option_whole("--memory", arg, 1, UINT16_MAX, state);
        return 0;
    case OPTION_PATTERN:
        a->pattern = (enum alltoall_pattern)choose_name("--pattern", alltoall_pattern_names, 0,
                                                        PATTERNS, arg, state);
        return 0;
    case OPTION_RATE:
        if (parse_real(arg, 1e-3, 1e9, &a->rate))
            argp_error(state, "--rate takes messages a second from 0.001 to 1e9, not '%s'", arg);
        return 0;
    case OPTION_POISSON:
        a->poisson = true;
        return 0;
    case OPTION_BURST:
        a->burst = (uint32_t)option_whole("--burst", arg, 1, 1000000, state);
        return 0;
    case OPTION_TRACE:
        a->trace = arg;
        return 0;
    case OPTION_SWEEP:
        a->sweep = (enum alltoall_sweep)choose_name("--sweep", alltoall_sweep_names, 1, SWEEPS, arg,
                                                    state);
        return 0;
    case OPTION_LEDGER:
        a->ledger = true;
        return 0;
    case OPTION_CHECK:
    case OPTION_NO_CHECK:
        a->check = key == OPTION_CHECK;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is too much; a routing is given with --routing FILE", arg);
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
        "Send small messages from every rank to every rank, each by itself (none), gathered per "
        "destination rank (rank), gathered per node through a gateway rank (node), by way of other "
        "ranks (mesh), or as each pair's traffic asks (adaptive).\v"
        "Without a launcher it starts its own ranks (8, or --ranks; --ranks-per-node R makes "
        "virtual "
        "nodes). Time runs from a barrier until the slowest rank has all its messages. Shares are "
        "of "
        "messages and bytes that cross nodes: how many travelled in wire messages of at least S*, "
        "or "
        "S*rate. Age is that of a buffer's first message, from push to doorbell. predicted is what "
        "the wire alone needs. Sequence q of a routing starts on rank q mod N; its experts are "
        "placed in order over the ranks. Exit status 1 if a message was lost, doubled or altered.",
};

static int by_seconds(const void *a, const void *b)
{
    double x = ((const struct outcome *)a)->seconds, y = ((const struct outcome *)b)->seconds;
    return (x > y) - (x < y);
}

/* The median of a strategy's repeats; what went wrong in any of them stays said. */
static struct outcome median(struct outcome *repeats, uint32_t n)
{
    qsort(repeats, n, sizeof *repeats, by_seconds);
    struct outcome middle = repeats[(n - 1) / 2];
    repeats[(n - 1) / 2].links = NULL;
    middle.lost = middle.doubled = middle.altered = 0;
    for (uint32_t i = 0; i < n; i++) {
        middle.lost += repeats[i].lost;
        middle.doubled += repeats[i].doubled;
        middle.altered += repeats[i].altered;
        outcome_free(&repeats[i]);
    }
    return middle;
}

/* What is tried: one point, or those of the sweep. How many. */
static int make_points(const struct alltoall_arguments *a, const struct sstar_cost *cost,
                       struct alltoall_point points[POINTS_MOST])
{
    enum { BYTES_POINTS = 10, AGE_POINTS = 7, BYTES_BEFORE = 5, AGES_BEFORE = 2 };
    double s_star = sstar_s_star_bytes(cost), alpha_us = cost->alpha_us > 0 ? cost->alpha_us : 10;
    int n = a->sweep == SWEEP_BYTES ? BYTES_POINTS : a->sweep == SWEEP_AGE ? AGE_POINTS : 1;
    for (int i = 0; i < n; i++) {
        points[i] = (struct alltoall_point){a->flush_bytes ? a->flush_bytes : flush_bytes_of(cost),
                                            a->max_age_us};
        if (a->sweep == SWEEP_BYTES) {
            double bytes = ldexp(s_star > 0 ? s_star : 16384, i - BYTES_BEFORE);
            points[i].flush_bytes = bytes < 64 ? 64 : (uint32_t)bytes;
        } else if (a->sweep == SWEEP_AGE) {
            points[i].max_age_us = ldexp(alpha_us, i - AGES_BEFORE);
        }
    }
    return n;
}

/* Every strategy that is asked for, in turn, so that a drift of the machine hits all alike.
 * Outcomes in the order of strategies; *n of them more. */
static int measure_all(struct sstar_world *world, const struct alltoall_arguments *a,
                       const struct plan *plan, const struct sstar_cost *cost,
                       const struct alltoall_point *point, struct outcome *outcomes, int *n)
{
    struct outcome *all = calloc((size_t)STRATEGIES * a->repeat, sizeof *all);
    int err = all ? 0 : -ENOMEM;
    for (uint32_t i = 0; !err && i < a->repeat; i++)
        for (int s = SSTAR_NONE; !err && s < STRATEGIES; s++)
            if (a->strategies[s])
                err = alltoall_measure(world, a, plan, cost, (enum sstar_strategy)s, point,
                                       &all[(uint32_t)s * a->repeat + i]);
    for (uint32_t s = SSTAR_NONE; !err && s < STRATEGIES; s++)
        if (a->strategies[s])
            outcomes[(*n)++] = median(&all[s * a->repeat], a->repeat);
    free(all);
    return err;
}

static int measure_points(struct sstar_world *world, const struct alltoall_arguments *a,
                          const struct plan *plan, int *status)
{
    struct alltoall_point points[POINTS_MOST];
    struct outcome *outcomes = calloc(POINTS_MOST * STRATEGIES, sizeof *outcomes);
    struct sstar_cost cost;
    int n = 0, err = outcomes ? wire_cost(world, &cost) : -ENOMEM;
    int n_points = err ? 0 : make_points(a, &cost, points);
    for (int p = 0; !err && p < n_points; p++)
        err = measure_all(world, a, plan, &cost, &points[p], outcomes, &n);
    if (!err && sstar_rank(world) == 0)
        *status = alltoall_report(world, a, plan, &cost, outcomes, n);
    for (int i = 0; i < n; i++)
        outcome_free(&outcomes[i]);
    free(outcomes);
    return err;
}

static int run(struct sstar_world *world, void *arguments, int *status)
{
    const struct alltoall_arguments *a = arguments;
    struct plan plan;
    char error[512] = "";
    int teller;
    if (a->memory_ranks) {
        *status = alltoall_memory(world, a);
        return 0;
    }
    int err = plan_make(world, a, &plan, error, sizeof error, &teller);
    if (err && !*sstar_last_error(world)) { /* not the world failed: the input did */
        if (teller == sstar_rank(world))
            fprintf(stderr, "sstar alltoall: %s\n", *error ? error : strerror(-err));
        *status = EXIT_FAILURE;
        return 0;
    }
    if (err)
        return err;
    err = measure_points(world, a, &plan, status);
    plan_free(&plan);
    return err;
}

/* A memory figure needs no other ranks, only their number. */
static int prepare(void *arguments, int *default_ranks)
{
    struct alltoall_arguments *a = arguments;
    if (!a->memory_ranks)
        return 0;
    a->memory_per_node = a->common.ranks_per_node ? a->common.ranks_per_node : a->memory_ranks;
    a->common.ranks_per_node = 0;
    *default_ranks = 1;
    return 0;
}

static int alltoall_main(int argc, char **argv)
{
    struct alltoall_arguments a = {
        .message_bytes = 64, .messages = 10000, .repeat = 1, .check = true};
    static const struct measurement measurement = {
        .argp = &argp, .default_ranks = 8, .prepare = prepare, .run = run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_alltoall = {
    "alltoall", alltoall_main, "time an all-to-all of small messages, aggregated in several ways"};
