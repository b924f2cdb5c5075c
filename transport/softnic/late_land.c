/* SPDX-License-Identifier: MIT */
/* One late message: how it is kept, how a piece of it lands, and what shows that it has. */
#include "transport/softnic/late.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t late_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* Cut at random, at multiples of eight bytes in the target. */
static void cut(struct late_op *op, uint64_t *random)
{
    uint64_t to = op->target[0].addr, most = (op->length + 7) / 8, from = 0;
    uint64_t want = late_random(random) % (most < LATE_PIECES ? most : LATE_PIECES) + 1;
    while (op->pieces + 1 < want) {
        uint64_t size = 8 + late_random(random) % (2 * op->length / want + 1);
        uint64_t end = ((to + from + size) & ~(uint64_t)7) - to;
        if (end >= op->length)
            break;
        op->end[op->pieces++] = from = end;
    }
}

/* What the sender may change meanwhile is copied into `room`. */
static void keep_local(struct late_op *op, const struct work *work, uint8_t *room)
{
    const struct shared_sge *sge = nic_wqe_sge(work->wqe);
    if (op->unanswered || (work->wqe->flags & IBV_SEND_INLINE) != 0) {
        op->local[0] = (struct shared_sge){(uint64_t)(uintptr_t)room, (uint32_t)op->length, 0};
        op->n_local = op->length > 0;
        for (unsigned i = 0; i < work->n_local; room += work->local[i++].iov_len) {
            if (work->local[i].iov_len > 0) /* of nothing there may be no address */
                memcpy(room, work->local[i].iov_base, work->local[i].iov_len);
        }
        return;
    }
    for (unsigned i = 0; i < work->wqe->num_sge; i++) {
        if (sge[i].length > 0)
            op->local[op->n_local++] = sge[i];
    }
}

struct late_op *late_make(struct qp *qp, const struct work *work, uint64_t *random)
{
    const struct send_wqe *wqe = work->wqe;
    size_t n_local = wqe->num_sge > 0 ? wqe->num_sge : 1;
    bool unanswered = nic_is_unanswered(qp);
    bool copied = unanswered || (wqe->flags & IBV_SEND_INLINE) != 0;
    struct late_op *op =
        calloc(1, sizeof *op + n_local * sizeof *op->local + work->n_target * sizeof *op->target +
                      (copied ? work->length : 0));
    if (op == NULL)
        return NULL;
    op->target = (struct late_target *)(op + 1);
    op->local = (struct shared_sge *)(op->target + work->n_target);
    op->qp = qp;
    op->unanswered = unanswered;
    memcpy(&op->wqe, wqe, offsetof(struct send_wqe, data) + sizeof wqe->operand);
    op->recv = work->recv;
    op->sq_count = qp->sq_executed + 1;
    op->length = work->length;
    op->due_ns = work->due_ns;
    for (; op->n_target < work->n_target; op->n_target++) {
        const struct target *t = &work->target[op->n_target];
        op->target[op->n_target] = (struct late_target){t->iova, t->length, t->key};
    }
    keep_local(op, work, (uint8_t *)(op->local + n_local));
    if (op->n_target > 0 || qp->datagram) {
        if (random != NULL && op->n_target > 0 && wqe->opcode < IBV_WR_ATOMIC_CMP_AND_SWP)
            cut(op, random);
        op->end[op->pieces++] = op->length;
        op->left = (1u << op->pieces) - 1;
    }
    return op;
}

void late_free(struct late_op *op)
{
    free(op);
}

enum door { OPEN, BUSY, GONE };

static enum door enter(struct qp *qp, bool inbound_held)
{
    if (inbound_held)
        return OPEN;
    if (nic_peer_dead_maybe(qp->peer))
        return GONE;
    if (!nic_inbound_try(qp->remote, qp->ctx->token))
        return BUSY;
    if (nic_remote_ready(qp))
        return OPEN;
    nic_inbound_unlock(qp->remote);
    return GONE;
}

/* Bytes [from, end) on our side. False: a key was taken back meanwhile. */
static bool slice_local(const struct late_op *op, uint64_t from, uint64_t end, struct work *work)
{
    const struct qp *qp = op->qp;
    uint32_t want = late_is_put(op) ? 0 : IBV_ACCESS_LOCAL_WRITE;
    uint64_t at = 0;
    for (unsigned i = 0; i < op->n_local; at += op->local[i++].length) {
        const struct shared_sge *sge = &op->local[i];
        uint64_t low = from > at ? from - at : 0;
        uint64_t high = end - at < sge->length ? end - at : sge->length;
        if (end <= at || low >= high)
            continue;
        const struct shared_mr *smr = NULL;
        if (sge->lkey != 0) {
            smr = nic_mr_find(qp->ctx->own->mr, sge->lkey, sge->addr, sge->length, want,
                              qp->shared->pd);
            if (smr == NULL)
                return false;
        }
        work->local[work->n_local].iov_base =
            (void *)(uintptr_t)(sge->addr + low + (smr != NULL ? smr->shift : 0));
        work->local[work->n_local++].iov_len = high - low;
    }
    return true;
}

static uint32_t remote_access(const struct late_op *op)
{
    if (op->wqe.opcode == IBV_WR_SEND || op->wqe.opcode == IBV_WR_SEND_WITH_IMM)
        return IBV_ACCESS_LOCAL_WRITE;
    if (op->wqe.opcode == IBV_WR_RDMA_READ)
        return IBV_ACCESS_REMOTE_READ;
    return late_is_put(op) ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_ATOMIC;
}

/* The same bytes on the far side. */
static bool slice_target(const struct late_op *op, uint64_t from, uint64_t end, struct work *work)
{
    uint64_t at = 0;
    for (unsigned i = 0; i < op->n_target; at += op->target[i++].length) {
        const struct late_target *t = &op->target[i];
        uint64_t low = from > at ? from - at : 0;
        uint64_t high = end - at < t->length ? end - at : t->length;
        if (end <= at || low >= high)
            continue;
        if (!nic_remote_resolve(op->qp, t->key, t->addr + low, high - low, remote_access(op),
                                &work->target[work->n_target++]))
            return false;
    }
    return true;
}

static enum ibv_wc_status move(struct late_op *op, uint64_t from, uint64_t end)
{
    struct work work = {.wqe = &op->wqe, .length = end - from};
    int err;
    if (!slice_local(op, from, end, &work))
        return IBV_WC_LOC_PROT_ERR;
    if (!slice_target(op, from, end, &work))
        return IBV_WC_REM_ACCESS_ERR;
    if (op->wqe.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP)
        err = nic_atomic(op->qp, &work);
    else
        err = late_is_put(op) ? nic_put(op->qp, &work) : nic_get(op->qp, &work);
    if (err == ESRCH)
        atomic_store(&op->qp->peer->dead, 1);
    return err == 0 ? IBV_WC_SUCCESS : err == ESRCH ? IBV_WC_RETRY_EXC_ERR : IBV_WC_REM_OP_ERR;
}

bool late_arrive(struct late_op *op)
{
    struct work work = {.wqe = &op->wqe, .length = op->length, .due_ns = op->due_ns};
    if (op->n_local > 0)
        work.local[work.n_local++] =
            (struct iovec){(void *)(uintptr_t)op->local[0].addr, op->length};
    if (!nic_datagram_arrive(op->qp, &work))
        return false;
    op->left = 0;
    return true;
}

bool late_land(struct late_op *op, unsigned piece, bool inbound_held)
{
    if (op->qp->datagram) {
        if (!spin_trylock(&op->qp->sq_lock))
            return false;
        bool arrived = late_arrive(op);
        spin_unlock(&op->qp->sq_lock);
        return arrived;
    }
    enum door door = enter(op->qp, inbound_held);
    enum ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
    if (door == BUSY)
        return false;
    if (door == OPEN) {
        status = move(op, piece == 0 ? 0 : op->end[piece - 1], op->end[piece]);
        if (!inbound_held)
            nic_inbound_unlock(op->qp->remote);
    }
    if (op->status == IBV_WC_SUCCESS)
        op->status = status;
    op->left &= ~(1u << piece);
    return true;
}

/* The receive is still the one that was taken. */
static bool same_recv(const struct late_op *op)
{
    return atomic_load_explicit(&op->qp->remote->rq_consumed, memory_order_relaxed) ==
           op->recv_index;
}

bool late_complete(struct late_op *op, bool inbound_held)
{
    struct qp *qp = op->qp;
    if (op->recv != NULL) {
        enum door door = enter(qp, inbound_held);
        if (door == BUSY)
            return false;
        if (door == GONE && op->status == IBV_WC_SUCCESS)
            op->status = IBV_WC_RETRY_EXC_ERR;
        if (door == OPEN) {
            if (op->status == IBV_WC_SUCCESS && same_recv(op)) {
                op->recv->due_ns = op->due_ns;
                nic_recv_complete(qp->ctx, qp->peer, qp->peer->member, qp->remote, op->recv);
            }
            if (!inbound_held)
                nic_inbound_unlock(qp->remote);
        }
    }
    if (op->unanswered) {
        if (op->status != IBV_WC_SUCCESS)
            nic_count(&qp->shared->sent.drops, 1);
        return true;
    }
    if (op->status != IBV_WC_SUCCESS || (op->wqe.flags & IBV_SEND_SIGNALED) != 0 || qp->sig_all)
        nic_send_complete_at(qp, &op->wqe, op->status, (uint32_t)op->length, op->due_ns,
                             op->sq_count);
    return true;
}
