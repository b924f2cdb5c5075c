/* SPDX-License-Identifier: MIT */
/*
 * Hierarchical AllReduce: reduce-scatter inside each node, AllReduce across nodes among the ranks
 * that hold the same slice, all-gather inside each node.
 *
 * The form is that of multi-leader designs, for instance M. Bayatpour et al., "Scalable reduction
 * collectives with data partitioning-based multi-leader design", SC 2017.
 *
 * With L the least number of ranks of a node the vector is cut into L slices, and rank j < L of
 * each node owns slice j; further ranks of a node only contribute and collect. Inside nodes data
 * moves through memory. Across N nodes each slice goes round a ring of its owners
 * (schedule_ring.c); for two nodes that is an exchange of halves in two steps.
 *
 *     T = 2 (N-1) alpha + ... + 2 (N-1)/N S/beta        bytes of a node's port: 2 (N-1)/N S
 *
 * where a flat ring over N L ranks takes 2 (N L - 1) steps, of which those across nodes cost alpha.
 * The owners of a node share its port, so that their L messages of a step follow one another by g.
 * One node: only the local part. One rank in each node: only the ring.
 */
#include "collectives/schedule.h"

struct hierarchy hierarchy_of(const struct node_map *map)
{
    return (struct hierarchy){.owners = node_map_least(map),
                              .local_only = map->nodes == 1,
                              .ring_only = map->nodes == map->size};
}

void hierarchy_slice(int owners, size_t total, int j, size_t *offset, size_t *count)
{
    size_t n = (size_t)owners, i = (size_t)j, each = total / n, extra = total % n;
    bool owner = j < owners;
    *offset = owner ? each * i + (i < extra ? i : extra) : total;
    *count = owner ? each + (i < extra) : 0;
}

void schedule_hierarchical(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    const struct node_map *map = shape->map;
    struct hierarchy hierarchy = hierarchy_of(map);
    if (hierarchy.local_only) {
        schedule->before = (struct step){STEP_NODE_ALL_REDUCE, rank, rank, 0, shape->count};
        return;
    }
    if (hierarchy.ring_only) {
        schedule_ring(schedule, shape, rank);
        return;
    }
    size_t offset, count;
    int node = map->node_of[rank], j = map->local_of[rank];
    hierarchy_slice(hierarchy.owners, shape->count, j, &offset, &count);
    schedule->before = (struct step){STEP_NODE_REDUCE_SCATTER, rank, rank, offset, count};
    schedule->after = (struct step){STEP_NODE_ALL_GATHER, rank, rank, offset, count};
    if (j >= hierarchy.owners)
        return;
    int previous = (node + map->nodes - 1) % map->nodes, next = (node + 1) % map->nodes;
    schedule->ring = (struct ring){.n = map->nodes,
                                   .place = node,
                                   .previous = map->members[map->first[previous] + j],
                                   .next = map->members[map->first[next] + j],
                                   .offset = offset,
                                   .count = count,
                                   .slices = shape->slices,
                                   .operand = STEP_PARTIAL};
    ring_init(&schedule->ring, shape->slice_elements);
}
