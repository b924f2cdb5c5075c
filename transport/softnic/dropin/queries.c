/* SPDX-License-Identifier: MIT */
/* What a device, its port and its tables say of themselves; asynchronous events. */
#include "transport/decorators/event.h"
#include "transport/softnic/dropin/dropin.h"
#include <arpa/inet.h>
#include <string.h>

/* Exported for ibv_devinfo, and in no header. */
enum gid_type_sysfs { GID_TYPE_IB_ROCE_V1, GID_TYPE_ROCE_V2 };
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
                       enum gid_type_sysfs *type);

enum { PKEY_DEFAULT = 0xffff };

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    return ours(context) ? table(context)->query_device(context, attr)
                         : REAL(ibv_query_device)(context, attr);
}

EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port,
                          struct _compat_ibv_port_attr *attr)
{
    return ours(context) ? context->ops._compat_query_port(context, port, attr)
                         : REAL(ibv_query_port)(context, port, attr);
}

EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    return ours(context) ? table(context)->query_gid(context, port, index, gid)
                         : REAL(ibv_query_gid)(context, port, index, gid);
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                             struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
    struct ibv_gid_entry whole;
    if (!ours(context))
        return REAL(_ibv_query_gid_ex)(context, port, index, entry, flags, entry_size);
    int err = softnic_query_gid_ex(context, port, index, &whole, flags);
    if (err == 0)
        memcpy(entry, &whole, entry_size < sizeof whole ? entry_size : sizeof whole);
    return err;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                                    size_t max_entries, uint32_t flags, size_t entry_size)
{
    if (!ours(context))
        return REAL(_ibv_query_gid_table)(context, entries, max_entries, flags, entry_size);
    struct ibv_gid_entry whole[8];
    ssize_t n = softnic_query_gid_table(context, whole, max_entries < 8 ? max_entries : 8, flags);
    size_t bytes = entry_size < sizeof *whole ? entry_size : sizeof *whole;
    for (ssize_t i = 0; i < n; i++)
        memcpy((char *)entries + (size_t)i * entry_size, &whole[i], bytes);
    return n;
}

EXPORT int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
                              enum gid_type_sysfs *type)
{
    struct ibv_gid_entry entry;
    if (!ours(context))
        return REAL(ibv_query_gid_type)(context, port, index, type);
    int err = softnic_query_gid_ex(context, port, index, &entry, 0);
    if (err != 0) {
        errno = err;
        return -1;
    }
    *type = GID_TYPE_ROCE_V2;
    return 0;
}

EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    if (!ours(context))
        return REAL(ibv_query_pkey)(context, port, index, pkey);
    if (port != 1 || index != 0) {
        errno = EINVAL;
        return -1;
    }
    *pkey = htons(PKEY_DEFAULT);
    return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey)
{
    if (!ours(context))
        return REAL(ibv_get_pkey_index)(context, port, pkey);
    if (port == 1 && pkey == htons(PKEY_DEFAULT))
        return 0;
    errno = EINVAL;
    return -1;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    return ours(context) ? table(context)->get_async_event(context, event)
                         : REAL(ibv_get_async_event)(context, event);
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    const struct ibv_context *context = event_context(event);
    if (context == NULL)
        return;
    if (ours(context))
        table(context)->ack_async_event(event);
    else
        REAL(ibv_ack_async_event)(event);
}

EXPORT int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
                                       uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
    if (!ours(context))
        return REAL(ibv_resolve_eth_l2_from_gid)(context, attr, eth_mac, vid);
    int err = softnic_mac_of_gid(&attr->grh.dgid, eth_mac);
    if (err != 0)
        return err;
    *vid = 0xffff; /* no VLAN */
    return 0;
}
