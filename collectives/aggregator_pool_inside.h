/* SPDX-License-Identifier: MIT */
/*
 * The common pool from inside: what its sizes and opening (aggregator_pool.c), its buffers
 * (aggregator_pool_buffers.c) and its notes (aggregator_pool_notes.c) share.
 */
#ifndef SSTAR_COLLECTIVES_AGGREGATOR_POOL_INSIDE_H
#define SSTAR_COLLECTIVES_AGGREGATOR_POOL_INSIDE_H

#include "collectives/aggregator_pool.h"

enum {
    FIRST_PLACES = 16, /* of who asks, and of everybody at most; one more for each that was read */
    NOTE_PLACES = 20,
};

/* At the beginning of a place. */
struct pool_header {
    uint32_t bytes;
    uint16_t magic, source;
    uint64_t sequence;
};
static_assert(sizeof(struct pool_header) == LINK_TRAILER_BYTES, "counted as a link's trailer is");

struct pool_note {
    uint8_t magic, version, flags, granted;
    uint32_t read;     /* buffers of the receiver of this note, ever */
    uint32_t returned; /* places of the receiver, with this note, from the oldest */
    uint32_t kept;     /* places that the receiver of this note need never give back */
    uint64_t messages; /* with NOTE_END */
    uint16_t place[NOTE_PLACES];
};
static_assert(sizeof(struct pool_note) == 64, "a note is a cache line");

/* A queue of places, or of buffers, of at most `most`. Positions count for ever. */
struct queue {
    uint16_t *at;
    uint32_t begin, end;
};

struct pool_peer {
    struct sstar_link *link; /* for buffers */
    /* Sending to it. */
    struct queue granted; /* places of it that we may fill */
    struct queue flying;  /* our buffers that are on their way, and what they wait for */
    uint64_t *ticket;     /* [most], as `flying` */
    int open;             /* our buffer that is being filled, -1: none */
    uint32_t sent, read;  /* buffers; read by it */
    uint32_t kept;        /* of granted: not given back */
    bool want, told_want;
    bool end_told;
    /* Receiving from it. */
    struct queue given; /* our places that it has or has filled; those up to .. */
    uint32_t told;      /* it knows of, */
    uint32_t next;      /* are handed out, */
    uint32_t came;      /* and so many buffers ever */
    uint32_t told_read; /* of those it knows that they were read */
    uint32_t came_read;
    uint64_t read_ns;
    uint32_t may_hold; /* but no more than its share */
    bool asks;
};
struct pool {
    struct sstar_aggregator *a;
    struct peers *peers;       /* for notes */
    struct sstar_links *links; /* for buffers */
    struct pool_sizes sizes;
    struct pool_peer *peer; /* [peers->n] */
    uint8_t *memory;        /* places, then buffers */
    struct sstar_region *region;
    struct sstar_remote_region *remote; /* [size] */
    uint16_t *numbers;                  /* of all queues */
    uint64_t *tickets;
    uint32_t kept;                      /* of our places, for each peer whether it asks or not */
    uint16_t *free_place, *free_buffer; /* [places] */
    uint32_t free_places, free_buffers;
    uint32_t asking; /* peers that want places of us */
    uint32_t wanted; /* peers that we want places of, */
    uint32_t empty;  /* of these, without a buffer */
    int turn;        /* whom a free place is offered first */
};

static inline uint32_t held(const struct queue *q)
{
    return q->end - q->begin;
}
static inline uint16_t *slot_of(const struct pool *p, const struct queue *q, uint32_t position)
{
    return &q->at[position % p->sizes.most];
}

static inline void pool_take_back(struct pool *p, struct pool_peer *q)
{
    p->free_place[p->free_places++] = *slot_of(p, &q->given, q->given.begin++);
}
/* Buffers that have left are free again. */
void pool_reap(struct pool *p, int i);
int pool_broken(struct pool *p, int i, const char *what);

#endif
