/* SPDX-License-Identifier: MIT */
/*
 * Buffers for the few peers that need many: a common pool of each rank in place of slots for every
 * peer. Private.
 *
 * A rank has `places` where buffers of others land, and as many buffers to send from. In a small
 * world every peer is granted some from the beginning, half of all together. Who has much for a
 * peer asks it, is granted more, fills them in the order of granting, and is granted them again
 * when they have been read; the more ask, the fewer each holds. One sender holds at most `most`,
 * half of them, and one destination at most `most` of the buffers. All of it is taken at
 * open. What is said meanwhile travels in notes, messages of one cache line over links of
 * their own; a buffer is one put with a signal, by its link's only queue pair, so that the nth
 * signal belongs to the nth place.
 */
#ifndef SSTAR_COLLECTIVES_AGGREGATOR_POOL_H
#define SSTAR_COLLECTIVES_AGGREGATOR_POOL_H

#include "collectives/strategy.h"

struct pool;

struct pool_sizes {
    uint32_t places, most; /* there are; one pair may have */
    size_t stride;         /* of a place, all in all */
};
/* From the shape alone; buffers of up to buffer_bytes. */
struct pool_sizes pool_sizes(uint32_t buffer_bytes);
/* Both sides of it. */
uint64_t pool_bytes(const struct pool_sizes *sizes);
/* Of the links that notes go by, which must not wait behind buffers, and of those for buffers. */
struct sstar_link_attr pool_note_attr(void);
struct sstar_link_attr pool_buffer_attr(const struct pool_sizes *sizes);

/* Notes go over the links of `peers`. Collective. */
int pool_open(struct sstar_aggregator *a, struct peers *peers, uint32_t buffer_bytes,
              struct pool **pool);
void pool_close(struct pool *p);
/* Bytes that one destination may have of the buffers, and one sender of the places; what it had at
 * most stands in the link's ledger. */
uint64_t pool_bound_bytes(const struct pool *p);

/* Ask peer i for places, or give them back once it has read all. At most half as many peers as
 * there are places are asked: false. */
bool pool_want(struct pool *p, int i, bool want);
bool pool_wanted(const struct pool *p, int i);
/* Peer i has granted places that are not filled yet. */
bool pool_granted(const struct pool *p, int i);
/* All that was sent to peer i it has read. */
bool pool_idle(const struct pool *p, int i);

/* As those of a link: link.h. */
int pool_reserve(struct pool *p, int i, uint8_t **payload);
int pool_commit(struct pool *p, int i, uint32_t bytes);
/* A buffer is still on its way. */
bool pool_sending(const struct pool *p);
int pool_receive(struct pool *p, int i, struct message *m);
void pool_release(struct pool *p, int i, uint32_t count);
/* Tell peer i that this rank sent it so many messages in all, and no more come. */
int pool_end(struct pool *p, int i, uint64_t messages, uint64_t *ticket);
/* Move buffers on, take notes and write them. Number of things moved, or -errno. */
int pool_progress(struct pool *p);

#endif
