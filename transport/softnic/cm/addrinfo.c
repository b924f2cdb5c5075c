/* SPDX-License-Identifier: MIT */
/* rdma_getaddrinfo: getaddrinfo, in librdmacm's form. */
#include "transport/softnic/cm/cm.h"
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

static void to_hints(const struct rdma_addrinfo *from, struct addrinfo *to)
{
    bool datagram_space =
        from->ai_port_space == RDMA_PS_UDP || from->ai_port_space == RDMA_PS_IPOIB;
    *to = (struct addrinfo){.ai_family = from->ai_family};
    if ((from->ai_flags & RAI_PASSIVE) != 0)
        to->ai_flags |= AI_PASSIVE;
    if ((from->ai_flags & RAI_NUMERICHOST) != 0)
        to->ai_flags |= AI_NUMERICHOST;
    if (from->ai_qp_type != 0)
        to->ai_socktype = from->ai_qp_type == IBV_QPT_UD ? SOCK_DGRAM : SOCK_STREAM;
    if (datagram_space)
        to->ai_protocol = IPPROTO_UDP;
    else if (from->ai_port_space == RDMA_PS_TCP)
        to->ai_protocol = IPPROTO_TCP;
}

static int copy_address(struct sockaddr **to, socklen_t *to_size, const struct sockaddr *from,
                        socklen_t size)
{
    if (size == 0)
        return 0;
    *to = malloc(size);
    if (*to == NULL)
        return cm_fail(ENOMEM);
    memcpy(*to, from, size);
    *to_size = size;
    return 0;
}

static int copy_answer(struct rdma_addrinfo *to, const struct rdma_addrinfo *hints,
                       const struct addrinfo *ai)
{
    bool datagram = ai->ai_socktype == SOCK_DGRAM;
    to->ai_flags = hints->ai_flags;
    to->ai_family = ai->ai_family;
    to->ai_qp_type = hints->ai_qp_type != 0 ? hints->ai_qp_type
                     : datagram             ? IBV_QPT_UD
                                            : IBV_QPT_RC;
    to->ai_port_space = hints->ai_port_space != 0 ? hints->ai_port_space
                        : datagram                ? RDMA_PS_UDP
                                                  : RDMA_PS_TCP;
    if ((hints->ai_flags & RAI_PASSIVE) != 0)
        return copy_address(&to->ai_src_addr, &to->ai_src_len, ai->ai_addr, ai->ai_addrlen);
    return copy_address(&to->ai_dst_addr, &to->ai_dst_len, ai->ai_addr, ai->ai_addrlen);
}

/* As librdmacm: -1 and errno, or an error of getaddrinfo. */
static int look_up(const char *node, const char *service, const struct rdma_addrinfo *hints,
                   struct rdma_addrinfo *to)
{
    struct addrinfo ask, *ai;
    to_hints(hints, &ask);
    int err = getaddrinfo(node, service, &ask, &ai);
    if (err != 0)
        return err;
    err = copy_answer(to, hints, ai);
    freeaddrinfo(ai);
    return err;
}

static int copy_hints(struct rdma_addrinfo *to, const struct rdma_addrinfo *hints)
{
    to->ai_flags = hints->ai_flags;
    to->ai_family = hints->ai_family;
    to->ai_qp_type = hints->ai_qp_type;
    to->ai_port_space = hints->ai_port_space;
    return copy_address(&to->ai_dst_addr, &to->ai_dst_len, hints->ai_dst_addr, hints->ai_dst_len);
}

int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
                     struct rdma_addrinfo **res)
{
    static const struct rdma_addrinfo none;
    if (node == NULL && service == NULL && hints == NULL)
        return cm_fail(EINVAL);
    if (hints == NULL)
        hints = &none;
    struct rdma_addrinfo *found = calloc(1, sizeof *found);
    if (found == NULL)
        return cm_fail(ENOMEM);
    int err = node != NULL || service != NULL ? look_up(node, service, hints, found)
                                              : copy_hints(found, hints);
    if (err == 0 && found->ai_src_len == 0)
        err = copy_address(&found->ai_src_addr, &found->ai_src_len, hints->ai_src_addr,
                           hints->ai_src_len);
    if (err != 0) {
        rdma_freeaddrinfo(found);
        return err;
    }
    *res = found;
    return 0;
}

void rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
    while (res != NULL) {
        struct rdma_addrinfo *next = res->ai_next;
        free(res->ai_src_addr);
        free(res->ai_dst_addr);
        free(res->ai_src_canonname);
        free(res->ai_dst_canonname);
        free(res->ai_route);
        free(res->ai_connect);
        free(res);
        res = next;
    }
}
