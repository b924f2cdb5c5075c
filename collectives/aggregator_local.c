/* SPDX-License-Identifier: MIT */
/*
 * Messages to ranks of the same node: one ring of items per (writer, reader), in the reader's
 * memory, read in place.
 */
#include "collectives/strategy.h"
#include <stdlib.h>

enum { LANE_BYTES = 8192 };

struct local {
    struct ring_writer *to;   /* [local_size] */
    struct sstar_lane *lane;  /* [local_size] */
    struct ring_reader *from; /* [local_size] */
    int turn;
    int drained; /* how many of `from` have ended, as far as was looked */
};

size_t local_shared_bytes(const struct sstar_aggregator *a)
{
    return (size_t)a->local_size * ring_bytes(a->ring_size);
}

static struct ring_shared *ring_of(const struct sstar_aggregator *a, int reader, int writer)
{
    return (void *)(a->shared[reader].memory + (size_t)writer * ring_bytes(a->ring_size));
}

int local_open(struct sstar_aggregator *a)
{
    struct local *local = calloc(1, sizeof *local);
    if (!local)
        return -ENOMEM;
    a->local = local;
    local->to = calloc((size_t)a->local_size, sizeof *local->to);
    local->from = calloc((size_t)a->local_size, sizeof *local->from);
    local->lane = calloc((size_t)a->local_size, sizeof *local->lane);
    if (!local->to || !local->from || !local->lane)
        return -ENOMEM;
    struct item_format format = format_plain(a->item_bytes);
    for (int i = 0; i < a->local_size; i++) {
        struct ring_shared *out = ring_of(a, i, a->local_rank), *in = ring_of(a, a->local_rank, i);
        local->lane[i] = lane_of_format(&format);
        local->to[i] = (struct ring_writer){.shared = out,
                                            .data = (uint8_t *)(out + 1),
                                            .size = a->ring_size,
                                            .lane = &local->lane[i]};
        local->from[i] = (struct ring_reader){
            .shared = in, .data = (uint8_t *)(in + 1), .size = a->ring_size, .format = format};
        a->lanes[rank_at(a, a->node, i)] = &local->lane[i];
    }
    return 0;
}

void local_close(struct sstar_aggregator *a)
{
    if (!a->local)
        return;
    free(a->local->to);
    free(a->local->lane);
    free(a->local->from);
    free(a->local);
    a->local = NULL;
}

static void publish(struct sstar_aggregator *a, int to)
{
    struct ring_writer *w = &a->local->to[to];
    ring_publish(w);
    lane_account(a, w->lane, rank_at(a, a->node, to), false);
}

void local_publish(struct sstar_aggregator *a)
{
    for (int i = 0; i < a->local_size; i++)
        if (lane_settle(&a->local->lane[i]))
            publish(a, i);
}

int local_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    struct ring_writer *w = &a->local->to[a->local_of[to]];
    publish(a, a->local_of[to]);
    int err = ring_open_lane(w, sstar_lane_room(w->lane, bytes), LANE_BYTES);
    if (err) {
        lane_shut(w->lane);
        return err;
    }
    lane_put(a, w->lane, (uint32_t)a->rank, (uint32_t)to, data, bytes);
    return 0;
}

/* The ring is given back in eighths, not item by item: that word is read by another core. */
static void give_back(struct ring_reader *r)
{
    if (r->taken - r->released >= r->size / 8 || r->taken == r->head)
        ring_release(r);
}

int local_pull(struct sstar_aggregator *a, struct sstar_item *item)
{
    struct local *local = a->local;
    if (local->drained == a->local_size)
        return 0;
    for (int looked = 0; looked < a->local_size; looked++) {
        struct ring_reader *r = &local->from[local->turn];
        give_back(r);
        const uint8_t *at = NULL;
        if (r->format.stride) {
            uint64_t n = ring_read_row(r, WINDOW_BYTES, &at);
            if (n) {
                window_open(a, &r->format, at, n, rank_at(a, a->node, local->turn), item);
                return 1;
            }
        } else if ((at = ring_read(r))) {
            *item = (struct sstar_item){.data = at + r->format.header,
                                        .bytes = format_bytes(&r->format, at),
                                        .source = rank_at(a, a->node, local->turn)};
            return 1;
        }
        if (++local->turn == a->local_size)
            local->turn = 0;
    }
    return 0;
}

void local_finish(struct sstar_aggregator *a)
{
    for (int i = 0; i < a->local_size; i++) {
        if (a->local->to[i].closed)
            continue;
        publish(a, i);
        ring_close(&a->local->to[i]);
    }
}

bool local_drained(struct sstar_aggregator *a)
{
    struct local *local = a->local;
    while (local->drained < a->local_size && ring_drained(&local->from[local->drained]))
        local->drained++;
    return local->drained == a->local_size;
}

int local_missing(struct sstar_aggregator *a)
{
    return local_drained(a) ? -1 : a->local->drained;
}

void local_reset(struct sstar_aggregator *a)
{
    for (int i = 0; i < a->local_size; i++) {
        ring_release(&a->local->from[i]);
        ring_reopen_writer(&a->local->to[i]);
        ring_reopen_reader(&a->local->from[i]);
    }
    a->local->drained = 0;
}
