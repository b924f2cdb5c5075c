/* SPDX-License-Identifier: MIT */
/* Combining, at the rank that a key belongs to: the shares of the nodes become its value. */
#include "collectives/combine.h"
#include "collectives/float_row.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int combine_shares_open(struct sstar_combiner *c, uint64_t *bytes)
{
    struct combine_shares *s = &c->shares;
    size_t keys = c->attr.keys, all = keys * c->attr.nodes;
    *bytes += keys * sizeof *s->key + all * (sizeof *s->node + c->row_bytes);
    s->key = calloc(keys, sizeof *s->key);
    s->node = calloc(all, sizeof *s->node);
    s->row = calloc(all, c->row_bytes);
    s->sum = calloc(c->attr.count, sizeof *s->sum);
    s->one = calloc(c->attr.count, sizeof *s->one);
    s->first_whole = COMBINE_NONE;
    return s->key && s->node && s->row && s->sum && s->one ? 0 : -ENOMEM;
}

void combine_shares_close(struct sstar_combiner *c)
{
    free(c->shares.key);
    free(c->shares.node);
    free(c->shares.row);
    free(c->shares.sum);
    free(c->shares.one);
}

void combine_shares_reset(struct sstar_combiner *c)
{
    memset(c->shares.key, 0, c->attr.keys * sizeof *c->shares.key);
    c->shares.first_whole = COMBINE_NONE;
}

static uint8_t *row_of(const struct sstar_combiner *c, uint32_t key, uint32_t i)
{
    return c->shares.row + ((size_t)key * c->attr.nodes + i) * c->row_bytes;
}

int combine_shares_take(struct sstar_combiner *c, const struct combine_head *head, int node,
                        const void *row)
{
    struct combine_shares *s = &c->shares;
    struct combine_key *k = head->key < c->attr.keys ? &s->key[head->key] : NULL;
    if (!k || !head->nodes || head->nodes > c->attr.nodes || k->come >= head->nodes ||
        (k->come && k->nodes != head->nodes))
        return world_fail(c->world, -EPROTO,
                          "combiner: rank %d got share %u of %u of its key %u from node %d, which "
                          "cannot be (keys 0 to %u, shares of at most %u nodes)",
                          c->rank, k ? k->come + 1u : 1u, head->nodes, head->key, node,
                          c->attr.keys - 1, c->attr.nodes);
    k->nodes = head->nodes;
    s->node[(size_t)head->key * c->attr.nodes + k->come] = (uint16_t)node;
    memcpy(row_of(c, head->key, k->come), row, c->row_bytes);
    if (++k->come < k->nodes)
        return 0;
    k->next = COMBINE_NONE;
    if (s->first_whole == COMBINE_NONE)
        s->first_whole = head->key;
    else
        s->key[s->last_whole].next = head->key;
    s->last_whole = head->key;
    return 0;
}

/* Which share of a key is the one of the lowest node above `after`. */
static uint32_t next_share(const struct sstar_combiner *c, uint32_t key, int after)
{
    const uint16_t *node = &c->shares.node[(size_t)key * c->attr.nodes];
    uint32_t n = c->shares.key[key].nodes, best = n;
    for (uint32_t i = 0; i < n; i++)
        if ((int)node[i] > after && (best == n || node[i] < node[best]))
            best = i;
    return best;
}

int combine_shares_next(struct sstar_combiner *c, struct sstar_combined *out)
{
    struct combine_shares *s = &c->shares;
    uint32_t key = s->first_whole;
    if (key == COMBINE_NONE)
        return 0;
    for (uint32_t n = 0, i; n < s->key[key].nodes; n++) {
        int after = n ? s->node[(size_t)key * c->attr.nodes + i] : -1;
        i = next_share(c, key, after);
        if (i == s->key[key].nodes)
            return world_fail(c->world, -EPROTO,
                              "combiner: rank %d got two shares of its key %u from one node",
                              c->rank, key);
        float_row_widen(n ? s->one : s->sum, row_of(c, key, i), c->attr.count, c->attr.type, 1);
        if (n)
            c->op(s->sum, s->sum, s->one, c->attr.count);
    }
    s->first_whole = s->key[key].next;
    *out = (struct sstar_combined){.key = key, .values = s->sum};
    return 1;
}
