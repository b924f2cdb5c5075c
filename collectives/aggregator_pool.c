/* SPDX-License-Identifier: MIT */
/* The common pool of buffers, its sizes and opening: see aggregator_pool.h. */
#include "collectives/aggregator_pool_inside.h"
#include <stdlib.h>

enum {
    PLACES_MOST = 128,
    PLACES_LEAST = 4,
    POOL_BUDGET_BYTES = 16 << 20, /* of places, and of buffers */
    NOTE_SLOTS = 4,
};

struct pool_sizes pool_sizes(uint32_t buffer_bytes)
{
    size_t stride = align_up(sizeof(struct pool_header) + (uint64_t)buffer_bytes, 64);
    uint32_t places = PLACES_MOST;
    while (places > PLACES_LEAST && places * stride > POOL_BUDGET_BYTES)
        places /= 2;
    return (struct pool_sizes){.places = places, .most = places / 2, .stride = stride};
}

uint64_t pool_bytes(const struct pool_sizes *sizes)
{
    return 2 * sizes->places * sizes->stride;
}

struct sstar_link_attr pool_note_attr(void)
{
    return (struct sstar_link_attr){
        .queue_pairs = 1, .slots = NOTE_SLOTS, .slot_bytes = sizeof(struct pool_note), .puts = 1};
}

struct sstar_link_attr pool_buffer_attr(const struct pool_sizes *sizes)
{
    return (struct sstar_link_attr){.queue_pairs = 1, .puts = sizes->most};
}

static int open_links(struct pool *p)
{
    int *ranks = calloc((size_t)p->peers->n + 1, sizeof *ranks);
    if (!ranks)
        return -ENOMEM;
    for (int i = 0; i < p->peers->n; i++)
        ranks[i] = p->peers->peer[i].rank;
    struct sstar_link_attr attr = pool_buffer_attr(&p->sizes);
    int err = sstar_links_open(p->a->world, ranks, p->peers->n, &attr, &p->links);
    for (int i = 0; !err && i < p->peers->n; i++)
        p->peer[i].link = sstar_links_to(p->links, ranks[i]);
    free(ranks);
    return err;
}

static int make_peers(struct pool *p)
{
    size_t n = (size_t)p->peers->n + 1, most = p->sizes.most;
    p->peer = calloc(n, sizeof *p->peer);
    p->numbers = calloc(n * 3 * most, sizeof *p->numbers);
    p->tickets = calloc(n * most, sizeof *p->tickets);
    p->free_place = calloc(p->sizes.places, sizeof *p->free_place);
    p->free_buffer = calloc(p->sizes.places, sizeof *p->free_buffer);
    p->remote = calloc((size_t)p->a->size, sizeof *p->remote);
    if (!p->peer || !p->numbers || !p->tickets || !p->free_place || !p->free_buffer || !p->remote)
        return -ENOMEM;
    for (size_t i = 0; i + 1 < n; i++) {
        uint16_t *numbers = p->numbers + i * 3 * most;
        p->peer[i] = (struct pool_peer){.granted.at = numbers,
                                        .flying.at = numbers + most,
                                        .given.at = numbers + 2 * most,
                                        .ticket = p->tickets + i * most,
                                        .open = -1};
    }
    for (uint32_t i = 0; i < p->sizes.places; i++)
        p->free_place[p->free_places++] = p->free_buffer[p->free_buffers++] = (uint16_t)i;
    if (p->peers->n)
        p->kept = p->sizes.most / (uint32_t)p->peers->n;
    p->kept = p->kept < FIRST_PLACES ? p->kept : FIRST_PLACES;
    return 0;
}

int pool_open(struct sstar_aggregator *a, struct peers *peers, uint32_t buffer_bytes,
              struct pool **out)
{
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    *p = (struct pool){.a = a, .peers = peers, .sizes = pool_sizes(buffer_bytes)};
    size_t bytes = pool_bytes(&p->sizes);
    int err = make_peers(p);
    if (!err)
        err = sstar_alloc(a->world, bytes, (void **)&p->memory);
    if (!err)
        err = sstar_register(a->world, p->memory, bytes, &p->region);
    struct sstar_remote_region mine = {0};
    if (!err)
        sstar_region_describe(p->region, &mine);
    /* A rank that failed takes part, and says so by a region of nothing. */
    int told = p->remote ? sstar_allgather(a->world, &mine, sizeof mine, p->remote) : err;
    for (int r = 0; !err && !told && r < a->size; r++)
        if (!p->remote[r].size_bytes)
            told = report_set(&a->world->report, -ENOMEM,
                              "aggregator (%s): rank %d could not get its pool of buffers",
                              a->strategy->name, r);
    if (!err && !told)
        err = open_links(p);
    if (err || told) {
        pool_close(p);
        return err ? err : told;
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    if (p->links)
        sstar_links_close(p->links);
    if (p->region)
        sstar_deregister(p->region);
    if (p->memory)
        sstar_free(p->a->world, p->memory);
    free(p->peer);
    free(p->numbers);
    free(p->tickets);
    free(p->free_place);
    free(p->free_buffer);
    free(p->remote);
    free(p);
}

uint64_t pool_bound_bytes(const struct pool *p)
{
    return (uint64_t)p->sizes.most * p->sizes.stride;
}
