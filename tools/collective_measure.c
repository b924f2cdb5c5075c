/* SPDX-License-Identifier: MIT */
/* A collective checked and timed. */
#include "collectives/element.h"
#include "collectives/rounds.h"
#include "tools/collective.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- checking -----------------------------------------------------------------------------------
 */

static double value_of(const struct collective_trial *trial, int rank, size_t i)
{
    return element_of_rank(rank, sstar_size(trial->world), i, trial->seed, trial->type, trial->op);
}

/* Element i of our result. */
static double right_value(const struct collective_trial *trial, size_t i)
{
    int size = sstar_size(trial->world);
    switch (trial->operation) {
    case SSTAR_BROADCAST:
        return value_of(trial, trial->root, i);
    case SSTAR_ALL_GATHER:
        return value_of(trial, (int)(i / trial->count), i % trial->count);
    case SSTAR_REDUCE_SCATTER:
        i += (size_t)sstar_rank(trial->world) * trial->count;
        break;
    default:
        break;
    }
    return element_reduced(size, i, trial->seed, trial->type, trial->op);
}

/* What the operation is given: memory, and how many elements of it. */
struct buffers {
    char *send, *recv;
    size_t send_count, recv_count;
};
static struct buffers buffers_of(const struct collective_trial *trial)
{
    size_t n = (size_t)sstar_size(trial->world), rank = (size_t)sstar_rank(trial->world);
    size_t own = rank * trial->count * sstar_type_bytes(trial->type);
    bool is_root = sstar_rank(trial->world) == trial->root;
    struct buffers b = {trial->in_place ? trial->recv : trial->send, trial->recv, trial->count,
                        trial->count};
    switch (trial->operation) {
    case SSTAR_REDUCE_SCATTER:
        b.send_count *= n;
        b.recv += trial->in_place ? own : 0;
        break;
    case SSTAR_ALL_GATHER:
        b.recv_count *= n;
        b.send += trial->in_place ? own : 0;
        break;
    case SSTAR_BROADCAST:
        b.send_count *= is_root;
        break;
    case SSTAR_REDUCE:
        b.recv_count *= is_root;
        break;
    default:
        break;
    }
    return b;
}

static int run(const struct collective_trial *trial)
{
    struct buffers b = buffers_of(trial);
    return sstar_collective_run(trial->plan, b.send, b.recv, trial->count, trial->type, trial->op);
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

int collective_check(const struct collective_trial *trial, uint64_t *wrong)
{
    struct buffers b = buffers_of(trial);
    if (!trial->in_place) /* what is not written is seen */
        memset(b.recv, 0xff, b.recv_count * sstar_type_bytes(trial->type));
    for (size_t i = 0; i < b.send_count; i++)
        element_set(b.send, i, trial->type, value_of(trial, sstar_rank(trial->world), i));
    int err = run(trial);
    if (err)
        return err;
    uint64_t mine = 0, sum = 0;
    for (size_t i = 0; i < b.recv_count; i++)
        mine += element_get(b.recv, i, trial->type) != right_value(trial, i);
    err = sum_over_ranks(trial->world, mine, &sum);
    if (!err)
        *wrong = sum;
    return err;
}

/* ---- timing -------------------------------------------------------------------------------------
 */

static int time_own(const struct collective_trial *trial, uint32_t warmup, uint32_t iterations,
                    struct round_time *times)
{
    for (uint32_t i = 0; i < warmup + iterations; i++) {
        struct round_time *time = &times[i < warmup ? 0 : i - warmup];
        int err = sstar_fast_barrier(trial->world);
        if (err)
            return err;
        time->begin_ns = sstar_now_ns(trial->world);
        err = run(trial);
        if (err)
            return err;
        time->end_ns = sstar_now_ns(trial->world);
    }
    return 0;
}

int collective_time(const struct collective_trial *trial, uint32_t warmup, uint32_t iterations,
                    double *us)
{
    struct round_time *times = calloc(iterations, sizeof *times);
    if (!times)
        return -ENOMEM;
    /* In place, results would grow without end: let the values be zeros. */
    struct buffers b = buffers_of(trial);
    memset(b.send, 0, b.send_count * sstar_type_bytes(trial->type));
    int err = time_own(trial, warmup, iterations, times);
    if (!err)
        err = rounds_median(trial->world, times, iterations, us);
    free(times);
    return err;
}
