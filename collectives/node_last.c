/* SPDX-License-Identifier: MIT */
/*
 * AllReduce of ranks that share two cores, through copies. The ranks make two groups, one for each
 * core: rank i is in group i mod 2, which is where ranks that are kept to cores are.
 *
 * Whoever comes last of its group works for all of it: only one rank of a core runs at a time, so
 * nothing is lost, and each rank has to get the core once for a piece and no more. The others put
 * their input where the last can read it and yield. The last sums the group's inputs, gives the sum
 * to the last of the other group, adds the sum that it gets, and leaves the result, which the
 * others take when they get the core again; and goes on to the next piece.
 *
 * Nothing is overwritten too early. A rank comes to a piece when it has taken the result of the one
 * before, and the last of a group works when all have come, so copies and results need one place.
 * Sums of groups go from core to core in two carriers that change hands (node_cells.c): whoever has
 * read one fills it for the next piece. It is read into the result, so nobody else reads it.
 */
#include "collectives/node_inside.h"
#include "transport/fetch.h"

#include <sched.h>

enum {
    GROUPS = 2,
    PIECE_BYTES = 128 * 1024, /* a few of these stay in an L2 cache */
    BLOCK_BYTES = 8 * 1024,   /* summed at a time, so that it stays in the L1 cache */
    STEP_BYTES = 512,         /* between which lines are asked for */
    FETCH_AHEAD = 2048,
    LINE_BYTES = 64,
};

static int group_of(const struct node_part *node)
{
    return node->me % GROUPS;
}

/* Of our group. */
static int members_of(const struct node_part *node)
{
    return (node->size - group_of(node) + GROUPS - 1) / GROUPS;
}

static size_t most_of(const struct node_part *node)
{
    return PIECE_BYTES / node->job->element_bytes;
}

/* Elements of the piece under way. */
static size_t count_of(const struct node_part *node)
{
    size_t most = most_of(node), left = node->job->count - node->taken * most;
    return left < most ? left : most;
}

static size_t bytes_of(const struct node_part *node)
{
    return count_of(node) * node->job->element_bytes;
}

/* Number of the piece under way, among all of all operations; 1 is the first. */
static uint64_t number_of(const struct node_part *node)
{
    return node->lasts + node->taken + 1;
}

static uint64_t mark_of(const struct node_part *node)
{
    return (uint64_t)node->job->signature << 32 | (uint32_t)number_of(node);
}

/* What a group has in common lies with its first rank. */
static struct node_area *area_of(const struct node_part *node, int group)
{
    return node->areas[group];
}

static _Atomic uint64_t *sum_word(const struct node_part *node, int group)
{
    return &area_of(node, group)->words[number_of(node) % NODE_TURNS].word;
}

static char *copy_of(const struct node_part *node, int i)
{
    return node->areas[i]->staging[0];
}

static char *carrier_of(const struct node_part *node, int group)
{
    return node->areas[((uint64_t)group + number_of(node)) % GROUPS]->staging[1];
}

/* What the group has summed so far, then the result. */
static char *result_of(const struct node_part *node)
{
    return area_of(node, group_of(node))->staging[1] + NODE_STAGING_BYTES / 2;
}

static const char *input_of(const struct node_part *node)
{
    const struct node_job *job = node->job;
    return (const char *)job->send + node->taken * most_of(node) * job->element_bytes;
}

static char *output_of(const struct node_part *node)
{
    const struct node_job *job = node->job;
    return (char *)job->recv + node->taken * most_of(node) * job->element_bytes;
}

/* Come to a piece; whether we are the last to do so. */
static bool come(struct node_part *node)
{
    uint64_t members = (uint64_t)members_of(node), last = number_of(node) * members - 1;
    _Atomic uint64_t *come = &area_of(node, group_of(node))->come;
    if (atomic_load_explicit(come, memory_order_relaxed) != last)
        node->copy(copy_of(node, node->me), input_of(node), bytes_of(node));
    atomic_store_explicit(&node->area->mark, mark_of(node), memory_order_relaxed);
    atomic_store_explicit(&node->area->core, sched_getcpu(), memory_order_relaxed);
    return atomic_fetch_add_explicit(come, 1, memory_order_acq_rel) == last;
}

/* The sum of our group, for us and into our carrier. */
static int sum_group(struct node_part *node)
{
    const struct node_job *job = node->job;
    int group = group_of(node), members = members_of(node);
    for (int t = 0; t < members; t++) {
        int i = t * GROUPS + group;
        if (atomic_load_explicit(&node->areas[i]->mark, memory_order_relaxed) != mark_of(node))
            return node_differ(node, i);
        node->inputs[t] = i == node->me ? input_of(node) : copy_of(node, i);
    }
    size_t total = bytes_of(node);
    for (size_t at = 0; at < total; at += BLOCK_BYTES) {
        size_t bytes = total - at < BLOCK_BYTES ? total - at : BLOCK_BYTES;
        char *own = result_of(node) + at;
        const char *sum = node->inputs[0] + at;
        for (int t = 1; t < members; t++, sum = own)
            job->kernel(own, sum, node->inputs[t] + at, bytes / job->element_bytes);
        if (members == 1)
            node->copy(own, sum, bytes);
        node->copy(carrier_of(node, group) + at, own, bytes);
    }
    atomic_store_explicit(sum_word(node, group), mark_of(node), memory_order_release);
    return 0;
}

static void fetch(const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE_BYTES)
        fetch_to_write(from + at);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The result of a block: own op theirs, or the other way round, in the order of the groups. */
static void sum_block(struct node_part *node, size_t at, size_t total)
{
    const struct node_job *job = node->job;
    char *own = result_of(node), *theirs = carrier_of(node, 1 - group_of(node));
    for (size_t end = least(at + BLOCK_BYTES, total); at < end; at += STEP_BYTES) {
        size_t bytes = least(STEP_BYTES, end - at), ahead = least(at + FETCH_AHEAD, total);
        fetch(theirs + ahead, least(STEP_BYTES, total - ahead));
        char *first = group_of(node) ? theirs : own, *second = group_of(node) ? own : theirs;
        job->kernel(own + at, first + at, second + at, bytes / job->element_bytes);
    }
}

/* 1: done; 0: the other group's sum is not here yet. */
static int sum_groups(struct node_part *node)
{
    int group = group_of(node), other = 1 - group;
    uint64_t word = atomic_load_explicit(sum_word(node, other), memory_order_acquire);
    if ((uint32_t)word != (uint32_t)mark_of(node))
        return 0;
    if (word != mark_of(node))
        return node_differ(node, other);
    size_t total = bytes_of(node);
    fetch(carrier_of(node, other), least(FETCH_AHEAD, total));
    for (size_t at = 0; at < total; at += BLOCK_BYTES) {
        sum_block(node, at, total);
        node_copy_out(node, output_of(node) + at, result_of(node) + at,
                      least(BLOCK_BYTES, total - at));
    }
    atomic_store_explicit(&area_of(node, group)->result, mark_of(node), memory_order_release);
    /* Written two pieces from now, and read by the others last. */
    fetch_to_write(&area_of(node, group)->words[(number_of(node) + 2) % NODE_TURNS].word);
    return 1;
}

static bool take_result(struct node_part *node)
{
    struct node_area *area = area_of(node, group_of(node));
    if (atomic_load_explicit(&area->result, memory_order_acquire) != mark_of(node))
        return false;
    node_copy_out(node, output_of(node), result_of(node), bytes_of(node));
    return true;
}

/* Say for whom we wait: the first of our group that has not come, if any, else the other's. */
static int stall(struct node_part *node)
{
    node->seen = 1 - group_of(node);
    for (int i = group_of(node); i < node->size && !node->leads; i += GROUPS)
        if (atomic_load_explicit(&node->areas[i]->mark, memory_order_relaxed) != mark_of(node)) {
            node->seen = i;
            break;
        }
    return NODE_STALLS;
}

int node_all_by_last(struct node_part *node)
{
    size_t most = most_of(node), n = (node->job->count + most - 1) / most;
    while (node->taken < n) {
        if (node->filled == node->taken) {
            node->filled++;
            node->leads = come(node);
            int err = node->leads ? sum_group(node) : 0;
            if (err)
                return err;
        }
        int done = node->leads ? sum_groups(node) : take_result(node);
        if (done < 0)
            return done;
        if (!done)
            return stall(node);
        node->taken++;
        node->moved = true;
    }
    node->seen = 0;
    node->lasts += n;
    node->leads = false;
    return NODE_DONE;
}

bool node_last_waits_elsewhere(const struct node_part *node)
{
    int core = atomic_load_explicit(&node->area->core, memory_order_relaxed);
    int group = node->leads ? 1 - group_of(node) : group_of(node);
    for (int i = group; i < node->size; i += GROUPS)
        if (i != node->me &&
            atomic_load_explicit(&node->areas[i]->core, memory_order_relaxed) == core)
            return false;
    return true;
}
