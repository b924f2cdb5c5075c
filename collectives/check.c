/* SPDX-License-Identifier: MIT */
/*
 * Ranks are sequential programs that meet only through bounded queues and the node's barriers, so
 * whether they come to an end, and with what, does not depend on the order in which they are moved
 * on (a Kahn network with bounded channels): one order proves all. Orders are varied all the same,
 * as a test of that claim for the parts that share memory. Credits are taken to come back as late
 * as link.h allows, when half the slots are owed.
 */
#include "collectives/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An element: whose contributions are in it, and the order in which they were summed. */
struct symbol {
    uint64_t set, order;
};

struct parcel {
    struct parcel *next;
    size_t count;
    struct symbol symbols[];
};
struct channel {
    struct parcel *head, **tail;
    uint64_t sent, received;
};

struct player {
    struct schedule schedule;
    struct step step;
    bool running;
    uint64_t node_steps; /* that this rank has come to */
    struct symbol *input, *result;
};

struct check {
    const struct schedule_shape *shape;
    const struct check_attr *attr;
    struct player *players;
    struct channel *channels; /* [from * size + to] */
    struct symbol *symbols;
    char *error;
    size_t error_size;
};

enum { NODE_STEPS = STEP_NODE_REDUCE_SCATTER | STEP_NODE_ALL_GATHER | STEP_NODE_ALL_REDUCE };

#define FAIL(check, code, ...) (snprintf((check)->error, (check)->error_size, __VA_ARGS__), (code))

static struct channel *channel_of(struct check *c, int from, int to)
{
    return &c->channels[from * c->shape->map->size + to];
}

static bool has_slot(const struct check *c, const struct channel *channel)
{
    uint64_t late = c->attr->slots / 2 ? c->attr->slots / 2 - 1 : 0;
    uint64_t returned = channel->received > late ? channel->received - late : 0;
    return channel->sent - returned < c->attr->slots;
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

static bool may_run(struct check *c, int rank)
{
    const struct step *s = &c->players[rank].step;
    if (s->what & STEP_RECEIVE && !channel_of(c, s->from, rank)->head)
        return false;
    if (s->what & STEP_SEND && !has_slot(c, channel_of(c, rank, s->to)))
        return false;
    return !(s->what & NODE_STEPS) || node_is_here(c, rank);
}

static bool reduce_symbol(struct symbol *value, const struct symbol *operand)
{
    if (!value->set || !operand->set || value->set & operand->set)
        return false;
    value->set |= operand->set;
    value->order = (value->order * 0x9e3779b97f4a7c15u ^ operand->order) * 0xff51afd7ed558ccdu;
    value->order ^= value->order >> 29;
    return true;
}

/* The inputs of the node's ranks, in their order. */
static int reduce_node(struct check *c, int rank, size_t offset, size_t count, struct symbol *out)
{
    const struct node_map *map = c->shape->map;
    int node = map->node_of[rank], first = map->first[node];
    for (size_t e = 0; e < count; e++) {
        struct symbol value = c->players[map->members[first]].input[offset + e];
        for (int i = first + 1; i < map->first[node + 1]; i++)
            if (!reduce_symbol(&value, &c->players[map->members[i]].input[offset + e]))
                return FAIL(c, -EBADMSG, "rank %d: element %zu holds a contribution twice or none",
                            rank, offset + e);
        out[e] = value;
    }
    return 0;
}

/* All ranks at once, since in place each overwrites what the others read: the executor waits. */
static int node_all_reduce(struct check *c, int rank)
{
    const struct node_map *map = c->shape->map;
    int node = map->node_of[rank];
    size_t count = c->shape->count;
    if (map->local_of[rank] != 0 || count == 0)
        return 0;
    struct symbol *values = calloc(count, sizeof *values);
    if (!values)
        return -ENOMEM;
    int err = reduce_node(c, rank, 0, count, values);
    for (int i = map->first[node]; !err && i < map->first[node + 1]; i++)
        memcpy(c->players[map->members[i]].result, values, count * sizeof *values);
    free(values);
    return err;
}

static int node_step(struct check *c, int rank)
{
    const struct node_map *map = c->shape->map;
    struct player *player = &c->players[rank];
    const struct step *s = &player->step;
    if (s->what & STEP_NODE_ALL_REDUCE)
        return node_all_reduce(c, rank);
    if (s->what & STEP_NODE_REDUCE_SCATTER)
        return reduce_node(c, rank, s->offset, s->count, player->result + s->offset);

    int owners = hierarchy_of(map).owners, node = map->node_of[rank];
    for (int j = 0; j < owners; j++) {
        size_t offset, count;
        hierarchy_slice(owners, c->shape->count, j, &offset, &count);
        const struct player *owner = &c->players[map->members[map->first[node] + j]];
        if (owner != player && count)
            memcpy(player->result + offset, owner->result + offset, count * sizeof *owner->result);
    }
    return 0;
}

static int send_symbols(struct check *c, int rank, const struct symbol *values)
{
    const struct step *s = &c->players[rank].step;
    struct channel *channel = channel_of(c, rank, s->to);
    struct parcel *parcel = malloc(sizeof *parcel + s->count * sizeof *values);
    if (!parcel)
        return -ENOMEM;
    parcel->next = NULL;
    parcel->count = s->count;
    memcpy(parcel->symbols, values, s->count * sizeof *values);
    *(channel->head ? channel->tail : &channel->head) = parcel;
    channel->tail = &parcel->next;
    channel->sent++;
    return 0;
}

static int wire_step(struct check *c, int rank)
{
    struct player *player = &c->players[rank];
    const struct step *s = &player->step;
    const struct symbol *operand =
        (s->what & STEP_PARTIAL ? player->result : player->input) + s->offset;
    struct symbol *values = malloc((s->count + 1) * sizeof *values);
    if (!values)
        return -ENOMEM;
    memcpy(values, operand, s->count * sizeof *values);

    int err = 0;
    if (s->what & STEP_RECEIVE) {
        struct channel *channel = channel_of(c, s->from, rank);
        struct parcel *parcel = channel->head;
        channel->head = parcel->next;
        channel->received++;
        if (parcel->count != s->count)
            err = FAIL(c, -EPROTO, "rank %d: %zu elements came where %zu are due", rank,
                       parcel->count, s->count);
        else
            memcpy(values, parcel->symbols, s->count * sizeof *values);
        free(parcel);
    }
    for (size_t e = 0; !err && s->what & STEP_REDUCE && e < s->count; e++)
        if (!reduce_symbol(&values[e], &operand[e]))
            err = FAIL(c, -EBADMSG, "rank %d: element %zu holds a contribution twice or none", rank,
                       s->offset + e);
    if (!err && s->what & STEP_STORE)
        memcpy(player->result + s->offset, values, s->count * sizeof *values);
    if (!err && s->what & STEP_SEND)
        err = send_symbols(c, rank, values);
    free(values);
    return err;
}

static void come_to_next(struct player *player)
{
    player->running = schedule_next(&player->schedule, &player->step);
    if (player->running && player->step.what & NODE_STEPS)
        player->node_steps++;
    else if (!player->running)
        player->node_steps = UINT64_MAX;
}

/* Move ranks on, from a place that the seed chooses anew each round, until all are done. */
static int play(struct check *c)
{
    int size = c->shape->map->size;
    uint64_t random = c->attr->seed;
    for (bool moved = true; moved;) {
        moved = false;
        random = random * 6364136223846793005u + 1442695040888963407u;
        for (int i = 0; i < size; i++) {
            int rank = (int)((random >> 33) % (unsigned)size + (unsigned)i) % size;
            struct player *player = &c->players[rank];
            uint64_t steps = (random >> 20) % 7 + 1;
            while (player->running && steps-- && may_run(c, rank)) {
                int err = player->step.what & NODE_STEPS ? node_step(c, rank) : wire_step(c, rank);
                if (err)
                    return err;
                come_to_next(player);
                moved = true;
            }
        }
    }
    for (int rank = 0; rank < size; rank++)
        if (c->players[rank].running)
            return FAIL(c, -EDEADLK, "deadlock: rank %d waits at elements %zu + %zu", rank,
                        c->players[rank].step.offset, c->players[rank].step.count);
    return 0;
}

static int judge(struct check *c)
{
    int size = c->shape->map->size;
    uint64_t all = size == 64 ? UINT64_MAX : ((uint64_t)1 << size) - 1;
    for (int rank = 0; rank < size; rank++) {
        const struct symbol *result = c->players[rank].result;
        for (size_t e = 0; e < c->shape->count; e++)
            if (result[e].set != all)
                return FAIL(c, -EBADMSG, "rank %d: element %zu lacks contributions", rank, e);
            else if (result[e].order != c->players[0].result[e].order)
                return FAIL(c, -EBADMSG, "rank %d: element %zu is summed in another order", rank,
                            e);
    }
    for (int i = 0; i < size * size; i++)
        if (c->channels[i].head)
            return FAIL(c, -EPROTO, "a message of rank %d to rank %d is left over", i / size,
                        i % size);
    return 0;
}

static void drop_parcels(struct check *c)
{
    int size = c->shape->map->size;
    for (int i = 0; i < size * size; i++)
        for (struct parcel *p = c->channels[i].head, *next; p; p = next) {
            next = p->next;
            free(p);
        }
}

int check_schedule(const struct schedule_shape *shape, const struct check_attr *attr, char *error,
                   size_t error_size)
{
    size_t size = (size_t)shape->map->size, count = shape->count, n = attr->in_place ? 1 : 2;
    struct check c = {.shape = shape, .attr = attr, .error = error, .error_size = error_size};
    c.players = calloc(size, sizeof *c.players);
    c.channels = calloc(size * size, sizeof *c.channels);
    c.symbols = calloc(size * count * n + 1, sizeof *c.symbols);
    int err = -ENOMEM;
    if (!c.players || !c.channels || !c.symbols)
        goto free_all;
    for (size_t r = 0; r < size; r++) {
        struct player *player = &c.players[r];
        player->input = c.symbols + r * count * n;
        player->result = player->input + (n - 1) * count;
        for (size_t e = 0; e < count; e++)
            player->input[e] = (struct symbol){(uint64_t)1 << r, r * 2654435761u + 1};
        schedule_begin(&player->schedule, shape, (int)r);
        come_to_next(player);
    }
    err = play(&c);
    if (!err)
        err = judge(&c);
    drop_parcels(&c);
free_all:
    free(c.symbols);
    free(c.channels);
    free(c.players);
    return err;
}
