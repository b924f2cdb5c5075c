/* SPDX-License-Identifier: MIT */
/*
 * The verbs seam: everything above it speaks to a NIC through this table and in no other way.
 *
 * A member has the name, the arguments and the contract of the libibverbs call it stands for
 * (man ibv_post_send and so on): pointers are NULL with errno set on failure, integers are 0 or a
 * positive errno value (some calls: -1 with errno set), as the man page of each says. Members that
 * a device lacks are filled with a function that answers EOPNOTSUPP; none is NULL.
 *
 * Implementations: verbs_ibverbs (libibverbs itself), verbs_softnic (transport/softnic), and
 * decorators, which hold another table and pass calls on. Tables are constant; what belongs to one
 * open device hangs off its ibv_context.
 */
#ifndef SSTAR_TRANSPORT_VERBS_H
#define SSTAR_TRANSPORT_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>

struct verbs {
    struct ibv_device **(*get_device_list)(int *num_devices);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);

    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
    int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
    int (*query_gid_ex)(struct ibv_context *context, uint32_t port, uint32_t index,
                        struct ibv_gid_entry *entry, uint32_t flags);
    ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *entries,
                               size_t max_entries, uint32_t flags);
    int (*query_pkey)(struct ibv_context *context, uint8_t port, int index, __be16 *pkey);
    int (*query_device_ex)(struct ibv_context *context,
                           const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *attr);
    int (*query_rt_values)(struct ibv_context *context, struct ibv_values_ex *values);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);

    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
    struct ibv_mr *(*reg_mr_iova)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                  int access);
    int (*rereg_mr)(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                    int access);
    int (*dereg_mr)(struct ibv_mr *mr);

    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int cqe, void *cq_context,
                                struct ibv_comp_channel *channel, int comp_vector);
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *context,
                                      struct ibv_cq_init_attr_ex *attr);
    int (*resize_cq)(struct ibv_cq *cq, int cqe);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned int nevents);
    int (*poll_cq)(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);

    struct ibv_ah *(*create_ah)(struct ibv_pd *pd, struct ibv_ah_attr *attr);
    int (*init_ah_from_wc)(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
                           struct ibv_grh *grh, struct ibv_ah_attr *attr);
    struct ibv_ah *(*create_ah_from_wc)(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                        uint8_t port);
    int (*destroy_ah)(struct ibv_ah *ah);

    struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
    int (*modify_srq)(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
    int (*query_srq)(struct ibv_srq *srq, struct ibv_srq_attr *attr);
    int (*destroy_srq)(struct ibv_srq *srq);
    int (*post_srq_recv)(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);

    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
    struct ibv_qp_ex *(*qp_to_qp_ex)(struct ibv_qp *qp); /* NULL where ibv_wr_* is not to be had */
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
    int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
                    struct ibv_qp_init_attr *init_attr);
    int (*destroy_qp)(struct ibv_qp *qp);
    int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
    /* Not in libibverbs: what a device that works in the caller's time spends on it, as
     * softnic_time_device; EOPNOTSUPP for one that works beside the CPU. */
    int (*time_device)(struct ibv_qp *qp, const bool *wanted, uint64_t *ticks);
    /* Not in libibverbs: when to poll next, for those who would sleep meanwhile, as
     * softnic_next_poll; EOPNOTSUPP for one that works beside the CPU. */
    int (*next_poll)(struct ibv_cq *cq, uint64_t *at_ns);
    int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
};

extern const struct verbs verbs_ibverbs;
extern const struct verbs verbs_softnic;

#endif
