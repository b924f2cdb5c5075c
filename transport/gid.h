/* SPDX-License-Identifier: MIT */
/* Which entry of a port's GID table to use, and why. Private. */
#ifndef SSTAR_TRANSPORT_GID_H
#define SSTAR_TRANSPORT_GID_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>

/* One readable entry; those that cannot be read are left out of the table. */
struct gid_entry {
    union ibv_gid gid;
    int index;
    uint32_t type; /* IBV_GID_TYPE_IB, _ROCE_V1, _ROCE_V2 */
};

/*
 * Choose: on Ethernet RoCEv2 with an IPv4-mapped address, then RoCEv2 with a global IPv6 address,
 * then link-local, then RoCEv1, the lowest index of each; on InfiniBand index 0 (the LID is what
 * counts there). `wanted` >= 0 demands that index. Returns the place in `entries`, with the reason
 * in `why`; or -ENOENT with the sentence there.
 */
int gid_choose(const struct gid_entry *entries, int n, bool ethernet, int wanted, char *why,
               size_t why_size);
/* "fe80::1 (RoCEv2)" or so. */
void gid_text(const struct gid_entry *entry, char *text, size_t size);

#endif
