/* SPDX-License-Identifier: MIT */
/*
 * A thread that moves on what was started, while the caller computes. It has the turn of the world
 * (transport/turn.h) while it looks, and gives it up in between; while the caller is inside the
 * library it keeps off, since a caller that waits moves everything on itself.
 *
 * Where ranks have no cores to spare it must not take the caller's: it naps between looks. So the
 * naps are short against alpha of most wires, as a wire that we shaped ourselves moves only while
 * somebody looks. It has no deadlines of its own: a rank that comes late keeps nobody waiting
 * before somebody waits.
 */
#include "collectives/collective_plan.h"
#include "transport/turn.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

static const uint64_t spin_ns = 50 * 1000;
static const uint64_t short_nap_ns = 50 * 1000;
static const uint64_t long_nap_ns = 1000 * 1000; /* when nothing has moved for so many of them: */
enum { SHORT_NAPS = 2000 };

struct progress {
    struct turn turn;
    pthread_t thread;
    struct sstar_world *world;
    uint64_t quiet_ns; /* since when nothing has moved; 0: something has just now */
    uint32_t naps;
};

static void nap(struct progress *progress)
{
    uint64_t until = clock_ns() + (progress->naps++ < SHORT_NAPS ? short_nap_ns : long_nap_ns);
    struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_cond_timedwait(&progress->turn.changed, &progress->turn.mutex, &at);
}

/* Between two looks. */
static void rest(struct progress *progress, bool moved)
{
    const struct sstar_world *world = progress->world;
    bool spare = world->ranks_on_host * 2 <= world->cores;
    uint64_t now = moved ? 0 : clock_ns();
    if (moved || progress->quiet_ns == 0) {
        progress->quiet_ns = now;
        progress->naps = 0;
    }
    if (!moved && !(spare && now - progress->quiet_ns < spin_ns)) {
        nap(progress);
        return;
    }
    pthread_mutex_unlock(&progress->turn.mutex);
    if (!moved)
        sched_yield();
    pthread_mutex_lock(&progress->turn.mutex);
}

static void *move_on(void *argument)
{
    struct progress *progress = argument;
    struct turn *turn = &progress->turn;
    prctl(PR_SET_TIMERSLACK, 1); /* of this thread */
    pthread_mutex_lock(&turn->mutex);
    while (!turn->stop) {
        if (!turn->work || atomic_load_explicit(&turn->wanted, memory_order_relaxed)) {
            turn->asleep = true;
            pthread_cond_wait(&turn->changed, &turn->mutex);
            turn->asleep = false;
            continue;
        }
        bool moved = started_move_on(progress->world) > 0;
        control_poll(
            progress->world); /* a failure stays in the world, and the next look finds it */
        rest(progress, moved);
    }
    pthread_mutex_unlock(&turn->mutex);
    return NULL;
}

static void stop(struct sstar_world *world)
{
    struct progress *progress = (struct progress *)world->turn; /* its first member */
    pthread_mutex_lock(&progress->turn.mutex);
    progress->turn.stop = true;
    pthread_cond_signal(&progress->turn.changed);
    pthread_mutex_unlock(&progress->turn.mutex);
    pthread_join(progress->thread, NULL);
    world->turn = NULL;
    turn_destroy(&progress->turn);
    free(progress);
}

int progress_thread_start(struct sstar_world *world)
{
    if (world->turn)
        return 0;
    struct progress *progress = calloc(1, sizeof *progress);
    if (!progress)
        return report_set(&world->report, -ENOMEM, "collectives: out of memory");
    progress->world = world;
    int err = turn_init(&progress->turn);
    if (err)
        goto free_progress;
    /* The program's signals are not for this thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    err = -pthread_create(&progress->thread, NULL, move_on, progress);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        goto destroy_turn;
    world->turn = &progress->turn;
    world->progress_close = stop;
    return 0;
destroy_turn:
    turn_destroy(&progress->turn);
free_progress:
    free(progress);
    return report_set(&world->report, err, "rank %d cannot start a progress thread: %s",
                      world->rank, strerror(-err));
}
