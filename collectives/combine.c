/* SPDX-License-Identifier: MIT */
/* Combining of messages with the same key, on top of an aggregator. */
#include "collectives/combine.h"
#include "collectives/float_row.h"
#include "transport/memory.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int refuse(struct sstar_world *world, const char *what)
{
    return report_set(&world->report, -EINVAL, "rank %d: combiner: %s", sstar_rank(world), what);
}

/* What is wrong with the attributes; NULL: nothing. */
static const char *mistake(const struct sstar_combiner_attr *attr)
{
    if (!float_row_is(attr->type))
        return "type must be a float of 32 bits or less";
    if (attr->op != SSTAR_SUM && attr->op != SSTAR_MIN && attr->op != SSTAR_MAX &&
        attr->op != SSTAR_PROD)
        return "op must be a sum, min, max or product";
    if (!attr->count || attr->count > 1u << 27)
        return "count must lie between 1 and 2^27";
    if (!attr->keys || attr->keys > 1u << 28)
        return "keys must lie between 1 and 2^28";
    if (!attr->parts || attr->parts > UINT16_MAX || attr->nodes > UINT16_MAX)
        return "parts must lie between 1 and 65535, nodes between 0 and 65535";
    return NULL;
}

static int find_place(struct sstar_combiner *c)
{
    int size = sstar_size(c->world), *node_of = calloc((size_t)size, sizeof *node_of);
    int err = node_of ? 0 : -ENOMEM;
    for (int r = 0; !err && r < size; r++)
        node_of[r] = sstar_node_of(c->world, r);
    if (!err)
        err = node_map_init(&c->map, size, node_of);
    free(node_of);
    if (err)
        return err;
    c->rank = sstar_rank(c->world);
    c->node = c->map.node_of[c->rank];
    c->local = c->map.local_of[c->rank];
    c->local_size = node_map_local_size(&c->map, c->node);
    return 0;
}

static void refuse_size(struct sstar_combiner *c, int err, uint64_t bytes)
{
    if (err == -EINVAL)
        report_set(
            &c->world->report, err,
            "rank %d: combiner: %u keys of each of %d ranks are more than one can keep apart "
            "(2^32); take fewer",
            c->rank, c->attr.keys, c->map.size);
    else
        report_set(&c->world->report, err, "rank %d: combiner: out of memory, it needs %.4g GB",
                   c->rank, (double)bytes * 1e-9);
}

/* A rank that has none must not leave the others waiting, nor without a reason. */
static int all_have_memory(struct sstar_world *world, int err)
{
    int told = err, *all = calloc((size_t)sstar_size(world), sizeof *all);
    int failed =
        all ? sstar_allgather(world, &told, sizeof told, all)
            : world_fail(world, -ENOMEM, "rank %d: combiner: out of memory", sstar_rank(world));
    for (int r = 0; !failed && r < sstar_size(world); r++) {
        failed = all[r];
        if (failed && !err)
            report_set(&world->report, failed,
                       "combiner: rank %d could not get its memory; take fewer keys or values", r);
    }
    free(all);
    return failed;
}

int sstar_combiner_open(struct sstar_world *world, const struct sstar_combiner_attr *attr,
                        struct sstar_combiner **combiner, uint64_t *memory_bytes)
{
    const char *wrong = mistake(attr);
    if (wrong)
        return refuse(world, wrong);
    struct sstar_combiner *c = calloc(1, sizeof *c);
    uint64_t bytes = 0;
    if (!c)
        return -ENOMEM;
    c->world = world;
    c->attr = *attr;
    c->row_bytes = attr->count * sstar_type_bytes(attr->type);
    c->op = reduce_best()->kernels[SSTAR_FLOAT32].op[attr->op];
    int err = find_place(c);
    if (!err && (!attr->nodes || (int)attr->nodes > c->map.nodes))
        c->attr.nodes = (uint32_t)c->map.nodes;
    if (!err)
        err = combine_gate_open(c, &bytes);
    if (!err)
        err = combine_shares_open(c, &bytes);
    if (err)
        refuse_size(c, err, bytes);
    struct sstar_aggregator_attr gather = attr->gather;
    size_t share = sizeof(struct combine_head) + c->row_bytes, least = sizeof(struct combine_part);
    gather.item_bytes = 0;
    gather.max_item_bytes = (uint32_t)(share > least ? share : least);
    int failed = all_have_memory(world, err);
    if (!failed)
        failed = sstar_aggregator_open(world, &gather, &c->aggregator);
    if (failed) {
        sstar_combiner_close(c);
        return failed;
    }
    if (memory_bytes)
        *memory_bytes = bytes;
    *combiner = c;
    return 0;
}

void sstar_combiner_close(struct sstar_combiner *c)
{
    if (!c)
        return;
    sstar_aggregator_close(c->aggregator);
    combine_shares_close(c);
    combine_gate_close(c);
    node_map_destroy(&c->map);
    free(c);
}

int sstar_combiner_reset(struct sstar_combiner *c)
{
    int err = sstar_aggregator_reset(c->aggregator);
    if (err)
        return err;
    combine_gate_reset(c);
    combine_shares_reset(c);
    c->told_done = c->heard_done = 0;
    c->merged = 0;
    return 0;
}

/* ---- parts and shares ---------------------------------------------------------------------------
 */

static int refuse_part(struct sstar_combiner *c, const struct sstar_part *p)
{
    return report_set(&c->world->report, -EINVAL,
                      "combiner: part %u of %u (of at most %u) of key %u (of %u) of rank %d, with "
                      "parts on %u nodes (of at most %u), after %s: there is no such part",
                      p->place, p->here, c->attr.parts, p->key, c->attr.keys, p->to, p->nodes,
                      c->attr.nodes, c->told_done ? "this rank was done" : "the others");
}

int sstar_combiner_push(struct sstar_combiner *c, const struct sstar_part *p)
{
    if (c->world->failed)
        return c->world->failed;
    if (c->told_done || !p->data || p->to < 0 || p->to >= c->map.size || p->key >= c->attr.keys ||
        p->place >= p->here || p->here > c->attr.parts || !p->nodes || p->nodes > c->attr.nodes)
        return refuse_part(c, p);
    struct combine_part part = {
        .head = {.key = p->key, .kind = COMBINE_PART, .nodes = (uint16_t)p->nodes},
        .to = (uint16_t)p->to,
        .place = (uint16_t)p->place,
        .here = (uint16_t)p->here,
        .weight = p->weight,
        .address = (uint64_t)(uintptr_t)p->data};
    int gateway = combine_gateway_of(c, p->to, p->key);
    if (gateway == c->rank)
        return combine_gate_take(c, &part, p->data);
    return sstar_push(c->aggregator, gateway, &part, sizeof part);
}

static int take_part(struct sstar_combiner *c, int source, const struct combine_part *part)
{
    if (part->to >= c->map.size || part->head.key >= c->attr.keys || part->place >= part->here ||
        part->here > c->attr.parts || combine_gateway_of(c, part->to, part->head.key) != c->rank)
        return world_fail(c->world, -EPROTO, "combiner: rank %d got a part that cannot be from %d",
                          c->rank, source);
    const void *data = memory_peer(c->world, source, part->address, c->row_bytes);
    if (!data)
        return world_fail(c->world, -EFAULT,
                          "combiner: rank %d cannot reach a part of rank %d; its data must lie in "
                          "memory from sstar_alloc",
                          c->rank, source);
    return combine_gate_take(c, part, data);
}

static int take(struct sstar_combiner *c, const struct sstar_item *item)
{
    const struct combine_head *head = item->data;
    size_t share = sizeof *head + c->row_bytes;
    uint16_t kind = item->bytes >= sizeof *head ? head->kind : 0;
    bool inside = c->map.node_of[item->source] == c->node;
    if (kind == COMBINE_SHARE && item->bytes == share)
        return combine_shares_take(c, head, c->map.node_of[item->source], head + 1);
    if (kind == COMBINE_PART && inside && item->bytes == sizeof(struct combine_part))
        return take_part(c, item->source, item->data);
    if (kind == COMBINE_DONE && inside) {
        c->heard_done++;
        return 0;
    }
    return world_fail(c->world, -EPROTO,
                      "combiner: rank %d got something that it does not know from rank %d; all "
                      "ranks must run the same version and open it alike",
                      c->rank, item->source);
}

/* Move all that can be moved. 0 or -errno. */
static int move(struct sstar_combiner *c)
{
    struct sstar_item item;
    int got;
    while ((got = sstar_pull(c->aggregator, &item)) > 0)
        if ((got = take(c, &item)))
            return got;
    int sent = got ? got : combine_gate_send(c);
    return sent < 0 ? sent : 0;
}

int sstar_combiner_pull(struct sstar_combiner *c, struct sstar_combined *out)
{
    if (c->world->failed)
        return c->world->failed;
    int got = combine_shares_next(c, out);
    if (got)
        return got;
    int err = move(c);
    return err ? err : combine_shares_next(c, out);
}

/* The others of the node learn that no more parts come from here. 0: they know, 1: not yet. */
static int tell_done(struct sstar_combiner *c)
{
    static const struct combine_head head = {.kind = COMBINE_DONE};
    for (; c->told_done < c->local_size; c->told_done++) {
        int to = c->map.members[c->map.first[c->node] + c->told_done];
        int err = sstar_push(c->aggregator, to, &head, sizeof head);
        if (err)
            return err == -EAGAIN ? 1 : err;
    }
    return 0;
}

int sstar_combiner_advance(struct sstar_combiner *c, bool done)
{
    if (c->world->failed)
        return c->world->failed;
    int told = done && c->told_done < c->local_size ? tell_done(c) : 0;
    int err = told < 0 ? told : move(c);
    if (err)
        return err;
    bool all = c->told_done == c->local_size && c->heard_done == c->local_size &&
               c->gate.first_whole == COMBINE_NONE;
    int left = sstar_advance(c->aggregator, all);
    return left < 0 ? left : left || c->shares.first_whole != COMBINE_NONE;
}

void sstar_combiner_ledger(const struct sstar_combiner *c, struct sstar_ledger *out)
{
    sstar_aggregator_ledger(c->aggregator, out);
    out->merged_messages = c->merged;
    out->merged_bytes = c->merged * c->row_bytes;
}
