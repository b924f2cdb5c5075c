/* SPDX-License-Identifier: MIT */
/* The table: calls that make and unmake objects, and those that are passed on as they are. */
#include "transport/decorators/faults_private.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool fails_with_errno(struct faults *f, enum fault_call call)
{
    int err;
    if (!faults_call_fails(f, call, &err))
        return false;
    errno = err;
    return true;
}

int faults_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                      size_t size)
{
    struct faults *f = faults_of(context);
    struct ibv_port_attr whole;
    int err = f->query_port(context, port, &whole, sizeof whole);
    if (err)
        return err;
    pthread_mutex_lock(&f->lock);
    uint64_t now = faults_now();
    if (faults_port_down_until(f, now) > now) {
        whole.state = IBV_PORT_DOWN;
        whole.phys_state = 3; /* disabled */
    }
    pthread_mutex_unlock(&f->lock);
    memcpy(attr, &whole, size < sizeof whole ? size : sizeof whole);
    return 0;
}

void faults_qp_free(struct faults *f, struct fault_qp *q)
{
    faults_discard(f, q);
    pthread_mutex_destroy(&q->building);
    builder_free(q->builder);
    free(q);
}

static struct ibv_device **no_device_list(int *num_devices)
{
    (void)num_devices;
    errno = EOPNOTSUPP;
    return NULL;
}

static void free_no_list(struct ibv_device **list)
{
    (void)list;
}

static const char *get_device_name(struct ibv_device *device)
{
    return device->name;
}

static struct ibv_context *open_nothing(struct ibv_device *device)
{
    (void)device;
    errno = EOPNOTSUPP;
    return NULL;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    struct faults *f = faults_of(context);
    return f->query_port ? faults_query_port(context, port, attr, sizeof *attr)
                         : f->inner->query_port(context, port, attr);
}

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
    struct faults *f = faults_of(context);
    return fails_with_errno(f, FAULT_CALL_ALLOC_PD) ? NULL : f->inner->alloc_pd(context);
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    struct faults *f = faults_of(pd->context);
    return fails_with_errno(f, FAULT_CALL_REG_MR) ? NULL
                                                  : f->inner->reg_mr(pd, addr, length, access);
}

static struct ibv_mr *reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                  int access)
{
    struct faults *f = faults_of(pd->context);
    return fails_with_errno(f, FAULT_CALL_REG_MR)
               ? NULL
               : f->inner->reg_mr_iova(pd, addr, length, iova, access);
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct faults *f = faults_of(pd->context);
    return fails_with_errno(f, FAULT_CALL_CREATE_AH) ? NULL : f->inner->create_ah(pd, attr);
}

static struct ibv_ah *create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                        uint8_t port)
{
    struct faults *f = faults_of(pd->context);
    return fails_with_errno(f, FAULT_CALL_CREATE_AH)
               ? NULL
               : f->inner->create_ah_from_wc(pd, wc, grh, port);
}

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    struct faults *f = faults_of(pd->context);
    if (fails_with_errno(f, FAULT_CALL_CREATE_SRQ))
        return NULL;
    faults_own_fd(f);
    struct ibv_srq *srq = f->inner->create_srq(pd, attr);
    faults_our_fd(f);
    return srq;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
    struct faults *f = faults_of(context);
    return fails_with_errno(f, FAULT_CALL_CREATE_COMP_CHANNEL)
               ? NULL
               : f->inner->create_comp_channel(context);
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                struct ibv_comp_channel *channel, int comp_vector)
{
    struct faults *f = faults_of(context);
    if (fails_with_errno(f, FAULT_CALL_CREATE_CQ))
        return NULL;
    faults_own_fd(f);
    struct ibv_cq *cq = f->inner->create_cq(context, cqe, cq_context, channel, comp_vector);
    faults_our_fd(f);
    if (cq && faults_cq_add(f, cq, NULL) != 0) {
        f->inner->destroy_cq(cq);
        errno = ENOMEM;
        return NULL;
    }
    return cq;
}

struct ibv_cq_ex *faults_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    struct faults *f = faults_of(context);
    if (fails_with_errno(f, FAULT_CALL_CREATE_CQ))
        return NULL;
    if (!f->create_cq_ex) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    faults_own_fd(f);
    struct ibv_cq_ex *cq = f->create_cq_ex(context, attr);
    faults_our_fd(f);
    if (cq && faults_cq_add(f, ibv_cq_ex_to_cq(cq), cq) != 0) {
        f->inner->destroy_cq(ibv_cq_ex_to_cq(cq));
        errno = ENOMEM;
        return NULL;
    }
    return cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
    struct faults *f = faults_of(cq->context);
    int err = f->inner->destroy_cq(cq);
    if (!err)
        faults_cq_remove(f, cq);
    return err;
}

/* From now on we know the queue pair. NULL, with it destroyed, where there is no memory for that.
 */
static struct ibv_qp *adopt(struct faults *f, struct ibv_qp *qp, const struct ibv_qp_cap *cap,
                            bool wr_calls)
{
    struct fault_qp *q = calloc(1, sizeof *q);
    struct builder *builder = builder_new();
    if (!q || !builder) {
        free(q);
        builder_free(builder);
        f->inner->destroy_qp(qp);
        errno = ENOMEM;
        return NULL;
    }
    q->qp = qp;
    q->qp_num = qp->qp_num;
    q->cap = *cap;
    q->builder = builder;
    pthread_mutex_init(&q->building, NULL);
    struct ibv_qp_ex *ex = wr_calls ? f->inner->qp_to_qp_ex(qp) : NULL;
    if (ex)
        faults_wr_api(ex);
    pthread_mutex_lock(&f->lock);
    struct fault_qp **bucket = &f->qps[qp->qp_num % QP_BUCKETS];
    q->number = f->next_number++;
    q->next = *bucket;
    *bucket = q;
    pthread_mutex_unlock(&f->lock);
    return qp;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct faults *f = faults_of(pd->context);
    if (fails_with_errno(f, FAULT_CALL_CREATE_QP))
        return NULL;
    faults_own_fd(f);
    struct ibv_qp *qp = f->inner->create_qp(pd, attr);
    faults_our_fd(f);
    return qp ? adopt(f, qp, &attr->cap, false) : NULL;
}

struct ibv_qp *faults_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    struct faults *f = faults_of(context);
    if (fails_with_errno(f, FAULT_CALL_CREATE_QP))
        return NULL;
    bool wr_calls = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
    struct ibv_qp *qp = NULL;
    faults_own_fd(f);
    if (attr->comp_mask == IBV_QP_INIT_ATTR_PD)
        qp = f->inner->create_qp(attr->pd, (struct ibv_qp_init_attr *)attr);
    else if (f->create_qp_ex)
        qp = f->create_qp_ex(context, attr);
    else
        errno = EOPNOTSUPP;
    faults_our_fd(f);
    return qp ? adopt(f, qp, &attr->cap, wr_calls) : NULL;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    struct faults *f = faults_of(qp->context);
    int err;
    if (faults_call_fails(f, FAULT_CALL_MODIFY_QP, &err))
        return err;
    err = f->inner->modify_qp(qp, attr, mask);
    if (err)
        return err;
    pthread_mutex_lock(&f->lock);
    struct fault_qp *q = faults_qp(f, qp);
    if (q && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR)
        faults_flush(f, q);
    if (q && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET)
        faults_discard(f, q);
    pthread_mutex_unlock(&f->lock);
    return 0;
}

static int destroy_qp(struct ibv_qp *qp)
{
    struct faults *f = faults_of(qp->context);
    pthread_mutex_lock(&f->lock);
    struct fault_qp **at = &f->qps[qp->qp_num % QP_BUCKETS];
    while (*at && (*at)->qp != qp)
        at = &(*at)->next;
    struct fault_qp *q = *at;
    if (q) /* nothing of it is to be posted from here on */
        *at = q->next;
    pthread_mutex_unlock(&f->lock);
    int err = f->inner->destroy_qp(qp);
    pthread_mutex_lock(&f->lock);
    if (q && err) { /* it is still there */
        struct fault_qp **bucket = &f->qps[qp->qp_num % QP_BUCKETS];
        q->next = *bucket;
        *bucket = q;
    } else if (q) {
        faults_async_forget(f, qp);
        faults_qp_free(f, q);
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct faults *f = faults_of(qp->context);
    int err;
    if (faults_call_fails(f, FAULT_CALL_POST_RECV, &err)) {
        *bad = wr;
        return err;
    }
    return f->ops.post_recv(qp, wr, bad);
}

const struct verbs verbs_faults = {
    .get_device_list = no_device_list,
    .free_device_list = free_no_list,
    .get_device_name = get_device_name,
    .open_device = open_nothing,
    .close_device = faults_close_device,
    .query_device = faults_query_device,
    .query_port = query_port,
    .query_gid = faults_query_gid,
    .query_gid_ex = faults_query_gid_ex,
    .query_gid_table = faults_query_gid_table,
    .query_pkey = faults_query_pkey,
    .query_device_ex = faults_query_device_ex,
    .query_rt_values = faults_query_rt_values,
    .time_device = faults_time_device,
    .next_poll = faults_next_poll,
    .get_async_event = faults_get_async_event,
    .ack_async_event = faults_ack_async_event,
    .alloc_pd = alloc_pd,
    .dealloc_pd = faults_dealloc_pd,
    .reg_mr = reg_mr,
    .reg_mr_iova = reg_mr_iova,
    .rereg_mr = faults_rereg_mr,
    .dereg_mr = faults_dereg_mr,
    .create_comp_channel = create_comp_channel,
    .destroy_comp_channel = faults_destroy_comp_channel,
    .create_cq = create_cq,
    .create_cq_ex = faults_create_cq_ex,
    .resize_cq = faults_resize_cq,
    .destroy_cq = destroy_cq,
    .req_notify_cq = faults_req_notify_cq,
    .get_cq_event = faults_get_cq_event,
    .ack_cq_events = faults_ack_cq_events,
    .poll_cq = faults_poll_cq,
    .create_ah = create_ah,
    .init_ah_from_wc = faults_init_ah_from_wc,
    .create_ah_from_wc = create_ah_from_wc,
    .destroy_ah = faults_destroy_ah,
    .create_srq = create_srq,
    .modify_srq = faults_modify_srq,
    .query_srq = faults_query_srq,
    .destroy_srq = faults_destroy_srq,
    .post_srq_recv = faults_post_srq_recv,
    .create_qp = create_qp,
    .create_qp_ex = faults_create_qp_ex,
    .qp_to_qp_ex = faults_qp_to_qp_ex,
    .modify_qp = modify_qp,
    .query_qp = faults_query_qp,
    .destroy_qp = destroy_qp,
    .post_send = faults_post_send,
    .post_recv = post_recv,
};
