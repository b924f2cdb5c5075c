/* SPDX-License-Identifier: MIT */
/* Protection domains and memory regions. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

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
                      IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_HUGETLB | IBV_ACCESS_ON_DEMAND |
                      IBV_ACCESS_OPTIONAL_RANGE;
    if ((access & ~known) != 0)
        return (access & (IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED)) != 0 ? EOPNOTSUPP : EINVAL;
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
        struct shared_mr *smr = &ctx->own->mr[at];
        if (at == 0 || atomic_load(&smr->busy) != 0)
            continue;
        int err = nic_member_commit(ctx, &ctx->member->mr[at], sizeof *smr);
        if (err != 0)
            return err;
        atomic_store(&smr->busy, 1);
        atomic_store(&ctx->member->mr[at].busy, 1);
        ctx->next_mr = at + 1;
        if (ctx->mr_end <= at)
            ctx->mr_end = at + 1;
        *index = at;
        return 0;
    }
    return ENOMEM;
}

enum { PAGE = 4096 };

/* What a region is to be. */
struct region {
    struct pd *pd;
    void *addr;
    size_t length;
    uint64_t iova;
    int access;
    struct fd_share *share; /* peers can map what lies between head and tail of it, at offset */
    uint64_t offset;
    uint16_t head, tail;
};

/* What peers see of it. */
static void show(struct ctx *ctx, uint32_t index)
{
    const struct shared_mr *own = &ctx->own->mr[index];
    struct shared_mr *shown = &ctx->member->mr[index];
    shown->pd = own->pd;
    shown->access = own->access;
    shown->addr = own->addr;
    shown->shift = own->shift;
    shown->length = own->length;
    shown->backing = own->backing;
    shown->fd = own->fd;
    shown->file_offset = own->file_offset;
    shown->head = own->head;
    shown->tail = own->tail;
    atomic_store(&shown->key, atomic_load(&own->key));
}

static int check_region(const struct region *r)
{
    if (r->length == 0 || (uintptr_t)r->addr + r->length < (uintptr_t)r->addr ||
        r->iova + r->length < r->iova)
        return EINVAL;
    return check_access(r->access);
}

/* What stands behind the region; where that is private memory, its whole pages may be exchanged.
 * Under ctx->lock, as the next two. */
static int find_backing(struct ctx *ctx, struct region *r)
{
    bool write = (r->access & IBV_ACCESS_LOCAL_WRITE) != 0;
    int err = nic_backing_find(ctx, r->addr, r->length, write, &r->share, &r->offset);
    /* What is paged on demand may be mapped anew while it is registered. */
    if (err != 0 || r->share != NULL || !ctx->share_pages ||
        (r->access & IBV_ACCESS_ON_DEMAND) != 0)
        return err;
    uint8_t *addr = r->addr;
    uint16_t head = -(uintptr_t)addr % PAGE, tail = (uintptr_t)(addr + r->length) % PAGE;
    if (r->length < (size_t)head + tail + PAGE)
        return 0;
    int fd = nic_pages_share(ctx, addr, r->length);
    err = nic_backing_find(ctx, addr + head, r->length - head - tail, write, &r->share, &r->offset);
    if (fd >= 0)
        close(fd); /* r->share has its own */
    if (nic_no_fd_left(err))
        err = 0; /* what only this process has may be reached through the kernel as well */
    if (err == 0 && r->share != NULL) {
        r->head = head;
        r->tail = tail;
    }
    return err;
}

/* The entry is ours, and nobody uses it. */
static void fill_entry(struct ctx *ctx, struct mr *mr, const struct region *r)
{
    struct shared_mr *smr = &ctx->own->mr[mr->index];
    mr->share = r->share;
    mr->base.pd = &r->pd->base;
    mr->base.addr = r->addr;
    mr->base.length = r->length;
    mr->access = r->access;
    smr->pd = r->pd->number;
    smr->access = (uint32_t)r->access;
    smr->addr = r->iova;
    smr->shift = (uint64_t)(uintptr_t)r->addr - r->iova;
    smr->length = r->length;
    smr->backing = r->share != NULL ? MR_SHARED : MR_PRIVATE;
    smr->fd = r->share != NULL ? nic_share_fd(r->share) : -1;
    smr->file_offset = r->offset;
    smr->head = r->head;
    smr->tail = r->tail;
    smr->generation = mr->base.lkey & 0xff;
    atomic_store(&smr->key, mr->base.lkey);
}

static void take_key(struct ctx *ctx, struct mr *mr)
{
    uint32_t generation = (ctx->member->mr[mr->index].generation + 1) & 0xff;
    mr->base.lkey = mr->base.rkey = mr->index << 8 | generation;
}

static int register_region(struct ctx *ctx, struct mr *mr, struct region *r)
{
    int err = find_backing(ctx, r);
    if (err != 0)
        return err;
    err = take_entry(ctx, &mr->index);
    if (err != 0) {
        nic_share_put(ctx, r->share);
        nic_pages_unshare(ctx, r->addr, r->length);
        return err;
    }
    take_key(ctx, mr);
    fill_entry(ctx, mr, r);
    show(ctx, mr->index);
    return 0;
}

static void say_why(struct ctx *ctx, const struct region *r, int err)
{
    nic_error(ctx, "cannot register %zu bytes at %p: %s", r->length, r->addr,
              err == EFAULT         ? "not all of it is mapped with these rights"
              : nic_no_fd_left(err) ? "no file descriptor is left: raise the limit (ulimit -n)"
                                    : "no room");
}

struct ibv_mr *softnic_reg_mr_iova(struct ibv_pd *base, void *addr, size_t length, uint64_t iova,
                                   int access)
{
    struct ctx *ctx = to_ctx(base->context);
    struct region r = {
        .pd = (struct pd *)base, .addr = addr, .length = length, .iova = iova, .access = access};
    if (nic_after_fork(ctx)) {
        errno = nic_refuse_child(ctx);
        return NULL;
    }
    int err = check_region(&r);
    struct mr *mr = err == 0 ? calloc(1, sizeof *mr) : NULL;
    if (err == 0 && mr == NULL)
        err = ENOMEM;
    if (err != 0) {
        errno = err;
        return NULL;
    }
    mr->base.context = base->context;
    pthread_mutex_lock(&ctx->lock);
    err = register_region(ctx, mr, &r);
    pthread_mutex_unlock(&ctx->lock);
    if (err != 0) {
        say_why(ctx, &r, err);
        free(mr);
        errno = err;
        return NULL;
    }
    mr->base.handle = mr->index;
    atomic_fetch_add(&r.pd->users, 1);
    return &mr->base;
}

struct ibv_mr *softnic_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return softnic_reg_mr_iova(pd, addr, length, (uintptr_t)addr, access);
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
        /* Who builds a list uses nothing yet, and may be this very thread. */
        if (nic_builds_here(qp))
            continue;
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
    struct shared_mr *own = &ctx->own->mr[mr->index], *shown = &ctx->member->mr[mr->index];
    pthread_mutex_lock(&ctx->lock);
    atomic_store(&own->key, 0);
    atomic_store(&shown->key, 0);
    wait_for_users(ctx);
    atomic_store(&shown->busy, 0);
    atomic_store(&own->busy, 0);
    nic_share_put(ctx, mr->share);
    nic_pages_unshare(ctx, base->addr, base->length);
    pthread_mutex_unlock(&ctx->lock);
    atomic_fetch_sub(&((struct pd *)base->pd)->users, 1);
    free(mr);
    return 0;
}

/* The region as it is to be after ibv_rereg_mr; what the flags leave out stays. */
static int changed_region(const struct mr *mr, uint64_t iova, int flags, const struct region *wish,
                          struct region *r)
{
    const int known =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    if (flags == 0 || (flags & ~known) != 0)
        return EINVAL;
    *r = (struct region){.pd = (struct pd *)mr->base.pd,
                         .addr = mr->base.addr,
                         .length = mr->base.length,
                         .iova = iova,
                         .access = mr->access};
    if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
        r->addr = wish->addr;
        r->length = wish->length;
        r->iova = (uintptr_t)wish->addr;
    }
    if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) {
        if (wish->pd == NULL || wish->pd->base.context != mr->base.context)
            return EINVAL;
        r->pd = wish->pd;
    }
    if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0)
        r->access = wish->access;
    return check_region(r);
}

/* With another translation it has other keys. If it fails the region is as it was. */
int softnic_rereg_mr(struct ibv_mr *base, int flags, struct ibv_pd *pd, void *addr, size_t length,
                     int access)
{
    struct mr *mr = (struct mr *)base;
    struct ctx *ctx = to_ctx(base->context);
    struct shared_mr *smr = &ctx->own->mr[mr->index];
    const struct region wish = {
        .pd = (struct pd *)pd, .addr = addr, .length = length, .access = access};
    struct region r;
    if (nic_after_fork(ctx)) {
        errno = nic_refuse_child(ctx);
        return IBV_REREG_MR_ERR_INPUT;
    }
    pthread_mutex_lock(&ctx->lock);
    int err = changed_region(mr, smr->addr, flags, &wish, &r);
    if (err == 0)
        err = find_backing(ctx, &r);
    if (err == 0) {
        void *old = base->addr;
        size_t old_length = base->length;
        atomic_store(&smr->key, 0);
        atomic_store(&ctx->member->mr[mr->index].key, 0);
        wait_for_users(ctx);
        bool same_place = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) == 0 && r.share == mr->share &&
                          r.offset == smr->file_offset && r.head == smr->head &&
                          r.tail == smr->tail;
        nic_share_put(ctx, mr->share);
        atomic_fetch_sub(&((struct pd *)base->pd)->users, 1);
        atomic_fetch_add(&r.pd->users, 1);
        if (!same_place)
            take_key(ctx, mr); /* peers may have other memory mapped under the old one */
        fill_entry(ctx, mr, &r);
        show(ctx, mr->index);
        nic_pages_unshare(ctx, old, old_length);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (err == 0)
        return 0;
    say_why(ctx, &wish, err);
    errno = err;
    return IBV_REREG_MR_ERR_INPUT;
}
