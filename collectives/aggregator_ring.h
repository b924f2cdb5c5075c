/* SPDX-License-Identifier: MIT */
/*
 * A ring of items between one writer and one reader of a node, in memory that both can reach. No
 * lock: each word has one writer. Private.
 *
 * Positions count bytes ever written. The reader works in two steps: it takes items (to read them
 * in place, or to send them on), and later releases what it took, which is then overwritten.
 */
#ifndef SSTAR_COLLECTIVES_AGGREGATOR_RING_H
#define SSTAR_COLLECTIVES_AGGREGATOR_RING_H

#include "collectives/aggregator_lane.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { RING_STAMPS = 64 };

struct ring_shared {
    /* Of the writer. */
    _Alignas(64) _Atomic uint64_t head;
    _Atomic uint64_t closed; /* 1 + messages ever written, when there will be no more */
    _Atomic uint64_t full;   /* 1 + head when the writer found no room: take now */
    /* Of the reader. */
    _Alignas(64) _Atomic uint64_t taken;
    _Atomic uint64_t released;
    /* Of the writer: when, in ns, the first item of each 64th of the ring was written, or the first
     * after the reader had taken all. */
    _Alignas(64) _Atomic uint64_t stamp_ns[RING_STAMPS];
};

/* What the writer and the reader know of a ring, each in its own memory. The writer's lane is where
 * the next items go: what stands there is told to the reader by ring_publish. */
struct ring_writer {
    struct ring_shared *shared;
    uint8_t *data;
    uint64_t size; /* a power of two */
    uint64_t head, released;
    uint64_t messages;
    struct sstar_lane *lane;
    bool closed;
};
struct ring_reader {
    struct ring_shared *shared;
    uint8_t *data;
    uint64_t size;
    struct item_format format;
    uint64_t head, taken, released;
    uint64_t messages;
    uint64_t expected; /* 1 + messages ever written, once known */
};

static inline size_t ring_bytes(uint64_t size)
{
    return sizeof(struct ring_shared) + size;
}

/* Room in the lane for an item, behind a skip to the beginning if it must not be cut, and for more
 * of up to `most` bytes. The lane is empty or its items are published. 0, or -EAGAIN: full. */
static inline int ring_open_lane(struct ring_writer *w, uint64_t room, uint64_t most)
{
    uint64_t at = w->head & (w->size - 1), to_end = w->size - at;
    uint64_t need = room <= to_end ? room : to_end + room;
    if (w->head + need - w->released > w->size) {
        w->released = atomic_load_explicit(&w->shared->released, memory_order_acquire);
        if (w->head + need - w->released > w->size)
            return -EAGAIN;
    }
    if (room > to_end) {
        if (!w->lane->stride)
            ((struct item_header *)(w->data + at))->bytes = ITEM_SKIP;
        w->head += to_end;
        at = 0;
        to_end = w->size;
    }
    uint64_t free = w->size - (w->head - w->released);
    uint64_t until = free < to_end ? free : to_end;
    most = most < room ? room : most;
    lane_open(w->lane, w->data + at, w->data + at + (until < most ? until : most));
    return 0;
}

/* Bytes in the lane that are not published. */
static inline uint64_t ring_unpublished(const struct ring_writer *w)
{
    return lane_settle(w->lane) ? (uint64_t)(w->lane->at - (w->data + (w->head & (w->size - 1))))
                                : 0;
}

/* Let the reader see what stands in the lane. */
static inline void ring_publish(struct ring_writer *w)
{
    if (!lane_settle(w->lane))
        return;
    w->head += ring_unpublished(w);
    w->messages += w->lane->count;
    if (!(w->head & (w->size - 1)))
        lane_shut(w->lane);
    atomic_store_explicit(&w->shared->head, w->head, memory_order_release);
}

static inline unsigned ring_stamp_index(uint64_t size, uint64_t position)
{
    return (unsigned)((position & (size - 1)) / (size / RING_STAMPS));
}

static inline void ring_close(struct ring_writer *w)
{
    w->closed = true;
    atomic_store_explicit(&w->shared->closed, 1 + w->messages, memory_order_release);
}

/* Whether at this place the reader must go on at the ring's beginning. */
static inline bool ring_skips(const struct ring_reader *r, uint64_t at)
{
    return r->format.stride ? r->size - at < r->format.stride
                            : ((const struct item_header *)(r->data + at))->bytes == ITEM_SKIP;
}

/* The next item, in place, or NULL. It stays until ring_release. */
static inline const uint8_t *ring_read(struct ring_reader *r)
{
    for (;;) {
        if (r->taken == r->head) {
            r->head = atomic_load_explicit(&r->shared->head, memory_order_acquire);
            if (r->taken == r->head)
                return NULL;
        }
        uint64_t at = r->taken & (r->size - 1);
        if (!ring_skips(r, at)) {
            const uint8_t *item = r->data + at;
            r->taken += format_room(&r->format, format_bytes(&r->format, item));
            r->messages++;
            return item;
        }
        r->taken += r->size - at;
    }
}

/* As ring_read, of a ring of items that are all alike: as many as lie there in a row, of up to
 * `most` bytes. How many. */
static inline uint64_t ring_read_row(struct ring_reader *r, uint64_t most, const uint8_t **first)
{
    const uint8_t *item = ring_read(r);
    if (!item)
        return 0;
    uint64_t to_end = (uint64_t)(r->data + r->size - item), stride = r->format.stride;
    uint64_t there = r->head - r->taken + stride, n;
    there = there < to_end ? there : to_end;
    n = (there < most ? there : most) / stride;
    n = n ? n : 1;
    r->taken += (n - 1) * stride;
    r->messages += n - 1;
    *first = item;
    return n;
}

/* Everything taken may be overwritten. */
static inline void ring_release(struct ring_reader *r)
{
    if (r->released != r->taken) {
        r->released = r->taken;
        atomic_store_explicit(&r->shared->released, r->released, memory_order_release);
    }
}

/* True once the writer has closed the ring and all of it has been taken. */
static inline bool ring_drained(struct ring_reader *r)
{
    if (!r->expected)
        r->expected = atomic_load_explicit(&r->shared->closed, memory_order_acquire);
    return r->expected == r->messages + 1;
}

/* By its owner each, while nobody uses the ring: start a new stream in it. */
static inline void ring_reopen_writer(struct ring_writer *w)
{
    w->closed = false;
    w->messages = 0;
    atomic_store_explicit(&w->shared->closed, 0, memory_order_relaxed);
}
static inline void ring_reopen_reader(struct ring_reader *r)
{
    r->messages = 0;
    r->expected = 0;
}

#endif
