/* SPDX-License-Identifier: MIT */
/*
 * Memory that the ranks of a node share. Private.
 *
 * Memory is a memfd, sealed against shrinking and allocated in full, which peers open through
 * /proc/PID/fd and map once; a directory in each rank's first segment says which fd holds which
 * addresses. Ranks that are threads of one process use the same mapping.
 */
#ifndef SSTAR_TRANSPORT_MEMORY_H
#define SSTAR_TRANSPORT_MEMORY_H

#include "transport/transport.h"

/* Opened by sstar_world_open after the rank map is known: maps the directory of each rank of this
 * node and proves that it is shared. Collective. */
int node_memory_open(struct sstar_world *world);
void node_memory_close(struct sstar_world *world);

/* The address, in this process, of `bytes` at `address` as rank `rank` of this node knows them,
 * which must lie in memory that it got from sstar_alloc. NULL, with errno, if it does not. Maps on
 * first use. */
void *memory_peer(struct sstar_world *world, int rank, uint64_t address, size_t bytes);
/* The world fails because memory_peer has just found nothing where `rank` said that it has memory:
 * with the cause, if that is in this process, and after news of that rank. `who` waits for it. */
int memory_peer_missing(struct sstar_world *world, int rank, const char *who);
/* The region of our own sstar_alloc memory that holds `memory`, registered on first use; NULL if
 * it is other memory (then *error is 0) or registering failed (then *error is negative). */
struct sstar_region *memory_region(struct sstar_world *world, const void *memory, size_t bytes,
                                   int *error);

#endif
