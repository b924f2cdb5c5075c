/* SPDX-License-Identifier: MIT */
/*
 * AllReduce where one node is all. T is in cache lines moved from core to core, S / 64 B each way,
 * as far as the caches hold the vectors.
 *
 *     small      everybody puts its vector into its slot and reduces all of them: one exchange
 *     shared     all vectors are memory from sstar_alloc: rank j reduces slice j from the inputs
 *                where they lie into all results (two-shot). 2 S read and 2 S written by two ranks
 *     cells      two ranks, any memory (node_cells.c)
 *     pieces     more ranks, any memory (node_pieces.c)
 *     last       more ranks than two cores, any memory (node_last.c); small vectors, too
 *     groups     more ranks than cores, any memory (node_groups.c)
 *
 * Larger vectors (of two ranks, longer than NODE_COPIED_BYTES) begin with an exchange of where they
 * lie. A rank whose own memory is not shared knows the way without waiting for the others.
 */
#include "collectives/node_inside.h"
#include "transport/fetch.h"
#include "transport/memory.h"
#include "transport/world.h"

#include <errno.h>
#include <string.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

/* Vectors past the caches are reduced in blocks, asked for so many blocks ahead. */
enum { STREAM_BLOCK_BYTES = 1024, READ_AHEAD = 2 };
enum stage { BEGIN, SMALL, HELLO, SHARED, COPIES };

struct hello {
    uint64_t send, recv;
    uint64_t is_shared;
};

/* ---- copies that do not stay ------------------------------------------------------------------
 */

#ifdef __x86_64__
/* For each line that is copied one of `ahead` is asked for: so reads and writes of memory keep
 * step, and more requests than the core can have under way do not come at once. */
static void copy_past_caches(void *to, const void *from, size_t bytes, const char *ahead)
{
    size_t head = -(uintptr_t)to & 63;
    memcpy(to, from, head);
    char *d = (char *)to + head;
    const char *s = (const char *)from + head;
    size_t lines = (bytes - head) / 64;
    for (size_t i = 0; i < lines; i++, d += 64, s += 64, ahead += 64) {
        __builtin_prefetch(ahead);
        __m128i a = _mm_loadu_si128((const __m128i *)s);
        __m128i b = _mm_loadu_si128((const __m128i *)(s + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(s + 32));
        __m128i e = _mm_loadu_si128((const __m128i *)(s + 48));
        _mm_stream_si128((__m128i *)d, a);
        _mm_stream_si128((__m128i *)(d + 16), b);
        _mm_stream_si128((__m128i *)(d + 32), c);
        _mm_stream_si128((__m128i *)(d + 48), e);
    }
    memcpy(d, s, (bytes - head) % 64);
}
#endif

void node_copy_ahead(const struct node_part *node, void *to, const void *from, size_t bytes,
                     const char *ahead)
{
#ifdef __x86_64__
    if (node_streams(node) && bytes >= 256) {
        copy_past_caches(to, from, bytes, ahead);
        return;
    }
#else
    (void)node;
    (void)ahead;
#endif
    memcpy(to, from, bytes);
}

void node_copy_out(const struct node_part *node, void *to, const void *from, size_t bytes)
{
    node_copy_ahead(node, to, from, bytes, from);
}

/* What went past the caches is there before what is stored from now on. */
static void end_copies(const struct node_part *node)
{
#ifdef __x86_64__
    if (node_streams(node))
        _mm_sfence();
#else
    (void)node;
#endif
}

/* ---- small ----------------------------------------------------------------------------------- */

static void reduce_small(struct node_part *node)
{
    const struct node_job *job = node->job;
    size_t bytes = job->count * job->element_bytes;
    job->kernel(job->recv, node_slot_of(node, 0, bytes), node_slot_of(node, 1, bytes), job->count);
    for (int i = 2; i < node->size; i++)
        job->kernel(job->recv, job->recv, node_slot_of(node, i, bytes), job->count);
}

/* ---- shared ---------------------------------------------------------------------------------- */

static int say_hello(struct node_part *node, bool *is_shared)
{
    struct sstar_world *world = node->world;
    const struct node_job *job = node->job;
    size_t bytes = job->count * job->element_bytes;
    struct hello hello = {.send = (uintptr_t)job->send, .recv = (uintptr_t)job->recv};
    hello.is_shared = memory_peer(world, world->rank, hello.send, bytes) != NULL &&
                      memory_peer(world, world->rank, hello.recv, bytes) != NULL;
    *is_shared = hello.is_shared;
    return node_exchange(node, &hello, sizeof hello);
}

/* 1: everything is shared, and inputs and outputs say where; 0: it is not. */
static int learn(struct node_part *node)
{
    struct sstar_world *world = node->world;
    size_t bytes = node->job->count * node->job->element_bytes;
    for (int i = 0; i < node->size; i++) {
        struct hello hello;
        memcpy(&hello, node_slot_of(node, i, sizeof hello), sizeof hello);
        if (!hello.is_shared)
            return 0;
        node->inputs[i] = memory_peer(world, node->members[i], hello.send, bytes);
        node->outputs[i] =
            node->inputs[i] ? memory_peer(world, node->members[i], hello.recv, bytes) : NULL;
        if (!node->inputs[i] || !node->outputs[i])
            return memory_peer_missing(world, node->members[i], "collectives");
    }
    return 1;
}

/* In the order of node_groups.c, so that bits do not depend on where the vectors lie. */
static void reduce_by_groups(struct node_part *node, size_t at, size_t count, char *to)
{
    const struct node_job *job = node->job;
    at *= job->element_bytes;
    for (int g = 0; g < node->groups; g++) {
        const char *sum = node->inputs[g] + at;
        char *own = g ? node->block + NODE_BLOCK_BYTES : node->block;
        for (int i = g + node->groups; i < node->size; i += node->groups) {
            job->kernel(own, sum, node->inputs[i] + at, count);
            sum = own;
        }
        if (g)
            job->kernel(g == node->groups - 1 ? to : node->block, node->block, sum, count);
    }
}

/* Our slice into the results of all, a block at a time. With each copy of a block one of the inputs
 * is asked for. */
static void reduce_shared(struct node_part *node)
{
    const struct node_job *job = node->job;
    bool stream = node_streams(node);
    size_t offset, count, bytes = job->element_bytes;
    size_t block = (stream ? STREAM_BLOCK_BYTES : NODE_BLOCK_BYTES) / bytes;
    hierarchy_slice(node->size, job->count, node->me, &offset, &count);
    for (size_t done = 0; done < count; done += block) {
        size_t at = offset + done, n = count - done < block ? count - done : block;
        size_t ahead = at + READ_AHEAD * block;
        ahead = (ahead + block <= job->count ? ahead : at) * bytes;
        char *to = stream ? node->block : node->outputs[node->me] + at * bytes;
        if (node->groups == node->size)
            node_reduce_inputs(node, job, node->inputs, at, n, to);
        else
            reduce_by_groups(node, at, n, to);
        for (int i = 0; i < node->size; i++)
            if (node->outputs[i] + at * bytes != to)
                node_copy_ahead(node, node->outputs[i] + at * bytes, to, n * bytes,
                                node->inputs[i] + ahead);
    }
}

/* What we write the time after next others have read last: have it back by then. */
static int end(struct node_part *node)
{
    const struct node_job *job = node->job;
    size_t bytes = job->count * job->element_bytes;
    uint32_t turn = (node->round + 2) % NODE_TURNS;
    struct node_slot *slot = &node->area->slots[turn];
    fetch_to_write(slot);
    for (size_t at = 0; bytes > sizeof slot->line && bytes <= node->all_bytes && at < bytes;
         at += 64)
        fetch_to_write(node->area->slot_data[turn] + at);
    end_copies(node);
    return NODE_DONE;
}

/* ---- the act ---------------------------------------------------------------------------------
 */

static int begin(struct node_part *node)
{
    const struct node_job *job = node->job;
    size_t bytes = job->count * job->element_bytes;
    bool is_shared;
    if (node->size == 1) {
        memmove(job->recv, job->send, bytes);
        return NODE_DONE;
    }
    bool is_small = bytes <= node->all_bytes;
    if (is_small && !node_has_last(node)) {
        node->stage = SMALL;
        return node_exchange(node, job->send, bytes);
    }
    if (is_small || (node->size == 2 && bytes <= NODE_COPIED_BYTES)) {
        node->stage = COPIES;
        return NODE_DONE;
    }
    int next = say_hello(node, &is_shared);
    if (is_shared) {
        node->stage = HELLO;
        return next;
    }
    node->waits = NODE_WAITS_NOT;
    node->stage = COPIES;
    return next;
}

static int copies(struct node_part *node)
{
    return node->size == 2              ? node_all_by_cells(node)
           : node->groups == node->size ? node_all_by_pieces(node)
           : node_has_last(node)        ? node_all_by_last(node)
                                        : node_all_by_groups(node);
}

static int act(struct node_part *node)
{
    int shared;
    switch ((enum stage)node->stage) {
    case BEGIN:
        shared = begin(node);
        return node->stage == COPIES ? copies(node) : shared;
    case SMALL:
        reduce_small(node);
        return NODE_DONE;
    case HELLO:
        shared = learn(node);
        if (shared < 0)
            return shared;
        node->stage = shared ? SHARED : COPIES;
        if (!shared)
            return copies(node);
        reduce_shared(node);
        end_copies(node);
        return node_meet(node);
    case SHARED:
        return NODE_DONE;
    case COPIES:
        return copies(node);
    }
    return NODE_DONE;
}

int node_all_reduce(struct node_part *node)
{
    int next = act(node);
    return next == NODE_DONE && node->size > 1 ? end(node) : next;
}
