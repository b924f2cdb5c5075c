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

bool gid_is_ipv4(const union ibv_gid *gid)
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
    if (gid_is_ipv4(&entry->gid))
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

int gid_usable(const struct gid_entry *entries, int n, bool ethernet, int wanted,
               struct gid_entry *usable)
{
    int count = 0;
    for (enum rank_of_gid rank = V2_IPV4; rank < UNUSABLE; rank++)
        for (int i = 0; i < n && count < GID_USABLE; i++)
            if (rank_entry(&entries[i], ethernet) == rank &&
                (wanted < 0 || entries[i].index == wanted))
                usable[count++] = entries[i];
    return count;
}

/* Bits that both addresses begin with. */
static int common_prefix(const union ibv_gid *a, const union ibv_gid *b)
{
    int bits = 0;
    while (bits < 128 && !((a->raw[bits / 8] ^ b->raw[bits / 8]) & 0x80 >> bits % 8))
        bits++;
    return bits;
}

/* Whether a pair of entries is better than another; the indices of the first end count first. */
struct gid_pair {
    const struct gid_entry *ours, *theirs;
};
static bool pair_better(struct gid_pair a, struct gid_pair b, bool first)
{
    int prefix_a = common_prefix(&a.ours->gid, &a.theirs->gid);
    int prefix_b = common_prefix(&b.ours->gid, &b.theirs->gid);
    if (prefix_a != prefix_b)
        return prefix_a > prefix_b;
    int ours = b.ours->index - a.ours->index, theirs = b.theirs->index - a.theirs->index;
    return first ? ours > 0 || (ours == 0 && theirs > 0) : theirs > 0 || (theirs == 0 && ours > 0);
}

/* "RoCEv2 IPv4 (index 1), ..." */
static void table_text(struct gid_table table, bool ethernet, char *text, size_t size)
{
    static const char *const names[] = {"RoCEv2 IPv4", "RoCEv2 global IPv6", "RoCEv2 link-local",
                                        "RoCEv1", "InfiniBand"};
    size_t used = 0;
    text[0] = '\0';
    for (enum rank_of_gid rank = V2_IPV4; rank < UNUSABLE; rank++)
        for (int i = 0; i < table.n && used < size; i++) {
            if (rank_entry(&table.entries[i], ethernet) != rank)
                continue;
            used += (size_t)snprintf(text + used, size - used, "%s%s (index %d)", used ? ", " : "",
                                     names[rank], table.entries[i].index);
            break;
        }
    if (used == 0)
        snprintf(text, size, "nothing usable");
}

int gid_agree(struct gid_table ours, struct gid_table theirs, bool ethernet, bool first, int *our,
              int *their, char *why, size_t why_size)
{
    for (enum rank_of_gid rank = V2_IPV4; rank < UNUSABLE; rank++) {
        struct gid_pair best = {NULL, NULL};
        for (int i = 0; i < ours.n; i++)
            for (int j = 0; j < theirs.n; j++) {
                struct gid_pair pair = {&ours.entries[i], &theirs.entries[j]};
                if (rank_entry(pair.ours, ethernet) == rank &&
                    rank_entry(pair.theirs, ethernet) == rank &&
                    (!best.ours || pair_better(pair, best, first)))
                    best = pair;
            }
        if (best.ours) {
            *our = (int)(best.ours - ours.entries);
            *their = (int)(best.theirs - theirs.entries);
            return 0;
        }
    }
    char here[128], there[128];
    table_text(ours, ethernet, here, sizeof here);
    table_text(theirs, ethernet, there, sizeof there);
    snprintf(why, why_size, "here %s; there %s", here, there);
    return -ENOENT;
}

void gid_text(const struct gid_entry *entry, char *text, size_t size)
{
    char address[INET6_ADDRSTRLEN] = "?";
    if (gid_is_ipv4(&entry->gid))
        inet_ntop(AF_INET, entry->gid.raw + 12, address, sizeof address);
    else
        inet_ntop(AF_INET6, entry->gid.raw, address, sizeof address);
    const char *type = entry->type == IBV_GID_TYPE_ROCE_V2   ? "RoCEv2"
                       : entry->type == IBV_GID_TYPE_ROCE_V1 ? "RoCEv1"
                                                             : "InfiniBand";
    snprintf(text, size, "%s (%s)", address, type);
}
