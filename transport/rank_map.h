/* SPDX-License-Identifier: MIT */
/* Who shares a host and a node with whom. Private. */
#ifndef SSTAR_TRANSPORT_RANK_MAP_H
#define SSTAR_TRANSPORT_RANK_MAP_H

#include "transport/rendezvous.h"
#include "transport/world.h"

/*
 * Fill the world's ranks, nodes and ranks_on_host from what the ranks said ([size]); rank, size and
 * config are set. Ranks share a host if boot id, pid namespace and user are the same. Ranks of a
 * host form nodes of config.ranks_per_node in rank order (0: one node). On failure what was
 * allocated stays in the world, which its owner frees.
 */
int rank_map(struct sstar_world *world, const struct hello *hellos);

#endif
