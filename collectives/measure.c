/* SPDX-License-Identifier: MIT */
/* alpha, g and beta of a world's wire in tens of milliseconds, the same bits on all ranks. */
#include "collectives/collectives.h"
#include "collectives/fit.h"
#include "collectives/pair.h"
#include "collectives/wire_cost.h"
#include "transport/turn.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIZES = 10,
    SHORTEST = 8,
    LONGEST = 1 << 20,
    WARM = 1,
    ROUNDS = 3,      /* over all sizes, so that a disturbance does not strike one size alone */
    LEAST_TRIPS = 3, /* of a size in a round */
    MOST_TRIPS = 17,
    TRIES = 3,
    LEAST_STREAM = 8, /* messages */
    MOST_STREAM = 100,
    LONG_FACTOR = 8, /* the longest message takes so many times as long as the shortest */
};
#define LONE_US   1e3 /* to be spent on the lone messages of a size in a round, if short enough */
#define STREAM_US 1e3 /* likewise on one stream */
#define LATE_NS   150000000 /* then no visit is repeated */

struct quick {
    struct pair *pair;
    uint64_t late_ns;
    size_t sizes[SIZES];
    double lone[SIZES][ROUNDS * MOST_TRIPS], stream[SIZES][ROUNDS];
    int trips[SIZES], streams[SIZES]; /* how many in a round; in all */
    double typical_us[SIZES];         /* of a lone message, from one quick look */
};

/* What a lone message takes when nothing comes between: enough to plan with. */
static int look(struct pair *pair, size_t bytes, double *us)
{
    double trips[LEAST_TRIPS];
    int err = pair_lone(pair, bytes, WARM, LEAST_TRIPS, trips);
    if (!err)
        *us = fit_quantile(trips, LEAST_TRIPS, 0);
    return err;
}

/* Sizes in even steps of the logarithm from the shortest to one that takes several times as long.
 */
static int choose_sizes(struct quick *q)
{
    double shortest_us, us;
    size_t longest = SHORTEST << SIZES;
    int err = look(q->pair, SHORTEST, &shortest_us);
    for (us = 0; !err && us < LONG_FACTOR * shortest_us && longest < LONGEST;) {
        longest *= 2;
        err = look(q->pair, longest, &us);
    }
    for (int i = 0; i < SIZES && !err; i++) {
        double size = SHORTEST * pow((double)longest / SHORTEST, i / (SIZES - 1.0));
        q->sizes[i] = (size_t)lround(size / SHORTEST) * SHORTEST;
        if (i && q->sizes[i] <= q->sizes[i - 1])
            q->sizes[i] = q->sizes[i - 1] + SHORTEST;
        err = look(q->pair, q->sizes[i], &q->typical_us[i]);
    }
    return err;
}

static int clamp(double value, int low, int high)
{
    return value < low ? low : value > high ? high : (int)value;
}

/* One size in one round, again if the kernel gave a core to somebody else meanwhile. */
static int visit(struct quick *q, int i, int round)
{
    struct pair *pair = q->pair;
    int err = 0, most = clock_ns() < q->late_ns ? TRIES : 1;
    pair->disturbed = true;
    for (int tries = 0; tries < most && !err && pair->disturbed; tries++)
        err = pair_lone(pair, q->sizes[i], WARM, q->trips[i], q->lone[i] + round * q->trips[i]);
    if (err || i % 2) /* streams of every other size are enough */
        return err;
    double *stream = &q->stream[i][q->streams[i]];
    int messages = clamp(STREAM_US / q->typical_us[i], LEAST_STREAM, MOST_STREAM);
    pair->disturbed = true;
    for (int tries = 0; tries < most && !err && pair->disturbed; tries++)
        err = pair_stream(pair, q->sizes[i], messages, stream);
    q->streams[i] += !err && *stream > 0;
    return err;
}

static int sample(struct quick *q)
{
    int err = 0;
    for (int i = 0; i < SIZES; i++)
        q->trips[i] = clamp(LONE_US / (2 * q->typical_us[i]), LEAST_TRIPS, MOST_TRIPS);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < SIZES && !err; i++)
            err = visit(q, i, round);
    return err;
}

/* Whatever was measured, a cost that can be computed with: positive and finite. Whether the line
 * fits well is a question for `sstar fit`, not for choosing a threshold. */
static int conclude(const struct quick *q, struct sstar_cost *cost)
{
    struct fit_samples samples[SIZES];
    struct fit_point points[SIZES];
    struct fit_result fitted;
    for (int i = 0; i < SIZES; i++)
        samples[i] = (struct fit_samples){.size_bytes = (double)q->sizes[i],
                                          .lone_us = q->lone[i],
                                          .lone_count = ROUNDS * q->trips[i],
                                          .stream_us = q->stream[i],
                                          .stream_count = q->streams[i]};
    int err = fit_sweep(samples, SIZES, &(struct fit_options){0}, points, &fitted);
    if (err)
        return report_set(&q->pair->world->report, err,
                          "the times measured between ranks %d and %d make no sense: %s",
                          q->pair->asks, q->pair->answers, strerror(-err));
    const struct fit_point *first = &points[0], *last = &points[SIZES - 1];
    double alpha = fitted.alpha_us.value, gap = fitted.gap_us.value, beta = fitted.beta_gbps.value;
    if (!(isfinite(alpha) && alpha > 0))
        alpha = first->median_us;
    if (!(isfinite(beta) && beta > 0))
        beta = last->size_bytes / last->median_us / 1e3;
    if (!(isfinite(gap) && gap > 0))
        gap = first->stream_us > 0 ? first->stream_us : alpha;
    *cost = (struct sstar_cost){.alpha_us = alpha, .gap_us = gap, .beta_gbps = beta};
    return 0;
}

static int measure(struct pair *pair, struct sstar_cost *cost)
{
    struct quick *q = calloc(1, sizeof *q);
    if (!q) /* the other rank waits for us: this ends the world */
        return world_fail(pair->world, -ENOMEM, "no memory for %zu bytes of samples", sizeof *q);
    q->pair = pair;
    q->late_ns = clock_ns() + LATE_NS;
    int err = choose_sizes(q);
    if (!err)
        err = sample(q);
    if (!err)
        err = pair_finish(pair, false);
    if (!err)
        err = conclude(q, cost);
    free(q);
    return err;
}

struct told {
    struct sstar_cost cost;
    int32_t err, reserved;
};

/* The asking rank's figures or failure become everybody's. */
static int tell(struct sstar_world *world, const struct pair *pair, const struct told *mine,
                struct told *all)
{
    int err = sstar_allgather(world, mine, sizeof *mine, all);
    if (err)
        return err;
    err = all[pair->asks].err;
    if (err && pair->role != PAIR_ASKS)
        report_set(&world->report, err, "rank %d could not measure the wire: %s", pair->asks,
                   strerror(-err));
    return err;
}

int sstar_measure_cost(struct sstar_world *world, struct sstar_cost *cost)
{
    WORLD_TURN(world);
    if (sstar_size(world) < 2) {
        *cost = (struct sstar_cost){0};
        return 0;
    }
    struct pair pair = {0};
    struct told mine = {0}, *all = calloc((size_t)sstar_size(world), sizeof *all);
    if (!all)
        return world_fail(world, -ENOMEM, "no memory for what %d ranks tell", sstar_size(world));
    int err = pair_open(&pair, world, LONGEST);
    if (err)
        goto free_all;
    err = pair.role == PAIR_ASKS ? measure(&pair, &mine.cost) : pair_serve(&pair);
    mine.err = err;
    if (!world->failed)
        err = tell(world, &pair, &mine, all);
    if (!err)
        *cost = all[pair.asks].cost;
    pair_close(&pair);
free_all:
    free(all);
    return err;
}

int wire_cost(struct sstar_world *world, struct sstar_cost *cost)
{
    const struct sstar_wire *wire = &world->config.wire;
    *cost = (struct sstar_cost){
        .alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps};
    if (cost->alpha_us > 0 || cost->gap_us > 0 || cost->beta_gbps > 0 || world->node_count == 1)
        return 0;
    if (world->wire_cost) {
        *cost = *(struct sstar_cost *)world->wire_cost;
        return 0;
    }
    int err = sstar_measure_cost(world, cost);
    if (err)
        return err;
    struct sstar_cost *kept = malloc(sizeof *kept);
    if (!kept)
        return world_fail(world, -ENOMEM, "collectives: out of memory");
    *kept = *cost;
    world->wire_cost = kept;
    return 0;
}
