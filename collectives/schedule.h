/* SPDX-License-Identifier: MIT */
/*
 * An AllReduce algorithm as a schedule: the steps that one rank takes, in order.
 *
 * A schedule is a pure function of its shape and the rank. The same steps are executed
 * (allreduce.c), checked for every rank together (check.h) and priced (simulate.h).
 *
 * A step works on elements offset .. offset + count of the vector. Between two ranks messages are
 * received in the order of sending; sending does not wait for the receiver as long as there is a
 * free slot. The executor needs nothing else: a step names all that it waits for.
 */
#ifndef SSTAR_COLLECTIVES_SCHEDULE_H
#define SSTAR_COLLECTIVES_SCHEDULE_H

#include "collectives/collectives.h"

/* Which rank is where: a view of a world, or made up by a test. */
struct node_map {
    int size, nodes;
    int *node_of, *local_of; /* [size] */
    int *first;              /* [nodes + 1], into members */
    int *members;            /* [size], the ranks of each node in order */
};
/* `node_of` names a node, 0 .. nodes - 1, for each rank; every node has a rank. 0 or -ENOMEM. */
int node_map_init(struct node_map *map, int size, const int *node_of);
void node_map_destroy(struct node_map *map);
static inline int node_map_local_size(const struct node_map *map, int node)
{
    return map->first[node + 1] - map->first[node];
}
/* The least number of ranks of a node. */
int node_map_least(const struct node_map *map);

/*
 * What a step does, in this order. `value` is what arrived, or without STEP_RECEIVE what the
 * operand holds; the operand is the caller's input, or with STEP_PARTIAL the result so far.
 */
enum {
    STEP_RECEIVE = 1, /* value = the next message of rank `from` */
    STEP_REDUCE = 2,  /* value = value op operand */
    STEP_STORE = 4,   /* result = value */
    STEP_SEND = 8,    /* value goes to rank `to` */
    STEP_PARTIAL = 16,
    /* Through the memory of the node, by all its ranks together: */
    STEP_NODE_REDUCE_SCATTER =
        32,                     /* result = inputs of all ranks of the node, reduced; this range */
    STEP_NODE_ALL_GATHER = 64,  /* result of the other owners' slices = what they have */
    STEP_NODE_ALL_REDUCE = 128, /* result = inputs of all ranks of the node, reduced */
};
struct step {
    unsigned what;
    int from, to;
    size_t offset, count;
};

/* All that a schedule depends on; the same on all ranks. */
struct schedule_shape {
    enum sstar_algorithm algorithm; /* not SSTAR_AUTO */
    const struct node_map *map;
    size_t count;
    uint32_t slices;       /* messages that a block is cut into, at least 1 */
    size_t slice_elements; /* largest message; longer vectors take several passes */
};

/* A ring of n places over elements offset .. offset + count. */
struct ring {
    int n, place, previous, next;
    size_t offset, count, passes;
    uint32_t slices;
    unsigned operand; /* 0 or STEP_PARTIAL */
};
void ring_init(struct ring *ring, size_t slice_elements);
/* How many positions the schedule of a ring has, and the steps (at most 2) at one of them. */
uint64_t ring_positions(const struct ring *ring);
int ring_steps(const struct ring *ring, uint64_t position, struct step steps[2]);

/* Ranks j < owners of each node own slice j of the vector. */
struct hierarchy {
    int owners;
    bool local_only, ring_only;
};
struct hierarchy hierarchy_of(const struct node_map *map);
void hierarchy_slice(int owners, size_t total, int j, size_t *offset, size_t *count);

/* Walks through the steps of one rank. */
struct schedule {
    enum { SCHEDULE_BEFORE, SCHEDULE_RING, SCHEDULE_AFTER, SCHEDULE_END } stage;
    struct step before, after; /* local steps around the ring; what = 0: none */
    struct ring ring;          /* n = 0: none */
    uint64_t position, positions;
    struct step second; /* of the position; what = 0: none */
};
void schedule_begin(struct schedule *schedule, const struct schedule_shape *shape, int rank);
/* The next step, or false at the end. */
bool schedule_next(struct schedule *schedule, struct step *step);

/* What the algorithms fill in (schedule_ring.c, schedule_hierarchical.c). */
void schedule_ring(struct schedule *schedule, const struct schedule_shape *shape, int rank);
void schedule_hierarchical(struct schedule *schedule, const struct schedule_shape *shape, int rank);

#endif
