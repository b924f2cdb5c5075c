/* SPDX-License-Identifier: MIT */
/*
 * Lanes are sequential programs that meet only through bounded queues and the node's barriers, so
 * whether they come to an end, and with what messages, does not depend on the order in which they
 * are moved on (a Kahn network with bounded channels): one order proves all, as far as lanes of a
 * rank do not touch the same memory. For those that do there is attr->late_rank and late_lane: a
 * step that is not bound to come after one of the late lane comes before it, so if the result is
 * right with each lane late in turn, no order makes it wrong.
 */
#include "collectives/check_inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    while (most-- && (s = step_of(player, lane)) && check_may_run(c, rank, s)) {
        int err = check_step(c, rank, lane, s);
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
    return check_make_channels(c, rank);
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
