/* SPDX-License-Identifier: MIT */
/*
 * Two hops, three in big worlds: a buffer for each rank that differs in one digit (mesh_route.h),
 * so that buffers grow with the square or cube root of the world and fill so much sooner. Each hop
 * has links of its own; a message on its way is copied from where it landed into the buffer of its
 * next hop, and waits where it landed while that is full.
 */
#include "collectives/aggregator_streams.h"
#include "collectives/mesh_route.h"
#include <stdlib.h>

struct mesh {
    struct mesh_shape shape;
    struct streams *hop[MESH_HOPS_MOST];
    int turn_hop, turn; /* whose messages are being handed out */
    bool held;          /* the caller reads an item from there */
};

static struct mesh_shape shape_of(const struct sstar_aggregator *a)
{
    return mesh_shape_of(a->size, local_size_of(a, 0), (int)a->hops);
}

/* Peers of a hop; how many are on our own node. */
static int peers_of(const struct sstar_aggregator *a, const struct mesh_shape *shape, int h,
                    int *ranks, int *local)
{
    int n = 0;
    *local = 0;
    for (int r = a->rank % shape->block[h]; r < a->size; r += shape->block[h]) {
        if (!mesh_linked(shape, h, a->rank, r))
            continue;
        if (ranks)
            ranks[n] = r;
        n++;
        *local += a->node_of[r] == a->node;
    }
    return n;
}

/* At most so many: a digit's, and as many again for the block that is cut off. */
static int most_peers(const struct mesh_shape *shape, int h)
{
    return 2 * ((shape->block[h + 1] + shape->block[h] - 1) / shape->block[h]);
}

static uint64_t mesh_link_bytes(const struct sstar_aggregator *a)
{
    struct item_format format = format_routed(a->item_bytes);
    struct mesh_shape shape = shape_of(a);
    uint64_t bytes = 0;
    for (int h = 0; h < shape.hops; h++) {
        struct sstar_link_attr attr = streams_attr(a, most_peers(&shape, h), &format);
        int local, n = peers_of(a, &shape, h, NULL, &local);
        bytes += links_bytes(&attr, n - local, local);
    }
    return bytes;
}

/* The first hop of a message that is here: h, or a later one. -1: it has arrived. */
static int hop_from(const struct mesh *m, int h, int at, int to)
{
    while (h < m->shape.hops && mesh_next(&m->shape, h, at, to) == at)
        h++;
    return h < m->shape.hops ? h : -1;
}

static struct stream *stream_to(const struct mesh *m, int h, int at, int to, int *i)
{
    const struct streams *s = m->hop[h];
    *i = s->peers->index_of[mesh_next(&m->shape, h, at, to)];
    return &s->stream[*i];
}

static int mesh_open(struct sstar_aggregator *a)
{
    struct mesh *m = calloc(1, sizeof *m);
    int *ranks = calloc((size_t)a->size, sizeof *ranks);
    int err = m && ranks ? 0 : -ENOMEM, i;
    struct item_format format = format_routed(a->item_bytes);
    a->state = m;
    if (m)
        m->shape = shape_of(a);
    for (int h = 0; !err && h < m->shape.hops; h++) {
        int local, n = peers_of(a, &m->shape, h, ranks, &local);
        err = streams_open(a, ranks, n, most_peers(&m->shape, h), &format, false, &m->hop[h]);
    }
    free(ranks);
    for (int to = 0; !err && to < a->size; to++)
        if (a->node_of[to] != a->node)
            a->lanes[to] = &stream_to(m, hop_from(m, 0, a->rank, to), a->rank, to, &i)->lane;
    return err;
}

static void mesh_close(struct sstar_aggregator *a)
{
    struct mesh *m = a->state;
    for (int h = 0; m && h < m->shape.hops; h++)
        streams_close(m->hop[h]);
    free(m);
    a->state = NULL;
}

static int mesh_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    struct mesh *m = a->state;
    int i, h = hop_from(m, 0, a->rank, to);
    stream_to(m, h, a->rank, to, &i);
    return streams_put(m->hop[h], i, a->rank, to, data, bytes, false);
}

static int mesh_flush(struct sstar_aggregator *a)
{
    struct mesh *m = a->state;
    int moved = 0;
    for (int h = 0; moved >= 0 && h < m->shape.hops; h++) {
        int sent = streams_flush(m->hop[h]);
        moved = sent < 0 ? sent : moved + sent;
    }
    return moved;
}

/* What peer i of hop h wanted to be urgent has been passed on: so is all that it may be among. */
static void urge_next(struct mesh *m, int h, int i)
{
    struct stream *t = &m->hop[h]->stream[i];
    if (t->left || !t->came_urgent)
        return;
    t->came_urgent = false;
    for (int next = h + 1; next < m->shape.hops; next++)
        for (int p = 0; p < m->hop[next]->peers->n; p++)
            streams_urge(m->hop[next], p);
}

/* Pass on what peer i of hop h sent, up to an item for us. 1: there is one, *item; 0: no more, or
 * no room; or -errno. */
static int pass_on(struct sstar_aggregator *a, int h, int i, const uint8_t **item, int *moved)
{
    struct mesh *m = a->state;
    struct streams *s = m->hop[h];
    int got;
    while ((got = stream_peek(s, i, item)) > 0) {
        uint32_t tag = *format_tag(&s->format, *item);
        int to = (int)(tag >> 16), next;
        if (to == a->rank)
            return 1;
        int on = to < a->size ? hop_from(m, h + 1, a->rank, to) : -1;
        if (on < 0)
            return wire_broken(a, s->peers->peer[i].rank, "a message that went astray");
        stream_to(m, on, a->rank, to, &next);
        int err = streams_put(m->hop[on], next, (int)(tag & UINT16_MAX), to,
                              *item + s->format.header, format_bytes(&s->format, *item), true);
        if (err)
            return err == -EAGAIN ? 0 : err;
        stream_take(s, i);
        ++*moved;
    }
    urge_next(m, h, i);
    return got;
}

static int mesh_progress(struct sstar_aggregator *a)
{
    struct mesh *m = a->state;
    int moved = 0;
    for (int h = 0; h < m->shape.hops; h++) {
        int got = streams_progress(m->hop[h]);
        if (got < 0)
            return got;
        moved += got;
        for (int i = 0; h + 1 < m->shape.hops && i < m->hop[h]->peers->n; i++) {
            const uint8_t *item;
            if (m->held && h == m->turn_hop && i == m->turn)
                continue; /* its slot must stay until the next pull */
            if ((got = pass_on(a, h, i, &item, &moved)) < 0)
                return got;
        }
    }
    return moved;
}

static int mesh_pull(struct sstar_aggregator *a, struct sstar_item *item)
{
    struct mesh *m = a->state;
    int moved = 0, all = 0;
    m->held = false;
    for (int h = 0; h < m->shape.hops; h++)
        all += m->hop[h]->peers->n;
    for (int looked = 0; looked <= all + m->shape.hops;) {
        struct streams *s = m->hop[m->turn_hop];
        if (m->turn >= s->peers->n) {
            m->turn = 0;
            m->turn_hop = (m->turn_hop + 1) % m->shape.hops;
            looked++;
            continue;
        }
        const uint8_t *at;
        int got = pass_on(a, m->turn_hop, m->turn, &at, &moved);
        if (got < 0)
            return got;
        if (got) {
            *item = (struct sstar_item){.data = at + s->format.header,
                                        .bytes = format_bytes(&s->format, at),
                                        .source = (int)(*format_tag(&s->format, at) & UINT16_MAX)};
            stream_take(s, m->turn);
            m->held = true;
            return 1;
        }
        m->turn++;
        looked++;
    }
    return 0;
}

/* The ends of a hop's streams are sent when all that could still be passed on to it has been. */
static int mesh_finish(struct sstar_aggregator *a)
{
    struct mesh *m = a->state;
    int left = 0;
    for (int h = 0; h < m->shape.hops; h++) {
        int waiting = streams_end(m->hop[h]);
        if (waiting < 0)
            return waiting;
        left |= waiting;
        if (!peers_drained(m->hop[h]->peers))
            return 1;
    }
    return left;
}

static bool mesh_sending(struct sstar_aggregator *a)
{
    const struct mesh *m = a->state;
    for (int h = 0; h < m->shape.hops; h++)
        if (peers_sending(m->hop[h]->peers))
            return true;
    return false;
}

static int mesh_missing(struct sstar_aggregator *a)
{
    const struct mesh *m = a->state;
    for (int h = 0; h < m->shape.hops; h++) {
        int rank = peers_missing(m->hop[h]->peers);
        if (rank >= 0)
            return rank;
    }
    return -1;
}

static void mesh_urge(struct sstar_aggregator *a, int to)
{
    struct mesh *m = a->state;
    int i, h = hop_from(m, 0, a->rank, to);
    stream_to(m, h, a->rank, to, &i);
    streams_urge(m->hop[h], i);
}

static int mesh_reset(struct sstar_aggregator *a)
{
    struct mesh *m = a->state;
    for (int h = 0; h < m->shape.hops; h++)
        streams_reset(m->hop[h]);
    m->turn_hop = m->turn = 0;
    m->held = false;
    return 0;
}

const struct strategy strategy_mesh = {
    .name = "mesh",
    .link_bytes = mesh_link_bytes,
    .open = mesh_open,
    .push = mesh_push,
    .flush = mesh_flush,
    .progress = mesh_progress,
    .pull = mesh_pull,
    .finish = mesh_finish,
    .sending = mesh_sending,
    .missing = mesh_missing,
    .urge = mesh_urge,
    .reset = mesh_reset,
    .close = mesh_close,
};
