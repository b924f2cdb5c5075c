/* SPDX-License-Identifier: MIT */
/* The verbs table of libibverbs. What <infiniband/verbs.h> has as a macro or an inline function
 * stands here as a function of its own. */
#include "transport/verbs.h"
#include <errno.h>

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    return ibv_query_port(context, port, attr);
}

static int query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                        struct ibv_gid_entry *entry, uint32_t flags)
{
    return ibv_query_gid_ex(context, port, index, entry, flags);
}

static ssize_t query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                               size_t max_entries, uint32_t flags)
{
    return ibv_query_gid_table(context, entries, max_entries, flags);
}

static int query_device_ex(struct ibv_context *context,
                           const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *attr)
{
    return ibv_query_device_ex(context, input, attr);
}

static int query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
    return ibv_query_rt_values_ex(context, values);
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return ibv_reg_mr(pd, addr, length, access);
}

static struct ibv_mr *reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                  int access)
{
    return ibv_reg_mr_iova(pd, addr, length, iova, access);
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    return ibv_create_cq_ex(context, attr);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    return ibv_req_notify_cq(cq, solicited_only);
}

static int poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
    return ibv_poll_cq(cq, num_entries, wc);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    return ibv_post_srq_recv(srq, wr, bad_wr);
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    return ibv_create_qp_ex(context, attr);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
    return ibv_post_send(qp, wr, bad_wr);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    return ibv_post_recv(qp, wr, bad_wr);
}

static int time_device(struct ibv_qp *qp, const bool *wanted, uint64_t *ticks)
{
    (void)qp;
    (void)wanted;
    (void)ticks;
    return EOPNOTSUPP;
}

static int next_poll(struct ibv_cq *cq, uint64_t *at_ns)
{
    (void)cq;
    (void)at_ns;
    return EOPNOTSUPP;
}

const struct verbs verbs_ibverbs = {
    .get_device_list = ibv_get_device_list,
    .free_device_list = ibv_free_device_list,
    .get_device_name = ibv_get_device_name,
    .open_device = ibv_open_device,
    .close_device = ibv_close_device,
    .query_device = ibv_query_device,
    .query_port = query_port,
    .query_gid = ibv_query_gid,
    .query_gid_ex = query_gid_ex,
    .query_gid_table = query_gid_table,
    .query_pkey = ibv_query_pkey,
    .query_device_ex = query_device_ex,
    .query_rt_values = query_rt_values,
    .get_async_event = ibv_get_async_event,
    .ack_async_event = ibv_ack_async_event,
    .alloc_pd = ibv_alloc_pd,
    .dealloc_pd = ibv_dealloc_pd,
    .reg_mr = reg_mr,
    .reg_mr_iova = reg_mr_iova,
    .rereg_mr = ibv_rereg_mr,
    .dereg_mr = ibv_dereg_mr,
    .create_comp_channel = ibv_create_comp_channel,
    .destroy_comp_channel = ibv_destroy_comp_channel,
    .create_cq = ibv_create_cq,
    .create_cq_ex = create_cq_ex,
    .resize_cq = ibv_resize_cq,
    .destroy_cq = ibv_destroy_cq,
    .req_notify_cq = req_notify_cq,
    .get_cq_event = ibv_get_cq_event,
    .ack_cq_events = ibv_ack_cq_events,
    .poll_cq = poll_cq,
    .create_ah = ibv_create_ah,
    .init_ah_from_wc = ibv_init_ah_from_wc,
    .create_ah_from_wc = ibv_create_ah_from_wc,
    .destroy_ah = ibv_destroy_ah,
    .create_srq = ibv_create_srq,
    .modify_srq = ibv_modify_srq,
    .query_srq = ibv_query_srq,
    .destroy_srq = ibv_destroy_srq,
    .post_srq_recv = post_srq_recv,
    .create_qp = ibv_create_qp,
    .create_qp_ex = create_qp_ex,
    .qp_to_qp_ex = ibv_qp_to_qp_ex,
    .modify_qp = ibv_modify_qp,
    .query_qp = ibv_query_qp,
    .destroy_qp = ibv_destroy_qp,
    .post_send = post_send,
    .time_device = time_device,
    .next_poll = next_poll,
    .post_recv = post_recv,
};
