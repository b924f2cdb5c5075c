/* SPDX-License-Identifier: MIT */
/*
 * A thread that moves on what was started, while the caller computes. It has the turn of the world
 * (transport/turn.h) while it looks, and gives it up in between; while the caller is inside the
 * library it keeps off, since a caller that waits moves everything on itself.
 *
 * Where ranks have no cores to spare it must not take the caller's: it naps between looks. softnic
 * says until when, and what must not be late on its wire is not. Elsewhere naps are blind: being
 * woken takes the caller's core longer than the look itself (14 us in a virtual machine), and how
 * late one is woken shows how long, so they are some multiple of that. It has no deadlines of its
 * own: a rank that comes late keeps nobody waiting before somebody waits.
 */
#include "collectives/collective_plan.h"
#include "transport/turn.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const uint64_t short_slice_ns = 100 * 1000;
static const uint64_t spin_ns = 50 * 1000;
static const uint64_t least_nap_ns = 50 * 1000, most_nap_ns = 600 * 1000;
static const uint64_t shortest_nap_ns = 20 * 1000; /* where it is known when to look */
static const uint64_t long_nap_ns = 1000 * 1000;   /* when nothing has moved for many of them: */
enum { SHORT_NAPS = 1000, NAP_PER_LATE = 50, LATE_SHARE = 8 };

struct progress {
    struct turn turn;
    pthread_t thread;
    struct sstar_world *world;
    uint64_t quiet_ns; /* since when nothing has moved; 0: something has just now */
    uint32_t naps;
    uint64_t late_ns; /* naps last so much longer than they should: a running mean */
};

static uint64_t nap_ns(const struct progress *progress)
{
    uint64_t ns = NAP_PER_LATE * progress->late_ns;
    ns = ns < least_nap_ns ? least_nap_ns : ns > most_nap_ns ? most_nap_ns : ns;
    return progress->naps < SHORT_NAPS ? ns : long_nap_ns;
}

/* A device that works in our time knows when it must be looked at next. */
static uint64_t nap_until(const struct progress *progress)
{
    uint64_t now = clock_ns(), next = started_next_look(progress->world);
    if (next == 0 || next == UINT64_MAX)
        return now + nap_ns(progress);
    uint64_t soonest = now + shortest_nap_ns, latest = now + long_nap_ns;
    return next < soonest ? soonest : next > latest ? latest : next;
}

static void nap(struct progress *progress)
{
    uint64_t until = nap_until(progress);
    struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    progress->naps++;
    progress->turn.nap_ends_ns = until;
    int ended = pthread_cond_timedwait(&progress->turn.changed, &progress->turn.mutex, &at);
    progress->turn.nap_ends_ns = 0;
    if (ended == ETIMEDOUT)
        progress->late_ns += (clock_ns() - until) / LATE_SHARE - progress->late_ns / LATE_SHARE;
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

/* To wake when a nap is over, and not when the caller has used up his time slice: timers without
 * slack, and short slices, which since Linux 6.12 come before long ones (sched(7), EEVDF). Older
 * kernels take no notice. */
static void be_prompt(void)
{
    struct { /* sched_setattr(2); <linux/sched/types.h> and <sched.h> exclude each other */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attr = {.size = sizeof attr};
    prctl(PR_SET_TIMERSLACK, 1);
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.policy != SCHED_OTHER)
        return;
    attr.runtime_ns = short_slice_ns;
    syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void *move_on(void *argument)
{
    struct progress *progress = argument;
    struct turn *turn = &progress->turn;
    be_prompt();
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
    pthread_setname_np(progress->thread, "sstar-progress");
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
