/* SPDX-License-Identifier: MIT */
/* The checking decorator: which objects there are, and what is left of them. */
#include "transport/decorators/check_private.h"
#include <errno.h>
#include <stdlib.h>

static const char *const kind_names[] = {"protection domain",    "region",
                                         "completion channel",   "completion queue",
                                         "shared receive queue", "queue pair"};

/* As in faults.c: an entry that libibverbs has not called since its ABI grew takes the address. */
static void *(**place_of(const struct ibv_context *context))(void)
{
    return (void *(**)(void))(uintptr_t)&context->ops._compat_alloc_pd;
}

struct check *check_of(const struct ibv_context *context)
{
    return (struct check *)(uintptr_t)*place_of(context);
}

struct object *check_find(struct check *c, const void *any)
{
    struct object *o = c->objects;
    while (o && o->any != any)
        o = o->next;
    return o;
}

struct object *check_find_qp(struct check *c, uint32_t qp_num)
{
    struct object *o = c->objects;
    while (o && !(o->kind == CHECK_QP && o->qp->qp_num == qp_num))
        o = o->next;
    return o;
}

/* It was made. NULL where there is no memory: then it is not looked at. */
static struct object *add(struct check *c, enum kind kind, void *any)
{
    struct object *o = any ? calloc(1, sizeof *o) : NULL;
    if (!o)
        return NULL;
    o->kind = kind;
    o->any = any;
    check_mark_gone(any, false);
    pthread_mutex_lock(&c->lock);
    o->next = c->objects;
    c->objects = o;
    pthread_mutex_unlock(&c->lock);
    return o;
}

/* It is about to be destroyed; back again where that fails. */
static struct object *take_out(struct check *c, const void *any)
{
    pthread_mutex_lock(&c->lock);
    struct object **at = &c->objects;
    while (*at && (*at)->any != any)
        at = &(*at)->next;
    struct object *o = *at;
    if (o)
        *at = o->next;
    pthread_mutex_unlock(&c->lock);
    return o;
}

static int destroyed(struct check *c, struct object *o, int err)
{
    if (!o)
        return err;
    pthread_mutex_lock(&c->lock);
    if (err) {
        o->next = c->objects;
        c->objects = o;
    }
    pthread_mutex_unlock(&c->lock);
    if (err)
        return err;
    check_mark_gone(o->any, true);
    check_requests_free(&o->sends);
    check_requests_free(&o->receives);
    free(o);
    return 0;
}

/* ---- making and unmaking --------------------------------------------------------------------- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
    struct check *c = check_of(context);
    struct ibv_pd *pd = c->inner->alloc_pd(context);
    add(c, CHECK_PD, pd);
    return pd;
}

static struct ibv_mr *add_region(struct check *c, struct ibv_mr *mr, uint64_t from, int access)
{
    struct object *o = add(c, CHECK_MR, mr);
    if (o) {
        o->from = from;
        o->access = access;
    }
    return mr;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    struct check *c = check_of(pd->context);
    return add_region(c, c->inner->reg_mr(pd, addr, length, access), (uintptr_t)addr, access);
}

static struct ibv_mr *reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                  int access)
{
    struct check *c = check_of(pd->context);
    return add_region(c, c->inner->reg_mr_iova(pd, addr, length, iova, access), iova, access);
}

static int rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                    int access)
{
    struct check *c = check_of(mr->context);
    int err = c->inner->rereg_mr(mr, flags, pd, addr, length, access);
    pthread_mutex_lock(&c->lock);
    struct object *o = err ? NULL : check_find(c, mr);
    if (o && flags & IBV_REREG_MR_CHANGE_TRANSLATION)
        o->from = (uintptr_t)addr;
    if (o && flags & IBV_REREG_MR_CHANGE_ACCESS)
        o->access = access;
    pthread_mutex_unlock(&c->lock);
    return err;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
    struct check *c = check_of(context);
    struct ibv_comp_channel *channel = c->inner->create_comp_channel(context);
    add(c, CHECK_CHANNEL, channel);
    return channel;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                struct ibv_comp_channel *channel, int comp_vector)
{
    struct check *c = check_of(context);
    struct ibv_cq *cq = c->inner->create_cq(context, cqe, cq_context, channel, comp_vector);
    add(c, CHECK_CQ, cq);
    return cq;
}

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    struct check *c = check_of(pd->context);
    struct ibv_srq *srq = c->inner->create_srq(pd, attr);
    add(c, CHECK_SRQ, srq);
    return srq;
}

static void add_qp(struct check *c, struct ibv_qp *qp, uint32_t max_send_wr, bool sig_all)
{
    struct object *o = add(c, CHECK_QP, qp);
    if (!o)
        return;
    o->state = IBV_QPS_RESET;
    o->max_send_wr = max_send_wr;
    o->sig_all = sig_all;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct check *c = check_of(pd->context);
    struct ibv_qp *qp = c->inner->create_qp(pd, attr);
    add_qp(c, qp, attr->cap.max_send_wr, attr->sq_sig_all);
    return qp;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    struct check *c = check_of(context);
    struct ibv_qp *qp = c->create_qp_ex(context, attr);
    add_qp(c, qp, attr->cap.max_send_wr, attr->sq_sig_all);
    return qp;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    struct check *c = check_of(qp->context);
    int err = c->inner->modify_qp(qp, attr, mask);
    if (err || !(mask & IBV_QP_STATE))
        return err;
    pthread_mutex_lock(&c->lock);
    struct object *o = check_find(c, qp);
    if (o)
        o->state = attr->qp_state;
    if (o && attr->qp_state == IBV_QPS_RESET)
        check_forget(c, o);
    pthread_mutex_unlock(&c->lock);
    return 0;
}

static int destroy_qp(struct ibv_qp *qp)
{
    if (check_is_gone(qp))
        return check_gone(qp, "ibv_destroy_qp");
    struct check *c = check_of(qp->context);
    pthread_mutex_lock(&c->lock);
    struct object *o = check_find(c, qp);
    if (o)
        check_forget(c, o);
    pthread_mutex_unlock(&c->lock);
    o = take_out(c, qp);
    return destroyed(c, o, c->inner->destroy_qp(qp));
}

#define DESTROY(name, type, call)                                                                  \
    static int name(struct type *object)                                                           \
    {                                                                                              \
        if (check_is_gone(object))                                                                 \
            return check_gone(object, call);                                                       \
        struct check *c = check_of(object->context);                                               \
        struct object *o = take_out(c, object);                                                    \
        return destroyed(c, o, c->inner->name(object));                                            \
    }
DESTROY(dealloc_pd, ibv_pd, "ibv_dealloc_pd")
DESTROY(dereg_mr, ibv_mr, "ibv_dereg_mr")
DESTROY(destroy_comp_channel, ibv_comp_channel, "ibv_destroy_comp_channel")
DESTROY(destroy_cq, ibv_cq, "ibv_destroy_cq")
DESTROY(destroy_srq, ibv_srq, "ibv_destroy_srq")

/* ---- polling --------------------------------------------------------------------------------- */

static int poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
    struct check *c = check_of(cq->context);
    int n = c->ops.poll_cq(cq, num_entries, wc);
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < n; i++)
        check_completed(c, wc[i].qp_num, wc[i].wr_id, wc[i].status, wc[i].opcode);
    pthread_mutex_unlock(&c->lock);
    return n;
}

static void polled(struct check *c, struct ibv_cq_ex *cq)
{
    pthread_mutex_lock(&c->lock);
    check_completed(c, ibv_wc_read_qp_num(cq), cq->wr_id, cq->status, ibv_wc_read_opcode(cq));
    pthread_mutex_unlock(&c->lock);
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
    struct check *c = check_of(cq->context);
    pthread_mutex_lock(&c->lock);
    int (*inner)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *) = check_find(c, cq)->start_poll;
    pthread_mutex_unlock(&c->lock);
    int err = inner(cq, attr);
    if (!err)
        polled(c, cq);
    return err;
}

static int next_poll(struct ibv_cq_ex *cq)
{
    struct check *c = check_of(cq->context);
    pthread_mutex_lock(&c->lock);
    int (*inner)(struct ibv_cq_ex *) = check_find(c, cq)->next_poll;
    pthread_mutex_unlock(&c->lock);
    int err = inner(cq);
    if (!err)
        polled(c, cq);
    return err;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    struct check *c = check_of(context);
    attr->wc_flags |= IBV_WC_EX_WITH_QP_NUM;
    struct ibv_cq_ex *cq = c->create_cq_ex(context, attr);
    struct object *o = add(c, CHECK_CQ, cq);
    if (o) {
        o->start_poll = cq->start_poll;
        o->next_poll = cq->next_poll;
        cq->start_poll = start_poll;
        cq->next_poll = next_poll;
    }
    return cq;
}

/* ---- attaching ------------------------------------------------------------------------------- */

/* What the program has not destroyed, by kind. */
static void say_what_is_left(struct check *c)
{
    unsigned left[CHECK_KINDS] = {0};
    for (const struct object *o = c->objects; o; o = o->next)
        left[o->kind]++;
    for (int kind = 0; kind < CHECK_KINDS; kind++)
        if (left[kind])
            (c->leftovers_pass ? check_say : check_found)(
                c, "ibv_close_device: %u %s%s not destroyed", left[kind], kind_names[kind],
                left[kind] == 1 ? " was" : "s were");
}

static int close_device(struct ibv_context *context)
{
    struct check *c = check_of(context);
    struct verbs_context *vctx = verbs_get_ctx(context);
    const struct verbs *inner = c->inner;
    say_what_is_left(c);
    while (c->objects) {
        struct object *o = c->objects;
        c->objects = o->next;
        if (o->start_poll) {
            struct ibv_cq_ex *cq = (struct ibv_cq_ex *)o->cq;
            cq->start_poll = o->start_poll;
            cq->next_poll = o->next_poll;
        }
        check_requests_free(&o->sends);
        check_requests_free(&o->receives);
        free(o);
    }
    context->ops = c->ops;
    if (vctx) {
        vctx->create_qp_ex = c->create_qp_ex;
        vctx->create_cq_ex = c->create_cq_ex;
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
    return inner->close_device(context);
}

static void fill_table(struct verbs *table, const struct verbs *inner)
{
    *table = *inner;
    table->close_device = close_device;
    table->alloc_pd = alloc_pd;
    table->dealloc_pd = dealloc_pd;
    table->reg_mr = reg_mr;
    table->reg_mr_iova = reg_mr_iova;
    table->rereg_mr = rereg_mr;
    table->dereg_mr = dereg_mr;
    table->create_comp_channel = create_comp_channel;
    table->destroy_comp_channel = destroy_comp_channel;
    table->create_cq = create_cq;
    table->create_cq_ex = create_cq_ex;
    table->destroy_cq = destroy_cq;
    table->poll_cq = poll_cq;
    table->create_srq = create_srq;
    table->destroy_srq = destroy_srq;
    table->post_srq_recv = check_post_srq_recv;
    table->create_qp = create_qp;
    table->create_qp_ex = create_qp_ex;
    table->modify_qp = modify_qp;
    table->destroy_qp = destroy_qp;
    table->post_send = check_post_send;
    table->post_recv = check_post_recv;
}

int check_attach(struct ibv_context *context, const struct check_attr *attr)
{
    struct verbs_context *vctx = verbs_get_ctx(context);
    struct check *c = calloc(1, sizeof *c);
    if (!c)
        return ENOMEM;
    c->inner = attr->inner;
    c->context = context;
    c->say = attr->say;
    c->leftovers_pass = attr->leftovers_pass;
    c->arg = attr->arg;
    pthread_mutex_init(&c->lock, NULL);
    fill_table(&c->table, attr->inner);
    c->ops = context->ops;
    context->ops.post_send = check_post_send;
    context->ops.post_recv = check_post_recv;
    context->ops.post_srq_recv = check_post_srq_recv;
    context->ops.poll_cq = poll_cq;
    if (vctx) {
        c->create_qp_ex = vctx->create_qp_ex;
        c->create_cq_ex = vctx->create_cq_ex;
        if (c->create_qp_ex)
            vctx->create_qp_ex = create_qp_ex;
        if (c->create_cq_ex)
            vctx->create_cq_ex = create_cq_ex;
    }
    *place_of(context) = (void *(*)(void))(uintptr_t)c;
    return 0;
}

const struct verbs *check_table(const struct ibv_context *context)
{
    /* A decorator above may have put itself in the place of our calls. */
    const struct check *c = check_of(context);
    return c && c->table.close_device == close_device ? &c->table : NULL;
}
