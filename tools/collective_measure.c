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

static struct element_case case_of(const struct collective_trial *trial)
{
    /* Numbers whose sums are exact in what crosses the wire. */
    enum sstar_type type = trial->type == SSTAR_FLOAT32 ? trial->wire_type : trial->type;
    return (struct element_case){
        trial->operation, sstar_size(trial->world), trial->root, trial->count, type,
        trial->op,        trial->in_place,          trial->seed};
}

/* What the operation is given. */
struct buffers {
    char *send, *recv;
    struct element_layout layout;
};
static struct buffers buffers_of(const struct collective_trial *trial)
{
    struct element_case it = case_of(trial);
    struct element_layout layout = element_layout(&it, sstar_rank(trial->world));
    size_t bytes = sstar_type_bytes(trial->type);
    char *send = trial->in_place ? trial->recv : trial->send, *recv = trial->recv;
    return (struct buffers){send + layout.send_at * bytes, recv + layout.recv_at * bytes, layout};
}

static int run(const struct collective_trial *trial)
{
    struct buffers b = buffers_of(trial);
    return sstar_collective_run(trial->plan, b.send, b.recv, trial->count, trial->type, trial->op);
}

int collective_begin(const struct collective_trial *trial)
{
    struct buffers b = buffers_of(trial);
    return sstar_collective_start(trial->plan, b.send, b.recv, trial->count, trial->type,
                                  trial->op);
}

void collective_clear(const struct collective_trial *trial)
{
    struct buffers b = buffers_of(trial);
    memset(b.send, 0, b.layout.send_count * sstar_type_bytes(trial->type));
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
    struct element_case it = case_of(trial);
    int rank = sstar_rank(trial->world);
    if (!trial->in_place) /* what is not written is seen */
        memset(b.recv, 0xff, b.layout.recv_count * sstar_type_bytes(trial->type));
    for (size_t i = 0; i < b.layout.send_count; i++)
        element_set(b.send, i, trial->type,
                    element_of_rank(rank, it.size, i, it.salt, it.type, it.op));
    int err = run(trial);
    if (err)
        return err;
    uint64_t mine = 0, sum = 0;
    for (size_t i = 0; i < b.layout.recv_count; i++)
        mine += element_get(b.recv, i, trial->type) != element_expected(&it, rank, i);
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
    collective_clear(trial);
    int err = time_own(trial, warmup, iterations, times);
    if (!err)
        err = rounds_median(trial->world, times, iterations, us);
    free(times);
    return err;
}
