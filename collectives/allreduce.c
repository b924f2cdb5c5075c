/* SPDX-License-Identifier: MIT */
/* AllReduce: opening a plan, running it, pricing it. The algorithms are in schedule_*.c. */
#include "collectives/allreduce_plan.h"
#include "collectives/simulate.h"
#include "transport/link.h"
#include "transport/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What the ranks tell each other on opening. */
struct hello {
    uint64_t area;
    uint32_t algorithm, queue_pairs, slice_bytes;
    uint32_t crowded; /* more ranks than cores here */
    int32_t status;
};

static int attr_check(struct sstar_world *world, const struct sstar_allreduce_attr *attr)
{
    if ((unsigned)attr->algorithm > SSTAR_HIERARCHICAL)
        return report_set(&world->report, -EINVAL, "allreduce: there is no algorithm %d",
                          (int)attr->algorithm);
    if (attr->slice_bytes && (attr->slice_bytes < 8 || attr->slice_bytes > 1u << 26))
        return report_set(&world->report, -EINVAL,
                          "allreduce: slices of %u bytes; 8 to 64 MiB are possible",
                          attr->slice_bytes);
    return 0;
}

static int map_world(struct sstar_allreduce *plan)
{
    struct sstar_world *world = plan->world;
    int *node_of = malloc((size_t)world->size * sizeof *node_of);
    if (!node_of)
        return report_set(&world->report, -ENOMEM, "allreduce: out of memory");
    for (int rank = 0; rank < world->size; rank++)
        node_of[rank] = sstar_node_of(world, rank);
    int err = node_map_init(&plan->map, world->size, node_of);
    free(node_of);
    return err ? report_set(&world->report, err, "allreduce: out of memory") : 0;
}

static void settle(struct sstar_allreduce *plan, const struct sstar_allreduce_attr *attr)
{
    const struct sstar_config *config = &plan->world->config;
    const struct sstar_wire *wire = &config->wire;
    plan->algorithm = attr->algorithm;
    if (plan->algorithm == SSTAR_AUTO)
        plan->algorithm = plan->map.nodes < plan->map.size ? SSTAR_HIERARCHICAL : SSTAR_RING;
    plan->local_only = plan->algorithm == SSTAR_HIERARCHICAL && plan->map.nodes == 1;
    plan->queue_pairs = attr->queue_pairs         ? attr->queue_pairs
                        : config->queue_pairs > 0 ? (uint32_t)config->queue_pairs
                                                  : 4;
    plan->slice_given = attr->slice_bytes != 0;
    plan->slot_bytes = plan->slice_given ? attr->slice_bytes / 8 * 8 : PLAN_SLOT_BYTES;
    plan->cost_known = wire->alpha_us > 0 || wire->gap_us > 0 || wire->beta_gbps > 0;
    plan->cost = (struct sstar_cost){
        .alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps};
    plan->kernels = reduce_best();
}

/* Tell all whether we got what we need and where it is; all fail if one does. */
static int meet_others(struct sstar_allreduce *plan, const struct sstar_allreduce_attr *attr,
                       int status)
{
    struct sstar_world *world = plan->world;
    struct hello mine = {.area = (uintptr_t)plan->node.area,
                         .algorithm = attr->algorithm,
                         .queue_pairs = attr->queue_pairs,
                         .slice_bytes = attr->slice_bytes,
                         .crowded = world->ranks_on_host > world->cores,
                         .status = status};
    size_t size = (size_t)world->size;
    struct hello *all = calloc(size, sizeof *all + sizeof(uint64_t));
    if (!all)
        return report_set(&world->report, -ENOMEM, "allreduce: out of memory");
    uint64_t *areas = (uint64_t *)(all + size);
    int err = sstar_allgather(world, &mine, sizeof mine, all);
    for (int rank = 0; !err && !status && rank < world->size; rank++) {
        const struct hello *it = &all[rank];
        areas[rank] = it->area;
        if (it->crowded)
            plan->node.small_bytes = NODE_SLOT_BYTES;
        if (it->status)
            err = report_set(&world->report, it->status, "allreduce: rank %d could not open: %s",
                             rank, strerror(-it->status));
        else if (it->algorithm != mine.algorithm || it->queue_pairs != mine.queue_pairs ||
                 it->slice_bytes != mine.slice_bytes)
            err =
                report_set(&world->report, -EINVAL,
                           "allreduce: ranks %d and %d ask for different plans", world->rank, rank);
    }
    if (!err && !status)
        err = node_part_meet(&plan->node, areas);
    free(all);
    return status ? status : err;
}

static int open_links(struct sstar_allreduce *plan)
{
    struct sstar_world *world = plan->world;
    if (plan->local_only || world->size == 1)
        return 0;
    struct schedule schedule;
    struct schedule_shape shape = {plan->algorithm, &plan->map, 1, 1, 1};
    schedule_begin(&schedule, &shape, world->rank);
    const struct ring *ring = &schedule.ring;
    int peers[2] = {ring->previous, ring->next};
    int n = ring->n == 0 ? 0 : ring->previous == ring->next ? 1 : 2;
    struct sstar_link_attr attr = {
        .queue_pairs = plan->queue_pairs, .slots = PLAN_SLOTS, .slot_bytes = plan->slot_bytes};
    int err = sstar_links_open(world, peers, n, &attr, &plan->links);
    if (err)
        return err;
    if (n) {
        plan->previous = sstar_links_to(plan->links, ring->previous);
        plan->next = sstar_links_to(plan->links, ring->next);
    }
    plan->node.links = plan->links;
    return 0;
}

/* Accepts a plan that is half open. */
static void destroy(struct sstar_allreduce *plan)
{
    sstar_links_close(plan->links);
    node_part_close(&plan->node);
    node_map_destroy(&plan->map);
    free(plan);
}

int sstar_allreduce_open(struct sstar_world *world, const struct sstar_allreduce_attr *attr,
                         struct sstar_allreduce **plan)
{
    if (world->failed)
        return world->failed;
    struct sstar_allreduce_attr own = attr ? *attr : (struct sstar_allreduce_attr){0};
    struct sstar_allreduce *made = calloc(1, sizeof *made);
    if (!made)
        return report_set(&world->report, -ENOMEM, "allreduce: out of memory");
    made->world = world;
    /* A rank that fails here still meets the others, so that they hear of it. */
    int status = attr_check(world, &own);
    if (!status)
        status = map_world(made);
    if (!status) {
        settle(made, &own);
        status = node_part_open(&made->node, world, &made->map);
    }
    int err = meet_others(made, &own, status);
    if (!err)
        err = open_links(made);
    if (err) {
        destroy(made);
        return err;
    }
    *plan = made;
    return 0;
}

void sstar_allreduce_close(struct sstar_allreduce *plan)
{
    if (!plan)
        return;
    /* Nobody takes its area away while another still reads there; closing links is a barrier too.
     */
    if (!plan->links && !plan->world->failed)
        sstar_barrier(plan->world);
    destroy(plan);
}

static int run_check(struct sstar_world *world, const void *send, const void *recv, size_t count,
                     enum sstar_type type, enum sstar_op op)
{
    if ((unsigned)type >= SSTAR_TYPES || (unsigned)op >= SSTAR_OPS)
        return report_set(&world->report, -EINVAL, "allreduce: there is no type %d or operation %d",
                          (int)type, (int)op);
    if (count > (size_t)1 << 48 || (count && (!send || !recv)))
        return report_set(&world->report, -EINVAL, "allreduce: %zu elements at %p, to %p", count,
                          send, recv);
    return 0;
}

int sstar_allreduce_run(struct sstar_allreduce *plan, const void *send, void *recv, size_t count,
                        enum sstar_type type, enum sstar_op op)
{
    struct sstar_world *world = plan->world;
    int err = world->failed ? world->failed : run_check(world, send, recv, count, type, op);
    if (err || count == 0)
        return err;
    const struct reduce_row *row = &plan->kernels->kernels[type];
    struct node_job job = {
        .send = send,
        .recv = recv,
        .count = count,
        .element_bytes = sstar_type_bytes(type),
        .kernel = row->op[op],
        .signature = (uint32_t)(count * 0x9e3779b1u ^ count >> 32) * 128 + (uint32_t)type * 8 + op,
    };
    err = plan->local_only ? node_all_reduce(&plan->node, &job) : execute_schedule(plan, &job);
    if (!err && op == SSTAR_AVG)
        row->divide(recv, count, (uint32_t)world->size);
    return err;
}

static void close_cached(struct sstar_world *world)
{
    sstar_allreduce_close(world->collectives);
    world->collectives = NULL;
}

int sstar_allreduce(struct sstar_world *world, const void *send, void *recv, size_t count,
                    enum sstar_type type, enum sstar_op op)
{
    if (!world->collectives) {
        struct sstar_allreduce *plan;
        int err = sstar_allreduce_open(world, NULL, &plan);
        if (err)
            return err;
        world->collectives = plan;
        world->collectives_close = close_cached;
    }
    return sstar_allreduce_run(world->collectives, send, recv, count, type, op);
}

int sstar_allreduce_price(const struct sstar_allreduce *plan, size_t count, enum sstar_type type,
                          const struct sstar_cost *cost, double *us)
{
    struct sstar_world *world = plan->world;
    if ((unsigned)type >= SSTAR_TYPES)
        return report_set(&world->report, -EINVAL, "allreduce: there is no type %d", (int)type);
    struct sstar_allreduce own = *plan; /* what it learns about slices is not kept */
    struct schedule_shape shape = plan_shape(&own, count, sstar_type_bytes(type));
    struct simulate_attr attr = {.cost = *cost,
                                 .port_per_rank = world->config.port_per_rank,
                                 .queue_pairs = plan->queue_pairs,
                                 .slots = PLAN_SLOTS,
                                 .element_bytes = sstar_type_bytes(type)};
    int err = simulate_schedule(&shape, &attr, us);
    return err ? report_set(&world->report, err, "allreduce: no price: %s", strerror(-err)) : 0;
}
