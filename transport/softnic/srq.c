/* SPDX-License-Identifier: MIT */
/*
 * Shared receive queues. A sender that finds the ring of its far queue pair empty moves one entry
 * of the shared queue into it, so that from there on a receive is like any other, and completions
 * lie in the ring of the queue pair that used them. An entry counts as used until its completion
 * is polled: no ring can overflow.
 */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct srq *to_srq(struct ibv_srq *srq)
{
    return (struct srq *)srq;
}

static int make_shared(struct ctx *ctx, struct srq *srq, const struct pd *pd)
{
    uint32_t entries = 1;
    while (entries < srq->max_wr)
        entries *= 2;
    uint32_t stride = (uint32_t)(offsetof(struct recv_wqe, sge) +
                                 srq->max_sge * sizeof(struct shared_sge) + WQE_BLOCK - 1) /
                      WQE_BLOCK * WQE_BLOCK;
    while (srq->index < SRQS_MAX && ctx->srqs[srq->index] != NULL)
        srq->index++;
    if (srq->index == SRQS_MAX)
        return ENOMEM;
    srq->shared = &ctx->member->srq[srq->index];
    int err = nic_member_commit(ctx, srq->shared, sizeof *srq->shared);
    if (err != 0)
        return err;
    srq->ids = calloc(entries, sizeof *srq->ids);
    if (srq->ids == NULL)
        return ENOMEM;
    srq->mask = entries - 1;
    srq->stride = stride;
    srq->bytes = (uint64_t)entries * stride;
    uint64_t offset = nic_heap_alloc(ctx, srq->bytes);
    if (offset == 0)
        return ENOMEM;
    srq->ring = (uint8_t *)ctx->member + offset;
    struct shared_srq *shared = srq->shared;
    nic_word_lock(&shared->lock, ctx->token);
    shared->mask = entries - 1;
    shared->stride = stride;
    shared->pd = pd->number;
    shared->offset = offset;
    atomic_store(&shared->posted, 0);
    atomic_store(&shared->consumed, 0);
    atomic_store(&shared->limit, 0);
    nic_word_unlock(&shared->lock);
    return 0;
}

struct ibv_srq *softnic_create_srq(struct ibv_pd *base, struct ibv_srq_init_attr *attr)
{
    struct ctx *ctx = to_ctx(base->context);
    struct pd *pd = (struct pd *)base;
    int err = nic_after_fork(ctx) ? nic_refuse_child(ctx) : 0;
    if (err == 0 &&
        (attr->attr.max_wr < 1 || attr->attr.max_wr > MAX_SRQ_WR || attr->attr.max_sge > MAX_SGE))
        err = EINVAL;
    struct srq *srq = err == 0 ? calloc(1, sizeof *srq) : NULL;
    if (srq == NULL) {
        errno = err != 0 ? err : ENOMEM;
        return NULL;
    }
    srq->ctx = ctx;
    srq->max_wr = attr->attr.max_wr;
    srq->max_sge = attr->attr.max_sge > 0 ? attr->attr.max_sge : 1;
    pthread_mutex_lock(&ctx->lock);
    err = make_shared(ctx, srq, pd);
    if (err == 0)
        ctx->srqs[srq->index] = srq;
    pthread_mutex_unlock(&ctx->lock);
    if (err != 0) {
        free(srq->ids);
        free(srq);
        errno = err;
        return NULL;
    }
    srq->base = (struct ibv_srq){.context = base->context,
                                 .srq_context = attr->srq_context,
                                 .pd = base,
                                 .handle = srq->index};
    pthread_mutex_init(&srq->base.mutex, NULL);
    pthread_cond_init(&srq->base.cond, NULL);
    atomic_fetch_add(&pd->users, 1);
    attr->attr.max_sge = srq->max_sge;
    return &srq->base;
}

static uint32_t held(const struct srq *srq)
{
    return srq->posted - atomic_load(&srq->shared->consumed);
}

static void tell_limit(struct ctx *ctx, struct peer *peer, uint32_t index)
{
    nic_async_raise(ctx, peer, IBV_EVENT_SRQ_LIMIT_REACHED, index);
}

/* Armed when fewer are there already, the event comes at once. */
int softnic_modify_srq(struct ibv_srq *base, struct ibv_srq_attr *attr, int mask)
{
    struct srq *srq = to_srq(base);
    struct ctx *ctx = srq->ctx;
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0)
        return EINVAL;
    if ((mask & IBV_SRQ_MAX_WR) != 0)
        return EOPNOTSUPP; /* as no IBV_DEVICE_SRQ_RESIZE says */
    if ((mask & IBV_SRQ_LIMIT) == 0)
        return 0;
    if (attr->srq_limit > srq->max_wr)
        return EINVAL;
    spin_lock(&srq->lock);
    nic_word_lock(&srq->shared->lock, ctx->token);
    bool now = held(srq) < attr->srq_limit;
    atomic_store(&srq->shared->limit, now ? 0 : attr->srq_limit);
    nic_word_unlock(&srq->shared->lock);
    spin_unlock(&srq->lock);
    if (now)
        tell_limit(ctx, NULL, srq->index);
    return 0;
}

int softnic_query_srq(struct ibv_srq *base, struct ibv_srq_attr *attr)
{
    const struct srq *srq = to_srq(base);
    if (nic_after_fork(srq->ctx))
        return nic_refuse_child(srq->ctx);
    *attr = (struct ibv_srq_attr){.max_wr = srq->max_wr,
                                  .max_sge = srq->max_sge,
                                  .srq_limit = atomic_load(&srq->shared->limit)};
    return 0;
}

int softnic_destroy_srq(struct ibv_srq *base)
{
    struct srq *srq = to_srq(base);
    struct ctx *ctx = srq->ctx;
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    pthread_mutex_lock(&ctx->lock);
    if (srq->users != 0) {
        pthread_mutex_unlock(&ctx->lock);
        return EBUSY;
    }
    ctx->srqs[srq->index] = NULL;
    nic_heap_free(ctx, (uint64_t)(srq->ring - (uint8_t *)ctx->member), srq->bytes);
    uint32_t events_given = srq->events_given;
    pthread_mutex_unlock(&ctx->lock);
    pthread_mutex_lock(&base->mutex);
    while (base->events_completed != events_given)
        pthread_cond_wait(&base->cond, &base->mutex);
    pthread_mutex_unlock(&base->mutex);
    pthread_mutex_destroy(&base->mutex);
    pthread_cond_destroy(&base->cond);
    atomic_fetch_sub(&((struct pd *)base->pd)->users, 1);
    free(srq->ids);
    free(srq);
    return 0;
}

/* A place of `ids` that no receive has. Entries are polled in the order of their queue pairs, not
 * of this queue, so that the oldest may be there still when all after it are gone. */
static bool free_place(const struct srq *srq, uint32_t *place)
{
    for (uint32_t i = 0; i <= srq->mask; i++) {
        *place = (srq->posted + i) & srq->mask;
        if (__atomic_load_n(&srq->ids[*place].number, __ATOMIC_ACQUIRE) == 0)
            return true;
    }
    return false;
}

static int build(struct srq *srq, const struct ibv_recv_wr *wr)
{
    uint32_t place;
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > srq->max_sge)
        return EINVAL;
    if (srq->posted - atomic_load_explicit(&srq->polled, memory_order_acquire) >= srq->max_wr ||
        !free_place(srq, &place))
        return ENOMEM;
    struct recv_wqe *wqe =
        (struct recv_wqe *)(srq->ring + (size_t)(srq->posted & srq->mask) * srq->stride);
    srq->ids[place] = nic_recv_id(wr, place);
    wqe->wr_id = place;
    wqe->num_sge = (uint32_t)wr->num_sge;
    for (int i = 0; i < wr->num_sge; i++)
        wqe->sge[i] =
            (struct shared_sge){wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
    srq->posted++;
    return 0;
}

int softnic_post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    struct srq *srq = to_srq(base);
    int err = 0;
    if (nic_after_fork(srq->ctx)) {
        *bad_wr = wr;
        return nic_refuse_child(srq->ctx);
    }
    spin_lock(&srq->lock);
    for (; wr != NULL; wr = wr->next) {
        err = build(srq, wr);
        if (err != 0) {
            *bad_wr = wr;
            break;
        }
    }
    atomic_store_explicit(&srq->shared->posted, srq->posted, memory_order_release);
    spin_unlock(&srq->lock);
    return err;
}

/* Everything but what belongs to completions. */
static void copy_request(struct recv_wqe *to, const struct recv_wqe *from)
{
    uint32_t num_sge = nic_once(from->num_sge);
    if (num_sge > MAX_SGE)
        num_sge = 0;
    to->wr_id = from->wr_id;
    to->num_sge = num_sge;
    memcpy(to->sge, from->sge, num_sge * sizeof *to->sge);
}

struct recv_wqe *nic_srq_take(struct qp *qp)
{
    struct shared_qp *sqp = qp->remote;
    const struct member *member = qp->peer->member;
    uint32_t index = nic_once(sqp->srq) - 1u;
    if (index >= SRQS_MAX)
        return NULL;
    struct shared_srq *srq = &qp->peer->member->srq[index];
    struct recv_wqe *to = NULL;
    bool below = false;
    nic_word_lock(&srq->lock, qp->ctx->token);
    uint32_t at = atomic_load_explicit(&srq->consumed, memory_order_relaxed);
    uint32_t left = atomic_load_explicit(&srq->posted, memory_order_acquire) - at;
    if (left > 0) {
        uint32_t posted = atomic_load_explicit(&sqp->rq_posted, memory_order_relaxed);
        const struct recv_wqe *from = nic_ring_entry(
            member, nic_once(srq->offset), nic_once(srq->mask), nic_once(srq->stride), at);
        to = nic_ring_entry(member, nic_once(sqp->rq_offset), nic_once(sqp->rq_mask),
                            nic_once(sqp->rq_stride), posted);
        if (from == NULL || to == NULL) {
            atomic_store(&sqp->state, IBV_QPS_ERR); /* spoilt: it receives nothing any more */
            nic_word_unlock(&srq->lock);
            return NULL;
        }
        copy_request(to, from);
        atomic_store_explicit(&srq->consumed, at + 1, memory_order_release);
        atomic_store_explicit(&sqp->rq_posted, posted + 1, memory_order_release);
        below = left - 1 < atomic_load_explicit(&srq->limit, memory_order_relaxed);
        if (below)
            atomic_store_explicit(&srq->limit, 0, memory_order_relaxed);
    }
    nic_word_unlock(&srq->lock);
    if (below)
        tell_limit(qp->ctx, qp->peer, index);
    return to;
}

void nic_srq_forget(struct qp *qp)
{
    uint32_t first = atomic_load(&qp->rq_polled);
    uint32_t taken = atomic_load(&qp->shared->rq_posted) - first;
    for (uint32_t i = 0; i < taken && i <= qp->rq_mask; i++) {
        uint32_t place = (uint32_t)nic_once(nic_recv_at(qp, first + i)->wr_id);
        struct recv_id *id = &qp->srq->ids[place & qp->srq->mask];
        if (__atomic_load_n(&id->number, __ATOMIC_ACQUIRE) == place + 1)
            __atomic_store_n(&id->number, 0, __ATOMIC_RELEASE);
    }
    atomic_fetch_add(&qp->srq->polled, taken);
}
