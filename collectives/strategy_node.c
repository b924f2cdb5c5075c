/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a node share one stream to each other node: what all of them hold is gathered by a
 * gateway rank into one wire message, and handed out at the other node where it landed. See
 * aggregator_node.h for who has what.
 */
#include "collectives/aggregator_node.h"
#include "transport/memory.h"
#include <stdlib.h>

enum {
    NODE_SLOTS = 64,
    NODE_BUDGET_BYTES = 4 << 20,      /* of the slots of a link, */
    NODE_ALL_BUDGET_BYTES = 64 << 20, /* and of all of a gateway */
};

/* ---- what lies where; every rank of the world computes the same ---------------------------------
 */

static int owner_of(const struct sstar_aggregator *a, int other)
{
    return other % a->local_size;
}

static void compute_sizes(const struct sstar_aggregator *a, struct per_node *n)
{
    n->format = format_routed(a->item_bytes);
    n->readers_most = node_map_most(&a->map);
    n->pieces_most = 2 * (uint32_t)n->readers_most; /* a ring may be cut where it begins anew */
    n->directory_most =
        (uint32_t)align_up(node_directory_bytes(n->pieces_most, (uint32_t)n->readers_most, 1), 64);
    uint64_t most = (uint64_t)n->directory_most + a->flush_bytes +
                    format_room(&n->format, a->max_item_bytes) + 8;
    n->slot_bytes = (uint32_t)align_up(most, 64);
    /* A node of few ranks has most links for each. */
    int links = (a->nodes - 1) / node_map_least(&a->map) + 1;
    uint64_t budget = NODE_ALL_BUDGET_BYTES / (uint64_t)links;
    budget = budget < NODE_BUDGET_BYTES ? budget : NODE_BUDGET_BYTES;
    n->slots = NODE_SLOTS;
    while (n->slots > 4 && (uint64_t)n->slots * n->slot_bytes > budget)
        n->slots /= 2;
}

static size_t rings_bytes(const struct sstar_aggregator *a)
{
    return (size_t)a->local_size * ring_bytes(a->ring_size);
}

static size_t channel_bytes(const struct sstar_aggregator *a, const struct per_node *n)
{
    return rings_bytes(a) + handout_bytes(a->local_size, n->slots) +
           (size_t)n->slots * n->directory_most;
}

static size_t node_shared_bytes(const struct sstar_aggregator *a, int local)
{
    struct per_node sizes;
    size_t bytes = 0;
    compute_sizes(a, &sizes);
    for (int other = 0; other < a->nodes; other++)
        if (other != a->node && owner_of(a, other) == local)
            bytes += channel_bytes(a, &sizes);
    return bytes;
}

static struct sstar_link_attr link_attr(const struct sstar_aggregator *a, const struct per_node *n)
{
    return (struct sstar_link_attr){
        .queue_pairs = a->queue_pairs, .slots = n->slots, .slot_bytes = n->slot_bytes};
}

static uint64_t node_link_bytes(const struct sstar_aggregator *a)
{
    struct per_node sizes;
    int links = 0;
    compute_sizes(a, &sizes);
    for (int other = 0; other < a->nodes; other++)
        links += other != a->node && owner_of(a, other) == a->local_rank;
    struct sstar_link_attr attr = link_attr(a, &sizes);
    return links_bytes(&attr, links, 0);
}

/* The channel's part of its owner's memory. */
static uint8_t *channel_memory(const struct sstar_aggregator *a, int other)
{
    size_t before = 0;
    for (int node = 0; node < other; node++)
        if (node != a->node && owner_of(a, node) == owner_of(a, other))
            before += channel_bytes(a, per_node(a));
    return strategy_memory(a, owner_of(a, other)) + before;
}

/* ---- opening and closing ------------------------------------------------------------------------
 */

static int open_channel(struct sstar_aggregator *a, int other)
{
    struct per_node *n = per_node(a);
    struct channel *c = &n->channel[other];
    uint8_t *rings = channel_memory(a, other);
    uint8_t *handout = rings + rings_bytes(a);
    uint8_t *directories = handout + handout_bytes(a->local_size, n->slots);
    struct ring_shared *out = (void *)(rings + (size_t)a->local_rank * ring_bytes(a->ring_size));
    c->node = other;
    c->owner = owner_of(a, other);
    c->out =
        (struct ring_writer){.shared = out, .data = (uint8_t *)(out + 1), .size = a->ring_size};
    c->lane = lane_of_format(&n->format);
    c->out.lane = &c->lane;
    for (int i = 0; i < local_size_of(a, other); i++)
        a->lanes[rank_at(a, other, i)] = &c->lane;
    c->stamped = UINT64_MAX;
    c->handout = (void *)handout;
    c->entries = (void *)(c->handout->consumed + a->local_size);
    return c->owner == a->local_rank ? gateway_open(a, c, rings, directories) : 0;
}

static int open_links(struct sstar_aggregator *a)
{
    struct per_node *n = per_node(a);
    int *peers = calloc((size_t)a->nodes, sizeof *peers), n_peers = 0;
    if (!peers)
        return -ENOMEM;
    /* The other end is that node's gateway to us. */
    for (int other = 0; other < a->nodes; other++)
        if (n->channel[other].gateway)
            peers[n_peers++] = gateway_rank(a, other);
    struct sstar_link_attr attr = link_attr(a, n);
    int err = sstar_links_open(a->world, peers, n_peers, &attr, &n->links);
    for (int other = 0, i = 0; !err && other < a->nodes; other++) {
        struct channel *c = &n->channel[other];
        if (!c->gateway)
            continue;
        size_t bytes;
        c->gateway->link = sstar_links_to(n->links, peers[i++]);
        c->slots = link_slots_base(c->gateway->link, &bytes);
        c->handout->slots_address = (uint64_t)(uintptr_t)c->slots;
        c->handout->slots_bytes = bytes;
    }
    free(peers);
    return err;
}

static int map_slots(struct sstar_aggregator *a, struct channel *c)
{
    int rank = rank_at(a, a->node, c->owner);
    c->slots = memory_peer(a->world, rank, c->handout->slots_address, c->handout->slots_bytes);
    return c->slots ? 0 : memory_peer_missing(a->world, rank, "aggregator (node), link slots");
}

static int node_open(struct sstar_aggregator *a)
{
    struct per_node *n = calloc(1, sizeof *n);
    if (!n)
        return -ENOMEM;
    a->state = n;
    compute_sizes(a, n);
    n->channel = calloc((size_t)a->nodes, sizeof *n->channel);
    if (!n->channel)
        return -ENOMEM;
    int err = 0;
    for (int other = 0; !err && other < a->nodes; other++)
        if (other != a->node)
            err = open_channel(a, other);
    if (err || (err = open_links(a)) || (err = sstar_barrier(a->world)))
        return err;
    for (int other = 0; !err && other < a->nodes; other++)
        if (other != a->node && !n->channel[other].gateway)
            err = map_slots(a, &n->channel[other]);
    return err;
}

static void node_close(struct sstar_aggregator *a)
{
    struct per_node *n = a->state;
    if (!n)
        return;
    if (n->links)
        sstar_links_close(n->links);
    for (int other = 0; n->channel && other < a->nodes; other++)
        gateway_close(n->channel[other].gateway);
    free(n->channel);
    free(n);
    a->state = NULL;
}

/* ---- messages -----------------------------------------------------------------------------------
 */

/* When what stands in the lane came: for each part of the ring that begins in it, or if the gateway
 * had taken all before. */
static void stamp(struct channel *c)
{
    const struct ring_writer *w = &c->out;
    uint64_t part_bytes = w->size / RING_STAMPS, end = w->head + ring_unpublished(w);
    bool all_taken = atomic_load_explicit(&w->shared->taken, memory_order_relaxed) == w->head;
    for (uint64_t part = w->head / part_bytes; part <= (end - 1) / part_bytes; part++) {
        if (part == c->stamped && !all_taken)
            continue;
        atomic_store_explicit(&w->shared->stamp_ns[part % RING_STAMPS], c->opened_ns,
                              memory_order_relaxed);
        c->stamped = part;
    }
}

static int node_link_to(const struct sstar_aggregator *a, int to)
{
    return gateway_rank(a, a->node_of[to]);
}

/* Let the gateway see what was pushed. The next message opens the lane anew, and so has a time. */
static int publish(struct sstar_aggregator *a, struct channel *c)
{
    if (!lane_settle(&c->lane))
        return 0;
    stamp(c);
    ring_publish(&c->out);
    lane_account(a, &c->lane, gateway_rank(a, c->node), true);
    lane_shut(&c->lane);
    return 1;
}

static int node_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    struct channel *c = &per_node(a)->channel[a->node_of[to]];
    struct ring_writer *w = &c->out;
    publish(a, c);
    int err = ring_open_lane(w, sstar_lane_room(w->lane, bytes), w->size / RING_STAMPS);
    if (err) {
        atomic_store_explicit(&w->shared->full, 1 + w->head, memory_order_relaxed);
        return err;
    }
    c->opened_ns = clock_ns();
    lane_put(a, w->lane, (uint32_t)a->rank, (uint32_t)to, data, bytes);
    return 0;
}

static void node_urge(struct sstar_aggregator *a, int to)
{
    struct channel *c = &per_node(a)->channel[a->node_of[to]];
    publish(a, c);
    atomic_store_explicit(&c->out.shared->full, 1 + c->out.head, memory_order_relaxed);
}

/* What is due, of the channels that we are the gateway of. */
static int node_flush(struct sstar_aggregator *a)
{
    struct per_node *n = per_node(a);
    int moved = 0;
    for (int other = 0; other < a->nodes; other++) {
        if (other == a->node)
            continue;
        moved += publish(a, &n->channel[other]);
        if (!n->channel[other].gateway)
            continue;
        int sent = gateway_send(a, &n->channel[other]);
        if (sent < 0)
            return sent;
        moved += sent;
    }
    return moved;
}

static int node_progress(struct sstar_aggregator *a)
{
    struct per_node *n = per_node(a);
    int moved = sstar_links_progress(n->links);
    for (int other = 0; moved >= 0 && other < a->nodes; other++) {
        if (!n->channel[other].gateway)
            continue;
        int came = handout_publish(a, &n->channel[other]);
        moved = came < 0 ? came : moved + came;
    }
    return moved;
}

static int node_pull(struct sstar_aggregator *a, struct sstar_item *item)
{
    struct per_node *n = per_node(a);
    for (int looked = 0; looked < a->nodes; looked++) {
        int got = n->turn == a->node ? 0 : handout_pull(a, &n->channel[n->turn], item);
        if (got)
            return got;
        if (++n->turn == a->nodes)
            n->turn = 0;
    }
    return 0;
}

static int node_finish(struct sstar_aggregator *a)
{
    struct per_node *n = per_node(a);
    bool waiting = false;
    for (int other = 0; other < a->nodes; other++) {
        struct channel *c = &n->channel[other];
        if (other == a->node || c->out.closed)
            continue;
        publish(a, c);
        ring_close(&c->out);
    }
    int sent = node_flush(a);
    if (sent < 0)
        return sent;
    for (int other = 0; other < a->nodes; other++) {
        const struct channel *c = &n->channel[other];
        if (other == a->node)
            continue;
        waiting =
            waiting || c->expected != c->received + 1 || (c->gateway && !gateway_ended(c->gateway));
    }
    return waiting;
}

static bool node_sending(struct sstar_aggregator *a)
{
    for (int other = 0; other < a->nodes; other++) {
        const struct gateway *g = per_node(a)->channel[other].gateway;
        if (g && g->first_under_way != g->after_under_way)
            return true;
    }
    return false;
}

/* The first rank of a node of which one has not ended: which one only its gateway knows. */
static int node_missing(struct sstar_aggregator *a)
{
    for (int other = 0; other < a->nodes; other++)
        if (other != a->node && !per_node(a)->channel[other].expected)
            return rank_at(a, other, 0);
    return -1;
}

static int node_reset(struct sstar_aggregator *a)
{
    struct per_node *n = per_node(a);
    for (int other = 0; other < a->nodes; other++) {
        struct channel *c = &n->channel[other];
        if (other == a->node)
            continue;
        ring_reopen_writer(&c->out);
        c->received = c->expected = 0;
        struct gateway *g = c->gateway;
        if (!g)
            continue;
        gateway_complete(a, g);
        memset(g->sent, 0, (size_t)g->readers * sizeof *g->sent);
        g->last_sent = false;
        for (int w = 0; w < a->local_size; w++)
            ring_reopen_reader(&g->from[w]);
    }
    return 0;
}

const struct strategy strategy_node = {
    .name = "node",
    .shared_bytes = node_shared_bytes,
    .link_bytes = node_link_bytes,
    .open = node_open,
    .push = node_push,
    .flush = node_flush,
    .progress = node_progress,
    .pull = node_pull,
    .finish = node_finish,
    .sending = node_sending,
    .missing = node_missing,
    .link_to = node_link_to,
    .urge = node_urge,
    .reset = node_reset,
    .close = node_close,
};
