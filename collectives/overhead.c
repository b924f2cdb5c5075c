/* SPDX-License-Identifier: MIT */
/*
 * o and the time of a node step, measured in the world and on the links that the AllReduce will
 * use, by all its ranks at once: what a rank adds to a message depends on how many of them share
 * its core.
 *
 * For o every rank sends a small message to its successor on the ring, waits for that of its
 * predecessor, and so on: a chain of hops, as long as an AllReduce has it, so that as many of the
 * rounds as of the AllReduces meet with a disturbance and the medians of both mean the same; so
 * with the node steps. What the chain takes on the wire alone, ports shared as they are, is what a
 * ring AllReduce of single elements takes in the simulation (schedule_ring.c: message k+1 follows
 * upon receiving message k). The rest is o.
 */
#include "collectives/allreduce_plan.h"
#include "collectives/fit.h"
#include "collectives/simulate.h"
#include "transport/link.h"
#include "transport/wait.h"
#include "transport/world.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MESSAGE_BYTES = 8,
    LEAST_HOPS = 4,   /* in a row; else as many as the ring of an AllReduce has */
    LEAST_ROUNDS = 7, /* and the median counts */
    MOST_ROUNDS = 101,
    WARM_ROUNDS = 2,
    NODE_ROUNDS = 51,
};
#define HOPS_US 40e3 /* to be spent on hops, if the wire is fast enough */

static int send_one(struct sstar_allreduce *plan, uint64_t *ticket)
{
    struct waiter w = wait_begin(plan->world, "a slot to measure o", link_peer(plan->next), 0);
    void *payload;
    int err;
    while ((err = link_reserve(plan->next, MESSAGE_BYTES, &payload)) == -EAGAIN)
        if ((err = plan_turn(plan, &w)) < 0)
            return err;
    if (err)
        return err;
    memset(payload, 0, MESSAGE_BYTES);
    while ((err = link_commit_ticket(plan->next, MESSAGE_BYTES, 0, ticket)) == -EAGAIN)
        if ((err = plan_turn(plan, &w)) < 0)
            return err;
    return err;
}

static int receive_one(struct sstar_allreduce *plan)
{
    struct waiter w =
        wait_begin(plan->world, "a message to measure o by", link_peer(plan->previous), 0);
    struct message message;
    int got, err;
    while ((got = link_receive(plan->previous, &message)) == 0)
        if ((err = plan_turn(plan, &w)) < 0)
            return err;
    if (got < 0)
        return got;
    link_release(plan->previous, 1);
    return 0;
}

/* Nothing is left waiting for the wire when the ranks go on to the next round. */
static int see_off(struct sstar_allreduce *plan, uint64_t ticket)
{
    struct waiter w = wait_begin(plan->world, "a message to leave", link_peer(plan->next), 0);
    int err = 0;
    while (err >= 0 && !sstar_link_done(plan->next, ticket))
        err = plan_turn(plan, &w);
    return err < 0 ? err : 0;
}

/* Behind a barrier; ranks that are not on the ring only wait for the others. */
static int time_hops(struct sstar_allreduce *plan, int hops, double *us)
{
    uint64_t ticket = 0;
    int err = sstar_fast_barrier(plan->world);
    uint64_t begin = clock_ns();
    if (!plan->next)
        hops = 0;
    for (int i = 0; i < hops && !err; i++) {
        err = send_one(plan, &ticket);
        if (!err)
            err = receive_one(plan);
    }
    *us = (double)(clock_ns() - begin) / 1e3;
    return err || !hops ? err : see_off(plan, ticket);
}

/* Those of one AllReduce: the only one of a single node, or that before and that after the ring. */
static int time_node_steps(struct sstar_allreduce *plan, int steps, double *us)
{
    static const int64_t one = 1;
    int64_t sum = 0;
    struct node_job job = {.send = &one,
                           .recv = &sum,
                           .count = 1,
                           .element_bytes = sizeof one,
                           .kernel = plan->kernels->kernels[SSTAR_INT64].op[SSTAR_SUM]};
    int err = sstar_fast_barrier(plan->world);
    uint64_t begin = clock_ns();
    if (!err && steps == 1)
        err = node_all_reduce(&plan->node, &job);
    if (!err && steps == 2)
        err = node_reduce_scatter(&plan->node, &job);
    if (!err && steps == 2)
        err = node_all_gather(&plan->node, &job);
    *us = (double)(clock_ns() - begin) / 1e3;
    return err;
}

/* The median of rounds, each as long as the slowest rank took. */
static int median_of(struct sstar_allreduce *plan,
                     int (*time)(struct sstar_allreduce *plan, int n, double *us), int n,
                     int rounds, double *us)
{
    struct sstar_world *world = plan->world;
    size_t size = (size_t)world->size, each = (size_t)rounds;
    double *mine = calloc(each * (size + 1), sizeof *mine), *all = mine + each;
    if (!mine)
        return world_fail(world, -ENOMEM, "allreduce: out of memory");
    int err = 0;
    for (int i = -WARM_ROUNDS; i < rounds && !err; i++)
        err = time(plan, n, &mine[i < 0 ? 0 : i]);
    if (!err)
        err = sstar_allgather(world, mine, each * sizeof *mine, all);
    for (size_t i = 0; i < each && !err; i++)
        for (size_t rank = 0; rank < size; rank++)
            mine[i] = fmax(rank ? mine[i] : 0, all[rank * each + i]);
    if (!err)
        *us = fit_quantile(mine, rounds, 0.5);
    free(mine);
    return err;
}

static int measure_overhead(struct sstar_allreduce *plan, const struct sstar_cost *wire,
                            double *overhead_us)
{
    struct hierarchy hierarchy = hierarchy_of(&plan->map);
    bool split = plan->algorithm == SSTAR_HIERARCHICAL && !hierarchy.ring_only;
    size_t places = (size_t)(split ? plan->map.nodes : plan->map.size);
    size_t turns = 2 * places - 2, passes = (LEAST_HOPS + turns - 1) / turns;
    /* As many elements as passes of the ring take, each a message of its own. */
    struct schedule_shape shape = {.algorithm = plan->algorithm,
                                   .map = &plan->map,
                                   .count =
                                       places * passes * (split ? (size_t)hierarchy.owners : 1),
                                   .slices = 1,
                                   .slice_elements = 1};
    struct simulate_attr attr = {
        .cost = {.alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps},
        .port_per_rank = plan->world->config.port_per_rank,
        .queue_pairs = plan->queue_pairs,
        .slots = PLAN_SLOTS,
        .element_bytes = MESSAGE_BYTES};
    double wire_us = 0, us = 0;
    int hops = (int)(turns * passes), err = simulate_schedule(&shape, &attr, &wire_us);
    if (err)
        return world_fail(plan->world, err, "allreduce: no price of %d hops: %s", hops,
                          strerror(-err));
    double rounds = wire_us > 0 ? HOPS_US / wire_us : MOST_ROUNDS;
    rounds = fmin(fmax(rounds, LEAST_ROUNDS), MOST_ROUNDS);
    err = median_of(plan, time_hops, hops, (int)rounds, &us);
    if (!err)
        *overhead_us = fmax(0, (us - wire_us) / hops);
    return err;
}

int sstar_measure_overhead(struct sstar_allreduce *plan, struct sstar_cost *cost)
{
    struct sstar_world *world = plan->world;
    if (world->failed)
        return world->failed;
    struct hierarchy hierarchy = hierarchy_of(&plan->map);
    double overhead_us = 0, node_us = 0;
    int err = 0;
    if (plan->links)
        err = measure_overhead(plan, cost, &overhead_us);
    if (!err && plan->algorithm == SSTAR_HIERARCHICAL && !hierarchy.ring_only) {
        int steps = plan->local_only ? 1 : 2;
        err = median_of(plan, time_node_steps, steps, NODE_ROUNDS, &node_us);
        node_us /= steps;
    }
    if (!err) {
        cost->overhead_us = overhead_us;
        cost->node_us = node_us;
    }
    return err;
}
