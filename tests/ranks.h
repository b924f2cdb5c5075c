/* SPDX-License-Identifier: MIT */
/* Whole worlds inside one test: their ranks as threads of this process or as processes of it. */
#ifndef SSTAR_TESTS_RANKS_H
#define SSTAR_TESTS_RANKS_H

#include "transport/transport.h"

/* In a rank's body: say what is not so, and end it. (CMocka's assertions work in the test's own
 * thread only.) */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            ranks_complain(world, __FILE__, __LINE__, #condition);                                 \
            return -1;                                                                             \
        }                                                                                          \
    } while (0)

struct ranks {
    int size;
    int ranks_per_node; /* 0: all on one node */
    bool processes;     /* else threads */
    bool port_per_rank;
    int queue_pairs;
    const char *ib_dev; /* NULL: softnic */
    struct sstar_wire wire;
    int (*body)(struct sstar_world *world, void *arg); /* 0, or -1 after CHECK */
    void *arg;
};
/* Open a world of so many ranks, run the body in each, close it. Number of ranks that failed. */
int ranks_run(const struct ranks *ranks);
void ranks_complain(const struct sstar_world *world, const char *file, int line, const char *what);

/* Random numbers with a seed: xorshift64*. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1d;
}

#endif
