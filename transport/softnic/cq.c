/* SPDX-License-Identifier: MIT */
/*
 * Completion queues. A completion lies in a ring of its queue pair, one for sends and one for
 * receives, each with one producer; the completion queue knows by a bitmap which to look into. So
 * a producer that is killed half-way leaves no hole for others.
 */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdlib.h>

void nic_cq_mark(struct cq_bits *bits, uint32_t slot)
{
    atomic_fetch_or(&bits->word[slot / 64], 1ull << slot % 64);
    atomic_fetch_or(&bits->summary, 1ull << slot / 64);
}

bool nic_cq_count(struct shared_cq *scq)
{
    uint32_t produced = atomic_fetch_add(&scq->produced, 1) + 1;
    /* Negative where completions of others came and were polled between the two. */
    int32_t held = (int32_t)(produced - atomic_load(&scq->consumed));
    return __builtin_expect(held > (int32_t)atomic_load_explicit(&scq->cqe, memory_order_relaxed),
                            0);
}

struct ibv_cq *softnic_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                 struct ibv_comp_channel *channel, int comp_vector)
{
    struct ctx *ctx = to_ctx(context);
    int err = EINVAL;
    if (nic_after_fork(ctx)) {
        errno = nic_refuse_child(ctx);
        return NULL;
    }
    if (cqe < 1 || cqe > MAX_CQE || comp_vector < 0 || comp_vector >= context->num_comp_vectors ||
        (channel != NULL && channel->context != context)) {
        errno = EINVAL;
        return NULL;
    }
    struct cq *cq = calloc(1, sizeof *cq);
    if (cq == NULL)
        return NULL;
    pthread_mutex_lock(&ctx->lock);
    while (cq->index < CQS_MAX && ctx->cqs[cq->index] != NULL)
        cq->index++;
    err = cq->index == CQS_MAX ? ENOMEM : 0;
    if (err == 0)
        err = nic_member_commit(ctx, &ctx->member->cq[cq->index], sizeof(struct shared_cq));
    cq->ctx = ctx;
    cq->timer_fd = -1;
    if (err == 0 && channel != NULL)
        err = nic_channel_add_cq((struct channel *)channel, cq);
    if (err != 0) {
        pthread_mutex_unlock(&ctx->lock);
        free(cq);
        errno = err;
        return NULL;
    }
    cq->base = (struct ibv_cq){.context = context,
                               .channel = channel,
                               .cq_context = cq_context,
                               .handle = cq->index,
                               .cqe = cqe};
    pthread_mutex_init(&cq->base.mutex, NULL);
    pthread_cond_init(&cq->base.cond, NULL);
    cq->shared = &ctx->member->cq[cq->index];
    atomic_store(&cq->shared->armed, CQ_DISARMED);
    atomic_store(&cq->shared->event, 0);
    atomic_store(&cq->shared->overrun, 0);
    atomic_store(&cq->shared->produced, 0);
    atomic_store(&cq->shared->consumed, 0);
    atomic_store(&cq->shared->cqe, (uint32_t)cqe);
    cq->shared->stamped = 0;
    cq->shared->wake_fd = channel != NULL ? ((struct channel *)channel)->write_fd : -1;
    cq->shared->wake_id = channel != NULL ? ((struct channel *)channel)->wake_id : 0;
    cq->shared->timer_fd = cq->timer_fd;
    atomic_store(&cq->shared->early, 0);
    if (channel != NULL)
        channel->refcnt++;
    ctx->cqs[cq->index] = cq;
    if (atomic_load(&ctx->cq_end) <= cq->index)
        atomic_store(&ctx->cq_end, cq->index + 1);
    pthread_mutex_unlock(&ctx->lock);
    return &cq->base;
}

/* Completions lie with their queue pairs, so that only the count of them changes. */
int softnic_resize_cq(struct ibv_cq *base, int cqe)
{
    struct cq *cq = to_cq(base);
    struct ctx *ctx = cq->ctx;
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    if (cqe < 1 || cqe > MAX_CQE)
        return EINVAL;
    pthread_mutex_lock(&ctx->lock);
    int32_t held =
        (int32_t)(atomic_load(&cq->shared->produced) - atomic_load(&cq->shared->consumed));
    int err = held > cqe ? EINVAL : 0;
    if (err == 0) {
        base->cqe = cqe;
        if (atomic_load(&cq->shared->cqe) != CQE_WITHOUT_END)
            atomic_store(&cq->shared->cqe, (uint32_t)cqe);
    }
    pthread_mutex_unlock(&ctx->lock);
    return err;
}

int softnic_destroy_cq(struct ibv_cq *base)
{
    struct cq *cq = to_cq(base);
    struct ctx *ctx = cq->ctx;
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    pthread_mutex_lock(&ctx->lock);
    if (cq->users != 0) {
        pthread_mutex_unlock(&ctx->lock);
        return EBUSY;
    }
    ctx->cqs[cq->index] = NULL;
    atomic_store(&cq->shared->armed, CQ_DISARMED);
    if (base->channel != NULL) {
        nic_channel_remove_cq((struct channel *)base->channel, cq);
        base->channel->refcnt--;
    }
    uint32_t events_given = cq->events_given, async_given = cq->async_given;
    pthread_mutex_unlock(&ctx->lock);
    pthread_mutex_lock(&base->mutex);
    while (base->comp_events_completed != events_given ||
           base->async_events_completed != async_given)
        pthread_cond_wait(&base->cond, &base->mutex);
    pthread_mutex_unlock(&base->mutex);
    pthread_mutex_destroy(&base->mutex);
    pthread_cond_destroy(&base->cond);
    free(cq);
    return 0;
}

/* The queue is lost, and so is a queue pair that completes into it. */
static void overrun(struct qp *qp, struct cq *cq)
{
    if (atomic_exchange(&cq->shared->overrun, 1) == 0)
        nic_async_raise(qp->ctx, NULL, IBV_EVENT_CQ_ERR, cq->index);
    if (atomic_exchange(&qp->shared->state, IBV_QPS_ERR) != IBV_QPS_ERR)
        nic_async_raise(qp->ctx, NULL, IBV_EVENT_QP_FATAL, qp->ex.qp_base.qp_num);
}

void nic_send_complete_at(struct qp *qp, const struct send_wqe *wqe, enum ibv_wc_status status,
                          uint32_t byte_len, uint64_t due_ns, uint32_t sq_count)
{
    static const uint8_t opcodes[] = {
        [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
        [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
        [IBV_WR_SEND] = IBV_WC_SEND,
        [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
        [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
        [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
        [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
    };
    struct cq *cq = to_cq(qp->ex.qp_base.send_cq);
    if (__builtin_expect(nic_cq_count(cq->shared), 0)) {
        overrun(qp, cq);
        return;
    }
    if (__builtin_expect(cq->shared->stamped, 0))
        due_ns = nic_stamp(qp->ctx, due_ns);
    nic_count(&qp->shared->sent.cqes, 1);
    uint32_t at = qp->cqe_tail++;
    struct send_cqe *cqe = &qp->cqes[at & qp->cqe_mask];
    cqe->wr_id = wqe->wr_id;
    cqe->due_ns = due_ns;
    cqe->byte_len = byte_len;
    cqe->sq_count = sq_count;
    cqe->status = (uint8_t)status;
    cqe->opcode = opcodes[wqe->opcode];
    uint8_t lap = (at & (qp->cqe_mask + 1)) == 0;
    atomic_store_explicit(&cqe->owner, lap, memory_order_release);
    nic_cq_mark(&cq->bits, qp->slot);
    nic_cq_wake(qp->ctx, NULL, cq->shared, status != IBV_WC_SUCCESS, due_ns);
}

void nic_cq_lock_both(struct qp *qp)
{
    struct cq *a = to_cq(qp->ex.qp_base.send_cq), *b = to_cq(qp->ex.qp_base.recv_cq);
    spin_lock(a->index <= b->index ? &a->lock : &b->lock);
    if (a != b)
        spin_lock(a->index <= b->index ? &b->lock : &a->lock);
}

void nic_cq_unlock_both(struct qp *qp)
{
    struct cq *a = to_cq(qp->ex.qp_base.send_cq), *b = to_cq(qp->ex.qp_base.recv_cq);
    spin_unlock(&a->lock);
    if (a != b)
        spin_unlock(&b->lock);
}
