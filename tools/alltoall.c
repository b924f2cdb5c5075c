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

enum { MESSAGE_BYTES_MOST = 16 << 20 };

const char *const alltoall_sweep_names[SWEEPS] = {"nothing", "bytes", "age", "strategy"};

static void set_flush(void *arguments, const char *text, struct argp_state *state)
{
    struct alltoall_arguments *a = arguments;
    for (int f = 0; f < SSTAR_FLUSH_RULES; f++)
        if (!strcmp(text, sstar_flush_name((enum sstar_flush)f))) {
            a->flush = (enum sstar_flush)f;
            return;
        }
    argp_error(state, "--flush takes bytes or marginal, not '%s'", text);
}

#define A(MEMBER) SETS(struct alltoall_arguments, MEMBER)

static const struct setting settings[] = {
    {"strategy", "LIST",
     "none, rank, node, mesh, adaptive, or several with commas, run in turn (all)",
     TAKES_STRATEGIES(struct alltoall_arguments)},
    {"message-bytes", "BYTES", "Of a message (64)", A(message_bytes),
     FROM_TO(1, MESSAGE_BYTES_MOST)},
    {"messages", "N", "Messages of each rank, to random ranks (10000)", A(messages),
     FROM_TO(0, 100000000)},
    {"routing", "FILE",
     "Messages of a mixture-of-experts routing instead, plain or gzip: lines "
     "sequence,token,layer,expert,...; one message per token and expert",
     A(routing)},
    {"token-bytes", "BYTES", "Of a message of a routing (64)", A(message_bytes),
     FROM_TO(1, MESSAGE_BYTES_MOST)},
    {"experts", "N", "Experts of the routing (as its comments say, else the largest + 1)",
     A(experts), FROM_TO(1, ROUTING_MAX_EXPERTS)},
    {"flush-bytes", "BYTES", "A buffer is sent by the message that makes it this long (4*S*)",
     A(flush_bytes), FROM_TO(64, 64 << 20)},
    {"flush", "RULE",
     "bytes: when it is full; marginal: also when the wire is free and waiting would save "
     "less than it takes (bytes)",
     .call = set_flush},
    {"hops", "N",
     "Of mesh, 2 or 3 (2, in worlds of more than 256 ranks 3); adaptive then uses a mesh", A(hops),
     FROM_TO(2, 3)},
    {"max-age-us", "US", "A buffer is sent at this age of its first message (0: no bound)",
     A(max_age_us), FROM_TO(0, 1e9), .what = "microseconds"},
    {"per-layer", NULL, "A barrier after each layer of a routing", A(per_layer)},
    {"repeat", "N", "Run each strategy N times, in turn, and show the median (1)", A(repeat),
     FROM_TO(1, MOST_REPEATS)},
    {"memory", "RANKS",
     "Start nothing: what a world of so many ranks, --ranks-per-node on each node, would "
     "take for messages, as it is computed at open",
     A(memory_ranks), FROM_TO(1, UINT16_MAX)},
    {"pattern", "NAME",
     "Which ranks are drawn: uniform; skewed, to rank r as often as 1/(r+1) says; "
     "to-one; others, uniform but never to itself (uniform)",
     CHOOSES(struct alltoall_arguments, pattern, alltoall_pattern_names, 0, PATTERNS)},
    {"rate", "R",
     "Offered load: each rank pushes R messages a second, at even times (as fast as it "
     "goes)",
     A(rate), FROM_TO(1e-3, 1e9), .what = "messages a second"},
    {"poisson", NULL, "With --rate: at random times", A(poisson)},
    {"burst", "N", "With --rate: N at a time", A(burst), FROM_TO(1, 1000000)},
    {"trace", "FILE",
     "Messages and their times from a file instead, plain or gzip: lines "
     "time_us,source,destination,bytes",
     A(trace)},
    {"sweep", "WHAT",
     "bytes: thresholds from S*/32 to 16*S*; age: bounds from alpha/4 to 16*alpha; "
     "strategy: all of them. tools/alltoall-plot draws the record",
     CHOOSES(struct alltoall_arguments, sweep, alltoall_sweep_names, 1, SWEEPS)},
    {"ledger", NULL,
     "Print where messages, bytes and time went, and keep each link's part in the record",
     A(ledger)},
    {"check", NULL, "Count lost, doubled and altered messages (default)", A(check)},
    {"no-check", NULL, "As fast as it goes: count what came and add it up",
     CLEARS(struct alltoall_arguments, check)},
    {0},
};

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

static void check_arguments(void *arguments, struct argp_state *state)
{
    struct alltoall_arguments *a = arguments;
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

static const char doc[] =
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
    "placed in order over the ranks. Exit status 1 if a message was lost, doubled or altered.";

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
    a->common.ranks_per_node = a->common.ranks = 0;
    *default_ranks = 1;
    return 0;
}

static int alltoall_main(int argc, char **argv)
{
    struct alltoall_arguments a = {
        .message_bytes = 64, .messages = 10000, .repeat = 1, .check = true};
    static const struct measurement measurement = {
        .line = {.settings = settings,
                 .doc = doc,
                 .too_much = "a routing is given with --routing FILE",
                 .check = check_arguments},
        .default_ranks = 8,
        .prepare = prepare,
        .run = run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_alltoall = {
    "alltoall", alltoall_main, "time an all-to-all of small messages, aggregated in several ways"};
