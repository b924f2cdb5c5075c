/* SPDX-License-Identifier: MIT */
#include "tools/stream.h"
#include "collectives/ledger.h"
#include "collectives/model_alltoall.h"
#include "tools/strategies.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>

int stream_open(struct stream *s, struct sstar_world *world, const struct sstar_cost *cost,
                const struct sstar_aggregator_attr *attr)
{
    int ranks = sstar_size(world);
    s->world = world;
    s->cost = *cost;
    s->attr = *attr;
    s->attr.flush_bytes = attr->flush_bytes ? attr->flush_bytes : flush_bytes_of(cost);
    s->attr.s_star_bytes = sstar_s_star_bytes(cost);
    s->attr.s_star_rate_bytes = sstar_s_star_rate_bytes(cost);
    s->node_of = calloc((size_t)ranks, sizeof *s->node_of);
    if (!s->node_of)
        return world_fail(world, -ENOMEM, "no memory for a map of %d ranks", ranks);
    for (int r = 0; r < ranks; r++)
        s->node_of[r] = sstar_node_of(world, r);
    return sstar_aggregator_open(world, &s->attr, &s->aggregator);
}

void stream_close(struct stream *s)
{
    sstar_aggregator_close(s->aggregator);
    free(s->node_of);
    s->aggregator = NULL;
    s->node_of = NULL;
}

static int exchange(struct stream *s)
{
    int left = 1;
    while (left > 0) {
        struct sstar_item item;
        int got, pushed = s->ops->push(s->context, s->aggregator);
        if (pushed && pushed != -EAGAIN)
            return pushed;
        while ((got = sstar_pull(s->aggregator, &item)) > 0)
            if ((got = s->ops->pull(s->context, &item)))
                return got;
        if (got < 0)
            return got;
        left = sstar_advance(s->aggregator, !pushed);
    }
    return left;
}

int stream_round(struct stream *s, struct round_time *time)
{
    int err = s->used ? sstar_aggregator_reset(s->aggregator) : 0;
    s->used = true;
    if (!err)
        err = sstar_fast_barrier(s->world);
    time->begin_ns = sstar_now_ns(s->world);
    if (!err)
        err = exchange(s);
    time->end_ns = sstar_now_ns(s->world);
    return err;
}

int stream_ledger(const struct stream *s, struct sstar_ledger *sum)
{
    int ranks = sstar_size(s->world);
    struct sstar_ledger mine, *all = calloc((size_t)ranks, sizeof *all);
    sstar_aggregator_ledger(s->aggregator, &mine);
    int err = all ? sstar_allgather(s->world, &mine, sizeof mine, all)
                  : world_fail(s->world, -ENOMEM, "no memory for the ledgers of %d ranks", ranks);
    ledger_reset(sum, 0, 0);
    for (int r = 0; !err && r < ranks; r++)
        ledger_add(sum, &all[r]);
    free(all);
    return err;
}

int stream_predict(const struct stream *s, const uint64_t *messages, const uint64_t *bytes,
                   double *us)
{
    struct alltoall_traffic traffic = {.ranks = sstar_size(s->world),
                                       .nodes = sstar_node_count(s->world),
                                       .node_of = s->node_of,
                                       .port_per_rank = s->world->config.port_per_rank,
                                       .messages = messages,
                                       .message_bytes = s->attr.item_bytes,
                                       .bytes = bytes,
                                       .hops = s->attr.hops,
                                       .fixed = s->attr.item_bytes > 0};
    struct alltoall_prediction p;
    *us = 0;
    if (traffic.nodes == 1)
        return 0;
    int err = model_alltoall(&traffic, s->attr.strategy, s->attr.flush_bytes, &s->cost, &p);
    if (!err)
        *us = p.seconds * 1e6;
    return err;
}
