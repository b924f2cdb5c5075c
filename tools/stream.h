/* SPDX-License-Identifier: MIT */
/* Rounds of messages through the aggregator with one strategy: timed, counted and priced. The
 * command says what is pushed and what becomes of what arrives. Private to tools. */
#ifndef SSTAR_TOOLS_STREAM_H
#define SSTAR_TOOLS_STREAM_H

#include "collectives/collectives.h"
#include "collectives/rounds.h"

struct stream_ops {
    /* Push what there is, from where it stopped last time. 0: all of it is pushed; -EAGAIN as of
     * sstar_push; or another negative errno. */
    int (*push)(void *context, struct sstar_aggregator *aggregator);
    /* A message has arrived. 0, or a negative errno whose sentence the world has. */
    int (*pull)(void *context, const struct sstar_item *item);
};

struct stream {
    struct sstar_world *world;
    struct sstar_aggregator *aggregator;
    struct sstar_cost cost;
    struct sstar_aggregator_attr attr;
    const struct stream_ops *ops;
    void *context;
    int *node_of; /* [ranks] */
    bool used;    /* the aggregator, so that it must be reset */
};

/* Messages of item_bytes, or (0) of at most max_item_bytes. Collective. stream_close accepts one
 * that failed. */
int stream_open(struct stream *stream, struct sstar_world *world, const struct sstar_cost *cost,
                const struct sstar_aggregator_attr *attr);
void stream_close(struct stream *stream);
/* From a barrier until all messages of all ranks have arrived. Collective. */
int stream_round(struct stream *stream, struct round_time *time);
/* What went over the wire in the last round, all ranks together. Collective. */
int stream_ledger(const struct stream *stream, struct sstar_ledger *sum);
/* What the wire alone needs for [ranks][ranks] messages, from and to, of item_bytes or together of
 * `bytes` (else NULL). 0 on one node. */
int stream_predict(const struct stream *stream, const uint64_t *messages, const uint64_t *bytes,
                   double *us);

#endif
