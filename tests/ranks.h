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
    bool helped; /* the body has plans moved on by a thread that is not its own */
    int queue_pairs;
    const char *ib_dev; /* NULL: softnic */
    const char *faults; /* NULL, or a plan */
    struct sstar_wire wire;
    struct sstar_order order;                          /* else from SSTAR_ORDER */
    int (*body)(struct sstar_world *world, void *arg); /* 0, or -1 after CHECK */
    void *arg;
};
/* Open a world of so many ranks, run the body in each, close it. Number of ranks that failed. */
int ranks_run(const struct ranks *ranks);
void ranks_complain(const struct sstar_world *world, const char *file, int line, const char *what);

/* The same, and the test fails unless all succeed; as threads and then as processes. */
void ranks_expect(const struct ranks *ranks);
void ranks_expect_both(struct ranks ranks);
/* A wire on which arrival is learnt by completion. */
extern const struct sstar_wire ranks_shaped;
/* Whether the device under test has one; a world that wants one where there is none is not run. */
bool ranks_can_shape(void);
/* From now on the device of this world lacks ibv_wr_* and takes at most 64 bytes in one request. */
int use_plain_device(struct sstar_world *world);

/* Random numbers with a seed: xorshift64*. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1d;
}

/* Contents that follow from who sends what to whom. */
#define PATTERN_SEED 20240607ull
uint64_t pattern_seed(int from, int to, int i);
void pattern_fill(uint8_t *to, uint32_t bytes, uint64_t seed);
bool pattern_holds(const uint8_t *from, uint32_t bytes, uint64_t seed);

#endif
