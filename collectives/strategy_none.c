/* SPDX-License-Identifier: MIT */
/*
 * No aggregation: one wire message per message. What the others are compared with, so it is made
 * as fast as the wire allows: deep queues, several messages behind one doorbell while the caller
 * pushes. No message is held back for company: the doorbell is rung at the latest at the next look.
 */
#include "collectives/ledger.h"
#include "collectives/strategy.h"
#include <stdlib.h>

enum {
    NONE_SLOTS = 1024,
    NONE_BUDGET_BYTES = 1 << 20,
    MESSAGES_PER_DOORBELL = 16,
};

/* The end of a stream: an item header and the count. */
enum { LAST_BYTES = 16 };

struct none {
    struct peers *peers;
};

static int none_open(struct sstar_aggregator *a)
{
    struct none *none = calloc(1, sizeof *none);
    if (!none)
        return -ENOMEM;
    a->state = none;
    uint32_t room = item_room(a->max_item_bytes);
    return peers_open(a, room > LAST_BYTES ? room : LAST_BYTES, NONE_SLOTS, NONE_BUDGET_BYTES,
                      &none->peers);
}

static void none_close(struct sstar_aggregator *a)
{
    struct none *none = a->state;
    if (none)
        peers_close(none->peers);
    free(none);
    a->state = NULL;
}

/* The doorbell was rung for what stood before this peer. */
static void rung(struct sstar_aggregator *a, struct peers *peers, struct peer *p)
{
    ledger_age(&a->ledger, clock_ns() - p->opened_ns, p->count);
    p->count = 0;
    peers->open--;
}

static int ring(struct sstar_aggregator *a, struct peers *peers, struct peer *p)
{
    int err = sstar_link_ring(p->link);
    if (!err)
        rung(a, peers, p);
    return err;
}

static int none_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    struct peers *peers = ((struct none *)a->state)->peers;
    struct peer *p = &peers->peer[peers->index_of[to]];
    uint32_t room = item_room(bytes);
    void *payload;
    int err = link_reserve(p->link, room, &payload);
    if (err) {
        int failed = err == -EAGAIN && p->count ? ring(a, peers, p) : 0;
        return failed ? failed : err;
    }
    *(struct item_header *)payload = (struct item_header){
        .bytes = bytes, .source = (uint16_t)a->rank, .destination = (uint16_t)to};
    memcpy((uint8_t *)payload + sizeof(struct item_header), data, bytes);
    if (p->count == 0) {
        p->opened_ns = clock_ns();
        peers->open++;
    }
    bool full = p->count + 1 == MESSAGES_PER_DOORBELL;
    err = link_commit_ticket(p->link, room, full ? 0 : SSTAR_MORE, &p->ticket);
    if (err)
        return err;
    p->sent++;
    p->count++;
    if (full)
        rung(a, peers, p);
    a->ledger.copied_bytes += bytes;
    ledger_wire(&a->ledger, room + LINK_TRAILER_BYTES, 1, bytes);
    return 0;
}

static int none_flush(struct sstar_aggregator *a)
{
    struct peers *peers = ((struct none *)a->state)->peers;
    int moved = 0;
    for (int i = 0; peers->open && i < peers->n; i++) {
        if (!peers->peer[i].count)
            continue;
        int err = ring(a, peers, &peers->peer[i]);
        if (err)
            return err;
        moved++;
    }
    return moved;
}

static int none_progress(struct sstar_aggregator *a)
{
    return sstar_links_progress(((struct none *)a->state)->peers->links);
}

/* 1: an item for the caller; 0: the end of the stream; or -EPROTO. */
static int take(struct sstar_aggregator *a, struct peer *p, const struct message *m,
                struct sstar_item *item)
{
    const struct item_header *header = m->data;
    p->taken++;
    if (m->bytes < sizeof *header || header->source != p->rank || header->destination != a->rank)
        return wire_broken(a, p->rank, "a message that is not its own");
    if (header->bytes == ITEM_LAST) {
        if (m->bytes != LAST_BYTES)
            return wire_broken(a, p->rank, "a broken end of stream");
        p->expected = 1 + *(const uint64_t *)(header + 1);
        return 0;
    }
    if (header->bytes > a->max_item_bytes || item_room(header->bytes) != m->bytes)
        return wire_broken(a, p->rank, "a message of another size than it says");
    p->received++;
    *item = (struct sstar_item){.data = header + 1, .bytes = header->bytes, .source = p->rank};
    return 1;
}

static int none_pull(struct sstar_aggregator *a, struct sstar_item *item)
{
    struct peers *peers = ((struct none *)a->state)->peers;
    for (int looked = 0; looked < peers->n;) {
        struct peer *p = &peers->peer[peers->turn];
        struct message m;
        int got = link_receive(p->link, &m);
        if (got < 0)
            return got;
        /* What was taken before this one has been read; given back in batches. */
        if (p->taken && (!got || p->taken >= MESSAGES_PER_DOORBELL)) {
            link_release(p->link, p->taken);
            p->taken = 0;
        }
        if (got && (got = take(a, p, &m, item)) != 0)
            return got;
        if (!got) {
            looked++;
            if (++peers->turn == peers->n)
                peers->turn = 0;
        }
    }
    return 0;
}

static int send_last(struct sstar_aggregator *a, struct peer *p)
{
    void *payload;
    int err = link_reserve(p->link, LAST_BYTES, &payload);
    if (err)
        return err;
    struct item_header *item = payload;
    *item = (struct item_header){
        .bytes = ITEM_LAST, .source = (uint16_t)a->rank, .destination = (uint16_t)p->rank};
    *(uint64_t *)(item + 1) = p->sent;
    err = link_commit_ticket(p->link, LAST_BYTES, 0, &p->ticket);
    if (err)
        return err;
    p->last_sent = true;
    ledger_wire(&a->ledger, LAST_BYTES + LINK_TRAILER_BYTES, 0, 0);
    return 0;
}

static int none_finish(struct sstar_aggregator *a)
{
    struct peers *peers = ((struct none *)a->state)->peers;
    bool waiting = false;
    int err = none_flush(a);
    if (err < 0)
        return err;
    for (int i = 0; i < peers->n; i++) {
        struct peer *p = &peers->peer[i];
        err = p->last_sent ? 0 : send_last(a, p);
        if (err && err != -EAGAIN)
            return err;
        waiting = waiting || err;
    }
    return waiting || !peers_sent(peers) || !peers_drained(peers);
}

static bool none_sending(struct sstar_aggregator *a)
{
    return peers_sending(((struct none *)a->state)->peers);
}

static int none_missing(struct sstar_aggregator *a)
{
    return peers_missing(((struct none *)a->state)->peers);
}

static int none_reset(struct sstar_aggregator *a)
{
    peers_reset(((struct none *)a->state)->peers);
    return 0;
}

const struct strategy strategy_none = {
    .name = "none",
    .open = none_open,
    .push = none_push,
    .flush = none_flush,
    .progress = none_progress,
    .pull = none_pull,
    .finish = none_finish,
    .sending = none_sending,
    .missing = none_missing,
    .reset = none_reset,
    .close = none_close,
};
