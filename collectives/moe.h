/* SPDX-License-Identifier: MIT */
/*
 * Inside a mixture of experts. Private to collectives/moe*.c.
 *
 * A landing row, in memory that the node shares, is what crosses and, aligned, its payload. Tokens
 * of this rank for its own node have rows here too, so that their experts read them alike. Rows are
 * taken in the order of arrival; when all tokens have come, the ranks of the node that have one of
 * the experts are told a row's number.
 */
#ifndef SSTAR_COLLECTIVES_MOE_H
#define SSTAR_COLLECTIVES_MOE_H

#include "collectives/collectives.h"
#include "collectives/schedule.h"
#include "transport/world.h"
#include <assert.h>

struct moe_head {
    uint32_t index; /* of the token, at its source */
    uint16_t experts, nodes;
};
static_assert(sizeof(struct moe_head) == 8, "the head of a token is 8 bytes");
struct moe_choice {
    uint32_t expert;
    float weight;
};
struct moe_landing {
    uint32_t source, reserved;
    struct moe_head head;
    struct moe_choice choice[]; /* [top], then from payload_offset the values */
};

struct sstar_moe {
    struct sstar_world *world;
    struct sstar_moe_attr attr;
    struct node_map map;
    int rank, node, local, local_size;
    struct sstar_aggregator *across, *inside; /* tokens; which rows they landed in */
    struct sstar_combiner *combiner;
    uint64_t shares_bytes; /* of the combiner */
    size_t token_bytes, result_bytes;
    /* Landing rows. */
    uint8_t *landing;
    uint8_t **landing_of; /* [local_size], as we see them */
    size_t row_bytes, payload_offset;
    uint32_t rows_most, rows_landed;
    uint32_t row_told;    /* of these, told to all of the node that have to know ... */
    uint32_t choice_told; /* ... and of this one to those of the choices before it */
    /* What this rank sends. */
    const uint8_t *tokens;
    const uint32_t *experts;
    const float *weights;
    uint32_t count, sending; /* tokens; the one that is being sent */
    int sending_node;        /* and where to next */
    uint8_t *message;
    int *node_count; /* [nodes]: experts of the token there */
    /* What the experts here got. */
    struct sstar_moe_row *rows;
    size_t n_rows, room_rows;
    uint8_t *results; /* those that do for these rows; older ones are freed at the end */
    void **kept;
    size_t n_kept, results_rows, result_stride;
    struct sstar_ledger dispatched, combined;
    bool used; /* there was a batch before */
};

static inline int moe_rank_of(const struct sstar_moe *m, uint32_t expert)
{
    return (int)((uint64_t)expert * (uint64_t)m->map.size / m->attr.experts);
}
/* Where a rank's token lands on another node, and whence its results come back: by turns, so that
 * all ranks of the node have the same work. */
static inline int moe_landing_rank(const struct node_map *map, int source, uint32_t index, int node)
{
    return node_map_in_turn(map, node, (uint32_t)source + index);
}
static inline struct moe_landing *moe_landing(const struct sstar_moe *m, int local, uint32_t row)
{
    return (struct moe_landing *)(m->landing_of[local] + (size_t)row * m->row_bytes);
}

/* moe_dispatch.c: what dispatch does in turns. Each 0 when there is no more, 1 when there is no
 * room now, or -errno. */
int moe_send(struct sstar_moe *m);
int moe_tell(struct sstar_moe *m);
/* Every token that has come; every row that we were told of. 0 or -errno. */
int moe_take_tokens(struct sstar_moe *m);
int moe_take_rows(struct sstar_moe *m);

#endif
