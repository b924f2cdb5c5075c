/* SPDX-License-Identifier: MIT */
/* ibv_wr_*: work requests built in place, rung with wr_complete. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <string.h>

static struct qp *of(struct ibv_qp_ex *ex)
{
    return (struct qp *)ex;
}

static void wr_start(struct ibv_qp_ex *ex)
{
    struct qp *qp = of(ex);
    spin_lock(&qp->sq_lock);
    atomic_store_explicit(&qp->builder, (uintptr_t)pthread_self(), memory_order_relaxed);
    qp->wr_error = 0;
    qp->wr = NULL;
    if (nic_after_fork(qp->ctx))
        qp->wr_error = nic_refuse_child(qp->ctx);
    else if (!nic_may_send(qp))
        qp->wr_error = EINVAL;
    qp->wr_tail = qp->sq_tail;
    qp->wr_posted = qp->sq_posted;
}

/* The request before is whole once the next one begins, or the list ends. */
static void finish(struct qp *qp)
{
    if (qp->wr == NULL)
        return;
    if (qp->wr_error == 0)
        nic_sq_end(qp, qp->wr, qp->wr_payload);
    qp->wr = NULL;
}

static struct send_wqe *begin(struct qp *qp, enum ibv_wr_opcode opcode, uint32_t rkey,
                              uint64_t raddr)
{
    finish(qp);
    if (qp->wr_error != 0)
        return NULL;
    if (__builtin_expect((uint32_t)opcode - qp->first_opcode > qp->opcode_span, 0)) {
        qp->wr_error = EOPNOTSUPP; /* nothing that this transport carries */
        return NULL;
    }
    struct send_wqe *wqe = nic_sq_begin(qp);
    if (wqe == NULL) {
        qp->wr_error = ENOMEM;
        return NULL;
    }
    wqe->wr_id = qp->ex.wr_id;
    wqe->raddr = raddr;
    wqe->rkey = rkey;
    wqe->imm = 0;
    wqe->length = 0;
    wqe->num_sge = 0;
    wqe->opcode = (uint8_t)opcode;
    wqe->flags = (uint8_t)(qp->ex.wr_flags & ~(unsigned)IBV_SEND_INLINE);
    qp->wr_payload = 0;
    qp->wr = wqe;
    return wqe;
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
    begin(of(ex), IBV_WR_RDMA_WRITE, rkey, raddr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, __be32 imm)
{
    struct send_wqe *wqe = begin(of(ex), IBV_WR_RDMA_WRITE_WITH_IMM, rkey, raddr);
    if (wqe != NULL)
        wqe->imm = imm;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
    begin(of(ex), IBV_WR_RDMA_READ, rkey, raddr);
}

static void wr_send(struct ibv_qp_ex *ex)
{
    begin(of(ex), IBV_WR_SEND, 0, 0);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
    struct send_wqe *wqe = begin(of(ex), IBV_WR_SEND_WITH_IMM, 0, 0);
    if (wqe != NULL)
        wqe->imm = imm;
}

static void begin_atomic(struct qp *qp, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t raddr,
                         uint64_t first, uint64_t second)
{
    struct send_wqe *wqe = begin(qp, opcode, rkey, raddr);
    if (wqe == NULL)
        return;
    wqe->operand[0] = first;
    wqe->operand[1] = second;
    qp->wr_payload = sizeof wqe->operand;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, uint64_t compare,
                              uint64_t swap)
{
    begin_atomic(of(ex), IBV_WR_ATOMIC_CMP_AND_SWP, rkey, raddr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, uint64_t add)
{
    begin_atomic(of(ex), IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, raddr, add, 0);
}

static void refuse(struct qp *qp, int err)
{
    if (qp->wr_error == 0)
        qp->wr_error = err;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t num_sge, const struct ibv_sge *list)
{
    struct qp *qp = of(ex);
    struct send_wqe *wqe = qp->wr;
    if (qp->wr_error != 0 || wqe == NULL)
        return;
    bool atomic = wqe->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP;
    if (num_sge > qp->cap.max_send_sge || (atomic && num_sge != 1)) {
        refuse(qp, EINVAL);
        return;
    }
    struct shared_sge *sge = nic_wqe_sge(wqe);
    for (size_t i = 0; i < num_sge; i++)
        sge[i] = (struct shared_sge){list[i].addr, list[i].length, list[i].lkey};
    wqe->num_sge = (uint8_t)num_sge;
    wqe->flags &= (uint8_t)~IBV_SEND_INLINE;
    qp->wr_payload = (uint32_t)((atomic ? sizeof wqe->operand : 0) + num_sge * sizeof *sge);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
    struct ibv_sge sge = {addr, length, lkey};
    wr_set_sge_list(ex, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t num_buf,
                                    const struct ibv_data_buf *list)
{
    struct qp *qp = of(ex);
    struct send_wqe *wqe = qp->wr;
    size_t total = 0;
    if (qp->wr_error != 0 || wqe == NULL)
        return;
    if (wqe->opcode >= IBV_WR_RDMA_READ) {
        refuse(qp, EINVAL); /* nothing is sent that could be inline */
        return;
    }
    for (size_t i = 0; i < num_buf; i++) {
        if (list[i].length > qp->cap.max_inline_data - total) {
            refuse(qp, EINVAL);
            return;
        }
        if (list[i].length > 0) /* of nothing there may be no address */
            memcpy((uint8_t *)wqe + offsetof(struct send_wqe, data) + total, list[i].addr,
                   list[i].length);
        total += list[i].length;
    }
    wqe->length = (uint32_t)total;
    wqe->num_sge = 0;
    wqe->flags |= IBV_SEND_INLINE;
    qp->wr_payload = (uint32_t)total;
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
    struct ibv_data_buf buf = {addr, length};
    wr_set_inline_data_list(ex, 1, &buf);
}

static int wr_complete(struct ibv_qp_ex *ex)
{
    struct qp *qp = of(ex);
    finish(qp);
    atomic_store_explicit(&qp->builder, 0, memory_order_relaxed);
    int err = qp->wr_error;
    if (err != 0) {
        qp->sq_tail = qp->wr_tail;
        qp->sq_posted = qp->wr_posted;
        spin_unlock(&qp->sq_lock);
        return err;
    }
    nic_doorbell(qp);
    return 0;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
    struct qp *qp = of(ex);
    atomic_store_explicit(&qp->builder, 0, memory_order_relaxed);
    qp->wr = NULL;
    qp->sq_tail = qp->wr_tail;
    qp->sq_posted = qp->wr_posted;
    spin_unlock(&qp->sq_lock);
}

/* What this NIC does not do makes the list fail, at wr_complete. */
static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
                       const struct ibv_mw_bind_info *info)
{
    (void)mw, (void)rkey, (void)info;
    refuse(of(ex), EOPNOTSUPP);
}

static void wr_one_key(struct ibv_qp_ex *ex, uint32_t key)
{
    (void)key;
    refuse(of(ex), EOPNOTSUPP);
}

static void wr_send_tso(struct ibv_qp_ex *ex, void *header, uint16_t header_size, uint16_t mss)
{
    (void)header, (void)header_size, (void)mss;
    refuse(of(ex), EOPNOTSUPP);
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
    struct qp *qp = of(ex);
    if (!qp->datagram) {
        refuse(qp, EOPNOTSUPP);
        return;
    }
    if (qp->wr_error != 0 || qp->wr == NULL)
        return;
    qp->wr->raddr = ((const struct ah *)ah)->route | (qpn & 0xffffff);
    qp->wr->rkey = qkey;
}

static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, const void *data)
{
    (void)rkey, (void)raddr, (void)data;
    refuse(of(ex), EOPNOTSUPP);
}

void nic_wr_api(struct qp *qp)
{
    struct ibv_qp_ex *ex = &qp->ex;
    ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
    ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
    ex->wr_bind_mw = wr_bind_mw;
    ex->wr_local_inv = wr_one_key;
    ex->wr_rdma_read = wr_rdma_read;
    ex->wr_rdma_write = wr_rdma_write;
    ex->wr_rdma_write_imm = wr_rdma_write_imm;
    ex->wr_send = wr_send;
    ex->wr_send_imm = wr_send_imm;
    ex->wr_send_inv = wr_one_key;
    ex->wr_send_tso = wr_send_tso;
    ex->wr_set_ud_addr = wr_set_ud_addr;
    ex->wr_set_xrc_srqn = wr_one_key;
    ex->wr_set_inline_data = wr_set_inline_data;
    ex->wr_set_inline_data_list = wr_set_inline_data_list;
    ex->wr_set_sge = wr_set_sge;
    ex->wr_set_sge_list = wr_set_sge_list;
    ex->wr_start = wr_start;
    ex->wr_complete = wr_complete;
    ex->wr_abort = wr_abort;
    ex->wr_atomic_write = wr_atomic_write;
}
