/* SPDX-License-Identifier: MIT */
/* Traffic through an aggregator whose every message is known to both ends, and checked. */
#ifndef SSTAR_TESTS_TRAFFIC_H
#define SSTAR_TESTS_TRAFFIC_H

#include "collectives/collectives.h"

enum { TRAFFIC_SEED = 20261130, RANKS_MOST = 24, BYTES_MOST = 65536 };

enum pattern { UNIFORM, ALL_TO_ONE, ONE_TO_ALL, NEIGHBOUR, NOTHING, SKEWED };

struct traffic {
    const char *name;
    enum pattern pattern;
    uint32_t messages; /* of each rank that sends */
    uint32_t least_bytes, most_bytes;
    uint32_t flush_bytes, buffer_bytes;
    double max_age_us;
    int rounds;
    bool fixed; /* open it for messages of most_bytes alone */
    enum sstar_flush flush;
    uint32_t hops;
    double s_star_bytes; /* 0: of the imposed wire */
};

/* Where message i of a rank goes. */
int traffic_destination(const struct traffic *t, int size, int from, uint32_t i);

/* The ledgers of all ranks together. */
struct totals {
    uint64_t messages, cross, cross_bytes, wire, wire_bytes, in_wire, in_wire_bytes, ages;
};
/* All of it, `rounds` times, and what came and what the ledgers say: 0, or -1 after CHECK. */
int traffic_run(struct sstar_world *world, const struct traffic *t, enum sstar_strategy strategy,
                struct totals *sum);
/* Random, the same wherever it is asked with the same arguments. */
uint64_t traffic_mix(uint64_t a, uint64_t b, uint64_t c);

#endif
