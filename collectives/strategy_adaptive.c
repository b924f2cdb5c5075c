/* SPDX-License-Identifier: MIT */
/*
 * Per destination, while running: a pair that alone fills S* before its first message is too old
 * has buffers of its own, from a common pool (aggregator_pool.h), and goes straight (as `rank`);
 * all others share the streams of a base strategy, `node`, or `mesh` in worlds of many nodes.
 *
 * Up: S* bytes for one rank were pushed within the age bound, four times running (a burst that is
 * soon over travels better in company), and the peer has granted places. Down: two buffers left
 * with less, or none for long, and the peer has read all that went straight. The order of a pair is
 * kept so: a buffer that goes straight carries how many messages of the pair went by the base
 * before (its fence), and waits at the receiver until they are there; the base is urged to bring
 * them.
 */
#include "collectives/aggregator_streams.h"
#include <stdlib.h>

enum {
    NODES_MOST = 64,
    THIN_MOST = 2,
    HOT_LEAST = 4,
    LEAST_DEADLINE_NS = 100 * 1000,
    QUIET_DEADLINES = 16, /* without a buffer: the pair gives its places back */
    FLUSHES_PER_LOOK = 64,
};

struct pair {
    bool straight;
    uint32_t hot;             /* how often running it filled S* in time */
    uint64_t since_ns, bytes; /* pushed since then */
    uint64_t by_base;         /* messages to it, and from it */
    uint64_t came_by_base;
};
struct adaptive {
    const struct strategy *base;
    void *base_state;
    struct streams *direct;
    struct sstar_lane **base_lane; /* [size] */
    struct pair *pair;             /* [size] */
    double s_star_bytes;
    uint64_t deadline_ns;
    bool base_first;
    uint32_t flushes;
};

static const struct strategy *base_of(const struct sstar_aggregator *a)
{
    return a->hops || a->nodes > NODES_MOST ? &strategy_mesh : &strategy_node;
}

/* While the base works the aggregator's state is its own. */
static void *enter(struct sstar_aggregator *a)
{
    struct adaptive *ad = a->state;
    a->state = ad->base_state;
    return ad;
}
static int leave(struct sstar_aggregator *a, void *ad, int result)
{
    ((struct adaptive *)ad)->base_state = a->state;
    a->state = ad;
    return result;
}
static int in_base(struct sstar_aggregator *a, int (*call)(struct sstar_aggregator *))
{
    void *ad = enter(a);
    return leave(a, ad, call(a));
}

/* ---- opening and closing ------------------------------------------------------------------------
 */

static size_t adaptive_shared_bytes(const struct sstar_aggregator *a, int local)
{
    const struct strategy *base = base_of(a);
    return base->shared_bytes ? base->shared_bytes(a, local) : 0;
}

static uint64_t adaptive_link_bytes(const struct sstar_aggregator *a)
{
    struct item_format format = format_plain(a->item_bytes);
    return base_of(a)->link_bytes(a) + streams_pooled_bytes(a, peers_remote(a, NULL), &format);
}

static int open_direct(struct sstar_aggregator *a, struct adaptive *ad)
{
    struct item_format format = format_plain(a->item_bytes);
    int *ranks = calloc((size_t)a->size, sizeof *ranks);
    if (!ranks)
        return -ENOMEM;
    int n = peers_remote(a, ranks);
    int err =
        streams_open(a, ranks, n, a->size - node_map_least(&a->map), &format, true, &ad->direct);
    free(ranks);
    if (!err) {
        ad->direct->thin_bytes = (uint32_t)ad->s_star_bytes;
        a->ledger.pool_bound_bytes = pool_bound_bytes(ad->direct->pool);
    }
    return err;
}

static int adaptive_open(struct sstar_aggregator *a)
{
    struct adaptive *ad = calloc(1, sizeof *ad);
    if (!ad)
        return -ENOMEM;
    a->state = ad;
    double s_star = a->ledger.past[SSTAR_PAST_S_STAR].bytes, least = a->cost.alpha_us * 10e3;
    ad->base = base_of(a);
    /* What is sent at 4*S* is past S* at a quarter. */
    ad->s_star_bytes = s_star > 0 && s_star < a->flush_bytes ? s_star : (double)a->flush_bytes / 4;
    ad->deadline_ns = a->max_age_ns != UINT64_MAX ? a->max_age_ns
                      : least > LEAST_DEADLINE_NS ? (uint64_t)least
                                                  : LEAST_DEADLINE_NS;
    ad->pair = calloc((size_t)a->size, sizeof *ad->pair);
    ad->base_lane = calloc((size_t)a->size, sizeof *ad->base_lane);
    if (!ad->pair || !ad->base_lane)
        return -ENOMEM;
    int err = in_base(a, ad->base->open);
    if (err)
        return err;
    for (int r = 0; r < a->size; r++)
        if (a->node_of[r] != a->node) {
            ad->base_lane[r] = a->lanes[r];
            a->lanes[r] = &a->shut; /* so that all come here and are counted */
        }
    return open_direct(a, ad);
}

static void adaptive_close(struct sstar_aggregator *a)
{
    struct adaptive *ad = a->state;
    if (ad->base_state) {
        enter(a);
        ad->base->close(a);
        leave(a, ad, 0);
    }
    streams_close(ad->direct);
    free(ad->pair);
    free(ad->base_lane);
    free(ad);
    a->state = NULL;
}

/* ---- sending ------------------------------------------------------------------------------------
 */

static int push_base(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    struct adaptive *ad = a->state;
    struct sstar_lane *lane = ad->base_lane[to];
    if ((uint64_t)(lane->end - lane->at) >= sstar_lane_room(lane, bytes)) {
        lane_put(a, lane, (uint32_t)a->rank, (uint32_t)to, data, bytes);
        return 0;
    }
    enter(a);
    return leave(a, ad, ad->base->push(a, to, data, bytes));
}

static int adaptive_link_to(const struct sstar_aggregator *a, int to)
{
    const struct adaptive *ad = a->state;
    if (ad->pair[to].straight)
        return to;
    enter((struct sstar_aggregator *)a);
    return leave((struct sstar_aggregator *)a, (void *)ad, ad->base->link_to(a, to));
}

static void go_straight(struct sstar_aggregator *a, int to)
{
    struct adaptive *ad = a->state;
    struct stream *t = &ad->direct->stream[ad->direct->peers->index_of[to]];
    ad->pair[to].straight = true;
    t->fence = ad->pair[to].by_base;
    t->thin = 0;
    a->lanes[to] = &t->lane;
    enter(a);
    ad->base->urge(a, to);
    leave(a, ad, 0);
}

/* The pair has buffers no more: what is pushed next goes by the base again. */
static void go_back(struct sstar_aggregator *a, int to)
{
    struct adaptive *ad = a->state;
    pool_want(ad->direct->pool, ad->direct->peers->index_of[to], false);
    ad->pair[to].straight = false;
    ad->pair[to].hot = 0;
    a->lanes[to] = &a->shut;
}

static bool may_go_back(const struct adaptive *ad, int i)
{
    return !ad->direct->stream[i].buffer && pool_idle(ad->direct->pool, i);
}

/* Does this pair fill S* in time, again and again? */
static bool is_hot(const struct adaptive *ad, struct pair *p, uint32_t bytes)
{
    if (!p->bytes)
        p->since_ns = clock_ns();
    p->bytes += bytes;
    if ((double)p->bytes < ad->s_star_bytes)
        return p->hot >= HOT_LEAST;
    p->bytes = 0;
    p->hot = clock_ns() - p->since_ns <= ad->deadline_ns ? p->hot + 1 : 0;
    return p->hot >= HOT_LEAST;
}

static int adaptive_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    struct adaptive *ad = a->state;
    struct pair *p = &ad->pair[to];
    int i = ad->direct->peers->index_of[to];
    struct pool *pool = ad->direct->pool;
    if (p->straight && ad->direct->stream[i].thin >= THIN_MOST && may_go_back(ad, i))
        go_back(a, to);
    if (!p->straight && p->hot >= HOT_LEAST && pool_wanted(pool, i) && pool_granted(pool, i))
        go_straight(a, to);
    if (p->straight)
        return streams_put(ad->direct, i, a->rank, to, data, bytes, false);
    int err = push_base(a, to, data, bytes);
    if (err)
        return err;
    p->by_base++;
    pool_want(pool, i, is_hot(ad, p, bytes));
    return 0;
}

/* Places that are held for pairs that have grown quiet are somebody else's. */
static void cool_down(struct sstar_aggregator *a)
{
    const struct adaptive *ad = a->state;
    uint64_t now = clock_ns();
    for (int i = 0; i < ad->direct->peers->n; i++) {
        int to = ad->direct->peers->peer[i].rank;
        uint64_t since = ad->direct->stream[i].last_ns, base = ad->pair[to].since_ns;
        since = since > base ? since : base;
        if (pool_wanted(ad->direct->pool, i) && may_go_back(ad, i) &&
            now - since > QUIET_DEADLINES * ad->deadline_ns)
            go_back(a, to);
    }
}

static int adaptive_flush(struct sstar_aggregator *a)
{
    struct adaptive *ad = a->state;
    if (++ad->flushes % FLUSHES_PER_LOOK == 0)
        cool_down(a);
    int moved = streams_flush(ad->direct);
    int more = moved < 0 ? moved : in_base(a, ad->base->flush);
    return more < 0 ? more : moved + more;
}

static int adaptive_progress(struct sstar_aggregator *a)
{
    struct adaptive *ad = a->state;
    int moved = streams_progress(ad->direct);
    int more = moved < 0 ? moved : in_base(a, ad->base->progress);
    return more < 0 ? more : moved + more;
}

static int adaptive_reset(struct sstar_aggregator *a)
{
    struct adaptive *ad = a->state;
    streams_reset(ad->direct);
    for (int i = 0; i < ad->direct->peers->n; i++)
        go_back(a, ad->direct->peers->peer[i].rank);
    memset(ad->pair, 0, (size_t)a->size * sizeof *ad->pair);
    return in_base(a, ad->base->reset);
}

/* ---- receiving ----------------------------------------------------------------------------------
 */

static int pull_direct(struct sstar_aggregator *a, struct sstar_item *item)
{
    struct adaptive *ad = a->state;
    struct streams *s = ad->direct;
    struct peers *peers = s->peers;
    for (int looked = 0; looked < peers->n; looked++) {
        const uint8_t *at;
        int rank = peers->peer[peers->turn].rank, got = stream_peek(s, peers->turn, &at);
        if (got < 0)
            return got;
        if (got && s->stream[peers->turn].came_fence <= ad->pair[rank].came_by_base) {
            stream_hand_out(s, peers->turn, item);
            return 1;
        }
        if (++peers->turn == peers->n)
            peers->turn = 0;
    }
    return 0;
}

static int pull_base(struct sstar_aggregator *a, struct sstar_item *item)
{
    struct adaptive *ad = a->state;
    enter(a);
    int got = leave(a, ad, ad->base->pull(a, item));
    if (got <= 0)
        return got;
    ad->pair[item->source].came_by_base++;
    /* Those behind it are pulled before anything else is. */
    struct sstar_window rest = a->front.window;
    while (rest.at != rest.end) {
        struct sstar_item next;
        sstar_window_take(&rest, &next);
        ad->pair[next.source].came_by_base++;
    }
    return 1;
}

static int adaptive_pull(struct sstar_aggregator *a, struct sstar_item *item)
{
    struct adaptive *ad = a->state;
    int got = ad->base_first ? pull_base(a, item) : pull_direct(a, item);
    if (got)
        return got;
    ad->base_first = !ad->base_first;
    return ad->base_first ? pull_base(a, item) : pull_direct(a, item);
}

static int adaptive_finish(struct sstar_aggregator *a)
{
    struct adaptive *ad = a->state;
    int left = streams_end(ad->direct);
    int more = left < 0 ? left : in_base(a, ad->base->finish);
    return more < 0 ? more : left || more || !peers_drained(ad->direct->peers);
}

static bool adaptive_sending(struct sstar_aggregator *a)
{
    struct adaptive *ad = a->state;
    if (peers_sending(ad->direct->peers) || pool_sending(ad->direct->pool))
        return true;
    enter(a);
    return leave(a, ad, ad->base->sending(a));
}

static int adaptive_missing(struct sstar_aggregator *a)
{
    struct adaptive *ad = a->state;
    int rank = peers_missing(ad->direct->peers);
    return rank >= 0 ? rank : in_base(a, ad->base->missing);
}

const struct strategy strategy_adaptive = {
    .name = "adaptive",
    .shared_bytes = adaptive_shared_bytes,
    .link_bytes = adaptive_link_bytes,
    .open = adaptive_open,
    .push = adaptive_push,
    .flush = adaptive_flush,
    .progress = adaptive_progress,
    .pull = adaptive_pull,
    .finish = adaptive_finish,
    .sending = adaptive_sending,
    .missing = adaptive_missing,
    .link_to = adaptive_link_to,
    .reset = adaptive_reset,
    .close = adaptive_close,
};
