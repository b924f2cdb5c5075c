/* SPDX-License-Identifier: MIT */
/*
 * Hierarchical: inside nodes through memory, across nodes by any of the other algorithms.
 *
 * The form is that of multi-leader designs, for instance M. Bayatpour et al., "Scalable reduction
 * collectives with data partitioning-based multi-leader design", SC 2017.
 *
 * AllReduce: reduce-scatter inside each node, AllReduce across nodes among the ranks that hold the
 * same slice, all-gather inside each node. With L the least number of ranks of a node the vector is
 * cut into L slices, and rank j < L of each node owns slice j; further ranks of a node only
 * contribute and collect. Across N nodes each slice takes the way of the other algorithm among its
 * owners, for instance
 *
 *     T = log2 N alpha + log2 N S/beta                  doubling; a node's port moves log2 N S
 * bytes T = 2 log2 N alpha + 2 (N-1)/N S/beta             halving: 2 (N-1)/N S bytes
 *
 * where a flat ring over N L ranks takes 2 (N L - 1) steps, of which those across nodes cost alpha.
 * The owners of a node share its port, so that their L messages of a step follow one another by g.
 *
 * ReduceScatter: inside each node the blocks of all that are number l in their node are summed by
 * its own number l, or where it has fewer ranks by number l modulo those; then these ranks do a
 * ReduceScatter of those blocks across nodes, after which each has its own. AllGather the same way
 * back. T = (N-1) (alpha + L S/(N L beta)), ring, S being the whole vector; (N-1)/N S bytes leave a
 * port. Of uneven nodes a rank of a small one stands in for several, one after the other.
 *
 * Reduce: one rank of each node, in its own the root, sums its node; those do a Reduce across
 * nodes. Broadcast: from the root to one rank of each node, then inside. What goes across passes
 * one port of a node anyhow, so more than one rank would gain nothing but gaps.
 *
 * The barrier is one of the node, of the first ranks of the nodes, and of the node again.
 *
 * One node: only the local part. One rank in each node: only the other algorithm (schedule.c).
 */
#include "collectives/schedule.h"

bool algorithm_is_hierarchical(enum sstar_algorithm algorithm)
{
    return algorithm >= SSTAR_HIERARCHICAL;
}

enum sstar_algorithm algorithm_across(enum sstar_algorithm algorithm)
{
    switch (algorithm) {
    case SSTAR_HIERARCHICAL_DOUBLING:
        return SSTAR_DOUBLING;
    case SSTAR_HIERARCHICAL_HALVING:
        return SSTAR_HALVING;
    case SSTAR_HIERARCHICAL_TREE:
        return SSTAR_TREE;
    case SSTAR_HIERARCHICAL_CIRCULANT:
        return SSTAR_CIRCULANT;
    default:
        return SSTAR_RING;
    }
}

/* ---- who has what ------------------------------------------------------------------------------
 */

void hierarchy_slice(int owners, size_t total, int j, size_t *offset, size_t *count)
{
    struct range whole = {0, total};
    struct range slice =
        j < owners ? range_cut(whole, (size_t)owners, (size_t)j) : (struct range){total, 0};
    *offset = slice.offset;
    *count = slice.count;
}

struct sharing sharing_of(const struct schedule_shape *shape, int node)
{
    const struct node_map *map = shape->map;
    struct sharing sharing = {.owners = 1, .total = shape_total(shape)};
    switch (shape->operation) {
    case SSTAR_REDUCE_SCATTER:
    case SSTAR_ALL_GATHER:
        sharing.owners = node_map_local_size(map, node);
        sharing.block = shape->count;
        break;
    case SSTAR_BROADCAST:
    case SSTAR_REDUCE:
        sharing.first = map->node_of[shape->root] == node ? map->local_of[shape->root] : 0;
        break;
    default:
        sharing.owners = node_map_least(map);
        break;
    }
    return sharing;
}

struct range sharing_slice(const struct sharing *sharing, int members, int member)
{
    struct range slice;
    int j = (member - sharing->first + members) % members;
    hierarchy_slice(sharing->owners, sharing->total, j, &slice.offset, &slice.count);
    return slice;
}

bool sharing_has_block(const struct node_map *map, int node, int member, int rank)
{
    return map->local_of[rank] % node_map_local_size(map, node) == member;
}

/* ---- parts of the schedules --------------------------------------------------------------------
 */

static void node_step(struct schedule *schedule, const struct schedule_shape *shape, int phase,
                      unsigned what)
{
    schedule_lane(schedule, phase);
    schedule_add(schedule, (struct step){.what = (uint16_t)what, .count = shape_total(shape)});
}

/* What a rank begins with is part of its result, too. */
static void store_own(struct schedule *schedule, size_t offset, size_t count)
{
    schedule_lane(schedule, 0);
    schedule_add(schedule, (struct step){.what = STEP_STORE, .offset = offset, .count = count});
}

static schedule_function *across(const struct schedule_shape *shape)
{
    return schedule_function_of(shape->operation, algorithm_across(shape->algorithm));
}

/* Those that are number `which` of their nodes, counted round. */
static struct group group_of_owners(const struct schedule_shape *shape, int rank, int which,
                                    int phase)
{
    struct group group = group_of_all(shape, rank);
    group.kind = GROUP_OWNERS;
    group.n = shape->map->nodes;
    group.me = shape->map->node_of[rank];
    group.which = which;
    group.phase = phase;
    return group;
}

/* One of each node, `leader` among them. */
static bool is_leader(const struct schedule_shape *shape, int rank)
{
    const struct node_map *map = shape->map;
    int node = map->node_of[rank];
    return node == map->node_of[shape->root] ? rank == shape->root
                                             : rank == map->members[map->first[node]];
}

static struct group group_of_leaders(const struct schedule_shape *shape, int rank, int phase)
{
    struct group group = group_of_owners(shape, rank, shape->root, phase);
    group.kind = GROUP_LEADERS;
    group.root = shape->map->node_of[shape->root];
    return group;
}

/* ---- operations --------------------------------------------------------------------------------
 */

static void all_reduce(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    struct sharing sharing = sharing_of(shape, shape->map->node_of[rank]);
    int j = shape->map->local_of[rank];
    node_step(schedule, shape, 0, STEP_NODE_REDUCE_SCATTER | STEP_KEEP);
    if (j < sharing.owners) {
        struct group group = group_of_owners(shape, rank, j, 1);
        hierarchy_slice(sharing.owners, sharing.total, j, &group.range.offset, &group.range.count);
        group.operand = STEP_PARTIAL;
        across(shape)(schedule, shape, &group);
    }
    node_step(schedule, shape, 2, STEP_NODE_ALL_GATHER);
}

/* A rank's groups in their order, in one lane: two may hold the same ranks. */
static void all_blocks(struct schedule *schedule, const struct schedule_shape *shape, int rank,
                       int phase, unsigned operand)
{
    const struct node_map *map = shape->map;
    struct schedule_shape own = *shape;
    own.channels = 1;
    int size = node_map_local_size(map, map->node_of[rank]), before = schedule->n_lanes;
    for (int l = map->local_of[rank]; l < node_map_most(map); l += size) {
        struct group group = group_of_owners(shape, rank, l, phase);
        group.operand = operand;
        across(shape)(schedule, &own, &group);
        if (schedule->n_lanes > before + 1)
            schedule->n_lanes = before + 1;
    }
}

static void leaders(struct schedule *schedule, const struct schedule_shape *shape, int rank,
                    int phase, unsigned operand)
{
    if (!is_leader(shape, rank))
        return;
    struct group group = group_of_leaders(shape, rank, phase);
    group.operand = operand;
    across(shape)(schedule, shape, &group);
}

static void across_nodes(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    switch (shape->operation) {
    case SSTAR_REDUCE_SCATTER:
        node_step(schedule, shape, 0, STEP_NODE_REDUCE_SCATTER | STEP_KEEP);
        all_blocks(schedule, shape, rank, 1, STEP_PARTIAL);
        break;
    case SSTAR_ALL_GATHER:
        all_blocks(schedule, shape, rank, 0, 0);
        node_step(schedule, shape, 1, STEP_NODE_ALL_GATHER);
        break;
    case SSTAR_REDUCE:
        node_step(schedule, shape, 0, STEP_NODE_REDUCE_SCATTER | STEP_KEEP);
        leaders(schedule, shape, rank, 1, STEP_PARTIAL);
        break;
    case SSTAR_BROADCAST:
        leaders(schedule, shape, rank, 0, 0);
        node_step(schedule, shape, 1, STEP_NODE_ALL_GATHER);
        break;
    case SSTAR_BARRIER:
        node_step(schedule, shape, 0, STEP_NODE_MEET);
        leaders(schedule, shape, rank, 1, 0);
        node_step(schedule, shape, 2, STEP_NODE_MEET);
        break;
    default:
        all_reduce(schedule, shape, rank);
        break;
    }
}

static void inside(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    switch (shape->operation) {
    case SSTAR_REDUCE_SCATTER:
    case SSTAR_REDUCE:
        node_step(schedule, shape, 0, STEP_NODE_REDUCE_SCATTER | STEP_STORE);
        break;
    case SSTAR_ALL_GATHER:
        store_own(schedule, (size_t)rank * shape->count, shape->count);
        node_step(schedule, shape, 1, STEP_NODE_ALL_GATHER);
        break;
    case SSTAR_BROADCAST:
        if (rank == shape->root)
            store_own(schedule, 0, shape->count);
        node_step(schedule, shape, 1, STEP_NODE_ALL_GATHER);
        break;
    case SSTAR_BARRIER:
        node_step(schedule, shape, 0, STEP_NODE_MEET);
        break;
    default:
        node_step(schedule, shape, 0, STEP_NODE_ALL_REDUCE);
        break;
    }
}

void schedule_hierarchical(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    (shape->map->nodes == 1 ? inside : across_nodes)(schedule, shape, rank);
}
