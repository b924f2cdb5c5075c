/* SPDX-License-Identifier: MIT */
/*
 * The send queue: a ring of 64-byte blocks. A work request takes as many as its segments or inline
 * data need, and never wraps: where fewer blocks than the largest request takes are left before
 * the end, the next one stands at the beginning.
 */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <string.h>
#include <time.h>

/* Room for a work request, NULL if the queue is full. */
struct send_wqe *nic_sq_begin(struct qp *qp)
{
    uint32_t retired = atomic_load_explicit(&qp->sq_retired, memory_order_acquire);
    if (__builtin_expect(qp->sq_posted - retired >= qp->cap.max_send_wr, 0))
        return NULL;
    return nic_sq_at(qp, qp->sq_tail);
}

void nic_sq_end(struct qp *qp, struct send_wqe *wqe, uint32_t payload)
{
    uint32_t bytes = (uint32_t)offsetof(struct send_wqe, data) + payload;
    wqe->blocks = (uint8_t)((bytes + WQE_BLOCK - 1) / WQE_BLOCK);
    qp->sq_tail = nic_sq_after(qp, qp->sq_tail, wqe);
    qp->sq_posted++;
}

static void count_doorbell(struct qp *qp)
{
    struct qp_sent *sent = &qp->shared->sent;
    nic_count(&sent->doorbells, 1);
    nic_count(&sent->wqes, qp->sq_posted - qp->sq_counted);
    qp->sq_counted = qp->sq_posted;
}

static uint64_t tick_in_order(void)
{
#if defined(__x86_64__)
    unsigned int cpu;
    return __builtin_ia32_rdtscp(&cpu); /* not before what stands before it */
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}

/* Tell the port of what was built. Releases sq_lock. */
void nic_doorbell(struct qp *qp)
{
    struct ctx *ctx = qp->ctx;
    bool waits = atomic_load_explicit(&qp->wait_state, memory_order_relaxed) != NOT_WAITING;
    if (__builtin_expect(qp->sq_counted != qp->sq_posted, 1))
        count_doorbell(qp);
    bool timed = __builtin_expect(qp->time_wanted != NULL, 0) && *qp->time_wanted;
    uint64_t *ticks = qp->device_ticks, begun = timed ? tick_in_order() : 0;
    if (__builtin_expect(!waits && nic_plain(ctx->meeting), 1)) {
        bool left = qp->execute(qp, UINT32_MAX);
        if (__builtin_expect(timed, 0))
            *ticks += tick_in_order() - begun;
        if (__builtin_expect(left, 0))
            nic_wait_add(qp);
        spin_unlock(&qp->sq_lock);
        if (__builtin_expect(left, 0))
            nic_channel_rearm(ctx);
        return;
    }
    /* On a shaped wire queue pairs take turns, so all go through the list; and what lands late is
     * looked at in passing. */
    if (!waits && qp->sq_posted != qp->sq_executed)
        nic_wait_add(qp);
    spin_unlock(&qp->sq_lock);
    nic_progress(ctx);
    if (__builtin_expect(timed, 0))
        *ticks += tick_in_order() - begun;
    nic_channel_rearm(ctx);
}

int softnic_time_device(struct ibv_qp *base, const bool *wanted, uint64_t *ticks)
{
    struct qp *qp = to_qp(base);
    spin_lock(&qp->sq_lock);
    qp->time_wanted = wanted;
    qp->device_ticks = ticks;
    spin_unlock(&qp->sq_lock);
    return 0;
}

static uint32_t copy_inline(const struct qp *qp, struct send_wqe *wqe, const struct ibv_send_wr *wr)
{
    uint64_t total = 0;
    for (int i = 0; i < wr->num_sge; i++) {
        const struct ibv_sge *sge = &wr->sg_list[i];
        if (total + sge->length > qp->cap.max_inline_data)
            return UINT32_MAX;
        if (sge->length > 0) /* of nothing there may be no address */
            memcpy((uint8_t *)wqe + offsetof(struct send_wqe, data) + total,
                   (const void *)(uintptr_t)sge->addr, sge->length);
        total += sge->length;
    }
    return (uint32_t)total;
}

static bool is_atomic(enum ibv_wr_opcode opcode)
{
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static int fill_payload(struct qp *qp, struct send_wqe *wqe, const struct ibv_send_wr *wr,
                        uint32_t *payload)
{
    uint32_t at = 0;
    if (is_atomic(wr->opcode)) {
        if (wr->num_sge != 1)
            return EINVAL;
        wqe->operand[0] = wr->wr.atomic.compare_add;
        wqe->operand[1] = wr->wr.atomic.swap;
        at = sizeof wqe->operand;
    } else if ((wr->send_flags & IBV_SEND_INLINE) != 0) {
        *payload = wqe->length = copy_inline(qp, wqe, wr);
        return *payload == UINT32_MAX ? EINVAL : 0;
    }
    struct shared_sge *sge = nic_wqe_sge(wqe);
    for (int i = 0; i < wr->num_sge; i++)
        sge[i] =
            (struct shared_sge){wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
    wqe->num_sge = (uint8_t)wr->num_sge;
    *payload = at + (uint32_t)wr->num_sge * (uint32_t)sizeof *sge;
    return 0;
}

static int build(struct qp *qp, const struct ibv_send_wr *wr)
{
    const unsigned known =
        IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
    if ((uint32_t)wr->opcode - qp->first_opcode > qp->opcode_span ||
        (wr->send_flags & ~known) != 0 || wr->num_sge < 0 ||
        (uint32_t)wr->num_sge > qp->cap.max_send_sge)
        return EINVAL;
    if ((wr->send_flags & IBV_SEND_INLINE) != 0 && wr->opcode >= IBV_WR_RDMA_READ)
        return EINVAL; /* nothing is sent that could be inline */
    struct send_wqe *wqe = nic_sq_begin(qp);
    if (wqe == NULL)
        return ENOMEM;
    uint32_t payload = 0;
    wqe->wr_id = wr->wr_id;
    wqe->imm = wr->imm_data;
    wqe->length = 0;
    wqe->num_sge = 0;
    wqe->opcode = (uint8_t)wr->opcode;
    wqe->flags = (uint8_t)wr->send_flags;
    if (is_atomic(wr->opcode)) {
        wqe->raddr = wr->wr.atomic.remote_addr;
        wqe->rkey = wr->wr.atomic.rkey;
    } else {
        wqe->raddr = wr->wr.rdma.remote_addr;
        wqe->rkey = wr->wr.rdma.rkey;
    }
    int err = fill_payload(qp, wqe, wr, &payload);
    if (err == 0)
        nic_sq_end(qp, wqe, payload);
    return err;
}

static int build_datagram(struct qp *qp, const struct ibv_send_wr *wr)
{
    struct send_wqe *wqe = nic_sq_begin(qp);
    if (wr->wr.ud.ah == NULL)
        return EINVAL;
    int err = build(qp, wr);
    if (err == 0) {
        wqe->raddr = ((const struct ah *)wr->wr.ud.ah)->route | (wr->wr.ud.remote_qpn & 0xffffff);
        wqe->rkey = wr->wr.ud.remote_qkey;
    }
    return err;
}

int softnic_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
    struct qp *qp = to_qp(base);
    int err = 0;
    if (nic_after_fork(qp->ctx)) {
        *bad_wr = wr;
        return nic_refuse_child(qp->ctx);
    }
    spin_lock(&qp->sq_lock);
    if (!nic_may_send(qp)) {
        spin_unlock(&qp->sq_lock);
        *bad_wr = wr;
        return EINVAL;
    }
    for (; wr != NULL; wr = wr->next) {
        err = __builtin_expect(qp->datagram, 0) ? build_datagram(qp, wr) : build(qp, wr);
        if (__builtin_expect(err != 0, 0)) {
            *bad_wr = wr;
            break;
        }
    }
    nic_doorbell(qp);
    return err;
}
