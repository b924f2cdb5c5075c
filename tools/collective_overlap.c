/* SPDX-License-Identifier: MIT */
/* --overlap: started, arithmetic in the caller, waited for; how much of the shorter hides behind
 * the longer. */
#include "collectives/rounds.h"
#include "tools/collective.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* So many steps that each need the one before: the time depends on nothing but the core. */
static void arithmetic(uint64_t steps)
{
    volatile double start = 1; /* the compiler does not know the outcome */
    double value = start;
    for (uint64_t i = 0; i < steps; i++)
        value = value * 0.999999 + 1e-6;
    start = value;
}

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* How many steps take so long on a core of our own: of some tries the fastest. */
static uint64_t steps_of(double ms)
{
    enum { TRIES = 5, STEPS = 1 << 20 };
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        double begin = cpu_ms();
        arithmetic(STEPS);
        double took = cpu_ms() - begin;
        best = i == 0 || took < best ? took : best;
    }
    return best > 0 ? (uint64_t)(ms / best * STEPS) : STEPS;
}

enum part { COMMUNICATION = 1, COMPUTATION = 2 };

static int one_round(const struct collective_trial *trial, unsigned parts, uint64_t steps)
{
    int err = parts & COMMUNICATION ? collective_begin(trial) : 0;
    if (!err && parts & COMPUTATION)
        arithmetic(steps);
    return err || !(parts & COMMUNICATION) ? err : sstar_collective_wait(trial->plan);
}

static int time_parts(const struct collective_trial *trial, unsigned parts, uint64_t steps,
                      const struct collective_rounds *rounds, double *us)
{
    struct round_time *times = calloc(rounds->iterations, sizeof *times);
    int err = times ? 0 : -ENOMEM;
    for (uint32_t i = 0; !err && i < rounds->warmup + rounds->iterations; i++) {
        struct round_time *time = &times[i < rounds->warmup ? 0 : i - rounds->warmup];
        err = sstar_fast_barrier(trial->world);
        time->begin_ns = sstar_now_ns(trial->world);
        if (!err)
            err = one_round(trial, parts, steps);
        time->end_ns = sstar_now_ns(trial->world);
    }
    if (!err)
        err = rounds_median(trial->world, times, rounds->iterations, us);
    free(times);
    return err;
}

int collective_overlap(const struct collective_trial *trial, double ms,
                       const struct collective_rounds *rounds, struct overlap *overlap)
{
    struct overlap o = {0};
    uint64_t steps = steps_of(ms);
    collective_clear(trial);
    int err = time_parts(trial, COMMUNICATION, steps, rounds, &o.communication_us);
    if (!err)
        err = time_parts(trial, COMPUTATION, steps, rounds, &o.computation_us);
    if (!err)
        err = time_parts(trial, COMMUNICATION | COMPUTATION, steps, rounds, &o.both_us);
    double shorter = o.communication_us < o.computation_us ? o.communication_us : o.computation_us;
    if (shorter > 0)
        o.hidden = (o.communication_us + o.computation_us - o.both_us) / shorter;
    if (!err)
        *overlap = o;
    return err;
}
