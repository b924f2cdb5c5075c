/* SPDX-License-Identifier: MIT */
/* The states of a queue pair, and what may be changed on the way between them. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <string.h>

/* Transitions (InfiniBand specification, 10.3.1 and table 91), ended by one without attributes. */
static const struct transition {
    enum ibv_qp_state from, to;
    int required, optional;
} reliable[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE |
         IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
         IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH |
         IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RESET, IBV_QPS_RESET, 0, 0},
};

static const struct transition unreliable[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_RESET, IBV_QPS_RESET, 0, 0},
};

static const struct transition datagram[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPS_RESET, IBV_QPS_RESET, 0, 0},
};

static const struct transition *transitions_of(enum ibv_qp_type type)
{
    return type == IBV_QPT_RC ? reliable : type == IBV_QPT_UC ? unreliable : datagram;
}

static bool legal(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    mask &= ~IBV_QP_STATE;
    if ((mask & IBV_QP_CUR_STATE) != 0 && from != IBV_QPS_RTR && from != IBV_QPS_RTS &&
        from != IBV_QPS_SQD && from != IBV_QPS_SQE)
        return false;
    /* From any state one may go to RESET or ERR, and changes nothing else. */
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
        return (mask & ~IBV_QP_CUR_STATE) == 0;
    for (const struct transition *t = transitions_of(type); t->to != IBV_QPS_RESET; t++) {
        if (t->from == from && t->to == to)
            return (mask & t->required) == t->required &&
                   (mask & ~(t->required | t->optional)) == 0;
    }
    return false;
}

/* *ip: of the far port, where the path is given. */
static int check_values(const struct ibv_qp_attr *a, int mask, uint32_t *ip)
{
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                       IBV_ACCESS_REMOTE_ATOMIC;
    if (((mask & IBV_QP_PORT) != 0 && a->port_num != 1) ||
        ((mask & IBV_QP_PKEY_INDEX) != 0 && a->pkey_index != 0) ||
        ((mask & IBV_QP_ACCESS_FLAGS) != 0 && (a->qp_access_flags & ~(unsigned)access) != 0) ||
        ((mask & IBV_QP_PATH_MTU) != 0 &&
         (a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096)) ||
        ((mask & IBV_QP_DEST_QPN) != 0 && a->dest_qp_num > 0xffffff) ||
        ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && a->max_rd_atomic > MAX_RD_ATOMIC) ||
        ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && a->max_dest_rd_atomic > MAX_RD_ATOMIC) ||
        ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && a->min_rnr_timer > 31) ||
        ((mask & IBV_QP_TIMEOUT) != 0 && a->timeout > 31) ||
        ((mask & IBV_QP_RETRY_CNT) != 0 && a->retry_cnt > 7) ||
        ((mask & IBV_QP_RNR_RETRY) != 0 && a->rnr_retry > 7) ||
        (mask & (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)) != 0)
        return EINVAL;
    return (mask & IBV_QP_AV) != 0 ? nic_path_check(&a->ah_attr, ip) : 0;
}

/* Take the values over. sq_lock, inbound and attr_lock held. */
static void apply(struct qp *qp, const struct ibv_qp_attr *a, int mask, uint32_t ip)
{
    struct ibv_qp_attr *own = &qp->attr;
    struct shared_qp *sqp = qp->shared;
    if ((mask & IBV_QP_PORT) != 0)
        own->port_num = a->port_num;
    if ((mask & IBV_QP_PKEY_INDEX) != 0)
        own->pkey_index = a->pkey_index;
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0)
        sqp->access = own->qp_access_flags = a->qp_access_flags;
    if ((mask & IBV_QP_AV) != 0) {
        own->ah_attr = a->ah_attr;
        sqp->dest_ip = ip;
    }
    if ((mask & IBV_QP_DEST_QPN) != 0)
        sqp->dest_qpn = own->dest_qp_num = a->dest_qp_num;
    if ((mask & IBV_QP_QKEY) != 0)
        sqp->qkey = own->qkey = a->qkey;
    if ((mask & IBV_QP_PATH_MTU) != 0)
        own->path_mtu = a->path_mtu;
    if ((mask & IBV_QP_RQ_PSN) != 0)
        own->rq_psn = a->rq_psn & 0xffffff;
    if ((mask & IBV_QP_SQ_PSN) != 0)
        own->sq_psn = a->sq_psn & 0xffffff;
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0)
        own->max_rd_atomic = a->max_rd_atomic;
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0)
        sqp->max_dest_rd_atomic = own->max_dest_rd_atomic = a->max_dest_rd_atomic;
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0)
        sqp->min_rnr_timer = own->min_rnr_timer = a->min_rnr_timer;
    if ((mask & IBV_QP_TIMEOUT) != 0)
        own->timeout = a->timeout;
    if ((mask & IBV_QP_RETRY_CNT) != 0)
        own->retry_cnt = a->retry_cnt;
    if ((mask & IBV_QP_RNR_RETRY) != 0)
        own->rnr_retry = a->rnr_retry;
}

/* As new: nothing posted, nothing connected. Locks of both CQs, sq_lock, rq_lock, inbound held. */
static void reset(struct qp *qp)
{
    nic_cq_forget(qp);
    memset(qp->cqes, 0, (qp->cqe_mask + 1) * sizeof *qp->cqes);
    memset(qp->rq, 0, qp->rq_bytes);
    memset(qp->rq_ids, 0, (qp->rq_mask + 1) * sizeof *qp->rq_ids);
    qp->cqe_head = qp->cqe_tail = 0;
    qp->sq_head = qp->sq_tail = 0;
    qp->sq_posted = qp->sq_executed = qp->sq_counted = 0;
    atomic_store(&qp->sq_retired, 0);
    qp->rq_posted = 0;
    atomic_store(&qp->rq_polled, 0);
    atomic_store(&qp->shared->rq_posted, 0);
    atomic_store(&qp->shared->rq_consumed, 0);
    atomic_store(&qp->shared->established, 0);
    atomic_store(&qp->shared->last_wqe, 0);
    qp->shared->access = 0;
    qp->shared->dest_ip = qp->shared->dest_qpn = qp->shared->qkey = 0;
    qp->reason = WAIT_NONE;
    qp->last_due_ns = 0;
    qp->wire_psn = qp->wire_msn = 0;
    spin_lock(&qp->attr_lock);
    qp->attr = (struct ibv_qp_attr){.cap = qp->cap};
    spin_unlock(&qp->attr_lock);
    qp->remote = NULL;
}

/* Tries only: the one who polls may be in the middle of a list of ibv_wr_* calls himself. */
bool nic_qp_flush(struct qp *qp)
{
    if (!spin_trylock(&qp->sq_lock))
        return false;
    nic_flush_send(qp);
    spin_unlock(&qp->sq_lock);
    spin_lock(&qp->rq_lock);
    nic_flush_recv(qp);
    spin_unlock(&qp->rq_lock);
    return true;
}

static void to_reset(struct qp *qp, struct peer **old_peer)
{
    nic_late_finish(qp);
    nic_wait_remove(qp);
    nic_cq_lock_both(qp);
    spin_lock(&qp->sq_lock);
    nic_late_drop(qp);
    spin_lock(&qp->rq_lock);
    nic_inbound_lock(qp->ctx, qp->shared);
    atomic_store(&qp->shared->state, IBV_QPS_RESET);
    reset(qp);
    *old_peer = qp->peer;
    qp->peer = NULL;
    nic_inbound_unlock(qp->shared);
    spin_unlock(&qp->rq_lock);
    spin_unlock(&qp->sq_lock);
    nic_cq_unlock_both(qp);
}

/* Nothing is under way at the far side between two work requests, once what was to land late has
 * landed; what was posted stays. */
static void to_drained(struct qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    spin_lock(&qp->sq_lock);
    nic_late_force(qp, false);
    spin_unlock(&qp->sq_lock);
    if ((mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && attr->en_sqd_async_notify)
        nic_async_raise(qp->ctx, NULL, IBV_EVENT_SQ_DRAINED, qp->ex.qp_base.qp_num);
}

static void flush_now(struct qp *qp)
{
    unsigned turn = 0;
    while (!nic_qp_flush(qp))
        spin_wait(&turn);
}

static int change(struct qp *qp, const struct ibv_qp_attr *attr, int mask, enum ibv_qp_state *to)
{
    struct shared_qp *sqp = qp->shared;
    uint32_t ip = 0;
    int err = 0;
    spin_lock(&qp->sq_lock);
    enum ibv_qp_state from = (enum ibv_qp_state)atomic_load(&sqp->state);
    *to = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : from;
    if (((mask & IBV_QP_CUR_STATE) != 0 && attr->cur_qp_state != from) ||
        !legal(qp->ex.qp_base.qp_type, from, *to, mask))
        err = EINVAL;
    if (err == 0)
        err = check_values(attr, mask, &ip);
    if (err == 0 && *to != IBV_QPS_RESET) {
        nic_inbound_lock(qp->ctx, sqp);
        spin_lock(&qp->attr_lock);
        apply(qp, attr, mask, ip);
        qp->attr.qp_state = *to;
        spin_unlock(&qp->attr_lock);
        /* A peer may have broken it meanwhile: only ERR and RESET lead on from there. */
        uint32_t expected = from;
        if (!atomic_compare_exchange_strong(&sqp->state, &expected, *to) && *to != IBV_QPS_ERR)
            err = EINVAL;
        nic_inbound_unlock(sqp);
    }
    spin_unlock(&qp->sq_lock);
    return err;
}

int softnic_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int attr_mask)
{
    struct qp *qp = to_qp(base);
    enum ibv_qp_state to;
    struct peer *old_peer = NULL;
    if (nic_after_fork(qp->ctx))
        return nic_refuse_child(qp->ctx);
    if (nic_builds_here(qp))
        return EBUSY; /* ibv_wr_complete or ibv_wr_abort comes first */
    int err = change(qp, attr, attr_mask, &to);
    if (err != 0)
        return err;
    if (to == IBV_QPS_RESET)
        to_reset(qp, &old_peer);
    else if (to == IBV_QPS_ERR)
        flush_now(qp);
    else if (to == IBV_QPS_SQD)
        to_drained(qp, attr, attr_mask);
    if (old_peer != NULL)
        nic_peer_put(qp->ctx, old_peer);
    base->state = to;
    if (to == IBV_QPS_RTS) {
        spin_lock(&qp->sq_lock);
        nic_doorbell(qp); /* what was posted while the queue was drained */
    }
    return 0;
}

/* A work request failed. */
void nic_qp_to_error(struct qp *qp)
{
    atomic_store(&qp->shared->state, IBV_QPS_ERR);
    nic_flush_send(qp);
    spin_lock(&qp->rq_lock);
    nic_flush_recv(qp);
    spin_unlock(&qp->rq_lock);
}

void nic_qp_to_sqe(struct qp *qp)
{
    uint32_t expected = IBV_QPS_RTS; /* a peer may have broken it meanwhile */
    atomic_compare_exchange_strong(&qp->shared->state, &expected, IBV_QPS_SQE);
    nic_flush_send(qp);
}
