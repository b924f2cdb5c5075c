/* SPDX-License-Identifier: MIT */
/* The engine: takes work requests off a send queue, in order, and carries them out. */
#include "transport/softnic/capture.h"
#include <errno.h>
#include <string.h>

enum { BATCH_REQUESTS = 64, BATCH_BYTES = 1 << 20, TRIES_AT_THE_DOOR = 1000 };
enum { LOOK_AGAIN_NS = 1000000 };

enum outcome { DONE, MUST_WAIT, FAILED, LATE };

/* Receiver-not-ready timer values in microseconds (InfiniBand specification, table 45). */
static const uint32_t rnr_us[32] = {655360, 10,    20,    30,     40,     60,     80,     120,
                                    160,    240,   320,   480,    640,    960,    1280,   1920,
                                    2560,   3840,  5120,  7680,   10240,  15360,  20480,  30720,
                                    40960,  61440, 81920, 122880, 163840, 245760, 327680, 491520};

static bool receives(uint32_t state)
{
    return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD ||
           state == IBV_QPS_SQE;
}

/* Connected to us, and ready? `inbound` held. */
bool nic_remote_ready(struct qp *qp)
{
    struct shared_qp *far = qp->remote;
    uint32_t state = atomic_load_explicit(&far->state, memory_order_acquire);
    if (__builtin_expect(!receives(state) ||
                             atomic_load_explicit(&far->qpn, memory_order_relaxed) !=
                                 qp->shared->dest_qpn ||
                             far->dest_qpn != qp->ex.qp_base.qp_num || far->dest_ip != qp->ctx->ip,
                         0))
        return false;
    if (__builtin_expect(state == IBV_QPS_RTR, 0) && atomic_exchange(&far->established, 1) == 0)
        nic_async_raise(qp->ctx, qp->peer, IBV_EVENT_COMM_EST, qp->shared->dest_qpn);
    return true;
}

/* Enter the far side. True: `inbound` is ours. */
static bool open_session(struct qp *qp)
{
    struct ctx *ctx = qp->ctx;
    if (__builtin_expect(qp->remote == NULL, 0)) {
        /* To look for a peer takes system calls, so not at every poll. */
        if (qp->reason == WAIT_REMOTE && nic_now(ctx) < atomic_load(&qp->wake_ns))
            return false;
        if (!nic_remote_find(qp))
            return false;
    }
    if (__builtin_expect(nic_peer_dead_maybe(qp->peer), 0))
        return false;
    unsigned turn = 0, tries = 0;
    while (__builtin_expect(!nic_inbound_try(qp->remote, ctx->token), 0)) {
        if (++tries > TRIES_AT_THE_DOOR)
            return false;
        spin_wait(&turn);
    }
    if (__builtin_expect(nic_remote_ready(qp), 1))
        return true;
    nic_inbound_unlock(qp->remote);
    return false;
}

/* The head of the queue waits; for how long at most was decided when it began. Time alone does not
 * condemn: we try only when somebody polls, and a process that gets no processor for half a second
 * has not tried as often as a NIC would have. */
static enum outcome wait_or_fail(struct qp *qp, enum wait_reason reason, uint32_t rnr_timer,
                                 enum ibv_wc_status *status)
{
    bool rnr = reason == WAIT_RNR;
    uint64_t now = nic_now(qp->ctx), interval = 4096ull << qp->attr.timeout;
    uint64_t step = qp->attr.timeout != 0 && interval < LOOK_AGAIN_NS ? interval : LOOK_AGAIN_NS;
    if (rnr)
        step = rnr_us[rnr_timer & 31] * 1000ull;
    bool anew = qp->reason != reason;
    if (anew && rnr)
        nic_count(&qp->shared->sent.rnr, 1);
    if (anew) {
        qp->reason = reason;
        qp->tries = 0;
        if (rnr)
            qp->deadline_ns =
                qp->attr.rnr_retry == 7 ? UINT64_MAX : now + step * qp->attr.rnr_retry;
        else
            qp->deadline_ns =
                qp->attr.timeout == 0 ? UINT64_MAX : now + interval * (qp->attr.retry_cnt + 1u);
    }
    /* A time that is set stands until it has come, or polling would put it off for ever. */
    bool tried = anew || now >= atomic_load(&qp->wake_ns), late = now >= qp->deadline_ns;
    qp->tries += tried;
    if (tried && !anew)
        nic_count(&qp->shared->sent.retries, 1);
    if (late && qp->tries > (rnr ? qp->attr.rnr_retry : qp->attr.retry_cnt)) {
        *status = rnr ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR;
        return FAILED;
    }
    if (tried)
        atomic_store(&qp->wake_ns,
                     late || now + step < qp->deadline_ns ? now + step : qp->deadline_ns);
    return MUST_WAIT;
}

static void say_forbidden(struct qp *qp)
{
    nic_say(qp->ctx,
            "the kernel forbids process_vm_readv/writev on process %d: allow it (sysctl "
            "kernel.yama.ptrace_scope=0, or --cap-add SYS_PTRACE for a container), or register "
            "memory that is mapped shared from a memfd or /dev/shm",
            (int)qp->peer->pid);
}

/* What an errno of process_vm_* means. */
static enum outcome moved(struct qp *qp, int err, enum ibv_wc_status *status)
{
    if (err == 0)
        return DONE;
    if (err == ESRCH) {
        atomic_store(&qp->peer->dead, 1);
        return wait_or_fail(qp, WAIT_REMOTE, 0, status);
    }
    if (err == EPERM || err == ENOSYS)
        say_forbidden(qp);
    *status = IBV_WC_REM_OP_ERR;
    return FAILED;
}

static enum outcome move_bytes(struct qp *qp, struct work *work, enum ibv_wc_status *status)
{
    int err;
    if (work->wqe->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP)
        err = nic_atomic(qp, work);
    else if (work->wqe->opcode == IBV_WR_RDMA_READ)
        err = nic_get(qp, work);
    else
        err = nic_put(qp, work);
    return moved(qp, err, status);
}

/* LATE: its bytes are on their way, and so is its completion. */
static enum outcome take_wire(struct qp *qp, struct work *work)
{
    work->due_ns = qp->last_due_ns; /* 0, unless the wire was shaped a moment ago */
    if (__builtin_expect(nic_plain(qp->ctx->meeting) && nic_plain(qp->peer->meeting), 1))
        return DONE;
    bool late = ((qp->ctx->order | qp->peer->order) & PORT_LATE) != 0;
    if (!nic_shaped(qp->ctx->meeting) && !nic_shaped(qp->peer->meeting))
        return late && nic_late_launch(qp, work) ? LATE : DONE;
    uint64_t wake;
    if (!nic_wire_enter(qp, work->wqe->opcode >= IBV_WR_RDMA_READ, work->length, &work->due_ns,
                        &wake)) {
        qp->reason = WAIT_WIRE;
        atomic_store(&qp->wake_ns, wake);
        return MUST_WAIT;
    }
    if (work->due_ns < qp->last_due_ns)
        work->due_ns = qp->last_due_ns;
    qp->last_due_ns = work->due_ns;
    return late && nic_late_launch(qp, work) ? LATE : DONE;
}

static void give_recv(struct qp *qp, struct work *work)
{
    work->recv->due_ns = work->due_ns;
    nic_recv_complete(qp->ctx, qp->peer, qp->peer->member, qp->remote, work->recv);
}

/* What the far side says to a request that it does not take. */
static uint8_t syndrome_of(enum ibv_wc_status status)
{
    return status == IBV_WC_REM_ACCESS_ERR ? SYNDROME_ACCESS
           : status == IBV_WC_REM_OP_ERR   ? SYNDROME_OPERATION
                                           : SYNDROME_INVALID;
}

/* One request. `inbound` of the far side held. */
static enum outcome run(struct qp *qp, struct send_wqe *wqe, uint64_t *length,
                        enum ibv_wc_status *status)
{
    struct work work;
    bool rnr;
    work.wqe = wqe;
    work.recv = NULL;
    work.length = 0;
    work.n_local = work.n_target = 0;
    work.broken = false;
    *status = nic_request_check(qp, &work, &rnr);
    if (__builtin_expect(*status != IBV_WC_SUCCESS, 0)) {
        nic_late_force(qp, true);
        if (work.recv != NULL) {
            work.due_ns = qp->last_due_ns;
            give_recv(qp, &work);
        }
        if (work.broken && qp->ctx->capture != NULL)
            nic_capture_refusal(qp, &work, syndrome_of(*status));
        if (work.broken)
            nic_remote_break(qp, work.event);
        return FAILED;
    }
    if (rnr && qp->ctx->capture != NULL && qp->reason != WAIT_RNR)
        nic_capture_refusal(qp, &work, SYNDROME_RNR | (qp->remote->min_rnr_timer & 31));
    if (rnr)
        return wait_or_fail(qp, WAIT_RNR, qp->remote->min_rnr_timer, status);
    enum outcome outcome = take_wire(qp, &work);
    if (outcome == DONE)
        outcome = move_bytes(qp, &work, status);
    *length = work.length;
    if (__builtin_expect(qp->ctx->capture != NULL, 0) && (outcome == DONE || outcome == LATE))
        nic_capture_request(qp, &work, outcome == LATE);
    if (outcome == DONE || outcome == LATE)
        nic_count_bytes(qp, work.length);
    if (outcome != DONE) {
        if (outcome != LATE)
            return outcome;
        nic_sq_done(qp, wqe);
        qp->reason = WAIT_NONE;
        return DONE;
    }
    if (work.recv != NULL)
        give_recv(qp, &work);
    nic_request_done(qp, wqe, work.length, work.due_ns);
    return DONE;
}

/* As many requests as one stay at the far side allows: it is short, since others may wait. */
static enum outcome run_batch(struct qp *qp, uint32_t *limit, enum ibv_wc_status *status)
{
    uint64_t bytes = 0;
    enum outcome outcome = DONE;
    bool small = nic_plain(qp->ctx->meeting) && qp->ctx->capture == NULL;
    uint32_t n = 0, most = *limit < BATCH_REQUESTS ? *limit : BATCH_REQUESTS;
    while (outcome == DONE && n < most && bytes < BATCH_BYTES && qp->sq_executed != qp->sq_posted) {
        uint64_t length = 0;
        unsigned done = small ? nic_run_small(qp, most - n) : 0;
        if (done == 0) {
            outcome = run(qp, nic_sq_next(qp), &length, status);
            done = 1;
        }
        n += done;
        bytes += length;
        if (!receives(atomic_load_explicit(&qp->remote->state, memory_order_relaxed)))
            break; /* its completion queue is lost */
    }
    *limit -= n;
    return outcome;
}

void nic_flush_send(struct qp *qp)
{
    nic_late_flush(qp);
    while (qp->sq_executed != qp->sq_posted) {
        struct send_wqe *wqe = nic_sq_next(qp);
        nic_send_complete(qp, wqe, IBV_WC_WR_FLUSH_ERR, 0, qp->last_due_ns);
        nic_sq_done(qp, wqe);
    }
    qp->reason = WAIT_NONE;
}

static void fail(struct qp *qp, enum ibv_wc_status status)
{
    nic_late_force(qp, false);
    if (atomic_load(&qp->shared->state) == IBV_QPS_ERR) {
        nic_flush_send(qp); /* one before it failed */
        return;
    }
    struct send_wqe *wqe = nic_sq_next(qp);
    nic_count(&qp->shared->sent.errors, 1);
    nic_send_complete(qp, wqe, status, 0, qp->last_due_ns);
    nic_sq_done(qp, wqe);
    nic_qp_to_error(qp);
}

bool nic_execute(struct qp *qp, uint32_t limit)
{
    while (qp->sq_executed != qp->sq_posted) {
        uint32_t state = atomic_load_explicit(&qp->shared->state, memory_order_relaxed);
        enum ibv_wc_status status = IBV_WC_SUCCESS;
        enum outcome outcome;
        if (__builtin_expect(state != IBV_QPS_RTS, 0)) {
            if (state == IBV_QPS_ERR)
                nic_flush_send(qp);
            return false; /* drained: going back to RTS rings again */
        }
        if (limit == 0)
            return true;
        if (open_session(qp)) {
            outcome = run_batch(qp, &limit, &status);
            nic_inbound_unlock(qp->remote);
            if (__builtin_expect(qp->ctx->capture != NULL, 0))
                nic_capture_flush(qp->ctx);
        } else {
            outcome = wait_or_fail(qp, WAIT_REMOTE, 0, &status);
        }
        if (__builtin_expect(outcome == MUST_WAIT, 0))
            return true;
        if (__builtin_expect(outcome == FAILED, 0))
            fail(qp, status);
    }
    return false;
}
