/* SPDX-License-Identifier: MIT */
/* Arithmetic for the time of a layer: multiply-adds in the caller, on values that stay in its first
 * cache. The work is fixed, so whoever takes the core away makes it take longer. */
#include "tools/overlap.h"
#include "transport/wait.h"

enum { VALUES = sizeof((struct work *)0)->values / sizeof(float) };
enum { TRIES = 5, TRY_UNITS = 100000 };

void work_do(struct work *work, uint64_t units)
{
    for (; units; units--) {
        for (int i = 0; i < VALUES; i++)
            work->values[i] = work->values[i] * 0.999f + 0.5f;
        __asm__ volatile("" ::: "memory");
    }
}

void work_calibrate(struct work *work)
{
    *work = (struct work){0};
    for (int i = 0; i < TRIES; i++) {
        uint64_t begun = clock_ns();
        work_do(work, TRY_UNITS);
        double speed = TRY_UNITS * 1e3 / (double)(clock_ns() - begun);
        work->units_per_us = speed > work->units_per_us ? speed : work->units_per_us;
    }
}
