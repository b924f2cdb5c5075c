/* SPDX-License-Identifier: MIT */
/*
 * What a schedule costs: the steps of all ranks played on the port model of softnic.h.
 *
 * Each port has a sender's and a receiver's side; a message of S bytes (trailer included) starts
 * when the port is free, takes the wire for g + S/beta there and S/beta at the receiver, and
 * arrives alpha after its start; it enters the wire only when its start is no later than now +
 * alpha, and the queue pairs of a port take turns. Credit that no message can carry back takes a
 * gap of its own. A rank handles its messages one after another and takes overhead_us for each,
 * from when it is there; a step of a node takes node_us from when its last rank has come. All other
 * work in ranks takes no time.
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
};
/* The time when the last rank is done, from when all begin. 0 or -ENOMEM; -EDEADLK. */
int simulate_schedule(const struct schedule_shape *shape, const struct simulate_attr *attr,
                      double *us);

/* How many messages a rank sends at most: what simulating costs, beforehand. */
uint64_t simulate_messages(const struct schedule_shape *shape);

#endif
