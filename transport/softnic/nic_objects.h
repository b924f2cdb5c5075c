/* SPDX-License-Identifier: MIT */
/* The objects of one process that softnic has, and its limits. */
#ifndef SOFTNIC_NIC_OBJECTS_H
#define SOFTNIC_NIC_OBJECTS_H

#include "transport/softnic/shared.h"
#include "transport/softnic/softnic.h"
#include <pthread.h>
#include <stddef.h>
#include <sys/uio.h>

enum {
    MAX_SGE = 32,
    MAX_INLINE = 1024,
    MAX_PD = 1 << 16,
    MAX_AH = 1 << 16,
    MAX_SRQ_WR = 16384,
    GRH_BYTES = 40,
    MAX_QP = QPS_MAX - 2, /* a port's first member leaves numbers 0 and 1 out */
    DATAGRAM_MAX = 4096,  /* bytes of one datagram: the MTU of a port */
    MAX_QP_WR = 16384,
    MAX_RD_ATOMIC = 128,
    WQE_BLOCK = 64,
};
/* The longest entry of a ring of receives; none begins nearer to the end of a member's memory. */
#define RECV_BYTES_MAX (sizeof(struct recv_wqe) + MAX_SGE * sizeof(struct shared_sge))
#define MAX_CQE        (1 << 20)
/* No queue is that long, an hour: a time so far ahead was written by somebody else. */
#define SPOILT_NS      3600000000000ull
#define MAX_MSG        0x80000000u
#define MEMBER_BYTES   (1ull << 30) /* of address space; pages are there only where they are used */

/* Held for a few instructions, or for one batch of work requests. */
struct spin {
    _Atomic uint32_t held;
};

/* A peer's memory region as we have it mapped. */
struct mapped_mr {
    _Atomic uint32_t key;
    uint32_t failed;       /* cannot be mapped: reach it by process_vm_* */
    uint8_t *base;         /* of the first byte that is shared */
    uint64_t addr, length; /* of what is shared, as they were when it was mapped */
    void *map;
    size_t map_size;
};

/* A mapping that may still be in use by who is at work now. */
struct grave {
    struct grave *next;
    void *map;
    size_t map_size;
    const struct qp *qp; /* whose request it was buried in, and which */
    uint32_t request;
};

/* What the contexts of one process know of each other. What stands in shared memory any process of
 * the user may have written; where it would be an address of ours, this is believed instead. */
struct own {
    struct own *next;
    struct member *member;
    _Atomic uint32_t refs; /* users of the mapping */
    pid_t pid;
    uint32_t ip, slot;
    int async_wfd;
    struct shared_mr *mr; /* [MRS_MAX], of which the member holds the copy that peers see */
};

/* A receive of ours, by what completes it: shared memory says only which one. */
struct recv_id {
    uint64_t wr_id, length;
    uint32_t number; /* its count, in an SRQ its place, + 1; 0: none */
};

/* A member of some port, reached from this context. */
struct peer {
    struct peer *next;
    struct ctx *ctx;
    uint32_t ip, slot, generation;
    uint32_t refs; /* under ctx->peers_lock */
    pid_t pid;
    uint64_t start_time;
    int pidfd;
    bool same_process;
    bool forbidden; /* process_vm_* was refused once, and we said so */
    _Atomic uint32_t dead;
    _Atomic uint64_t asked_tick; /* when we last asked whether it is alive */
    uint32_t order;              /* PORT_ORDER of its port's mode */
    struct meeting *meeting;
    bool own_meeting; /* meeting is the context's, not to be unmapped here */
    struct member *member;
    struct own *own;               /* in our process */
    const struct shared_mr *table; /* of its regions: the owner's, or what it shows */
    pthread_mutex_t lock;          /* of what follows */
    struct grave *graves;
    struct mapped_mr *mr;
    uint32_t mr_end; /* no index from here on was ever mapped */
    int wake_fd;
    uint32_t wake_id;
};

struct heap_block {
    struct heap_block *next;
    uint64_t offset, size;
};

/* Messages whose bytes have not all come into memory. */
struct late {
    pthread_mutex_t lock;
    struct late_op *first, *last; /* as they were posted */
    _Atomic uint32_t count;
    uint64_t random;
    _Atomic uint32_t looks;
    pthread_cond_t come;
    pthread_t thread;
    bool running, stop;
};

struct capture;

struct ctx {
    struct ibv_device *device;
    struct capture *capture; /* NULL: none */
    struct meeting *meeting;
    int meeting_fd;
    char path[64];
    char port_name[PORT_NAME_MAX + 1];
    uint32_t ip, slot;
    pid_t pid;
    uint64_t start_time, token;
    struct member *member;
    struct own *own;
    int member_fd;
    ino_t member_ino;    /* of its file, should a program close what it does not know */
    uint64_t member_end; /* bytes in use, under `lock` */
    struct heap_block *heap;
    uint64_t (*now_ns)(void *clock);
    void *clock;
    bool clock_is_handed;
    uint32_t order; /* PORT_ORDER of our port's mode */
    struct late late;
    const uint8_t *alive; /* a page that is wiped in a child: 0 after fork */
    int async_wfd;
    uint32_t qp_count; /* under `lock` */
    uint32_t next_qp, next_pd, next_wake;
    char error[512];
    pthread_mutex_t lock; /* of creating and destroying */
    pthread_mutex_t peers_lock;
    struct peer *peers;
    struct spin error_lock;
    /* Queue pairs whose send queue could not be worked off at the doorbell. */
    struct spin waiting_lock;
    _Atomic uint32_t waiting;
    _Atomic uint32_t wire_blocks; /* the first of them waits for the wire, and for nothing else */
    struct qp *first_waiting, *last_waiting;
    struct qp *_Atomic qps[QPS_MAX];
    struct cq *cqs[CQS_MAX];
    struct srq *srqs[SRQS_MAX];
    _Atomic uint32_t pd_count, ah_count;
    _Atomic uint32_t cq_end;  /* no index from here on was ever used */
    struct fd_share *shares;  /* descriptors held for peers to map, under `lock` */
    uint32_t next_mr, mr_end; /* no index from mr_end on was ever used */
    bool share_pages;         /* SOFTNIC_SHARE_PAGES: see pages.c */
    struct channel *channels; /* under channels_lock */
    pthread_mutex_t channels_lock;
    _Atomic uint32_t channel_count;
    struct verbs_context verbs; /* its last member is the ibv_context */
};

struct pd {
    struct ibv_pd base;
    uint32_t number;
    _Atomic uint32_t users;
};

struct ah {
    struct ibv_ah base;
    uint64_t route; /* as a datagram's work request carries it */
};

struct srq {
    struct ibv_srq base;
    struct ctx *ctx;
    struct shared_srq *shared;
    uint32_t index;
    uint32_t users; /* queue pairs, under ctx->lock */
    uint32_t events_given;
    uint8_t *ring;
    struct recv_id *ids;
    uint32_t mask, stride; /* as in the shared part */
    uint64_t bytes;
    uint32_t max_wr, max_sge;
    struct spin lock; /* of posting */
    uint32_t posted;
    _Atomic uint32_t polled; /* by polling completion queues, or lost with a queue pair */
};

struct mr {
    struct ibv_mr base;
    uint32_t index;
    int access;
    struct fd_share *share;
};

struct channel {
    struct ibv_comp_channel base; /* base.fd is the epoll */
    struct channel *next;
    int read_fd, write_fd, timer_fd;
    _Atomic bool timer_is_set; /* or has expired */
    uint32_t wake_id;
    uint32_t next_cq; /* where to look first */
};

struct cq {
    union { /* of which the one begins as the other */
        struct ibv_cq base;
        struct ibv_cq_ex ex;
    };
    struct ctx *ctx;
    struct shared_cq *shared;
    uint32_t index;
    int timer_fd;   /* of its channel, for what is due later; -1: none */
    uint32_t users; /* queue pairs, under ctx->lock */
    uint32_t events_given, async_given;
    uint32_t consumed;
    uint32_t turn;            /* where the last poll stopped looking */
    _Atomic uint32_t in_vain; /* polls since one found something */
    bool recv_first;
    struct spin lock;    /* of polling */
    struct spin ex_lock; /* from start_poll to end_poll */
    struct ibv_wc wc;    /* where start_poll and next_poll stand, */
    uint64_t stamp_ns;   /* and when that was completed */
    struct cq_bits bits; /* send completions */
};

/* A work request in the send queue: 32 bytes of head, then segments or inline data. */
struct send_wqe {
    uint64_t wr_id;
    uint64_t raddr;
    uint32_t rkey, imm;
    uint32_t length;       /* of inline data, or 0 */
    uint8_t opcode, flags; /* enum ibv_wr_opcode, ibv_send_flags */
    uint8_t num_sge, blocks;
    union {
        struct {
            uint64_t operand[2]; /* atomics: compare and swap, or add */
            struct shared_sge atomic_sge[1];
        };
        struct shared_sge sge[2];
        uint8_t data[32];
    };
};

/* The segments go on beyond the first block, so they are not an array of the structure. */
static inline struct shared_sge *nic_wqe_sge(struct send_wqe *wqe)
{
    size_t at = wqe->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP ? offsetof(struct send_wqe, atomic_sge)
                                                         : offsetof(struct send_wqe, sge);
    return (struct shared_sge *)((uint8_t *)wqe + at);
}

struct send_cqe {
    uint64_t wr_id;
    uint64_t due_ns;
    uint32_t byte_len;
    uint32_t sq_count; /* this request and all before it are done */
    uint8_t status, opcode;
    _Atomic uint8_t owner;
};

enum wait_state { NOT_WAITING, WAITING_LISTED, WAITING_RUNNING };
enum wait_reason { WAIT_NONE, WAIT_REMOTE, WAIT_RNR, WAIT_WIRE };

struct qp {
    struct ibv_qp_ex ex;
    struct ctx *ctx;
    struct shared_qp *shared;
    uint32_t slot;
    bool has_ex, sig_all;
    /* How the send queue is worked off; what it takes. */
    bool (*execute)(struct qp *qp, uint32_t limit);
    bool datagram;
    uint8_t first_opcode, opcode_span;
    struct srq *srq;
    struct spin attr_lock; /* of attr, for those who ask; changed under sq_lock too */
    struct ibv_qp_cap cap;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    uint32_t events_given;

    /* Send queue, under sq_lock. Counts run on and wrap. */
    struct spin sq_lock;
    uint8_t *sq;
    uint32_t sq_blocks, sq_stride; /* of the ring; of the largest work request */
    uint32_t sq_tail, sq_head;     /* in blocks: where to build, what to execute next */
    uint32_t sq_posted, sq_executed;
    uint32_t sq_counted;     /* of the posted ones, in the counters */
    const bool *time_wanted; /* softnic_time_device; NULL: never */
    uint64_t *device_ticks;
    _Atomic uint32_t sq_retired; /* by polling */
    bool flushed;
    struct peer *peer;
    struct shared_qp *remote;
    uint64_t last_due_ns;
    uint32_t wire_psn, wire_msn;            /* packets and messages in a capture, so far */
    struct late_op *late_first, *late_last; /* messages under way late, under ctx->late.lock */
    uint32_t late_recvs;                    /* those of them that use a receive */
    struct send_cqe *cqes;
    uint32_t cqe_mask, cqe_tail;
    uint32_t cqe_head; /* under the lock of the send CQ */
    /* ibv_wr_*: what to go back to, and what went wrong. */
    uint32_t wr_tail, wr_posted;
    int wr_error;
    _Atomic uintptr_t builder; /* the thread between ibv_wr_start and ibv_wr_complete; 0: none */
    struct send_wqe *wr;
    uint32_t wr_payload;

    struct spin rq_lock;
    uint8_t *rq;
    struct recv_id *rq_ids;
    uint32_t rq_mask, rq_stride; /* as in the shared part, which others may have written */
    uint64_t rq_bytes;
    uint32_t rq_max, rq_posted;
    _Atomic uint32_t rq_polled; /* by polling the receive CQ */

    struct destination *destinations; /* of datagrams, under sq_lock */

    /* Waiting, under ctx->waiting_lock; the rest under sq_lock. */
    _Atomic uint32_t wait_state; /* enum wait_state */
    struct qp *next_waiting;
    enum wait_reason reason;
    uint64_t deadline_ns; /* of remote or receiver-not-ready */
    uint32_t tries;       /* since that wait began */
    _Atomic uint64_t wake_ns;
};

/* Where a message's bytes are on the far side. */
struct target {
    uint64_t addr; /* in the process there */
    uint64_t iova; /* as the request names it */
    uint64_t length;
    uint8_t *direct; /* NULL: reach it by process_vm_* */
    uint32_t key;
    bool relaxed, unshared;
};

static inline struct ctx *to_ctx(struct ibv_context *context)
{
    return (struct ctx *)((char *)context - offsetof(struct ctx, verbs.context));
}
static inline struct ibv_context *ibv_of(struct ctx *ctx)
{
    return &ctx->verbs.context;
}
static inline struct qp *to_qp(struct ibv_qp *qp)
{
    return (struct qp *)qp;
}
static inline struct cq *to_cq(struct ibv_cq *cq)
{
    return (struct cq *)cq;
}
static inline bool nic_after_fork(const struct ctx *ctx)
{
    return __builtin_expect(*(const volatile uint8_t *)ctx->alive == 0, 0);
}

#endif
