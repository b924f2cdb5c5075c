/* SPDX-License-Identifier: MIT */
/* What a work request needs before a byte moves: local segments, the remote key, a receive. */
#include "transport/softnic/nic.h"

static bool is_atomic(const struct send_wqe *wqe)
{
    return wqe->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP;
}

enum ibv_wc_status nic_gather_local(struct qp *qp, struct work *work)
{
    struct send_wqe *wqe = work->wqe;
    if ((wqe->flags & IBV_SEND_INLINE) != 0) {
        work->local[0].iov_base = (uint8_t *)wqe + offsetof(struct send_wqe, data);
        work->local[0].iov_len = wqe->length;
        work->n_local = wqe->length > 0;
        work->length = wqe->length;
        return IBV_WC_SUCCESS;
    }
    uint32_t want = wqe->opcode >= IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
    const struct shared_sge *sge = nic_wqe_sge(wqe);
    for (unsigned i = 0; i < wqe->num_sge; i++) {
        if (sge[i].length == 0)
            continue;
        const struct shared_mr *smr = nic_mr_find(qp->ctx->own->mr, sge[i].lkey, sge[i].addr,
                                                  sge[i].length, want, qp->shared->pd);
        if (smr == NULL)
            return IBV_WC_LOC_PROT_ERR;
        work->local[work->n_local].iov_base = (void *)(uintptr_t)(sge[i].addr + smr->shift);
        work->local[work->n_local++].iov_len = sge[i].length;
        work->length += sge[i].length;
    }
    if (work->length > MAX_MSG || (is_atomic(wqe) && work->length != sizeof(uint64_t)))
        return IBV_WC_LOC_LEN_ERR;
    return IBV_WC_SUCCESS;
}

static enum ibv_wc_status breaks(struct work *work, enum ibv_wc_status status,
                                 enum ibv_event_type event)
{
    work->broken = true;
    work->event = event;
    return status;
}

static enum ibv_wc_status check_rdma(struct qp *qp, struct work *work)
{
    const struct send_wqe *wqe = work->wqe;
    uint32_t want = IBV_ACCESS_REMOTE_WRITE;
    if (is_atomic(wqe))
        want = IBV_ACCESS_REMOTE_ATOMIC;
    else if (wqe->opcode == IBV_WR_RDMA_READ)
        want = IBV_ACCESS_REMOTE_READ;
    if (want != IBV_ACCESS_REMOTE_WRITE) {
        if (qp->attr.max_rd_atomic == 0)
            return IBV_WC_LOC_QP_OP_ERR;
        if (qp->remote->max_dest_rd_atomic == 0)
            return breaks(work, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    }
    if ((qp->remote->access & want) == 0)
        return breaks(work, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    if (is_atomic(wqe) && wqe->raddr % sizeof(uint64_t) != 0)
        return breaks(work, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    if (work->length == 0)
        return IBV_WC_SUCCESS; /* an empty message names no memory */
    if (!nic_remote_resolve(qp, wqe->rkey, wqe->raddr, work->length, want, &work->target[0]))
        return breaks(work, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    work->n_target = 1;
    return IBV_WC_SUCCESS;
}

struct recv_wqe *nic_ring_entry(const struct member *member, uint64_t offset, uint32_t mask,
                                uint32_t stride, uint32_t at)
{
    uint64_t from = offset + (uint64_t)(at & mask) * stride;
    if (__builtin_expect(offset > MEMBER_BYTES || stride < sizeof(struct recv_wqe) ||
                             from > MEMBER_BYTES - RECV_BYTES_MAX || from % WQE_BLOCK != 0,
                         0))
        return NULL;
    return (struct recv_wqe *)((uint8_t *)(uintptr_t)member + from);
}

/* The next receive of the far side, NULL if none is posted. */
struct recv_wqe *nic_next_recv(struct qp *qp)
{
    struct shared_qp *sqp = qp->remote;
    uint32_t consumed =
        atomic_load_explicit(&sqp->rq_consumed, memory_order_relaxed) + qp->late_recvs;
    if (atomic_load_explicit(&sqp->rq_posted, memory_order_acquire) == consumed)
        return sqp->srq != 0 ? nic_srq_take(qp) : NULL;
    struct recv_wqe *recv =
        nic_ring_entry(qp->peer->member, nic_once(sqp->rq_offset), nic_once(sqp->rq_mask),
                       nic_once(sqp->rq_stride), consumed);
    if (__builtin_expect(recv == NULL, 0))
        atomic_store(&sqp->state, IBV_QPS_ERR); /* spoilt: it receives nothing any more */
    return recv;
}

enum ibv_wc_status nic_scatter(struct qp *qp, struct work *work)
{
    struct recv_wqe *recv = work->recv;
    uint64_t left = work->length;
    uint32_t num_sge = nic_once(recv->num_sge);
    if (num_sge > MAX_SGE)
        num_sge = 0;
    for (uint32_t i = 0; left > 0 && i < num_sge; i++) {
        const struct shared_sge sge = {nic_once(recv->sge[i].addr), nic_once(recv->sge[i].length),
                                       nic_once(recv->sge[i].lkey)};
        if (sge.length == 0)
            continue;
        uint64_t part = left < sge.length ? left : sge.length;
        if (!nic_remote_resolve(qp, sge.lkey, sge.addr, part, IBV_ACCESS_LOCAL_WRITE,
                                &work->target[work->n_target++])) {
            recv->status = IBV_WC_LOC_PROT_ERR;
            return breaks(work, IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
        }
        left -= part;
    }
    if (left > 0) {
        recv->status = IBV_WC_LOC_LEN_ERR;
        return breaks(work, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    }
    return IBV_WC_SUCCESS;
}

void nic_fill_recv(const struct qp *qp, struct work *work, bool write)
{
    struct recv_wqe *recv = work->recv;
    const struct send_wqe *wqe = work->wqe;
    bool imm = wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wqe->opcode == IBV_WR_SEND_WITH_IMM;
    recv->byte_len = (uint32_t)work->length;
    recv->imm = imm ? wqe->imm : 0;
    recv->src_qp = qp->ex.qp_base.qp_num;
    recv->status = IBV_WC_SUCCESS;
    recv->opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM & ~IBV_WC_RECV : 0;
    recv->wc_flags = imm ? IBV_WC_WITH_IMM : 0;
    recv->slid = 0;
    recv->sl = 0;
    recv->solicited = (wqe->flags & IBV_SEND_SOLICITED) != 0;
}

/* 0, or with what the request fails; *rnr: it must wait for a receive. `inbound` held. */
enum ibv_wc_status nic_request_check(struct qp *qp, struct work *work, bool *rnr)
{
    const struct send_wqe *wqe = work->wqe;
    bool send = wqe->opcode == IBV_WR_SEND || wqe->opcode == IBV_WR_SEND_WITH_IMM;
    *rnr = false;
    enum ibv_wc_status status = nic_gather_local(qp, work);
    if (status == IBV_WC_SUCCESS && !send)
        status = check_rdma(qp, work);
    if (status != IBV_WC_SUCCESS || (!send && wqe->opcode != IBV_WR_RDMA_WRITE_WITH_IMM))
        return status;
    work->recv = nic_next_recv(qp);
    if (work->recv == NULL) {
        *rnr = true;
        return IBV_WC_SUCCESS;
    }
    nic_fill_recv(qp, work, !send);
    return send ? nic_scatter(qp, work) : IBV_WC_SUCCESS;
}
