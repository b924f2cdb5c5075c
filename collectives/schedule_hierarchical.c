/* SPDX-License-Identifier: MIT */
/*
 * Hierarchical AllReduce: reduce-scatter inside each node, AllReduce across nodes among the ranks
 * that hold the same slice, by any of the other algorithms, all-gather inside each node.
 *
 * The form is that of multi-leader designs, for instance M. Bayatpour et al., "Scalable reduction
 * collectives with data partitioning-based multi-leader design", SC 2017.
 *
 * With L the least number of ranks of a node the vector is cut into L slices, and rank j < L of
 * each node owns slice j; further ranks of a node only contribute and collect. Inside nodes data
 * moves through memory. Across N nodes each slice takes the way of the other algorithm among its
 * owners, for instance
 *
 *     T = log2 N alpha + log2 N S/beta                  doubling; a node's port moves log2 N S
 * bytes T = 2 log2 N alpha + 2 (N-1)/N S/beta             halving: 2 (N-1)/N S bytes
 *
 * where a flat ring over N L ranks takes 2 (N L - 1) steps, of which those across nodes cost alpha.
 * The owners of a node share its port, so that their L messages of a step follow one another by g.
 * One node: only the local part. One rank in each node: only the other algorithm.
 *
 * The barrier is one of the node, of the first ranks of the nodes, and of the node again.
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
    default:
        return SSTAR_RING;
    }
}

struct hierarchy hierarchy_of(const struct node_map *map)
{
    return (struct hierarchy){.owners = node_map_least(map),
                              .local_only = map->nodes == 1,
                              .ring_only = map->nodes == map->size};
}

void hierarchy_slice(int owners, size_t total, int j, size_t *offset, size_t *count)
{
    struct range whole = {0, total};
    struct range slice =
        j < owners ? range_cut(whole, (size_t)owners, (size_t)j) : (struct range){total, 0};
    *offset = slice.offset;
    *count = slice.count;
}

static void node_step(struct schedule *schedule, int phase, unsigned what, struct range range)
{
    schedule_lane(schedule, phase);
    schedule_add(
        schedule,
        (struct step){.what = (uint16_t)what, .offset = range.offset, .count = range.count});
}

/* Owners of slice j, one in each node. */
static struct group group_of_owners(const struct schedule_shape *shape, int rank,
                                    struct range slice)
{
    return (struct group){.map = shape->map,
                          .n = shape->map->nodes,
                          .me = shape->map->node_of[rank],
                          .kind = GROUP_OWNERS,
                          .which = shape->map->local_of[rank],
                          .range = slice,
                          .operand = STEP_PARTIAL,
                          .phase = 1};
}

void schedule_hierarchical(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    const struct node_map *map = shape->map;
    struct hierarchy hierarchy = hierarchy_of(map);
    bool barrier = shape->operation == SSTAR_BARRIER;
    schedule_function *across =
        schedule_function_of(shape->operation, algorithm_across(shape->algorithm));
    if (hierarchy.local_only) {
        node_step(schedule, 0, barrier ? STEP_NODE_MEET : STEP_NODE_ALL_REDUCE,
                  (struct range){0, shape->count});
        return;
    }
    if (hierarchy.ring_only) {
        struct group group = group_in_node_order(shape, rank, 0);
        across(schedule, shape, &group);
        return;
    }
    int owners = barrier ? 1 : hierarchy.owners, j = map->local_of[rank];
    struct range slice;
    hierarchy_slice(owners, shape->count, j, &slice.offset, &slice.count);
    node_step(schedule, 0, barrier ? STEP_NODE_MEET : STEP_NODE_REDUCE_SCATTER, slice);
    if (j < owners) {
        struct group group = group_of_owners(shape, rank, slice);
        across(schedule, shape, &group);
    }
    node_step(schedule, 2, barrier ? STEP_NODE_MEET : STEP_NODE_ALL_GATHER, slice);
}
