/* SPDX-License-Identifier: MIT */
/* What an open collective holds. Private to collective.c, execute.c, choose.c, tuning.c,
 * overhead.c. */
#ifndef SSTAR_COLLECTIVES_COLLECTIVE_PLAN_H
#define SSTAR_COLLECTIVES_COLLECTIVE_PLAN_H

#include "collectives/node_reduce.h"
#include "collectives/simulate.h"
#include "transport/copy.h"
#include "transport/link.h"
#include "transport/wait.h"

enum {
    PLAN_SLOTS = 16,                /* of a link; */
    PLAN_WINDOW = 8,                /* so at most half as many messages ahead (schedule.h) */
    PLAN_SLOT_BYTES = 64 * 1024,    /* largest slice, unless the caller says */
    PLAN_DEFAULT_SLICE = 32 * 1024, /* where the wire is not known */
    PLAN_SIZE_CLASSES = 4 * 48,     /* four to a power of two */
};

/* What is done with vectors of a class of sizes. */
struct plan_choice {
    uint32_t algorithm, slice_bytes;
};

/* A link that this operation sent on, where what was sent may have to wait for the wire. */
struct plan_sent {
    struct sstar_link *link;
    uint64_t ticket;
};

struct plan_lane {
    size_t at; /* next step */
    bool has[2];
    struct message messages[2]; /* of that step, received already */
};

/* An operation under way. */
struct plan_run {
    bool active, moved;
    _Atomic bool done; /* read without the turn of the world; `err` is whole before it is set */
    int err;           /* 0, or what ended it */
    struct node_job job, node_job;      /* node_job: of the node's steps, for the whole vector */
    reduce_divide *divide;              /* of an average, at the end */
    const struct reduce_short *shorten; /* what crosses nodes; NULL: it stays as it is */
    const char *input;                  /* where element 0 of the vector would be */
    char *result, *work;
    int phase, lanes_left;
    bool in_node_step;
    struct plan_lane lanes[SCHEDULE_LANES];
    bool see_off; /* the wire is one that we shaped and moves only while we post or poll: see what
                     we sent off before we are done */
    int awaited;  /* rank that a lane waits for */
    const char *what;
    uint32_t tests;
};

struct sstar_collective {
    struct sstar_world *world;
    enum sstar_operation operation;
    enum sstar_algorithm asked;
    int root;
    struct node_map map;
    bool candidates[SSTAR_ALGORITHMS];
    int n_channels;
    struct sstar_links *channels[SCHEDULE_CHANNELS];
    struct node_part node;
    int cores;          /* as on which the ranks of a node group; 1: they do not */
    bool freezes_cores; /* rank 0 has a tuning file, where that is not said yet */
    uint32_t queue_pairs, slot_bytes, rings; /* rings: channels of the ring */
    enum sstar_type wire_type;               /* FLOAT32: as it is */
    char *wide[2];                           /* a message each, widened; NULL if none is */
    bool slice_given;
    bool shaped; /* we imposed the wire */
    bool measured;
    struct sstar_cost costs[SSTAR_ALGORITHMS]; /* if it was; */
    double spread; /* and by which share the median of rounds was above their lower quartile: prices
                      that are nearer to each other say nothing */
    struct plan_choice choices[PLAN_SIZE_CLASSES];
    const struct reduce_set *kernels;
    copy_function *copy;
    void *work;
    size_t work_bytes;
    struct schedule schedule;
    struct schedule_shape shape; /* of that schedule */
    uint32_t channels_used;      /* by that schedule: bits */
    struct plan_run run;
    struct plan_sent *sent; /* [n_sent] */
    int n_sent, sent_size;
    struct sstar_collective *next_started;
};

/* ---- execute.c ---------------------------------------------------------------------------------
 */

/* Begin an operation whose arguments are right. */
int execute_begin(struct sstar_collective *plan, const struct schedule_shape *shape,
                  const void *send, void *recv, enum sstar_type type, enum sstar_op op);
/* Look at its channels: number of events, or -errno. */
int execute_progress(const struct sstar_collective *plan);
/* Move it on. 1: done, 0: not yet. */
int execute_advance(struct sstar_collective *plan);
int execute_wait(struct sstar_collective *plan);
struct node_job execute_job(const struct sstar_collective *plan, const void *send, void *recv,
                            size_t count, enum sstar_type type, enum sstar_op op);

/* ---- execute_local.c ---------------------------------------------------------------------------
 */

/* Begin and wait, for an operation that is one step of the node alone: AllReduce and the barrier
 * where one node is all. */
bool execute_is_local(const struct sstar_collective *plan);
int execute_local(struct sstar_collective *plan, const void *send, void *recv, size_t count,
                  enum sstar_type type, enum sstar_op op);

/* ---- execute_short.c ---------------------------------------------------------------------------
 */

/* Whether messages of this type are shortened where they cross nodes. */
bool execute_shortens(const struct sstar_collective *plan, enum sstar_type type);
/* Bytes of a message to or from a rank. */
size_t execute_message_bytes(const struct sstar_collective *plan, size_t count, int rank);
/* A step's arithmetic, where messages are. */
void execute_compute_short(struct sstar_collective *plan, const struct plan_lane *lane,
                           const struct step *step, void **slots);
/* The result as the others have been told it. */
void execute_round(struct sstar_collective *plan);

/* ---- started.c ---------------------------------------------------------------------------------
 */

/* Into the list of what is to be moved on by whoever waits, and out of it. */
void started_add(struct sstar_collective *plan);
void started_remove(struct sstar_collective *plan);
/* It is over, well or with an error; out of the list. */
void started_finish(struct sstar_collective *plan, int err);
/* Move all of the list on. More than 0 if something has moved. */
int started_move_on(struct sstar_world *world);
/* When to do so next; UINT64_MAX: nothing is known to come, 0: one must look. */
uint64_t started_next_look(const struct sstar_world *world);

/* ---- progress_thread.c -------------------------------------------------------------------------
 */

/* A thread that does so, unless the world has one. It ends with the world. */
int progress_thread_start(struct sstar_world *world);

/* ---- choose.c ----------------------------------------------------------------------------------
 */

/* Class of a size, and the least size of a class. */
unsigned plan_class_of(size_t bytes);
size_t plan_class_bytes(unsigned size_class);
/* The shape of the schedule for so many elements: the same on every rank. */
struct schedule_shape plan_shape(const struct sstar_collective *plan, size_t count,
                                 size_t element_bytes);
struct schedule_shape plan_shape_of(const struct sstar_collective *plan, struct plan_choice choice,
                                    size_t count, size_t element_bytes);
/* Bytes of the whole vector. */
size_t plan_total_bytes(const struct sstar_collective *plan, size_t count, size_t element_bytes);
/* Fill in the choices: rank 0 does and tells the others. Collective. */
int plan_choose(struct sstar_collective *plan);

/* ---- prices.c ----------------------------------------------------------------------------------
 */

enum {
    PLAN_FIRST_POINT = 3, /* powers of two that are priced: 8 bytes */
    PLAN_NEXT_POINT = 10, /* 1 KiB, and all from there */
    PLAN_LAST_POINT = 24,
    PLAN_POINTS = PLAN_LAST_POINT + 1,
};
/* What the schedules cost at the points. */
struct plan_prices {
    double us[SSTAR_ALGORITHMS][PLAN_POINTS]; /* 0: not known */
    uint32_t slice_bytes[SSTAR_ALGORITHMS][PLAN_POINTS];
    size_t steps_left;
};

struct simulate_attr plan_simulation(const struct sstar_collective *plan,
                                     const struct sstar_cost *cost, enum sstar_type type);
/* The best slices for a vector of 2^point bytes. */
int plan_price_point(const struct sstar_collective *plan, enum sstar_algorithm algorithm,
                     const struct sstar_cost *cost, int point, struct plan_prices *prices);

/* ---- tuning.c ----------------------------------------------------------------------------------
 */

/* Choices from SSTAR_TUNING: 1 if it has them, 0 if not or there is no such file. */
int tuning_read(struct sstar_collective *plan);
int tuning_read_cores(struct sstar_collective *plan);
int tuning_write_cores(const struct sstar_collective *plan);
int tuning_write(const struct sstar_collective *plan);

#endif
