/* SPDX-License-Identifier: MIT */
/* Address handles, and the global route header that tells a receiver where a datagram is from. */
#include "transport/softnic/nic.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* UDP, BTH, DETH and ICRC around a datagram's bytes (InfiniBand specification, A17). */
enum { WRAPPING_BYTES = 8 + 12 + 8 + 4, HOP_LIMIT = 64, PROTOCOL_UDP = 17, IPV4_AT = 20 };

/* To which port a path leads: by GID, or by LID without a GRH. *ip is 0 if to none now. */
int nic_path_check(const struct ibv_ah_attr *attr, uint32_t *ip)
{
    if (attr->port_num > 1 || (attr->is_global && attr->grh.sgid_index > 1))
        return EINVAL;
    if (attr->is_global) {
        *ip = nic_ip_of_gid(&attr->grh.dgid);
        return *ip != 0 ? 0 : EINVAL;
    }
    if (attr->dlid == 0)
        return EINVAL;
    *ip = nic_ip_of_lid(attr->dlid);
    return 0;
}

static uint64_t route_of(const struct ibv_ah_attr *attr, uint32_t ip)
{
    uint32_t flags = (attr->sl & 15u) << ROUTE_SL_SHIFT;
    if (attr->is_global)
        flags |= ROUTE_GRH | (nic_gid_index(&attr->grh.dgid) == 1 ? (uint32_t)ROUTE_IPV4 : 0u);
    return nic_route(ip, flags, 0);
}

struct ibv_ah *softnic_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct ctx *ctx = to_ctx(pd->context);
    uint32_t ip = 0;
    int err = nic_after_fork(ctx) ? nic_refuse_child(ctx) : nic_path_check(attr, &ip);
    if (err == 0 && attr->port_num != 1)
        err = EINVAL;
    if (err == 0 && atomic_fetch_add(&ctx->ah_count, 1) >= MAX_AH) {
        atomic_fetch_sub(&ctx->ah_count, 1);
        err = ENOMEM;
    }
    if (err != 0) {
        errno = err;
        return NULL;
    }
    struct ah *ah = calloc(1, sizeof *ah);
    if (ah == NULL) {
        atomic_fetch_sub(&ctx->ah_count, 1);
        return NULL;
    }
    ah->base.context = pd->context;
    ah->base.pd = pd;
    ah->route = route_of(attr, ip);
    atomic_fetch_add(&((struct pd *)pd)->users, 1);
    return &ah->base;
}

int softnic_destroy_ah(struct ibv_ah *base)
{
    struct ctx *ctx = to_ctx(base->context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    atomic_fetch_sub(&((struct pd *)base->pd)->users, 1);
    atomic_fetch_sub(&ctx->ah_count, 1);
    free(base);
    return 0;
}

/* Of an IPv4 header without options (RFC 791), in network order; 0 over one that holds its own. */
static uint16_t ipv4_checksum(const uint8_t *header)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < 20; i += 2)
        sum += (uint32_t)header[i] << 8 | header[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return htons((uint16_t)~sum);
}

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/* As RoCEv2 has it: an IPv6 header, or an IPv4 header in the second half. */
void nic_grh_fill(uint8_t *grh, uint64_t route, uint32_t from_ip, uint32_t bytes)
{
    uint32_t flags = nic_route_flags(route), payload = WRAPPING_BYTES + (bytes + 3) / 4 * 4;
    union ibv_gid from, to;
    memset(grh, 0, GRH_BYTES);
    if ((flags & ROUTE_GRH) == 0)
        return;
    int index = (flags & ROUTE_IPV4) != 0;
    nic_gid_of_ip(from_ip, index, &from);
    nic_gid_of_ip(nic_route_ip(route), index, &to);
    if (index == 0) {
        grh[0] = 0x60;
        put16(grh + 4, payload);
        grh[6] = PROTOCOL_UDP;
        grh[7] = HOP_LIMIT;
        memcpy(grh + 8, from.raw, sizeof from);
        memcpy(grh + 24, to.raw, sizeof to);
        return;
    }
    uint8_t *header = grh + IPV4_AT;
    header[0] = 0x45;
    put16(header + 2, 20 + payload);
    header[6] = 0x40; /* not to be fragmented */
    header[8] = HOP_LIMIT;
    header[9] = PROTOCOL_UDP;
    memcpy(header + 12, from.raw + 12, 4);
    memcpy(header + 16, to.raw + 12, 4);
    uint16_t sum = ipv4_checksum(header);
    memcpy(header + 10, &sum, sizeof sum);
}

/* Who sent it and to which of our GIDs. */
static void parse_grh(const struct ibv_grh *grh, union ibv_gid *from, union ibv_gid *to)
{
    const uint8_t *bytes = (const uint8_t *)grh, *header = bytes + IPV4_AT;
    if (header[0] != 0x45 || ipv4_checksum(header) != 0) {
        *from = grh->sgid;
        *to = grh->dgid;
        return;
    }
    nic_gid_of_ip(0, 1, from);
    nic_gid_of_ip(0, 1, to);
    memcpy(from->raw + 12, header + 12, 4);
    memcpy(to->raw + 12, header + 16, 4);
}

int softnic_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
                            struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
    struct ctx *ctx = to_ctx(context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    struct ibv_ah_attr result = {
        .dlid = wc->slid, .sl = wc->sl, .src_path_bits = wc->dlid_path_bits, .port_num = port};
    if (port != 1)
        return EINVAL;
    if ((wc->wc_flags & IBV_WC_GRH) != 0) {
        union ibv_gid to;
        parse_grh(grh, &result.grh.dgid, &to);
        if (nic_ip_of_gid(&to) != ctx->ip)
            return EINVAL;
        result.is_global = 1;
        result.grh.sgid_index = (uint8_t)nic_gid_index(&to);
        result.grh.hop_limit = 0xff;
    }
    *attr = result;
    return 0;
}

struct ibv_ah *softnic_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                         uint8_t port)
{
    struct ibv_ah_attr attr;
    int err = softnic_init_ah_from_wc(pd->context, port, wc, grh, &attr);
    if (err != 0) {
        errno = err;
        return NULL;
    }
    return softnic_create_ah(pd, &attr);
}
