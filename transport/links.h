/* SPDX-License-Identifier: MIT */
/*
 * What a link is made of. Private to links.c and link_*.c.
 *
 * A link keeps one piece of sstar_alloc memory per set of links, shared out by links.c:
 *
 *     control block   written by the peer: what it has released, how often it has signalled
 *     receive slots   written by the peer
 *     staging slots   where messages for a peer behind the NIC are composed
 */
#ifndef SSTAR_TRANSPORT_LINKS_H
#define SSTAR_TRANSPORT_LINKS_H

#include "transport/device.h"
#include "transport/link.h"
#include "transport/region.h"
#include "transport/world.h"
#include <stdalign.h>
#include <stdatomic.h>

enum {
    LINK_MAGIC = 0x4b4c5353,
    LINK_VERSION = 4,
    LINK_MAX_QPS = 16,     /* for messages and puts; one more carries credit */
    LINK_MAX_SLOTS = 8192, /* credits travel as 15 bits */
    LINK_MAX_PUTS = 8192,
    LINK_POLL_BATCH = 32,
};

/* What the peer writes into our memory. Each word on a cache line of its own. */
struct link_word {
    alignas(64) _Atomic uint64_t value;
};
struct link_control {
    struct link_word credit;                /* messages of ours that the peer has released */
    struct link_word signals[LINK_MAX_QPS]; /* signals raised through each queue pair */
};

/* What both ends tell each other before they connect. Little-endian. */
struct qp_introduction {
    uint32_t number, psn;
};
struct gid_introduction {
    uint8_t gid[16];
    uint32_t type;
    uint16_t index;
    uint16_t port; /* where librdmacm listens at this address; 0: nowhere */
};
struct link_introduction {
    uint32_t magic, version, size;
    int32_t status; /* 0, or what kept this rank from opening its links */
    uint8_t wanted, through_nic, arrival, link_layer;
    uint8_t posts, reserved[3];
    uint32_t connect; /* enum sstar_connect */
    uint32_t queue_pairs, slots, slot_bytes, puts;
    uint64_t slots_address, control_address;
    uint32_t rkey;
    uint16_t lid;
    uint8_t mtu, read_depth;
    uint64_t cm_key; /* known to those of this set alone; connections through librdmacm show it */
    uint32_t n_gids; /* best first */
    struct gid_introduction gids[GID_USABLE];
    struct qp_introduction qps[LINK_MAX_QPS + 1];
};

struct carrier;
struct proxy;
struct rc_qp;

/* A one-sided operation, checked. */
struct one_sided {
    const struct sstar_region *region;
    void *local;
    const struct sstar_remote_region *remote;
    uint64_t address; /* at the peer */
    size_t bytes;
    uint64_t add;
    int flags;
};

struct link_ops {
    int (*reserve)(struct sstar_link *link, size_t bytes, void **payload);
    /* ticket: NULL, or where it goes. */
    int (*commit)(struct sstar_link *link, size_t bytes, int flags, uint64_t *ticket);
    int (*send)(struct sstar_link *link, const struct piece *pieces, int n, size_t bytes, int flags,
                uint64_t *ticket);
    int (*receive)(struct sstar_link *link, struct message *message);
    void (*release)(struct sstar_link *link, uint32_t count);
    int (*put)(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket);
    int (*get)(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket);
    int (*add)(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket);
    int (*ring)(struct sstar_link *link);
    uint64_t (*signals)(const struct sstar_link *link);
    uint32_t (*credits)(const struct sstar_link *link);
};
extern const struct link_ops link_ops_local, link_ops_nic;

struct sstar_link {
    const struct link_ops *ops;
    struct sstar_links *links;
    struct sstar_world *world;
    int peer;
    bool local;
    uint32_t index; /* in its set */
    uint32_t slots, slot_mask, slot_bytes;
    size_t stride;

    uint64_t sent, credited;     /* messages sent; of these, released by the peer */
    uint64_t received, released; /* messages handed out; of these, released by us */
    char *recv_slots;
    struct link_control *control;      /* ours */
    struct link_control *peer_control; /* local: the peer's, mapped here */
    char *peer_slots;                  /* local: likewise */
    uint64_t tickets, tickets_done;    /* given out; complete, with all before them */
    uint64_t signals_sent;

    /* Through the NIC. */
    char *staging;
    uint64_t peer_slots_address, peer_control_address;
    uint32_t peer_rkey;
    struct gid_entry gid, peer_gid; /* what both tables share */
    enum ibv_mtu mtu;
    uint8_t read_depth, ack_timeout, retry_count;
    struct rc_qp *qps;
    uint32_t n_qps;    /* all of them */
    uint32_t data_qps; /* for messages and puts; the one behind them is for credit alone */
    uint32_t pending;  /* bit q: work requests built on queue pair q, not yet rung for */
    uint32_t next_message_qp, next_put_qp;
    uint32_t puts, puts_under_way;
    uint8_t *ticket_done; /* ring of flags, for tickets that complete out of turn */
    uint32_t ticket_mask;
    uint8_t *arrived;          /* by completion: which receive slots have been filled */
    uint64_t credit_told;      /* value of `released` that the peer has been told */
    bool probing;              /* a probe is under way */
    bool credit_due;           /* it must be told, and there was no place in the queue */
    uint64_t signals_seen;     /* by completion: signals that have arrived */
    uint64_t signals_told;     /* of these, accounted to the peer */
    uint64_t signals_credited; /* of signals_sent, accounted for by the peer */
};

struct sstar_links {
    struct sstar_world *world;
    struct sstar_links *next;
    struct sstar_link_attr attr; /* defaults filled in */
    struct device *device;       /* NULL: all are local */
    struct ibv_cq *cq;
    struct rdmacm *cm;       /* NULL: connected by exchange */
    struct carrier *carrier; /* NULL: the world's thread posts and polls for its links alone */
    struct proxy *proxy;     /* has charge of the carrier; NULL: direct control */
    enum arrival arrival;
    int n_links;
    struct sstar_link *all;
    struct sstar_link **by_rank; /* [size of the world] */
    void *memory;
    struct sstar_region *region;
    bool any_pending, any_credit_due;
    uint32_t calls;
    bool moving;    /* in rc_progress: do not enter again */
    uint32_t quiet; /* progress calls since something came */
    uint64_t quiet_since_ns;
    uint64_t silent_since_ns; /* likewise, for probes */
    uint64_t probes_answered;
    bool closing; /* all are done: no credit is told, and nobody is probed, any more */
};

/* ---- links.c -------------------------------------------------------------------------------- */

/* The links of every set of the world: for waits that are not about one set. */
int links_progress_all(struct sstar_world *world);
/* When to make progress next, for those who would sleep meanwhile; UINT64_MAX: nothing is known to
 * come. -EOPNOTSUPP: one must look. */
int links_next_look(struct sstar_links *links, uint64_t *at_ns);
/* Leave no batch open: a device may wait for its end before it lets go of memory. */
void links_ring_all(struct sstar_world *world);
/* Progress of every set, from the control plane, now and then. */
void links_tick(struct sstar_world *world);
/* Free without telling anybody: the device or the memory below is about to go. */
void links_abandon_all(struct sstar_world *world);

static inline char *link_recv_slot(const struct sstar_link *link, uint64_t index)
{
    return link->recv_slots + (size_t)(index & link->slot_mask) * link->stride;
}

/* ---- link_queue_pairs.c --------------------------------------------------------------------- */

/* The completion queue of the set and the queue pairs of its links, up to INIT. */
int rc_open(struct sstar_links *links);
void rc_close(struct sstar_links *links);

/* ---- link_connect.c ------------------------------------------------------------------------- */

void rc_introduce(const struct sstar_link *link, struct link_introduction *out);
/* All queue pairs to RTS, with the receives posted. `theirs` by rank. */
int rc_connect(struct sstar_links *links, const struct link_introduction *theirs);
/* How long a peer may be silent before the NIC gives it up. */
double rc_detection_s(const struct sstar_link *link);

/* ---- link_nic.c ----------------------------------------------------------------------------- */

int rc_progress(struct sstar_links *links);
/* When nothing comes: look at the clock, and tell what credit is owed if it is long since. */
int rc_quiet(struct sstar_links *links);
/* Wait until the NIC has taken and finished all that was posted. */
int rc_drain(struct sstar_link *link);

/* ---- link_error.c --------------------------------------------------------------------------- */

/* The connection broke: the world fails with this text, unless the control plane says within 200 ms
 * that a rank died. Returns the world's failure. */
int link_peer_lost(const struct sstar_link *link, const char *text);
/* Which link goes to `rank`: device, port, both GIDs; or where none does the device. May be empty.
 */
void links_describe(const struct sstar_world *world, int rank, char *text, size_t size);
/* The world fails because of this completion. Returns the code. */
int rc_completion_failed(struct sstar_links *links, const struct ibv_wc *wc);

#endif
