/* SPDX-License-Identifier: MIT */
/* Lone messages: what they take as a whole, and stage by stage. */
#include "tools/control_callers.h"
#include <errno.h>
#include <stdlib.h>

enum {
    LONE_BLOCK = 64, /* messages without stamps, timed from outside as one; then a burst with: */
    LONE_BURST = 8,  /* the rare way is taken, so the first of them take longer than all others; */
    LONE_KEPT = 4,   /* the last count */
    LONE_LEAST = 16, /* rounds of these */
    LONE_MOST = 1024,
    LONE_EACH = 8,       /* messages without stamps where each is timed for itself, which is */
    LONE_EACH_NS = 5000, /* where they take so long */
    LONE_MOST_EACH = LONE_MOST * LONE_BLOCK / LONE_EACH,
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

static void lone_burst(struct caller *c, struct sstar_one_sided *op, uint32_t first)
{
    struct stamped stamp;
    op->add = (uintptr_t)&stamp;
    for (uint32_t i = 0; i < LONE_BURST && !c->err; i++) {
        uint32_t at = first + i % LONE_KEPT;
        stamp.stamps = &c->stamps[at];
        stamp.written = stage_now();
        lone_one(c, op);
        c->told[at] = stage_now();
    }
}

/* In turn, so that a machine that changes is the same for both. */
static void *lone_main(void *arg)
{
    struct caller *c = arg;
    struct sstar_one_sided plain = caller_operation(c, 0), stamped;
    plain.flags |= SSTAR_TELL;
    stamped = plain;
    stamped.flags |= POST_STAMPED;
    for (uint32_t i = 0; i < c->rounds && !c->err; i++) {
        lone_block(c, &plain, &c->outside_ns[c->each ? i * LONE_EACH : i]);
        lone_burst(c, &stamped, i * LONE_KEPT);
    }
    /* Stamps are handed over after their message was told of, and before the next one is. */
    if (!c->err)
        lone_one(c, &plain);
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

static double middle_half(double *values, uint32_t n)
{
    double sum = 0;
    uint32_t quarter = n / 4;
    sort(values, n);
    for (uint32_t i = quarter; i < n - quarter; i++)
        sum += values[i];
    return sum / (n - 2 * quarter);
}

/* Ticks of each stage; a stamp costs some time, which lies between it and the next. */
static double stage_ticks(const struct stage_stamps *s, uint64_t told, int stage)
{
    const uint64_t at[] = {s->written, s->seen, s->built, s->ring, s->rung, s->cqe, told};
    switch (stage) {
    case STAGE_DOORBELL:
        return (double)(s->rung - s->ring) - (double)s->device;
    case STAGE_DEVICE:
        return (double)s->device;
    default:
        stage -= stage > STAGE_DEVICE;
        return (double)(at[stage + 1] - at[stage]);
    }
}

/* Stamps whose cost lies within a stage: its own, and the two of the device's hook. */
static int stage_stamps(bool device, int stage)
{
    return stage == STAGE_DEVICE ? device : stage == STAGE_DOORBELL ? 1 + device : 1;
}

/* Which of the stamped ones took neither long nor short as a whole. Stages are averaged over the
 * same messages, so what they add up to is what a message takes. */
static uint32_t lone_choose(const struct caller *c, uint32_t n, bool *chosen, double *values)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        values[i] = (double)(c->told[i] - c->stamps[i].written);
    sort(values, n);
    double low = values[n / 4], high = values[n - n / 4 - 1];
    for (uint32_t i = 0; i < n; i++) {
        double whole = (double)(c->told[i] - c->stamps[i].written);
        chosen[i] = whole >= low && whole <= high;
        count += chosen[i];
    }
    return count;
}

static void lone_reduce(const struct path_test *test, const struct caller *c,
                        struct path_lone *lone, double *values, bool *chosen)
{
    uint32_t n = lone->samples = c->rounds * LONE_KEPT, typical = lone_choose(c, n, chosen, values);
    bool device = c->stamps[n - 1].device > 0;
    for (int stage = 0; stage < STAGES; stage++) {
        struct path_spread *spread = &lone->stage[stage];
        double cost = stage_stamps(device, stage) * test->clock.stamp_ns;
        for (uint32_t i = 0; i < n; i++) { /* below 0 by a step of the counter at most */
            values[i] =
                stage_ticks(&c->stamps[i], c->told[i], stage) * test->clock.ns_per_tick - cost;
            spread->typical_ns += chosen[i] ? values[i] / typical : 0;
        }
        sort(values, n);
        spread->median_ns = values[n / 2];
        spread->p99_ns = values[(uint32_t)(0.99 * (n - 1) + 0.5)];
        spread->max_ns = values[n - 1];
    }
    lone->alpha_ns = middle_half(c->outside_ns, c->rounds * (c->each ? LONE_EACH : 1));
}

static int lone_run(struct path_test *test, const struct path_way *way, struct caller *c,
                    uint32_t rounds)
{
    c->rounds = rounds;
    int err = path_callers_run(test, way, lone_main, c, sizeof(*c));
    return err ? err : c->err;
}

/* A short trial, which also warms up, says how many rounds fit the time. */
static int lone_trial(struct path_test *test, const struct path_way *way, struct caller *c,
                      uint32_t *rounds)
{
    int err = lone_run(test, way, c, 1);
    double ns = *c->outside_ns;
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
    uint64_t *told = calloc(SAMPLES, sizeof(*told));
    double *values = calloc(SAMPLES, sizeof(*values)), *outside = calloc(TIMES, sizeof(*outside));
    bool *chosen = calloc(SAMPLES, sizeof(*chosen));
    uint32_t rounds = 0;
    int err = c && stamps && told && values && outside && chosen ? 0 : -ENOMEM;
    if (!err) {
        callers_fill(test, way, sets, c, NULL);
        c->stamps = stamps;
        c->told = told;
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
