/* SPDX-License-Identifier: MIT */
/*
 * The sweep of `sstar fit`. All sizes are visited in each of many short rounds, in an order drawn
 * anew for each, so that drift and disturbances of the machine strike all sizes alike and no size
 * always finds the caches as the same other left them.
 */
#include "tools/fit_run.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WARM = 2,
    LOOK_TRIPS = 9,
    LEAST_ROUNDS = 8,
    QUICK_LEAST_ROUNDS = 6,
    MOST_ROUNDS = 150,
    POINTS = 21,
    QUICK_POINTS = 13,
    LONG_FACTOR = 16, /* the longest message takes so many times as long as the shortest */
    LEAST_STREAM = 4,
    MOST_STREAM = 256,
    ENOUGH_CLEAN = 2, /* visits */
    LATE_FACTOR = 4,
    TRIES = 6, /* while a visit is disturbed by somebody who takes a core */
};
static const double budget_us = 3e6, quick_budget_us = 0.6e6;
/* A visit should be over before the kernel gives the core to somebody else. */
static const double visit_us = 1e3;

/* ---- what to measure ------------------------------------------------------------------ */

/* What a lone message takes when nothing comes between: enough to plan with. */
static int look(struct fit_run *run, uint64_t bytes, double *us)
{
    double trips[LOOK_TRIPS];
    int err = 0;
    *us = INFINITY;
    run->pair.disturbed = true;
    for (int tries = 0; tries < TRIES && !err && run->pair.disturbed; tries++) {
        err = pair_lone(&run->pair, bytes, WARM, LOOK_TRIPS, trips);
        if (!err)
            *us = fmin(*us, fit_quantile(trips, LOOK_TRIPS, 0));
    }
    return err;
}

/* Far enough that a message is nearly all bytes: that is where beta is seen. */
static int choose_end(struct fit_run *run, uint64_t *end)
{
    const struct fit_arguments *a = run->arguments;
    double shortest_us, us = 0;
    int err = look(run, a->begin_bytes, &shortest_us);
    *end = a->begin_bytes * 16 > 8192 ? a->begin_bytes * 16 : 8192;
    while (!err && us < LONG_FACTOR * shortest_us && 2 * *end <= fit_longest(a)) {
        *end *= 2;
        err = look(run, *end, &us);
    }
    return err;
}

static int choose_sizes(struct fit_run *run)
{
    const struct fit_arguments *a = run->arguments;
    uint64_t begin = a->begin_bytes, end = a->end_bytes;
    int points = a->points ? (int)a->points : a->quick ? QUICK_POINTS : POINTS;
    int err = end ? 0 : choose_end(run, &end);
    for (int i = 0; i < points && !err; i++) {
        double size = (double)begin * pow((double)end / (double)begin, i / (points - 1.0));
        uint64_t bytes = (uint64_t)llround(size);
        if (i + 1 < points && bytes > 8)
            bytes = bytes / 8 * 8;
        if (run->sizes && bytes <= run->size_bytes[run->sizes - 1])
            continue; /* more points than there are sizes so close to the short end */
        err = look(run, bytes, &run->typical_us[run->sizes]);
        run->size_bytes[run->sizes++] = bytes;
    }
    return err;
}

static int clamp(double value, int low, int high)
{
    return value < low ? low : value > high ? high : (int)value;
}

/* A long message moves so much that nothing is to be warmed up for it. */
static int warm_trips(double typical_us)
{
    return 2 * typical_us > visit_us / 2 ? 0 : WARM;
}

/* So many rounds that the whole takes the time that is set for it. */
static void choose_rounds(struct fit_run *run)
{
    const struct fit_arguments *a = run->arguments;
    double round_us = 0;
    for (int i = 0; i < run->sizes; i++) {
        /* What the bytes take, and a tenth of the start-up time: a guess at the time from message
         * to message, good enough to share out time. */
        double spaced = run->typical_us[i] - 0.9 * run->typical_us[0];
        spaced = fmax(spaced, 0.1 * run->typical_us[0]);
        run->stream_messages[i] = clamp(visit_us / 2 / spaced, LEAST_STREAM, MOST_STREAM);
        run->trips[i] = clamp(visit_us / run->typical_us[i] / 2, 1, FIT_TRIPS_PER_VISIT);
        round_us += 2 * (warm_trips(run->typical_us[i]) + run->trips[i]) * run->typical_us[i] +
                    run->stream_messages[i] * spaced;
    }
    int least = a->quick ? QUICK_LEAST_ROUNDS : LEAST_ROUNDS;
    run->rounds = clamp((a->quick ? quick_budget_us : budget_us) / round_us, least, MOST_ROUNDS);
    if (a->iterations)
        run->rounds =
            clamp(ceil((double)a->iterations / FIT_TRIPS_PER_VISIT), LEAST_ROUNDS / 2, 1 << 20);
}

static double *take_room(struct fit_visits *visits, double *us, int rounds, int block)
{
    *visits = (struct fit_visits){.us = us, .block = block, .room = rounds};
    return us + rounds * block;
}

static int get_room(struct fit_run *run)
{
    size_t n = (size_t)run->trips[0];
    for (int i = 0; i < run->sizes; i++)
        n += (size_t)run->trips[i] + 1;
    n *= (size_t)run->rounds;
    double *us = run->samples = calloc(n, sizeof *us);
    if (!us) {
        fprintf(stderr, "sstar fit: no memory for %zu samples; take fewer (-n)\n", n);
        return -ENOMEM;
    }
    for (int i = 0; i < run->sizes; i++) {
        us = take_room(&run->lone[i], us, run->rounds, run->trips[i]);
        us = take_room(&run->streams[i], us, run->rounds, 1);
    }
    take_room(&run->unshaped_lone, us, run->rounds, run->trips[0]);
    return 0;
}

/* ---- measuring ------------------------------------------------------------------------ */

/* Where the samples of the next visit go, were it disturbed or not. */
static double *visit_place(const struct fit_visits *visits, bool disturbed)
{
    int place = disturbed ? visits->room - 1 - visits->disturbed : visits->clean;
    return visits->us + place * visits->block;
}

/* On a machine that is busy with others all takes longer; what there is must do then. */
static bool is_late(const struct fit_run *run)
{
    const struct fit_arguments *a = run->arguments;
    double spent_us = (double)(sstar_now_ns(run->world) - run->begun_ns) / 1e3;
    return !a->iterations && spent_us > LATE_FACTOR * (a->quick ? quick_budget_us : budget_us);
}

/* A visit in which a core was taken away is repeated, a few times; then it is kept apart. */
static int visit_lone(struct fit_run *run, struct pair *pair, int size, struct fit_visits *visits)
{
    double us[FIT_TRIPS_PER_VISIT];
    int err = 0, most = is_late(run) ? 1 : TRIES, warm = warm_trips(run->typical_us[size]);
    pair->disturbed = true;
    for (int tries = 0; tries < most && !err && pair->disturbed; tries++)
        err = pair_lone(pair, run->size_bytes[size], warm, visits->block, us);
    if (err)
        return err;
    memcpy(visit_place(visits, pair->disturbed), us, (size_t)visits->block * sizeof *us);
    pair->disturbed ? visits->disturbed++ : visits->clean++;
    return 0;
}

static int visit_stream(struct fit_run *run, int size)
{
    struct fit_visits *visits = &run->streams[size];
    struct pair *pair = &run->pair;
    double us = 0, last = 0;
    bool clean = false;
    int most = is_late(run) ? 1 : TRIES;
    for (int tries = 0; tries < most && !clean; tries++) {
        int err = pair_stream(pair, run->size_bytes[size], run->stream_messages[size], &us);
        if (err)
            return err;
        clean = us > 0 && !pair->disturbed;
        last = us > 0 ? us : last;
    }
    if (last > 0) {
        *visit_place(visits, !clean) = last;
        clean ? visits->clean++ : visits->disturbed++;
    }
    return 0;
}

static int visit(struct fit_run *run, int size)
{
    int err = visit_lone(run, &run->pair, size, &run->lone[size]);
    return err ? err : visit_stream(run, size);
}

/* How many samples there are to go by: of undisturbed visits if these are enough, else of all. */
static int usable(struct fit_run *run, struct fit_visits *visits)
{
    if (visits->clean >= ENOUGH_CLEAN) {
        run->left_out += visits->disturbed;
    } else {
        memmove(visits->us + visits->clean * visits->block,
                visits->us + (visits->room - visits->disturbed) * visits->block,
                (size_t)(visits->disturbed * visits->block) * sizeof *visits->us);
        visits->clean += visits->disturbed;
    }
    visits->disturbed = 0;
    return visits->clean * visits->block;
}

static void shuffle(int *order, int n, uint64_t *random)
{
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(fit_random(random) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

static int measure_unshaped(struct fit_run *run)
{
    if (!run->unshaped_world)
        return 0;
    int err = visit_lone(run, &run->unshaped, 0, &run->unshaped_lone);
    return err ? err : pair_finish(&run->unshaped, false);
}

static int measure_round(struct fit_run *run, uint64_t *random)
{
    int order[FIT_MAX_POINTS];
    int err = measure_unshaped(run);
    shuffle(order, run->sizes, random);
    for (int i = 0; i < run->sizes && !err; i++)
        err = visit(run, order[i]);
    return err;
}

/*
 * Sizes of which hardly a visit was undisturbed (the longest, on a busy machine) say more about the
 * others on this machine than about the wire: they are left out, if enough sizes remain.
 */
static void drop_disturbed(struct fit_run *run)
{
    int kept = 0;
    for (int i = 0; i < run->sizes; i++)
        kept += run->lone[i].clean >= ENOUGH_CLEAN;
    if (2 * kept <= run->sizes || kept < FIT_LEAST_SIZES)
        return;
    run->dropped = run->sizes - kept;
    for (int i = 0, to = 0; i < run->sizes; i++) {
        if (run->lone[i].clean < ENOUGH_CLEAN) {
            run->longest_dropped = run->size_bytes[i];
            continue;
        }
        run->size_bytes[to] = run->size_bytes[i];
        run->lone[to] = run->lone[i];
        run->streams[to++] = run->streams[i];
    }
    run->sizes = kept;
}

/* Streams likewise: their number of a size may be 0. */
static void drop_disturbed_streams(struct fit_run *run)
{
    int kept = 0;
    for (int i = 0; i < run->sizes; i++)
        kept += run->streams[i].clean >= ENOUGH_CLEAN;
    for (int i = 0; 2 * kept > run->sizes && i < run->sizes; i++)
        if (run->streams[i].clean < ENOUGH_CLEAN) {
            run->left_out += run->streams[i].disturbed;
            run->streams[i].disturbed = run->streams[i].clean = 0;
        }
}

static int conclude(struct fit_run *run)
{
    drop_disturbed(run);
    drop_disturbed_streams(run);
    const struct common_options *common = &run->arguments->common;
    struct fit_options options = {.seed = common->seed, .resamples = 1000};
    struct fit_samples samples[FIT_MAX_POINTS];
    for (int i = 0; i < run->sizes; i++)
        samples[i] = (struct fit_samples){.size_bytes = (double)run->size_bytes[i],
                                          .lone_us = run->lone[i].us,
                                          .lone_count = usable(run, &run->lone[i]),
                                          .lone_block = run->lone[i].block,
                                          .stream_us = run->streams[i].us,
                                          .stream_count = usable(run, &run->streams[i]),
                                          .stream_block = 1};
    if (run->unshaped_world)
        run->unshaped_latency_us =
            fit_quantile(run->unshaped_lone.us, usable(run, &run->unshaped_lone), 0.5);
    int err = fit_sweep(samples, run->sizes, &options, run->points, &run->result);
    if (err)
        fprintf(stderr, "sstar fit: cannot fit %d sizes from %llu to %llu bytes: %s\n", run->sizes,
                (unsigned long long)run->size_bytes[0],
                (unsigned long long)run->size_bytes[run->sizes - 1], strerror(-err));
    return err;
}

/* The other rank of the pair: it does not know how many rounds there are. */
static int serve(struct fit_run *run)
{
    int more = pair_serve(&run->pair); /* while sizes are chosen */
    while (more > 0) {
        int err = run->unshaped_world ? pair_serve(&run->unshaped) : 0;
        if (err < 0)
            return fit_say(run->unshaped_world, err);
        more = pair_serve(&run->pair);
    }
    return more ? fit_say(run->world, more) : 0;
}

int fit_measure(struct fit_run *run)
{
    const struct common_options *common = &run->arguments->common;
    if (run->pair.role != PAIR_ASKS)
        return serve(run);
    int err = choose_sizes(run);
    if (err)
        return fit_say(run->world, err);
    choose_rounds(run);
    err = get_room(run);
    if (err) {
        pair_finish(&run->pair, false);
        return err;
    }
    uint64_t random = common->seed;
    err = pair_finish(&run->pair, true);
    run->begun_ns = sstar_now_ns(run->world);
    bool more = !err;
    for (int round = 0; more && !err; round++) {
        progress_show(common, run->world, "fit", (double)round / run->rounds);
        err = measure_round(run, &random);
        more = round + 1 < run->rounds && (round + 1 < LEAST_ROUNDS / 2 || !is_late(run));
        if (!more)
            run->rounds = round + 1;
        if (!err)
            err = pair_finish(&run->pair, more);
    }
    progress_clear(common, run->world);
    if (err)
        return fit_say(run->unshaped_world && *sstar_last_error(run->unshaped_world)
                           ? run->unshaped_world
                           : run->world,
                       err);
    return conclude(run);
}
