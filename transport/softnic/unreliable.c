/* SPDX-License-Identifier: MIT */
/*
 * Transports without answers: unreliable connections and datagrams. What the far side cannot take
 * is lost, and the sender is told success all the same; what is wrong at the sender's side stops
 * its send queue (SQE) and leaves its receives alone (InfiniBand specification, 9.8.2, 9.8.3,
 * 10.3.1).
 */
#include "transport/softnic/capture.h"
#include "transport/softnic/late.h"
#include <string.h>

enum { TRIES_AT_THE_DOOR = 1000, LOOK_AGAIN_NS = 50000 };

enum door { DOOR_OPEN, NOBODY_THERE, DOOR_TAKEN };

static bool receives(uint32_t state)
{
    return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD ||
           state == IBV_QPS_SQE;
}

/* Is the queue pair we stand before the one we mean, and does it listen to us? `inbound` held. */
static bool listens(struct qp *qp, const struct send_wqe *wqe)
{
    const struct shared_qp *far = qp->remote;
    uint32_t qpn = qp->datagram ? nic_route_qpn(wqe->raddr) : qp->shared->dest_qpn;
    if (!receives(atomic_load_explicit(&far->state, memory_order_acquire)) ||
        atomic_load_explicit(&far->qpn, memory_order_relaxed) != qpn ||
        far->type != qp->shared->type)
        return false;
    if (!qp->datagram)
        return far->dest_qpn == qp->ex.qp_base.qp_num && far->dest_ip == qp->ctx->ip;
    /* With its highest bit set the Q_Key is the queue pair's own (specification, 10.2.5). */
    uint32_t qkey = (wqe->rkey & 0x80000000u) != 0 ? qp->shared->qkey : wqe->rkey;
    if (far->qkey == qkey)
        return true;
    atomic_fetch_add(&qp->peer->meeting->qkey_violations, 1);
    return false;
}

/* Enter the far side. DOOR_OPEN: `inbound` is ours. */
static enum door enter(struct qp *qp, const struct send_wqe *wqe, unsigned most_tries)
{
    if (qp->datagram) {
        if (!nic_destination_find(qp, wqe))
            return NOBODY_THERE;
    } else {
        if (qp->remote == NULL && !nic_remote_find(qp))
            return NOBODY_THERE;
        if (nic_peer_dead_maybe(qp->peer))
            return NOBODY_THERE;
    }
    unsigned turn = 0, tries = 0;
    while (__builtin_expect(!nic_inbound_try(qp->remote, qp->ctx->token), 0)) {
        if (++tries > most_tries)
            return DOOR_TAKEN;
        spin_wait(&turn);
    }
    if (listens(qp, wqe))
        return DOOR_OPEN;
    nic_inbound_unlock(qp->remote);
    return NOBODY_THERE;
}

static void give_recv(struct qp *qp, struct work *work)
{
    work->recv->due_ns = work->due_ns;
    nic_recv_complete(qp->ctx, qp->peer, qp->peer->member, qp->remote, work->recv);
}

/* Its receive names memory that it must not write: that is the far side's own fault. */
static void fail_receiver(struct qp *qp, struct work *work)
{
    give_recv(qp, work);
    nic_remote_break(qp, IBV_EVENT_QP_FATAL);
}

/* A datagram with its header in front, in one piece. */
static void wrap(struct qp *qp, struct work *work, uint8_t *packet)
{
    uint32_t bytes = (uint32_t)work->length;
    nic_grh_fill(packet, work->wqe->raddr, qp->ctx->ip, bytes);
    for (unsigned i = 0, at = GRH_BYTES; i < work->n_local; i++) {
        if (work->local[i].iov_len > 0) /* of nothing there may be no address */
            memcpy(packet + at, work->local[i].iov_base, work->local[i].iov_len);
        at += (unsigned)work->local[i].iov_len;
    }
    work->local[0] = (struct iovec){packet, GRH_BYTES + bytes};
    work->n_local = 1;
    work->length = GRH_BYTES + bytes;
}

static void mark_datagram(const struct qp *qp, struct work *work)
{
    uint32_t flags = nic_route_flags(work->wqe->raddr);
    if ((flags & ROUTE_GRH) != 0)
        work->recv->wc_flags |= IBV_WC_GRH;
    work->recv->sl = (uint8_t)(flags >> ROUTE_SL_SHIFT);
    work->recv->slid = nic_lid_of_ip(qp->ctx->ip);
}

/* What became of a message. */
enum fate { LOST, TAKEN, LATE };

/* Now, or later where a port is like that. */
static enum fate place(struct qp *qp, struct work *work)
{
    if (((qp->ctx->order | qp->peer->order) & PORT_LATE) != 0 && nic_late_launch(qp, work))
        return LATE;
    return nic_put(qp, work) == 0 ? TAKEN : LOST;
}

static enum fate deliver_message(struct qp *qp, struct work *work)
{
    work->recv = nic_next_recv(qp);
    if (work->recv == NULL)
        return LOST;
    nic_fill_recv(qp, work, false);
    if (qp->datagram)
        mark_datagram(qp, work);
    enum ibv_wc_status status = nic_scatter(qp, work);
    if (status == IBV_WC_REM_INV_REQ_ERR)
        return LOST; /* too long: it is dropped, the receive stays */
    if (status != IBV_WC_SUCCESS) {
        if (!qp->datagram)
            nic_late_force(qp, true);
        fail_receiver(qp, work);
        return LOST;
    }
    enum fate fate = qp->datagram ? nic_put(qp, work) == 0 ? TAKEN : LOST : place(qp, work);
    if (fate == TAKEN)
        give_recv(qp, work);
    return fate;
}

static enum fate deliver_datagram(struct qp *qp, struct work *work)
{
    uint8_t packet[GRH_BYTES + DATAGRAM_MAX];
    wrap(qp, work, packet);
    return deliver_message(qp, work);
}

static enum fate deliver_write(struct qp *qp, struct work *work)
{
    const struct send_wqe *wqe = work->wqe;
    if ((qp->remote->access & IBV_ACCESS_REMOTE_WRITE) == 0 ||
        (work->length > 0 && !nic_remote_resolve(qp, wqe->rkey, wqe->raddr, work->length,
                                                 IBV_ACCESS_REMOTE_WRITE, &work->target[0])))
        return LOST;
    work->n_target = work->length > 0;
    if (wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        work->recv = nic_next_recv(qp);
        if (work->recv == NULL)
            return LOST;
        nic_fill_recv(qp, work, true);
    }
    enum fate fate = place(qp, work);
    if (fate == TAKEN && work->recv != NULL)
        give_recv(qp, work);
    return fate;
}

static enum fate deliver(struct qp *qp, struct work *work)
{
    bool send = work->wqe->opcode == IBV_WR_SEND || work->wqe->opcode == IBV_WR_SEND_WITH_IMM;
    if (!qp->datagram)
        return send ? deliver_message(qp, work) : deliver_write(qp, work);
    if (((qp->ctx->order | qp->peer->order) & PORT_LATE) != 0 && nic_late_launch(qp, work))
        return LATE;
    return deliver_datagram(qp, work);
}

/* `length`: without a header. */
static void count(const struct qp *qp, enum fate fate, uint64_t length)
{
    if (fate == LOST)
        nic_count(&qp->shared->sent.drops, 1);
    else
        nic_count(&qp->remote->came.bytes, length);
}

bool nic_datagram_arrive(struct qp *qp, struct work *work)
{
    uint64_t length = work->length;
    struct peer *peer = qp->peer;
    struct shared_qp *remote = qp->remote;
    enum door door = enter(qp, work->wqe, 1);
    if (door != DOOR_TAKEN)
        count(qp, door == DOOR_OPEN ? deliver_datagram(qp, work) : LOST, length);
    if (door == DOOR_OPEN)
        nic_inbound_unlock(qp->remote);
    qp->peer = peer; /* of the datagram that is being sent, if one is */
    if (door == DOOR_TAKEN)
        return false; /* by whom stands in qp->remote */
    qp->remote = remote;
    return true;
}

/* False: the wire is taken for now. */
static bool take_wire(struct qp *qp, struct work *work)
{
    work->due_ns = qp->last_due_ns;
    if (!nic_shaped(qp->ctx->meeting) && (qp->peer == NULL || !nic_shaped(qp->peer->meeting)))
        return true;
    uint64_t wake;
    if (!nic_wire_enter(qp, false, work->length, &work->due_ns, &wake)) {
        qp->reason = WAIT_WIRE;
        atomic_store(&qp->wake_ns, wake);
        return false;
    }
    if (work->due_ns < qp->last_due_ns)
        work->due_ns = qp->last_due_ns;
    qp->last_due_ns = work->due_ns;
    return true;
}

static void fail(struct qp *qp, const struct send_wqe *wqe, enum ibv_wc_status status)
{
    nic_send_complete(qp, wqe, status, 0, qp->last_due_ns);
    nic_sq_done(qp, wqe);
    nic_qp_to_sqe(qp);
}

/* One request. False: it must wait. */
static bool run(struct qp *qp, struct send_wqe *wqe)
{
    struct work work;
    work.wqe = wqe;
    work.recv = NULL;
    work.length = 0;
    work.n_local = work.n_target = 0;
    enum ibv_wc_status status = nic_gather_local(qp, &work);
    if (status == IBV_WC_SUCCESS && qp->datagram && work.length > DATAGRAM_MAX)
        status = IBV_WC_LOC_LEN_ERR;
    if (__builtin_expect(status != IBV_WC_SUCCESS, 0)) {
        fail(qp, wqe, status);
        return true;
    }
    uint64_t length = work.length;
    late_relieve(qp);
    enum door door = enter(qp, wqe, TRIES_AT_THE_DOOR);
    if (__builtin_expect(door == DOOR_TAKEN, 0)) {
        qp->reason = WAIT_REMOTE;
        atomic_store(&qp->wake_ns, nic_now(qp->ctx) + LOOK_AGAIN_NS);
        return false;
    }
    bool entered = take_wire(qp, &work);
    if (entered && qp->ctx->capture != NULL)
        nic_capture_request(qp, &work, false);
    enum fate fate = entered && door == DOOR_OPEN ? deliver(qp, &work) : LOST;
    if (entered)
        nic_count(&qp->shared->sent.bytes, length);
    if (entered && !(fate == LATE && qp->datagram)) /* that is counted when it arrives */
        count(qp, fate, length);
    if (door == DOOR_OPEN)
        nic_inbound_unlock(qp->remote);
    if (entered)
        nic_request_done(qp, wqe, length, work.due_ns);
    return entered;
}

bool nic_execute_unreliable(struct qp *qp, uint32_t limit)
{
    bool left = false;
    while (!left && qp->sq_executed != qp->sq_posted) {
        uint32_t state = atomic_load_explicit(&qp->shared->state, memory_order_relaxed);
        if (__builtin_expect(state != IBV_QPS_RTS, 0)) {
            if (state == IBV_QPS_ERR || state == IBV_QPS_SQE)
                nic_flush_send(qp);
            break; /* drained: going back to RTS rings again */
        }
        left = limit-- == 0 || !run(qp, nic_sq_next(qp));
    }
    if (qp->ctx->capture != NULL)
        nic_capture_flush(qp->ctx);
    if (qp->datagram) { /* each goes where it says */
        qp->peer = NULL;
        qp->remote = NULL;
    }
    return left;
}
