/* SPDX-License-Identifier: MIT */
/* What an open AllReduce holds. Private to allreduce.c, execute.c, overhead.c and
 * slices.c. */
#ifndef SSTAR_COLLECTIVES_ALLREDUCE_PLAN_H
#define SSTAR_COLLECTIVES_ALLREDUCE_PLAN_H

#include "collectives/node_reduce.h"

enum {
    PLAN_SLOTS = 32,             /* of a link; so at most half as many slices (schedule_ring.c) */
    PLAN_SLOT_BYTES = 64 * 1024, /* largest slice, unless the caller says */
    PLAN_SIZE_CLASSES = 4 * 64,
};

struct sstar_allreduce {
    struct sstar_world *world;
    enum sstar_algorithm algorithm; /* not AUTO */
    struct node_map map;
    struct sstar_links *links; /* NULL: the algorithm needs none */
    struct sstar_link *previous, *next;
    struct node_part node;
    bool local_only;
    uint32_t queue_pairs, slot_bytes;
    bool slice_given;
    bool cost_known; /* the wire is one that we imposed; it moves only while we post or poll */
    bool see_off;    /* and messages of the AllReduce under way may have to wait for it */
    uint64_t ticket; /* of the last of them */
    struct sstar_cost cost;
    const struct reduce_set *kernels;
    uint8_t slices[PLAN_SIZE_CLASSES]; /* chosen so far for each class of size; 0: not yet */
};

/* The shape of the schedule for so many elements: the same on every rank. */
struct schedule_shape plan_shape(struct sstar_allreduce *plan, size_t count, size_t element_bytes);

/* Whether messages may be left waiting for a wire that we shaped when a rank has its result: not if
 * all that can be under way from a port passes it within alpha (softnic.h). */
bool plan_leaves_waiting(const struct sstar_allreduce *plan, const struct schedule_shape *shape,
                         size_t element_bytes);

int execute_schedule(struct sstar_allreduce *plan, const struct node_job *job);

/* Between two looks at a condition: move the plan's links on, and wait if nothing moved. */
struct waiter;
int plan_turn(struct sstar_allreduce *plan, struct waiter *w);

#endif
