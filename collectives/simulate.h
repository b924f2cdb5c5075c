/* SPDX-License-Identifier: MIT */
/*
 * What a schedule costs: the steps of all ranks played on the port model of softnic.h.
 *
 * Each port has a sender's and a receiver's side; a message of S bytes (trailer included) starts
 * when the port is free, takes the wire for g + S/beta there and S/beta at the receiver, and
 * arrives alpha after its start; it enters the wire only when its start is no later than now +
 * alpha, and the queue pairs of a port take turns. Credit that no message can carry back takes a
 * gap of its own. A rank does one thing at a time: a step takes overhead_us for each message that
 * it receives, and byte_ns for each byte that it receives or sends; a step of a node takes node_us
 * and node_byte_ns for each byte of the vector, from when its last rank has come.
 */
#ifndef SSTAR_COLLECTIVES_SIMULATE_H
#define SSTAR_COLLECTIVES_SIMULATE_H

#include "collectives/schedule.h"

struct simulate_attr {
    struct sstar_cost cost; /* beta_gbps 0: no limit */
    bool port_per_rank;     /* else the ranks of a node share one */
    uint32_t queue_pairs;   /* of a link */
    uint32_t slots;
    size_t element_bytes;
    size_t wire_element_bytes; /* where it crosses nodes, if that is shorter; 0: the same */
    size_t most_steps;         /* of all ranks together; 0: no limit */
    size_t *steps;             /* NULL, or how many it were (set on failure too) */
};
/* The time when the last rank is done, from when all begin. 0 or -ENOMEM; -EDEADLK; -E2BIG: more
 * steps than that. */
int simulate_schedule(const struct schedule_shape *shape, const struct simulate_attr *attr,
                      double *us);

/* The time, and what of it is due to what: the critical path is made of these parts alone, since
 * the time is homogeneous in them (Euler: T = sum of x dT/dx). */
struct simulate_parts {
    double us, alpha_us, gap_us, beta_us, work_us; /* work: o, gamma and the node's steps */
};
int simulate_parts(const struct schedule_shape *shape, const struct simulate_attr *attr,
                   struct simulate_parts *parts);

#endif
