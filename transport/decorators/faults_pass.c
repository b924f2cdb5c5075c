/* SPDX-License-Identifier: MIT */
/* Calls that are passed on as they are. */
#include "transport/decorators/faults_private.h"

static const struct verbs *inner(const struct ibv_context *context)
{
    return faults_of(context)->inner;
}

int faults_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    return inner(context)->query_device(context, attr);
}

int faults_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    return inner(context)->query_gid(context, port, index, gid);
}

int faults_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                        struct ibv_gid_entry *entry, uint32_t flags)
{
    return inner(context)->query_gid_ex(context, port, index, entry, flags);
}

ssize_t faults_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                               size_t max_entries, uint32_t flags)
{
    return inner(context)->query_gid_table(context, entries, max_entries, flags);
}

int faults_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    return inner(context)->query_pkey(context, port, index, pkey);
}

int faults_query_device_ex(struct ibv_context *context,
                           const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *attr)
{
    return inner(context)->query_device_ex(context, input, attr);
}

int faults_time_device(struct ibv_qp *qp, const bool *wanted, uint64_t *ticks)
{
    return inner(qp->context)->time_device(qp, wanted, ticks);
}

/* A rule may hold back what the device would show. */
int faults_next_poll(struct ibv_cq *cq, uint64_t *at_ns)
{
    (void)cq;
    (void)at_ns;
    return EOPNOTSUPP;
}

int faults_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
    return inner(context)->query_rt_values(context, values);
}

int faults_dealloc_pd(struct ibv_pd *pd)
{
    return inner(pd->context)->dealloc_pd(pd);
}

int faults_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                    int access)
{
    return inner(mr->context)->rereg_mr(mr, flags, pd, addr, length, access);
}

int faults_dereg_mr(struct ibv_mr *mr)
{
    return inner(mr->context)->dereg_mr(mr);
}

int faults_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    return inner(channel->context)->destroy_comp_channel(channel);
}

int faults_resize_cq(struct ibv_cq *cq, int cqe)
{
    return inner(cq->context)->resize_cq(cq, cqe);
}

int faults_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
                           struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
    return inner(context)->init_ah_from_wc(context, port, wc, grh, attr);
}

int faults_destroy_ah(struct ibv_ah *ah)
{
    return inner(ah->context)->destroy_ah(ah);
}

int faults_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
    return inner(srq->context)->modify_srq(srq, attr, mask);
}

int faults_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
    return inner(srq->context)->query_srq(srq, attr);
}

int faults_destroy_srq(struct ibv_srq *srq)
{
    return inner(srq->context)->destroy_srq(srq);
}

int faults_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return faults_of(srq->context)->ops.post_srq_recv(srq, wr, bad);
}

struct ibv_qp_ex *faults_qp_to_qp_ex(struct ibv_qp *qp)
{
    return inner(qp->context)->qp_to_qp_ex(qp);
}

int faults_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                    struct ibv_qp_init_attr *init_attr)
{
    return inner(qp->context)->query_qp(qp, attr, mask, init_attr);
}
