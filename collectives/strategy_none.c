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

struct none {
    struct peers *peers;
    struct item_format format;
};

static struct sstar_link_attr link_attr(const struct sstar_aggregator *a)
{
    struct item_format format = format_plain(a->item_bytes);
    uint32_t most = none_bytes(&format, a->max_item_bytes), last = none_last_bytes(&format);
    return peers_attr(a, a->size - node_map_least(&a->map), most > last ? most : last, NONE_SLOTS,
                      NONE_BUDGET_BYTES);
}

static uint64_t none_link_bytes(const struct sstar_aggregator *a)
{
    struct sstar_link_attr attr = link_attr(a);
    return links_bytes(&attr, peers_remote(a, NULL), 0);
}

static int none_open(struct sstar_aggregator *a)
{
    struct none *none = calloc(1, sizeof *none);
    int *ranks = calloc((size_t)a->size, sizeof *ranks), err = -ENOMEM;
    a->state = none;
    if (none && ranks) {
        struct sstar_link_attr attr = link_attr(a);
        none->format = format_plain(a->item_bytes);
        err = peers_open(a, ranks, peers_remote(a, ranks), &attr, &none->peers);
    }
    free(ranks);
    return err;
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
    struct none *none = a->state;
    struct peers *peers = none->peers;
    struct peer *p = &peers->peer[peers->index_of[to]];
    uint32_t room = none_bytes(&none->format, bytes);
    void *payload;
    int err = link_reserve(p->link, room, &payload);
    if (err) {
        int failed = err == -EAGAIN && p->count ? ring(a, peers, p) : 0;
        return failed ? failed : err;
    }
    struct sstar_lane lane = lane_of_format(&none->format);
    lane_open(&lane, payload, payload);
    lane_put(a, &lane, (uint32_t)a->rank, (uint32_t)to, data, bytes);
    memset(lane.at, 0, room - (uint32_t)(lane.at - (uint8_t *)payload));
    lane_settle(&lane);
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
    lane_account(a, &lane, to, true);
    sent_account(a, to, room + LINK_TRAILER_BYTES, 1, bytes);
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
    const struct none *none = a->state;
    const uint8_t *at = m->data;
    p->taken++;
    if (m->bytes == none_last_bytes(&none->format) &&
        (none->format.stride || *(const uint32_t *)at == ITEM_SKIP)) {
        p->expected = 1 + ((const uint64_t *)(at + m->bytes))[-1];
        return 0;
    }
    if (m->bytes < sizeof(uint64_t) || format_bytes(&none->format, at) > a->max_item_bytes ||
        none_bytes(&none->format, format_bytes(&none->format, at)) != m->bytes)
        return wire_broken(a, p->rank, "a message of another size than it says");
    p->received++;
    *item = (struct sstar_item){.data = at + none->format.header,
                                .bytes = format_bytes(&none->format, at),
                                .source = p->rank};
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
    uint32_t bytes = none_last_bytes(&((struct none *)a->state)->format);
    void *payload;
    int err = link_reserve(p->link, bytes, &payload);
    if (err)
        return err;
    memset(payload, 0xff, bytes); /* ITEM_SKIP */
    ((uint64_t *)((uint8_t *)payload + bytes))[-1] = p->sent;
    err = link_commit_ticket(p->link, bytes, 0, &p->ticket);
    if (err)
        return err;
    p->last_sent = true;
    sent_account(a, p->rank, bytes + LINK_TRAILER_BYTES, 0, 0);
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
    .link_bytes = none_link_bytes,
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
