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
#include "collectives/node_reduce.h"
#include "transport/memory.h"
#include "transport/wait.h"
#include "transport/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int node_part_open(struct node_part *node, struct sstar_world *world, const struct node_map *map)
{
    int mine = map->node_of[world->rank], size = node_map_local_size(map, mine);
    *node = (struct node_part){.world = world,
                               .size = size,
                               .me = map->local_of[world->rank],
                               .owners = node_map_least(map),
                               .small_bytes = NODE_SMALL_BYTES,
                               .members = map->members + map->first[mine]};
    node->areas = calloc((size_t)size * 3, sizeof *node->areas);
    node->block = aligned_alloc(64, NODE_BLOCK_BYTES);
    if (!node->areas || !node->block)
        return report_set(&world->report, -ENOMEM, "allreduce: out of memory");
    node->inputs = (const char **)(node->areas + size);
    node->outputs = (char **)(node->inputs + size);
    void *memory;
    int err = sstar_alloc(world, sizeof *node->area, &memory);
    if (!err)
        node->area = memory;
    return err;
}

int node_part_meet(struct node_part *node, const uint64_t *addresses)
{
    for (int i = 0; i < node->size; i++) {
        int rank = node->members[i];
        node->areas[i] = memory_peer(node->world, rank, addresses[rank], sizeof *node->area);
        if (!node->areas[i]) {
            control_await_news(node->world);
            return world_fail(node->world, -EFAULT,
                              "allreduce: rank %d cannot map memory of rank %d of its node",
                              node->world->rank, rank);
        }
    }
    return 0;
}

void node_part_close(struct node_part *node)
{
    if (node->area)
        sstar_free(node->world, node->area);
    free(node->block);
    free(node->areas);
    *node = (struct node_part){0};
}

/* ---- meeting ------------------------------------------------------------------------------------
 */

/* Wait until the word reads `want` in the bits of `mask`, or with a mask of 0 at least `want`. */
static int wait_for(struct node_part *node, const _Atomic uint64_t *word, uint64_t want,
                    uint64_t mask, int peer)
{
    struct waiter w =
        wait_begin(node->world, "its part in the node's AllReduce", node->members[peer], want);
    for (;;) {
        uint64_t now = atomic_load_explicit(word, memory_order_acquire);
        if (mask ? (now & mask) == want : now >= want)
            return 0;
        int err = node->links ? sstar_links_progress(node->links) : 0;
        if (err < 0 || (err = wait_step(&w)) < 0)
            return err;
    }
}

static int differ(struct node_part *node, int peer)
{
    return world_fail(node->world, -EINVAL,
                      "allreduce: ranks %d and %d differ in count, type or operation",
                      node->world->rank, node->members[peer]);
}

/* Say that we have come, and wait for the others. */
static int meet(struct node_part *node)
{
    uint64_t phase = ++node->phase;
    atomic_store_explicit(&node->area->phase, phase, memory_order_release);
    for (int i = 0; i < node->size; i++) {
        int err = i == node->me ? 0 : wait_for(node, &node->areas[i]->phase, phase, 0, i);
        if (err)
            return err;
    }
    return 0;
}

static char *data_of(struct node_slot *slot, size_t bytes)
{
    return bytes <= sizeof slot->line ? slot->line : slot->data;
}

/* What rank i has put into its slot in this round. */
static const char *slot_of(const struct node_part *node, int i, size_t bytes)
{
    return data_of(&node->areas[i]->slots[node->round & 1], bytes);
}

/* Put `bytes` of ours into our slot and wait until all have. */
static int exchange(struct node_part *node, const void *mine, size_t bytes, uint32_t signature)
{
    uint32_t round = ++node->round;
    struct node_slot *slot = &node->area->slots[round & 1];
    memcpy(data_of(slot, bytes), mine, bytes);
    atomic_store_explicit(&slot->word, (uint64_t)signature << 32 | round, memory_order_release);
    for (int i = 0; i < node->size; i++) {
        const _Atomic uint64_t *word = &node->areas[i]->slots[round & 1].word;
        int err = wait_for(node, word, round, UINT32_MAX, i);
        if (err)
            return err;
        if (atomic_load_explicit(word, memory_order_relaxed) >> 32 != signature)
            return differ(node, i);
    }
    return 0;
}

/* Tell where our vectors lie, and learn which of the others' we can reach. */
static int publish(struct node_part *node, const struct node_job *job)
{
    struct sstar_world *world = node->world;
    struct node_area *area = node->area;
    size_t bytes = job->count * job->element_bytes;
    area->send = (uintptr_t)job->send;
    area->recv = (uintptr_t)job->recv;
    area->send_is_shared = memory_peer(world, world->rank, area->send, bytes) != NULL;
    area->recv_is_shared = memory_peer(world, world->rank, area->recv, bytes) != NULL;
    area->signature = job->signature;
    int err = meet(node);
    node->inputs_shared = node->outputs_shared = node->owners_shared = true;
    for (int i = 0; !err && i < node->size; i++) {
        const struct node_area *their = node->areas[i];
        if (their->signature != job->signature)
            return differ(node, i);
        node->inputs_shared &= their->send_is_shared != 0;
        node->outputs_shared &= their->recv_is_shared != 0;
        node->owners_shared &= i >= node->owners || their->recv_is_shared != 0;
    }
    for (int i = 0; !err && i < node->size; i++) {
        const struct node_area *their = node->areas[i];
        int rank = node->members[i];
        bool needed = i < node->owners ? node->owners_shared : node->outputs_shared;
        node->inputs[i] = node->inputs_shared ? memory_peer(world, rank, their->send, bytes) : NULL;
        node->outputs[i] = needed ? memory_peer(world, rank, their->recv, bytes) : NULL;
        if ((node->inputs_shared && !node->inputs[i]) || (needed && !node->outputs[i])) {
            control_await_news(world);
            return world_fail(world, -EFAULT, "allreduce: rank %d cannot map memory of rank %d",
                              world->rank, rank);
        }
    }
    return err;
}

/* ---- reducing -----------------------------------------------------------------------------------
 */

/* Part [at, at + count) of all inputs, each from its own start, into `to`, which may be one of
 * them. */
static void reduce_inputs(struct node_part *node, const struct node_job *job,
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

static bool is_small(const struct node_part *node, const struct node_job *job)
{
    return job->count * job->element_bytes <= node->small_bytes;
}

static void slice_of(const struct node_part *node, const struct node_job *job, int j,
                     size_t *offset, size_t *count)
{
    hierarchy_slice(node->owners, job->count, j, offset, count);
}

/* Our slice of inputs that can be read where they lie, a block at a time; with `everywhere` also
 * into the results of the others while the block is in the cache. */
static void reduce_shared(struct node_part *node, const struct node_job *job, bool everywhere)
{
    size_t offset, count, bytes = job->element_bytes, block = NODE_BLOCK_BYTES / bytes;
    slice_of(node, job, node->me, &offset, &count);
    for (size_t done = 0; done < count; done += block) {
        size_t at = offset + done, n = count - done < block ? count - done : block;
        char *to = (char *)job->recv + at * bytes;
        reduce_inputs(node, job, node->inputs, at, n, to);
        for (int i = 0; everywhere && i < node->size; i++)
            if (i != node->me)
                memcpy(node->outputs[i] + at * bytes, to, n * bytes);
    }
}

/* Part `piece` of slice j when slices are cut into pieces of `most` elements. */
static size_t piece_of(const struct node_part *node, const struct node_job *job, int j,
                       size_t piece, size_t most, size_t *at)
{
    size_t offset, count;
    slice_of(node, job, j, &offset, &count);
    size_t done = piece * most < count ? piece * most : count;
    *at = offset + done;
    return count - done < most ? count - done : most;
}

static size_t pieces_of(const struct node_part *node, const struct node_job *job, size_t most)
{
    size_t offset, count;
    slice_of(node, job, 0, &offset, &count); /* none is longer */
    return (count + most - 1) / most;
}

static int reduce_scatter_staged(struct node_part *node, const struct node_job *job)
{
    size_t bytes = job->element_bytes, at;
    size_t most = NODE_STAGING_BYTES / ((size_t)node->owners * bytes);
    size_t pieces = pieces_of(node, job, most);
    for (size_t piece = 0; piece < pieces; piece++) {
        unsigned half = node->pieces++ & 1;
        for (int j = 0; j < node->owners; j++) {
            size_t n = piece_of(node, job, j, piece, most, &at);
            memcpy(node->area->staging[half] + (size_t)j * most * bytes,
                   (const char *)job->send + at * bytes, n * bytes);
        }
        int err = meet(node);
        if (err)
            return err;
        size_t n = piece_of(node, job, node->me, piece, most, &at);
        for (int i = 0; i < node->size && n; i++)
            node->inputs[i] = node->areas[i]->staging[half] + (size_t)node->me * most * bytes;
        size_t block = NODE_BLOCK_BYTES / bytes;
        for (size_t done = 0; done < n; done += block)
            reduce_inputs(node, job, node->inputs, done, n - done < block ? n - done : block,
                          (char *)job->recv + (at + done) * bytes);
    }
    return 0;
}

static int reduce_scatter_small(struct node_part *node, const struct node_job *job)
{
    size_t bytes = job->element_bytes, offset, count;
    int err = exchange(node, job->send, job->count * bytes, job->signature);
    if (err)
        return err;
    slice_of(node, job, node->me, &offset, &count);
    for (int i = 0; i < node->size; i++)
        node->inputs[i] = slot_of(node, i, job->count * bytes);
    reduce_inputs(node, job, node->inputs, offset, count, (char *)job->recv + offset * bytes);
    return 0;
}

int node_reduce_scatter(struct node_part *node, const struct node_job *job)
{
    if (job->count == 0)
        return 0;
    if (is_small(node, job))
        return reduce_scatter_small(node, job);
    int err = publish(node, job);
    if (err)
        return err;
    if (!node->inputs_shared)
        return reduce_scatter_staged(node, job);
    reduce_shared(node, job, false);
    return 0;
}

/* ---- gathering ----------------------------------------------------------------------------------
 */

static int all_gather_small(struct node_part *node, const struct node_job *job)
{
    size_t bytes = job->element_bytes, offset, count;
    slice_of(node, job, node->me, &offset, &count);
    int err = exchange(node, (char *)job->recv + offset * bytes, count * bytes, job->signature);
    for (int j = 0; !err && j < node->owners; j++) {
        slice_of(node, job, j, &offset, &count);
        if (j != node->me)
            memcpy((char *)job->recv + offset * bytes, slot_of(node, j, count * bytes),
                   count * bytes);
    }
    return err;
}

static int all_gather_shared(struct node_part *node, const struct node_job *job)
{
    size_t bytes = job->element_bytes, offset, count;
    int err = meet(node); /* the slices are whole */
    if (err)
        return err;
    for (int turn = 1; turn <= node->owners; turn++) {
        int j = (node->me + turn) % node->owners; /* not all from the same rank at once */
        slice_of(node, job, j, &offset, &count);
        if (j != node->me)
            memcpy((char *)job->recv + offset * bytes, node->outputs[j] + offset * bytes,
                   count * bytes);
    }
    return meet(node); /* all have read */
}

static int all_gather_staged(struct node_part *node, const struct node_job *job)
{
    size_t bytes = job->element_bytes, at, most = NODE_STAGING_BYTES / bytes;
    size_t pieces = pieces_of(node, job, most);
    for (size_t piece = 0; piece < pieces; piece++) {
        unsigned half = node->pieces++ & 1;
        size_t n = piece_of(node, job, node->me, piece, most, &at);
        memcpy(node->area->staging[half], (char *)job->recv + at * bytes, n * bytes);
        int err = meet(node);
        if (err)
            return err;
        for (int j = 0; j < node->owners; j++) {
            n = piece_of(node, job, j, piece, most, &at);
            if (j != node->me)
                memcpy((char *)job->recv + at * bytes, node->areas[j]->staging[half], n * bytes);
        }
    }
    return 0;
}

int node_all_gather(struct node_part *node, const struct node_job *job)
{
    if (job->count == 0)
        return 0;
    if (is_small(node, job))
        return all_gather_small(node, job);
    return node->owners_shared ? all_gather_shared(node, job) : all_gather_staged(node, job);
}

/* ---- one node is all ----------------------------------------------------------------------------
 */

int node_all_reduce(struct node_part *node, const struct node_job *job)
{
    size_t bytes = job->count * job->element_bytes;
    if (bytes == 0)
        return 0;
    if (node->size == 1) {
        memmove(job->recv, job->send, bytes);
        return 0;
    }
    if (bytes <= node->small_bytes) {
        /* Everybody reduces everything: one exchange, no second. */
        int err = exchange(node, job->send, bytes, job->signature);
        if (err)
            return err;
        job->kernel(job->recv, slot_of(node, 0, bytes), slot_of(node, 1, bytes), job->count);
        for (int i = 2; i < node->size; i++)
            job->kernel(job->recv, job->recv, slot_of(node, i, bytes), job->count);
        return 0;
    }
    int err = publish(node, job);
    if (err)
        return err;
    if (node->inputs_shared && node->outputs_shared) {
        reduce_shared(node, job, true);
        return meet(node);
    }
    if (node->inputs_shared)
        reduce_shared(node, job, false);
    else
        err = reduce_scatter_staged(node, job);
    return err ? err : node_all_gather(node, job);
}
