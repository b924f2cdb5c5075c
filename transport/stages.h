/* SPDX-License-Identifier: MIT */
/*
 * The stages of a message on its way from a caller through the control path and back. Private.
 *
 * Time is taken from the CPU's time stamp counter where it counts at one speed on all cores, else
 * from the world's clock; a tick is what that counts. Only messages that ask for it are stamped.
 */
#ifndef SSTAR_TRANSPORT_STAGES_H
#define SSTAR_TRANSPORT_STAGES_H

#include "transport/wait.h"
#include <stdalign.h>

/* Which of them are wanted: each disturbs what follows. The caller's own two are his to take. */
enum {
    STAMP_SEEN = 1,
    STAMP_BUILT = 2,
    STAMP_RING = 4,
    STAMP_RUNG = 8,
    STAMP_DEVICE = 16,
    STAMP_CQE = 32,
    STAMP_ALL = 63,
};
struct stage_stamps {
    alignas(64) uint64_t seen; /* the control path took it up */
    uint64_t built;            /* its WQE is whole */
    uint64_t ring;             /* the doorbell is about to be rung for its batch */
    uint64_t rung;
    uint64_t device; /* so many ticks between these two were the device's own (softnic) */
    uint64_t cqe;    /* its completion, or one behind it, was found; then the caller is told */
    uint32_t wanted;
};

static inline uint64_t stage_now(void)
{
#if defined(__x86_64__)
    unsigned int cpu;
    return __builtin_ia32_rdtscp(&cpu); /* not before what stands before it */
#else
    return clock_ns();
#endif
}

struct stage_clock {
    double ns_per_tick;
    double stamp_ns; /* what taking one stamp costs */
};
/* Compare with the world's clock for some 20 ms. */
struct stage_clock stage_calibrate(void);

#endif
