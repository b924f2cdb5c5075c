/* SPDX-License-Identifier: MIT */
/*
 * ReduceScatter and AllGather inside a node: each member has a share of the vector (struct sharing
 * of schedule.h), one range or several, and the elements of a share are numbered one after the
 * other. Small vectors go through the slots, memory that all map is read where it lies, all else
 * goes through the staging part in pieces of every share.
 */
#include "collectives/node_inside.h"
#include "transport/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- shares ------------------------------------------------------------------------------------
 */

int node_shares_open(struct node_part *node, const struct node_map *map)
{
    int mine = map->node_of[node->world->rank], n = 0;
    node->blocks = malloc((size_t)(map->size + node->size + 1) * sizeof *node->blocks);
    if (!node->blocks)
        return report_set(&node->world->report, -ENOMEM, "collectives: out of memory");
    node->blocks_first = node->blocks + map->size;
    for (int member = 0; member < node->size; member++) {
        node->blocks_first[member] = n;
        for (int rank = 0; rank < map->size; rank++)
            if (sharing_has_block(map, mine, member, rank))
                node->blocks[n++] = rank;
    }
    node->blocks_first[node->size] = n;
    return 0;
}

size_t node_share(const struct node_part *node, int member)
{
    const struct sharing *sharing = &node->job->sharing;
    const int *first = node->blocks_first;
    return sharing->block ? (size_t)(first[member + 1] - first[member]) * sharing->block
                          : sharing_slice(sharing, node->size, member).count;
}

/* Where in the vector elements `from` .. `end` of a share begin; how many lie side by side there.
 */
static size_t side_by_side(const struct node_part *node, int member, size_t from, size_t end,
                           size_t *at)
{
    const struct sharing *sharing = &node->job->sharing;
    size_t n = end - from, block = sharing->block;
    if (!block) {
        *at = sharing_slice(sharing, node->size, member).offset + from;
        return n;
    }
    size_t rank = (size_t)node->blocks[node->blocks_first[member] + (int)(from / block)];
    *at = rank * block + from % block;
    return n < block - from % block ? n : block - from % block;
}

/* Elements `from` .. `end` of a share, packed: from the vector, and into it. */
static void pack(const struct node_part *node, int member, size_t from, size_t end,
                 const char *vector, char *to)
{
    size_t bytes = node->job->element_bytes, at;
    for (size_t n; from < end; from += n, to += n * bytes) {
        n = side_by_side(node, member, from, end, &at);
        memcpy(to, vector + at * bytes, n * bytes);
    }
}

static void unpack(const struct node_part *node, int member, size_t from, size_t end,
                   const char *packed, char *vector)
{
    size_t bytes = node->job->element_bytes, at;
    for (size_t n; from < end; from += n, packed += n * bytes) {
        n = side_by_side(node, member, from, end, &at);
        memcpy(vector + at * bytes, packed, n * bytes);
    }
}

/* Elements `from` .. `end` of our share, of the inputs where all stand in their places. */
static void reduce_share(struct node_part *node, size_t from, size_t end)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, block = NODE_BLOCK_BYTES / bytes, at;
    for (size_t n; from < end; from += n) {
        n = side_by_side(node, node->me, from, end, &at);
        n = n < block ? n : block;
        node_reduce_inputs(node, job, node->inputs, at, n, (char *)job->recv + at * bytes);
    }
}

/* ---- pieces ------------------------------------------------------------------------------------
 */

/* Elements of a share in one piece: the parts of all shares lie beside each other where sums are
 * to be made, one fills the staging part where its member is to be read. */
static size_t most_of(const struct node_part *node, bool gather)
{
    size_t parts = gather ? 1 : (size_t)node->job->sharing.owners;
    return NODE_STAGING_BYTES / (parts * node->job->element_bytes);
}

static size_t pieces_of(const struct node_part *node, size_t most)
{
    size_t longest = 0;
    for (int member = 0; member < node->size; member++)
        if (node_share(node, member) > longest)
            longest = node_share(node, member);
    return (longest + most - 1) / most;
}

struct piece {
    size_t from, end;
};
static struct piece piece_of(const struct node_part *node, int member, size_t number, size_t most)
{
    size_t share = node_share(node, member), from = number * most;
    from = from < share ? from : share;
    return (struct piece){from, share - from < most ? share : from + most};
}

/* Where the part of a share stands among those of all: by its member's place among the owners. */
static size_t part_at(const struct node_part *node, int member, size_t most)
{
    const struct sharing *sharing = &node->job->sharing;
    int j = (member - sharing->first + node->size) % node->size;
    return (size_t)j * most * node->job->element_bytes;
}

/* ---- reduce-scatter ----------------------------------------------------------------------------
 */

static bool is_small(const struct node_part *node)
{
    return node->job->count * node->job->element_bytes <= node->small_bytes;
}

/* Our part of piece `number` of every share into the staging part, for their owners. */
static int stage_inputs(struct node_part *node, size_t number)
{
    size_t most = most_of(node, false);
    node->half = node->pieces++ & 1;
    for (int member = 0; member < node->size; member++) {
        struct piece piece = piece_of(node, member, number, most);
        if (piece.from < piece.end)
            pack(node, member, piece.from, piece.end, node->job->send,
                 node->area->staging[node->half] + part_at(node, member, most));
    }
    return node_meet(node);
}

static void reduce_staged(struct node_part *node, size_t number)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, most = most_of(node, false), at;
    size_t block = NODE_BLOCK_BYTES / bytes;
    struct piece piece = piece_of(node, node->me, number, most);
    for (int i = 0; i < node->size && piece.from < piece.end; i++)
        node->inputs[i] = node->areas[i]->staging[node->half] + part_at(node, node->me, most);
    for (size_t from = piece.from, n; from < piece.end; from += n) {
        n = side_by_side(node, node->me, from, piece.end, &at);
        n = n < block ? n : block;
        node_reduce_inputs(node, job, node->inputs, from - piece.from, n,
                           (char *)job->recv + at * bytes);
    }
}

/* The others may read our input until all have come once more. */
static int end_of_reading(struct node_part *node)
{
    return node->job->ends ? node_meet(node) : NODE_DONE;
}

/* Stage 0 goes to the others, stage 1 sees where their inputs are, later ones each do a piece. */
int node_reduce_scatter(struct node_part *node)
{
    const struct node_job *job = node->job;
    unsigned stage = node->stage++;
    if (is_small(node)) {
        if (stage == 0)
            return node_exchange(node, job->send, job->count * job->element_bytes);
        for (int i = 0; i < node->size; i++)
            node->inputs[i] = node_slot_of(node, i, job->count * job->element_bytes);
        reduce_share(node, 0, node_share(node, node->me));
        return NODE_DONE;
    }
    if (stage == 0)
        return node_publish(node);
    if (stage == 1) {
        int err = node_learn(node);
        if (err)
            return err;
        if (!node->inputs_shared)
            return stage_inputs(node, 0);
        reduce_share(node, 0, node_share(node, node->me));
        return end_of_reading(node);
    }
    if (node->inputs_shared)
        return NODE_DONE;
    size_t number = stage - 2;
    reduce_staged(node, number);
    return number + 1 < pieces_of(node, most_of(node, false)) ? stage_inputs(node, number + 1)
                                                              : NODE_DONE;
}

/* ---- all-gather --------------------------------------------------------------------------------
 */

static int gather_small(struct node_part *node, unsigned stage)
{
    const struct node_job *job = node->job;
    size_t ours = node_share(node, node->me);
    if (stage == 0) {
        pack(node, node->me, 0, ours, job->recv, node->block);
        return node_exchange(node, node->block, ours * job->element_bytes);
    }
    for (int i = 0; i < node->size; i++) {
        size_t share = node_share(node, i);
        if (i != node->me)
            unpack(node, i, 0, share, node_slot_of(node, i, share * job->element_bytes), job->recv);
    }
    return NODE_DONE;
}

static void gather_shared(struct node_part *node)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, at;
    for (int turn = 1; turn < node->size; turn++) {
        int i = (node->me + turn) % node->size; /* not all from the same rank at once */
        size_t share = node_share(node, i);
        for (size_t from = 0, n; from < share; from += n) {
            n = side_by_side(node, i, from, share, &at);
            memcpy((char *)job->recv + at * bytes, node->outputs[i] + at * bytes, n * bytes);
        }
    }
}

static int stage_share(struct node_part *node, size_t number)
{
    struct piece piece = piece_of(node, node->me, number, most_of(node, true));
    node->half = node->pieces++ & 1;
    pack(node, node->me, piece.from, piece.end, node->job->recv, node->area->staging[node->half]);
    return node_meet(node);
}

static void gather_staged(struct node_part *node, size_t number)
{
    for (int i = 0; i < node->size; i++) {
        struct piece piece = piece_of(node, i, number, most_of(node, true));
        if (i != node->me)
            unpack(node, i, piece.from, piece.end, node->areas[i]->staging[node->half],
                   node->job->recv);
    }
}

int node_all_gather(struct node_part *node)
{
    unsigned stage = node->stage++;
    if (is_small(node))
        return gather_small(node, stage);
    if (!node->learned) { /* no step before this one did */
        if (!node->asked) {
            node->asked = true;
            node->stage = 0;
            return node_publish(node);
        }
        int err = node_learn(node);
        if (err)
            return err;
    }
    if (node->owners_shared) {
        if (stage == 1)
            gather_shared(node);
        return stage < 2 ? node_meet(node) : NODE_DONE; /* shares are whole; all have read */
    }
    if (stage == 0)
        return stage_share(node, 0);
    gather_staged(node, stage - 1);
    return stage < pieces_of(node, most_of(node, true)) ? stage_share(node, stage) : NODE_DONE;
}
