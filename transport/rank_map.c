/* SPDX-License-Identifier: MIT */
#include "transport/rank_map.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool same_host(const struct hello *a, const struct hello *b)
{
    return a->boot_id[0] && strcmp(a->boot_id, b->boot_id) == 0 &&
           a->pid_namespace == b->pid_namespace && a->uid == b->uid;
}

/* Number the nodes: ranks of one host in rank order, in groups of ranks_per_node (0: all). */
static int number_nodes(struct sstar_world *world, const struct hello *hellos, int *first_of_host,
                        int *seen_on_host)
{
    const int group = world->config.ranks_per_node;
    int nodes = 0;
    for (int r = 0; r < world->size; r++) {
        int host = 0; /* named by its first rank */
        while (host < r && (first_of_host[host] != host || !same_host(&hellos[host], &hellos[r])))
            host++;
        first_of_host[r] = host;
        int place = seen_on_host[host]++;
        struct rank_info *info = &world->ranks[r];
        info->local_rank = group > 0 ? place % group : place;
        info->node = -1;
        if (info->local_rank == 0)
            info->node = nodes++;
        for (int q = r - 1; info->node < 0; q--) /* the last rank before us on this host */
            if (first_of_host[q] == host)
                info->node = world->ranks[q].node;
        info->same_host = same_host(&hellos[r], &hellos[world->rank]) || r == world->rank;
        world->ranks_on_host += info->same_host;
    }
    return nodes;
}

int rank_map(struct sstar_world *world, const struct hello *hellos)
{
    const size_t size = (size_t)world->size;
    int *first_of_host = calloc(size, sizeof(int)), *seen_on_host = calloc(size, sizeof(int));
    world->ranks = calloc(size, sizeof(*world->ranks));
    world->node_members = calloc(size, sizeof(int));
    world->node_first_member = calloc(size + 1, sizeof(int));
    int err = -ENOMEM;
    if (!first_of_host || !seen_on_host || !world->ranks || !world->node_members ||
        !world->node_first_member)
        goto done;
    err = 0;
    world->node_count = number_nodes(world, hellos, first_of_host, seen_on_host);
    int at = 0;
    for (int node = 0; node < world->node_count; node++) {
        world->node_first_member[node] = at;
        for (int r = 0; r < world->size; r++)
            if (world->ranks[r].node == node)
                world->node_members[at++] = r;
    }
    world->node_first_member[world->node_count] = at;
    for (int r = 0; r < world->size; r++) {
        world->ranks[r].pid = hellos[r].pid;
        memcpy(world->ranks[r].host, hellos[r].host, sizeof(world->ranks[r].host));
    }
done:
    free(first_of_host);
    free(seen_on_host);
    return err < 0 ? report_set(&world->report, err, "no memory left for %zu ranks", size) : 0;
}
