/* SPDX-License-Identifier: MIT */
/* What simulate.c, where ranks take steps, and simulate_wire.c, where messages travel, have in
 * common. */
#ifndef SSTAR_COLLECTIVES_SIMULATE_INSIDE_H
#define SSTAR_COLLECTIVES_SIMULATE_INSIDE_H

#include "collectives/simulate.h"

struct event {
    double time;
    uint64_t order; /* of equals, the older first */
    enum { PORT_MAY_SEND, MESSAGE_IS_THERE, RANK_IS_DONE } what;
    int which;         /* port, link or rank */
    uint64_t sequence; /* of the message */
};

struct sim_port {
    double sender_free, receiver_free, wake; /* wake: time of its event, INFINITY for none */
    int *links, n_links;
    uint64_t waiting;
    uint32_t turn; /* link * queue_pairs + queue pair that is next */
};

/* From one rank to another on a channel; `credit` is what the other gives back without a message.
 */
struct sim_link {
    int from, to, channel, port, to_port, credit;
    bool local;
    uint64_t sent, there, received; /* posted; there in order; taken by the receiver */
    uint64_t owed;                  /* taken since the sender last heard of it */
    uint64_t *next; /* [queue_pairs] of each queue pair the first message that has not entered */
    double *bytes;  /* [window], by sequence */
    bool *has_come; /* [window] */
};

struct sim_rank {
    struct schedule schedule;
    size_t at[SCHEDULE_LANES];
    int phase, lanes_left, turn, busy_lane; /* busy_lane -1: idle */
    uint64_t node_steps;
    int *out, n_out; /* its links to others */
    bool is_awake;   /* it stands in the list */
};

struct simulation {
    const struct node_map *map;
    const struct simulate_attr *attr;
    size_t vector_bytes;
    double now, last;
    uint64_t window; /* slots */
    struct sim_port *ports;
    struct sim_link *links;
    int n_links, links_size;
    struct sim_rank *ranks;
    int *awake, first_awake, n_awake;
    struct event *heap;
    size_t heap_used, heap_size;
    uint64_t events;
    int err;
};

/* realloc that keeps the error. */
void *sim_grown(struct simulation *s, void *memory, size_t n, size_t bytes);
void sim_push(struct simulation *s, struct event event);
struct event sim_pop(struct simulation *s);
/* This rank may be able to go on. */
void sim_wake(struct simulation *s, int rank);

/* Let enter what may: each start no later than now + alpha. */
void sim_port_move_on(struct simulation *s, int number);
struct sim_link *sim_link_of(struct simulation *s, int from, int to, int channel);
void sim_send(struct simulation *s, int rank, const struct step *step, int to);
void sim_receive(struct simulation *s, int rank, const struct step *step, int from);
/* The links on which the schedule of a rank sends, and those that give credit for them. */
void sim_add_links_of(struct simulation *s, int rank);

#endif
