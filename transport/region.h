/* SPDX-License-Identifier: MIT */
/*
 * Registered memory as links see it. Private to transport.
 *
 * In a world of one node nothing is registered until a link through the NIC needs it: such a world
 * must not fail for want of a device that it does not use.
 */
#ifndef SSTAR_TRANSPORT_REGION_H
#define SSTAR_TRANSPORT_REGION_H

#include "transport/memory.h"
#include "transport/verbs.h"

enum { REGION_MAGIC = 0x47525353, REGION_VERSION = 1 };

struct segment;

struct sstar_region {
    struct sstar_world *world;
    void *memory;
    size_t size_bytes;
    struct ibv_mr *mr;       /* NULL until registered; the segment's if there is one */
    struct segment *segment; /* sstar_alloc memory that holds it, or NULL */
    struct sstar_region *previous, *next;
};

/* Register with the NIC if that has not happened yet. */
int region_bind(struct sstar_region *region);
/* Take back every registration: before the device goes. */
void memory_unbind(struct sstar_world *world);

/* Whether this rank of our node is a thread of this very process. */
bool memory_same_process(const struct sstar_world *world, int rank);

static inline bool region_holds(const struct sstar_region *region, const void *memory, size_t bytes)
{
    uintptr_t offset = (uintptr_t)memory - (uintptr_t)region->memory;
    return offset <= region->size_bytes && bytes <= region->size_bytes - offset;
}

#endif
