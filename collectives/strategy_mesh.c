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

/* The first hop of a message that is here, towards some rank. */
struct way {
    struct stream *stream; /* NULL: it has arrived */
    int hop, i;            /* whose stream: that of peer i of the hop */
};
struct mesh {
    struct mesh_shape shape;
    struct streams *hop[MESH_HOPS_MOST];
    struct way *way;    /* [size] */
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

static struct way way_to(const struct mesh *m, int at, int to)
{
    int h = 0;
    while (h < m->shape.hops && mesh_next(&m->shape, h, at, to) == at)
        h++;
    if (h == m->shape.hops)
        return (struct way){0};
    const struct streams *s = m->hop[h];
    int i = s->peers->index_of[mesh_next(&m->shape, h, at, to)];
    return (struct way){.stream = &s->stream[i], .hop = h, .i = i};
}

static int mesh_open(struct sstar_aggregator *a)
{
    struct mesh *m = calloc(1, sizeof *m);
    int *ranks = calloc((size_t)a->size, sizeof *ranks);
    int err = m && ranks ? 0 : -ENOMEM;
    struct item_format format = format_routed(a->item_bytes);
    a->state = m;
    if (m) {
        m->shape = shape_of(a);
        m->way = calloc((size_t)a->size, sizeof *m->way);
        err = m->way ? err : -ENOMEM;
    }
    for (int h = 0; !err && h < m->shape.hops; h++) {
        int local, n = peers_of(a, &m->shape, h, ranks, &local);
        err = streams_open(a, ranks, n, most_peers(&m->shape, h), &format, false, &m->hop[h]);
    }
    free(ranks);
    for (int to = 0; !err && to < a->size; to++) {
        m->way[to] = way_to(m, a->rank, to);
        if (a->node_of[to] != a->node)
            a->lanes[to] = &m->way[to].stream->lane;
    }
    return err;
}

static void mesh_close(struct sstar_aggregator *a)
{
    struct mesh *m = a->state;
    for (int h = 0; m && h < m->shape.hops; h++)
        streams_close(m->hop[h]);
    if (m)
        free(m->way);
    free(m);
    a->state = NULL;
}

static int mesh_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    struct mesh *m = a->state;
    const struct way *way = &m->way[to];
    return streams_put(m->hop[way->hop], way->i, a->rank, to, data, bytes, false);
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

/* Of the items in a row that came by hop h, all of `stride` bytes: as many as are to be passed on
 * and have room in the lane of their next hop. */
static inline __attribute__((always_inline)) uint32_t
pass_row(const struct sstar_aggregator *a, int h, const uint8_t *at, uint32_t n, uint32_t stride)
{
    const struct mesh *m = a->state;
    uint32_t i = 0;
    for (; i < n; i++, at += stride) {
        uint32_t tag, to;
        memcpy(&tag, at, sizeof tag);
        if ((to = tag >> 16) >= (uint32_t)a->size)
            break;
        struct stream *t = m->way[to].stream;
        if (!t || m->way[to].hop <= h || (size_t)(t->lane.end - t->lane.at) < stride)
            break;
        memcpy(t->lane.at, at, stride);
        t->lane.at += stride;
        t->passed++;
    }
    return i;
}

/* The same where nothing is known of the sizes but what `s` knows; the usual ones are constants, so
 * that a copy is a store or two. */
static uint32_t pass_many(const struct sstar_aggregator *a, int h, const struct stream *t,
                          const struct item_format *f)
{
    switch (f->stride) {
    case 0:
        return 0;
    case 4 + 8:
        return pass_row(a, h, t->at, t->left, 4 + 8);
    case 4 + 16:
        return pass_row(a, h, t->at, t->left, 4 + 16);
    default:
        return pass_row(a, h, t->at, t->left, f->stride);
    }
}

/* One item, whose lane has no room for it: 0, -EAGAIN, or -errno. */
static int pass_one(struct sstar_aggregator *a, int h, int i, const uint8_t *item)
{
    const struct mesh *m = a->state;
    const struct streams *s = m->hop[h];
    uint32_t tag = *format_tag(&s->format, item), to = tag >> 16;
    const struct way *way = to < (uint32_t)a->size ? &m->way[to] : NULL;
    if (!way || !way->stream || way->hop <= h)
        return wire_broken(a, s->peers->peer[i].rank, "a message that went astray");
    return streams_put(m->hop[way->hop], way->i, (int)(tag & UINT16_MAX), (int)to,
                       item + s->format.header, format_bytes(&s->format, item), true);
}

/* Pass on what peer i of hop h sent, up to an item for us. 1: there is one, *item; 0: no more, or
 * no room; or -errno. */
static int pass_on(struct sstar_aggregator *a, int h, int i, const uint8_t **item, int *moved)
{
    struct mesh *m = a->state;
    struct streams *s = m->hop[h];
    int got;
    while ((got = stream_peek(s, i, item)) > 0) {
        if (*format_tag(&s->format, *item) >> 16 == (uint32_t)a->rank)
            return 1;
        uint32_t n = pass_many(a, h, &s->stream[i], &s->format);
        int err = n ? 0 : pass_one(a, h, i, *item);
        if (err)
            return err == -EAGAIN ? 0 : err;
        n = n ? n : 1;
        stream_take(s, i, n);
        *moved += (int)n;
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

/* The item `at`, which is for us, and those behind it that are too. */
static void hand_out(struct sstar_aggregator *a, struct streams *s, int i, const uint8_t *at,
                     struct sstar_item *item)
{
    const struct item_format *f = &s->format;
    uint32_t tag = *format_tag(f, at), to = tag >> 16, n = 1;
    if (!f->stride) {
        *item = (struct sstar_item){.data = at + f->header,
                                    .bytes = format_bytes(f, at),
                                    .source = (int)(tag & UINT16_MAX)};
    } else {
        uint32_t most = WINDOW_BYTES / f->stride;
        most = most < s->stream[i].left ? most : s->stream[i].left;
        while (n < most && *format_tag(f, at + (size_t)n * f->stride) >> 16 == to)
            n++;
        window_open(a, f, at, n, 0, item);
    }
    stream_take(s, i, n);
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
            hand_out(a, s, m->turn, at, item);
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

static int mesh_link_to(const struct sstar_aggregator *a, int to)
{
    const struct mesh *m = a->state;
    const struct way *way = &m->way[to];
    return m->hop[way->hop]->peers->peer[way->i].rank;
}

static void mesh_urge(struct sstar_aggregator *a, int to)
{
    struct mesh *m = a->state;
    streams_urge(m->hop[m->way[to].hop], m->way[to].i);
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
    .link_to = mesh_link_to,
    .urge = mesh_urge,
    .reset = mesh_reset,
    .close = mesh_close,
};
