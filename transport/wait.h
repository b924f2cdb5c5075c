/* SPDX-License-Identifier: MIT */
/*
 * One clock, one wait. All time comes from clock_ns; all waiting is a loop around wait_step:
 *
 *     struct waiter w = wait_begin(world, "a credit", peer, sequence);
 *     while (!condition) {
 *         int err = sstar_links_progress(links);
 *         if (err < 0 || (err = wait_step(&w)) < 0)
 *             return err;
 *     }
 *
 * wait_step spins (with pauses, but not on an emulated processor, which leaves translated code for
 * each of them), then yields, then sleeps on the world's event loop; with more ranks than cores it
 * yields at once. It looks at the control plane now and then, so a dead rank ends every
 * wait; it says on stderr after 5 s who waits for whom, and fails with -ETIMEDOUT at the deadline.
 * Call wait_progress when the condition has not come but something has moved: the warning and the
 * deadline then start again (honest work is not failure).
 */
#ifndef SSTAR_TRANSPORT_WAIT_H
#define SSTAR_TRANSPORT_WAIT_H

#include "transport/world.h"
#include <time.h>

static inline uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* How long a timeout is. What would wrap when it is added to the time is a century and more; what
 * is no time at all, or no number, is 0. */
static inline uint64_t timeout_ns(double seconds)
{
    const double most_ns = 4e18;
    double ns = seconds * 1e9;
    return ns < most_ns ? ns > 0 ? (uint64_t)ns : 0 : ns >= most_ns ? (uint64_t)most_ns : 0;
}

/* Between two looks at a word that another core is to write. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield" ::: "memory");
#else
    __asm__ __volatile__("" ::: "memory");
#endif
}

struct waiter {
    struct sstar_world *world;
    const char *what; /* static text: "a credit", "allreduce chunk" */
    int peer;         /* -1: nobody in particular */
    uint64_t sequence;
    uint64_t started_ns, deadline_ns; /* 0 until the first slow look */
    uint64_t looked_ns;               /* the last one: a long gap since is not the others' fault */
    uint32_t steps;
    bool warned;
    bool on_other_cores; /* what we wait for, as far as is known: spin even where ranks share cores
                          */
};

static inline struct waiter wait_begin(struct sstar_world *world, const char *what, int peer,
                                       uint64_t sequence)
{
    return (struct waiter){.world = world, .what = what, .peer = peer, .sequence = sequence};
}

/* 0: look at the condition again. Negative: the world failed, or the deadline passed. Collectives
 * that were started are moved on meanwhile, so that nobody waits for one because we wait for
 * something else. */
int wait_step(struct waiter *w);
/* The same for the control plane: sleeps on the event loop at once, does not spin. */
int wait_sleep(struct waiter *w);
void wait_progress(struct waiter *w);

#endif
