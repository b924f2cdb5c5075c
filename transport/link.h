/* SPDX-License-Identifier: MIT */
/*
 * Messages over a link: the slots that collectives and the aggregator are built on. Private.
 *
 * Each side of a link has `slots` slots of `slot_bytes` at the other. A message is composed in
 * place, committed, and read in place by the receiver, in the order of sending, whatever queue pair
 * carried it. A slot is used again only after the receiver has released it and its credit came back
 * (in the trailer of a message the other way; as a message of its own only when half the slots are
 * owed). Inside a node the sender composes directly in the receiver's memory.
 *
 * What the protocol needs of the device: with arrival in memory, that one RDMA WRITE's last bytes
 * land last (data and trailer are one write, laid so that it ends at the end of the slot); with
 * arrival by completion, nothing beyond the verbs contract (WRITE_WITH_IMM).
 */
#ifndef SSTAR_TRANSPORT_LINK_H
#define SSTAR_TRANSPORT_LINK_H

#include "transport/transport.h"

struct message {
    const void *data; /* in the slot; stays until its release */
    uint32_t bytes;
    uint64_t sequence;
};

/* A place to compose the next message of at most `bytes` <= slot_bytes: *payload, 16-byte aligned.
 * -EAGAIN: no credit, or no place in the send queue; make progress and try again. Reserving twice
 * without committing gives the same place. */
int link_reserve(struct sstar_link *link, size_t bytes, void **payload);
/* Send `bytes` of what was composed. flags: 0 or SSTAR_MORE (no doorbell yet). */
int link_commit(struct sstar_link *link, size_t bytes, int flags);
/* The same with a ticket as for sstar_put: once it is done the message has left, and needs nobody
 * here to move it on (a shaped softnic sends only while its ranks post or poll). */
int link_commit_ticket(struct sstar_link *link, size_t bytes, int flags, uint64_t *ticket);

/* Send from registered memory without a copy: `n` pieces of which each lies in its region, at most
 * LINK_MAX_PIECES. *ticket as for sstar_put. Inside a node the pieces are copied into the slot.
 * -EAGAIN as link_reserve. */
enum { LINK_MAX_PIECES = 16 };
struct piece {
    const struct sstar_region *region;
    const void *data;
    uint32_t bytes;
};
int link_send(struct sstar_link *link, const struct piece *pieces, int n, int flags,
              uint64_t *ticket);

/* The next message, if it has arrived (does not poll completions: sstar_links_progress does; for
 * links in memory and devices with arrival in memory it looks at the slot itself). 1, 0, or -errno.
 * Several may be received before the first is released. */
int link_receive(struct sstar_link *link, struct message *message);
/* Release the oldest `count` received messages; their slots may then be overwritten. */
void link_release(struct sstar_link *link, uint32_t count);

/* How many messages could be reserved now without -EAGAIN (a lower bound). */
uint32_t link_credits(const struct sstar_link *link);
int link_peer(const struct sstar_link *link);
bool link_is_local(const struct sstar_link *link);
/* True when everything sent is complete on our side and consumed by the peer. */
bool link_idle(const struct sstar_link *link);

/* Whether what comes through this world's NIC shows as completions, which sstar_links_progress
 * counts. False before the first link through it. */
bool links_arrive_by_completion(const struct sstar_world *world);

/* Bytes that a message adds on the wire (the trailer). */
enum { LINK_TRAILER_BYTES = 16 };

/* Bytes of memory that sstar_links_open takes for links with these attributes to so many peers of
 * other nodes and of our own; the device's own queues not counted. */
uint64_t links_bytes(const struct sstar_link_attr *attr, int remote, int local);

/* Where the receive slots of this link begin: memory that every rank of this node can read (through
 * memory_peer), so that a message can be handed on without a copy. */
const void *link_slots_base(const struct sstar_link *link, size_t *bytes);

#endif
