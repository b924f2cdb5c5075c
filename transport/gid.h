/* SPDX-License-Identifier: MIT */
/*
 * Which entry of a port's GID table to use, and why: for a rank by itself, and for a link by what
 * the tables of both its ends share. Private.
 */
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

enum { GID_USABLE = 16 }; /* entries that a rank tells its peers of */

/* The entries that may be used, best first (gid_choose says what is better), at most GID_USABLE;
 * `wanted` >= 0: that one alone. How many. */
int gid_usable(const struct gid_entry *entries, int n, bool ethernet, int wanted,
               struct gid_entry *usable);

/*
 * What two ports with these usable entries should use: the best type and family of address that
 * both have, of that the two entries whose addresses begin alike for longest (so probably in one
 * subnet), then the lowest indices. Both ends come to the same pair; `first` says which of them
 * this is. Returns 0 with the places in *ours and *theirs, or -ENOENT with both tables in `why`.
 */
struct gid_table {
    const struct gid_entry *entries;
    int n;
};
int gid_agree(struct gid_table ours, struct gid_table theirs, bool ethernet, bool first, int *our,
              int *their, char *why, size_t why_size);

bool gid_is_ipv4(const union ibv_gid *gid);
/* "fe80::1 (RoCEv2)" or so. */
void gid_text(const struct gid_entry *entry, char *text, size_t size);

#endif
