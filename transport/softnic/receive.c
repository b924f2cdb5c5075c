/* SPDX-License-Identifier: MIT */
/* The receive queue: in memory that the peer maps, since the peer uses it up. */
#include "transport/softnic/nic.h"
#include <errno.h>

/* What its completion will say, whatever stands in the ring by then. */
struct recv_id nic_recv_id(const struct ibv_recv_wr *wr, uint32_t count)
{
    struct recv_id id = {.wr_id = wr->wr_id, .number = count + 1};
    for (int i = 0; i < wr->num_sge; i++)
        id.length += wr->sg_list[i].length;
    return id;
}

static int build(struct qp *qp, const struct ibv_recv_wr *wr)
{
    uint32_t polled = atomic_load_explicit(&qp->rq_polled, memory_order_acquire);
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_recv_sge)
        return EINVAL;
    if (qp->rq_posted - polled >= qp->rq_max)
        return qp->srq != NULL ? EINVAL : ENOMEM;
    struct recv_wqe *wqe = nic_recv_at(qp, qp->rq_posted);
    qp->rq_ids[qp->rq_posted & qp->rq_mask] = nic_recv_id(wr, qp->rq_posted);
    wqe->num_sge = (uint32_t)wr->num_sge;
    for (int i = 0; i < wr->num_sge; i++)
        wqe->sge[i] =
            (struct shared_sge){wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
    qp->rq_posted++;
    return 0;
}

int softnic_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    struct qp *qp = to_qp(base);
    int err = 0;
    if (nic_after_fork(qp->ctx)) {
        *bad_wr = wr;
        return nic_refuse_child(qp->ctx);
    }
    spin_lock(&qp->rq_lock);
    if (atomic_load_explicit(&qp->shared->state, memory_order_relaxed) == IBV_QPS_RESET)
        err = EINVAL;
    for (; err == 0 && wr != NULL; wr = wr->next) {
        err = build(qp, wr);
        if (err != 0)
            break;
    }
    if (err != 0)
        *bad_wr = wr;
    /* The doorbell: a peer that waits for a receive looks at this. */
    atomic_store_explicit(&qp->shared->rq_posted, qp->rq_posted, memory_order_release);
    if (__builtin_expect(
            atomic_load_explicit(&qp->shared->state, memory_order_acquire) == IBV_QPS_ERR, 0))
        nic_flush_recv(qp);
    spin_unlock(&qp->rq_lock);
    return err;
}

void nic_recv_complete(struct ctx *ctx, struct peer *peer, struct member *member,
                       struct shared_qp *sqp, struct recv_wqe *wqe)
{
    struct shared_cq *scq = nic_recv_cq(member, sqp);
    uint32_t qpn = atomic_load_explicit(&sqp->qpn, memory_order_relaxed);
    uint32_t at = atomic_load_explicit(&sqp->rq_consumed, memory_order_relaxed);
    if (__builtin_expect(nic_cq_count(scq), 0)) {
        /* The queue is lost, and so is this queue pair. */
        if (atomic_exchange(&scq->overrun, 1) == 0)
            nic_async_raise(ctx, peer, IBV_EVENT_CQ_ERR, (uint32_t)(scq - member->cq));
        atomic_store(&sqp->rq_consumed, at + 1);
        if (atomic_exchange(&sqp->state, IBV_QPS_ERR) != IBV_QPS_ERR)
            nic_async_raise(ctx, peer, IBV_EVENT_QP_FATAL, qpn);
        return;
    }
    if (__builtin_expect(scq->stamped, 0))
        wqe->due_ns = nic_stamp(ctx, wqe->due_ns);
    nic_count(&sqp->came.cqes, 1);
    uint8_t lap = (at & (nic_once(sqp->rq_mask) + 1)) == 0;
    bool wake = wqe->status != IBV_WC_SUCCESS || wqe->solicited != 0;
    /* In this order: who is killed in between leaves a completion, which flushing finds. */
    atomic_store_explicit(&wqe->owner, lap, memory_order_release);
    atomic_store_explicit(&sqp->rq_consumed, at + 1, memory_order_release);
    nic_cq_mark(&scq->bits, qpn % QPS_MAX);
    nic_cq_wake(ctx, peer, scq, wake, wqe->due_ns);
}

/* With a shared receive queue: this queue pair will use up no more of it. */
static void tell_last_wqe(struct qp *qp)
{
    if (qp->srq != NULL && atomic_exchange(&qp->shared->last_wqe, 1) == 0)
        nic_async_raise(qp->ctx, NULL, IBV_EVENT_QP_LAST_WQE_REACHED, qp->ex.qp_base.qp_num);
}

/* The queue pair is in ERR: what was posted and not used comes back. */
void nic_flush_recv(struct qp *qp)
{
    struct shared_qp *sqp = qp->shared;
    /* What comes from a shared queue is posted, one at a time, by whoever sends. */
    if (qp->srq != NULL)
        qp->rq_posted = atomic_load(&sqp->rq_posted);
    if (atomic_load(&sqp->rq_consumed) == qp->rq_posted) {
        tell_last_wqe(qp);
        return;
    }
    nic_inbound_lock(qp->ctx, sqp);
    if (qp->rq_posted - atomic_load(&sqp->rq_consumed) > qp->rq_mask + 1)
        atomic_store(&sqp->rq_consumed, qp->rq_posted - qp->rq_mask - 1); /* spoilt */
    for (uint32_t at; (at = atomic_load(&sqp->rq_consumed)) != qp->rq_posted;) {
        struct recv_wqe *wqe = nic_recv_at(qp, at);
        uint8_t lap = (at & (qp->rq_mask + 1)) == 0;
        if (atomic_load(&wqe->owner) == lap) {
            atomic_store(&sqp->rq_consumed, at + 1);
            continue;
        }
        wqe->due_ns = 0;
        wqe->byte_len = 0;
        wqe->imm = 0;
        wqe->src_qp = 0;
        wqe->status = IBV_WC_WR_FLUSH_ERR;
        wqe->opcode = 0;
        wqe->wc_flags = 0;
        wqe->slid = 0;
        wqe->sl = wqe->solicited = 0;
        nic_recv_complete(qp->ctx, NULL, qp->ctx->member, sqp, wqe);
    }
    nic_inbound_unlock(sqp);
    tell_last_wqe(qp);
}
