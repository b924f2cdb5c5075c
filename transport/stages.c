/* SPDX-License-Identifier: MIT */
#include "transport/stages.h"

enum { CALIBRATION_NS = 20000000, TRIES = 64, STAMPS = 64 };

/* Both clocks at one moment: of several tries the one that took the least time. */
static void both(uint64_t *ns, uint64_t *ticks)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before = stage_now(), now = clock_ns(), after = stage_now();
        if (after - before < best) {
            best = after - before;
            *ns = now;
            *ticks = before + (after - before) / 2;
        }
    }
}

static double stamp_ticks(void)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t begun = stage_now(), last = begun;
        for (int j = 0; j < STAMPS; j++)
            last = stage_now();
        if (last - begun < best)
            best = last - begun;
    }
    return (double)best / STAMPS;
}

struct stage_clock stage_calibrate(void)
{
    uint64_t ns[2] = {0}, ticks[2] = {0};
    both(&ns[0], &ticks[0]);
    while (clock_ns() - ns[0] < CALIBRATION_NS)
        ;
    both(&ns[1], &ticks[1]);
    double scale = (double)(ns[1] - ns[0]) / (double)(ticks[1] - ticks[0]);
    return (struct stage_clock){.ns_per_tick = scale, .stamp_ns = stamp_ticks() * scale};
}
