/* SPDX-License-Identifier: MIT */
/*
 * Lanes are sequential programs that meet only through bounded queues and the node's barriers, so
 * whether they come to an end, and with what messages, does not depend on the order in which they
 * are moved on (a Kahn network with bounded channels): one order proves all, as far as lanes of a
 * rank do not touch the same memory. For those that do there is attr->late_rank and late_lane: a
 * step that is not bound to come after one of the late lane comes before it, so if the result is
 * right with each lane late in turn, no order makes it wrong. Credits are taken to come back as
 * late as link.h allows, when half the slots are owed.
 */
#include "collectives/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An element of the vector: what is in it, and where it belongs. 0: nothing. */
struct symbol {
    uint32_t value, element;
};

struct parcel {
    struct parcel *next;
    size_t count;
    uint64_t *known; /* of a barrier */
    struct symbol symbols[];
};
struct channel {
    int to, number;       /* rank, channel of the steps */
    int sender, receiver; /* lanes; -1 until used */
    struct parcel *head, **tail;
    uint64_t sent, received;
};

/* Elements of the vector that a memory holds. */
struct memory {
    struct symbol *symbols;
    size_t offset, count;
};

struct player {
    struct schedule schedule;
    size_t at[SCHEDULE_LANES]; /* next step */
    int phase, lanes_left;     /* of the phase */
    uint64_t node_steps;       /* that this rank has come to */
    struct memory input, result, work;
    struct symbol *block;
    struct channel *channels; /* to others */
    int n_channels;
    uint64_t
        *known[3]; /* barrier: who has come, as far as heard; as it was at the last two meets */
};

struct check {
    const struct schedule_shape *shape;
    const struct check_attr *attr;
    struct check_values *values;
    struct player *players;
    size_t words; /* of a set of ranks */
    char *error;
    size_t error_size;
};

#define FAIL(check, code, ...) (snprintf((check)->error, (check)->error_size, __VA_ARGS__), (code))

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

/* All that the schedule of a rank sends on, beforehand. */
static int make_channels(struct check *c, int rank)
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

static bool may_run(struct check *c, int rank, const struct step *s)
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

/* The inputs of the node's ranks, in their order. */
static int reduce_node(struct check *c, int rank, const struct step *s, struct symbol *out)
{
    const struct node_map *map = c->shape->map;
    int node = map->node_of[rank], first = map->first[node], err = 0;
    for (int i = first; i < map->first[node + 1] && !err; i++) {
        const struct symbol *input = symbols_of(&c->players[map->members[i]].input, s);
        if (i == first)
            memcpy(out, input, s->count * sizeof *out);
        else
            err = add_symbols(c, rank, out, input, s->count, false);
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

static void node_all_gather(struct check *c, int rank)
{
    const struct node_map *map = c->shape->map;
    struct symbol *result = c->players[rank].result.symbols;
    int owners = hierarchy_of(map).owners, node = map->node_of[rank];
    for (int j = 0; j < owners; j++) {
        size_t offset, count;
        hierarchy_slice(owners, c->shape->count, j, &offset, &count);
        int owner = map->members[map->first[node] + j];
        if (owner != rank && count)
            memcpy(result + offset, c->players[owner].result.symbols + offset,
                   count * sizeof *result);
    }
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
    if (s->what & STEP_NODE_REDUCE_SCATTER) {
        int err = s->count ? reduce_node(c, rank, s, player->block) : 0;
        if (!err && s->count)
            memcpy(symbols_of(&player->result, s), player->block, s->count * sizeof *player->block);
        return err;
    }
    if (s->what & STEP_NODE_ALL_GATHER) {
        node_all_gather(c, rank);
        return 0;
    }
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

/* ---- playing -----------------------------------------------------------------------------------
 */

/* The lane's next step in the present phase, or NULL. */
static const struct step *step_of(const struct player *player, int lane)
{
    const struct lane *l = &player->schedule.lanes[lane];
    return l->phase == player->phase && player->at[lane] < l->end
               ? &player->schedule.steps[player->at[lane]]
               : NULL;
}

/* The phase is done: go to the next that has something to do. Coming to a node's step is told. */
static void come_to_phase(struct check *c, struct player *player)
{
    const struct schedule *schedule = &player->schedule;
    int last = schedule->n_lanes ? schedule->lanes[schedule->n_lanes - 1].phase : -1;
    player->lanes_left = 0;
    while (player->lanes_left == 0 && player->phase <= last) {
        player->phase++;
        for (int lane = 0; lane < schedule->n_lanes; lane++) {
            const struct step *s = step_of(player, lane);
            player->lanes_left += s != NULL;
            if (s && s->what & STEP_NODE) {
                player->node_steps++;
                memcpy(player->known[1 + player->node_steps % 2], player->known[0], c->words * 8);
            }
        }
    }
    if (player->lanes_left == 0)
        player->node_steps += 1u << 30; /* waits for nobody any more */
}

static int take_steps(struct check *c, int rank, int lane, uint64_t most, bool *moved)
{
    struct player *player = &c->players[rank];
    const struct step *s;
    while (most-- && (s = step_of(player, lane)) && may_run(c, rank, s)) {
        int err = s->what & STEP_NODE ? node_step(c, rank, s) : wire_step(c, rank, lane, s);
        if (err)
            return err;
        *moved = true;
        player->at[lane]++;
        if (!step_of(player, lane) && --player->lanes_left == 0)
            come_to_phase(c, player);
    }
    return 0;
}

/* Move all but the late lane on, from a place that the seed chooses. */
static int round_of_all(struct check *c, uint64_t random, bool *moved)
{
    int size = c->shape->map->size, err = 0;
    for (int i = 0; i < size; i++) {
        int rank = (int)((random >> 33) % (unsigned)size + (unsigned)i) % size;
        int lanes = c->players[rank].schedule.n_lanes;
        for (int l = 0; l < lanes && !err; l++) {
            int lane = (int)(((random >> 25) + (unsigned)l) % (unsigned)lanes);
            if (rank != c->attr->late_rank || lane != c->attr->late_lane)
                err = take_steps(c, rank, lane, (random >> 20) % 7 + 1, moved);
        }
        if (err)
            return err;
    }
    return 0;
}

static int play(struct check *c)
{
    int size = c->shape->map->size, err = 0;
    uint64_t random = c->attr->seed;
    for (bool moved = true; moved && !err;) {
        moved = false;
        random = random * 6364136223846793005u + 1442695040888963407u;
        err = round_of_all(c, random, &moved);
        if (!err && !moved && c->attr->late_lane >= 0)
            err = take_steps(c, c->attr->late_rank, c->attr->late_lane, 1, &moved);
    }
    for (int rank = 0; rank < size && !err; rank++)
        for (int lane = 0; lane < c->players[rank].schedule.n_lanes && !err; lane++) {
            const struct step *s = step_of(&c->players[rank], lane);
            if (s)
                err = FAIL(c, -EDEADLK, "deadlock: rank %d, lane %d waits at elements %zu + %zu",
                           rank, lane, s->offset, s->count);
        }
    return err;
}

/* ---- judging -----------------------------------------------------------------------------------
 */

static int judge_element(struct check *c, int rank, size_t element, struct symbol it)
{
    const struct schedule_shape *shape = c->shape;
    if (it.element != element)
        return FAIL(c, -EBADMSG, "rank %d: in place of element %zu stands %u", rank, element,
                    it.element);
    if (shape->operation == SSTAR_ALL_GATHER || shape->operation == SSTAR_BROADCAST) {
        int owner =
            shape->operation == SSTAR_BROADCAST ? shape->root : (int)(element / shape->count);
        return it.value == check_leaf(c->values, owner)
                   ? 0
                   : FAIL(c, -EBADMSG, "rank %d: element %zu is not that of rank %d", rank, element,
                          owner);
    }
    if (!check_is_whole(c->values, it.value))
        return FAIL(c, -EBADMSG, "rank %d: element %zu lacks contributions", rank, element);
    if (shape->operation == SSTAR_ALL_REDUCE &&
        it.value != c->players[0].result.symbols[element].value)
        return FAIL(c, -EBADMSG, "rank %d: element %zu is summed in another order", rank, element);
    return 0;
}

static int judge_rank(struct check *c, int rank)
{
    const struct player *player = &c->players[rank];
    const struct memory *result = &player->result, *input = &player->input;
    for (size_t i = 0; i < result->count; i++) {
        int err = judge_element(c, rank, result->offset + i, result->symbols[i]);
        if (err)
            return err;
    }
    for (size_t i = 0; !c->attr->in_place && i < input->count; i++)
        if (input->symbols[i].value != check_leaf(c->values, rank))
            return FAIL(c, -EBADMSG, "rank %d: its input was overwritten", rank);
    for (int r = 0; c->shape->operation == SSTAR_BARRIER && r < c->shape->map->size; r++)
        if (!(player->known[0][r / 64] >> (r % 64) & 1))
            return FAIL(c, -EBADMSG, "rank %d: left the barrier before rank %d came", rank, r);
    for (int i = 0; i < player->n_channels; i++)
        if (player->channels[i].head)
            return FAIL(c, -EPROTO, "a message of rank %d to rank %d is left over", rank,
                        player->channels[i].to);
    return 0;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

/* What the operation gives to a rank; result and input overlap if it is in place. */
static void lay_out(const struct check *c, int rank, struct player *player)
{
    const struct schedule_shape *shape = c->shape;
    size_t total = shape_total(shape), own = (size_t)rank * shape->count;
    bool root = rank == shape->root;
    if (shape->operation == SSTAR_BARRIER)
        total = 0;
    player->input = player->result = (struct memory){.count = total};
    switch (shape->operation) {
    case SSTAR_REDUCE_SCATTER:
        player->result = (struct memory){.offset = own, .count = shape->count};
        break;
    case SSTAR_ALL_GATHER:
        player->input = (struct memory){.offset = own, .count = shape->count};
        break;
    case SSTAR_BROADCAST:
        player->input.count = root ? total : 0;
        break;
    case SSTAR_REDUCE:
        player->result.count = root ? total : 0;
        break;
    default:
        break;
    }
}

static int set_up(struct check *c, int rank)
{
    struct player *player = &c->players[rank];
    size_t total = shape_total(c->shape);
    lay_out(c, rank, player);
    player->block = calloc(4 * total + 1, sizeof *player->block);
    player->known[0] = calloc(3 * c->words, 8);
    int err = schedule_make(&player->schedule, c->shape, rank);
    if (!player->block || !player->known[0] || err)
        return err ? err : -ENOMEM;
    struct symbol *input = player->block + total, *result = input + total;
    if (c->attr->in_place && player->result.count)
        result = input;
    player->input.symbols = input + player->input.offset;
    player->result.symbols = result + player->result.offset;
    player->work = (struct memory){.count = total};
    player->work.symbols =
        player->result.count == total ? player->result.symbols : player->block + 3 * total;
    for (size_t i = 0; i < player->input.count; i++)
        player->input.symbols[i] =
            (struct symbol){check_leaf(c->values, rank), (uint32_t)(player->input.offset + i)};
    player->known[1] = player->known[0] + c->words;
    player->known[2] = player->known[1] + c->words;
    player->known[0][rank / 64] |= (uint64_t)1 << rank % 64;
    player->phase = -1;
    for (int lane = 0; lane < player->schedule.n_lanes; lane++)
        player->at[lane] = player->schedule.lanes[lane].first;
    come_to_phase(c, player);
    return make_channels(c, rank);
}

static void tear_down(struct player *player)
{
    for (int i = 0; i < player->n_channels; i++)
        for (struct parcel *p = player->channels[i].head, *next; p; p = next) {
            next = p->next;
            free(p);
        }
    free(player->channels);
    free(player->known[0]);
    free(player->block);
    schedule_destroy(&player->schedule);
}

int check_schedule(const struct schedule_shape *shape, const struct check_attr *attr, char *error,
                   size_t error_size)
{
    int size = shape->map->size, err = 0;
    struct check c = {.shape = shape, .attr = attr, .error = error, .error_size = error_size};
    c.words = ((size_t)size + 63) / 64;
    c.players = calloc((size_t)size, sizeof *c.players);
    c.values = check_values_new(size);
    if (!c.players || !c.values)
        err = -ENOMEM;
    for (int rank = 0; rank < size && !err; rank++)
        err = set_up(&c, rank);
    if (!err)
        err = play(&c);
    for (int rank = 0; rank < size && !err; rank++)
        err = judge_rank(&c, rank);
    for (int rank = 0; c.players && rank < size; rank++)
        tear_down(&c.players[rank]);
    free(c.players);
    check_values_free(c.values);
    return err;
}
