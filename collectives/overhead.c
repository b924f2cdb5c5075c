/* SPDX-License-Identifier: MIT */
/*
 * What the ranks add to the wire, measured in the world and on the links that will be used, by all
 * ranks at once: it depends on how many of them share a core.
 *
 * A short and a long vector go through the schedule; o is that overhead with which the simulation
 * takes as long for the short one, and gamma that time of a byte with which it does for the long
 * one. The node's steps are timed by themselves. Of the rounds (rounds.h) the median counts for a
 * message, whose wait for a core is part of o, and the lower quartile for a byte: others' time
 * slices are no work of ours that would grow with the vector.
 */
#include "collectives/collective_plan.h"
#include "collectives/rounds.h"
#include "collectives/wire_cost.h"
#include "transport/turn.h"
#include "transport/world.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_ROUNDS = 7,
    MOST_ROUNDS = 51,
    WARM_ROUNDS = 2,
    LONG_BYTES = 64 * 1024, /* a vector by which gamma is measured, in whole messages: what slices
                               gain by overtaking one another is not gamma */
    HALVINGS = 40,
};
#define ROUNDS_US 20e3 /* to be spent on the rounds of one vector, if the wire is fast enough */

/* What is timed: a schedule, or with no algorithm the node's two steps. */
struct trial {
    struct sstar_collective *plan;
    struct schedule_shape shape;
    char *send, *recv;
};

static int node_steps(struct sstar_collective *plan, const struct trial *trial)
{
    struct node_job job = {
        .send = trial->send,
        .recv = trial->recv,
        .count = trial->shape.count,
        .element_bytes = sizeof(float),
        .kernel = plan->kernels->kernels[SSTAR_FLOAT32].op[SSTAR_SUM],
        .sharing = {.owners = node_map_least(&plan->map), .total = trial->shape.count}};
    const enum node_act acts[] = {NODE_REDUCE_SCATTER, NODE_ALL_GATHER};
    bool one = plan->map.nodes == 1;
    int err = 0;
    plan->node.learned = false;
    for (int i = 0; i < (one ? 1 : 2) && !err; i++) {
        node_begin(&plan->node, one ? NODE_ALL_REDUCE : acts[i], &job);
        struct waiter w = wait_begin(plan->world, "its part in the node's collective", -1, 0);
        int done;
        while ((done = node_advance(&plan->node)) == 0 && !err) {
            w.peer = node_awaited(&plan->node);
            err = wait_step(&w);
        }
        if (done < 0)
            err = done;
    }
    return err;
}

static int time_one(const struct trial *trial, struct round_time *time)
{
    struct sstar_collective *plan = trial->plan;
    int err = sstar_fast_barrier(plan->world);
    time->begin_ns = clock_ns();
    if (!err && trial->shape.algorithm == SSTAR_AUTO)
        err = node_steps(plan, trial);
    else if (!err)
        err =
            execute_begin(plan, &trial->shape, trial->send, trial->recv, SSTAR_FLOAT32, SSTAR_SUM);
    if (!err && trial->shape.algorithm != SSTAR_AUTO)
        err = execute_wait(plan);
    time->end_ns = clock_ns();
    return err;
}

enum { MEDIAN, QUARTILE, STATISTICS };

static int time_rounds(const struct trial *trial, int rounds, double us[STATISTICS])
{
    static const double shares[STATISTICS] = {[MEDIAN] = 0.5, [QUARTILE] = 0.25};
    struct round_time times[MOST_ROUNDS];
    int err = 0;
    for (int i = -WARM_ROUNDS; i < rounds && !err; i++)
        err = time_one(trial, &times[i < 0 ? 0 : i]);
    return err ? err
               : rounds_quantiles(trial->plan->world, times, (size_t)rounds, shares, STATISTICS,
                                  us);
}

/* The value of one figure of the cost with which the simulation takes `us`; 0 if it takes longer
 * without. */
static int solve(const struct trial *trial, struct sstar_cost *cost, double *figure, double us)
{
    double low = 0, high = us, got;
    int err = 0;
    for (int i = 0; i < HALVINGS && !err && high - low > 1e-3 * high; i++) {
        *figure = i ? (low + high) / 2 : 0;
        struct simulate_attr attr = plan_simulation(trial->plan, cost, SSTAR_FLOAT32);
        err = simulate_schedule(&trial->shape, &attr, &got);
        if (!err && i == 0 && got >= us)
            return 0;
        if (!err)
            *(got < us ? &low : &high) = *figure;
    }
    return err ? world_fail(trial->plan->world, err, "collectives: no price: %s", strerror(-err))
               : 0;
}

static int rounds_for(const struct trial *trial, const struct sstar_cost *cost, int *rounds)
{
    struct simulate_attr attr = plan_simulation(trial->plan, cost, SSTAR_FLOAT32);
    double us = 0;
    int err = simulate_schedule(&trial->shape, &attr, &us);
    double n = us > 0 ? ROUNDS_US / us : MOST_ROUNDS;
    *rounds = (int)fmin(fmax(n, LEAST_ROUNDS), MOST_ROUNDS);
    return err ? world_fail(trial->plan->world, err, "collectives: no price: %s", strerror(-err))
               : 0;
}

static size_t count_of(const struct sstar_collective *plan, size_t bytes)
{
    bool blocks = plan->operation == SSTAR_REDUCE_SCATTER || plan->operation == SSTAR_ALL_GATHER;
    size_t elements = bytes / sizeof(float), size = (size_t)plan->map.size;
    if (plan->operation == SSTAR_BARRIER)
        return 0;
    elements = elements > size ? elements : size;
    return blocks ? elements / size : elements;
}

/* One vector through the schedule. */
static int time_vector(struct trial *trial, enum sstar_algorithm algorithm, size_t bytes,
                       const struct sstar_cost *cost, double us[STATISTICS])
{
    struct sstar_collective *plan = trial->plan;
    int rounds = 0;
    trial->shape = plan_shape_of(plan, (struct plan_choice){algorithm, plan->slot_bytes},
                                 count_of(plan, bytes), sizeof(float));
    int err = rounds_for(trial, cost, &rounds);
    return err ? err : time_rounds(trial, rounds, us);
}

static int measure_algorithm(struct trial *trial, enum sstar_algorithm algorithm,
                             struct sstar_cost *cost, double *spread)
{
    struct sstar_cost calm = *cost; /* as in the quarter of the rounds that nothing disturbed */
    double us[STATISTICS];
    int err = time_vector(trial, algorithm, 0, cost, us);
    if (!err)
        err = solve(trial, cost, &cost->overhead_us, us[MEDIAN]);
    if (!err)
        err = solve(trial, &calm, &calm.overhead_us, us[QUARTILE]);
    if (!err && trial->plan->operation != SSTAR_BARRIER) {
        err = time_vector(trial, algorithm, LONG_BYTES, &calm, us);
        if (!err)
            err = solve(trial, &calm, &calm.byte_ns, us[QUARTILE]);
        cost->byte_ns = calm.byte_ns;
    }
    if (!err && us[QUARTILE] > 0)
        *spread = us[MEDIAN] / us[QUARTILE] - 1;
    return err;
}

static int measure_node(struct trial *trial, struct sstar_cost *cost)
{
    struct sstar_collective *plan = trial->plan;
    int steps = plan->map.nodes == 1 ? 1 : 2, err = 0;
    double us[2][STATISTICS] = {0};
    const size_t counts[] = {1, LONG_BYTES / sizeof(float)};
    for (int i = 0; i < 2 && !err; i++) {
        trial->shape = (struct schedule_shape){.count = counts[i]};
        err = time_rounds(trial, i ? LEAST_ROUNDS : MOST_ROUNDS, us[i]);
    }
    cost->node_us = us[0][MEDIAN] / steps;
    cost->node_byte_ns = fmax(0, us[1][QUARTILE] - us[0][QUARTILE]) * 1e3 / LONG_BYTES / steps;
    return err;
}

static int measure(struct trial *trial, const struct sstar_cost *wire)
{
    struct sstar_collective *plan = trial->plan;
    struct sstar_cost node = *wire;
    int err = 0, n = 0;
    bool needed = false;
    double sum = 0;
    for (int i = SSTAR_HIERARCHICAL; i < SSTAR_ALGORITHMS; i++)
        needed |= plan->candidates[i];
    if (needed && plan->map.nodes < plan->map.size)
        err = measure_node(trial, &node);
    for (int i = 0; i < SSTAR_ALGORITHMS && !err; i++) {
        if (!plan->candidates[i])
            continue;
        bool hierarchical = algorithm_is_hierarchical((enum sstar_algorithm)i);
        plan->costs[i] = hierarchical ? node : *wire;
        if (plan->map.size == 1 || (hierarchical && plan->map.nodes == 1))
            continue;
        double spread = 0;
        err = measure_algorithm(trial, (enum sstar_algorithm)i, &plan->costs[i], &spread);
        sum += spread;
        n++;
    }
    plan->spread = n ? sum / n : 0;
    return err;
}

int sstar_collective_measure(struct sstar_collective *plan)
{
    WORLD_TURN(plan->world);
    struct sstar_world *world = plan->world;
    if (world->failed)
        return world->failed;
    if (plan->measured)
        return 0;
    struct trial trial = {.plan = plan};
    struct sstar_cost wire;
    void *memory;
    size_t bytes = LONG_BYTES + (size_t)world->size * 64;
    int err = wire_cost(world, &wire);
    if (!err)
        err = sstar_alloc(world, 2 * bytes, &memory);
    if (err)
        return err;
    trial.send = memory;
    trial.recv = trial.send + bytes;
    err = measure(&trial, &wire);
    plan->measured = !err;
    int freed = world->failed ? 0 : sstar_barrier(world); /* nobody reads there any more */
    sstar_free(world, memory);
    return err ? err : freed;
}
