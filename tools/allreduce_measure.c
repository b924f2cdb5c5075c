/* SPDX-License-Identifier: MIT */
/* AllReduce checked and timed. */
#include "collectives/element.h"
#include "tools/allreduce.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- checking -----------------------------------------------------------------------------------
 */

static int run(const struct allreduce_trial *trial)
{
    const void *send = trial->in_place ? trial->recv : trial->send;
    return sstar_allreduce_run(trial->plan, send, trial->recv, trial->count, trial->type,
                               trial->op);
}

/* Add up over the ranks. */
static int sum_over_ranks(struct sstar_world *world, uint64_t mine, uint64_t *sum)
{
    size_t size = (size_t)sstar_size(world);
    uint64_t *all = calloc(size, sizeof *all);
    if (!all)
        return -ENOMEM;
    int err = sstar_allgather(world, &mine, sizeof mine, all);
    for (size_t i = 0; !err && i < size; i++)
        *sum += all[i];
    free(all);
    return err;
}

int allreduce_check(const struct allreduce_trial *trial, uint64_t *wrong)
{
    char *send = trial->in_place ? trial->recv : trial->send;
    size_t bytes = trial->count * sstar_type_bytes(trial->type);
    int size = sstar_size(trial->world);
    if (!trial->in_place)
        memset(trial->recv, 0xff, bytes); /* what is not written is seen */
    for (size_t i = 0; i < trial->count; i++)
        element_set(send, i, trial->type,
                    element_of_rank(sstar_rank(trial->world), size, i, trial->seed, trial->type,
                                    trial->op));
    int err = run(trial);
    if (err)
        return err;
    uint64_t mine = 0, sum = 0;
    for (size_t i = 0; i < trial->count; i++)
        mine += element_get(trial->recv, i, trial->type) !=
                element_reduced(size, i, trial->seed, trial->type, trial->op);
    err = sum_over_ranks(trial->world, mine, &sum);
    if (!err)
        *wrong = sum;
    return err;
}

/* ---- timing -------------------------------------------------------------------------------------
 */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static int time_own(const struct allreduce_trial *trial, uint32_t warmup, uint32_t iterations,
                    double *us)
{
    for (uint32_t i = 0; i < warmup + iterations; i++) {
        int err = sstar_fast_barrier(trial->world);
        if (err)
            return err;
        uint64_t begin = sstar_now_ns(trial->world);
        err = run(trial);
        if (err)
            return err;
        if (i >= warmup)
            us[i - warmup] = (double)(sstar_now_ns(trial->world) - begin) / 1e3;
    }
    return 0;
}

int allreduce_time(const struct allreduce_trial *trial, uint32_t warmup, uint32_t iterations,
                   double *us)
{
    size_t size = (size_t)sstar_size(trial->world), n = iterations;
    double *mine = calloc(n * (size + 1), sizeof *mine), *all = mine + n;
    if (!mine)
        return -ENOMEM;
    /* In place, results would grow without end: let the values be zeros. */
    memset(trial->in_place ? trial->recv : trial->send, 0,
           trial->count * sstar_type_bytes(trial->type));
    int err = time_own(trial, warmup, iterations, mine);
    if (!err)
        err = sstar_allgather(trial->world, mine, n * sizeof *mine, all);
    for (size_t i = 0; !err && i < n; i++)
        for (size_t rank = 0; rank < size; rank++)
            if (all[rank * n + i] > mine[i])
                mine[i] = all[rank * n + i];
    if (!err)
        *us = median(mine, iterations);
    free(mine);
    return err;
}
