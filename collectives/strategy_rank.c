/* SPDX-License-Identifier: MIT */
/* A buffer for each destination rank, sent straight to it. */
#include "collectives/aggregator_streams.h"
#include <stdlib.h>

/* Peers of the rank that has most. */
static int most_peers(const struct sstar_aggregator *a)
{
    return a->size - node_map_least(&a->map);
}

static uint64_t rank_link_bytes(const struct sstar_aggregator *a)
{
    struct item_format format = format_plain(a->item_bytes);
    struct sstar_link_attr attr = streams_attr(a, most_peers(a), &format);
    return links_bytes(&attr, peers_remote(a, NULL), 0);
}

static int rank_open(struct sstar_aggregator *a)
{
    struct item_format format = format_plain(a->item_bytes);
    int *ranks = calloc((size_t)a->size, sizeof *ranks);
    if (!ranks)
        return -ENOMEM;
    int n = peers_remote(a, ranks);
    struct streams *s = NULL;
    int err = streams_open(a, ranks, n, most_peers(a), &format, false, &s);
    free(ranks);
    a->state = s;
    for (int i = 0; !err && i < n; i++)
        a->lanes[s->peers->peer[i].rank] = &s->stream[i].lane;
    return err;
}

static void rank_close(struct sstar_aggregator *a)
{
    streams_close(a->state);
    a->state = NULL;
}

static int rank_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    struct streams *s = a->state;
    return streams_put(s, s->peers->index_of[to], a->rank, to, data, bytes, false);
}

static int rank_flush(struct sstar_aggregator *a)
{
    return streams_flush(a->state);
}

static int rank_progress(struct sstar_aggregator *a)
{
    return streams_progress(a->state);
}

static int rank_pull(struct sstar_aggregator *a, struct sstar_item *item)
{
    struct streams *s = a->state;
    struct peers *peers = s->peers;
    for (int looked = 0; looked < peers->n; looked++) {
        const uint8_t *at;
        int got = stream_peek(s, peers->turn, &at);
        if (got < 0)
            return got;
        if (got) {
            stream_hand_out(s, peers->turn, item);
            return 1;
        }
        if (++peers->turn == peers->n)
            peers->turn = 0;
    }
    return 0;
}

static int rank_finish(struct sstar_aggregator *a)
{
    struct streams *s = a->state;
    int left = streams_end(s);
    return left ? left : !peers_drained(s->peers);
}

static bool rank_sending(struct sstar_aggregator *a)
{
    return peers_sending(((struct streams *)a->state)->peers);
}

static int rank_missing(struct sstar_aggregator *a)
{
    return peers_missing(((struct streams *)a->state)->peers);
}

static int rank_reset(struct sstar_aggregator *a)
{
    streams_reset(a->state);
    return 0;
}

const struct strategy strategy_rank = {
    .name = "rank",
    .link_bytes = rank_link_bytes,
    .open = rank_open,
    .push = rank_push,
    .flush = rank_flush,
    .progress = rank_progress,
    .pull = rank_pull,
    .finish = rank_finish,
    .sending = rank_sending,
    .missing = rank_missing,
    .reset = rank_reset,
    .close = rank_close,
};
