/* SPDX-License-Identifier: MIT */
/*
 * Frames over a socket that never blocks: between a rank and rank 0. One frame at a time in each
 * direction. Private to the control plane.
 */
#ifndef SSTAR_TRANSPORT_CHANNEL_H
#define SSTAR_TRANSPORT_CHANNEL_H

#include "transport/loop.h"
#include <stddef.h>
#include <sys/uio.h>

enum { FRAME_CALL = 1, FRAME_REPLY, FRAME_NOTICE };

/* Little-endian on the wire, in our byte order in memory. */
struct frame {
    uint32_t magic;
    uint16_t kind;
    uint16_t operation; /* enum operation, of a call and its reply */
    uint64_t sequence;  /* how many calls came before it in this world */
    uint64_t bytes;     /* of the body that follows */
};

struct channel {
    struct sstar_world *world;
    struct loop *loop;
    int rank;  /* at the other end */
    int fd;    /* -1: none */
    int error; /* with which the connection ended; 0: it was closed */
    bool ended, left, told;
    uint64_t moved; /* bytes, both ways */

    struct frame in_wire, in; /* as read, and in our byte order */
    size_t in_got;            /* of header and body together */
    void *in_body;
    void *target; /* where the body of the next reply goes, if it has target_bytes */
    size_t target_bytes;

    bool parked; /* a call or reply that is whole and waits to be taken */
    struct frame parked_frame;
    void *parked_body; /* allocated, or target */

    struct frame out_wire;
    size_t out_header_left, out_left; /* bytes still to send: of the header; of both */
    struct iovec *out_pieces;         /* the caller's; changed by sending */
    int out_count;
};

enum channel_event {
    CHANNEL_NOTHING,
    CHANNEL_FRAME,
    CHANNEL_END,
    CHANNEL_GARBAGE,
    CHANNEL_NO_MEMORY
};

/* Read on. CHANNEL_FRAME: `in` and `in_body` hold one; take it with channel_take before the next.
 */
enum channel_event channel_read(struct channel *c);
/* The body of the frame just read: allocated (free it), or `target`, or NULL if it has none. */
void *channel_take(struct channel *c);

/* Start to send a frame of `count` pieces. They must stay until channel_sent. */
void channel_send(struct channel *c, const struct frame *frame, struct iovec *pieces, int count);
/* Send on. 0, or -errno if the connection is broken. */
int channel_write(struct channel *c);
static inline bool channel_sent(const struct channel *c)
{
    return c->out_left == 0;
}
/* Send a small frame at once, if no other is half-way. */
bool channel_send_small(struct channel *c, const struct frame *frame, const void *body);

#endif
