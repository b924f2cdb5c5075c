/* SPDX-License-Identifier: MIT */
/*
 * Inside a combiner. Private to collectives/combine*.c.
 *
 * A part is not sent to its gateway: it is told where it lies, and read there. What is pulled from
 * the aggregator always has a place (both tables have room for every key), so pulling never waits
 * for pushing, and no circle of waiting can close.
 */
#ifndef SSTAR_COLLECTIVES_COMBINE_H
#define SSTAR_COLLECTIVES_COMBINE_H

#include "collectives/collectives.h"
#include "collectives/reduce.h"
#include "collectives/schedule.h"
#include "transport/world.h"
#include <assert.h>

/* What the aggregator carries. The first two only inside a node. */
enum combine_kind { COMBINE_PART = 1, COMBINE_DONE, COMBINE_SHARE };
struct combine_head {
    uint32_t key;
    uint16_t kind, nodes;
};
static_assert(sizeof(struct combine_head) == 8, "the head of a share is 8 bytes");
struct combine_part {
    struct combine_head head;
    uint16_t to, place, here, reserved;
    float weight;
    uint32_t reserved2;
    uint64_t address; /* as its rank knows it */
};
static_assert(sizeof(struct combine_part) == 32, "a part is told in 32 bytes");

enum { COMBINE_NONE = UINT32_MAX };

/* At the gateway: the parts of a key that have come. */
struct combine_parts {
    uint32_t key, next; /* in the list of those that are whole */
    uint16_t to, come, here, nodes;
};
struct combine_piece {
    const void *data;
    float weight;
};
struct combine_gate {
    uint32_t entries, keys_each;      /* keys_each: of a rank of another node */
    struct combine_parts *parts;      /* [entries] */
    struct combine_piece *piece;      /* [entries][attr.parts] */
    uint32_t first_whole, last_whole; /* to be sent */
    float *sum, *row;                 /* [count] */
    uint8_t *share;                   /* a message: head and row */
};
/* At the rank that keys belong to: the shares of a key that have come. */
struct combine_key {
    uint32_t next; /* in the list of those that are whole */
    uint16_t come, nodes;
};
struct combine_shares {
    struct combine_key *key; /* [keys] */
    uint16_t *node;          /* [keys][attr.nodes]: whose shares */
    uint8_t *row;            /* [keys][attr.nodes][row_bytes] */
    uint32_t first_whole, last_whole;
    float *sum, *one; /* [count] */
};

struct sstar_combiner {
    struct sstar_world *world;
    struct sstar_combiner_attr attr;
    struct sstar_aggregator *aggregator;
    struct node_map map;
    int rank, node, local, local_size;
    size_t row_bytes;
    reduce_kernel *op;
    struct combine_gate gate;
    struct combine_shares shares;
    int told_done, heard_done; /* ranks of this node that we told, and that told us */
    uint64_t merged;           /* parts that need not cross */
};

/* combine_gateway.c. Which rank of this node is the gateway of a key. */
int combine_gateway_of(const struct sstar_combiner *c, int to, uint32_t key);
int combine_gate_open(struct sstar_combiner *c, uint64_t *bytes);
void combine_gate_close(struct sstar_combiner *c);
void combine_gate_reset(struct sstar_combiner *c);
/* A part has come, `data` as we see it. 0 or -errno. */
int combine_gate_take(struct sstar_combiner *c, const struct combine_part *part, const void *data);
/* Send shares that are whole. 0: all are, 1: there is no room now, or -errno. */
int combine_gate_send(struct sstar_combiner *c);

/* combine_shares.c */
int combine_shares_open(struct sstar_combiner *c, uint64_t *bytes);
void combine_shares_close(struct sstar_combiner *c);
void combine_shares_reset(struct sstar_combiner *c);
/* A share of a node has come. 0 or -errno. */
int combine_shares_take(struct sstar_combiner *c, const struct combine_head *head, int node,
                        const void *row);
/* The next key whose shares are all there: 1 or 0. */
int combine_shares_next(struct sstar_combiner *c, struct sstar_combined *out);

#endif
