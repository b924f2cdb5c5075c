/* SPDX-License-Identifier: MIT */
/* The verbs table of softnic, whose functions have the contracts of libibverbs already. */
#include "transport/softnic/softnic.h"
#include "transport/verbs.h"

const struct verbs verbs_softnic = {
    .get_device_list = softnic_get_device_list,
    .free_device_list = softnic_free_device_list,
    .get_device_name = softnic_get_device_name,
    .open_device = softnic_open_device,
    .close_device = softnic_close_device,
    .query_device = softnic_query_device,
    .query_port = softnic_query_port,
    .query_gid = softnic_query_gid,
    .query_gid_ex = softnic_query_gid_ex,
    .get_async_event = softnic_get_async_event,
    .ack_async_event = softnic_ack_async_event,
    .alloc_pd = softnic_alloc_pd,
    .dealloc_pd = softnic_dealloc_pd,
    .reg_mr = softnic_reg_mr,
    .dereg_mr = softnic_dereg_mr,
    .create_comp_channel = softnic_create_comp_channel,
    .destroy_comp_channel = softnic_destroy_comp_channel,
    .create_cq = softnic_create_cq,
    .destroy_cq = softnic_destroy_cq,
    .req_notify_cq = softnic_req_notify_cq,
    .get_cq_event = softnic_get_cq_event,
    .ack_cq_events = softnic_ack_cq_events,
    .poll_cq = softnic_poll_cq,
    .create_qp = softnic_create_qp,
    .create_qp_ex = softnic_create_qp_ex,
    .qp_to_qp_ex = softnic_qp_to_qp_ex,
    .modify_qp = softnic_modify_qp,
    .query_qp = softnic_query_qp,
    .destroy_qp = softnic_destroy_qp,
    .post_send = softnic_post_send,
    .post_recv = softnic_post_recv,
};
