/* SPDX-License-Identifier: MIT */
/* The inside of softnic: objects of one process, and what its files offer to each other. */
#ifndef SOFTNIC_NIC_H
#define SOFTNIC_NIC_H

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

/* lock.c */
void spin_wait(unsigned *turn);
void spin_lock_slow(struct spin *spin);
static inline bool spin_trylock(struct spin *spin)
{
    return atomic_exchange_explicit(&spin->held, 1, memory_order_acquire) == 0;
}
static inline void spin_lock(struct spin *spin)
{
    if (__builtin_expect(!spin_trylock(spin), 0))
        spin_lock_slow(spin);
}
static inline void spin_unlock(struct spin *spin)
{
    atomic_store_explicit(&spin->held, 0, memory_order_release);
}
/* A wait for a lock that another process may hold. */
struct patience {
    unsigned turn;
    uint64_t since_ns, looked_ns; /* 0: not looked yet */
    uint64_t limit_ns;            /* shorter than anybody may hold a lock; 0: that long */
};
/* A turn of it. False: whoever holds the lock was killed, or has been stopped in the middle, and
 * will be waited for no longer. */
bool nic_wait_turn(struct patience *p, uint64_t holder, uint64_t self);
bool nic_inbound_try(struct shared_qp *sqp, uint64_t self);
void nic_inbound_lock(struct ctx *ctx, struct shared_qp *sqp);
static inline void nic_inbound_unlock(struct shared_qp *sqp)
{
    atomic_store_explicit(&sqp->inbound, 0, memory_order_release);
}
/* Until whoever is writing through `sqp` now has finished, or is dead. */
void nic_inbound_drain(struct shared_qp *sqp, uint64_t self);
void nic_atomic_lock(struct member *member, uint64_t self);
void nic_atomic_unlock(struct member *member);
void nic_word_lock(_Atomic uint64_t *word, uint64_t self);
static inline void nic_word_unlock(_Atomic uint64_t *word)
{
    atomic_store_explicit(word, 0, memory_order_release);
}

/* process.c */
uint64_t nic_start_time(pid_t pid); /* 0: no such process */
bool nic_alive(pid_t pid, uint64_t start_time);
/* A process as one word, for locks that must be broken if their holder is killed. */
uint64_t nic_token(pid_t pid, uint64_t start_time);
bool nic_token_alive(uint64_t token);
bool nic_no_fd_left(int err);
/* Whether the process may have a file so long (ulimit -f): beyond that the kernel does not refuse,
 * it sends SIGXFSZ. Memory that is shared counts as a file. */
bool nic_file_fits(uint64_t bytes);
uint64_t nic_tick(void); /* cheap, of no known unit */
int nic_refuse_child(struct ctx *ctx);

/* error.c */
void nic_error(struct ctx *ctx, const char *format, ...) __attribute__((format(printf, 2, 3)));
void nic_say(struct ctx *ctx, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* device.c */
struct ibv_device *nic_device_create(const char *port_name);
void nic_fill_ops(struct verbs_context *verbs);

/* query.c */
int nic_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                        struct ibv_device_attr_ex *attr, size_t size);

/* port_name.c */
bool nic_port_name_good(const char *name);
uint32_t nic_ip_of_name(const char *name);
void nic_port_path(uint32_t ip, char *path, size_t size);
uint32_t nic_ip_of_gid(const union ibv_gid *gid); /* 0: none of ours */
void nic_gid_of_ip(uint32_t ip, int index, union ibv_gid *gid);
int nic_gid_index(const union ibv_gid *gid); /* the index at which a GID of that form stands */
uint16_t nic_lid_of_ip(uint32_t ip);
uint32_t nic_ip_of_lid(uint16_t lid); /* of a port that is there; 0: none */

/* ah.c */
int nic_path_check(const struct ibv_ah_attr *attr, uint32_t *ip);
/* What stands in front of a datagram: `grh` has 40 bytes. */
void nic_grh_fill(uint8_t *grh, uint64_t route, uint32_t from_ip, uint32_t bytes);

/* meeting.c */
struct stat;
uint64_t nic_pid_namespace(void);
/* Both try so often, 50 us apart. */
int nic_meeting_lock(int fd, int how, unsigned tries); /* LOCK_EX or LOCK_SH */
int nic_meeting_open(const char *path, int flags, int how, unsigned tries, int *fd);
void nic_port_unlock(int fd); /* and close it */
struct meeting *nic_meeting_map(int fd);
bool nic_meeting_readable(const struct meeting *meeting, const struct stat *st);
/* Hold the file for as long as the port is open; does anybody else? */
void nic_meeting_hold(int fd);
bool nic_meeting_held(int fd);
bool nic_meeting_left(int fd, const struct stat *st); /* by the dead: it is to go */
/* Forget members that were killed. Number of those that live. */
unsigned nic_meeting_clear_dead(struct meeting *meeting);
void nic_meeting_clear_others(const char *own_path);
/* Map that of another port, locked for looking at its members. */
int nic_port_visit(uint32_t ip, struct meeting **meeting, int *fd);

/* port.c */
int nic_port_join(struct ctx *ctx, const struct softnic_attr *attr);
/* Others find us there no more; the file goes with the last of us. */
void nic_port_unlist(struct ctx *ctx);
void nic_port_leave(struct ctx *ctx);

/* member.c */
int nic_member_create(struct ctx *ctx);
void nic_member_destroy(struct ctx *ctx);

/* own.c */
int nic_own_create(struct ctx *ctx);
void nic_own_joined(struct ctx *ctx);
void nic_own_left(struct ctx *ctx); /* nobody finds it any more */
struct own *nic_own_get(uint32_t ip, uint32_t slot);
void nic_own_put(struct own *own);

/* What others may change meanwhile is read once. */
#define nic_once(place) (*(const volatile __typeof__(place) *)&(place))
/* An entry of a ring of receives in a member's memory, NULL if it does not lie there. */
struct recv_wqe *nic_ring_entry(const struct member *member, uint64_t offset, uint32_t mask,
                                uint32_t stride, uint32_t at);
static inline struct shared_cq *nic_recv_cq(struct member *member, const struct shared_qp *sqp)
{
    return &member->cq[nic_once(sqp->recv_cq) % CQS_MAX];
}
/* Room in our memory that peers can reach; zeroed. 0: no memory. */
uint64_t nic_heap_alloc(struct ctx *ctx, uint64_t bytes);
void nic_heap_free(struct ctx *ctx, uint64_t offset, uint64_t bytes);
int nic_member_commit(struct ctx *ctx, const void *at, size_t bytes);

/* peer.c */
struct peer *nic_peer_get(struct ctx *ctx, uint32_t ip, uint32_t slot);
void nic_peer_put(struct ctx *ctx, struct peer *peer);
bool nic_peer_dead(struct peer *peer);       /* asks the kernel */
bool nic_peer_dead_maybe(struct peer *peer); /* asks it seldom */
int nic_peer_fd(struct peer *peer, int fd, int flags);
/* A peer's region mapped here. Its base is NULL if it cannot be. For the request at hand of `qp`.
 */
const struct mapped_mr *nic_peer_map_slow(struct peer *peer, uint32_t key, const struct qp *qp);
/* Wake the owner of a pipe's writing end; nothing else is ever written to. */
void nic_pipe_write(int fd, const void *bytes, size_t size);

/* The region of `key` in a member's table, if it covers the range and grants all of `want`; else
 * NULL. */
static inline const struct shared_mr *nic_mr_find(const struct shared_mr *table, uint32_t key,
                                                  uint64_t addr, uint64_t length, uint32_t want,
                                                  uint32_t pd)
{
    uint32_t index = key >> 8;
    if (__builtin_expect(index == 0 || index >= MRS_MAX, 0))
        return NULL;
    const struct shared_mr *smr = &table[index];
    if (__builtin_expect(atomic_load_explicit(&smr->key, memory_order_acquire) != key ||
                             smr->pd != pd || (smr->access & want) != want || addr < smr->addr ||
                             addr - smr->addr > smr->length ||
                             length > smr->length - (addr - smr->addr),
                         0))
        return NULL;
    return smr;
}

/* backing.c */
struct fd_share;
int nic_backing_find(struct ctx *ctx, const void *addr, size_t length, bool write,
                     struct fd_share **share, uint64_t *offset);
int nic_share_fd(const struct fd_share *share);
void nic_share_put(struct ctx *ctx, struct fd_share *share);
void nic_share_close_all(struct ctx *ctx);

/* pages.c; ctx->lock held. Exchange the whole pages of a range for shared ones of the same content,
 * if that is asked for and safe: a descriptor of their file, or -1. And back, once no region covers
 * them. */
int nic_pages_share(struct ctx *ctx, void *addr, size_t length);
void nic_pages_unshare(struct ctx *ctx, const void *addr, size_t length);

/* send_ring.c; sq_lock held in all of them */
struct send_wqe *nic_sq_begin(struct qp *qp);
void nic_sq_end(struct qp *qp, struct send_wqe *wqe, uint32_t payload);
/* The one at a place of the ring, and the place after it. */
static inline struct send_wqe *nic_sq_at(const struct qp *qp, uint32_t place)
{
    uint32_t block = place + qp->sq_stride > qp->sq_blocks ? 0 : place;
    return (struct send_wqe *)(qp->sq + (size_t)block * WQE_BLOCK);
}
static inline uint32_t nic_sq_after(const struct qp *qp, uint32_t place, const struct send_wqe *wqe)
{
    return (place + qp->sq_stride > qp->sq_blocks ? 0 : place) + wqe->blocks;
}
static inline struct send_wqe *nic_sq_next(struct qp *qp) /* the one to execute */
{
    return nic_sq_at(qp, qp->sq_head);
}
static inline void nic_sq_done(struct qp *qp, const struct send_wqe *wqe)
{
    qp->sq_head = nic_sq_after(qp, qp->sq_head, wqe);
    qp->sq_executed++;
}
void nic_doorbell(struct qp *qp); /* releases sq_lock */
static inline bool nic_may_send(const struct qp *qp)
{
    uint32_t state = atomic_load_explicit(&qp->shared->state, memory_order_relaxed);
    return state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE ||
           state == IBV_QPS_ERR;
}
/* wr_api.c */
/* Does this very thread hold sq_lock, since it builds a list of requests? */
static inline bool nic_builds_here(const struct qp *qp)
{
    return atomic_load_explicit(&qp->builder, memory_order_relaxed) == (uintptr_t)pthread_self();
}
void nic_wr_api(struct qp *qp);

/* execute.c: reliable connections */
/* Work the send queue off, at most `limit` requests; sq_lock held. True: something waits. */
bool nic_execute(struct qp *qp, uint32_t limit);
void nic_flush_send(struct qp *qp);
/* unreliable.c: unreliable connections and datagrams, in the same way */
bool nic_execute_unreliable(struct qp *qp, uint32_t limit);
static inline bool nic_is_unanswered(const struct qp *qp)
{
    return qp->execute == nic_execute_unreliable;
}
/* datagram.c */
int nic_destinations_create(struct qp *qp);
void nic_destinations_destroy(struct qp *qp); /* sq_lock not held */
/* To whom the request goes; false: to nobody. */
bool nic_destination_find(struct qp *qp, const struct send_wqe *wqe);

/* How a datagram's work request says where it goes, in `raddr`; `rkey` is the Q_Key. */
enum { ROUTE_GRH = 1, ROUTE_IPV4 = 2, ROUTE_SL_SHIFT = 4 };
static inline uint64_t nic_route(uint32_t ip, uint32_t flags, uint32_t qpn)
{
    return (uint64_t)ip << 32 | flags << 24 | (qpn & 0xffffff);
}
static inline uint32_t nic_route_ip(uint64_t route)
{
    return (uint32_t)(route >> 32);
}
static inline uint32_t nic_route_flags(uint64_t route)
{
    return (uint32_t)route >> 24;
}
static inline uint32_t nic_route_qpn(uint64_t route)
{
    return (uint32_t)route & 0xffffff;
}

/* One work request, taken apart. */
struct work {
    struct send_wqe *wqe;
    struct recv_wqe *recv; /* the receive that it uses up */
    uint64_t length, due_ns;
    unsigned n_local, n_target;
    bool broken; /* the receiving side goes to ERR, with `event` */
    enum ibv_event_type event;
    struct iovec local[MAX_SGE];
    struct target target[MAX_SGE];
};
/* unreliable.c: a datagram comes late: take it to its destination; sq_lock held. False: that is
 * busy. */
bool nic_datagram_arrive(struct qp *qp, struct work *work);
/* request.c: what must hold before a byte moves. */
enum ibv_wc_status nic_request_check(struct qp *qp, struct work *work, bool *rnr);
/* Its parts, for transports without answers. */
enum ibv_wc_status nic_gather_local(struct qp *qp, struct work *work);
struct recv_wqe *nic_next_recv(struct qp *qp);
void nic_fill_recv(const struct qp *qp, struct work *work, bool write);
enum ibv_wc_status nic_scatter(struct qp *qp, struct work *work);
/* small.c: carry out the next requests, at most `limit`, if they are small writes. How many were.
 */
unsigned nic_run_small(struct qp *qp, uint32_t limit);
/* transfer.c */
/* Into how many pieces a target falls for the kernel; `ordered`: the last word comes last. */
unsigned nic_remote_pieces(const struct target *target, bool ordered, struct iovec *pieces);
/* 0 or the errno of process_vm_*. */
int nic_put(struct qp *qp, struct work *work);
int nic_get(struct qp *qp, struct work *work);
int nic_atomic(struct qp *qp, struct work *work);
void nic_copy_ordered(uint8_t *to, const uint8_t *from, size_t bytes);
/* remote.c */
bool nic_remote_find(struct qp *qp);
bool nic_remote_ready(struct qp *qp);
bool nic_remote_resolve(struct qp *qp, uint32_t key, uint64_t addr, uint64_t length, uint32_t want,
                        struct target *target);
/* The peer's queue pair goes to ERR; `inbound` held. */
void nic_remote_break(struct qp *qp, enum ibv_event_type event);

/* receive.c */
static inline struct recv_wqe *nic_recv_at(const struct qp *qp, uint32_t index)
{
    return (struct recv_wqe *)(qp->rq + (size_t)(index & qp->rq_mask) * qp->rq_stride);
}
/* A completion for the next receive of `sqp`, whose fields up to `owner` are filled; `inbound`
 * held. `peer`: whose it is, NULL if ours. */
void nic_recv_complete(struct ctx *ctx, struct peer *peer, struct member *member,
                       struct shared_qp *sqp, struct recv_wqe *wqe);
struct recv_id nic_recv_id(const struct ibv_recv_wr *wr, uint32_t count);
void nic_flush_recv(struct qp *qp); /* rq_lock held */

/* srq.c */
/* Move the next receive of the far side's shared queue into its ring; NULL: there is none. */
struct recv_wqe *nic_srq_take(struct qp *qp);
/* The queue pair goes or is reset, and takes with it what it took. Both CQs locked. */
void nic_srq_forget(struct qp *qp);

/* cq.c */
enum { CQE_WITHOUT_END = INT32_MAX }; /* its user said that it cannot overrun */
void nic_cq_mark(struct cq_bits *bits, uint32_t slot);
/* `sq_count`: this request's number, as sq_executed is after it. */
void nic_send_complete_at(struct qp *qp, const struct send_wqe *wqe, enum ibv_wc_status status,
                          uint32_t byte_len, uint64_t due_ns, uint32_t sq_count);
static inline void nic_send_complete(struct qp *qp, const struct send_wqe *wqe,
                                     enum ibv_wc_status status, uint32_t byte_len, uint64_t due_ns)
{
    nic_send_complete_at(qp, wqe, status, byte_len, due_ns, qp->sq_executed + 1);
}
/* Count a completion; true if the queue is overrun. */
bool nic_cq_count(struct shared_cq *scq);
/* Locks of the queue pair's completion queues, in order. */
void nic_cq_lock_both(struct qp *qp);
void nic_cq_unlock_both(struct qp *qp);
void nic_cq_forget(struct qp *qp); /* both locked */
/* Due time of the earliest completion not shown yet, 0 if one is to be seen, UINT64_MAX if none. */
uint64_t nic_cq_due(struct cq *cq, bool solicited);

/* poll.c: softnic_poll_cq; *stamp_ns: when the last of them was completed, where the CQ knows */
int nic_poll(struct cq *cq, int num_entries, struct ibv_wc *wc, uint64_t *stamp_ns);

/* counters.c */
static inline void nic_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}
/* What goes over; `inbound` held. */
static inline void nic_count_bytes(struct qp *qp, uint64_t bytes)
{
    nic_count(&qp->shared->sent.bytes, bytes);
    nic_count(&qp->remote->came.bytes, bytes);
}
/* The request is carried out. */
static inline void nic_request_done(struct qp *qp, const struct send_wqe *wqe, uint64_t length,
                                    uint64_t due_ns)
{
    if ((wqe->flags & IBV_SEND_SIGNALED) != 0 || qp->sig_all)
        nic_send_complete(qp, wqe, IBV_WC_SUCCESS, (uint32_t)length, due_ns);
    nic_sq_done(qp, wqe);
    qp->reason = WAIT_NONE;
}
/* The queue pair goes, its counts stay with the member; ctx->lock and `inbound` held. */
void nic_counters_keep_qp(struct member *member, struct shared_qp *sqp);
/* The member goes; flock held. */
void nic_counters_keep_member(struct meeting *meeting, struct member *member);

/* channel.c */
/* 0 or an errno; ctx->lock held, as for the next. */
int nic_channel_add_cq(struct channel *ch, struct cq *cq);
void nic_channel_remove_cq(struct channel *ch, struct cq *cq);
void nic_channel_rearm(struct ctx *ctx);

/* wake.c */
/* A completion that is due then, or at once (0), is in its ring. `peer`: whose queue it is, NULL if
 * ours. */
void nic_cq_wake(struct ctx *ctx, struct peer *peer, struct shared_cq *scq, bool solicited,
                 uint64_t due_ns);
/* Set a timer; 0: never. */
bool nic_timer_at(int fd, uint64_t at_ns);

/* async.c */
int nic_async_create(struct ctx *ctx);
void nic_async_raise(struct ctx *ctx, struct peer *peer, enum ibv_event_type type, uint32_t number);

/* progress.c */
void nic_wait_add(struct qp *qp); /* sq_lock held */
void nic_wait_remove(struct qp *qp);
void nic_progress(struct ctx *ctx);
uint64_t nic_next_wake(struct ctx *ctx);
static inline uint64_t nic_now(struct ctx *ctx)
{
    return ctx->now_ns(ctx->clock);
}

/* The time of a completion that comes now, on a queue that keeps it. */
static inline uint64_t nic_stamp(struct ctx *ctx, uint64_t due_ns)
{
    uint64_t now = nic_now(ctx);
    return due_ns > now ? due_ns : now;
}

/* late.c */
void nic_late_init(struct ctx *ctx);
void nic_late_close(struct ctx *ctx);
/* Let the message's bytes land later; sq_lock and `inbound` held. False: it must be done now. */
bool nic_late_launch(struct qp *qp, const struct work *work);
void nic_late_progress(struct ctx *ctx);
uint64_t nic_late_next(struct ctx *ctx);
/* sq_lock held in all of these: everything lands now; everything is flushed; is forgotten. */
void nic_late_force(struct qp *qp, bool inbound_held);
void nic_late_flush(struct qp *qp);
void nic_late_finish(struct qp *qp); /* before a queue pair goes: what was sent without answers */
void nic_late_drop(struct qp *qp);

/* order.c */
int nic_order_env(struct softnic_order *order, bool *given);
void nic_order_store(struct meeting *meeting, const struct softnic_order *order);
void nic_order_load(const struct meeting *meeting, struct softnic_order *order);

/* wire.c */
int nic_wire_check(const struct softnic_wire *wire);
int nic_wire_env(struct softnic_wire *wire, bool *given);
void nic_wire_store(struct meeting *meeting, const struct softnic_wire *wire);
void nic_wire_load(const struct meeting *meeting, struct softnic_wire *wire);
static inline bool nic_shaped(const struct meeting *meeting)
{
    return (atomic_load_explicit(&meeting->mode, memory_order_relaxed) & PORT_SHAPED) != 0;
}
/* As fast as memory, and in order. */
static inline bool nic_plain(const struct meeting *meeting)
{
    return atomic_load_explicit(&meeting->mode, memory_order_relaxed) == 0;
}
/* When a request may enter again; in the past: now. */
uint64_t nic_wire_opens(struct ctx *ctx);
/* Take the wire for a request of `bytes`. True: *due_ns is set. False: look again at *wake_ns. */
bool nic_wire_enter(struct qp *qp, bool round_trip, uint64_t bytes, uint64_t *due_ns,
                    uint64_t *wake_ns);

/* qp_state.c */
/* sq_lock held, `inbound` of no side */
void nic_qp_to_error(struct qp *qp);
/* A request of a transport without answers failed: only the send queue stops. */
void nic_qp_to_sqe(struct qp *qp);
/* False: another thread is at its send queue, come again. */
bool nic_qp_flush(struct qp *qp);

#endif
