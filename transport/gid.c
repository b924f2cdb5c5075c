/* SPDX-License-Identifier: MIT */
#include "transport/gid.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Best first. */
enum rank_of_gid { V2_IPV4, V2_GLOBAL, V2_LINK_LOCAL, V1, INFINIBAND, UNUSABLE };
static const char *const rank_text[] = {
    [V2_IPV4] = "RoCEv2 with an IPv4 address, which routers and switches treat best",
    [V2_GLOBAL] = "RoCEv2 with a global IPv6 address; there is none with IPv4",
    [V2_LINK_LOCAL] =
        "RoCEv2 with a link-local address: reaches one subnet only; there is no other",
    [V1] = "RoCEv1: reaches one subnet only; the port has no RoCEv2 entry",
    [INFINIBAND] = "InfiniBand: the LID addresses the port",
};

static bool starts_with(const union ibv_gid *gid, const uint8_t *bytes, size_t n)
{
    return memcmp(gid->raw, bytes, n) == 0;
}

static bool is_zero(const union ibv_gid *gid)
{
    static const uint8_t zero[16];
    return starts_with(gid, zero, sizeof zero);
}

static bool is_ipv4_mapped(const union ibv_gid *gid)
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return starts_with(gid, prefix, sizeof prefix);
}

static bool is_link_local(const union ibv_gid *gid)
{
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static enum rank_of_gid rank_entry(const struct gid_entry *entry, bool ethernet)
{
    if (is_zero(&entry->gid))
        return UNUSABLE;
    if (!ethernet)
        return INFINIBAND;
    if (entry->type == IBV_GID_TYPE_ROCE_V1)
        return V1;
    if (entry->type != IBV_GID_TYPE_ROCE_V2)
        return UNUSABLE;
    if (is_ipv4_mapped(&entry->gid))
        return V2_IPV4;
    return is_link_local(&entry->gid) ? V2_LINK_LOCAL : V2_GLOBAL;
}

static int choose_wanted(const struct gid_entry *entries, int n, int wanted, char *why,
                         size_t why_size)
{
    for (int i = 0; i < n; i++) {
        if (entries[i].index != wanted || is_zero(&entries[i].gid))
            continue;
        snprintf(why, why_size, "index %d was asked for (SSTAR_IB_GID_INDEX or --gid-index)",
                 wanted);
        return i;
    }
    int used = snprintf(why, why_size,
                        "GID index %d was asked for and holds no GID; those that do:", wanted);
    for (int i = 0; i < n && used >= 0 && (size_t)used < why_size; i++)
        if (!is_zero(&entries[i].gid))
            used += snprintf(why + used, why_size - (size_t)used, " %d", entries[i].index);
    return -ENOENT;
}

int gid_choose(const struct gid_entry *entries, int n, bool ethernet, int wanted, char *why,
               size_t why_size)
{
    if (wanted >= 0)
        return choose_wanted(entries, n, wanted, why, why_size);
    int best = -1;
    enum rank_of_gid best_rank = UNUSABLE;
    for (int i = 0; i < n; i++) {
        enum rank_of_gid rank = rank_entry(&entries[i], ethernet);
        if (rank < best_rank ||
            (best >= 0 && rank == best_rank && entries[i].index < entries[best].index)) {
            best = i;
            best_rank = rank;
        }
    }
    if (best < 0) {
        snprintf(why, why_size,
                 "none of the %d readable entries of the GID table holds a usable GID; has the "
                 "network interface an address?",
                 n);
        return -ENOENT;
    }
    snprintf(why, why_size, "%s", rank_text[best_rank]);
    return best;
}

void gid_text(const struct gid_entry *entry, char *text, size_t size)
{
    char address[INET6_ADDRSTRLEN] = "?";
    if (is_ipv4_mapped(&entry->gid))
        inet_ntop(AF_INET, entry->gid.raw + 12, address, sizeof address);
    else
        inet_ntop(AF_INET6, entry->gid.raw, address, sizeof address);
    const char *type = entry->type == IBV_GID_TYPE_ROCE_V2   ? "RoCEv2"
                       : entry->type == IBV_GID_TYPE_ROCE_V1 ? "RoCEv1"
                                                             : "InfiniBand";
    snprintf(text, size, "%s (%s)", address, type);
}
