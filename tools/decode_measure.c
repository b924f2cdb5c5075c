/* SPDX-License-Identifier: MIT */
/* The AllReduces of a token, timed and priced. */
#include "collectives/element.h"
#include "collectives/fit.h"
#include "tools/decode.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>

enum { WARM_UP = 3 };

struct buffers {
    void *send, *recv;
};

static int check(struct sstar_world *world, struct sstar_collective *plan, const struct buffers *b,
                 size_t count)
{
    const enum sstar_type type = SSTAR_BFLOAT16;
    int size = sstar_size(world), rank = sstar_rank(world);
    for (size_t i = 0; i < count; i++)
        element_set(b->send, i, type, element_of_rank(rank, size, i, 1, type, SSTAR_SUM));
    int err = sstar_collective_run(plan, b->send, b->recv, count, type, SSTAR_SUM);
    for (size_t i = 0; !err && i < count; i++)
        if (element_get(b->recv, i, type) != element_reduced(size, i, 1, type, SSTAR_SUM))
            err = world_fail(world, -EIO, "element %zu of an AllReduce of %zu is wrong", i, count);
    return err;
}

static int time_tokens(struct sstar_world *world, struct sstar_collective *plan,
                       const struct buffers *b, const struct decode_case *one, double *us)
{
    for (int token = -WARM_UP; token < one->tokens; token++) {
        int err = sstar_barrier(world);
        uint64_t begun = sstar_now_ns(world);
        for (int i = 0; !err && i < one->allreduces; i++)
            err =
                sstar_collective_run(plan, b->send, b->recv, one->count, SSTAR_BFLOAT16, SSTAR_SUM);
        if (err)
            return err;
        if (token >= 0)
            us[token] = (double)(sstar_now_ns(world) - begun) / 1e3 / one->allreduces;
    }
    return 0;
}

/* Rank 0 has its word on the time. */
static int agree(struct sstar_world *world, double *us)
{
    double *all = calloc((size_t)sstar_size(world), sizeof *all);
    if (!all)
        return world_fail(world, -ENOMEM, "no memory for the times of %d ranks", sstar_size(world));
    int err = sstar_allgather(world, us, sizeof *us, all);
    if (!err)
        *us = all[0];
    free(all);
    return err;
}

/* By the algorithm that would be taken on that wire. */
int decode_predict(struct sstar_collective *plan, const struct sstar_cost *cost,
                   struct decode_case *one)
{
    struct sstar_price prices[SSTAR_ALGORITHMS];
    int n = sstar_collective_prices(plan, cost, one->count, SSTAR_BFLOAT16, prices);
    for (int i = 0; i < n; i++)
        if (i == 0 || prices[i].us < one->predicted_us) {
            one->predicted_us = prices[i].us;
            one->alpha_us = prices[i].us - prices[i].beta_us;
        }
    return n < 0 ? n : 0;
}

int decode_measure(struct sstar_world *world, struct sstar_collective *plan,
                   const struct sstar_cost *cost, struct decode_case *one)
{
    size_t bytes = one->count * sstar_type_bytes(SSTAR_BFLOAT16);
    struct buffers b = {0};
    double *us = calloc((size_t)one->tokens, sizeof *us);
    int err = us ? 0 : world_fail(world, -ENOMEM, "no memory for %d times", one->tokens);
    if (!err)
        err = sstar_alloc(world, bytes, &b.send);
    if (!err)
        err = sstar_alloc(world, bytes, &b.recv);
    if (!err)
        err = check(world, plan, &b, one->count);
    if (!err)
        err = time_tokens(world, plan, &b, one, us);
    if (!err) {
        one->measured_us = fit_quantile(us, one->tokens, 0.5);
        err = agree(world, &one->measured_us);
    }
    if (!err)
        err = decode_predict(plan, cost, one);
    if (b.recv)
        sstar_free(world, b.recv);
    if (b.send)
        sstar_free(world, b.send);
    free(us);
    return err;
}
