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

#include "collectives/aggregator_wire.h"
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

/* What the writer and the reader know of a ring, each in its own memory. */
struct ring_writer {
    struct ring_shared *shared;
    uint8_t *data;
    uint64_t size; /* a power of two */
    uint64_t head, released;
    uint64_t messages;
    bool closed;
};
struct ring_reader {
    struct ring_shared *shared;
    uint8_t *data;
    uint64_t size;
    uint64_t head, taken, released;
    uint64_t messages;
    uint64_t expected; /* 1 + messages ever written, once known */
};

static inline size_t ring_bytes(uint64_t size)
{
    return sizeof(struct ring_shared) + size;
}

/* Room for an item, behind a skip to the beginning if it must not be cut. NULL: full. */
static inline struct item_header *ring_reserve(struct ring_writer *w, uint32_t room)
{
    uint64_t at = w->head & (w->size - 1), to_end = w->size - at;
    uint64_t need = room <= to_end ? room : to_end + room;
    if (w->head + need - w->released > w->size) {
        w->released = atomic_load_explicit(&w->shared->released, memory_order_acquire);
        if (w->head + need - w->released > w->size)
            return NULL;
    }
    if (room > to_end) {
        ((struct item_header *)(w->data + at))->bytes = ITEM_SKIP;
        w->head += to_end;
        at = 0;
    }
    return (struct item_header *)(w->data + at);
}

static inline void ring_publish(struct ring_writer *w, uint32_t room)
{
    w->head += room;
    w->messages++;
    atomic_store_explicit(&w->shared->head, w->head, memory_order_release);
}

/* 0, or -EAGAIN when the ring is full. */
static inline int ring_write(struct ring_writer *w, uint16_t source, uint16_t destination,
                             const void *data, uint32_t bytes)
{
    uint32_t room = item_room(bytes);
    struct item_header *item = ring_reserve(w, room);
    if (!item)
        return -EAGAIN;
    item->bytes = bytes;
    item->source = source;
    item->destination = destination;
    memcpy(item + 1, data, bytes);
    ring_publish(w, room);
    return 0;
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

/* The next item, in place, or NULL. It stays until ring_release. */
static inline struct item_header *ring_read(struct ring_reader *r)
{
    for (;;) {
        if (r->taken == r->head) {
            r->head = atomic_load_explicit(&r->shared->head, memory_order_acquire);
            if (r->taken == r->head)
                return NULL;
        }
        uint64_t at = r->taken & (r->size - 1);
        struct item_header *item = (struct item_header *)(r->data + at);
        if (item->bytes != ITEM_SKIP) {
            r->taken += item_room(item->bytes);
            r->messages++;
            return item;
        }
        r->taken += r->size - at;
    }
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
