/* SPDX-License-Identifier: MIT */
/*
 * What carries descriptors out: builds work requests for them on the queue pairs of one set of
 * links, rings, polls their completion queue. Private. A carrier belongs to one thread at a time:
 * to a proxy that took charge of it, or to whoever calls.
 *
 * A lane is a queue pair. Some lanes keep a record of each request and tell the caller's completion
 * themselves (sstar_post); of others, which belong to links, completions are handed on through a
 * ring with one writer and one reader, and the link does its own accounts.
 */
#ifndef SSTAR_TRANSPORT_CARRIER_H
#define SSTAR_TRANSPORT_CARRIER_H

#include "transport/descriptor_ring.h"
#include "transport/post.h"
#include "transport/stages.h"
#include "transport/transport.h"

struct lane_record {
    struct sstar_completion *completion;
    struct stage_stamps *stamps; /* the caller's, or NULL */
    uint32_t bytes;
    uint8_t opcode;
    bool signalled;
};

struct lane {
    struct post_queue *post;
    uint64_t wr_id;  /* without the position */
    bool due;        /* the doorbell is to be rung */
    bool listed;     /* among the touched ones */
    uint8_t stamped; /* of what is not yet rung for: which stamps are wanted */
    int broken;      /* nothing can be posted any more: why */
    /* Of lanes that tell completions. */
    struct lane_record *records; /* [mask + 1], NULL for a link's lane */
    struct stage_stamps *stamps; /* [mask + 1] */
    uint32_t mask, depth, signal_every;
    uint32_t posted, rung, completed, unsignalled;
};

enum { CARRIER_NO_LANE = INT32_MAX };

/* A completion handed on. */
struct carried {
    uint64_t wr_id;
    uint32_t immediate;
    uint32_t status, vendor_err;
    uint32_t bytes, opcode; /* of a request that failed, where the lane knows it */
};

struct carrier {
    /* What callers read, and nobody writes while all is well. */
    alignas(64) uint32_t lanes_per_link;
    uint16_t index;    /* with its proxy */
    bool links_wait;   /* links look for arrivals here: poll even if nothing is expected */
    _Atomic int error; /* the first, of a call or a completion: negative errno */
    _Atomic uint32_t error_lane; /* CARRIER_NO_LANE: polling failed */
    _Atomic int attached;
    const struct verbs *verbs;
    struct ibv_cq *cq;
    struct lane *lanes;        /* by link and queue pair */
    struct carried *handed_on; /* [handed_mask + 1] */
    uint32_t handed_mask, n_lanes;
    /* What its thread writes all the time. */
    alignas(64) uint16_t *touched;
    uint32_t n_touched;
    uint32_t batch;    /* ring after so many at the latest; 0: after all that is there */
    uint32_t expected; /* completions to come of lanes with records */
    uint32_t stamped;  /* requests under way of which this stamp is wanted: completion found */
    _Atomic uint64_t cqes;
    alignas(64) _Atomic uint32_t tail;
    alignas(64) _Atomic uint32_t head;
};

/* `completions`: how many may be waiting to be read by the link at a time. 0 or -ENOMEM. */
int carrier_open(struct carrier *c, uint32_t n_lanes, uint32_t completions);
/* Give a lane its records: it tells completions from now on. 0 or -ENOMEM. */
int carrier_lane_tells(struct lane *lane, uint32_t depth);
/* What has not completed is told as -ECANCELED. Accepts a carrier of zeros. */
void carrier_close(struct carrier *c);

/* Build what the descriptor asks for. `pieces`: all of them. 0, or -EAGAIN: its queue is full. */
int carrier_take(struct carrier *c, const struct descriptor *d, const struct ibv_sge *pieces);
/* Ring where it is due. */
void carrier_ring(struct carrier *c);
/* One batch from the completion queue; the number found. */
int carrier_poll(struct carrier *c);
/* The link's side: completions handed on, oldest first; at most `most`. */
int carrier_read(struct carrier *c, struct ibv_wc *wc, int most);

#endif
