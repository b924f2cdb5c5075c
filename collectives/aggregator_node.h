/* SPDX-License-Identifier: MIT */
/*
 * Inside the strategy `node`. Private to strategy_node.c, aggregator_gateway.c,
 * aggregator_handout.c.
 *
 * Between our node and each other node there is one channel. One rank of each of the two nodes, the
 * channel's gateway, has the link: on the node `node` of `local_size` ranks that is the local rank
 * `other % local_size`. In the gateway's memory lie, for the whole node:
 *
 *     a ring per writer    messages on their way out; the gateway sends from there, without a copy
 *     the hand-out         which wire messages have come in: each rank reads its own items in the
 *                          link's slot, and the gateway releases the slot when all have
 *     directories          of the wire messages under way
 */
#ifndef SSTAR_COLLECTIVES_AGGREGATOR_NODE_H
#define SSTAR_COLLECTIVES_AGGREGATOR_NODE_H

#include "collectives/strategy.h"

/* A wire message that has come in. Written by the gateway before `published` counts it. */
struct handout_entry {
    uint64_t offset; /* from the beginning of the link's slots */
    uint64_t bytes;
};
struct handout_count {
    _Alignas(64) _Atomic uint64_t value;
};
struct handout_shared {
    struct handout_count published;      /* by the gateway: wire messages so far */
    uint64_t slots_address, slots_bytes; /* as the gateway knows them */
    struct handout_count consumed[];     /* [local_size], by each rank; then the entries */
};

/* A piece of a wire message being gathered. */
struct gathered {
    uint8_t *data;
    uint32_t bytes;
    uint16_t source;
};

/* The wire message that is being gathered, kept until the link takes it. */
struct outgoing {
    bool ready;
    bool last;
    uint32_t pieces, count, item_bytes, payload_bytes;
    uint32_t directory_bytes;
    uint64_t oldest_ns;
};

/* Of the rank that is a channel's gateway. */
struct gateway {
    struct sstar_link *link;
    int readers;              /* ranks of the other node */
    uint8_t *directories;     /* [slots], as many as there can be wire messages under way */
    struct ring_reader *from; /* [local_size] */
    int next_writer;          /* where gathering begins: each in turn */
    struct outgoing out;
    struct gathered *piece; /* [pieces_most] */
    uint32_t *first;        /* [pieces_most][readers], as in the directory */
    const uint8_t **tail;   /* [readers]: last item of each in the piece being walked */
    uint64_t *sent;         /* [readers]: messages */
    /* Wire messages under way, in order: with a ticket's completion the rings up to these positions
     * may be overwritten. */
    uint64_t first_under_way, after_under_way;
    uint64_t *ticket;             /* [slots] */
    uint64_t *position;           /* [slots][local_size] */
    uint64_t last_ns, last_bytes; /* the last wire message: when, how long */
    bool last_sent;
    uint64_t last_ticket;
    uint64_t published, released; /* of wire messages that came in */
};

struct channel {
    int node;  /* the other */
    int owner; /* local rank of the gateway here */
    struct ring_writer out;
    struct sstar_lane lane;
    uint64_t opened_ns; /* when the first message came into the lane */
    uint64_t stamped;   /* which 64th of `out` has its stamp, counted from the beginning of time */
    struct handout_shared *handout;
    struct handout_entry *entries;
    const uint8_t *slots; /* of the gateway's link, as we see them */
    /* The wire message that we are reading. */
    uint64_t consumed; /* before it */
    bool reading;
    const uint8_t *message, *piece;
    size_t message_bytes;
    uint32_t piece_index, piece_bytes;
    const uint8_t *item;         /* next of ours in the piece, or NULL */
    uint64_t received, expected; /* expected: 1 + messages for us, once known */
    struct gateway *gateway;     /* NULL: another rank is it */
};

struct per_node {
    struct sstar_links *links; /* of the channels that we are the gateway of */
    struct channel *channel;   /* [nodes]; that of our own node is empty */
    struct item_format format;
    int turn;
    int readers_most; /* largest local size in the world */
    uint32_t pieces_most, directory_most, slot_bytes, slots;
};

static inline struct per_node *per_node(const struct sstar_aggregator *a)
{
    return a->state;
}

/* The rank that is the gateway of node `other` to ours. */
static inline int gateway_rank(const struct sstar_aggregator *a, int other)
{
    return rank_at(a, other, a->node % local_size_of(a, other));
}

/* aggregator_gateway.c */
int gateway_open(struct sstar_aggregator *a, struct channel *c, uint8_t *rings,
                 uint8_t *directories);
void gateway_close(struct gateway *g);
/* Send what is due (everything, once all writers have ended). Number of wire messages, or -errno.
 */
int gateway_send(struct sstar_aggregator *a, struct channel *c);
/* Give back what has left. */
void gateway_complete(struct sstar_aggregator *a, struct gateway *g);
/* The end of the stream has been sent and is complete. */
bool gateway_ended(const struct gateway *g);

/* aggregator_handout.c */
size_t handout_bytes(int readers, uint32_t slots);
/* As the gateway: publish what has come in, release what all have read. Number, or -errno. */
int handout_publish(struct sstar_aggregator *a, struct channel *c);
/* Next item for us on this channel: 1, 0 or -errno. */
int handout_pull(struct sstar_aggregator *a, struct channel *c, struct sstar_item *item);

#endif
