/* SPDX-License-Identifier: MIT */
/* sstar moe: dispatch and combine of a mixture of experts, measured and checked. */
#include "tools/moe.h"
#include "collectives/ledger.h"
#include "collectives/model_alltoall.h"
#include "collectives/moe.h"
#include "collectives/wire_cost.h"
#include "tools/strategies.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define A(MEMBER) SETS(struct moe_arguments, MEMBER)

static const struct setting settings[] = {
    {"strategy", "LIST", "none, rank, node, mesh, adaptive, several with commas, or all (node)",
     TAKES_STRATEGIES(struct moe_arguments)},
    {"routing", "FILE",
     "Which experts every token chose, as for sstar alltoall (one made up as sstar routing "
     "makes them)",
     A(routing)},
    {"experts", "N", "Experts of the routing (as its comments say, else the largest + 1)",
     A(experts), FROM_TO(1, ROUTING_MAX_EXPERTS)},
    {"layers", "N", "Only the first N layers", A(layers), FROM_TO(1, ROUTING_MAX_LAYERS)},
    {"values", "N", "Of a token (2880)", A(values), FROM_TO(1, 1 << 20)},
    {"type", "TYPE", "Of a token's values: float, half, bfloat16, fp8_e4m3, fp8_e5m2 (bfloat16)",
     TAKES_FLOAT_TYPE(struct moe_arguments, token_type)},
    {"result-type", "TYPE", "Of results on their way back; sums are float (bfloat16)",
     TAKES_FLOAT_TYPE(struct moe_arguments, result_type)},
    {"flush-bytes", "BYTES", "A buffer is sent by the message that makes it this long (4*S*)",
     A(flush_bytes), FROM_TO(64, 64 << 20)},
    {"check", NULL, "Compare every sum with a plain computation, bit for bit (default)", A(check)},
    {"no-check", NULL, "Do not compare them", CLEARS(struct moe_arguments, check)},
    {0},
};

static void choose_default(struct moe_arguments *a)
{
    bool any = false;
    for (int s = 0; s < SSTAR_STRATEGIES; s++)
        any = any || a->strategies[s];
    a->strategies[SSTAR_PER_NODE] |= !any;
}

static void check_arguments(void *arguments, struct argp_state *state)
{
    struct moe_arguments *a = arguments;
    if (a->experts && !a->routing)
        argp_error(state, "--experts is for a routing; add --routing FILE");
    choose_default(a);
}

static const char doc[] =
    "Dispatch the tokens of a mixture of experts and combine the results, layer by layer: a "
    "token crosses to a node once, however many of its experts live there, and its weighted "
    "results come back as one sum of each node.\v"
    "Sequence q of the routing starts on rank q mod N; experts are placed in order over the "
    "ranks. saved is by how much fewer messages cross than with one for each token and "
    "expert, measured and as the routing foretells; in bytes headers count. Times are sums "
    "over layers, each of the slowest rank from a barrier; predicted is what the wire alone "
    "needs. Exit status 1 if a sum was not, bit for bit, that of a plain computation in the "
    "same order.";

/* What an exchange takes on the wire, of messages of so many bytes each. */
static int predict(const struct moe_work *w, struct sstar_world *world,
                   const struct sstar_cost *cost, const uint64_t *matrix, bool back, uint32_t bytes,
                   bool fixed, const struct moe_outcome *o, struct alltoall_prediction *sum)
{
    size_t ranks = (size_t)w->map.size;
    uint64_t *turned = calloc(ranks * ranks, sizeof *turned);
    int err = turned ? 0 : -ENOMEM;
    *sum = (struct alltoall_prediction){0};
    for (uint32_t l = 0; !err && l < w->layers; l++) {
        for (size_t from = 0; from < ranks; from++)
            for (size_t to = 0; to < ranks; to++)
                turned[back ? to * ranks + from : from * ranks + to] =
                    matrix[(l * ranks + from) * ranks + to];
        struct alltoall_traffic traffic = {.ranks = w->map.size,
                                           .nodes = w->map.nodes,
                                           .node_of = w->map.node_of,
                                           .port_per_rank = world->config.port_per_rank,
                                           .messages = turned,
                                           .message_bytes = bytes,
                                           .fixed = fixed};
        struct alltoall_prediction p;
        err = model_alltoall(&traffic, o->strategy, o->flush_bytes, cost, &p);
        if (!err) {
            sum->seconds += p.seconds;
            sum->wire_bytes += p.wire_bytes;
        }
    }
    free(turned);
    return err;
}

static int predict_all(const struct moe_work *w, struct sstar_world *world,
                       const struct sstar_cost *cost, struct moe_outcome *o)
{
    uint32_t token = w->arguments->values * (uint32_t)sstar_type_bytes(w->arguments->token_type);
    uint32_t result = w->arguments->values * (uint32_t)sstar_type_bytes(w->arguments->result_type);
    double choices = w->all_crossings ? (double)w->all_copies / (double)w->all_crossings : 0;
    uint32_t heads = (uint32_t)(sizeof(struct moe_head) + choices * sizeof(struct moe_choice));
    struct alltoall_prediction p;
    int err = predict(w, world, cost, w->crossings, false, token + heads, false, o, &p);
    o->dispatch_predicted = p.seconds;
    if (!err)
        err = predict(w, world, cost, w->crossings, true, result + 8, false, o, &p);
    o->combine_predicted = p.seconds;
    if (!err)
        err = predict(w, world, cost, w->copies, false, token, true, o, &p);
    o->copies_wire_bytes[0] = p.wire_bytes;
    if (!err)
        err = predict(w, world, cost, w->copies, true, result, true, o, &p);
    o->copies_wire_bytes[1] = p.wire_bytes;
    return err;
}

/* What a rank tells the others when all is over; dispatch and combine seconds of each layer follow.
 */
struct told {
    uint64_t wrong, memory_bytes;
    struct sstar_ledger dispatch, combine;
    double seconds[];
};

static int one_layer(struct sstar_moe *moe, struct moe_work *w, struct sstar_world *world,
                     uint32_t layer, struct told *told)
{
    struct moe_batch *b = &w->batch;
    struct sstar_moe_row *rows;
    struct sstar_ledger dispatch, combine;
    size_t n;
    moe_batch_fill(w, layer);
    int err = sstar_fast_barrier(world);
    uint64_t begun = clock_ns();
    if (!err)
        err = sstar_moe_dispatch(moe, b->tokens, b->experts, b->weights, b->n, &rows, &n);
    if (err)
        return err;
    told->seconds[2 * layer] = (double)(clock_ns() - begun) * 1e-9;
    moe_answer(w, rows, n);
    if ((err = sstar_fast_barrier(world)))
        return err;
    begun = clock_ns();
    if ((err = sstar_moe_combine(moe, b->out)))
        return err;
    told->seconds[2 * layer + 1] = (double)(clock_ns() - begun) * 1e-9;
    told->wrong += w->arguments->check ? moe_count_wrong(w) : 0;
    sstar_moe_ledgers(moe, &dispatch, &combine);
    ledger_add(&told->dispatch, &dispatch);
    ledger_add(&told->combine, &combine);
    return 0;
}

static int agree(struct sstar_world *world, const struct moe_work *w, const struct told *told,
                 struct moe_outcome *o)
{
    size_t bytes = sizeof *told + 2 * w->layers * sizeof *told->seconds;
    char *all = calloc((size_t)w->map.size, bytes);
    int err = all ? sstar_allgather(world, told, bytes, all) : -ENOMEM;
    for (uint32_t i = 0; !err && i < 2 * w->layers; i++) {
        double slowest = 0, *sum = i % 2 ? &o->combine_seconds : &o->dispatch_seconds;
        for (int r = 0; r < w->map.size; r++) {
            const struct told *one = (const void *)(all + (size_t)r * bytes);
            slowest = one->seconds[i] > slowest ? one->seconds[i] : slowest;
        }
        *sum += slowest;
    }
    for (int r = 0; !err && r < w->map.size; r++) {
        const struct told *one = (const void *)(all + (size_t)r * bytes);
        o->wrong += one->wrong;
        o->memory_bytes = one->memory_bytes > o->memory_bytes ? one->memory_bytes : o->memory_bytes;
        ledger_add(&o->dispatch, &one->dispatch);
        ledger_add(&o->combine, &one->combine);
    }
    free(all);
    return err;
}

static int measure(struct sstar_world *world, struct moe_work *w, const struct sstar_cost *cost,
                   enum sstar_strategy strategy, struct moe_outcome *o)
{
    const struct moe_arguments *a = w->arguments;
    *o =
        (struct moe_outcome){.strategy = strategy,
                             .flush_bytes = a->flush_bytes ? a->flush_bytes : flush_bytes_of(cost)};
    struct sstar_moe_attr attr = {.gather = {.strategy = strategy,
                                             .flush_bytes = o->flush_bytes,
                                             .s_star_bytes = sstar_s_star_bytes(cost),
                                             .s_star_rate_bytes = sstar_s_star_rate_bytes(cost)},
                                  .experts = w->routing.experts,
                                  .top = w->routing.top,
                                  .tokens = w->most_tokens,
                                  .values = a->values,
                                  .token_type = a->token_type,
                                  .result_type = a->result_type};
    struct told *told = calloc(1, sizeof *told + 2 * w->layers * sizeof *told->seconds);
    struct sstar_moe *moe = NULL;
    int err = told ? sstar_moe_open(world, &attr, &moe) : -ENOMEM;
    for (uint32_t l = 0; !err && l < w->layers; l++) {
        progress_show(&a->common, world, sstar_strategy_name(strategy), (double)l / w->layers);
        err = one_layer(moe, w, world, l, told);
    }
    progress_clear(&a->common, world);
    if (!err) {
        told->memory_bytes = sstar_moe_memory(moe);
        err = agree(world, w, told, o);
    }
    if (!err)
        err = predict_all(w, world, cost, o);
    sstar_moe_close(moe);
    free(told);
    return err;
}

static int run(struct sstar_world *world, void *arguments, int *status)
{
    const struct moe_arguments *a = arguments;
    struct moe_outcome *outcomes = calloc(SSTAR_STRATEGIES, sizeof *outcomes);
    struct sstar_cost cost;
    struct moe_work work;
    char error[512] = "";
    int n = 0, err = outcomes ? moe_work_open(&work, world, a, error, sizeof error) : -ENOMEM;
    if (err) { /* the same file on all ranks, as a rule: one says so */
        if (sstar_rank(world) == 0)
            fprintf(stderr, "sstar moe: %s\n", *error ? error : strerror(-err));
        *status = EXIT_FAILURE;
    } else {
        err = wire_cost(world, &cost);
        for (int s = SSTAR_NONE; !err && s < SSTAR_STRATEGIES; s++)
            if (a->strategies[s])
                err = measure(world, &work, &cost, (enum sstar_strategy)s, &outcomes[n++]);
        if (!err && sstar_rank(world) == 0)
            *status = moe_report(world, &work, &cost, outcomes, n);
    }
    if (outcomes)
        moe_work_close(&work);
    free(outcomes);
    return *error ? 0 : err;
}

static int moe_main(int argc, char **argv)
{
    struct moe_arguments a = {
        .values = 2880, .token_type = SSTAR_BFLOAT16, .result_type = SSTAR_BFLOAT16, .check = true};
    static const struct measurement measurement = {
        .line = {.settings = settings,
                 .doc = doc,
                 .too_much = "a routing is given with --routing FILE",
                 .check = check_arguments},
        .default_ranks = 8,
        .run = run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_moe = {"moe", moe_main,
                                    "time dispatch and combine of a mixture of experts"};
