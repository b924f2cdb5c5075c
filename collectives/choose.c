/* SPDX-License-Identifier: MIT */
/*
 * Which algorithm, and slices of what size, for vectors of each class of sizes (four to a power of
 * two). The simulation is asked at powers of two; between them prices are taken to go straight.
 * Smaller slices must gain a tenth: each costs the ranks a message more, and what that takes is the
 * least certain part of a price. Rank 0 decides; the bits of a result depend on the algorithm,
 * never on the slices.
 */
#include "collectives/collective_plan.h"
#include "transport/world.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_SLICE = 512,
    ELEMENT_BYTES = 4,
    FIRST_POINT = 3, /* powers of two that are priced: 8 bytes */
    NEXT_POINT = 10, /* 1 KiB, and all from there */
    LAST_POINT = 27,
    POINTS = LAST_POINT + 1,
    MOST_STEPS = 100 * 1000,    /* of a simulation, */
    ALL_STEPS = 4 * 1000 * 1000 /* and of all that are made for a plan */
};
#define LEAST_GAIN  0.9 /* of the time with larger slices */
/* Prices are good to some 5 %. Of two that are as near, the one that passes more bytes through the
 * slots of links inside a node turns out the slower for long vectors: they leave the caches. */
#define FLAT_MARGIN 1.05

/* ---- sizes -------------------------------------------------------------------------------------
 */

unsigned plan_class_of(size_t bytes)
{
    if (bytes < 4)
        return (unsigned)bytes;
    unsigned top = 63 - (unsigned)__builtin_clzll(bytes);
    unsigned size_class = top * 4 + (unsigned)(bytes >> (top - 2) & 3);
    return size_class < PLAN_SIZE_CLASSES ? size_class : PLAN_SIZE_CLASSES - 1;
}

size_t plan_class_bytes(unsigned size_class)
{
    return size_class < 8 ? size_class & 3 : (size_t)(4 + size_class % 4) << (size_class / 4 - 2);
}

/* ---- shapes ------------------------------------------------------------------------------------
 */

struct schedule_shape plan_shape_of(const struct sstar_collective *plan, struct plan_choice choice,
                                    size_t count, size_t element_bytes)
{
    size_t slice = choice.slice_bytes / element_bytes;
    return (struct schedule_shape){.operation = plan->operation,
                                   .algorithm = (enum sstar_algorithm)choice.algorithm,
                                   .map = &plan->map,
                                   .count = count,
                                   .root = plan->root,
                                   .slice_elements = slice ? slice : 1,
                                   .window = PLAN_WINDOW,
                                   .channels = plan->rings};
}

static size_t total_bytes(const struct sstar_collective *plan, size_t count, size_t element_bytes)
{
    bool blocks = plan->operation == SSTAR_REDUCE_SCATTER || plan->operation == SSTAR_ALL_GATHER;
    return count * element_bytes * (blocks ? (size_t)plan->map.size : 1);
}

struct schedule_shape plan_shape(const struct sstar_collective *plan, size_t count,
                                 size_t element_bytes)
{
    size_t bytes = total_bytes(plan, count, element_bytes);
    return plan_shape_of(plan, plan->choices[plan_class_of(bytes)], count, element_bytes);
}

struct simulate_attr plan_simulation(const struct sstar_collective *plan,
                                     const struct sstar_cost *cost, size_t element_bytes)
{
    return (struct simulate_attr){.cost = *cost,
                                  .port_per_rank = plan->world->config.port_per_rank,
                                  .queue_pairs = plan->queue_pairs,
                                  .slots = PLAN_SLOTS,
                                  .element_bytes = element_bytes};
}

/* ---- prices ------------------------------------------------------------------------------------
 */

/* What the schedules cost at the points. */
struct prices {
    double us[SSTAR_ALGORITHMS][POINTS]; /* 0: not known */
    uint32_t slice_bytes[SSTAR_ALGORITHMS][POINTS];
    size_t steps_left;
};

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
static int price_point(const struct sstar_collective *plan, enum sstar_algorithm algorithm,
                       const struct sstar_cost *cost, int point, struct prices *prices)
{
    size_t bytes = (size_t)1 << point;
    size_t n = total_bytes(plan, 1, 1), count = bytes / ELEMENT_BYTES / n;
    struct simulate_attr attr = plan_simulation(plan, cost, ELEMENT_BYTES);
    double best = 0;
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
        if (best > 0 && us >= best * LEAST_GAIN)
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

/* The cheapest for a size between two points. */
static struct plan_choice cheapest(const struct sstar_collective *plan, const struct prices *prices,
                                   double bytes, int low, int high)
{
    struct plan_choice choice = {0};
    double best = INFINITY, share = (bytes - ldexp(1, low)) / (ldexp(1, high) - ldexp(1, low));
    share = fmin(fmax(share, 0), 1);
    bool several = plan->map.nodes < plan->map.size;
    for (int i = 0; i < SSTAR_ALGORITHMS; i++) {
        double a = prices->us[i][low], b = prices->us[i][high];
        if (!plan->candidates[i] || a <= 0 || b <= 0)
            continue;
        double us = a + share * (b - a);
        if (several && !algorithm_is_hierarchical((enum sstar_algorithm)i))
            us *= FLAT_MARGIN;
        if (us < best) {
            best = us;
            choice =
                (struct plan_choice){(uint32_t)i, prices->slice_bytes[i][share > 0.5 ? high : low]};
        }
    }
    return choice;
}

static int price_all(const struct sstar_collective *plan, struct prices *prices)
{
    prices->steps_left = ALL_STEPS;
    for (int point = FIRST_POINT; point < POINTS;
         point = point < NEXT_POINT ? NEXT_POINT : point + 1)
        for (int i = 0; i < SSTAR_ALGORITHMS; i++) {
            int err = plan->candidates[i] ? price_point(plan, (enum sstar_algorithm)i,
                                                        &plan->costs[i], point, prices)
                                          : 0;
            if (err)
                return report_set(&plan->world->report, err, "%s: no price: %s",
                                  sstar_operation_name(plan->operation), strerror(-err));
        }
    return 0;
}

/* Beyond what could be priced things stay as they are. */
static int decide(struct sstar_collective *plan)
{
    struct prices *prices = calloc(1, sizeof *prices);
    if (!prices)
        return report_set(&plan->world->report, -ENOMEM, "collectives: out of memory");
    int err = price_all(plan, prices);
    struct plan_choice last = plan->choices[0];
    for (unsigned c = 0; c < PLAN_SIZE_CLASSES && !err; c++) {
        double bytes = (double)plan_class_bytes(c);
        int low = FIRST_POINT, high = NEXT_POINT;
        while (high < LAST_POINT && bytes >= ldexp(1, high)) {
            low = high;
            high++;
        }
        struct plan_choice choice = cheapest(plan, prices, bytes, low, high);
        if (choice.algorithm)
            last = choice;
        plan->choices[c] = last;
    }
    free(prices);
    return err;
}

/* ---- choosing ----------------------------------------------------------------------------------
 */

struct told {
    int32_t err, has;
    struct plan_choice choices[PLAN_SIZE_CLASSES];
};

/* What rank 0 has becomes everybody's; has: whether it has all, else nothing changes. */
static int tell(struct sstar_collective *plan, int has)
{
    struct sstar_world *world = plan->world;
    struct told *all = calloc((size_t)world->size + 1, sizeof *all), *mine = all + world->size;
    if (!all)
        return world_fail(world, -ENOMEM, "collectives: out of memory");
    mine->err = has < 0 ? has : 0;
    mine->has = has > 0;
    memcpy(mine->choices, plan->choices, sizeof mine->choices);
    int err = sstar_allgather(world, mine, sizeof *mine, all);
    if (!err && all->err && world->rank)
        report_set(&world->report, all->err, "%s: rank 0 could not choose: %s",
                   sstar_operation_name(plan->operation), strerror(-all->err));
    if (!err && all->err)
        err = all->err;
    if (!err && all->has)
        memcpy(plan->choices, all->choices, sizeof all->choices);
    if (!err)
        err = all->has;
    free(all);
    return err;
}

int plan_choose(struct sstar_collective *plan)
{
    struct sstar_world *world = plan->world;
    int n = 0;
    uint32_t first = 0;
    for (uint32_t i = SSTAR_ALGORITHMS - 1; i > 0; i--)
        if (plan->candidates[i]) {
            first = i;
            n++;
        }
    for (int c = 0; c < PLAN_SIZE_CLASSES; c++)
        plan->choices[c] =
            (struct plan_choice){first, plan->slice_given ? plan->slot_bytes : PLAN_DEFAULT_SLICE};
    if (n == 1 && (!plan->shaped || plan->slice_given || plan->n_channels == 0))
        return 0;
    if (n > 1) {
        int read = tell(plan, world->rank ? 0 : tuning_read(plan));
        if (read)
            return read < 0 ? read : 0;
        int err = sstar_collective_measure(plan);
        if (err)
            return err;
    } else { /* the wire alone says how to cut */
        const struct sstar_wire *wire = &world->config.wire;
        plan->costs[first] = (struct sstar_cost){
            .alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps};
    }
    int err = world->rank ? 0 : decide(plan);
    if (!err && n > 1 && world->rank == 0)
        err = tuning_write(plan);
    int told = tell(plan, err ? err : 1);
    return told < 0 ? told : 0;
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
                    const struct sstar_cost *cost, size_t count, size_t element_bytes,
                    struct sstar_price *price)
{
    struct schedule_shape shape = plan_shape_of(plan, choice, count, element_bytes);
    struct simulate_attr attr = plan_simulation(plan, cost, element_bytes);
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
    struct plan_choice choice = plan->choices[plan_class_of(total_bytes(plan, count, bytes))];
    if (plan->measured)
        return price_of(plan, choice, &plan->costs[choice.algorithm], count, bytes, price);
    *price = (struct sstar_price){.algorithm = (enum sstar_algorithm)choice.algorithm};
    return 0;
}

/* One algorithm in its best slices; those of the choice if it is that. */
static int price_best(const struct sstar_collective *plan, enum sstar_algorithm algorithm,
                      const struct sstar_cost *wire, size_t count, size_t element_bytes,
                      struct sstar_price *price)
{
    size_t total = total_bytes(plan, count, element_bytes);
    struct plan_choice choice = plan->choices[plan_class_of(total)];
    struct sstar_cost cost = plan->costs[algorithm];
    if (wire) {
        cost.alpha_us = wire->alpha_us;
        cost.gap_us = wire->gap_us;
        cost.beta_gbps = wire->beta_gbps;
    }
    if (wire || choice.algorithm != algorithm) {
        struct prices *points = calloc(1, sizeof *points);
        if (!points)
            return report_set(&plan->world->report, -ENOMEM, "collectives: out of memory");
        int point = FIRST_POINT;
        while (point < LAST_POINT && (size_t)1 << point < total)
            point++;
        points->steps_left = ALL_STEPS;
        int err = price_point(plan, algorithm, &cost, point, points);
        choice = (struct plan_choice){algorithm, points->slice_bytes[algorithm][point]};
        free(points);
        if (err)
            return report_set(&plan->world->report, err, "%s: no price: %s",
                              sstar_operation_name(plan->operation), strerror(-err));
    }
    return price_of(plan, choice, &cost, count, element_bytes, price);
}

int sstar_collective_prices(const struct sstar_collective *plan, const struct sstar_cost *wire,
                            size_t count, enum sstar_type type,
                            struct sstar_price prices[SSTAR_ALGORITHMS])
{
    int n = 0, err = type_check(plan, type);
    for (int i = 0; i < SSTAR_ALGORITHMS && !err && plan->measured; i++) {
        if (!plan->candidates[i])
            continue;
        err = price_best(plan, (enum sstar_algorithm)i, wire, count, sstar_type_bytes(type),
                         &prices[n]);
        n += !err;
    }
    return err ? err : n;
}
