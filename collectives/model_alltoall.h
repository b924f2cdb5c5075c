/* SPDX-License-Identifier: MIT */
/*
 * What an all-to-all should take on a wire, from who sends how many messages to whom. Private.
 */
#ifndef SSTAR_COLLECTIVES_MODEL_ALLTOALL_H
#define SSTAR_COLLECTIVES_MODEL_ALLTOALL_H

#include "collectives/collectives.h"

struct alltoall_traffic {
    int ranks, nodes;
    const int *node_of;       /* [ranks] */
    bool port_per_rank;       /* else the ranks of a node share a port */
    const uint64_t *messages; /* [ranks][ranks], from and to */
    uint32_t message_bytes;   /* payload of each, */
    const uint64_t *bytes;    /* or [ranks][ranks]: of all that one sends another; else NULL */
    uint32_t hops;            /* as of sstar_aggregator_attr */
    bool fixed;               /* the aggregator is told so (item_bytes) */
};

struct alltoall_prediction {
    double seconds; /* 0 if nothing crosses nodes */
    uint64_t wire_messages, wire_bytes;
};

/*
 * Of every port the time that its wire messages need: sending, the sum of gap + S/beta; receiving,
 * the sum of S/beta; S with all headers. The busiest port decides, and alpha passes before its last
 * (or first) message is there: max(sending - gap, receiving) + alpha. Work of the ranks is not
 * counted. Where sizes vary, the messages of a pair are taken to be alike. `adaptive` is taken to
 * do as well as the better of the two that it may do. 0, -EINVAL or -ENOMEM.
 */
int model_alltoall(const struct alltoall_traffic *traffic, enum sstar_strategy strategy,
                   uint32_t flush_bytes, const struct sstar_cost *cost,
                   struct alltoall_prediction *out);

#endif
