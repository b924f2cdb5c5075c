/* SPDX-License-Identifier: MIT */
/*
 * Which algorithm, and slices of what size, for vectors of each class of sizes (four to a power of
 * two). The simulation is asked at powers of two; between them prices are taken to go straight.
 * Rank 0 decides; the bits of a result depend on the algorithm, never on the slices.
 */
#include "collectives/collective_plan.h"
#include "transport/world.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALL_STEPS = 1500 * 1000 /* of all simulations that are made for a plan */
};

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

size_t plan_total_bytes(const struct sstar_collective *plan, size_t count, size_t element_bytes)
{
    bool blocks = plan->operation == SSTAR_REDUCE_SCATTER || plan->operation == SSTAR_ALL_GATHER;
    return count * element_bytes * (blocks ? (size_t)plan->map.size : 1);
}

struct schedule_shape plan_shape(const struct sstar_collective *plan, size_t count,
                                 size_t element_bytes)
{
    size_t bytes = plan_total_bytes(plan, count, element_bytes);
    return plan_shape_of(plan, plan->choices[plan_class_of(bytes)], count, element_bytes);
}

/* ---- prices ------------------------------------------------------------------------------------
 */

/* The cheapest for a size between two points. Of two that are nearer than rounds were to each
 * other, the one that passes more bytes through the slots of links inside a node turns out the
 * slower for long vectors: they leave the caches. */
static struct plan_choice cheapest(const struct sstar_collective *plan,
                                   const struct plan_prices *prices, double bytes, int low,
                                   int high)
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
            us *= 1 + plan->spread;
        if (us < best) {
            best = us;
            choice =
                (struct plan_choice){(uint32_t)i, prices->slice_bytes[i][share > 0.5 ? high : low]};
        }
    }
    return choice;
}

/* Whether something has a price at the point before and none here: it was too long to play. */
static bool is_incomplete(const struct sstar_collective *plan, const struct plan_prices *prices,
                          int before, int point)
{
    for (int i = 0; i < SSTAR_ALGORITHMS; i++)
        if (plan->candidates[i] && prices->us[i][before] > 0 && prices->us[i][point] <= 0)
            return true;
    return false;
}

/* Up to the point where not all can be priced any more: a comparison of some would be unfair. */
static int price_all(const struct sstar_collective *plan, struct plan_prices *prices)
{
    prices->steps_left = ALL_STEPS;
    int before = PLAN_FIRST_POINT;
    for (int point = PLAN_FIRST_POINT; point < PLAN_POINTS;) {
        for (int i = 0; i < SSTAR_ALGORITHMS; i++) {
            int err = plan->candidates[i] ? plan_price_point(plan, (enum sstar_algorithm)i,
                                                             &plan->costs[i], point, prices)
                                          : 0;
            if (err)
                return report_set(&plan->world->report, err, "%s: no price: %s",
                                  sstar_operation_name(plan->operation), strerror(-err));
        }
        if (is_incomplete(plan, prices, before, point)) {
            for (int i = 0; i < SSTAR_ALGORITHMS; i++)
                prices->us[i][point] = 0;
            break;
        }
        before = point;
        point = point < PLAN_NEXT_POINT ? PLAN_NEXT_POINT : point + 1;
    }
    return 0;
}

/* Beyond what could be priced things stay as they are. */
static int decide(struct sstar_collective *plan)
{
    struct plan_prices *prices = calloc(1, sizeof *prices);
    if (!prices)
        return report_set(&plan->world->report, -ENOMEM, "collectives: out of memory");
    int err = price_all(plan, prices);
    struct plan_choice last = plan->choices[0];
    for (unsigned c = 0; c < PLAN_SIZE_CLASSES && !err; c++) {
        double bytes = (double)plan_class_bytes(c);
        int low = PLAN_FIRST_POINT, high = PLAN_NEXT_POINT;
        while (high < PLAN_LAST_POINT && bytes >= ldexp(1, high)) {
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
    if (plan->freezes_cores) {
        int told = tell(plan, world->rank ? 0 : tuning_write_cores(plan));
        if (told)
            return told;
    }
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
