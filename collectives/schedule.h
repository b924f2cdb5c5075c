/* SPDX-License-Identifier: MIT */
/*
 * A collective algorithm as a schedule: the steps that one rank takes.
 *
 * A schedule is a pure function of its shape and the rank. The same steps are executed (execute.c),
 * checked for every rank together (check.h) and priced (simulate.h). Each algorithm is a file
 * schedule_NAME.c that emits steps for the places of a group.
 *
 * Steps stand in lanes. The steps of a lane are taken one after the other; the lanes of a phase do
 * not wait for one another, so that one may go on while another waits for a message; a phase begins
 * when all lanes of the one before it are done. On one channel messages from one rank to another
 * are received in the order of sending, and belong to one lane on either side (check.c proves it).
 * Sending does not wait for the receiver as long as there is a free slot. The executor needs
 * nothing else: a step names all that it waits for.
 *
 * A step works on elements offset .. offset + count of the vector, which is the whole of what an
 * operation is about: `count` elements for AllReduce, Reduce and Broadcast; a block of `count` for
 * each rank, in their order, for ReduceScatter and AllGather. Three memories hold it or part of it:
 * the input (ReduceScatter: all of it; AllGather: the own block), the result (ReduceScatter: the
 * own block) and the work memory, which is the result itself where that holds the whole vector.
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
/* The rank of a node whose turn it is. */
static inline int node_map_in_turn(const struct node_map *map, int node, uint32_t number)
{
    return map
        ->members[map->first[node] + (int)(number % (uint32_t)node_map_local_size(map, node))];
}
/* The least and the greatest number of ranks of a node. */
int node_map_least(const struct node_map *map);
int node_map_most(const struct node_map *map);

/* ---- steps -------------------------------------------------------------------------------------
 */

/*
 * What a step does, in this order. `value` is what arrived, or without STEP_RECEIVE what the
 * operand holds; the operand is the input, or with STEP_PARTIAL what the work memory holds.
 */
enum {
    STEP_RECEIVE = 1,     /* value = the next message of rank from[0], */
    STEP_REDUCE = 2,      /* value = value op operand, */
    STEP_STORE = 4,       /* result = value */
    STEP_SEND = 8,        /* value goes to the ranks to[0] and, unless -1, to[1] */
    STEP_PARTIAL = 16,    /* see above */
    STEP_KEEP = 32,       /* work memory = value */
    STEP_SWAPPED = 64,    /* value = operand op value */
    STEP_RECEIVE_2 = 128, /* and then value = value op the next message of rank from[1] */
    /* Through the memory of the node, by all its ranks together (struct sharing says who has what):
     */
    STEP_NODE_REDUCE_SCATTER = 256, /* what we have = inputs of all ranks of the node, reduced; to
                                       be kept in work memory (STEP_KEEP) or the result */
    STEP_NODE_ALL_GATHER = 512,     /* result of what the others have = their result */
    STEP_NODE_ALL_REDUCE = 1024,    /* result = inputs of all ranks of the node, reduced */
    STEP_NODE_MEET = 2048,          /* nothing but meeting */
    STEP_NODE =
        STEP_NODE_REDUCE_SCATTER | STEP_NODE_ALL_GATHER | STEP_NODE_ALL_REDUCE | STEP_NODE_MEET,
};
struct step {
    uint16_t what;
    uint8_t channel;
    int from[2], to[2]; /* ranks */
    size_t offset, count;
};

enum { SCHEDULE_LANES = 16, SCHEDULE_CHANNELS = 8 };

struct lane {
    int phase;
    size_t first, end; /* of its steps */
};
/* The steps of one rank. Zero it before first use; memory is kept from one making to the next. */
struct schedule {
    struct step *steps;
    size_t n_steps, capacity;
    struct lane lanes[SCHEDULE_LANES];
    int n_lanes;
    bool uses_work; /* something is kept in work memory or read from there */
    int err;
};

/* All that a schedule depends on; the same on all ranks. */
struct schedule_shape {
    enum sstar_operation operation;
    enum sstar_algorithm algorithm; /* not SSTAR_AUTO */
    const struct node_map *map;
    size_t count;          /* see above */
    int root;              /* of Broadcast and Reduce */
    size_t slice_elements; /* largest message */
    uint32_t window;       /* messages that a rank sends before it must have received one, >= 1;
                              at most half the slots of a link (credit may come back that late) */
    uint32_t channels;     /* rings beside one another, 1 .. SCHEDULE_CHANNELS */
};

/* Elements of the whole vector. */
size_t shape_total(const struct schedule_shape *shape);
/* Whether there is such a schedule for this operation. */
bool schedule_exists(enum sstar_operation operation, enum sstar_algorithm algorithm);
/* Fill in the steps of `rank`. 0 or -ENOMEM. */
int schedule_make(struct schedule *schedule, const struct schedule_shape *shape, int rank);
void schedule_destroy(struct schedule *schedule);

/* ---- for the algorithms ------------------------------------------------------------------------
 */

struct range {
    size_t offset, count;
};
/* Part i of n; parts differ by at most one element. */
struct range range_cut(struct range whole, size_t n, size_t i);
/* Into how many slices of at most `most` elements a range is cut. */
size_t range_slices(size_t count, size_t most);

/* Those among whom an algorithm works: n places, of which ours is `me`. */
struct group {
    const struct node_map *map;
    int n, me;
    enum { GROUP_RANKS, GROUP_NODE_ORDER, GROUP_OWNERS, GROUP_LEADERS } kind;
    int which; /* OWNERS: place p is the rank that stands at place `which` of node p, counted round
                  the node. NODE_ORDER: the ranks of node after node, those of each beginning with
                  its place `which`. LEADERS: place p is the root or the first rank of node p */
    int root;  /* place of the root */
    struct range range; /* of the vector */
    unsigned operand;   /* where the contributions lie: 0, or STEP_PARTIAL */
    int phase;
};
struct group group_of_all(const struct schedule_shape *shape, int rank);
struct group group_in_node_order(const struct schedule_shape *shape, int rank, int which);
int group_rank(const struct group *group, int place);
/* The block of a place: by ranks where the operation says so. A place of owners has the block of
 * the rank at place `which` of its node, and none where the node has no such rank. */
struct range group_block(const struct group *group, const struct schedule_shape *shape, int place);
/* Elements of the largest block. */
size_t group_block_most(const struct group *group, const struct schedule_shape *shape);
/* Whether the blocks of neighbours lie side by side. */
bool group_blocks_touch(const struct group *group, const struct schedule_shape *shape);

void schedule_lane(struct schedule *schedule, int phase);
/* Ranks that `what` does not name are ignored. */
void schedule_add(struct schedule *schedule, struct step step);

/* What goes out to one place while something else comes in from another (or the same): cut into
 * slices, at most `window` sent before one is received. Both sides must name the same pieces. */
enum { EXCHANGE_PIECES = 6 };
struct exchange_piece {
    unsigned what;
    struct range range;
};
struct exchange {
    int peer; /* rank */
    int n, more_size;
    struct exchange_piece few[EXCHANGE_PIECES], *more; /* the first; all further ones */
    bool failed;
};
void exchange_add(struct exchange *exchange, unsigned what, struct range range);
/* Emits the steps, and empties both. */
void schedule_exchange(struct schedule *schedule, const struct schedule_shape *shape,
                       struct exchange *out, struct exchange *in);

typedef void schedule_function(struct schedule *schedule, const struct schedule_shape *shape,
                               const struct group *group);
schedule_function schedule_ring, schedule_chain, schedule_doubling, schedule_binomial,
    schedule_halving, schedule_circulant, schedule_tree, schedule_dissemination;
void schedule_hierarchical(struct schedule *schedule, const struct schedule_shape *shape, int rank);
/* What the algorithm does among the places of a group; the group may be of one place. */
schedule_function *schedule_function_of(enum sstar_operation operation,
                                        enum sstar_algorithm algorithm);

/* Slice j of a vector that is cut for so many owners; empty if there are fewer. */
void hierarchy_slice(int owners, size_t total, int j, size_t *offset, size_t *count);
/*
 * Who has what of the vector in the steps of a node. Slices: slice j < owners belongs to member
 * first + j, counted round the node. Blocks: member i of n has, of the blocks of every node's
 * ranks, those of number i, i + n, i + 2 n .. in their node, so that it has its own.
 */
struct sharing {
    int owners, first;
    size_t total, block; /* elements; block 0: slices */
};
struct sharing sharing_of(const struct schedule_shape *shape, int node);
/* Slice of a member. */
struct range sharing_slice(const struct sharing *sharing, int members, int member);
/* Whether a member has the block of this rank. */
bool sharing_has_block(const struct node_map *map, int node, int member, int rank);
bool algorithm_is_hierarchical(enum sstar_algorithm algorithm);
/* What a hierarchical algorithm does across nodes. */
enum sstar_algorithm algorithm_across(enum sstar_algorithm algorithm);

#endif
