/* SPDX-License-Identifier: MIT */
/* Links to many ranks, for the strategies that need them. */
#include "collectives/strategy.h"
#include <stdlib.h>

/* Of the slots of a rank, in one direction, whatever the size of the world. */
enum { ALL_LINKS_BUDGET_BYTES = 64 << 20 };

int wire_broken(struct sstar_aggregator *a, int from, const char *what)
{
    return world_fail(
        a->world, -EPROTO,
        "aggregator (%s): rank %d got %s from rank %d; all ranks must run the same version",
        a->strategy->name, a->rank, what, from);
}

int peers_remote(const struct sstar_aggregator *a, int *ranks)
{
    int n = 0;
    for (int r = 0; r < a->size; r++)
        if (a->node_of[r] != a->node) {
            if (ranks)
                ranks[n] = r;
            n++;
        }
    return n;
}

/* As many slots, a power of two, as the budgets allow; at least two, so that one can travel while
 * the other fills. */
struct sstar_link_attr peers_attr(const struct sstar_aggregator *a, int n, uint32_t slot_bytes,
                                  uint32_t slots_most, uint64_t budget_bytes)
{
    uint64_t share = n ? ALL_LINKS_BUDGET_BYTES / (uint64_t)n : budget_bytes;
    uint64_t stride = align_up((uint64_t)slot_bytes + LINK_TRAILER_BYTES, 64);
    uint32_t slots = slots_most;
    budget_bytes = share < budget_bytes ? share : budget_bytes;
    while (slots > 2 && slots * stride > budget_bytes)
        slots /= 2;
    return (struct sstar_link_attr){
        .queue_pairs = a->queue_pairs, .slots = slots, .slot_bytes = slot_bytes};
}

int peers_open(struct sstar_aggregator *a, const int *ranks, int n,
               const struct sstar_link_attr *attr, struct peers **out)
{
    int err = -ENOMEM;
    struct peers *peers = calloc(1, sizeof *peers);
    if (!peers)
        return -ENOMEM;
    peers->n = n;
    peers->peer = calloc((size_t)n + 1, sizeof *peers->peer);
    peers->index_of = calloc((size_t)a->size, sizeof *peers->index_of);
    if (!peers->peer || !peers->index_of)
        goto close;
    err = sstar_links_open(a->world, ranks, n, attr, &peers->links);
    if (err)
        goto close;
    for (int r = 0; r < a->size; r++)
        peers->index_of[r] = -1;
    for (int i = 0; i < n; i++) {
        peers->index_of[ranks[i]] = i;
        peers->peer[i] =
            (struct peer){.rank = ranks[i], .link = sstar_links_to(peers->links, ranks[i])};
    }
    *out = peers;
    return 0;
close:
    peers_close(peers);
    return err;
}

void peers_close(struct peers *peers)
{
    if (!peers)
        return;
    if (peers->links)
        sstar_links_close(peers->links);
    free(peers->peer);
    free(peers->index_of);
    free(peers);
}

void peers_reset(struct peers *peers)
{
    for (int i = 0; i < peers->n; i++) {
        struct peer *p = &peers->peer[i];
        if (p->taken)
            link_release(p->link, p->taken);
        *p = (struct peer){.rank = p->rank, .link = p->link};
    }
    peers->turn = peers->open = 0;
}

bool peers_drained(const struct peers *peers)
{
    for (int i = 0; i < peers->n; i++)
        if (peers->peer[i].expected != peers->peer[i].received + 1)
            return false;
    return true;
}

int peers_missing(const struct peers *peers)
{
    for (int i = 0; i < peers->n; i++)
        if (!peers->peer[i].expected)
            return peers->peer[i].rank;
    return -1;
}

bool peers_sending(const struct peers *peers)
{
    for (int i = 0; i < peers->n; i++)
        if (peers->peer[i].ticket && !sstar_link_done(peers->peer[i].link, peers->peer[i].ticket))
            return true;
    return false;
}

bool peers_sent(const struct peers *peers)
{
    for (int i = 0; i < peers->n; i++)
        if (!peers->peer[i].last_sent)
            return false;
    return !peers_sending(peers);
}
