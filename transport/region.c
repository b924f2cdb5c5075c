/* SPDX-License-Identifier: MIT */
/* Registered memory: sstar_register and the regions of sstar_alloc memory. */
#include "transport/region.h"
#include "transport/links.h"
#include "transport/memory_private.h"
#include "transport/turn.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>

static bool wants_device(const struct sstar_world *world)
{
    return world->node_count > 1 || world->device;
}

int region_bind(struct sstar_region *region)
{
    if (region->mr)
        return 0;
    struct segment *segment = region->segment;
    if (segment && region != &segment->region) {
        int err = region_bind(&segment->region);
        region->mr = segment->region.mr;
        return err;
    }
    struct device *device;
    int err = device_get(region->world, &device);
    if (err)
        return err;
    return device_register(region->world, device, region->memory, region->size_bytes, &region->mr);
}

static void region_unbind(struct sstar_region *region)
{
    struct device *device = region->world->device;
    bool owner = !region->segment || region == &region->segment->region;
    if (region->mr && owner && device) {
        links_ring_all(region->world);
        device->verbs->dereg_mr(region->mr);
    }
    region->mr = NULL;
}

void segment_unbind(struct segment *segment)
{
    region_unbind(&segment->region);
}

void memory_unbind(struct sstar_world *world)
{
    struct node_memory *node = world->node_memory;
    if (!node)
        return;
    for (struct sstar_region *region = node->regions; region; region = region->next)
        region_unbind(region);
    for (int i = 0; i < DIRECTORY_ENTRIES; i++)
        if (node->segments[i])
            segment_unbind(node->segments[i]);
}

struct sstar_region *memory_region(struct sstar_world *world, const void *memory, size_t bytes,
                                   int *error)
{
    struct segment *segment = memory_segment(world, memory, bytes);
    *error = 0;
    if (!segment)
        return NULL;
    if (!segment->region.mr && wants_device(world))
        *error = region_bind(&segment->region);
    return *error ? NULL : &segment->region;
}

int sstar_register(struct sstar_world *world, void *memory, size_t size_bytes,
                   struct sstar_region **region)
{
    WORLD_TURN(world);
    if (world->failed)
        return world->failed;
    if (!memory || size_bytes == 0)
        return report_set(&world->report, -EINVAL,
                          "sstar_register: %zu bytes at %p cannot be meant", size_bytes, memory);
    struct sstar_region *made = calloc(1, sizeof *made);
    if (!made)
        return report_set(&world->report, -ENOMEM, "out of memory");
    *made = (struct sstar_region){.world = world,
                                  .memory = memory,
                                  .size_bytes = size_bytes,
                                  .segment = memory_segment(world, memory, size_bytes)};
    int err = wants_device(world) ? region_bind(made) : 0;
    if (err) {
        free(made);
        return err;
    }
    struct node_memory *node = world->node_memory;
    made->next = node->regions;
    if (made->next)
        made->next->previous = made;
    node->regions = made;
    if (made->segment)
        made->segment->users++;
    *region = made;
    return 0;
}

int sstar_deregister(struct sstar_region *region)
{
    if (!region)
        return 0;
    WORLD_TURN(region->world);
    struct node_memory *node = region->world->node_memory;
    region_unbind(region);
    if (region->segment)
        region->segment->users--;
    if (region->previous)
        region->previous->next = region->next;
    else
        node->regions = region->next;
    if (region->next)
        region->next->previous = region->previous;
    free(region);
    return 0;
}

void sstar_region_describe(const struct sstar_region *region, struct sstar_remote_region *out)
{
    *out = (struct sstar_remote_region){.address = (uintptr_t)region->memory,
                                        .size_bytes = region->size_bytes,
                                        .rkey = region->mr ? region->mr->rkey : 0,
                                        .rank = region->world->rank,
                                        .magic = REGION_MAGIC,
                                        .version = REGION_VERSION};
}
