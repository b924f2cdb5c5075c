/* SPDX-License-Identifier: MIT */
#include "transport/turn.h"
#include <time.h>

int turn_init(struct turn *turn)
{
    pthread_mutexattr_t recursive;
    pthread_condattr_t monotonic;
    *turn = (struct turn){0};
    int err = pthread_mutexattr_init(&recursive);
    if (err)
        return -err;
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    err = pthread_mutex_init(&turn->mutex, &recursive);
    pthread_mutexattr_destroy(&recursive);
    if (err)
        return -err;
    err = pthread_condattr_init(&monotonic);
    if (err)
        goto destroy_mutex;
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    err = pthread_cond_init(&turn->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (!err)
        return 0;
destroy_mutex:
    pthread_mutex_destroy(&turn->mutex);
    return -err;
}

void turn_destroy(struct turn *turn)
{
    pthread_cond_destroy(&turn->changed);
    pthread_mutex_destroy(&turn->mutex);
}

void turn_take(struct turn *turn)
{
    atomic_fetch_add_explicit(&turn->wanted, 1, memory_order_relaxed);
    pthread_mutex_lock(&turn->mutex);
}

void turn_give(struct turn *turn)
{
    int before = atomic_fetch_sub_explicit(&turn->wanted, 1, memory_order_relaxed);
    if (before == 1 && turn->asleep && (turn->work || turn->stop))
        pthread_cond_signal(&turn->changed);
    pthread_mutex_unlock(&turn->mutex);
}
