/* SPDX-License-Identifier: MIT */
/* Socket addresses: which of them are this host's, or a softnic port's. */
#include "transport/softnic/cm/cm.h"
#include "transport/softnic/nic.h"
#include <arpa/inet.h>
#include <string.h>
#include <unistd.h>

static const struct sockaddr_in *v4(const struct sockaddr *addr)
{
    return (const struct sockaddr_in *)(const void *)addr;
}

static const struct sockaddr_in6 *v6(const struct sockaddr *addr)
{
    return (const struct sockaddr_in6 *)(const void *)addr;
}

socklen_t cm_address_size(const struct sockaddr *addr)
{
    if (addr == NULL)
        return 0;
    return addr->sa_family == AF_INET    ? sizeof(struct sockaddr_in)
           : addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                         : 0;
}

uint16_t cm_address_port(const struct sockaddr *addr)
{
    return addr->sa_family == AF_INET    ? ntohs(v4(addr)->sin_port)
           : addr->sa_family == AF_INET6 ? ntohs(v6(addr)->sin6_port)
                                         : 0;
}

void cm_address_set_port(struct sockaddr *addr, uint16_t port)
{
    if (addr->sa_family == AF_INET)
        ((struct sockaddr_in *)(void *)addr)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)(void *)addr)->sin6_port = htons(port);
}

/* As IPv6, IPv4 mapped into it, which is also the form of a GID. */
static void to_v6(const struct sockaddr *addr, struct in6_addr *out)
{
    if (addr->sa_family == AF_INET6) {
        *out = v6(addr)->sin6_addr;
        return;
    }
    *out = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(out->s6_addr + 12, &v4(addr)->sin_addr, 4);
}

bool cm_address_is_any(const struct sockaddr *addr)
{
    return addr->sa_family == AF_INET ? v4(addr)->sin_addr.s_addr == htonl(INADDR_ANY)
                                      : IN6_IS_ADDR_UNSPECIFIED(&v6(addr)->sin6_addr);
}

bool cm_address_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    struct in6_addr one, other;
    to_v6(a, &one);
    to_v6(b, &other);
    return IN6_ARE_ADDR_EQUAL(&one, &other);
}

/* The kernel knows: only to an address of its own may a socket be bound. */
bool cm_address_is_of_host(const struct sockaddr *addr)
{
    struct sockaddr_storage copy = {0};
    socklen_t size = cm_address_size(addr);
    memcpy(&copy, addr, size);
    cm_address_set_port((struct sockaddr *)&copy, 0);
    int fd = socket(addr->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool own = bind(fd, (struct sockaddr *)&copy, size) == 0;
    close(fd);
    return own;
}

uint32_t cm_address_softnic_ip(const struct sockaddr *addr)
{
    struct in6_addr ip;
    union ibv_gid gid;
    to_v6(addr, &ip);
    memcpy(gid.raw, ip.s6_addr, sizeof gid.raw);
    return nic_ip_of_gid(&gid);
}

void cm_address_pack(struct cm_address *to, const struct sockaddr *from)
{
    *to = (struct cm_address){.family = from->sa_family == AF_INET ? 4 : 6};
    if (from->sa_family == AF_INET) {
        memcpy(to->ip, &v4(from)->sin_addr, 4);
        memcpy(to->port, &v4(from)->sin_port, 2);
    } else {
        memcpy(to->ip, &v6(from)->sin6_addr, 16);
        memcpy(to->port, &v6(from)->sin6_port, 2);
        to->scope = v6(from)->sin6_scope_id;
    }
}

bool cm_address_unpack(struct sockaddr_storage *to, const struct cm_address *from)
{
    memset(to, 0, sizeof *to);
    if (from->family == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)to;
        in->sin_family = AF_INET;
        memcpy(&in->sin_addr, from->ip, 4);
        memcpy(&in->sin_port, from->port, 2);
    } else if (from->family == 6) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)to;
        in6->sin6_family = AF_INET6;
        memcpy(&in6->sin6_addr, from->ip, 16);
        memcpy(&in6->sin6_port, from->port, 2);
        in6->sin6_scope_id = from->scope;
    } else {
        return false;
    }
    return true;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
    return htons(cm_address_port(&id->route.addr.src_addr));
}

__be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
    return htons(cm_address_port(&id->route.addr.dst_addr));
}
