/* SPDX-License-Identifier: MIT */
/* Which rank is on which node. */
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

int node_map_most(const struct node_map *map)
{
    int most = 0;
    for (int node = 0; node < map->nodes; node++)
        if (node_map_local_size(map, node) > most)
            most = node_map_local_size(map, node);
    return most;
}
