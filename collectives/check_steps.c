/* SPDX-License-Identifier: MIT */
/* The steps of a schedule, taken with symbols. Credits are taken to come back as late as link.h
 * allows, when half the slots are owed. */
#include "collectives/check_inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- channels ----------------------------------------------------------------------------------
 */

static struct channel *channel_of(struct check *c, int from, int to, int number)
{
    struct player *player = &c->players[from];
    for (int i = 0; i < player->n_channels; i++)
        if (player->channels[i].to == to && player->channels[i].number == number)
            return &player->channels[i];
    return NULL;
}

int check_make_channels(struct check *c, int rank)
{
    struct player *player = &c->players[rank];
    for (size_t i = 0; i < player->schedule.n_steps; i++)
        for (int k = 0; k < 2; k++) {
            const struct step *s = &player->schedule.steps[i];
            if (s->to[k] < 0 || channel_of(c, rank, s->to[k], s->channel))
                continue;
            struct channel *more =
                realloc(player->channels, (size_t)(player->n_channels + 1) * sizeof *more);
            if (!more)
                return -ENOMEM;
            player->channels = more;
            more[player->n_channels++] = (struct channel){
                .to = s->to[k], .number = s->channel, .sender = -1, .receiver = -1};
        }
    return 0;
}

static bool has_slot(const struct check *c, const struct channel *channel)
{
    uint64_t late = c->attr->slots / 2 ? c->attr->slots / 2 - 1 : 0;
    uint64_t returned = channel->received > late ? channel->received - late : 0;
    return channel->sent - returned < c->attr->slots;
}

static bool has_message(struct check *c, int from, int to, int number)
{
    const struct channel *channel = channel_of(c, from, to, number);
    return channel && channel->head;
}

static bool node_is_here(const struct check *c, int rank)
{
    const struct node_map *map = c->shape->map;
    int node = map->node_of[rank];
    for (int i = map->first[node]; i < map->first[node + 1]; i++)
        if (c->players[map->members[i]].node_steps < c->players[rank].node_steps)
            return false;
    return true;
}

bool check_may_run(struct check *c, int rank, const struct step *s)
{
    for (int k = 0; k < 2; k++) {
        if (s->from[k] >= 0 && !has_message(c, s->from[k], rank, s->channel))
            return false;
        if (s->to[k] >= 0 && !has_slot(c, channel_of(c, rank, s->to[k], s->channel)))
            return false;
    }
    return !(s->what & STEP_NODE) || node_is_here(c, rank);
}

/* ---- steps -------------------------------------------------------------------------------------
 */

/* Where a step's elements lie in a memory, or NULL. */
static struct symbol *symbols_of(const struct memory *memory, const struct step *s)
{
    bool inside = memory->symbols && s->offset >= memory->offset &&
                  s->offset + s->count <= memory->offset + memory->count;
    return inside ? memory->symbols + (s->offset - memory->offset) : NULL;
}

static int outside(struct check *c, int rank, const struct step *s)
{
    return FAIL(c, -EFAULT, "rank %d: elements %zu + %zu are not in its memory", rank, s->offset,
                s->count);
}

static int add_symbols(struct check *c, int rank, struct symbol *value, const struct symbol *other,
                       size_t count, bool swapped)
{
    for (size_t e = 0; e < count; e++) {
        uint32_t a = value[e].value, b = other[e].value;
        value[e].value = swapped ? check_sum(c->values, b, a) : check_sum(c->values, a, b);
        if (value[e].value == 0 || value[e].element != other[e].element)
            return FAIL(c, -EBADMSG,
                        "rank %d: element %u holds a contribution twice or none, or is added to "
                        "%u",
                        rank, value[e].element, other[e].element);
    }
    return 0;
}

/* The next range that a member of a node has; *at: 0 at first. */
static bool next_range(const struct check *c, int node, int member, int *at, struct range *range)
{
    const struct node_map *map = c->shape->map;
    struct sharing sharing = sharing_of(c->shape, node);
    if (sharing.block == 0) {
        *range = sharing_slice(&sharing, node_map_local_size(map, node), member);
        return (*at)++ == 0 && range->count;
    }
    while (*at < map->size && !sharing_has_block(map, node, member, *at))
        ++*at;
    *range = (struct range){(size_t)*at * sharing.block, sharing.block};
    return (*at)++ < map->size;
}

/* The inputs of the node's ranks, in their order. */
static int reduce_node(struct check *c, int rank, const struct step *s, struct symbol *out)
{
    const struct node_map *map = c->shape->map;
    int node = map->node_of[rank], first = map->first[node], err = 0;
    for (int i = first; i < map->first[node + 1] && !err; i++) {
        const struct symbol *input = symbols_of(&c->players[map->members[i]].input, s);
        if (!input)
            return outside(c, rank, s);
        if (i == first)
            memcpy(out, input, s->count * sizeof *out);
        else
            err = add_symbols(c, rank, out, input, s->count, false);
    }
    return err;
}

/* What this rank has of the sums, into work memory or the result. */
static int node_reduce_scatter(struct check *c, int rank, const struct step *s)
{
    const struct node_map *map = c->shape->map;
    struct player *player = &c->players[rank];
    const struct memory *memory = s->what & STEP_KEEP ? &player->work : &player->result;
    struct range range;
    int err = 0;
    for (int at = 0; !err && next_range(c, map->node_of[rank], map->local_of[rank], &at, &range);) {
        struct step part = {.offset = range.offset, .count = range.count};
        struct symbol *to = symbols_of(memory, &part);
        err = to ? reduce_node(c, rank, &part, player->block) : outside(c, rank, &part);
        if (!err)
            memcpy(to, player->block, range.count * sizeof *to);
    }
    return err;
}

/* All ranks at once, since in place each overwrites what the others read: the executor waits. */
static int node_all_reduce(struct check *c, int rank, const struct step *s)
{
    const struct node_map *map = c->shape->map;
    int node = map->node_of[rank];
    struct symbol *values = c->players[rank].block;
    if (map->local_of[rank] != 0 || s->count == 0)
        return 0;
    int err = reduce_node(c, rank, s, values);
    for (int i = map->first[node]; !err && i < map->first[node + 1]; i++)
        memcpy(c->players[map->members[i]].result.symbols, values, s->count * sizeof *values);
    return err;
}

static int node_all_gather(struct check *c, int rank)
{
    const struct node_map *map = c->shape->map;
    int node = map->node_of[rank];
    struct range range;
    for (int j = 0; j < node_map_local_size(map, node); j++)
        for (int at = 0; next_range(c, node, j, &at, &range);) {
            int owner = map->members[map->first[node] + j];
            struct step part = {.offset = range.offset, .count = range.count};
            const struct symbol *from = symbols_of(&c->players[owner].result, &part);
            struct symbol *to = symbols_of(&c->players[rank].result, &part);
            if (!from || !to)
                return outside(c, rank, &part);
            if (owner != rank)
                memcpy(to, from, range.count * sizeof *to);
        }
    return 0;
}

static void learn(const struct check *c, int rank, const uint64_t *known)
{
    for (size_t i = 0; i < c->words; i++)
        c->players[rank].known[0][i] |= known[i];
}

static int node_step(struct check *c, int rank, const struct step *s)
{
    const struct node_map *map = c->shape->map;
    struct player *player = &c->players[rank];
    if (s->what & STEP_NODE_ALL_REDUCE)
        return node_all_reduce(c, rank, s);
    if (s->what & STEP_NODE_REDUCE_SCATTER)
        return node_reduce_scatter(c, rank, s);
    if (s->what & STEP_NODE_ALL_GATHER)
        return node_all_gather(c, rank);
    int node = map->node_of[rank];
    for (int i = map->first[node]; i < map->first[node + 1]; i++)
        learn(c, rank, c->players[map->members[i]].known[1 + player->node_steps % 2]);
    return 0;
}

static int send_symbols(struct check *c, int rank, int lane, const struct step *s, int to,
                        const struct symbol *values)
{
    struct channel *channel = channel_of(c, rank, to, s->channel);
    size_t known = c->shape->operation == SSTAR_BARRIER ? c->words : 0;
    if (channel->sender >= 0 && channel->sender != lane)
        return FAIL(c, -EPROTO, "rank %d: two lanes send to rank %d on channel %d", rank, to,
                    s->channel);
    channel->sender = lane;
    struct parcel *parcel = malloc(sizeof *parcel + s->count * sizeof *values + known * 8);
    if (!parcel)
        return -ENOMEM;
    parcel->next = NULL;
    parcel->count = s->count;
    parcel->known = (uint64_t *)(parcel->symbols + s->count);
    if (s->count)
        memcpy(parcel->symbols, values, s->count * sizeof *values);
    if (known)
        memcpy(parcel->known, c->players[rank].known[0], known * 8);
    *(channel->head ? channel->tail : &channel->head) = parcel;
    channel->tail = &parcel->next;
    channel->sent++;
    return 0;
}

static int take_parcel(struct check *c, int rank, int lane, const struct step *s, int from,
                       struct parcel **taken)
{
    struct channel *channel = channel_of(c, from, rank, s->channel);
    if (channel->receiver >= 0 && channel->receiver != lane)
        return FAIL(c, -EPROTO, "rank %d: two lanes receive from rank %d on channel %d", rank, from,
                    s->channel);
    channel->receiver = lane;
    struct parcel *parcel = channel->head;
    channel->head = parcel->next;
    channel->received++;
    *taken = parcel;
    return parcel->count == s->count
               ? 0
               : FAIL(c, -EPROTO, "rank %d: %zu elements came where %zu are due", rank,
                      parcel->count, s->count);
}

/* Take what arrived, and reduce it as the step says. */
static int receive_symbols(struct check *c, int rank, int lane, const struct step *s,
                           const struct symbol *operand, struct symbol *values)
{
    int err = 0;
    for (int k = 0; k < 2 && s->from[k] >= 0 && !err; k++) {
        struct parcel *parcel = NULL;
        err = take_parcel(c, rank, lane, s, s->from[k], &parcel);
        if (!err && c->shape->operation == SSTAR_BARRIER)
            learn(c, rank, parcel->known);
        else if (!err && k == 0)
            memcpy(values, parcel->symbols, s->count * sizeof *values);
        if (!err && k == 1)
            err = add_symbols(c, rank, values, parcel->symbols, s->count, false);
        free(parcel);
        if (!err && k == 0 && s->what & STEP_REDUCE)
            err = add_symbols(c, rank, values, operand, s->count, s->what & STEP_SWAPPED);
    }
    return err;
}

static int wire_step(struct check *c, int rank, int lane, const struct step *s)
{
    struct player *player = &c->players[rank];
    struct symbol *values = player->block;
    const struct symbol *operand =
        symbols_of(s->what & STEP_PARTIAL ? &player->work : &player->input, s);
    bool needed = s->count && (!(s->what & STEP_RECEIVE) || s->what & STEP_REDUCE);
    if (needed && !operand)
        return outside(c, rank, s);
    if (needed)
        memcpy(values, operand, s->count * sizeof *values);
    int err = receive_symbols(c, rank, lane, s, operand, values);
    struct symbol *to[] = {s->what & STEP_STORE ? symbols_of(&player->result, s) : values,
                           s->what & STEP_KEEP ? symbols_of(&player->work, s) : values};
    for (int i = 0; i < 2 && !err && s->count; i++)
        if (!to[i])
            err = outside(c, rank, s);
        else
            memmove(to[i], values, s->count * sizeof *values);
    for (int k = 0; k < 2 && s->to[k] >= 0 && !err; k++)
        err = send_symbols(c, rank, lane, s, s->to[k], values);
    return err;
}

int check_step(struct check *c, int rank, int lane, const struct step *s)
{
    return s->what & STEP_NODE ? node_step(c, rank, s) : wire_step(c, rank, lane, s);
}
