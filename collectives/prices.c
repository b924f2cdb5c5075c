/* SPDX-License-Identifier: MIT */
/* What a plan's schedules cost. Smaller slices must gain more than by what rounds differed: each
 * costs the ranks a message more, and what that takes is the least certain part of a price. */
#include "collectives/collective_plan.h"
#include "transport/world.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_SLICE = 512,
    ELEMENT_BYTES = 4,
    MOST_STEPS = 50 * 1000, /* of a simulation */
};
/* What they must gain where an algorithm was asked for and only the wire is known: without o every
 * division would seem to be worth it. No choice between algorithms depends on it. */
#define UNMEASURED_SPREAD 0.1

struct simulate_attr plan_simulation(const struct sstar_collective *plan,
                                     const struct sstar_cost *cost, enum sstar_type type)
{
    return (struct simulate_attr){
        .cost = *cost,
        .port_per_rank = plan->world->config.port_per_rank,
        .queue_pairs = plan->queue_pairs,
        .slots = PLAN_SLOTS,
        .element_bytes = sstar_type_bytes(type),
        .wire_element_bytes = execute_shortens(plan, type) ? sstar_type_bytes(plan->wire_type) : 0};
}

static struct sstar_cost wire_of(const struct sstar_cost *cost)
{
    return (struct sstar_cost){
        .alpha_us = cost->alpha_us, .gap_us = cost->gap_us, .beta_gbps = cost->beta_gbps};
}

/* Ranks that take time may by chance put messages into a better order, which no real ranks will do
 * all the time: a price is never less than the wire's. */
static int play(const struct schedule_shape *shape, const struct simulate_attr *attr, double *us)
{
    struct simulate_attr alone = *attr;
    double wire_us = 0;
    alone.cost = wire_of(&attr->cost);
    int err = simulate_schedule(shape, attr, us);
    if (!err)
        err = simulate_schedule(shape, &alone, &wire_us);
    if (!err)
        *us = fmax(*us, wire_us);
    return err;
}

/* The best slices for a vector of `bytes`, none of which is larger than with the larger ones. */
int plan_price_point(const struct sstar_collective *plan, enum sstar_algorithm algorithm,
                     const struct sstar_cost *cost, int point, struct plan_prices *prices)
{
    size_t bytes = (size_t)1 << point;
    size_t n = plan_total_bytes(plan, 1, 1), count = bytes / ELEMENT_BYTES / n;
    struct simulate_attr attr = plan_simulation(plan, cost, SSTAR_FLOAT32);
    double best = 0, spread = plan->measured ? plan->spread : UNMEASURED_SPREAD;
    uint32_t chosen = plan->slot_bytes;
    int in_vain = 0;
    for (uint32_t slice = plan->slot_bytes; slice >= LEAST_SLICE && in_vain < 3; slice /= 2) {
        if (slice >= 2 * bytes && slice > 2 * LEAST_SLICE)
            continue;
        struct plan_choice choice = {algorithm, slice};
        struct schedule_shape shape = plan_shape_of(plan, choice, count ? count : 1, ELEMENT_BYTES);
        double us;
        attr.most_steps = prices->steps_left < MOST_STEPS ? prices->steps_left : MOST_STEPS;
        size_t steps = 0;
        attr.steps = &steps;
        int err = play(&shape, &attr, &us);
        prices->steps_left -= steps < prices->steps_left ? steps : prices->steps_left;
        if (err == -E2BIG)
            break;
        if (err)
            return err;
        in_vain++;
        if (best > 0 && us * (1 + spread) >= best)
            continue; /* the same slices, perhaps: a block may be smaller than both */
        in_vain = 0;
        best = us;
        chosen = slice;
        if (plan->slice_given)
            break;
    }
    prices->us[algorithm][point] = best;
    prices->slice_bytes[algorithm][point] = chosen;
    return 0;
}

/* ---- asking ------------------------------------------------------------------------------------
 */

struct sstar_cost sstar_collective_cost(const struct sstar_collective *plan,
                                        enum sstar_algorithm algorithm)
{
    return (unsigned)algorithm < SSTAR_ALGORITHMS ? plan->costs[algorithm] : (struct sstar_cost){0};
}

enum sstar_algorithm sstar_collective_choice(const struct sstar_collective *plan, size_t count,
                                             enum sstar_type type)
{
    return plan_shape(plan, count, sstar_type_bytes(type)).algorithm;
}

static int price_of(const struct sstar_collective *plan, struct plan_choice choice,
                    const struct sstar_cost *cost, size_t count, enum sstar_type type,
                    struct sstar_price *price)
{
    struct schedule_shape shape = plan_shape_of(plan, choice, count, sstar_type_bytes(type));
    struct simulate_attr attr = plan_simulation(plan, cost, type);
    struct simulate_attr alone = attr;
    struct simulate_parts parts, wire;
    alone.cost = wire_of(cost);
    int err = simulate_parts(&shape, &attr, &parts);
    if (!err)
        err = simulate_parts(&shape, &alone, &wire);
    if (err)
        return report_set(&plan->world->report, err, "%s: no price: %s",
                          sstar_operation_name(plan->operation), strerror(-err));
    if (parts.us < wire.us) /* see play */
        parts = wire;
    *price = (struct sstar_price){shape.algorithm, parts.us,      wire.us,      parts.alpha_us,
                                  parts.gap_us,    parts.beta_us, parts.work_us};
    return 0;
}

static int type_check(const struct sstar_collective *plan, enum sstar_type type)
{
    return (unsigned)type < SSTAR_TYPES
               ? 0
               : report_set(&plan->world->report, -EINVAL, "%s: there is no type %d",
                            sstar_operation_name(plan->operation), (int)type);
}

int sstar_collective_price(const struct sstar_collective *plan, size_t count, enum sstar_type type,
                           struct sstar_price *price)
{
    int err = type_check(plan, type);
    if (err)
        return err;
    size_t bytes = sstar_type_bytes(type);
    struct plan_choice choice = plan->choices[plan_class_of(plan_total_bytes(plan, count, bytes))];
    if (plan->measured)
        return price_of(plan, choice, &plan->costs[choice.algorithm], count, type, price);
    *price = (struct sstar_price){.algorithm = (enum sstar_algorithm)choice.algorithm};
    return 0;
}

/* One algorithm in its best slices; those of the choice if it is that. */
static int price_best(const struct sstar_collective *plan, enum sstar_algorithm algorithm,
                      const struct sstar_cost *wire, size_t count, enum sstar_type type,
                      struct sstar_price *price)
{
    size_t total = plan_total_bytes(plan, count, sstar_type_bytes(type));
    struct plan_choice choice = plan->choices[plan_class_of(total)];
    struct sstar_cost cost = plan->costs[algorithm];
    if (wire) {
        cost.alpha_us = wire->alpha_us;
        cost.gap_us = wire->gap_us;
        cost.beta_gbps = wire->beta_gbps;
    }
    if (wire || choice.algorithm != algorithm) {
        struct plan_prices *points = calloc(1, sizeof *points);
        if (!points)
            return report_set(&plan->world->report, -ENOMEM, "collectives: out of memory");
        int point = PLAN_FIRST_POINT;
        while (point < PLAN_LAST_POINT && (size_t)1 << point < total)
            point++;
        points->steps_left = SIZE_MAX;
        int err = plan_price_point(plan, algorithm, &cost, point, points);
        choice = (struct plan_choice){algorithm, points->slice_bytes[algorithm][point]};
        free(points);
        if (err)
            return report_set(&plan->world->report, err, "%s: no price: %s",
                              sstar_operation_name(plan->operation), strerror(-err));
    }
    return price_of(plan, choice, &cost, count, type, price);
}

int sstar_collective_prices(const struct sstar_collective *plan, const struct sstar_cost *wire,
                            size_t count, enum sstar_type type,
                            struct sstar_price prices[SSTAR_ALGORITHMS])
{
    int n = 0, err = type_check(plan, type);
    for (int i = 0; i < SSTAR_ALGORITHMS && !err && plan->measured; i++) {
        if (!plan->candidates[i])
            continue;
        err = price_best(plan, (enum sstar_algorithm)i, wire, count, type, &prices[n]);
        n += !err;
    }
    return err ? err : n;
}
