/* SPDX-License-Identifier: MIT */
/* A link to every rank of every other node, for the strategies that need one. */
#include "collectives/strategy.h"
#include <stdlib.h>

int wire_broken(struct sstar_aggregator *a, int from, const char *what)
{
    return world_fail(
        a->world, -EPROTO,
        "aggregator (%s): rank %d got %s from rank %d; all ranks must run the same version",
        a->strategy->name, a->rank, what, from);
}

/* As many slots, a power of two, as the budget allows; at least two, so that one can travel while
 * the other fills. */
static uint32_t slots_for(uint32_t slot_bytes, uint32_t most, uint64_t budget_bytes)
{
    uint32_t slots = most;
    while (slots > 2 && (uint64_t)slots * slot_bytes > budget_bytes)
        slots /= 2;
    return slots;
}

int peers_open(struct sstar_aggregator *a, uint32_t slot_bytes, uint32_t slots_most,
               uint64_t budget_bytes, struct peers **out)
{
    int n = a->size - a->local_size, err = -ENOMEM;
    struct peers *peers = calloc(1, sizeof *peers);
    int *ranks = calloc((size_t)n + 1, sizeof *ranks);
    if (!peers || !ranks)
        goto free_all;
    peers->peer = calloc((size_t)n + 1, sizeof *peers->peer);
    peers->index_of = calloc((size_t)a->size, sizeof *peers->index_of);
    if (!peers->peer || !peers->index_of)
        goto free_all;
    for (int r = 0; r < a->size; r++) {
        peers->index_of[r] = -1;
        if (a->node_of[r] == a->node)
            continue;
        peers->index_of[r] = peers->n;
        ranks[peers->n++] = r;
    }
    struct sstar_link_attr attr = {.queue_pairs = a->queue_pairs,
                                   .slots = slots_for(slot_bytes, slots_most, budget_bytes),
                                   .slot_bytes = slot_bytes};
    err = sstar_links_open(a->world, ranks, peers->n, &attr, &peers->links);
    if (err)
        goto free_all;
    for (int i = 0; i < peers->n; i++)
        peers->peer[i] =
            (struct peer){.rank = ranks[i], .link = sstar_links_to(peers->links, ranks[i])};
    free(ranks);
    *out = peers;
    return 0;
free_all:
    free(ranks);
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
        if (!sstar_link_done(peers->peer[i].link, peers->peer[i].ticket))
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
