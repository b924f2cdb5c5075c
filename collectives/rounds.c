/* SPDX-License-Identifier: MIT */
#include "collectives/rounds.h"
#include "collectives/fit.h"
#include "transport/world.h"

#include <errno.h>
#include <stdlib.h>

static bool share_a_clock(const struct sstar_world *world)
{
    for (int rank = 0; rank < world->size; rank++)
        if (!world->ranks[rank].same_host)
            return false;
    return true;
}

/* Of one round: times of rank r at all[r * n]. */
static double time_us(const struct sstar_world *world, const struct round_time *all, size_t n)
{
    uint64_t begin = 0, end = 0, slowest = 0;
    for (size_t rank = 0; rank < (size_t)world->size; rank++) {
        const struct round_time *it = &all[rank * n];
        begin = it->begin_ns > begin ? it->begin_ns : begin;
        end = it->end_ns > end ? it->end_ns : end;
        if (it->end_ns - it->begin_ns > slowest)
            slowest = it->end_ns - it->begin_ns;
    }
    if (share_a_clock(world))
        slowest = end > begin ? end - begin : 0;
    return (double)slowest / 1e3;
}

int rounds_quantiles(struct sstar_world *world, const struct round_time *mine, size_t n,
                     const double *shares, int of, double *us)
{
    size_t size = (size_t)world->size;
    struct round_time *all = calloc(n * size, sizeof *all);
    double *times = calloc(n, sizeof *times);
    int err =
        all && times ? 0 : world_fail(world, -ENOMEM, "no memory for the times of %zu rounds", n);
    if (!err)
        err = sstar_allgather(world, mine, n * sizeof *mine, all);
    for (size_t i = 0; i < n && !err; i++)
        times[i] = time_us(world, all + i, n);
    for (int i = 0; i < of && !err; i++)
        us[i] = fit_quantile(times, (int)n, shares[i]);
    free(times);
    free(all);
    return err;
}

int rounds_median(struct sstar_world *world, const struct round_time *mine, size_t n, double *us)
{
    return rounds_quantiles(world, mine, n, &(double){0.5}, 1, us);
}
