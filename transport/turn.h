/* SPDX-License-Identifier: MIT */
/*
 * A world belongs to one thread at a time. Where a progress thread shares it, that and the caller
 * take turns: a public function begins with WORLD_TURN(world), and has the world for itself until
 * it returns. Without a progress thread that is one comparison.
 */
#ifndef SSTAR_TRANSPORT_TURN_H
#define SSTAR_TRANSPORT_TURN_H

#include "transport/world.h"
#include <pthread.h>
#include <stdatomic.h>

struct turn {
    pthread_mutex_t mutex;  /* recursive: public functions call others */
    pthread_cond_t changed; /* for the progress thread */
    _Atomic int wanted;     /* by callers; the progress thread keeps off meanwhile */
    bool work;              /* there is something to move on */
    bool asleep;            /* the progress thread is, until there is */
    bool stop;
    uint64_t nap_ends_ns; /* it sleeps until then, unless `changed`; 0: it does not */
};

int turn_init(struct turn *turn);
void turn_destroy(struct turn *turn);
void turn_take(struct turn *turn);
void turn_give(struct turn *turn);

static inline struct turn *turn_begin(const struct sstar_world *world)
{
    if (world->turn)
        turn_take(world->turn);
    return world->turn;
}
static inline void turn_end(struct turn *const *turn)
{
    if (*turn)
        turn_give(*turn);
}
/* Until the end of the block. */
#define WORLD_TURN(WORLD)                                                                          \
    struct turn *const our_turn __attribute__((cleanup(turn_end), unused)) = turn_begin(WORLD)

#endif
