/* SPDX-License-Identifier: MIT */
/* Making a schedule: which algorithm, among whom, and what they all emit steps with. */
#include "collectives/schedule.h"

#include <errno.h>
#include <stdlib.h>

static bool has_blocks(const struct schedule_shape *shape)
{
    return shape->operation == SSTAR_REDUCE_SCATTER || shape->operation == SSTAR_ALL_GATHER;
}

size_t shape_total(const struct schedule_shape *shape)
{
    return shape->count * (has_blocks(shape) ? (size_t)shape->map->size : 1);
}

/* ---- ranges ------------------------------------------------------------------------------------
 */

struct range range_cut(struct range whole, size_t n, size_t i)
{
    size_t each = whole.count / n, extra = whole.count % n;
    return (struct range){whole.offset + each * i + (i < extra ? i : extra), each + (i < extra)};
}

size_t range_slices(size_t count, size_t most)
{
    return count / most + (count % most != 0);
}

/* ---- groups ------------------------------------------------------------------------------------
 */

struct group group_of_all(const struct schedule_shape *shape, int rank)
{
    return (struct group){.map = shape->map,
                          .n = shape->map->size,
                          .me = rank,
                          .kind = GROUP_RANKS,
                          .root = shape->root,
                          .range = {0, shape_total(shape)}};
}

/* Place of a rank in its node when that begins with its place `which`. */
static int turned(const struct node_map *map, int node, int local, int which)
{
    int size = node_map_local_size(map, node);
    return (local + size - which % size) % size;
}

static int place_in_node_order(const struct node_map *map, int rank, int which)
{
    int node = map->node_of[rank];
    return map->first[node] + turned(map, node, map->local_of[rank], which);
}

struct group group_in_node_order(const struct schedule_shape *shape, int rank, int which)
{
    struct group group = group_of_all(shape, rank);
    group.kind = GROUP_NODE_ORDER;
    group.which = which;
    group.me = place_in_node_order(shape->map, rank, which);
    group.root = place_in_node_order(shape->map, shape->root, which);
    return group;
}

int group_rank(const struct group *group, int place)
{
    const struct node_map *map = group->map;
    int root_node;
    switch (group->kind) {
    case GROUP_RANKS:
        return place;
    case GROUP_OWNERS:
        return node_map_in_turn(map, place, (uint32_t)group->which);
    case GROUP_LEADERS:
        root_node = map->node_of[group->which];
        return place == root_node ? group->which : map->members[map->first[place]];
    case GROUP_NODE_ORDER:
        break;
    }
    int node = map->node_of[map->members[place]], first = map->first[node];
    int size = node_map_local_size(map, node);
    return map->members[first + (place - first + group->which) % size];
}

struct range group_block(const struct group *group, const struct schedule_shape *shape, int place)
{
    if (group->kind == GROUP_OWNERS && has_blocks(shape)) {
        bool exists = group->which < node_map_local_size(group->map, place);
        size_t rank = (size_t)group_rank(group, place);
        return exists ? (struct range){rank * shape->count, shape->count} : (struct range){0, 0};
    }
    bool by_rank = shape->operation != SSTAR_ALL_REDUCE;
    return range_cut(group->range, (size_t)group->n,
                     (size_t)(by_rank ? group_rank(group, place) : place));
}

size_t group_block_most(const struct group *group, const struct schedule_shape *shape)
{
    return has_blocks(shape) ? shape->count : range_cut(group->range, (size_t)group->n, 0).count;
}

bool group_blocks_touch(const struct group *group, const struct schedule_shape *shape)
{
    return group->kind == GROUP_RANKS || !has_blocks(shape);
}

/* ---- emitting ----------------------------------------------------------------------------------
 */

void schedule_lane(struct schedule *schedule, int phase)
{
    if (schedule->n_lanes)
        schedule->lanes[schedule->n_lanes - 1].end = schedule->n_steps;
    schedule->lanes[schedule->n_lanes++] =
        (struct lane){.phase = phase, .first = schedule->n_steps, .end = schedule->n_steps};
}

void schedule_add(struct schedule *schedule, struct step step)
{
    if (schedule->n_steps == schedule->capacity) {
        size_t capacity = schedule->capacity ? 2 * schedule->capacity : 64;
        struct step *steps = realloc(schedule->steps, capacity * sizeof *steps);
        if (!steps) {
            schedule->err = -ENOMEM;
            return;
        }
        schedule->steps = steps;
        schedule->capacity = capacity;
    }
    if (!(step.what & STEP_RECEIVE))
        step.from[0] = -1;
    if (!(step.what & STEP_RECEIVE_2))
        step.from[1] = -1;
    if (!(step.what & STEP_SEND))
        step.to[0] = step.to[1] = -1;
    schedule->uses_work |= (step.what & (STEP_KEEP | STEP_PARTIAL)) != 0;
    schedule->steps[schedule->n_steps++] = step;
}

void exchange_add(struct exchange *exchange, unsigned what, struct range range)
{
    struct exchange_piece piece = {what, range};
    if (range.count == 0)
        return;
    if (exchange->n < EXCHANGE_PIECES) {
        exchange->few[exchange->n++] = piece;
        return;
    }
    int at = exchange->n - EXCHANGE_PIECES;
    if (at == exchange->more_size) {
        int size = 2 * at + EXCHANGE_PIECES;
        struct exchange_piece *more = realloc(exchange->more, (size_t)size * sizeof *more);
        exchange->failed |= !more;
        if (!more)
            return;
        exchange->more = more;
        exchange->more_size = size;
    }
    exchange->more[at] = piece;
    exchange->n++;
}

static const struct exchange_piece *piece_of(const struct exchange *exchange, int i)
{
    return i < EXCHANGE_PIECES ? &exchange->few[i] : &exchange->more[i - EXCHANGE_PIECES];
}

static size_t slices_of(const struct exchange *exchange, size_t most)
{
    size_t sum = 0;
    for (int i = 0; i < exchange->n; i++)
        sum += range_slices(piece_of(exchange, i)->range.count, most);
    return sum;
}

/* The slices of an exchange, one after the other. */
struct slices {
    const struct exchange *exchange;
    size_t left, most, done; /* done: of the piece */
    int piece;
};

static struct step next_slice(struct slices *it)
{
    const struct exchange_piece *piece = piece_of(it->exchange, it->piece);
    size_t n = range_slices(piece->range.count, it->most);
    struct range range = range_cut(piece->range, n, it->done++);
    if (it->done == n) {
        it->done = 0;
        it->piece++;
    }
    it->left--;
    return (struct step){.what = (uint16_t)piece->what,
                         .from = {it->exchange->peer, -1},
                         .to = {it->exchange->peer, -1},
                         .offset = range.offset,
                         .count = range.count};
}

static void empty(struct schedule *schedule, struct exchange *exchange)
{
    if (exchange->failed)
        schedule->err = -ENOMEM;
    free(exchange->more);
    *exchange = (struct exchange){0};
}

void schedule_exchange(struct schedule *schedule, const struct schedule_shape *shape,
                       struct exchange *out, struct exchange *in)
{
    size_t most = shape->slice_elements;
    struct slices outs = {.exchange = out, .left = slices_of(out, most), .most = most};
    struct slices ins = {.exchange = in, .left = slices_of(in, most), .most = most};
    for (size_t i = 0; outs.left || ins.left; i++) {
        if (i >= shape->window && ins.left)
            schedule_add(schedule, next_slice(&ins));
        if (outs.left)
            schedule_add(schedule, next_slice(&outs));
    }
    empty(schedule, out);
    empty(schedule, in);
}

/* ---- making ------------------------------------------------------------------------------------
 */

static const struct {
    enum sstar_operation operation;
    enum sstar_algorithm algorithm;
    schedule_function *function;
    bool by_ranks; /* places are ranks; else they stand in the order of the nodes, so that
                      neighbours share a node where they can */
} table[] = {
    {SSTAR_ALL_REDUCE, SSTAR_RING, schedule_ring, false},
    {SSTAR_ALL_REDUCE, SSTAR_DOUBLING, schedule_doubling, false},
    {SSTAR_ALL_REDUCE, SSTAR_HALVING, schedule_halving, false},
    {SSTAR_ALL_REDUCE, SSTAR_CIRCULANT, schedule_circulant, false},
    {SSTAR_ALL_REDUCE, SSTAR_TREE, schedule_tree, false},
    {SSTAR_REDUCE_SCATTER, SSTAR_RING, schedule_ring, false},
    {SSTAR_REDUCE_SCATTER, SSTAR_CIRCULANT, schedule_circulant, true},
    {SSTAR_ALL_GATHER, SSTAR_RING, schedule_ring, false},
    {SSTAR_ALL_GATHER, SSTAR_CIRCULANT, schedule_circulant, true},
    {SSTAR_BROADCAST, SSTAR_RING, schedule_chain, false},
    {SSTAR_BROADCAST, SSTAR_DOUBLING, schedule_binomial, false},
    {SSTAR_BROADCAST, SSTAR_TREE, schedule_tree, false},
    {SSTAR_REDUCE, SSTAR_RING, schedule_chain, false},
    {SSTAR_REDUCE, SSTAR_DOUBLING, schedule_binomial, false},
    {SSTAR_REDUCE, SSTAR_TREE, schedule_tree, false},
    {SSTAR_BARRIER, SSTAR_DOUBLING, schedule_dissemination, false},
};
enum { TABLE = sizeof table / sizeof *table };

static int find(enum sstar_operation operation, enum sstar_algorithm algorithm)
{
    for (int i = 0; i < TABLE; i++)
        if (table[i].operation == operation && table[i].algorithm == algorithm)
            return i;
    return -1;
}

schedule_function *schedule_function_of(enum sstar_operation operation,
                                        enum sstar_algorithm algorithm)
{
    int i = find(operation, algorithm);
    return i < 0 ? NULL : table[i].function;
}

bool schedule_exists(enum sstar_operation operation, enum sstar_algorithm algorithm)
{
    if (algorithm_is_hierarchical(algorithm))
        algorithm = algorithm_across(algorithm);
    return find(operation, algorithm) >= 0;
}

int schedule_make(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    schedule->n_steps = 0;
    schedule->n_lanes = 0;
    schedule->uses_work = false;
    schedule->err = 0;
    bool one_each = shape->map->nodes == shape->map->size;
    bool hierarchical = algorithm_is_hierarchical(shape->algorithm) && !one_each;
    int i = find(shape->operation, algorithm_is_hierarchical(shape->algorithm)
                                       ? algorithm_across(shape->algorithm)
                                       : shape->algorithm);
    if (shape->map->size == 1 && shape->operation != SSTAR_BARRIER) {
        schedule_lane(schedule, 0);
        schedule_add(schedule, (struct step){.what = STEP_STORE, .count = shape->count});
    } else if (hierarchical) {
        schedule_hierarchical(schedule, shape, rank);
    } else if (i < 0) {
        schedule->err = -EINVAL;
    } else {
        struct group group =
            table[i].by_ranks ? group_of_all(shape, rank) : group_in_node_order(shape, rank, 0);
        table[i].function(schedule, shape, &group);
    }
    if (schedule->n_lanes)
        schedule->lanes[schedule->n_lanes - 1].end = schedule->n_steps;
    return schedule->err;
}

void schedule_destroy(struct schedule *schedule)
{
    free(schedule->steps);
    *schedule = (struct schedule){0};
}
