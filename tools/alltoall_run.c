/* SPDX-License-Identifier: MIT */
/*
 * One strategy, measured. A message carries its source, its destination, its number in their stream
 * and a pattern that follows from these, so that the receiver can tell exactly what was lost, came
 * twice or came altered.
 */
#include "collectives/ledger.h"
#include "collectives/model_alltoall.h"
#include "tools/alltoall.h"
#include "tools/alltoall_bare.h"
#include "tools/alltoall_check.h"
#include "tools/strategies.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    PUSHES_PER_TURN = 32, /* then arrivals have their turn, and the wire */
    PULLS_PER_TURN = 64,
    WARM_MESSAGES = 500, /* of each rank, untimed: connections, pages */
    WARM_BYTES = 64,     /* of these, at most, if sizes vary */
};

struct run {
    struct sstar_world *world;
    const struct alltoall_arguments *arguments;
    struct sstar_aggregator *aggregator;
    int rank, ranks;
    char what[48];  /* for the progress line */
    uint32_t bytes; /* of every message, or of the longest */
    /* Of the layer: when messages are due and how long they are, NULL if now and all alike. */
    const uint64_t *due_ns;
    const uint32_t *sizes;
    uint64_t begun_ns;
    struct check check;
    uint64_t *message; /* where one is put together */
    uint32_t *number;  /* [ranks]: of the next message to each */
    struct bare bare;
};

/* ---- one layer ----------------------------------------------------------------------------------
 */

static void run_free(struct run *r)
{
    free(r->message);
    free(r->number);
    check_close(&r->check);
}

static int run_prepare(struct run *r, const struct plan *plan)
{
    size_t ranks = (size_t)r->ranks;
    uint64_t most = WARM_MESSAGES * ranks;
    for (uint32_t l = 0; l < plan->layers; l++) {
        uint64_t sum = 0;
        for (size_t s = 0; s < ranks; s++)
            sum += plan_matrix(plan, l)[s * ranks + (size_t)r->rank];
        most = sum > most ? sum : most;
    }
    r->message = calloc(r->bytes / 8 + 2, sizeof *r->message);
    r->number = calloc(ranks, sizeof *r->number);
    int err = check_open(&r->check, r->rank, r->ranks, r->bytes, r->arguments->common.seed, most);
    r->check.varied = plan->bytes;
    return r->message && r->number ? err : -ENOMEM;
}

static void expect(struct run *r, const uint64_t *matrix)
{
    check_begin(&r->check, matrix);
    memset(r->number, 0, (size_t)r->ranks * sizeof *r->number);
    r->bare = (struct bare){0};
}

static int pull_some(struct run *r)
{
    struct sstar_item item;
    int got = 0;
    for (int i = 0; i < PULLS_PER_TURN && (got = sstar_pull(r->aggregator, &item)) > 0; i++)
        check_read(&r->check, item.source, item.data, item.bytes);
    return got < 0 ? got : 0;
}

static int push_some(struct run *r, const uint16_t *to, size_t n, size_t *done)
{
    size_t end = *done + PUSHES_PER_TURN < n ? *done + PUSHES_PER_TURN : n;
    for (; *done < end; (*done)++) {
        int destination = to[*done];
        uint32_t bytes = r->sizes ? r->sizes[*done] : r->bytes;
        if (r->due_ns && clock_ns() - r->begun_ns < r->due_ns[*done])
            break;
        check_write(&r->check, r->message, destination, r->number[destination], bytes);
        int err = sstar_push(r->aggregator, destination, r->message, bytes);
        if (err)
            return err;
        r->number[destination]++;
    }
    return 0;
}

/* Send these and receive what is sent to us, until nothing is left anywhere. */
static int exchange(struct run *r, const uint16_t *to, size_t n)
{
    size_t done = 0, shown = 0;
    int left = 1;
    if (!r->arguments->check)
        return bare_exchange(r->aggregator, to, n, r->bytes, r->message, &r->bare);
    while (left > 0) {
        int err = push_some(r, to, n, &done);
        if (err && err != -EAGAIN)
            return err;
        if (done - shown > n / 20 + PUSHES_PER_TURN) {
            shown = done;
            progress_show(&r->arguments->common, r->world, r->what, (double)done / (double)n);
        }
        if ((err = pull_some(r)))
            return err;
        left = sstar_advance(r->aggregator, done == n);
    }
    return left;
}

/* Every rank to all in turn, checked but not timed or counted. */
static int warm_up(struct run *r)
{
    uint16_t to[WARM_MESSAGES];
    size_t ranks = (size_t)r->ranks;
    uint64_t *matrix = calloc(ranks * ranks, sizeof *matrix);
    if (!matrix)
        return -ENOMEM;
    for (size_t i = 0; i < WARM_MESSAGES; i++) {
        to[i] = (uint16_t)(((size_t)r->rank + i) % ranks);
        for (size_t s = 0; s < ranks; s++)
            matrix[s * ranks + (s + i) % ranks]++;
    }
    expect(r, matrix);
    free(matrix);
    uint32_t sizes[WARM_MESSAGES];
    for (size_t i = 0; i < WARM_MESSAGES; i++)
        sizes[i] = r->check.varied && r->bytes > WARM_BYTES ? WARM_BYTES : r->bytes;
    r->sizes = sizes;
    int err = exchange(r, to, WARM_MESSAGES);
    r->sizes = NULL;
    return err ? err : sstar_aggregator_reset(r->aggregator);
}

/* ---- a strategy ---------------------------------------------------------------------------------
 */

/* What a rank tells the others when all is over; seconds[layers] follow. */
struct told {
    uint64_t lost, doubled, altered;
    uint64_t sums; /* without the check: of what was sent, less those of what came */
    uint64_t taken_bytes;
    struct sstar_ledger ledger;
    double seconds[];
};

static int run_layers(struct run *r, const struct plan *plan, enum sstar_strategy strategy,
                      struct told *told)
{
    int err = 0;
    for (uint32_t l = 0; l < plan->layers; l++) {
        struct sstar_ledger ledger;
        size_t begin = plan->begin[l], n = plan->begin[l + 1] - begin;
        r->due_ns = plan->due_ns ? plan->due_ns + begin : NULL;
        r->sizes = plan->bytes ? plan->bytes + begin : NULL;
        expect(r, plan_matrix(plan, l));
        if (plan->layers > 1)
            snprintf(r->what, sizeof r->what, "strategy %s, layer %u of %u",
                     sstar_strategy_name(strategy), l + 1, plan->layers);
        if (l && (err = sstar_aggregator_reset(r->aggregator)))
            return err;
        if ((err = sstar_fast_barrier(r->world)))
            return err;
        r->begun_ns = clock_ns();
        if ((err = exchange(r, plan->to + begin, n)))
            return err;
        told->seconds[l] = (double)(clock_ns() - r->begun_ns) * 1e-9;
        /* Without the check only the numbers and the sums are known. */
        uint64_t wanted = check_wanted(&r->check);
        uint64_t got = r->arguments->check ? r->check.distinct : r->bare.pulled;
        told->lost += got < wanted ? wanted - got : 0;
        told->doubled += got > wanted ? got - wanted : 0;
        told->sums += r->bare.sum_sent - r->bare.sum_pulled;
        sstar_aggregator_ledger(r->aggregator, &ledger);
        ledger_add(&told->ledger, &ledger);
    }
    told->doubled += r->check.doubled;
    told->altered = r->check.altered;
    return 0;
}

/* A layer takes as long as on the slowest rank. */
static int agree(struct run *r, const struct plan *plan, const struct told *told,
                 struct outcome *out)
{
    size_t bytes = sizeof *told + plan->layers * sizeof *told->seconds;
    char *all = calloc((size_t)r->ranks, bytes);
    int err = all ? sstar_allgather(r->world, told, bytes, all) : -ENOMEM;
    ledger_reset(&out->ledger, 0, 0);
    for (uint32_t l = 0; !err && l < plan->layers; l++) {
        double slowest = 0;
        for (int i = 0; i < r->ranks; i++) {
            const struct told *one = (const void *)(all + (size_t)i * bytes);
            slowest = one->seconds[l] > slowest ? one->seconds[l] : slowest;
        }
        out->seconds += slowest;
    }
    uint64_t sums = 0;
    for (int i = 0; !err && i < r->ranks; i++) {
        const struct told *one = (const void *)(all + (size_t)i * bytes);
        sums += one->sums;
        out->lost += one->lost;
        out->doubled += one->doubled;
        out->altered += one->altered;
        if (one->taken_bytes > out->taken_bytes)
            out->taken_bytes = one->taken_bytes;
        if (one->ledger.wire_bytes > out->busiest_wire_bytes)
            out->busiest_wire_bytes = one->ledger.wire_bytes;
        ledger_add(&out->ledger, &one->ledger);
    }
    out->altered += sums != 0; /* some message, which is not known */
    free(all);
    return err;
}

/* Which share of what crosses goes to the node that gets most. */
static void find_hottest(struct run *r, const struct plan *plan, struct outcome *out)
{
    size_t ranks = (size_t)r->ranks;
    double most = 0, all = 0;
    for (int node = 0; node < sstar_node_count(r->world); node++) {
        double got = 0;
        for (size_t i = 0; i < plan->layers * ranks * ranks; i++) {
            int from = (int)(i / ranks % ranks), to = (int)(i % ranks);
            bool there = sstar_node_of(r->world, to) == node;
            if (there && sstar_node_of(r->world, from) != node)
                got += (double)plan->matrix[i];
        }
        all += got;
        most = got > most ? got : most;
    }
    out->hottest_share = all > 0 ? most / all : 0;
}

static int predict(struct run *r, const struct plan *plan, const struct sstar_cost *cost,
                   struct outcome *out)
{
    size_t ranks = (unsigned)r->ranks;
    int *node_of = calloc(ranks, sizeof *node_of), err = node_of ? 0 : -ENOMEM;
    for (int i = 0; !err && i < r->ranks; i++)
        node_of[i] = sstar_node_of(r->world, i);
    for (uint32_t l = 0; !err && l < plan->layers; l++) {
        struct alltoall_traffic traffic = {.ranks = r->ranks,
                                           .nodes = sstar_node_count(r->world),
                                           .node_of = node_of,
                                           .port_per_rank = r->world->config.port_per_rank,
                                           .messages = plan_matrix(plan, l),
                                           .message_bytes = (uint32_t)plan->mean_bytes,
                                           .hops = r->arguments->hops,
                                           .fixed = !plan->bytes};
        struct alltoall_prediction p;
        err = model_alltoall(&traffic, out->strategy, out->point.flush_bytes, cost, &p);
        out->predicted_seconds += err ? 0 : p.seconds;
    }
    /* Not before the last is due, and on its way. */
    double offered = plan->offered_seconds + cost->alpha_us * 1e-6;
    if (plan->offered_seconds > 0 && out->predicted_seconds < offered)
        out->predicted_seconds = offered;
    find_hottest(r, plan, out);
    free(node_of);
    return err;
}

static int gather_links(struct run *r, struct outcome *out)
{
    size_t n = (size_t)r->ranks;
    struct sstar_link_ledger *mine = calloc(n, sizeof *mine);
    out->links = calloc(n * n, sizeof *out->links);
    int err = mine && out->links ? 0 : -ENOMEM;
    if (!err) {
        sstar_aggregator_links(r->aggregator, mine);
        err = sstar_allgather(r->world, mine, n * sizeof *mine, out->links);
    }
    free(mine);
    return err;
}

void outcome_free(struct outcome *outcome)
{
    free(outcome->links);
    outcome->links = NULL;
}

int alltoall_measure(struct sstar_world *world, const struct alltoall_arguments *a,
                     const struct plan *plan, const struct sstar_cost *cost,
                     enum sstar_strategy strategy, const struct alltoall_point *point,
                     struct outcome *out)
{
    double s_star = sstar_s_star_bytes(cost);
    struct sstar_aggregator_attr attr = {.strategy = strategy,
                                         .item_bytes = plan->bytes ? 0 : plan->most_bytes,
                                         .max_item_bytes = plan->most_bytes,
                                         .flush_bytes = point->flush_bytes,
                                         .max_age_us = point->max_age_us,
                                         .flush = a->flush,
                                         .hops = a->hops,
                                         .s_star_bytes = s_star,
                                         .s_star_rate_bytes = sstar_s_star_rate_bytes(cost)};
    struct run r = {.world = world,
                    .arguments = a,
                    .rank = sstar_rank(world),
                    .ranks = sstar_size(world),
                    .bytes = plan->most_bytes};
    snprintf(r.what, sizeof r.what, "strategy %s", sstar_strategy_name(strategy));
    struct told *told = calloc(1, sizeof *told + plan->layers * sizeof *told->seconds);
    *out = (struct outcome){.strategy = strategy, .point = *point, .ranks = r.ranks};
    int err = told ? run_prepare(&r, plan) : -ENOMEM;
    uint64_t held_before = memory_held();
    if (!err)
        err = sstar_aggregator_open(world, &attr, &r.aggregator);
    if (!err)
        err = warm_up(&r);
    if (!err)
        err = run_layers(&r, plan, strategy, told);
    uint64_t held = memory_held();
    if (told)
        told->taken_bytes = held > held_before ? held - held_before : 0;
    progress_clear(&a->common, world);
    if (!err)
        err = agree(&r, plan, told, out);
    if (!err)
        err = predict(&r, plan, cost, out);
    if (!err && a->ledger)
        err = gather_links(&r, out);
    sstar_aggregator_close(r.aggregator);
    run_free(&r);
    free(told);
    return err;
}
