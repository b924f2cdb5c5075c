/* SPDX-License-Identifier: MIT */
/*
 * Inputs are always reduced in the order of the node's ranks, whoever does it and whichever way
 * they came, so the bits of a result do not depend on the way.
 *
 * Why nothing is overwritten too early. A rank counts the meetings it has come to (phase); coming
 * to one says that it has done all that it had to read before. A half of the staging part is filled
 * anew two pieces later, and between those lies a meeting after which all have read it; the job's
 * addresses are published anew only after a meeting to which the others came having read them.
 */
#include "collectives/node_inside.h"
#include "transport/copy.h"
#include "transport/memory.h"
#include "transport/wait.h"
#include "transport/world.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of the last-level cache. */
enum { UNKNOWN_SHARE_BYTES = 16 << 20, MOST_SHARE_BYTES = 32 << 20 };

/* Inputs and results of all ranks are to take no more than half of the last-level cache, and no
 * more than a part of a very large one, which others use too. */
static size_t cached_bytes(int ranks)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t share = cache > 0 ? (size_t)cache / 2 : UNKNOWN_SHARE_BYTES;
    return (share < MOST_SHARE_BYTES ? share : MOST_SHARE_BYTES) / 2 / (size_t)ranks;
}

int node_part_open(struct node_part *node, struct sstar_world *world, const struct node_map *map)
{
    int mine = map->node_of[world->rank], size = node_map_local_size(map, mine);
    *node = (struct node_part){.world = world,
                               .size = size,
                               .me = map->local_of[world->rank],
                               .small_bytes = NODE_SMALL_BYTES,
                               .all_bytes = NODE_ALL_BYTES,
                               .cached_bytes = cached_bytes(size),
                               .groups = size,
                               .copy = copy_best(world),
                               .members = map->members + map->first[mine]};
    node->areas = calloc((size_t)size * 3, sizeof *node->areas);
    node->block = aligned_alloc(64, (size_t)2 * NODE_BLOCK_BYTES);
    if (!node->areas || !node->block)
        return report_set(&world->report, -ENOMEM, "collectives: out of memory");
    node->inputs = (const char **)(node->areas + size);
    node->outputs = (char **)(node->inputs + size);
    void *memory;
    int err = node_shares_open(node, map);
    if (!err)
        err = sstar_alloc(world, sizeof *node->area, &memory);
    if (!err)
        node->area = memory;
    return err;
}

int node_part_meet(struct node_part *node, const uint64_t *addresses)
{
    for (int i = 0; i < node->size; i++) {
        int rank = node->members[i];
        node->areas[i] = memory_peer(node->world, rank, addresses[rank], sizeof *node->area);
        if (!node->areas[i])
            return memory_peer_missing(node->world, rank, "collectives");
    }
    return 0;
}

void node_part_group(struct node_part *node, int cores)
{
    if (cores > 1 && cores < node->size && (cores == 2 || node->size % cores == 0))
        node->groups = cores;
}

void node_part_crowd(struct node_part *node)
{
    node->small_bytes = NODE_SLOT_BYTES;
    node->all_bytes = NODE_ALL_CROWDED_BYTES;
}

void node_part_close(struct node_part *node)
{
    if (node->area)
        sstar_free(node->world, node->area);
    free(node->block);
    free(node->blocks);
    free(node->areas);
    *node = (struct node_part){0};
}

/* ---- meeting ------------------------------------------------------------------------------------
 */

int node_differ(struct node_part *node, int peer)
{
    return world_fail(node->world, -EINVAL,
                      "collectives: ranks %d and %d differ in count, type or operation",
                      node->world->rank, node->members[peer]);
}

static void say_core(const struct node_part *node)
{
    if (world_crowded(node->world))
        atomic_store_explicit(&node->area->core, sched_getcpu(), memory_order_relaxed);
}

int node_meet(struct node_part *node)
{
    say_core(node);
    atomic_store_explicit(&node->area->phase, ++node->phase, memory_order_release);
    node->waits = NODE_WAITS_MEET;
    return NODE_WAITS;
}

static char *data_of(struct node_area *area, uint32_t round, size_t bytes)
{
    struct node_slot *slot = &area->slots[round % NODE_TURNS];
    return bytes <= sizeof slot->line ? slot->line : area->slot_data[round % NODE_TURNS];
}

const char *node_slot_of(const struct node_part *node, int i, size_t bytes)
{
    return data_of(node->areas[i], node->round, bytes);
}

int node_exchange(struct node_part *node, const void *mine, size_t bytes)
{
    uint32_t round = ++node->round;
    struct node_slot *slot = &node->area->slots[round % NODE_TURNS];
    memcpy(data_of(node->area, round, bytes), mine, bytes);
    say_core(node);
    atomic_store_explicit(&slot->word, (uint64_t)node->job->signature << 32 | round,
                          memory_order_release);
    node->waits = NODE_WAITS_EXCHANGE;
    return NODE_WAITS;
}

static uint64_t word_of(const struct node_part *node, int i)
{
    return atomic_load_explicit(&node->areas[i]->slots[node->round % NODE_TURNS].word,
                                memory_order_acquire);
}

static bool is_here(const struct node_part *node, int i)
{
    if (node->waits == NODE_WAITS_EXCHANGE)
        return (uint32_t)word_of(node, i) == node->round;
    return node->waits == NODE_WAITS_MEET &&
           atomic_load_explicit(&node->areas[i]->phase, memory_order_acquire) >= node->phase;
}

int node_check_words(struct node_part *node)
{
    for (int i = 0; i < node->size; i++)
        if (word_of(node, i) >> 32 != node->job->signature)
            return node_differ(node, i);
    return 0;
}

/* 1: all have come. */
static int all_are_here(struct node_part *node)
{
    for (; node->seen < node->size; node->seen++) {
        if (!is_here(node, node->seen))
            return 0;
        if (node->waits == NODE_WAITS_EXCHANGE &&
            word_of(node, node->seen) >> 32 != node->job->signature)
            return node_differ(node, node->seen);
    }
    node->waits = NODE_WAITS_NOT;
    node->seen = 0;
    return 1;
}

int node_publish(struct node_part *node)
{
    struct sstar_world *world = node->world;
    struct node_area *area = node->area;
    const struct node_job *job = node->job;
    size_t bytes = job->count * job->element_bytes;
    area->send = (uintptr_t)job->send;
    area->recv = (uintptr_t)job->recv;
    area->send_is_shared = memory_peer(world, world->rank, area->send, bytes) != NULL;
    area->recv_is_shared = memory_peer(world, world->rank, area->recv, bytes) != NULL;
    area->signature = job->signature;
    return node_meet(node);
}

int node_learn(struct node_part *node)
{
    struct sstar_world *world = node->world;
    size_t bytes = node->job->count * node->job->element_bytes;
    node->inputs_shared = node->outputs_shared = node->owners_shared = true;
    for (int i = 0; i < node->size; i++) {
        const struct node_area *their = node->areas[i];
        if (their->signature != node->job->signature)
            return node_differ(node, i);
        node->inputs_shared &= their->send_is_shared != 0;
        node->outputs_shared &= their->recv_is_shared != 0;
        node->owners_shared &= node_share(node, i) == 0 || their->recv_is_shared != 0;
    }
    for (int i = 0; i < node->size; i++) {
        const struct node_area *their = node->areas[i];
        int rank = node->members[i];
        bool needed = node_share(node, i) ? node->owners_shared : node->outputs_shared;
        node->inputs[i] = node->inputs_shared ? memory_peer(world, rank, their->send, bytes) : NULL;
        if (node->inputs_shared && !node->inputs[i])
            return memory_peer_missing(world, rank, "collectives");
        node->outputs[i] = needed ? memory_peer(world, rank, their->recv, bytes) : NULL;
        if (needed && !node->outputs[i])
            return memory_peer_missing(world, rank, "collectives");
    }
    node->learned = true;
    return 0;
}

/* ---- reducing -----------------------------------------------------------------------------------
 */

/* Part [at, at + count) of all inputs, each from its own start, into `to`, which may be one of
 * them. */
void node_reduce_inputs(struct node_part *node, const struct node_job *job,
                        const char *const *inputs, size_t at, size_t count, char *to)
{
    size_t bytes = job->element_bytes;
    at *= bytes;
    if (node->size == 1)
        memmove(to, inputs[0] + at, count * bytes);
    if (node->size < 2)
        return;
    const char *sum = inputs[0] + at;
    for (int i = 1; i < node->size; i++) {
        char *out = i == node->size - 1 ? to : node->block;
        job->kernel(out, sum, inputs[i] + at, count);
        sum = out;
    }
}

/* ---- acts ---------------------------------------------------------------------------------------
 */

void node_begin(struct node_part *node, enum node_act act, const struct node_job *job)
{
    node->job = job;
    node->act = act;
    node->stage = 0;
    node->filled = node->known = node->taken = 0;
    node->moved = node->asked = false;
}

static int act_on(struct node_part *node)
{
    switch (node->act) {
    case NODE_REDUCE_SCATTER:
        return node_reduce_scatter(node);
    case NODE_ALL_GATHER:
        return node_all_gather(node);
    case NODE_ALL_REDUCE:
        return node_all_reduce(node);
    case NODE_MEET:
        return node->stage++ ? NODE_DONE : node_meet(node);
    }
    return NODE_DONE;
}

int node_advance(struct node_part *node)
{
    if (node->act != NODE_MEET && node->job->count == 0)
        return 1;
    for (;;) {
        if (node->waits) {
            int here = all_are_here(node);
            if (here <= 0)
                return here;
        }
        int next = act_on(node);
        if (next == NODE_STALLS)
            return 0;
        if (next != NODE_WAITS)
            return next == NODE_DONE ? 1 : next;
    }
}

int node_awaited(const struct node_part *node)
{
    return node->members[node->seen < node->size ? node->seen : 0];
}

bool node_waits_for_other_cores(const struct node_part *node)
{
    if (node_has_last(node) && node->act == NODE_ALL_REDUCE && !node->waits)
        return node_last_waits_elsewhere(node);
    int core = atomic_load_explicit(&node->area->core, memory_order_relaxed);
    for (int i = node->seen; i < node->size; i++)
        if (i != node->me &&
            atomic_load_explicit(&node->areas[i]->core, memory_order_relaxed) == core &&
            !is_here(node, i))
            return false;
    return true;
}
