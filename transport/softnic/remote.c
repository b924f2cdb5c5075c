/* SPDX-License-Identifier: MIT */
/* The far side of a queue pair: finding it, its keys, and breaking it. */
#include "transport/softnic/nic.h"

/* Reach the member that holds the queue pair we are connected to. sq_lock held. */
bool nic_remote_find(struct qp *qp)
{
    if (qp->peer == NULL)
        qp->peer = nic_peer_get(qp->ctx, qp->shared->dest_ip, qp->shared->dest_qpn >> 16);
    if (qp->peer == NULL)
        return false;
    struct shared_qp *remote = &qp->peer->member->qp[qp->shared->dest_qpn % QPS_MAX];
    if (remote->type != qp->shared->type)
        return false;
    qp->remote = remote;
    return true;
}

/* Where a peer's range is for us; false if the key does not grant it. `inbound` held. */
bool nic_remote_resolve(struct qp *qp, uint32_t key, uint64_t addr, uint64_t length, uint32_t want,
                        struct target *target)
{
    struct peer *peer = qp->peer;
    const struct shared_mr *smr = nic_mr_find(peer->table, key, addr, length, want, qp->remote->pd);
    if (__builtin_expect(smr == NULL, 0))
        return false;
    target->addr = addr + smr->shift;
    target->iova = addr;
    target->length = length;
    target->key = key;
    target->relaxed = (smr->access & IBV_ACCESS_RELAXED_ORDERING) != 0;
    /* At its ends there is memory that the kernel must reach. */
    target->unshared = smr->backing != MR_SHARED || smr->head != 0 || smr->tail != 0;
    target->direct = NULL;
    if (peer->same_process) {
        target->direct = (uint8_t *)(uintptr_t)target->addr;
    } else if (smr->backing == MR_SHARED) {
        const struct mapped_mr *mapped = &peer->mr[key >> 8];
        if (__builtin_expect(atomic_load_explicit(&mapped->key, memory_order_acquire) != key, 0))
            mapped = nic_peer_map_slow(peer, key, qp);
        /* By what was mapped, since the peer's table may have changed. */
        uint64_t ahead = addr - mapped->addr;
        if (__builtin_expect(mapped->base != NULL && ahead <= mapped->length &&
                                 length <= mapped->length - ahead,
                             1))
            target->direct = mapped->base + ahead;
    }
    return true;
}

void nic_remote_break(struct qp *qp, enum ibv_event_type event)
{
    struct shared_qp *sqp = qp->remote;
    struct member *member = qp->peer->member;
    struct shared_cq *scq = nic_recv_cq(member, sqp);
    atomic_store(&sqp->state, IBV_QPS_ERR);
    nic_async_raise(qp->ctx, qp->peer, event, atomic_load(&sqp->qpn));
    if (sqp->srq != 0 && atomic_exchange(&sqp->last_wqe, 1) == 0)
        nic_async_raise(qp->ctx, qp->peer, IBV_EVENT_QP_LAST_WQE_REACHED, atomic_load(&sqp->qpn));
    /* Whoever polls there flushes what is left. */
    nic_cq_mark(&scq->bits, atomic_load(&sqp->qpn) % QPS_MAX);
    nic_cq_wake(qp->ctx, qp->peer, scq, true, 0);
}
