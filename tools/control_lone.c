/* SPDX-License-Identifier: MIT */
/* Lone messages: what they take as a whole, and stage by stage. */
#include "tools/control_callers.h"
#include <errno.h>
#include <stdlib.h>

enum {
    LONE_BLOCK = 64, /* messages without stamps, timed from outside as one; then a burst with: */
    LONE_BURST = 8,  /* the rare way is taken, so the first of them take longer than all others; */
    LONE_KEPT = 4,   /* the last count */
    LONE_TRIAL = 4,  /* rounds of these */
    LONE_LEAST = 64,
    LONE_MOST = 4096,
    LONE_EACH = 8,       /* messages without stamps where each is timed for itself, which is */
    LONE_EACH_NS = 5000, /* where they take so long */
    LONE_MOST_EACH = 8192,
};

static void lone_one(struct caller *c, const struct sstar_one_sided *op)
{
    c->err = caller_post(c, op, 1);
    if (!c->err)
        c->err = caller_await(c, 0);
}

/* Without stamps, from outside. */
static void lone_block(struct caller *c, const struct sstar_one_sided *op, double *outside_ns)
{
    uint64_t begun = clock_ns();
    for (int i = 0; i < (c->each ? LONE_EACH : LONE_BLOCK) && !c->err; i++) {
        lone_one(c, op);
        if (!c->each)
            continue;
        uint64_t now = clock_ns();
        outside_ns[i] = (double)(now - begun);
        begun = now;
    }
    if (!c->each)
        *outside_ns = (double)(clock_ns() - begun) / LONE_BLOCK;
}

/* Which stamps the messages of a burst have, in turn. A stamp holds up what comes after it by more
 * than it takes by itself, so where messages are short each boundary between stages has messages of
 * its own, which have no other stamp than the caller's two at the ends: then none lies within what
 * is measured. Those with all of them are for what single messages do: median, p99, greatest. */
static const uint32_t kinds[] = {STAMP_ALL,  STAMP_SEEN, STAMP_BUILT, STAMP_RING,
                                 STAMP_RUNG, STAMP_CQE,  0,           STAMP_DEVICE};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

/* Where messages are long all have all. */
static uint32_t kind_of(const struct caller *c, uint32_t sample)
{
    return c->each ? STAMP_ALL : kinds[sample / LONE_KEPT % KINDS];
}

static void lone_burst(struct caller *c, const struct sstar_one_sided *plain, uint32_t first)
{
    struct stamped stamp = {.wanted = kind_of(c, first)};
    struct sstar_one_sided op = *plain;
    if (stamp.wanted) {
        op.flags |= POST_STAMPED;
        op.add = (uintptr_t)&stamp;
    }
    for (uint32_t i = 0; i < LONE_BURST && !c->err; i++) {
        uint32_t at = first + i % LONE_KEPT;
        stamp.stamps = &c->stamps[at];
        c->written[at] = stage_now();
        lone_one(c, &op);
        c->told[at] = stage_now();
    }
}

/* In turn, so that a machine that changes is the same for both. */
static void *lone_main(void *arg)
{
    struct caller *c = arg;
    struct sstar_one_sided op;
    for (uint32_t i = 0; i < c->rounds && !c->err; i++) {
        c->at = i / KINDS % PATH_COMPLETIONS; /* each kind with each of them */
        c->posted = sstar_completed(&c->completion[c->at]);
        op = caller_operation(c, 0);
        op.flags |= SSTAR_TELL;
        lone_block(c, &op, &c->outside_ns[c->each ? i * LONE_EACH : i]);
        lone_burst(c, &op, i * LONE_KEPT);
    }
    /* Stamps are handed over after their message was told of, and before the next one is. */
    if (!c->err)
        lone_one(c, &op);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(double *values, uint32_t n)
{
    qsort(values, n, sizeof(*values), compare);
}

double path_middle_half(double *values, uint32_t n)
{
    double sum = 0;
    uint32_t quarter = n / 4;
    sort(values, n);
    for (uint32_t i = quarter; i < n - quarter; i++)
        sum += values[i];
    return sum / (n - 2 * quarter);
}

/* When a message came to the end of a stage, by one stamp. */
static uint64_t boundary(const struct caller *c, uint32_t sample, uint32_t stamp)
{
    const struct stage_stamps *s = &c->stamps[sample];
    switch (stamp) {
    case STAMP_SEEN:
        return s->seen;
    case STAMP_BUILT:
        return s->built;
    case STAMP_RING:
        return s->ring;
    case STAMP_RUNG:
        return s->rung;
    case STAMP_CQE:
        return s->cqe;
    default:
        return c->told[sample];
    }
}

/* The stamp at which each stage ends; what the device did lies within the doorbell. */
static const uint32_t ends[STAGES] = {
    [STAGE_HANDOVER] = STAMP_SEEN,
    [STAGE_BUILD] = STAMP_BUILT,
    [STAGE_BATCH] = STAMP_RING,
    [STAGE_DOORBELL] = STAMP_RUNG,
    [STAGE_DEVICE] = STAMP_RUNG,
    [STAGE_COMPLETION] = STAMP_CQE,
    [STAGE_TOLD] = 0,
};

/* Ticks of a stage of a message that has all stamps. */
static double stage_ticks(const struct caller *c, uint32_t sample, int stage)
{
    double device = (double)c->stamps[sample].device;
    if (stage == STAGE_DEVICE)
        return device;
    uint64_t begun = stage == STAGE_HANDOVER     ? c->written[sample]
                     : stage == STAGE_COMPLETION ? c->stamps[sample].rung
                                                 : boundary(c, sample, ends[stage - 1]);
    double ticks = (double)(boundary(c, sample, ends[stage]) - begun);
    return stage == STAGE_DOORBELL ? ticks - device : ticks;
}

/* Stamps whose cost lies within a stage: its own, and the two of the device's hook. */
static int stage_stamps(bool device, int stage)
{
    return stage == STAGE_DEVICE ? device : stage == STAGE_DOORBELL ? 1 + device : 1;
}

static double whole_ticks(const struct caller *c, uint32_t sample)
{
    return (double)(c->told[sample] - c->written[sample]);
}

/* Which of the stamped ones took neither long nor short as a whole. Stages are averaged over the
 * same messages, so what they add up to is what a message takes. */
static uint32_t lone_choose(const struct caller *c, uint32_t n, bool *chosen, double *values)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        values[i] = whole_ticks(c, i);
    sort(values, n);
    double low = values[n / 4], high = values[n - n / 4 - 1];
    for (uint32_t i = 0; i < n; i++) {
        chosen[i] = whole_ticks(c, i) >= low && whole_ticks(c, i) <= high;
        count += chosen[i];
    }
    return count;
}

/* Of messages with all stamps. */
static void lone_spread(const struct path_test *test, const struct caller *c,
                        struct path_lone *lone, double *values, bool *chosen)
{
    uint32_t n = lone->samples, typical = lone_choose(c, n, chosen, values);
    bool device = c->stamps[0].device > 0;
    for (int stage = 0; stage < STAGES; stage++) {
        struct path_spread *spread = &lone->stage[stage];
        double cost = stage_stamps(device, stage) * test->clock.stamp_ns;
        uint32_t count = 0;
        for (uint32_t i = 0; i < n; i++) { /* below 0 by a step of the counter at most */
            if (kind_of(c, i) != STAMP_ALL)
                continue;
            double ns = stage_ticks(c, i, stage) * test->clock.ns_per_tick - cost;
            values[count++] = ns;
            spread->typical_ns += chosen[i] ? ns / typical : 0;
        }
        sort(values, count);
        spread->median_ns = values[count / 2];
        spread->p99_ns = values[(uint32_t)(0.99 * (count - 1) + 0.5)];
        spread->max_ns = values[count - 1];
    }
}

/* From the caller's first stamp to `stamp`, over the messages that have `kind`: typical ns. One
 * stamp's cost lies in it. */
static double reached_ns(const struct path_test *test, const struct caller *c, uint32_t n,
                         uint32_t kind, uint32_t stamp, double *values)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        if (kind_of(c, i) == kind)
            values[count++] = stamp == STAMP_DEVICE
                                  ? (double)c->stamps[i].device
                                  : (double)(boundary(c, i, stamp) - c->written[i]);
    return path_middle_half(values, count) * test->clock.ns_per_tick - test->clock.stamp_ns;
}

/* A stage is what lies between its two boundaries, so the sum is what a message takes that has no
 * stamps but those at its ends. */
static void lone_typical(const struct path_test *test, const struct caller *c,
                         struct path_lone *lone, double *values)
{
    uint32_t n = lone->samples;
    double device = reached_ns(test, c, n, STAMP_DEVICE, STAMP_DEVICE, values), before = 0;
    device = device > 0 ? device : 0; /* not softnic */
    for (int stage = 0; stage < STAGES; stage++) {
        double *typical = &lone->stage[stage].typical_ns;
        if (stage == STAGE_DEVICE) {
            *typical = device;
            continue;
        }
        double at = reached_ns(test, c, n, ends[stage], ends[stage], values);
        *typical = at - before - (stage == STAGE_DOORBELL ? device : 0);
        before = at;
    }
    lone->stamps_add_ns = reached_ns(test, c, n, STAMP_ALL, 0, values) - before;
}

static void lone_reduce(const struct path_test *test, const struct caller *c,
                        struct path_lone *lone, double *values, bool *chosen)
{
    lone->samples = c->rounds * LONE_KEPT;
    lone_spread(test, c, lone, values, chosen);
    if (!c->each)
        lone_typical(test, c, lone, values);
    lone->alpha_ns = path_middle_half(c->outside_ns, c->rounds * (c->each ? LONE_EACH : 1));
}

static int lone_run(struct path_test *test, const struct path_way *way, struct caller *c,
                    uint32_t rounds)
{
    c->rounds = rounds;
    int err = path_callers_run(test, way, lone_main, c, sizeof(*c));
    return err ? err : c->err;
}

/* A short trial, which also warms up, says how many rounds fit the time. The first messages are no
 * measure of those to come: they wake a proxy, and memory is touched for the first time. */
static int lone_trial(struct path_test *test, const struct path_way *way, struct caller *c,
                      uint32_t *rounds)
{
    int err = lone_run(test, way, c, LONE_TRIAL);
    double ns = c->outside_ns[0];
    for (int i = 1; i < LONE_TRIAL; i++)
        ns = c->outside_ns[i] < ns ? c->outside_ns[i] : ns;
    c->each = ns >= LONE_EACH_NS;
    double most = c->each ? LONE_MOST_EACH : LONE_MOST;
    double n = test->seconds * 1e9 / (ns * (LONE_BURST + (c->each ? LONE_EACH : LONE_BLOCK)));
    *rounds = (uint32_t)(n > most ? most : n < LONE_LEAST ? LONE_LEAST : n);
    return err;
}

static int lone_measure(struct path_test *test, const struct path_way *way, struct sets *sets,
                        void *result)
{
    enum { SAMPLES = LONE_MOST_EACH * LONE_KEPT, TIMES = LONE_MOST_EACH * LONE_EACH };
    struct caller *c = aligned_alloc(alignof(struct caller), sizeof(*c));
    struct stage_stamps *stamps =
        aligned_alloc(alignof(struct stage_stamps), SAMPLES * sizeof(*stamps));
    uint64_t *told = calloc(SAMPLES, sizeof(*told)), *written = calloc(SAMPLES, sizeof(*written));
    double *values = calloc(SAMPLES, sizeof(*values)), *outside = calloc(TIMES, sizeof(*outside));
    bool *chosen = calloc(SAMPLES, sizeof(*chosen));
    uint32_t rounds = 0;
    int err = c && stamps && written && told && values && outside && chosen ? 0 : -ENOMEM;
    if (!err) {
        callers_fill(test, way, sets, c, NULL);
        c->stamps = stamps;
        c->told = told;
        c->written = written;
        c->outside_ns = outside;
        err = lone_trial(test, way, c, &rounds);
    }
    if (!err)
        err = lone_run(test, way, c, rounds);
    if (!err)
        lone_reduce(test, c, result, values, chosen);
    free(chosen);
    free(outside);
    free(values);
    free(told);
    free(written);
    free(stamps);
    free(c);
    return err;
}

int path_lone(struct path_test *test, const struct path_way *way, struct path_lone *lone)
{
    struct path_way alone = *way;
    alone.callers = alone.qps = alone.batch = alone.signal = alone.proxies = 1;
    *lone = (struct path_lone){0};
    return path_with_sets(test, &alone, lone, lone_measure);
}
