/* SPDX-License-Identifier: MIT */
/* Buffers of the common pool as they are filled, sent, read and given back: see aggregator_pool.h.
 */
#include "collectives/aggregator_pool_inside.h"

enum { POOL_MAGIC = 0x6c70 };

/* ---- sending ------------------------------------------------------------------------------------
 */

static uint32_t used(const struct pool_peer *q)
{
    return held(&q->flying) + (q->open >= 0);
}

bool pool_idle(const struct pool *p, int i)
{
    return p->peer[i].read == p->peer[i].sent && p->peer[i].open < 0;
}
bool pool_wanted(const struct pool *p, int i)
{
    return p->peer[i].want;
}
bool pool_granted(const struct pool *p, int i)
{
    return held(&p->peer[i].granted);
}

bool pool_want(struct pool *p, int i, bool want)
{
    struct pool_peer *q = &p->peer[i];
    if (want == q->want || (want && p->wanted >= p->sizes.most))
        return want == q->want;
    q->want = want;
    p->wanted += want ? 1 : -1u;
    if (!used(q))
        p->empty += want ? 1 : -1u;
    return true;
}

void pool_reap(struct pool *p, int i)
{
    struct pool_peer *q = &p->peer[i];
    bool any = used(q);
    while (held(&q->flying) && sstar_link_done(q->link, q->ticket[q->flying.begin % p->sizes.most]))
        p->free_buffer[p->free_buffers++] = *slot_of(p, &q->flying, q->flying.begin++);
    p->empty += any && !used(q) && q->want;
}

static uint8_t *buffer_at(const struct pool *p, int index)
{
    return p->memory + (p->sizes.places + (size_t)index) * p->sizes.stride;
}

/* One buffer for each who is wanted is left to it; the others are common. */
int pool_reserve(struct pool *p, int i, uint8_t **payload)
{
    struct pool_peer *q = &p->peer[i];
    if (p->a->world->failed)
        return p->a->world->failed;
    pool_reap(p, i);
    if (q->open < 0) {
        uint32_t kept = used(q) ? p->empty : 0;
        if (!held(&q->granted) || used(q) >= p->sizes.most || p->free_buffers <= kept)
            return -EAGAIN;
        p->empty -= !used(q) && q->want;
        q->open = p->free_buffer[--p->free_buffers];
        struct sstar_link_ledger *sent = &p->a->sent[p->peers->peer[i].rank];
        uint64_t bytes = used(q) * p->sizes.stride;
        sent->pool_peak_bytes = bytes > sent->pool_peak_bytes ? bytes : sent->pool_peak_bytes;
    }
    *payload = buffer_at(p, q->open) + sizeof(struct pool_header);
    return 0;
}

bool pool_sending(const struct pool *p)
{
    for (int i = 0; i < p->peers->n; i++) {
        const struct pool_peer *q = &p->peer[i];
        if (held(&q->flying) &&
            !sstar_link_done(q->link, q->ticket[(q->flying.end - 1) % p->sizes.most]))
            return true;
    }
    return false;
}

int pool_commit(struct pool *p, int i, uint32_t bytes)
{
    struct pool_peer *q = &p->peer[i];
    uint64_t ticket;
    uint8_t *buffer = buffer_at(p, q->open);
    uint64_t place = *slot_of(p, &q->granted, q->granted.begin);
    *(struct pool_header *)buffer = (struct pool_header){.bytes = bytes,
                                                         .magic = POOL_MAGIC,
                                                         .source = (uint16_t)p->a->rank,
                                                         .sequence = q->sent + 1};
    int err = sstar_put(q->link, p->region, buffer, &p->remote[p->peers->peer[i].rank],
                        place * p->sizes.stride, sizeof(struct pool_header) + bytes, SSTAR_SIGNAL,
                        &ticket);
    if (err)
        return err;
    q->granted.begin++;
    q->ticket[q->flying.end % p->sizes.most] = ticket;
    *slot_of(p, &q->flying, q->flying.end++) = (uint16_t)q->open;
    q->open = -1;
    q->sent++;
    return 0;
}

/* ---- receiving ----------------------------------------------------------------------------------
 */

int pool_broken(struct pool *p, int i, const char *what)
{
    return wire_broken(p->a, p->peers->peer[i].rank, what);
}

int pool_receive(struct pool *p, int i, struct message *m)
{
    struct pool_peer *q = &p->peer[i];
    if (p->a->world->failed)
        return p->a->world->failed;
    if ((uint32_t)sstar_signals(q->link) == q->came)
        return 0;
    if (q->next == q->told)
        return pool_broken(p, i, "a buffer for which it had no place");
    const struct pool_header *h =
        (const void *)(p->memory + *slot_of(p, &q->given, q->next) * p->sizes.stride);
    /* It lies in another place if a note that gives this one back has not come yet. */
    if (h->magic != POOL_MAGIC || h->source != p->peers->peer[i].rank ||
        (uint32_t)h->sequence != q->came + 1)
        return 0;
    if (h->bytes > p->sizes.stride - sizeof *h)
        return pool_broken(p, i, "a buffer that cannot be");
    q->next++;
    q->came++;
    *m = (struct message){.data = h + 1, .bytes = h->bytes, .sequence = q->came};
    return 1;
}

void pool_release(struct pool *p, int i, uint32_t count)
{
    struct pool_peer *q = &p->peer[i];
    for (uint32_t k = 0; k < count; k++)
        pool_take_back(p, q);
    q->came_read += count;
    q->may_hold += q->may_hold < p->sizes.most ? count : 0;
    q->read_ns = clock_ns();
}
