/* SPDX-License-Identifier: MIT */
/*
 * A buffer for each destination rank, composed where the link will send it from. It is sent by the
 * message that makes it reach flush_bytes, at the age bound, or at the end.
 */
#include "collectives/ledger.h"
#include "collectives/strategy.h"
#include <stdlib.h>

enum { RANK_SLOTS = 64, RANK_BUDGET_BYTES = 2 << 20 };

struct per_rank {
    struct peers *peers;
    uint32_t slot_bytes;
};

/* Header, less than flush_bytes of items, one more item, the count that ends a stream. */
static uint32_t slot_bytes_of(const struct sstar_aggregator *a)
{
    uint32_t most = (uint32_t)sizeof(struct buffer_header) + a->flush_bytes +
                    item_room(a->max_item_bytes) + (uint32_t)sizeof(uint64_t);
    return (uint32_t)align_up(most, 64);
}

static int rank_open(struct sstar_aggregator *a)
{
    struct per_rank *state = calloc(1, sizeof *state);
    if (!state)
        return -ENOMEM;
    a->state = state;
    state->slot_bytes = slot_bytes_of(a);
    return peers_open(a, state->slot_bytes, RANK_SLOTS, RANK_BUDGET_BYTES, &state->peers);
}

static void rank_close(struct sstar_aggregator *a)
{
    struct per_rank *state = a->state;
    if (state)
        peers_close(state->peers);
    free(state);
    a->state = NULL;
}

static int open_buffer(struct per_rank *state, struct peer *p)
{
    void *payload;
    int err = link_reserve(p->link, state->slot_bytes, &payload);
    if (err)
        return err;
    p->buffer = payload;
    p->fill = sizeof(struct buffer_header);
    p->opened_ns = clock_ns();
    state->peers->open++;
    return 0;
}

/* Send the open buffer; with BUFFER_LAST the end of the stream in it. */
static int send_buffer(struct sstar_aggregator *a, struct per_rank *state, struct peer *p,
                       uint8_t flags)
{
    uint32_t bytes = p->fill;
    *(struct buffer_header *)p->buffer = (struct buffer_header){.magic = WIRE_MAGIC,
                                                                .version = WIRE_VERSION,
                                                                .kind = WIRE_BUFFER,
                                                                .flags = flags,
                                                                .count = p->count};
    if (flags & BUFFER_LAST) {
        *(uint64_t *)(p->buffer + bytes) = p->sent + p->count;
        bytes += (uint32_t)sizeof(uint64_t);
    }
    int err = link_commit_ticket(p->link, bytes, 0, &p->ticket);
    if (err)
        return err;
    ledger_wire(&a->ledger, bytes + LINK_TRAILER_BYTES, p->count, p->payload_bytes);
    if (p->count)
        ledger_age(&a->ledger, clock_ns() - p->opened_ns, 1);
    state->peers->open--;
    p->sent += p->count;
    p->buffer = NULL;
    p->count = p->fill = p->payload_bytes = 0;
    return 0;
}

static int rank_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    struct per_rank *state = a->state;
    struct peer *p = &state->peers->peer[state->peers->index_of[to]];
    int err = 0;
    if (p->buffer && p->fill >= a->flush_bytes)
        err = send_buffer(a, state, p, 0); /* there was no place in the queue before */
    if (!err && !p->buffer)
        err = open_buffer(state, p);
    if (err)
        return err;
    struct item_header *item = (struct item_header *)(p->buffer + p->fill);
    *item = (struct item_header){
        .bytes = bytes, .source = (uint16_t)a->rank, .destination = (uint16_t)to};
    memcpy(item + 1, data, bytes);
    p->fill += item_room(bytes);
    p->count++;
    p->payload_bytes += bytes;
    a->ledger.copied_bytes += bytes;
    if (p->fill >= a->flush_bytes)
        err = send_buffer(a, state, p, 0);
    return err == -EAGAIN ? 0 : err;
}

/* Send the buffers that are full, or whose first message is as old as it may be. */
static int rank_flush(struct sstar_aggregator *a)
{
    struct per_rank *state = a->state;
    int moved = 0;
    if (!state->peers->open)
        return 0;
    uint64_t now = a->max_age_ns == UINT64_MAX ? 0 : clock_ns();
    for (int i = 0; i < state->peers->n; i++) {
        struct peer *p = &state->peers->peer[i];
        if (!p->buffer ||
            (p->fill < a->flush_bytes && (!now || now - p->opened_ns < a->max_age_ns)))
            continue;
        int err = send_buffer(a, state, p, 0);
        if (err && err != -EAGAIN)
            return err;
        moved += !err;
    }
    return moved;
}

static int rank_progress(struct sstar_aggregator *a)
{
    return sstar_links_progress(((struct per_rank *)a->state)->peers->links);
}

/* A buffer has come: look at its header. */
static int begin(struct sstar_aggregator *a, struct peer *p, const struct message *m)
{
    const struct buffer_header *header = m->data;
    if (m->bytes < sizeof *header || header->magic != WIRE_MAGIC ||
        header->version != WIRE_VERSION || header->kind != WIRE_BUFFER)
        return wire_broken(a, p->rank, "something that is no buffer of this version");
    uint32_t bytes = m->bytes;
    if (header->flags & BUFFER_LAST) {
        bytes -= (uint32_t)sizeof(uint64_t);
        if (bytes < sizeof *header || bytes > m->bytes)
            return wire_broken(a, p->rank, "a broken end of stream");
        p->expected = 1 + *(const uint64_t *)((const uint8_t *)m->data + bytes);
    }
    p->at = (const uint8_t *)(header + 1);
    p->end = (const uint8_t *)m->data + bytes;
    p->left = header->count;
    return 0;
}

static int next_item(struct sstar_aggregator *a, struct peer *p, struct sstar_item *item)
{
    const struct item_header *header = (const struct item_header *)p->at;
    size_t left = (size_t)(p->end - p->at);
    if (left < sizeof *header || header->bytes > a->max_item_bytes ||
        item_room(header->bytes) > left || header->source != p->rank ||
        header->destination != a->rank)
        return wire_broken(a, p->rank, "a message that cannot be");
    p->at += item_room(header->bytes);
    p->left--;
    p->received++;
    *item = (struct sstar_item){.data = header + 1, .bytes = header->bytes, .source = p->rank};
    return 1;
}

static int rank_pull(struct sstar_aggregator *a, struct sstar_item *item)
{
    struct peers *peers = ((struct per_rank *)a->state)->peers;
    for (int looked = 0; looked < peers->n;) {
        struct peer *p = &peers->peer[peers->turn];
        if (p->left)
            return next_item(a, p, item);
        if (p->taken) {
            link_release(p->link, p->taken);
            p->taken = 0;
        }
        struct message m;
        int got = link_receive(p->link, &m);
        if (got < 0)
            return got;
        if (got) {
            p->taken++;
            if ((got = begin(a, p, &m)) < 0)
                return got;
            continue;
        }
        looked++;
        if (++peers->turn == peers->n)
            peers->turn = 0;
    }
    return 0;
}

static int send_last(struct sstar_aggregator *a, struct per_rank *state, struct peer *p)
{
    int err = p->buffer ? 0 : open_buffer(state, p);
    if (!err)
        err = send_buffer(a, state, p, BUFFER_LAST);
    p->last_sent = !err;
    return err;
}

static int rank_finish(struct sstar_aggregator *a)
{
    struct per_rank *state = a->state;
    bool waiting = false;
    for (int i = 0; i < state->peers->n; i++) {
        struct peer *p = &state->peers->peer[i];
        int err = p->last_sent ? 0 : send_last(a, state, p);
        if (err && err != -EAGAIN)
            return err;
        waiting = waiting || err;
    }
    return waiting || !peers_sent(state->peers) || !peers_drained(state->peers);
}

static bool rank_sending(struct sstar_aggregator *a)
{
    return peers_sending(((struct per_rank *)a->state)->peers);
}

static int rank_missing(struct sstar_aggregator *a)
{
    return peers_missing(((struct per_rank *)a->state)->peers);
}

static int rank_reset(struct sstar_aggregator *a)
{
    peers_reset(((struct per_rank *)a->state)->peers);
    return 0;
}

const struct strategy strategy_rank = {
    .name = "rank",
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
