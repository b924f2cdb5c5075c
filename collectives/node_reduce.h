/* SPDX-License-Identifier: MIT */
/*
 * The part of a collective that stays inside a node: loads and stores in shared memory.
 *
 * Each rank has an area that the others of its node read; only its owner writes it. Small vectors
 * go through a slot of the area: data, then one word that says that they are there, in one cache
 * line if they fit. Larger ones are read where they lie when all of them are memory from
 * sstar_alloc, else they pass through the staging part of the area piece by piece.
 */
#ifndef SSTAR_COLLECTIVES_NODE_REDUCE_H
#define SSTAR_COLLECTIVES_NODE_REDUCE_H

#include "collectives/reduce.h"
#include "collectives/schedule.h"
#include <stdalign.h>
#include <stdatomic.h>

enum {
    NODE_SMALL_BYTES = 512,            /* longest vector that goes through the slots, */
    NODE_SLOT_BYTES = 16 * 1024,       /* and where ranks share cores: fewer meetings count more */
    NODE_ALL_BYTES = 128,              /* the same where one node is all, */
    NODE_ALL_CROWDED_BYTES = 4 * 1024, /* and ranks share cores */
    NODE_COPIED_BYTES = 2 * 1024,      /* two ranks copy without asking where vectors lie */
    NODE_TURNS = 4,
    NODE_STAGING_BYTES = 512 * 1024, /* each of two */
    NODE_BLOCK_BYTES = 16 * 1024,    /* reduced at a time, so that it stays in the L1 cache */
    NODE_CELL_BYTES = 1024, /* two ranks give each other larger vectors in cells (node_cells.c), */
    NODE_CELLS = 256,       /* of which so many are under way, in half of an L2 cache, */
    NODE_FEW_CELLS = 8,     /* or so few of short vectors, in the L1 cache */
};

/* Slots take turns: when the others are seen in round r + 1 they have done with round r. Two would
 * do; with four there is time to have a line back from those who read it before it is written. What
 * fits into the line of the word stands there; more begins at a line of its own. */
struct node_slot {
    alignas(
        256) _Atomic uint64_t word; /* signature << 32 | round; no neighbour is fetched with it */
    char line[56];
};
struct node_word {
    alignas(64) _Atomic uint64_t word; /* signature << 32 | number of the cell that is full */
};
struct node_area {
    alignas(64) _Atomic uint64_t phase; /* how many meetings of the node this rank has come to */
    _Atomic int core;                   /* on which it ran when it came */
    alignas(64) _Atomic uint64_t come;  /* of a group, by its first rank (node_last.c): arrivals, */
    alignas(64) _Atomic uint64_t result; /* signature << 32 | number of the piece that is done */
    alignas(64) _Atomic uint64_t mark;   /* the same of the piece this rank has come to */
    alignas(64) uint64_t send, recv;     /* the job's memory, in the address space of the rank */
    uint32_t send_is_shared, recv_is_shared, signature;
    struct node_slot slots[NODE_TURNS];
    alignas(64) char slot_data[NODE_TURNS][NODE_SLOT_BYTES];
    struct node_word words[NODE_FEW_CELLS + NODE_CELLS];
    alignas(64) char cells[NODE_FEW_CELLS + NODE_CELLS][NODE_CELL_BYTES];
    alignas(64) char staging[2][NODE_STAGING_BYTES];
};

/* One operation. */
struct node_job {
    const void *send;
    void *recv;
    size_t count, element_bytes;
    reduce_kernel *kernel;
    uint32_t signature;     /* of count, type and op; the same on all ranks */
    struct sharing sharing; /* of ReduceScatter and AllGather */
    bool ends; /* none of the node's steps follows after which all have read all inputs */
};

/* The local steps of schedule.h. */
enum node_act { NODE_REDUCE_SCATTER, NODE_ALL_GATHER, NODE_ALL_REDUCE, NODE_MEET };

struct node_part {
    struct sstar_world *world;
    int size, me;             /* ranks of the node, our place */
    const int *members;       /* [size] their ranks in the world */
    struct node_area **areas; /* [size] */
    struct node_area *area;   /* ours */
    const char **inputs;      /* [size] of the job under way, where they can be read */
    char **outputs;
    bool inputs_shared, owners_shared, outputs_shared;
    bool learned; /* these, for the operation under way; whoever begins one clears it */
    bool asked;   /* by the act under way */
    int *blocks, *blocks_first; /* ranks whose blocks member 0 has, member 1 .. ; [size + 1] */
    int groups;          /* of ranks that share a core (node_groups.c); the same on all ranks */
    size_t cached_bytes; /* longest vector whose result goes through the caches */
    size_t small_bytes, all_bytes; /* up to this through the slots; the same on all ranks */
    uint32_t round;
    uint64_t phase, pieces;
    char *block; /* [2][NODE_BLOCK_BYTES] */
    /* memcpy, called: of a count that it knows to be small the compiler makes a string instruction,
     * which takes long to begin. */
    void *(*copy)(void *, const void *, size_t);
    /* The act under way. */
    const struct node_job *job;
    enum node_act act;
    unsigned stage;
    bool moved;        /* something has, since whoever waits has asked */
    uint64_t cells[2]; /* that each gave before this act, of the few and of the many */
    bool long_ring;
    uint64_t lasts; /* pieces before this act (node_last.c) */
    bool leads;     /* we came last of our group */
    size_t filled, known,
        taken; /* of this act: ours; theirs that are full for all we know; taken */
    enum { NODE_WAITS_NOT, NODE_WAITS_MEET, NODE_WAITS_EXCHANGE } waits;
    int seen;      /* ranks 0 .. seen - 1 of the node have come */
    unsigned half; /* of the staging part, of the piece under way */
};

/* Allocate our area; its address goes to the others, then node_part_meet with theirs, by rank of
 * the world. */
int node_part_open(struct node_part *node, struct sstar_world *world, const struct node_map *map);
int node_part_meet(struct node_part *node, const uint64_t *addresses);
/* Sum within a core first, as on so many cores. */
void node_part_group(struct node_part *node, int cores);
/* Some rank of the world shares its core. */
void node_part_crowd(struct node_part *node);
void node_part_close(struct node_part *node);

/* Begin an act; then 1: done, 0: it waits for others (node_awaited), or a negative errno. The job
 * must stay until it is done. */
void node_begin(struct node_part *node, enum node_act act, const struct node_job *job);
int node_advance(struct node_part *node);
/* A rank of the world that has not come yet. */
int node_awaited(const struct node_part *node);
/* Whether none of those that it waits for was last seen on our core: then giving it away would not
 * help them. */
bool node_waits_for_other_cores(const struct node_part *node);

#endif
