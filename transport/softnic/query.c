/* SPDX-License-Identifier: MIT */
/* What a device and its port say of themselves beyond the basic queries. */
#include "transport/softnic/nic.h"
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

enum { GIDS = 2, DEFAULT_PKEY = 0xffff };
enum {
    ODP_ALL = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
              IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV,
};

int softnic_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    struct ctx *ctx = to_ctx(context);
    int err = 0;
    if (nic_after_fork(ctx))
        err = nic_refuse_child(ctx);
    else if (port != 1 || index != 0)
        err = EINVAL;
    if (err != 0) {
        errno = err;
        return -1;
    }
    *pkey = htons(DEFAULT_PKEY);
    return 0;
}

ssize_t softnic_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                                size_t max_entries, uint32_t flags)
{
    if (max_entries < GIDS || flags != 0)
        return -EINVAL;
    for (uint32_t i = 0; i < GIDS; i++) {
        int err = softnic_query_gid_ex(context, 1, i, &entries[i], 0);
        if (err != 0)
            return -err;
    }
    return GIDS;
}

/* Only as much as the caller has room for: his structure may be older than ours. */
int nic_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                        struct ibv_device_attr_ex *attr, size_t size)
{
    struct ibv_device_attr_ex whole = {
        .completion_timestamp_mask = UINT64_MAX,
        .hca_core_clock = 1000000, /* kHz: completion times are in nanoseconds */
        .phys_port_cnt_ex = 1,
        /* Nothing is ever pinned: pages are looked up when they are needed. */
        .odp_caps.general_caps = IBV_ODP_SUPPORT,
        .odp_caps.per_transport_caps.rc_odp_caps = ODP_ALL,
        .odp_caps.per_transport_caps.uc_odp_caps =
            IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE,
        .odp_caps.per_transport_caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV,
    };
    if ((input != NULL && input->comp_mask != 0) || size < sizeof whole.orig_attr)
        return EINVAL;
    int err = softnic_query_device(context, &whole.orig_attr);
    if (err != 0)
        return err;
    whole.device_cap_flags_ex = whole.orig_attr.device_cap_flags;
    memset(attr, 0, size);
    memcpy(attr, &whole, size < sizeof whole ? size : sizeof whole);
    return 0;
}

int softnic_query_device_ex(struct ibv_context *context,
                            const struct ibv_query_device_ex_input *input,
                            struct ibv_device_attr_ex *attr)
{
    return nic_query_device_ex(context, input, attr, sizeof *attr);
}

/* The clock that completion times are of, as mlx5 gives it: all of it in tv_nsec. */
int softnic_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
    struct ctx *ctx = to_ctx(context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    if ((values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK) != 0)
        return EOPNOTSUPP;
    values->raw_clock = (struct timespec){.tv_nsec = (long)nic_now(ctx)};
    return 0;
}
