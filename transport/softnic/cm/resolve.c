/* SPDX-License-Identifier: MIT */
/* Addresses of an id: binding, listening, and finding the way to a destination. */
#include "transport/softnic/cm/cm.h"
#include <string.h>

enum { BACKLOG_MAX = 1024 };

/* An address that is not "any" binds to a device, too. */
int cm_bind(struct cm_id *id, const struct sockaddr *addr)
{
    if (id->state != CM_IDLE)
        return -EINVAL;
    int err = cm_address_is_any(addr) ? 0 : cm_device_bind(id, addr);
    if (err != 0)
        return err;
    memcpy(&id->base.route.addr.src_storage, addr, cm_address_size(addr));
    /* With RDMA_OPTION_ID_REUSEADDR a number may be several ids' until one of them listens. */
    if (!id->reuse_address || cm_address_port(addr) == 0)
        err = cm_name_take(id);
    if (err != 0) {
        memset(&id->base.route.addr.src_storage, 0, sizeof id->base.route.addr.src_storage);
        return err;
    }
    if (id->device != NULL)
        cm_device_fill_gids(id);
    id->state = CM_BOUND;
    return 0;
}

int rdma_bind_addr(struct rdma_cm_id *base, struct sockaddr *addr)
{
    if (cm_address_size(addr) == 0)
        return cm_fail(EINVAL);
    cm_enter();
    int err = cm_bind(to_id(base), addr);
    cm_leave();
    return err == 0 ? 0 : cm_fail(-err);
}

static int start_listening(struct cm_id *id, int backlog)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    int err = id->state == CM_IDLE ? cm_bind(id, (struct sockaddr *)&any) : 0;
    if (err == 0 && id->state != CM_BOUND)
        err = -EINVAL;
    if (err == 0)
        err = cm_name_take(id);
    if (err == 0 && listen(id->fd, backlog <= 0 || backlog > BACKLOG_MAX ? BACKLOG_MAX : backlog))
        err = -errno;
    if (err == 0)
        err = cm_watch(id);
    if (err == 0)
        id->state = CM_LISTENING;
    return err;
}

int rdma_listen(struct rdma_cm_id *base, int backlog)
{
    cm_enter();
    int err = start_listening(to_id(base), backlog);
    cm_leave();
    return err == 0 ? 0 : cm_fail(-err);
}

/* From this host to this host: the kernel would send from the address that it sends to. */
static void source_for(const struct sockaddr *dst, struct sockaddr_storage *src)
{
    memset(src, 0, sizeof *src);
    memcpy(src, dst, cm_address_size(dst));
    cm_address_set_port((struct sockaddr *)src, 0);
}

/* The number that is bound already stays. */
static int choose_source(struct cm_id *id, const struct sockaddr *dst)
{
    struct sockaddr *src = &id->base.route.addr.src_addr;
    struct sockaddr_storage chosen;
    int err;
    source_for(dst, &chosen);
    if (cm_address_softnic_ip(dst) != 0 && !cm_address_is_of_host(dst)) {
        /* That of our first port: a peer's is not ours. */
        struct sockaddr_in loopback = {.sin_family = AF_INET,
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        err = cm_device_bind(id, (struct sockaddr *)&loopback);
        if (err != 0)
            return err;
        struct cm_address own = {.family = 4};
        memcpy(own.ip, id->device->gid.raw + 12, 4);
        cm_address_unpack(&chosen, &own);
    } else {
        err = cm_device_bind(id, (struct sockaddr *)&chosen);
        if (err != 0)
            return err;
    }
    cm_address_set_port((struct sockaddr *)&chosen, cm_address_port(src));
    id->base.route.addr.src_storage = chosen;
    return 0;
}

static int resolve(struct cm_id *id, const struct sockaddr *src, const struct sockaddr *dst)
{
    int err = 0;
    if (id->state != CM_IDLE && id->state != CM_BOUND)
        return -EINVAL;
    if (id->state == CM_IDLE && src != NULL)
        err = cm_bind(id, src);
    if (err != 0)
        return err;
    if (!cm_device_leads_to(dst))
        return cm_tell(id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
    if (id->device == NULL)
        err = choose_source(id, dst);
    if (err == 0 && !(id->reuse_address && cm_address_port(&id->base.route.addr.src_addr) != 0))
        err = cm_name_take(id);
    if (err != 0)
        return err;
    memcpy(&id->base.route.addr.dst_storage, dst, cm_address_size(dst));
    cm_device_fill_gids(id);
    id->state = CM_ADDR_RESOLVED;
    return cm_tell(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

int rdma_resolve_addr(struct rdma_cm_id *base, struct sockaddr *src, struct sockaddr *dst,
                      int timeout_ms)
{
    (void)timeout_ms; /* the answer is known at once */
    if (cm_address_size(dst) == 0 || (src != NULL && cm_address_size(src) == 0))
        return cm_fail(EINVAL);
    cm_enter();
    int err = resolve(to_id(base), src, dst);
    cm_leave();
    return err == 0 ? cm_complete(base) : cm_fail(-err);
}

int rdma_resolve_route(struct rdma_cm_id *base, int timeout_ms)
{
    struct cm_id *id = to_id(base);
    (void)timeout_ms;
    cm_enter();
    int err = id->state == CM_ADDR_RESOLVED ? cm_device_fill_path(id) : -EINVAL;
    if (err == 0)
        err = cm_tell(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    if (err == 0)
        id->state = CM_ROUTE_RESOLVED;
    cm_leave();
    return err == 0 ? cm_complete(base) : cm_fail(-err);
}
