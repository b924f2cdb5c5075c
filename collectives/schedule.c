/* SPDX-License-Identifier: MIT */
/* Making a schedule: which algorithm, among whom, and what they all emit steps with. */
#include "collectives/schedule.h"

#include <errno.h>
#include <stdlib.h>

size_t shape_total(const struct schedule_shape *shape)
{
    bool blocks = shape->operation == SSTAR_REDUCE_SCATTER || shape->operation == SSTAR_ALL_GATHER;
    return shape->count * (blocks ? (size_t)shape->map->size : 1);
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
                          .range = {0, shape_total(shape)}};
}

/* Place of a rank in its node when that begins with its place `which`. */
static int turned(const struct node_map *map, int node, int local, int which)
{
    int size = node_map_local_size(map, node);
    return (local + size - which % size) % size;
}

struct group group_in_node_order(const struct schedule_shape *shape, int rank, int which)
{
    struct group group = group_of_all(shape, rank);
    int node = shape->map->node_of[rank];
    group.kind = GROUP_NODE_ORDER;
    group.which = which;
    group.me =
        shape->map->first[node] + turned(shape->map, node, shape->map->local_of[rank], which);
    return group;
}

int group_rank(const struct group *group, int place)
{
    const struct node_map *map = group->map;
    if (group->kind == GROUP_RANKS)
        return place;
    if (group->kind == GROUP_OWNERS)
        return map->members[map->first[place] + group->which];
    int node = map->node_of[map->members[place]], first = map->first[node];
    int size = node_map_local_size(map, node);
    return map->members[first + (place - first + group->which) % size];
}

struct range group_block(const struct group *group, const struct schedule_shape *shape, int place)
{
    bool by_rank = shape->operation != SSTAR_ALL_REDUCE;
    return range_cut(group->range, (size_t)group->n,
                     (size_t)(by_rank ? group_rank(group, place) : place));
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
    if (range.count == 0)
        return;
    exchange->pieces[exchange->n].what = what;
    exchange->pieces[exchange->n++].range = range;
}

static size_t slices_of(const struct exchange *exchange, size_t most)
{
    size_t sum = 0;
    for (int i = 0; i < exchange->n; i++)
        sum += range_slices(exchange->pieces[i].range.count, most);
    return sum;
}

static struct step slice_of(const struct exchange *exchange, size_t most, size_t slice)
{
    int i = 0;
    size_t n;
    while (slice >= (n = range_slices(exchange->pieces[i].range.count, most))) {
        slice -= n;
        i++;
    }
    struct range range = range_cut(exchange->pieces[i].range, n, slice);
    return (struct step){.what = (uint16_t)exchange->pieces[i].what,
                         .from = {exchange->peer, -1},
                         .to = {exchange->peer, -1},
                         .offset = range.offset,
                         .count = range.count};
}

void schedule_exchange(struct schedule *schedule, const struct schedule_shape *shape,
                       const struct exchange *out, const struct exchange *in)
{
    size_t most = shape->slice_elements, window = shape->window;
    size_t n_out = slices_of(out, most), n_in = slices_of(in, most);
    for (size_t i = 0; i < n_out || i < n_in + window; i++) {
        if (i >= window && i - window < n_in)
            schedule_add(schedule, slice_of(in, most, i - window));
        if (i < n_out)
            schedule_add(schedule, slice_of(out, most, i));
    }
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
    if (!algorithm_is_hierarchical(algorithm))
        return find(operation, algorithm) >= 0;
    return (operation == SSTAR_ALL_REDUCE || operation == SSTAR_BARRIER) &&
           find(operation, algorithm_across(algorithm)) >= 0;
}

int schedule_make(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    schedule->n_steps = 0;
    schedule->n_lanes = 0;
    schedule->uses_work = false;
    schedule->err = 0;
    int i = find(shape->operation, shape->algorithm);
    if (shape->map->size == 1 && shape->operation != SSTAR_BARRIER) {
        schedule_lane(schedule, 0);
        schedule_add(schedule, (struct step){.what = STEP_STORE, .count = shape->count});
    } else if (algorithm_is_hierarchical(shape->algorithm)) {
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
