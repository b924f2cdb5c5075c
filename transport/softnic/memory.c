/* SPDX-License-Identifier: MIT */
/* Protection domains and memory regions. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdlib.h>

struct ibv_pd *softnic_alloc_pd(struct ibv_context *context)
{
    struct ctx *ctx = to_ctx(context);
    if (nic_after_fork(ctx)) {
        errno = nic_refuse_child(ctx);
        return NULL;
    }
    struct pd *pd = calloc(1, sizeof *pd);
    if (pd == NULL)
        return NULL;
    if (atomic_fetch_add(&ctx->pd_count, 1) >= MAX_PD) {
        atomic_fetch_sub(&ctx->pd_count, 1);
        free(pd);
        errno = ENOMEM;
        return NULL;
    }
    pthread_mutex_lock(&ctx->lock);
    pd->number = ++ctx->next_pd;
    pthread_mutex_unlock(&ctx->lock);
    pd->base.context = context;
    pd->base.handle = pd->number;
    return &pd->base;
}

int softnic_dealloc_pd(struct ibv_pd *base)
{
    struct pd *pd = (struct pd *)base;
    if (atomic_load(&pd->users) != 0)
        return EBUSY;
    atomic_fetch_sub(&to_ctx(base->context)->pd_count, 1);
    free(pd);
    return 0;
}

static int check_access(int access)
{
    const int known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                      IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;
    if ((access & ~known) != 0)
        return (access & (IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND)) != 0
                   ? EOPNOTSUPP
                   : EINVAL;
    if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
        (access & IBV_ACCESS_LOCAL_WRITE) == 0)
        return EINVAL;
    return 0;
}

/* A free entry, the one given back longest ago first, so that a stale key stays stale for long. */
static int take_entry(struct ctx *ctx, uint32_t *index)
{
    for (uint32_t i = 0; i < MRS_MAX; i++) {
        uint32_t at = (ctx->next_mr + i) % MRS_MAX;
        if (at == 0 || atomic_load(&ctx->member->mr[at].busy) != 0)
            continue;
        struct shared_mr *smr = &ctx->member->mr[at];
        int err = nic_member_commit(ctx, smr, sizeof *smr);
        if (err != 0)
            return err;
        atomic_store(&smr->busy, 1);
        ctx->next_mr = at + 1;
        *index = at;
        return 0;
    }
    return ENOMEM;
}

static int register_region(struct ctx *ctx, struct mr *mr, const struct pd *pd, int access)
{
    uint64_t offset = 0;
    bool write = (access & IBV_ACCESS_LOCAL_WRITE) != 0;
    int err = nic_backing_find(ctx, mr->base.addr, mr->base.length, write, &mr->share, &offset);
    if (err != 0)
        return err;
    err = take_entry(ctx, &mr->index);
    if (err != 0) {
        nic_share_put(ctx, mr->share);
        return err;
    }
    struct shared_mr *smr = &ctx->member->mr[mr->index];
    smr->pd = pd->number;
    smr->access = (uint32_t)access;
    smr->addr = (uint64_t)(uintptr_t)mr->base.addr;
    smr->length = mr->base.length;
    smr->backing = mr->share != NULL ? MR_SHARED : MR_PRIVATE;
    smr->fd = mr->share != NULL ? nic_share_fd(mr->share) : -1;
    smr->file_offset = offset;
    uint32_t generation = smr->generation = (smr->generation + 1) & 0xff;
    mr->base.lkey = mr->base.rkey = mr->index << 8 | generation;
    atomic_store(&smr->key, mr->base.lkey);
    return 0;
}

struct ibv_mr *softnic_reg_mr(struct ibv_pd *base, void *addr, size_t length, int access)
{
    struct ctx *ctx = to_ctx(base->context);
    struct pd *pd = (struct pd *)base;
    if (nic_after_fork(ctx)) {
        errno = nic_refuse_child(ctx);
        return NULL;
    }
    int err = check_access(access);
    if (err == 0 && (length == 0 || (uintptr_t)addr + length < (uintptr_t)addr))
        err = EINVAL;
    struct mr *mr = err == 0 ? calloc(1, sizeof *mr) : NULL;
    if (err == 0 && mr == NULL)
        err = ENOMEM;
    if (err != 0) {
        errno = err;
        return NULL;
    }
    mr->base.context = base->context;
    mr->base.pd = base;
    mr->base.addr = addr;
    mr->base.length = length;
    pthread_mutex_lock(&ctx->lock);
    err = register_region(ctx, mr, pd, access);
    pthread_mutex_unlock(&ctx->lock);
    if (err != 0) {
        nic_error(ctx, "cannot register %zu bytes at %p: %s", length, addr,
                  err == EFAULT ? "not all of it is mapped with these rights" : "no room");
        free(mr);
        errno = err;
        return NULL;
    }
    mr->base.handle = mr->index;
    atomic_fetch_add(&pd->users, 1);
    return &mr->base;
}

/* Until nobody uses the invalidated key any more: peers write through our queue pairs' receiving
 * side, we read under the locks of our send queues. */
static void wait_for_users(struct ctx *ctx)
{
    for (unsigned slot = 0; slot < QPS_MAX; slot++) {
        struct qp *qp = atomic_load(&ctx->qps[slot]);
        if (qp == NULL)
            continue;
        nic_inbound_drain(qp->shared, ctx->token);
        spin_lock(&qp->sq_lock);
        spin_unlock(&qp->sq_lock);
    }
    pthread_mutex_lock(&ctx->late.lock);
    pthread_mutex_unlock(&ctx->late.lock);
}

int softnic_dereg_mr(struct ibv_mr *base)
{
    struct mr *mr = (struct mr *)base;
    struct ctx *ctx = to_ctx(base->context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    struct shared_mr *smr = &ctx->member->mr[mr->index];
    pthread_mutex_lock(&ctx->lock);
    atomic_store(&smr->key, 0);
    wait_for_users(ctx);
    atomic_store(&smr->busy, 0);
    nic_share_put(ctx, mr->share);
    pthread_mutex_unlock(&ctx->lock);
    atomic_fetch_sub(&((struct pd *)base->pd)->users, 1);
    free(mr);
    return 0;
}

struct ibv_mr *softnic_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                   int access)
{
    if (iova != (uintptr_t)addr) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    return softnic_reg_mr(pd, addr, length, access);
}

int softnic_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                     int access)
{
    (void)mr, (void)flags, (void)pd, (void)addr, (void)length, (void)access;
    errno = EOPNOTSUPP;
    return IBV_REREG_MR_ERR_INPUT; /* and the region is as it was */
}
