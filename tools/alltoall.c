/* SPDX-License-Identifier: MIT */
/* sstar alltoall: the aggregating all-to-all under several strategies, measured and checked. */
#include "tools/alltoall.h"
#include "collectives/wire_cost.h"
#include "tools/alltoall_check.h"
#include "tools/routing.h"
#include "tools/strategies.h"
#include "transport/world.h"
#include <errno.h>
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
    {.name = "check",
     .key = OPTION_CHECK,
     .doc = "Count lost, doubled and altered messages (default)"},
    {.name = "no-check",
     .key = OPTION_NO_CHECK,
     .doc = "As fast as it goes: count what came and add it up"},
    {0},
};

static void choose_rule(struct alltoall_arguments *a, const char *text, struct argp_state *state)
{
    for (int f = 0; f < SSTAR_FLUSH_RULES; f++)
        if (!strcmp(text, sstar_flush_name((enum sstar_flush)f))) {
            a->flush = (enum sstar_flush)f;
            return;
        }
    argp_error(state, "--flush takes bytes or marginal, not '%s'", text);
}

static void check_arguments(struct alltoall_arguments *a, struct argp_state *state)
{
    if (a->check && a->message_bytes < CHECK_BYTES_LEAST)
        argp_error(state,
                   "a message of %u bytes has no room for what the check needs, %d bytes; "
                   "take longer ones or --no-check",
                   a->message_bytes, CHECK_BYTES_LEAST);
    if (!a->routing && (a->per_layer || a->experts))
        argp_error(state, "%s is for a routing; add --routing FILE",
                   a->per_layer ? "--per-layer" : "--experts");
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
    middle.lost = middle.doubled = middle.altered = 0;
    for (uint32_t i = 0; i < n; i++) {
        middle.lost += repeats[i].lost;
        middle.doubled += repeats[i].doubled;
        middle.altered += repeats[i].altered;
    }
    return middle;
}

/* Every strategy that is asked for, in turn, so that a drift of the machine hits all alike.
 * Outcomes in the order of strategies; *n of them. */
static int measure_all(struct sstar_world *world, const struct alltoall_arguments *a,
                       const struct plan *plan, const struct sstar_cost *cost,
                       struct outcome *outcomes, int *n)
{
    struct outcome *all = calloc((size_t)STRATEGIES * a->repeat, sizeof *all);
    int err = all ? 0 : -ENOMEM;
    for (uint32_t i = 0; !err && i < a->repeat; i++)
        for (int s = SSTAR_NONE; !err && s < STRATEGIES; s++)
            if (a->strategies[s])
                err = alltoall_measure(world, a, plan, cost, (enum sstar_strategy)s,
                                       &all[(uint32_t)s * a->repeat + i]);
    *n = 0;
    for (uint32_t s = SSTAR_NONE; !err && s < STRATEGIES; s++)
        if (a->strategies[s])
            outcomes[(*n)++] = median(&all[s * a->repeat], a->repeat);
    free(all);
    return err;
}

static int run(struct sstar_world *world, void *arguments, int *status)
{
    const struct alltoall_arguments *a = arguments;
    struct outcome outcomes[STRATEGIES];
    struct sstar_cost cost;
    struct plan plan;
    char error[512] = "";
    int n = 0, teller;
    int err = plan_make(world, a, &plan, error, sizeof error, &teller);
    if (err && !*sstar_last_error(world)) { /* not the world failed: the input did */
        if (teller == sstar_rank(world))
            fprintf(stderr, "sstar alltoall: %s\n", *error ? error : strerror(-err));
        *status = EXIT_FAILURE;
        return 0;
    }
    if (err)
        return err;
    err = wire_cost(world, &cost);
    if (!err)
        err = measure_all(world, a, &plan, &cost, outcomes, &n);
    if (!err && sstar_rank(world) == 0)
        *status = alltoall_report(world, a, &plan, &cost, outcomes, n);
    plan_free(&plan);
    return err;
}

static int alltoall_main(int argc, char **argv)
{
    struct alltoall_arguments a = {
        .message_bytes = 64, .messages = 10000, .repeat = 1, .check = true};
    static const struct measurement measurement = {.argp = &argp, .default_ranks = 8, .run = run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_alltoall = {
    "alltoall", alltoall_main, "time an all-to-all of small messages, aggregated in several ways"};
