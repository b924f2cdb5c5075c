/* SPDX-License-Identifier: MIT */
/*
 * What processes see of each other: the meeting file of a port, and the memory of a member.
 *
 * All of it is little-endian, has magic, version and size at its head, and is written by one side
 * at a time: a field belongs to its owner, or is atomic, or is guarded by the lock named beside it.
 * Any process of the same user can write it, so nothing of it is believed: what is an index, a
 * length or an offset is read once and checked, and addresses are kept in private memory (struct
 * own, recv_id, mapped_mr).
 */
#ifndef SOFTNIC_SHARED_H
#define SOFTNIC_SHARED_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#define MEETING_MAGIC  0x6d63696e74666f73ull /* "softnicm" */
#define MEMBER_MAGIC   0x7663696e74666f73ull /* "softnicv" */
#define SHARED_VERSION 4u

enum {
    CACHE_LINE = 64,
    MEMBERS_MAX = 256, /* contexts on one port: the upper 8 bits of a queue pair number */
    QP_SLOT_BITS = 12, /* the lower 16 are a slot and 4 bits that change when a slot is reused */
    QPS_MAX = 1 << QP_SLOT_BITS,
    CQS_MAX = 1024,
    SRQS_MAX = 512,
    MRS_MAX = 1 << 15,
    PORT_NAME_MAX = 63,
};

/* What makes a port take the long way. All but the first are settled when it is made. */
enum port_mode {
    PORT_SHAPED = 1,
    PORT_RELAXED = 2,
    PORT_ON_TIME = 4,
    PORT_KEEP_QPS = 8,
    PORT_LATE = PORT_RELAXED | PORT_ON_TIME,
    PORT_ORDER = PORT_LATE | PORT_KEEP_QPS,
};

/* What a queue pair has sent: written by whoever holds its sq_lock, in the owner's process.
 * Counters have one writer each, who loads, adds and stores; others only read. */
struct qp_sent {
    alignas(CACHE_LINE) _Atomic uint64_t wqes;
    _Atomic uint64_t doorbells, bytes;
    _Atomic uint64_t cqes;
    _Atomic uint64_t rnr;     /* times that the receiver was not ready */
    _Atomic uint64_t retries; /* tries after the first, whatever was in the way */
    _Atomic uint64_t errors;  /* requests that failed, without those that were flushed */
    _Atomic uint64_t drops;   /* messages that nobody took, on transports that do not say so */
};

/* What came through it: under `inbound`. */
struct qp_came {
    _Atomic uint64_t cqes, bytes;
};

struct meeting_member {
    _Atomic uint32_t live; /* this and the rest: written under flock */
    uint32_t generation;
    int32_t pid;
    int32_t fd; /* of the member's memory, in that process */
    uint64_t start_time;
    uint8_t pad[40];
};

/* In every version magic and version stand here, and who has the port open holds a read lock of the
 * first byte. */
struct meeting {
    uint64_t magic; /* written last */
    uint32_t version;
    uint32_t size;
    char name[PORT_NAME_MAX + 1];
    uint64_t pid_namespace;
    uint32_t generation; /* of the last member that came */
    /* The shape of the wire; doubles as bits, so that peers can read them while they change. */
    alignas(CACHE_LINE) _Atomic uint32_t mode; /* of enum port_mode; 0: as fast as memory */
    _Atomic uint64_t alpha_us, gap_us, beta_gbps;
    _Atomic uint64_t order_seed;
    alignas(CACHE_LINE) _Atomic uint64_t tx_busy_ns;
    alignas(CACHE_LINE) _Atomic uint64_t rx_busy_ns;
    alignas(CACHE_LINE) _Atomic uint32_t qkey_violations;
    /* Of members that have left: under flock. */
    struct qp_sent sent;
    struct qp_came came;
    alignas(CACHE_LINE) struct meeting_member member[MEMBERS_MAX];
};

/* A receive work request and, once it is used, its completion: one cache line for one segment. */
struct recv_wqe {
    uint64_t wr_id;
    uint64_t due_ns; /* from here to `owner`: written by whoever completes it */
    uint32_t byte_len;
    uint32_t imm; /* as it stood in the work request: network order */
    uint32_t src_qp;
    uint8_t status, opcode, wc_flags;
    _Atomic uint8_t
        owner; /* lap of the ring at which this is a completion, its lowest bit flipped */
    uint32_t num_sge;
    uint16_t slid; /* of a datagram; 0 on a connection */
    uint8_t sl, solicited;
    struct shared_sge {
        uint64_t addr;
        uint32_t length, lkey;
    } sge[];
};

struct shared_qp {
    /* Written by the owner, holding `inbound`; state and qpn also by a peer that breaks the QP. */
    alignas(CACHE_LINE) _Atomic uint32_t state;
    _Atomic uint32_t qpn; /* 0: nobody */
    uint32_t dest_qpn, dest_ip;
    uint32_t access, pd;
    uint32_t recv_cq;
    uint32_t rq_mask, rq_stride; /* entries - 1; bytes */
    uint8_t min_rnr_timer, max_dest_rd_atomic;
    _Atomic uint8_t established;
    uint64_t rq_offset;       /* of the ring in the member's memory */
    uint32_t qkey;            /* of datagrams */
    uint16_t srq;             /* index + 1 of the shared receive queue; 0: none */
    uint8_t type;             /* enum ibv_qp_type */
    _Atomic uint8_t last_wqe; /* with a shared receive queue: its end was told */
    alignas(CACHE_LINE) _Atomic uint32_t rq_posted; /* doorbell record: written by the owner */
    /* The lock of the receiving side: token of the process that writes there, 0 if none. */
    alignas(CACHE_LINE) _Atomic uint64_t inbound;
    _Atomic uint32_t inbound_count; /* of times it was taken */
    _Atomic uint32_t rq_consumed;   /* under `inbound` */
    struct qp_came came;
    struct qp_sent sent;
};

/* A shared receive queue. Its entries are `recv_wqe`s, which are copied into the ring of the queue
 * pair that takes one. */
struct shared_srq {
    alignas(CACHE_LINE) _Atomic uint64_t lock; /* of taking: token of the holder */
    _Atomic uint32_t consumed;                 /* under `lock` */
    _Atomic uint32_t limit;                    /* fewer than this: an event, once. 0: not armed */
    uint32_t mask, stride, pd;
    uint64_t offset;
    alignas(CACHE_LINE) _Atomic uint32_t posted; /* doorbell record: written by the owner */
};

/* Which queue pairs have completions for a completion queue: one bit each, and a bit per word. */
struct cq_bits {
    alignas(CACHE_LINE) _Atomic uint64_t summary;
    alignas(CACHE_LINE) _Atomic uint64_t word[QPS_MAX / 64];
};

enum cq_armed { CQ_DISARMED, CQ_ARMED_SOLICITED, CQ_ARMED_ANY };

struct shared_cq {
    alignas(CACHE_LINE) _Atomic uint32_t armed;
    _Atomic uint32_t event; /* something happened while armed, not yet told */
    _Atomic uint32_t overrun;
    uint32_t stamped; /* completions carry the time at which they came */
    _Atomic uint32_t cqe;
    int32_t wake_fd;        /* of the channel's pipe in the owner's process, -1 without a channel */
    uint32_t wake_id;       /* never used twice by one member */
    int32_t timer_fd;       /* for what is due later, -1 without one */
    _Atomic uint32_t early; /* its owner wants to know of that at once */
    alignas(CACHE_LINE) _Atomic uint32_t produced;
    alignas(CACHE_LINE) _Atomic uint32_t consumed; /* written by the owner */
    struct cq_bits bits;
};

enum mr_backing { MR_PRIVATE, MR_SHARED };

struct shared_mr {
    _Atomic uint32_t key;  /* 0: invalid */
    _Atomic uint32_t busy; /* taken, or being taken back: the mapping of `key` must stay */
    uint32_t pd, access;
    uint64_t addr, length; /* as its users name it */
    uint64_t shift;        /* what to add for the owner's own address */
    uint64_t file_offset;  /* of addr + head in the file of `fd`, for MR_SHARED */
    int32_t fd;
    uint32_t backing;
    uint32_t generation; /* the lower byte of the next key */
    uint16_t head, tail; /* bytes at both ends, of pages that are not shared */
};

struct member {
    uint64_t magic;
    uint32_t version, pad;
    uint64_t size;
    int32_t pid;
    uint32_t generation, ip, slot;
    uint64_t start_time;
    _Atomic uint32_t closed;
    int32_t async_wfd; /* the pipe of asynchronous events */
    /* Atomics on memory that is not mapped shared are one at a time: token of the holder. */
    alignas(CACHE_LINE) _Atomic uint64_t atomic_lock;
    /* Of queue pairs that were destroyed: under the owner's ctx->lock. */
    struct qp_sent sent;
    struct qp_came came;
    struct shared_qp qp[QPS_MAX];
    struct shared_cq cq[CQS_MAX];
    struct shared_srq srq[SRQS_MAX];
    struct shared_mr mr[MRS_MAX];
};

/* What travels through the pipe of asynchronous events. */
struct async_record {
    uint32_t type;   /* enum ibv_event_type */
    uint32_t number; /* queue pair number, or index of the completion or receive queue */
};

#endif
