/* SPDX-License-Identifier: MIT */
/*
 * The verbs conformance suite: what a device must do, said once and run on every device.
 *
 * A check is a function that is given a fresh trial: two opened contexts, a and b, with a
 * protection domain each. It makes what it needs through the pair_ and trial_ calls, which are
 * undone after it, and whatever cannot be undone fails it. It speaks to the device through
 * trial->verbs and ibv_wr_* only. Every wait has a deadline, which is a bound and nothing else.
 *
 * To enrol a device, add a struct device to conformance_device.c.
 */
#ifndef SSTAR_TESTS_CONFORMANCE_H
#define SSTAR_TESTS_CONFORMANCE_H

#include "transport/verbs.h"
#include <errno.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdnoreturn.h>
#include <string.h>
#include <sys/types.h>

enum { DEADLINE_MS = 30000, SILENCE_MS = 2000, MAX_SGE = 16, MAX_TRACKED = 1024, GUARD = 0xa5 };
enum way { BY_POST_SEND, BY_WR_CALLS };

struct trial;

/* A check that this device is known to fail: it must fail, with `how` in its message. Where it
 * fails because nothing ever comes, `silent` shortens the wait. */
struct exception {
    const char *check, *how, *reason;
    bool silent;
};

struct device {
    const char *name;
    const struct verbs *verbs;
    struct ibv_context *(*open)(const struct trial *t, int side); /* side 0 or 1 */
    double alpha_us;                                              /* for softnic: the wire's */
    const char *order;                  /* and when bytes land, if not at once */
    bool one_port;                      /* both sides open the same port */
    bool polled;                        /* work may stand still at a side that nobody polls */
    bool strict;                        /* refuses what libibverbs leaves undefined (no CQ, NULL) */
    const struct exception *exceptions; /* ended by one without a name; NULL: none */
};

struct check {
    const char *name;
    void (*run)(struct trial *t);
    int parameter; /* means what the check says it means */
    int size;      /* one of enum size, where the check has one */
    enum way way;
    bool unopened; /* the check opens the contexts itself, after it forked */
};

struct check_group {
    const char *name;
    const struct check *checks;
    size_t count;
};

#define GROUP(text, array)                                                                         \
    {                                                                                              \
        .name = (text), .checks = (array), .count = sizeof(array) / sizeof(*(array))               \
    }

extern const struct check_group objects_checks, states_checks, transfer_checks, gather_checks,
    keys_checks, atomics_checks, receive_checks, failure_checks, queues_checks, order_checks,
    events_checks, async_checks, memory_checks, process_checks, death_checks, thread_checks,
    calls_checks, transport_checks, unreliable_checks, losses_checks, datagram_checks,
    address_checks, srq_checks, cq_ex_checks, limits_checks, queries_checks, regions_checks;

/* What one end tells the other so that they can meet; it may cross a pipe. */
struct address {
    union ibv_gid gid;
    uint16_t lid;
    uint32_t qpn, psn, rkey;
    uint64_t memory;
};

/* How a side is made. Start from default_options(). */
struct options {
    enum ibv_qp_type type;
    uint32_t qkey;   /* of datagrams */
    uint32_t srq_wr; /* receives come from a shared queue of so many; 0: from the queue pair's */
    uint32_t sends, receives, sge, inline_bytes;
    int cqe;
    int access;    /* of the memory region */
    int qp_access; /* of the queue pair */
    uint8_t rnr_retry, min_rnr_timer, retry_count, timeout, rd_atomic;
    enum ibv_mtu mtu; /* 0: the port's */
    size_t memory_bytes;
    bool signal_all, channel, wr_calls, one_cq;
    void *memory; /* to be used instead of fresh memory */
};

struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_port_attr port;
    int gid_index;
    struct ibv_comp_channel *channel;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;
    struct ibv_ah *ah; /* of datagrams: to the other side */
    struct ibv_qp *qp;
    struct ibv_qp_ex *qpx; /* where options.wr_calls */
    struct ibv_qp_cap cap; /* as granted */
    struct ibv_mr *mr;
    uint8_t *memory, *expected; /* what it holds, what it should hold */
    size_t bytes;
    struct options options;
    struct address address;
};

enum kind { MEMORY, DESCRIPTOR, MAPPING, PD, MR, AH, SRQ, CHANNEL, CQ, QP };
struct tracked {
    enum kind kind;
    void *object;
    size_t bytes;
};

struct trial {
    const struct device *device;
    const struct verbs *verbs;
    const struct check *check;
    pid_t root; /* names the ports of this run */
    int deadline_ms;
    struct side a, b;
    uint64_t random, next_id;
    struct tracked tracked[MAX_TRACKED];
    size_t tracked_count;
    struct peer *peers;
    struct ibv_cq *unacked_cq; /* whose events were taken and not acknowledged: destroying waits */
    unsigned unacked;
    jmp_buf out;
    char message[1024], where[128];
};

/* How a check ends early. */
noreturn void trial_fail(struct trial *t, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
noreturn void trial_skip(struct trial *t, const char *reason);
#define expect(t, condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition))                                                                          \
            trial_fail(t, __FILE__, __LINE__, __VA_ARGS__);                                        \
    } while (0)
#define expect_equal(t, got, wanted, what)                                                         \
    do {                                                                                           \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                          \
        expect(t, got_ == wanted_, "%s: %lld, should be %lld", what, got_, wanted_);               \
    } while (0)

/* Sides and what hangs off them. */
void side_open(struct trial *t, struct side *side, int which);
void side_close(struct trial *t, struct side *side);
struct options default_options(void);
/* Of that transport, and posted to in the check's way. */
struct options transport_options(const struct trial *t, enum ibv_qp_type type);
void side_make(struct trial *t, struct side *side, const struct options *options);
void side_memory(struct trial *t, struct side *side, const struct options *options);
void pair_make(struct trial *t, const struct options *options); /* both sides, not connected */
/* Both sides, connected; NULL: default options, with ibv_wr_* where the check says so. */
void trial_connect(struct trial *t, const struct options *options);

/* Objects that are destroyed after the check, in the right order. */
void trial_track(struct trial *t, enum kind kind, void *object, size_t bytes);
void trial_forget(struct trial *t, const void *object);
void *trial_memory(struct trial *t, size_t bytes);
struct ibv_pd *trial_pd(struct trial *t, struct ibv_context *context);
struct ibv_mr *trial_mr(struct trial *t, struct ibv_pd *pd, void *at, size_t bytes, int access);
struct ibv_comp_channel *trial_channel(struct trial *t, struct ibv_context *context);
struct ibv_cq *trial_cq(struct trial *t, struct side *side, int cqe,
                        struct ibv_comp_channel *channel);
struct ibv_srq *trial_srq(struct trial *t, struct side *side, uint32_t max_wr, uint32_t max_sge);
struct ibv_ah *trial_ah(struct trial *t, struct side *side, const struct address *to,
                        int gid_index);
struct ibv_qp *trial_qp(struct trial *t, struct side *side, const struct options *options);
void destroy_qp(struct trial *t, struct ibv_qp *qp);
void deregister(struct trial *t, struct ibv_mr *mr);
bool trial_undo(struct trial *t); /* everything; false: something refused, t->message says what */

/* Connecting. fill_attr writes what is needed to go to a state and returns the mask. */
int fill_attr(const struct side *side, const struct address *peer, enum ibv_qp_state to,
              struct ibv_qp_attr *attr);
int move(struct trial *t, struct side *side, const struct address *peer, enum ibv_qp_state to);
void bring(struct trial *t, struct side *side, const struct address *peer, enum ibv_qp_state to);
enum ibv_qp_state state_of(struct trial *t, struct ibv_qp *qp);
const char *state_name(enum ibv_qp_state state);
void expect_state(struct trial *t, struct side *side, enum ibv_qp_state state);
uint32_t mtu_bytes(const struct side *side);

/* Work. Offsets count from the start of a side's memory. */
struct work {
    struct ibv_send_wr wr;
    struct ibv_sge sge[MAX_SGE];
};
struct receive {
    struct ibv_recv_wr wr;
    struct ibv_sge sge[MAX_SGE];
};
void work_make(struct trial *t, struct work *w, enum ibv_wr_opcode opcode, const struct side *local,
               size_t at, const struct address *remote, size_t remote_at, uint32_t bytes);
void receive_make(struct trial *t, struct receive *r, const struct side *side, size_t at,
                  uint32_t bytes);
int post_any(struct side *side, const struct verbs *verbs, struct ibv_send_wr *wr, enum way way);
void post(struct trial *t, struct side *side, struct work *w);
void post_receive(struct trial *t, struct side *side, struct receive *r); /* or to its SRQ */
/* A receive of b's. */
void give_receive(struct trial *t, struct receive *r, size_t at, uint32_t bytes);
/* The request goes to this queue pair, by the side's address handle. */
void aim(struct work *w, const struct side *from, const struct side *to);
enum ibv_wc_opcode completion_opcode(enum ibv_wr_opcode opcode);

/* Waiting for completions. */
bool deadline_passed(const struct trial *t, uint64_t *started_ns); /* *started_ns is 0 at first */
struct ibv_wc next_wc(struct trial *t, struct ibv_cq *cq);
struct ibv_wc expect_wc(struct trial *t, struct ibv_cq *cq, uint64_t wr_id,
                        enum ibv_wc_status status);
void expect_sent(struct trial *t, struct side *side, const struct work *w,
                 enum ibv_wc_status status);
struct ibv_wc expect_received(struct trial *t, struct side *side, const struct receive *r,
                              enum ibv_wc_status status);
void expect_quiet(struct trial *t, struct ibv_cq *cq); /* polled a while: nothing */
bool poll_readable(int fd, int timeout_ms);
void set_nonblocking(struct trial *t, int fd);
enum ibv_event_type expect_async(struct trial *t, struct side *side, enum ibv_event_type wanted,
                                 const void *element);

/* Contents: payload is written to memory and expectation, and told as expected elsewhere. */
void payload(struct trial *t, struct side *side, size_t at, size_t bytes);
void expect_copy(const struct side *from, size_t from_at, struct side *to, size_t to_at,
                 size_t bytes);
void expect_memory(struct trial *t, const struct side *side, const char *whose);

/* Another process, which serves one side and obeys. */
enum peer_command {
    PEER_RECEIVE,
    PEER_POLL,
    PEER_WORK,
    PEER_EVENT,
    PEER_ASYNC,
    PEER_SHOW,
    PEER_DEREGISTER,
    PEER_STATE,
    PEER_QUIT
};
struct peer_order {
    enum peer_command command;
    enum ibv_wr_opcode opcode;
    uint64_t at, remote_at, add;
    uint32_t bytes, count;
};
struct peer {
    struct peer *next;
    pid_t pid;
    int fd;
    struct address address;
};
/* Forks one that makes side `which` with these options; before this process opens anything. */
struct peer *peer_start(struct trial *t, int which, const struct options *options, bool memfd);
void peer_connect(struct trial *t, struct peer *peer, const struct address *own);
void peer_tell(struct trial *t, struct peer *peer, const struct peer_order *order);
void peer_answer(struct trial *t, struct peer *peer, void *answer, size_t bytes);
void peer_kill(struct peer *peer);
void peer_quit(struct trial *t, struct peer *peer);
void peers_end(struct trial *t);
void *memfd_memory(struct trial *t, size_t bytes);

/* The same, connected with this process's a; what is known of the peer's side stands in t->b. */
struct peer *peer_meet(struct trial *t, const struct options *options);
void expect_peer_memory(struct trial *t, struct peer *peer);

/* A check with a peer process, whose memory (and ours) is of this kind. */
enum { PEER_PRIVATE, PEER_MEMFD };
#define PROCESS(text, function, operation, kind)                                                   \
    {                                                                                              \
        .name = (text), .run = (function), .unopened = true, .parameter = (operation),             \
        .size = (kind)                                                                             \
    }
#define BOTH_KINDS(text, function)                                                                 \
    PROCESS(text ", private memory", function, 0, PEER_PRIVATE),                                   \
        PROCESS(text ", memfd", function, 0, PEER_MEMFD)

/* What rdma_rxe is known not to do. */
extern const struct exception rxe_exceptions[];

/* The devices of the suite; and the one of this name, enrolled or libibverbs's: 0 or -ENODEV. */
const struct device *device_enrolled(size_t index);
int device_named(const char *name, struct device *device);

#endif
