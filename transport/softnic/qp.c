/* SPDX-License-Identifier: MIT */
/* Making and unmaking queue pairs. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint32_t round_pow2(uint32_t value)
{
    uint32_t result = 1;
    while (result < value)
        result *= 2;
    return result;
}

static int check_caps(const struct ibv_qp_cap *cap)
{
    if (cap->max_send_wr > MAX_QP_WR || cap->max_recv_wr > MAX_QP_WR ||
        cap->max_send_sge > MAX_SGE || cap->max_recv_sge > MAX_SGE ||
        cap->max_inline_data > MAX_INLINE)
        return EINVAL;
    return 0;
}

/* Round the wishes up to what the rings give. */
static void settle_caps(struct qp *qp, const struct ibv_qp_cap *wish)
{
    struct ibv_qp_cap *cap = &qp->cap;
    *cap = *wish;
    if (cap->max_send_sge == 0 && cap->max_send_wr > 0)
        cap->max_send_sge = 1;
    if (cap->max_recv_sge == 0 && cap->max_recv_wr > 0)
        cap->max_recv_sge = 1;
    uint32_t head = offsetof(struct send_wqe, data);
    uint32_t payload = cap->max_send_sge * (uint32_t)sizeof(struct shared_sge);
    if (payload < cap->max_inline_data)
        payload = cap->max_inline_data;
    uint32_t blocks = (head + payload + WQE_BLOCK - 1) / WQE_BLOCK;
    qp->sq_stride = blocks;
    uint32_t inline_room = blocks * WQE_BLOCK - head;
    cap->max_inline_data = inline_room < MAX_INLINE ? inline_room : MAX_INLINE;
    qp->sq_blocks = (cap->max_send_wr + 1) * blocks;
    if (qp->srq != NULL)
        cap->max_recv_wr = cap->max_recv_sge = 0;
    qp->rq_max = cap->max_recv_wr;
}

static void *pages(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static size_t sq_bytes(const struct qp *qp)
{
    return (size_t)qp->sq_blocks * WQE_BLOCK;
}

static int make_send_queue(struct qp *qp)
{
    uint32_t entries = round_pow2(qp->cap.max_send_wr + 1);
    qp->cqe_mask = entries - 1;
    qp->sq = pages(sq_bytes(qp));
    if (qp->sq == NULL)
        return ENOMEM;
    qp->cqes = pages(entries * sizeof *qp->cqes);
    if (qp->cqes == NULL) {
        munmap(qp->sq, sq_bytes(qp));
        return ENOMEM;
    }
    return 0;
}

static void unmake_send_queue(struct qp *qp)
{
    munmap(qp->cqes, (qp->cqe_mask + 1) * sizeof *qp->cqes);
    munmap(qp->sq, sq_bytes(qp));
}

/* A slot and a number for it; slots are used in turn, so that a stale number stays stale. Under
 * ctx->lock. */
static int take_slot(struct ctx *ctx, struct qp *qp)
{
    /* A number that is left out may cost a turn. */
    for (uint32_t i = 0; i < QPS_MAX + 2 && ctx->qp_count < MAX_QP; i++) {
        uint32_t index = (ctx->next_qp + i) & 0xffff;
        uint32_t slot = index % QPS_MAX;
        if (atomic_load(&ctx->qps[slot]) != NULL || (ctx->slot == 0 && index < 2))
            continue;
        int err = nic_member_commit(ctx, &ctx->member->qp[slot], sizeof(struct shared_qp));
        if (err != 0)
            return err;
        ctx->next_qp = index + 1;
        ctx->qp_count++;
        qp->slot = slot;
        qp->shared = &ctx->member->qp[slot];
        qp->ex.qp_base.qp_num = ctx->slot << 16 | index;
        return 0;
    }
    return ENOMEM;
}

/* With a shared receive queue, one that holds all that can be taken from it. */
static int make_shared(struct ctx *ctx, struct qp *qp, const struct pd *pd)
{
    uint32_t wrs = qp->srq != NULL ? qp->srq->max_wr : qp->rq_max;
    uint32_t sges = qp->srq != NULL ? qp->srq->max_sge : qp->cap.max_recv_sge;
    uint32_t entries = round_pow2(wrs == 0 ? 1 : wrs);
    uint32_t stride = (uint32_t)(offsetof(struct recv_wqe, sge) + sges * sizeof(struct shared_sge));
    stride = (stride + WQE_BLOCK - 1) / WQE_BLOCK * WQE_BLOCK;
    qp->rq_ids = calloc(entries, sizeof *qp->rq_ids);
    if (qp->rq_ids == NULL)
        return ENOMEM;
    int err = take_slot(ctx, qp);
    if (err != 0)
        return err;
    qp->rq_mask = entries - 1;
    qp->rq_stride = stride;
    qp->rq_bytes = (uint64_t)entries * stride;
    uint64_t offset = nic_heap_alloc(ctx, qp->rq_bytes);
    if (offset == 0) {
        ctx->qp_count--;
        return ENOMEM;
    }
    qp->rq = (uint8_t *)ctx->member + offset;
    struct shared_qp *sqp = qp->shared;
    nic_inbound_lock(ctx, sqp);
    atomic_store(&sqp->state, IBV_QPS_RESET);
    sqp->dest_qpn = sqp->dest_ip = 0;
    sqp->access = 0;
    sqp->pd = pd->number;
    sqp->qkey = 0;
    sqp->srq = (uint16_t)(qp->srq != NULL ? qp->srq->index + 1 : 0);
    sqp->type = (uint8_t)qp->ex.qp_base.qp_type;
    sqp->recv_cq = to_cq(qp->ex.qp_base.recv_cq)->index;
    sqp->rq_mask = entries - 1;
    sqp->rq_stride = stride;
    sqp->rq_offset = offset;
    atomic_store(&sqp->rq_posted, 0);
    atomic_store(&sqp->rq_consumed, 0);
    atomic_store(&sqp->established, 0);
    atomic_store(&sqp->last_wqe, 0);
    atomic_store(&sqp->qpn, qp->ex.qp_base.qp_num);
    nic_inbound_unlock(sqp);
    return 0;
}

/* What a transport carries, and who works its send queue off. */
static const struct transport {
    enum ibv_qp_type type;
    uint8_t first_opcode, last_opcode; /* enum ibv_wr_opcode */
    bool (*execute)(struct qp *qp, uint32_t limit);
    uint64_t ops; /* enum ibv_qp_create_send_ops_flags */
} transports[] = {
    {IBV_QPT_RC, IBV_WR_RDMA_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD, nic_execute,
     IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
         IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
         IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD},
    {IBV_QPT_UC, IBV_WR_RDMA_WRITE, IBV_WR_SEND_WITH_IMM, nic_execute_unreliable,
     IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
         IBV_QP_EX_WITH_SEND_WITH_IMM},
    {IBV_QPT_UD, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, nic_execute_unreliable,
     IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM},
};

static const struct transport *transport_of(enum ibv_qp_type type)
{
    for (unsigned i = 0; i < sizeof transports / sizeof *transports; i++)
        if (transports[i].type == type)
            return &transports[i];
    return NULL;
}

static int check_init(const struct ctx *ctx, const struct ibv_qp_init_attr_ex *attr)
{
    const struct transport *transport = transport_of(attr->qp_type);
    if (transport == NULL)
        return EOPNOTSUPP;
    if ((attr->comp_mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
                                       IBV_QP_INIT_ATTR_CREATE_FLAGS)) != 0)
        return EOPNOTSUPP;
    if ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attr->create_flags != 0)
        return EOPNOTSUPP;
    if ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 &&
        (attr->send_ops_flags & ~transport->ops) != 0)
        return EOPNOTSUPP;
    if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr->pd == NULL || attr->send_cq == NULL ||
        attr->recv_cq == NULL)
        return EINVAL;
    if (to_ctx(attr->pd->context) != ctx || to_cq(attr->send_cq)->ctx != ctx ||
        to_cq(attr->recv_cq)->ctx != ctx)
        return EINVAL;
    /* Receives are checked against the protection domain of their queue pair. */
    if (attr->srq != NULL && attr->srq->pd != attr->pd)
        return EINVAL;
    return check_caps(&attr->cap);
}

static void fill_base(struct qp *qp, struct ibv_context *context,
                      const struct ibv_qp_init_attr_ex *attr)
{
    struct ibv_qp *base = &qp->ex.qp_base;
    base->context = context;
    base->qp_context = attr->qp_context;
    base->pd = attr->pd;
    base->send_cq = attr->send_cq;
    base->recv_cq = attr->recv_cq;
    base->srq = attr->srq;
    base->qp_type = attr->qp_type;
    base->state = IBV_QPS_RESET;
    pthread_mutex_init(&base->mutex, NULL);
    pthread_cond_init(&base->cond, NULL);
    qp->ctx = to_ctx(context);
    qp->sig_all = attr->sq_sig_all != 0;
    qp->has_ex = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
    const struct transport *transport = transport_of(attr->qp_type);
    qp->execute = transport->execute;
    qp->first_opcode = transport->first_opcode;
    qp->opcode_span = transport->last_opcode - transport->first_opcode;
    qp->datagram = attr->qp_type == IBV_QPT_UD;
    qp->srq = (struct srq *)attr->srq;
    settle_caps(qp, &attr->cap);
    qp->init =
        (struct ibv_qp_init_attr){attr->qp_context, attr->send_cq, attr->recv_cq,   attr->srq,
                                  qp->cap,          attr->qp_type, attr->sq_sig_all};
    qp->attr.qp_state = IBV_QPS_RESET;
    qp->attr.cap = qp->cap;
    atomic_store(&qp->wake_ns, UINT64_MAX);
}

struct ibv_qp *softnic_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    struct ctx *ctx = to_ctx(context);
    int err = nic_after_fork(ctx) ? nic_refuse_child(ctx) : check_init(ctx, attr);
    if (err != 0) {
        errno = err;
        return NULL;
    }
    struct qp *qp =
        aligned_alloc(CACHE_LINE, (sizeof *qp + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    if (qp == NULL)
        return NULL;
    memset(qp, 0, sizeof *qp);
    fill_base(qp, context, attr);
    err = make_send_queue(qp);
    if (err != 0)
        goto free_qp;
    err = qp->datagram ? nic_destinations_create(qp) : 0;
    if (err != 0)
        goto free_queue;
    struct pd *pd = (struct pd *)attr->pd;
    pthread_mutex_lock(&ctx->lock);
    err = make_shared(ctx, qp, pd);
    if (err == 0) {
        to_cq(attr->send_cq)->users++;
        to_cq(attr->recv_cq)->users++;
        if (qp->srq != NULL)
            qp->srq->users++;
        atomic_fetch_add(&pd->users, 1);
        atomic_store(&ctx->qps[qp->slot], qp);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (err != 0)
        goto free_destinations;
    qp->ex.qp_base.handle = qp->slot;
    nic_wr_api(qp);
    attr->cap = qp->cap;
    return &qp->ex.qp_base;
free_destinations:
    free(qp->rq_ids);
    nic_destinations_destroy(qp);
free_queue:
    unmake_send_queue(qp);
free_qp:
    free(qp);
    errno = err;
    return NULL;
}

struct ibv_qp *softnic_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp_init_attr_ex ex = {.qp_context = attr->qp_context,
                                     .send_cq = attr->send_cq,
                                     .recv_cq = attr->recv_cq,
                                     .srq = attr->srq,
                                     .cap = attr->cap,
                                     .qp_type = attr->qp_type,
                                     .sq_sig_all = attr->sq_sig_all,
                                     .comp_mask = IBV_QP_INIT_ATTR_PD,
                                     .pd = pd};
    struct ibv_qp *qp = softnic_create_qp_ex(pd->context, &ex);
    if (qp != NULL)
        attr->cap = ex.cap;
    return qp;
}

struct ibv_qp_ex *softnic_qp_to_qp_ex(struct ibv_qp *base)
{
    struct qp *qp = to_qp(base);
    return qp->has_ex ? &qp->ex : NULL;
}

static void wait_for_acks(struct qp *qp)
{
    struct ibv_qp *base = &qp->ex.qp_base;
    pthread_mutex_lock(&base->mutex);
    while (base->events_completed != qp->events_given)
        pthread_cond_wait(&base->cond, &base->mutex);
    pthread_mutex_unlock(&base->mutex);
    pthread_mutex_destroy(&base->mutex);
    pthread_cond_destroy(&base->cond);
}

int softnic_destroy_qp(struct ibv_qp *base)
{
    struct qp *qp = to_qp(base);
    struct ctx *ctx = qp->ctx;
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    if (nic_builds_here(qp))
        return EBUSY; /* ibv_wr_complete or ibv_wr_abort comes first */
    nic_late_finish(qp);
    pthread_mutex_lock(&ctx->lock);
    nic_wait_remove(qp);
    nic_cq_lock_both(qp);
    spin_lock(&qp->sq_lock);
    nic_late_drop(qp);
    nic_inbound_lock(ctx, qp->shared);
    nic_counters_keep_qp(ctx->member, qp->shared);
    atomic_store(&qp->shared->qpn, 0);
    atomic_store(&qp->shared->state, IBV_QPS_RESET);
    nic_inbound_unlock(qp->shared);
    nic_cq_forget(qp);
    atomic_store(&ctx->qps[qp->slot], NULL);
    spin_unlock(&qp->sq_lock);
    nic_cq_unlock_both(qp);
    nic_heap_free(ctx, (uint64_t)(qp->rq - (uint8_t *)ctx->member), qp->rq_bytes);
    ctx->qp_count--;
    to_cq(base->send_cq)->users--;
    to_cq(base->recv_cq)->users--;
    if (qp->srq != NULL)
        qp->srq->users--;
    atomic_fetch_sub(&((struct pd *)base->pd)->users, 1);
    pthread_mutex_unlock(&ctx->lock);
    if (qp->peer != NULL)
        nic_peer_put(ctx, qp->peer);
    nic_destinations_destroy(qp);
    wait_for_acks(qp);
    unmake_send_queue(qp);
    free(qp->rq_ids);
    free(qp);
    return 0;
}

int softnic_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int attr_mask,
                     struct ibv_qp_init_attr *init_attr)
{
    struct qp *qp = to_qp(base);
    (void)attr_mask; /* all is at hand */
    if (nic_after_fork(qp->ctx))
        return nic_refuse_child(qp->ctx);
    /* Not the lock of the send queue: it may be held from ibv_wr_start on, by this very thread. */
    spin_lock(&qp->attr_lock);
    *attr = qp->attr;
    *init_attr = qp->init;
    attr->qp_state = (enum ibv_qp_state)atomic_load(&qp->shared->state);
    attr->cur_qp_state = attr->qp_state;
    attr->cap = qp->cap;
    attr->sq_draining = 0;
    base->state = attr->qp_state;
    spin_unlock(&qp->attr_lock);
    return 0;
}
