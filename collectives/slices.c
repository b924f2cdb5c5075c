/* SPDX-License-Identifier: MIT */
/*
 * Into how many slices a block is cut. Where the wire is known the simulation is asked, once for
 * each class of sizes (four to a power of two). More slices must gain a tenth: each costs the ranks
 * a message, which the simulation is not told of here. The choice depends on nothing but the plan,
 * so all ranks come to the same.
 */
#include "collectives/allreduce_plan.h"
#include "collectives/simulate.h"
#include "transport/link.h"
#include "transport/world.h"

enum {
    MAX_SLICES = PLAN_SLOTS / 4,     /* more gains nothing, and costs gaps and credit */
    DEFAULT_SLICE_BYTES = 32 * 1024, /* where the wire is not known */
    MAX_SIMULATED = 200 * 1000,      /* messages of a simulation */
};
#define LEAST_GAIN 0.9 /* of the time with fewer slices */

/* How many places the ring has, and how many elements go round it. */
static size_t block_of(const struct sstar_allreduce *plan, size_t count)
{
    size_t places = (size_t)plan->map.size;
    struct hierarchy hierarchy = hierarchy_of(&plan->map);
    if (plan->algorithm == SSTAR_HIERARCHICAL && !hierarchy.ring_only) {
        places = (size_t)plan->map.nodes;
        count = (count + (size_t)hierarchy.owners - 1) / (size_t)hierarchy.owners;
    }
    return (count + places - 1) / places;
}

static uint32_t slices_of(size_t block_bytes, size_t slice_bytes)
{
    size_t n = (block_bytes + slice_bytes - 1) / slice_bytes;
    return n < 1 ? 1 : n > MAX_SLICES ? MAX_SLICES : (uint32_t)n;
}

/* Class of a size, and the least size of a class. */
static unsigned class_of(size_t bytes)
{
    if (bytes < 4)
        return (unsigned)bytes;
    unsigned top = 63 - (unsigned)__builtin_clzll(bytes);
    return top * 4 + (unsigned)(bytes >> (top - 2) & 3);
}

static size_t class_bytes(unsigned class)
{
    return class < 8 ? class & 3 : (size_t)(4 + class % 4) << (class / 4 - 2);
}

static uint32_t ask_simulation(struct sstar_allreduce *plan, unsigned class)
{
    const size_t element_bytes = 4;
    struct simulate_attr attr = {.cost = plan->cost,
                                 .port_per_rank = plan->world->config.port_per_rank,
                                 .queue_pairs = plan->queue_pairs,
                                 .slots = PLAN_SLOTS,
                                 .element_bytes = element_bytes};
    uint32_t chosen = 1;
    double best = 0;
    for (uint32_t slices = 1; slices <= MAX_SLICES; slices *= 2) {
        struct schedule_shape shape = {.algorithm = plan->algorithm,
                                       .map = &plan->map,
                                       .count = class_bytes(class) / element_bytes,
                                       .slices = slices,
                                       .slice_elements = plan->slot_bytes / element_bytes};
        double us;
        if (simulate_messages(&shape) * (uint64_t)plan->map.size > MAX_SIMULATED)
            return slices_of(block_of(plan, shape.count) * element_bytes, DEFAULT_SLICE_BYTES);
        if (simulate_schedule(&shape, &attr, &us) != 0)
            return chosen;
        if (slices == 1 || us < best * LEAST_GAIN) {
            best = us;
            chosen = slices;
        }
    }
    return chosen;
}

bool plan_leaves_waiting(const struct sstar_allreduce *plan, const struct schedule_shape *shape,
                         size_t element_bytes)
{
    if (!plan->cost_known)
        return false;
    const struct sstar_cost *cost = &plan->cost;
    size_t slice = (block_of(plan, shape->count) - 1) / shape->slices + 1;
    if (slice > shape->slice_elements)
        slice = shape->slice_elements;
    double bytes = (double)(slice * element_bytes + LINK_TRAILER_BYTES);
    double each_us = cost->gap_us + (cost->beta_gbps > 0 ? bytes / (cost->beta_gbps * 1e3) : 0);
    int sharing = plan->world->config.port_per_rank ? 1 : plan->node.size;
    /* Twice, for what was there before and for credit. */
    return 2 * each_us * shape->slices * sharing > cost->alpha_us;
}

struct schedule_shape plan_shape(struct sstar_allreduce *plan, size_t count, size_t element_bytes)
{
    struct schedule_shape shape = {.algorithm = plan->algorithm,
                                   .map = &plan->map,
                                   .count = count,
                                   .slices = 1,
                                   .slice_elements = plan->slot_bytes / element_bytes};
    if (!plan->links)
        return shape;
    size_t block_bytes = block_of(plan, count) * element_bytes;
    if (plan->slice_given || !plan->cost_known) {
        shape.slices =
            slices_of(block_bytes, plan->slice_given ? plan->slot_bytes : DEFAULT_SLICE_BYTES);
        return shape;
    }
    unsigned class = class_of(count * element_bytes);
    if (plan->slices[class] == 0)
        plan->slices[class] = (uint8_t)ask_simulation(plan, class);
    shape.slices = plan->slices[class];
    return shape;
}
