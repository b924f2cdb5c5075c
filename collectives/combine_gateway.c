/* SPDX-License-Identifier: MIT */
/* Combining, at the gateway of a key: parts of one node become one share. */
#include "collectives/combine.h"
#include "collectives/float_row.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int combine_gateway_of(const struct sstar_combiner *c, int to, uint32_t key)
{
    if (c->map.node_of[to] == c->node)
        return to;
    return node_map_in_turn(&c->map, c->node, (uint32_t)to + key);
}

/* Of the keys of another node's rank we have every local_size-th. */
static uint32_t index_of(const struct sstar_combiner *c, int to, uint32_t key)
{
    if (to == c->rank)
        return (uint32_t)c->map.size * c->gate.keys_each + key;
    return (uint32_t)to * c->gate.keys_each + key / (uint32_t)c->local_size;
}

int combine_gate_open(struct sstar_combiner *c, uint64_t *bytes)
{
    struct combine_gate *g = &c->gate;
    uint32_t local = (uint32_t)c->local_size;
    g->keys_each = c->map.nodes > 1 ? (c->attr.keys + local - 1) / local : 0;
    uint64_t entries = (uint64_t)c->map.size * g->keys_each + c->attr.keys;
    if (entries >= COMBINE_NONE)
        return -EINVAL;
    g->entries = (uint32_t)entries;
    *bytes += entries * (sizeof *g->parts + c->attr.parts * sizeof *g->piece);
    g->parts = calloc(entries, sizeof *g->parts);
    g->piece = calloc(entries * c->attr.parts, sizeof *g->piece);
    g->sum = calloc(c->attr.count, sizeof *g->sum);
    g->row = calloc(c->attr.count, sizeof *g->row);
    g->share = calloc(1, sizeof(struct combine_head) + c->row_bytes);
    g->first_whole = COMBINE_NONE;
    return g->parts && g->piece && g->sum && g->row && g->share ? 0 : -ENOMEM;
}

void combine_gate_close(struct sstar_combiner *c)
{
    free(c->gate.parts);
    free(c->gate.piece);
    free(c->gate.sum);
    free(c->gate.row);
    free(c->gate.share);
}

void combine_gate_reset(struct sstar_combiner *c)
{
    memset(c->gate.parts, 0, c->gate.entries * sizeof *c->gate.parts);
    c->gate.first_whole = COMBINE_NONE;
}

int combine_gate_take(struct sstar_combiner *c, const struct combine_part *part, const void *data)
{
    struct combine_gate *g = &c->gate;
    uint32_t i = index_of(c, part->to, part->head.key);
    struct combine_parts *p = &g->parts[i];
    struct combine_piece *piece = &g->piece[(size_t)i * c->attr.parts];
    if (!p->come) {
        *p = (struct combine_parts){.key = part->head.key,
                                    .next = COMBINE_NONE,
                                    .to = part->to,
                                    .here = part->here,
                                    .nodes = part->head.nodes};
        for (uint32_t n = 0; n < part->here; n++)
            piece[n].data = NULL;
    }
    if (p->here != part->here || p->nodes != part->head.nodes || piece[part->place].data)
        return world_fail(c->world, -EPROTO,
                          "combiner: rank %d got two different parts at place %u of %u of key %u "
                          "of rank %d; each has a place of its own, and all say the same of how "
                          "many there are",
                          c->rank, part->place, part->here, part->head.key, part->to);
    piece[part->place] = (struct combine_piece){.data = data, .weight = part->weight};
    if (++p->come < p->here)
        return 0;
    if (g->first_whole == COMBINE_NONE)
        g->first_whole = i;
    else
        g->parts[g->last_whole].next = i;
    g->last_whole = i;
    return 0;
}

/* The share of a key whose parts are all here. */
static void merge(struct sstar_combiner *c, uint32_t i)
{
    struct combine_gate *g = &c->gate;
    const struct combine_parts *p = &g->parts[i];
    const struct combine_piece *piece = &g->piece[(size_t)i * c->attr.parts];
    for (uint32_t n = 0; n < p->here; n++) {
        float *to = n ? g->row : g->sum;
        float_row_widen(to, piece[n].data, c->attr.count, c->attr.type, piece[n].weight);
        if (n)
            c->op(g->sum, g->sum, g->row, c->attr.count);
    }
    *(struct combine_head *)g->share =
        (struct combine_head){.key = p->key, .kind = COMBINE_SHARE, .nodes = p->nodes};
    float_row_narrow(g->share + sizeof(struct combine_head), g->sum, c->attr.count, c->attr.type);
}

int combine_gate_send(struct sstar_combiner *c)
{
    struct combine_gate *g = &c->gate;
    while (g->first_whole != COMBINE_NONE) {
        const struct combine_parts *p = &g->parts[g->first_whole];
        int err;
        merge(c, g->first_whole);
        if (p->to == c->rank) {
            err = combine_shares_take(c, (const struct combine_head *)g->share, c->node,
                                      g->share + sizeof(struct combine_head));
        } else {
            err = sstar_push(c->aggregator, p->to, g->share,
                             (uint32_t)(sizeof(struct combine_head) + c->row_bytes));
            c->merged += err ? 0 : p->here - 1u;
        }
        if (err)
            return err == -EAGAIN ? 1 : err;
        g->first_whole = p->next;
    }
    return 0;
}
