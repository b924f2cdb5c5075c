/* SPDX-License-Identifier: MIT */
/*
 * A queue pair as links use it: what has been posted and what has completed, so that the queue
 * never overruns, and the requests built but not yet rung for. Private to link_*.c.
 *
 * Building and ringing are apart (transport/post.h). Who does them is the control path's business
 * (transport/proxy.h): the world's thread, or a proxy that it hands descriptors to.
 */
#ifndef SSTAR_TRANSPORT_RC_H
#define SSTAR_TRANSPORT_RC_H

#include "transport/links.h"
#include "transport/post.h"
#include <endian.h>

enum { RC_MAX_SGE = LINK_MAX_PIECES + 1 };
_Static_assert((int)RC_MAX_SGE <= (int)POST_MAX_SGE, "pieces");
enum { RC_RETRY_COUNT = 6, RC_RNR_RETRIES = 6 };
/* Requests into which the longest write or read is cut where the device wants short ones. */
enum { RC_MOST_PARTS = 32 };

/* What was asked for, for tickets and for the sentence should it fail. */
struct rc_record {
    uint64_t ticket; /* 0: none */
    uint32_t bytes;
    uint8_t opcode;
    bool put; /* counts among the puts under way */
    bool probe;
};

struct rc_op {
    enum ibv_wr_opcode opcode;
    uint64_t remote_address;
    uint32_t rkey;
    uint32_t immediate;
    uint64_t add;
    bool inline_data; /* may be sent inline */
    bool is_word;     /* the data is `word`, sent inline */
    bool signalled;   /* whatever else is said of that */
    uint64_t word;
    uint32_t bytes;
    uint64_t ticket;
    bool put;
    bool probe; /* see link_probe.c */
    int n_sge;
    struct ibv_sge sge[RC_MAX_SGE]; /* last: most are unused */
};

struct rc_qp {
    struct ibv_qp *qp;
    struct post_queue post; /* with control by proxy it is the proxy's */
    uint32_t index, psn;
    uint32_t posted, completed; /* send requests, counted for ever */
    uint32_t depth;             /* of the send queue */
    uint32_t unsignalled, signal_every;
    bool ticket_unsignalled; /* a ticket waits for a signalled request behind it */
    bool is_held;            /* `held` was built with SSTAR_MORE and is not yet in the queue */
    struct rc_op held;
    struct rc_record *records; /* ring of record_mask + 1 */
    uint32_t record_mask;
    uint32_t receives_due, receive_batch;
    uint64_t signals; /* raised at the peer through this queue pair */
};

/* wr_id: receive(1 bit) | index of the link | index of the queue pair | position in its queue */
static inline uint64_t wr_id_of(const struct sstar_link *link, uint32_t qp, uint32_t position)
{
    return (uint64_t)link->index << 40 | (uint64_t)qp << 32 | position;
}
static const uint64_t WR_ID_RECEIVE = 1ull << 63;
static inline uint32_t wr_id_link(uint64_t wr_id)
{
    return (uint32_t)(wr_id >> 40) & 0x7fffff;
}
static inline uint32_t wr_id_qp(uint64_t wr_id)
{
    return (uint32_t)(wr_id >> 32) & 0xff;
}

/* Appended to each message; its last 8 bytes are the last bytes of the write, and of the slot. */
struct link_trailer {
    uint32_t credit; /* messages the sender of this has released, low half */
    uint8_t magic, version;
    uint16_t signals; /* signals it has accounted for, low 16 bits */
    uint64_t word;    /* sequence << 32 | bytes: the sequence lands last */
};
_Static_assert(sizeof(struct link_trailer) == LINK_TRAILER_BYTES, "trailer");
enum { TRAILER_MAGIC = 0x5a, TRAILER_VERSION = 1 };

/* Immediate data: what it is, and 30 bits. */
enum immediate_kind { IMM_MESSAGE, IMM_SIGNAL, IMM_CREDIT };
static inline uint32_t immediate_make(enum immediate_kind kind, uint32_t value)
{
    return (uint32_t)kind << 30 | (value & 0x3fffffff);
}

static inline bool rc_place(const struct rc_qp *qp, uint32_t n)
{
    return qp->posted + qp->is_held - qp->completed + n <= qp->depth;
}

/* How much of `bytes` goes into one request, and how many that makes. */
static inline uint32_t rc_part_bytes(const struct device *device, uint64_t bytes)
{
    uint64_t least = (bytes + RC_MOST_PARTS - 1) / RC_MOST_PARTS;
    return (uint32_t)(least > device->part_bytes ? least : device->part_bytes);
}
static inline uint32_t rc_parts(const struct device *device, uint64_t bytes)
{
    if (device->part_bytes == 0 || bytes <= device->part_bytes)
        return 1;
    uint32_t part = rc_part_bytes(device, bytes);
    return (uint32_t)((bytes + part - 1) / part);
}

/*
 * Build; the caller has made sure of rc_parts() places. Completions are signalled every quarter of
 * the queue, and on the last request of a doorbell if a ticket waits for it. So one that more may
 * follow is held back until the next is built or the doorbell is rung: only then is it known which
 * one is the last.
 */
enum rc_follow { RC_LAST, RC_FOLLOWED, RC_MORE };
void rc_build(struct sstar_link *link, uint32_t qp, const struct rc_op *op, enum rc_follow follow);
/* Completions of this set, as poll_cq gives them. */
int rc_poll(struct sstar_links *links, struct ibv_wc *wc, int most);
int rc_poll_failed(struct sstar_links *links);
/* Ring for all that was built on this link. */
int rc_ring(struct sstar_link *link);
/* All send requests up to `position` are complete. */
void rc_complete(struct sstar_link *link, struct rc_qp *qp, uint32_t position);
/* When nothing has come for long: ask the peers whether they are there. */
int rc_probe(struct sstar_links *links, uint64_t now);
/* Whether the request at `position`, which is complete, was such a question. */
bool rc_probe_answered(struct sstar_link *link, const struct rc_qp *qp, uint32_t position);
/* Post `n` receives without data. */
int rc_post_receives(struct sstar_link *link, struct rc_qp *qp, uint32_t n);
/* Tell the peer what has been released, if it does not know; force: however little. */
int rc_tell_credit(struct sstar_link *link, bool force);
/* A count of ours that came back from the peer. */
void rc_credited(struct sstar_link *link, uint32_t credit, uint32_t bits);
void rc_signals_credited(struct sstar_link *link, uint32_t count, uint32_t bits);

#endif
