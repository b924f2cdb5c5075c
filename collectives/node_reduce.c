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
#include "transport/memory.h"
#include "transport/wait.h"
#include "transport/world.h"

#include <errno.h>
#include <sched.h>
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
                               .all_bytes = NODE_ALL_BYTES,
                               .groups = size,
                               .copy = memcpy,
                               .members = map->members + map->first[mine]};
    node->areas = calloc((size_t)size * 3, sizeof *node->areas);
    node->block = aligned_alloc(64, (size_t)2 * NODE_BLOCK_BYTES);
    if (!node->areas || !node->block)
        return report_set(&world->report, -ENOMEM, "collectives: out of memory");
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
                              "collectives: rank %d cannot map memory of rank %d of its node",
                              node->world->rank, rank);
        }
    }
    return 0;
}

void node_part_crowd(struct node_part *node, int cores)
{
    node->small_bytes = NODE_SLOT_BYTES;
    node->all_bytes = NODE_ALL_CROWDED_BYTES;
    if (cores > 1 && cores < node->size && (cores == 2 || node->size % cores == 0))
        node->groups = cores;
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

/* Tell where our vectors lie; */
static int publish(struct node_part *node)
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

/* and learn which of the others' we can reach. */
static int learn(struct node_part *node)
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
        node->owners_shared &= i >= node->owners || their->recv_is_shared != 0;
    }
    for (int i = 0; i < node->size; i++) {
        const struct node_area *their = node->areas[i];
        int rank = node->members[i];
        bool needed = i < node->owners ? node->owners_shared : node->outputs_shared;
        node->inputs[i] = node->inputs_shared ? memory_peer(world, rank, their->send, bytes) : NULL;
        node->outputs[i] = needed ? memory_peer(world, rank, their->recv, bytes) : NULL;
        if ((node->inputs_shared && !node->inputs[i]) || (needed && !node->outputs[i])) {
            control_await_news(world);
            return world_fail(world, -EFAULT, "collectives: rank %d cannot map memory of rank %d",
                              world->rank, rank);
        }
    }
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

static bool is_small(const struct node_part *node, const struct node_job *job)
{
    return job->count * job->element_bytes <= node->small_bytes;
}

static void slice_of(const struct node_part *node, const struct node_job *job, int j,
                     size_t *offset, size_t *count)
{
    hierarchy_slice(node->owners, job->count, j, offset, count);
}

/* Our slice of inputs that can be read where they lie, a block at a time. */
static void reduce_shared(struct node_part *node, const struct node_job *job)
{
    size_t offset, count, bytes = job->element_bytes, block = NODE_BLOCK_BYTES / bytes;
    slice_of(node, job, node->me, &offset, &count);
    for (size_t done = 0; done < count; done += block) {
        size_t at = offset + done, n = count - done < block ? count - done : block;
        node_reduce_inputs(node, job, node->inputs, at, n, (char *)job->recv + at * bytes);
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

static size_t most_of(const struct node_part *node, bool gather)
{
    size_t parts = gather ? 1 : (size_t)node->owners;
    return NODE_STAGING_BYTES / (parts * node->job->element_bytes);
}

/* Our part of piece `piece` of every slice into the staging part, for their owners. */
static int stage_inputs(struct node_part *node, size_t piece)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, most = most_of(node, false), at;
    node->half = node->pieces++ & 1;
    for (int j = 0; j < node->owners; j++) {
        size_t n = piece_of(node, job, j, piece, most, &at);
        memcpy(node->area->staging[node->half] + (size_t)j * most * bytes,
               (const char *)job->send + at * bytes, n * bytes);
    }
    return node_meet(node);
}

static void reduce_staged(struct node_part *node, size_t piece)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, most = most_of(node, false), at;
    size_t n = piece_of(node, job, node->me, piece, most, &at);
    for (int i = 0; i < node->size && n; i++)
        node->inputs[i] = node->areas[i]->staging[node->half] + (size_t)node->me * most * bytes;
    size_t block = NODE_BLOCK_BYTES / bytes;
    for (size_t done = 0; done < n; done += block)
        node_reduce_inputs(node, job, node->inputs, done, n - done < block ? n - done : block,
                           (char *)job->recv + (at + done) * bytes);
}

static void reduce_small(struct node_part *node)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, offset, count;
    slice_of(node, job, node->me, &offset, &count);
    for (int i = 0; i < node->size; i++)
        node->inputs[i] = node_slot_of(node, i, job->count * bytes);
    node_reduce_inputs(node, job, node->inputs, offset, count, (char *)job->recv + offset * bytes);
}

/* Stage 0 goes to the others, stage 1 sees where their inputs are, later ones each do a piece. */
static int reduce_scatter(struct node_part *node)
{
    const struct node_job *job = node->job;
    unsigned stage = node->stage++;
    if (stage == 0)
        return is_small(node, job) ? node_exchange(node, job->send, job->count * job->element_bytes)
                                   : publish(node);
    if (is_small(node, job)) {
        reduce_small(node);
        return NODE_DONE;
    }
    if (stage == 1) {
        int err = learn(node);
        if (err)
            return err;
        if (!node->inputs_shared)
            return stage_inputs(node, 0);
        reduce_shared(node, job);
        return NODE_DONE;
    }
    size_t piece = stage - 2;
    reduce_staged(node, piece);
    return piece + 1 < pieces_of(node, job, most_of(node, false)) ? stage_inputs(node, piece + 1)
                                                                  : NODE_DONE;
}

/* ---- gathering ----------------------------------------------------------------------------------
 */

static void gather_small(struct node_part *node)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, offset, count;
    for (int j = 0; j < node->owners; j++) {
        slice_of(node, job, j, &offset, &count);
        if (j != node->me)
            memcpy((char *)job->recv + offset * bytes, node_slot_of(node, j, count * bytes),
                   count * bytes);
    }
}

static void gather_shared(struct node_part *node)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, offset, count;
    for (int turn = 1; turn <= node->owners; turn++) {
        int j = (node->me + turn) % node->owners; /* not all from the same rank at once */
        slice_of(node, job, j, &offset, &count);
        if (j != node->me)
            memcpy((char *)job->recv + offset * bytes, node->outputs[j] + offset * bytes,
                   count * bytes);
    }
}

static int stage_slice(struct node_part *node, size_t piece)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, at;
    size_t n = piece_of(node, job, node->me, piece, most_of(node, true), &at);
    node->half = node->pieces++ & 1;
    memcpy(node->area->staging[node->half], (char *)job->recv + at * bytes, n * bytes);
    return node_meet(node);
}

static void gather_staged(struct node_part *node, size_t piece)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, at;
    for (int j = 0; j < node->owners; j++) {
        size_t n = piece_of(node, job, j, piece, most_of(node, true), &at);
        if (j != node->me)
            memcpy((char *)job->recv + at * bytes, node->areas[j]->staging[node->half], n * bytes);
    }
}

static int all_gather(struct node_part *node)
{
    const struct node_job *job = node->job;
    unsigned stage = node->stage++;
    size_t bytes = job->element_bytes, offset, count;
    if (is_small(node, job)) {
        slice_of(node, job, node->me, &offset, &count);
        if (stage == 0)
            return node_exchange(node, (char *)job->recv + offset * bytes, count * bytes);
        gather_small(node);
        return NODE_DONE;
    }
    if (node->owners_shared) {
        if (stage == 1)
            gather_shared(node);
        return stage < 2 ? node_meet(node) : NODE_DONE; /* the slices are whole; all have read */
    }
    if (stage == 0)
        return stage_slice(node, 0);
    gather_staged(node, stage - 1);
    return stage < pieces_of(node, job, most_of(node, true)) ? stage_slice(node, stage) : NODE_DONE;
}

/* ---- acts ---------------------------------------------------------------------------------------
 */

void node_begin(struct node_part *node, enum node_act act, const struct node_job *job)
{
    node->job = job;
    node->act = act;
    node->stage = 0;
    node->filled = node->known = node->taken = 0;
    node->moved = false;
}

static int act_on(struct node_part *node)
{
    switch (node->act) {
    case NODE_REDUCE_SCATTER:
        return reduce_scatter(node);
    case NODE_ALL_GATHER:
        return all_gather(node);
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
