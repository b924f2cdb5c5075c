/* SPDX-License-Identifier: MIT */
/* The aggregating all-to-all: the table of strategies, opening, and what memory that takes. */
#include "collectives/ledger.h"
#include "collectives/strategy.h"
#include "collectives/wire_cost.h"
#include "transport/available.h"
#include "transport/memory.h"
#include "transport/turn.h"
#include <stdlib.h>

static const struct strategy *const strategies[SSTAR_STRATEGIES] = {
    [SSTAR_NONE] = &strategy_none,         [SSTAR_PER_RANK] = &strategy_rank,
    [SSTAR_PER_NODE] = &strategy_node,     [SSTAR_MESH] = &strategy_mesh,
    [SSTAR_ADAPTIVE] = &strategy_adaptive,
};

enum {
    FLUSH_BYTES_LEAST = 64,
    FLUSH_BYTES_MOST = 64 << 20,
    RING_BYTES_LEAST = 64 << 10,
    RING_BYTES_WISHED = 1 << 20,
    /* In a node, where a short ring makes its two ranks wait for each other in turn, and a long
     * one, or many, leave the core's own cache. */
    RING_BYTES_CACHED = 256 << 10,
    ALL_RINGS_BYTES_CACHED = 512 << 10,
};

const char *sstar_strategy_name(enum sstar_strategy strategy)
{
    return strategies[strategy]->name;
}

const char *sstar_flush_name(enum sstar_flush flush)
{
    return flush_rules[flush]->name;
}

/* What the ranks tell each other at open; all but the address must be alike. */
struct introduction {
    uint32_t magic, version, strategy, item_bytes, max_item_bytes, flush_bytes, flush, hops;
    int32_t status; /* 0, or why this rank cannot */
    uint64_t ring_size, max_age_ns;
    uint64_t address, size; /* of its memory */
};

/* ---- opening ------------------------------------------------------------------------------------
 */

/* Who is where, seen from a rank. */
static void stand_at(struct sstar_aggregator *a, int rank)
{
    a->rank = rank;
    a->node = a->node_of[rank];
    a->local_rank = a->local_of[rank];
    a->local_size = local_size_of(a, a->node);
}

/* All that does not need a world. `node_of` as for node_map_init. */
static int shape(struct sstar_aggregator *a, const struct sstar_aggregator_attr *attr, int size,
                 const int *node_of, int rank)
{
    int err = node_map_init(&a->map, size, node_of);
    if (err)
        return err;
    a->size = size;
    a->nodes = a->map.nodes;
    a->node_of = a->map.node_of;
    a->local_of = a->map.local_of;
    stand_at(a, rank);
    a->strategy = strategies[attr->strategy];
    a->flush = flush_rules[attr->flush];
    a->item_bytes = attr->item_bytes;
    a->max_item_bytes = attr->item_bytes ? attr->item_bytes : attr->max_item_bytes;
    a->queue_pairs = attr->queue_pairs;
    a->hops = attr->hops;
    a->max_age_ns = attr->max_age_us > 0 ? (uint64_t)(attr->max_age_us * 1e3) : UINT64_MAX;
    return 0;
}

static uint64_t clock_price_ns(void)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 32; i++) {
        uint64_t begun = clock_ns(), took = clock_ns() - begun;
        least = took < least ? took : least;
    }
    return least;
}

static int open_lanes(struct sstar_aggregator *a)
{
    a->lanes = calloc((size_t)a->size, sizeof *a->lanes);
    a->shared = calloc((size_t)a->local_size, sizeof *a->shared);
    a->sent = calloc((size_t)a->size, sizeof *a->sent);
    a->refused_since_ns = calloc((size_t)a->size, sizeof *a->refused_since_ns);
    if (!a->lanes || !a->shared || !a->sent || !a->refused_since_ns)
        return -ENOMEM;
    a->sampled.clock_ns = clock_price_ns();
    struct item_format format = format_plain(a->item_bytes);
    a->shut = lane_of_format(&format);
    for (int r = 0; r < a->size; r++)
        a->lanes[r] = &a->shut;
    a->front = (struct sstar_aggregator_front){.ranks = (uint32_t)a->size,
                                               .rank = (uint32_t)a->rank,
                                               .most_bytes = a->max_item_bytes,
                                               .lanes = a->lanes};
    return 0;
}

static void settle_flush(struct sstar_aggregator *a, const struct sstar_aggregator_attr *attr)
{
    double s_star = sstar_s_star_bytes(&a->cost);
    double flush = attr->flush_bytes ? attr->flush_bytes : s_star > 0 ? 4 * s_star : 64 << 10;
    flush = flush < FLUSH_BYTES_LEAST ? FLUSH_BYTES_LEAST : flush;
    a->flush_bytes = flush > FLUSH_BYTES_MOST ? FLUSH_BYTES_MOST : (uint32_t)flush;
}

/* The byte threshold, and S* for the ledger: from the imposed wire, or measured if something is to
 * be chosen by it. */
static int choose_flush(struct sstar_aggregator *a, const struct sstar_aggregator_attr *attr)
{
    const struct sstar_wire *wire = &a->world->config.wire;
    a->cost = (struct sstar_cost){
        .alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps};
    a->sees_off = wire->alpha_us > 0 || wire->gap_us > 0 || wire->beta_gbps > 0;
    if (attr->flush_bytes == 0 || a->flush->needs_clock) {
        int err = wire_cost(a->world, &a->cost);
        if (err)
            return err;
    }
    settle_flush(a, attr);
    double s_star = sstar_s_star_bytes(&a->cost);
    double s_star_rate = sstar_s_star_rate_bytes(&a->cost);
    ledger_reset(&a->ledger, attr->s_star_bytes > 0 ? attr->s_star_bytes : s_star,
                 attr->s_star_rate_bytes > 0 ? attr->s_star_rate_bytes : s_star_rate);
    return 0;
}

/* A ring holds what reaches the threshold, so that one writer alone can, and more if that is cheap,
 * so that the wire has work while its gateway does not run. */
static void choose_ring(struct sstar_aggregator *a, const struct sstar_aggregator_attr *attr)
{
    uint64_t item = item_room(a->max_item_bytes), least = 2 * item;
    least = least < 8 * RING_STAMPS ? 8 * RING_STAMPS : least;
    if (attr->buffer_bytes) {
        a->ring_size = power_of_two(attr->buffer_bytes > least ? attr->buffer_bytes : least);
        return;
    }
    uint64_t size = least < RING_BYTES_WISHED ? 2 * least : least;
    uint64_t wished = ALL_RINGS_BYTES_CACHED / (uint64_t)node_map_most(&a->map);
    wished = wished < RING_BYTES_CACHED ? wished : RING_BYTES_CACHED;
    if (a->strategy->shared_bytes) {
        size = a->flush_bytes + least > size ? a->flush_bytes + least : size;
        wished =
            4ull * a->flush_bytes < RING_BYTES_WISHED ? 4ull * a->flush_bytes : RING_BYTES_WISHED;
    }
    size = size < RING_BYTES_LEAST ? RING_BYTES_LEAST : size;
    a->ring_size = power_of_two(size > wished ? size : wished);
}

static int refuse(struct sstar_world *world, const char *what)
{
    return report_set(&world->report, -EINVAL, "rank %d: aggregator: %s", sstar_rank(world), what);
}

/* What is wrong with the attributes; NULL: nothing. */
static const char *mistake(const struct sstar_aggregator_attr *attr, int ranks)
{
    uint32_t most = attr->item_bytes ? attr->item_bytes : attr->max_item_bytes;
    if ((unsigned)attr->strategy >= SSTAR_STRATEGIES)
        return "there is no such strategy";
    if ((unsigned)attr->flush >= SSTAR_FLUSH_RULES)
        return "there is no such flush rule";
    if (attr->hops != 0 && attr->hops != 2 && attr->hops != 3)
        return "hops must be 2 or 3, or 0 to be chosen";
    if (most == 0 || most > ITEM_MAX_BYTES)
        return "item_bytes or max_item_bytes must lie between 1 and 1 GiB";
    if (ranks > UINT16_MAX)
        return "more than 65535 ranks are not supported";
    if (!(attr->max_age_us >= 0) || attr->max_age_us > 1e12)
        return "max_age_us must not be negative";
    return NULL;
}

static size_t memory_bytes(const struct sstar_aggregator *a, int local)
{
    bool remote = a->nodes > 1 && a->strategy->shared_bytes;
    return a->strategy_offset + (remote ? a->strategy->shared_bytes(a, local) : 0);
}

/* ---- memory -------------------------------------------------------------------------------------
 */

/* All that this rank needs for messages. */
static uint64_t need_bytes(struct sstar_aggregator *a)
{
    a->strategy_offset = align_up(local_shared_bytes(a), 64);
    uint64_t bytes = memory_bytes(a, a->local_rank);
    return a->nodes > 1 ? bytes + a->strategy->link_bytes(a) : bytes;
}

int sstar_aggregator_memory(const struct sstar_aggregator_attr *attr, int ranks, int ranks_per_node,
                            uint64_t *most_bytes)
{
    if (ranks < 1 || ranks_per_node < 1 || attr->flush_bytes == 0 || mistake(attr, ranks))
        return -EINVAL;
    struct sstar_aggregator *a = calloc(1, sizeof *a);
    int *node_of = calloc((size_t)ranks, sizeof *node_of);
    int err = a && node_of ? 0 : -ENOMEM;
    for (int r = 0; !err && r < ranks; r++)
        node_of[r] = r / ranks_per_node;
    if (!err)
        err = shape(a, attr, ranks, node_of, 0);
    if (!err) {
        uint64_t most = 0;
        settle_flush(a, attr);
        choose_ring(a, attr);
        for (int r = 0; r < ranks; r++) {
            stand_at(a, r);
            uint64_t bytes = need_bytes(a);
            most = bytes > most ? bytes : most;
        }
        *most_bytes = most;
        node_map_destroy(&a->map);
    }
    free(node_of);
    free(a);
    return err;
}

struct need {
    uint64_t bytes, available_bytes;
};

/* Before anything is taken: all ranks of each host together against what it has. The same answer on
 * every rank. Collective. */
static int check_memory(struct sstar_aggregator *a)
{
    struct sstar_world *w = a->world;
    struct need mine = {need_bytes(a), memory_available()};
    a->ledger.memory_bytes = mine.bytes;
    struct need *all = calloc((size_t)a->size, sizeof *all);
    int err = all ? 0 : world_fail(w, -ENOMEM, "rank %d: aggregator: out of memory", a->rank);
    if (!err)
        err = sstar_allgather(w, &mine, sizeof mine, all);
    for (int r = 0; !err && r < a->size; r++) {
        uint64_t need = 0, available = UINT64_MAX;
        int ranks = 0;
        for (int o = 0; o < a->size; o++) {
            if (strcmp(w->ranks[o].host, w->ranks[r].host))
                continue;
            if (o < r)
                break; /* that host was looked at */
            ranks++;
            need += all[o].bytes;
            if (all[o].available_bytes < available)
                available = all[o].available_bytes;
        }
        if (need > available)
            err = report_set(
                &w->report, -ENOMEM,
                "aggregator (%s): its %d ranks on host %s need %.4g GB for messages under way, "
                "where %.4g GB are free; take less buffer_bytes or flush_bytes, fewer ranks on a "
                "host, or a strategy with fewer links (mesh)",
                a->strategy->name, ranks, w->ranks[r].host, (double)need * 1e-9,
                (double)available * 1e-9);
    }
    free(all);
    return err;
}

/* All of the node, mapped. */
static int map_memory(struct sstar_aggregator *a, const struct introduction *all)
{
    for (int i = 0; i < a->local_size; i++) {
        int r = rank_at(a, a->node, i);
        a->shared[i].size = all[r].size;
        a->shared[i].memory =
            r == a->rank ? a->own_memory : memory_peer(a->world, r, all[r].address, all[r].size);
        if (a->shared[i].memory)
            continue;
        return memory_peer_missing(a->world, r, "aggregator");
    }
    return 0;
}

/* Our own memory, and the others' of the node. Collective: all learn when one cannot. */
static int share_memory(struct sstar_aggregator *a, const struct sstar_aggregator_attr *attr)
{
    size_t bytes = memory_bytes(a, a->local_rank);
    struct introduction *all = calloc((size_t)a->size, sizeof *all);
    struct introduction mine = {.magic = SEGMENT_MAGIC,
                                .version = WIRE_VERSION,
                                .strategy = attr->strategy,
                                .item_bytes = a->item_bytes,
                                .max_item_bytes = a->max_item_bytes,
                                .flush_bytes = a->flush_bytes,
                                .flush = attr->flush,
                                .hops = attr->hops,
                                .ring_size = a->ring_size,
                                .max_age_ns = a->max_age_ns,
                                .size = bytes};
    mine.status = all ? sstar_alloc(a->world, bytes, &a->own_memory) : -ENOMEM;
    mine.address = (uint64_t)(uintptr_t)a->own_memory;
    if (!all)
        return world_fail(a->world, -ENOMEM, "rank %d: aggregator: out of memory", a->rank);
    int err = sstar_allgather(a->world, &mine, sizeof mine, all);
    for (int r = 0; !err && r < a->size; r++) {
        if (all[r].status)
            err = r == a->rank ? mine.status
                               : report_set(&a->world->report, all[r].status,
                                            "aggregator: rank %d could not get its memory", r);
        else if (memcmp(&all[r], &mine, offsetof(struct introduction, status)) ||
                 all[r].ring_size != mine.ring_size || all[r].max_age_ns != mine.max_age_ns)
            err = report_set(&a->world->report, -EINVAL,
                             "aggregator: rank %d and rank %d opened it with other attributes or "
                             "another version",
                             a->rank, r);
    }
    if (!err)
        err = map_memory(a, all);
    free(all);
    return err;
}

/* ---- opening and closing ------------------------------------------------------------------------
 */

static int shape_of_world(struct sstar_aggregator *a, const struct sstar_aggregator_attr *attr)
{
    int size = sstar_size(a->world);
    int *node_of = calloc((size_t)size, sizeof *node_of), err = node_of ? 0 : -ENOMEM;
    for (int r = 0; !err && r < size; r++)
        node_of[r] = sstar_node_of(a->world, r);
    if (!err)
        err = shape(a, attr, size, node_of, sstar_rank(a->world));
    free(node_of);
    return err;
}

static int open_aggregator(struct sstar_world *world, const struct sstar_aggregator_attr *attr,
                           bool inside, struct sstar_aggregator **aggregator)
{
    WORLD_TURN(world);
    if (world->failed)
        return world->failed;
    const char *wrong = mistake(attr, sstar_size(world));
    if (wrong)
        return refuse(world, wrong);
    struct sstar_aggregator *a = calloc(1, sizeof *a);
    if (!a)
        return -ENOMEM;
    a->world = world;
    a->waiter = wait_begin(world, "all-to-all messages", -1, 0);
    world->report = (struct report){""};
    int err = shape_of_world(a, attr);
    if (inside)
        a->nodes = 1; /* as far as it goes */
    if (err || (err = open_lanes(a)) || (err = choose_flush(a, attr)))
        goto close;
    choose_ring(a, attr);
    if ((err = check_memory(a)) || (err = share_memory(a, attr)) || (err = local_open(a)))
        goto close;
    if (a->nodes > 1 && (err = a->strategy->open(a)))
        goto close;
    a->arrives_by_completion = links_arrive_by_completion(world);
    if ((err = sstar_barrier(world)))
        goto close;
    a->opened = true;
    *aggregator = a;
    return 0;
close:
    if (!world->report.text[0]) /* tables of our own: no other rank knows, and all wait for us */
        world_fail(world, err, "rank %d: aggregator: out of memory", sstar_rank(world));
    sstar_aggregator_close(a);
    return err;
}

int sstar_aggregator_open(struct sstar_world *world, const struct sstar_aggregator_attr *attr,
                          struct sstar_aggregator **aggregator)
{
    return open_aggregator(world, attr, false, aggregator);
}

int aggregator_open_inside(struct sstar_world *world, const struct sstar_aggregator_attr *attr,
                           struct sstar_aggregator **aggregator)
{
    return open_aggregator(world, attr, true, aggregator);
}

void sstar_aggregator_close(struct sstar_aggregator *a)
{
    if (!a)
        return;
    WORLD_TURN(a->world);
    /* Nobody may free what another still reads. */
    if (!a->world->failed && a->opened)
        sstar_barrier(a->world);
    if (a->state)
        a->strategy->close(a);
    local_close(a);
    if (a->own_memory)
        sstar_free(a->world, a->own_memory);
    free(a->shared);
    free(a->sent);
    free(a->refused_since_ns);
    free(a->lanes);
    node_map_destroy(&a->map);
    free(a);
}
