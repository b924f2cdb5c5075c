/* SPDX-License-Identifier: MIT */
/* Node maps, and walking through a schedule. */
#include "collectives/schedule.h"

#include <errno.h>
#include <stdlib.h>

int node_map_init(struct node_map *map, int size, const int *node_of)
{
    int nodes = 0;
    for (int r = 0; r < size; r++)
        if (node_of[r] >= nodes)
            nodes = node_of[r] + 1;
    /* One block: node_of, local_of, members, first. */
    int *block = calloc((size_t)size * 3 + (size_t)nodes + 1, sizeof *block);
    if (!block)
        return -ENOMEM;
    *map = (struct node_map){.size = size,
                             .nodes = nodes,
                             .node_of = block,
                             .local_of = block + size,
                             .members = block + 2 * size,
                             .first = block + 3 * size};
    int at = 0;
    for (int node = 0; node < nodes; node++) {
        map->first[node] = at;
        for (int r = 0; r < size; r++) {
            if (node_of[r] != node)
                continue;
            map->node_of[r] = node;
            map->local_of[r] = at - map->first[node];
            map->members[at++] = r;
        }
    }
    map->first[nodes] = at;
    return 0;
}

void node_map_destroy(struct node_map *map)
{
    free(map->node_of);
    *map = (struct node_map){0};
}

int node_map_least(const struct node_map *map)
{
    int least = map->size;
    for (int node = 0; node < map->nodes; node++)
        if (node_map_local_size(map, node) < least)
            least = node_map_local_size(map, node);
    return least;
}

void schedule_begin(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    *schedule = (struct schedule){.stage = SCHEDULE_BEFORE};
    if (shape->algorithm == SSTAR_HIERARCHICAL)
        schedule_hierarchical(schedule, shape, rank);
    else
        schedule_ring(schedule, shape, rank);
    schedule->positions = schedule->ring.n ? ring_positions(&schedule->ring) : 0;
}

static bool next_of_ring(struct schedule *schedule, struct step *step)
{
    if (schedule->second.what) {
        *step = schedule->second;
        schedule->second.what = 0;
        return true;
    }
    while (schedule->position < schedule->positions) {
        struct step steps[2];
        int n = ring_steps(&schedule->ring, schedule->position++, steps);
        if (n == 0)
            continue;
        *step = steps[0];
        if (n == 2)
            schedule->second = steps[1];
        return true;
    }
    return false;
}

bool schedule_next(struct schedule *schedule, struct step *step)
{
    switch (schedule->stage) {
    case SCHEDULE_BEFORE:
        schedule->stage = SCHEDULE_RING;
        *step = schedule->before;
        if (step->what)
            return true;
        /* fall through */
    case SCHEDULE_RING:
        if (next_of_ring(schedule, step))
            return true;
        schedule->stage = SCHEDULE_AFTER;
        /* fall through */
    case SCHEDULE_AFTER:
        schedule->stage = SCHEDULE_END;
        *step = schedule->after;
        return step->what != 0;
    case SCHEDULE_END:
        break;
    }
    return false;
}
