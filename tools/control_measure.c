/* SPDX-License-Identifier: MIT */
/* Measuring one way to post: lone messages, stage by stage, and streams. */
#include "tools/control_path.h"
#include "transport/link_carrier.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    LONE_BLOCK = 64, /* messages without stamps, timed from outside as one; then a burst with: */
    LONE_BURST = 8,  /* the rare way is taken, so the first of them take longer than all others; */
    LONE_KEPT = 4,   /* the last count */
    LONE_LEAST = 16, /* rounds of these */
    LONE_MOST = 1024,
    LONE_EACH = 8,       /* messages without stamps where each is timed for itself, which is */
    LONE_EACH_NS = 5000, /* where they take so long */
    LONE_MOST_EACH = LONE_MOST * LONE_BLOCK / LONE_EACH,
    QUEUE = 512, /* requests that a queue pair takes */
    BETA_BYTES = 256 << 10,
    WAIT_S = 20,
};

struct sets {
    struct sstar_links *links[PATH_MOST_CALLERS];
    uint32_t n, qps; /* sets, queue pairs of each */
};

struct caller {
    struct path_test *test;
    const struct path_way *way;
    struct sstar_link *link;
    struct carrier *direct; /* whose completion queue this thread polls itself */
    _Atomic uint32_t *ready;
    uint32_t first_qp, n_qps;
    uint64_t offset; /* where it puts */
    uint64_t posted, begun_ns, ended_ns;
    struct stage_stamps *stamps; /* of lone messages */
    uint64_t *told;
    double *outside_ns;
    uint32_t rounds; /* of lone messages */
    bool each;       /* each is timed for itself */
    int err;
    struct sstar_completion completion;
};

/* A set's place in the passive memory: sets are posted by threads of their own. */
static uint64_t stride(const struct path_test *test)
{
    uint64_t bytes = test->max_bytes > BETA_BYTES ? test->max_bytes : BETA_BYTES;
    return (bytes + 63) / 64 * 64;
}

/* ---- sets of links -------------------------------------------------------------------------- */

static int method_apply(struct sets *sets, const struct path_way *way)
{
    for (uint32_t i = 0; i < sets->n; i++) {
        struct sstar_link *link = sstar_links_to(sets->links[i], 1);
        for (uint32_t q = 0; link && q < link->data_qps; q++) {
            int err = post_method_set(&link->qps[q].post, way->method);
            if (err)
                return err == -EOPNOTSUPP ? -ENODATA : err;
            post_time_device(&link->qps[q].post); /* where there is none nothing is taken off */
        }
        if (link)
            sets->links[i]->carrier->batch = way->each ? 1 : way->batch;
    }
    return 0;
}

static void sets_close(struct sets *sets)
{
    for (uint32_t i = 0; i < sets->n; i++)
        sstar_links_close(sets->links[i]);
    sets->n = 0;
}

/* A direct caller has its own set, so its own completion queue; so has a proxy. */
static int sets_open(struct path_test *test, const struct path_way *way, struct sets *sets)
{
    struct sstar_world *world = test->world;
    int peer = !sstar_rank(world), err = 0;
    bool direct = way->control == SSTAR_CONTROL_DIRECT;
    uint32_t n = direct ? way->callers : way->proxies < way->qps ? way->proxies : way->qps;
    *sets = (struct sets){.qps = way->qps / n};
    if (way->qps % n != 0)
        return -ENODATA;
    const struct sstar_link_attr attr = {
        .queue_pairs = sets->qps, .puts = QUEUE / 4 * sets->qps, .posts = true};
    /* The other rank is passive, and needs nobody to post for it. */
    world->config.control = sstar_rank(world) == 0 ? way->control : SSTAR_CONTROL_DIRECT;
    for (; sets->n < n && !err; sets->n += !err)
        err = sstar_links_open(world, &peer, 1, &attr, &sets->links[sets->n]);
    if (!err && sstar_rank(world) == 0)
        err = method_apply(sets, way);
    return err;
}

static void callers_fill(struct path_test *test, const struct path_way *way, struct sets *sets,
                         struct caller *callers, _Atomic uint32_t *ready)
{
    bool direct = way->control == SSTAR_CONTROL_DIRECT;
    for (uint32_t i = 0; i < way->callers; i++) {
        struct sstar_links *links = sets->links[i % sets->n];
        uint32_t users = (way->callers + sets->n - 1) / sets->n, place = i / sets->n;
        uint32_t share = sets->qps > users ? sets->qps / users : 1;
        callers[i] = (struct caller){.test = test,
                                     .way = way,
                                     .link = sstar_links_to(links, 1),
                                     .direct = direct ? links->carrier : NULL,
                                     .ready = ready,
                                     .first_qp = place * share % sets->qps,
                                     .offset = i % sets->n * stride(test),
                                     .n_qps = share};
    }
}

/* ---- posting -------------------------------------------------------------------------------- */

static struct sstar_one_sided operation(struct caller *c, uint32_t qp)
{
    const struct path_way *way = c->way;
    bool here = way->in_line && way->bytes <= DESCRIPTOR_WORD_BYTES;
    return (struct sstar_one_sided){
        .kind = SSTAR_PUT,
        .flags = here           ? SSTAR_INLINE
                 : way->in_line ? 0
                                : POST_NOT_INLINE,
        .queue_pair = c->first_qp + qp,
        .bytes = (uint32_t)way->bytes,
        .local = c->test->memory,
        .region = here ? NULL : c->test->region,
        .remote = &c->test->remote,
        .offset = c->offset,
        .completion = &c->completion,
    };
}

static void progress(struct caller *c)
{
    if (c->direct)
        carrier_poll(c->direct);
}

static int post(struct caller *c, const struct sstar_one_sided *ops, int n)
{
    int err;
    while ((err = sstar_post(c->link, ops, n)) == -EAGAIN) {
        progress(c);
        if (!c->direct)
            sched_yield();
    }
    c->posted += err ? 0 : (uint64_t)n;
    return err;
}

/* Until at most `left` are under way. */
static int await(struct caller *c, uint64_t left)
{
    uint64_t until = 0;
    for (uint32_t i = 1; sstar_completed(&c->completion) + left < c->posted; i++) {
        progress(c);
        if (i % 1024 != 0)
            continue;
        uint64_t now = clock_ns();
        until = until ? until : now + WAIT_S * 1000000000ull;
        if (now > until)
            return -ETIMEDOUT;
        if (i > 65536)
            sched_yield();
    }
    return c->completion.error;
}

/* ---- lone messages -------------------------------------------------------------------------- */

static void lone_one(struct caller *c, const struct sstar_one_sided *op)
{
    c->err = post(c, op, 1);
    if (!c->err)
        c->err = await(c, 0);
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
    struct sstar_one_sided plain = operation(c, 0), stamped;
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

/* Both ranks go through this: open, rank 0 measures, close. What only rank 0 sees is told. */
static int with_sets(struct path_test *test, const struct path_way *way, void *result,
                     int (*measure)(struct path_test *test, const struct path_way *way,
                                    struct sets *sets, void *result))
{
    struct sets sets;
    int mine[2] = {0}, all[2][2];
    int err = sets_open(test, way, &sets);
    if (err && err != -ENODATA)
        return err;
    if (!err && sstar_rank(test->world) == 0)
        err = measure(test, way, &sets, result);
    mine[0] = err;
    int told = sstar_allgather(test->world, mine, sizeof(mine), all);
    sets_close(&sets);
    return told ? told : all[0][0];
}

int path_lone(struct path_test *test, const struct path_way *way, struct path_lone *lone)
{
    struct path_way alone = *way;
    alone.callers = alone.qps = alone.batch = alone.signal = alone.proxies = 1;
    *lone = (struct path_lone){0};
    return with_sets(test, &alone, lone, lone_measure);
}

/* ---- streams -------------------------------------------------------------------------------- */

static void *stream_main(void *arg)
{
    struct caller *c = arg;
    const struct path_way *way = c->way;
    struct sstar_one_sided ops[PATH_MOST_QPS][SSTAR_POST_MOST];
    uint64_t window = 2ull * (way->batch > way->signal ? way->batch : way->signal);
    uint32_t at = 0, qp = 0;
    window = window < 128 ? 128 : window;
    for (uint32_t q = 0; q < c->n_qps; q++)
        for (uint32_t i = 0; i < way->batch; i++) {
            ops[q][i] = operation(c, q);
            ops[q][i].flags |= i + 1 < way->batch ? SSTAR_MORE : 0;
        }
    atomic_fetch_add(c->ready, 1);
    while (atomic_load(c->ready) < way->callers)
        sched_yield();
    uint64_t until = clock_ns() + (uint64_t)(c->test->seconds * 1e9);
    c->begun_ns = clock_ns();
    for (uint32_t batches = 0; !c->err; batches++) {
        if (batches % 16 == 0 && clock_ns() >= until)
            break;
        for (uint32_t i = 0; i < way->batch; i++) {
            bool tell = ++at % way->signal == 0;
            ops[qp][i].flags = (ops[qp][i].flags & ~SSTAR_TELL) | (tell ? SSTAR_TELL : 0);
        }
        c->err = post(c, ops[qp], (int)way->batch);
        /* A queue pair gets as many as one completion covers before the next has its turn. */
        if (at % (way->signal > way->batch ? way->signal : way->batch) == 0)
            qp = qp + 1 == c->n_qps ? 0 : qp + 1;
        if (!c->err && c->posted - sstar_completed(&c->completion) > window)
            c->err = await(c, window / 2);
    }
    /* The last of each queue pair says when all are done. */
    for (uint32_t q = 0; q < c->n_qps && !c->err; q++) {
        struct sstar_one_sided last = operation(c, q);
        last.flags |= SSTAR_TELL;
        c->err = post(c, &last, 1);
    }
    if (!c->err)
        c->err = await(c, 0);
    c->ended_ns = clock_ns();
    return NULL;
}

static void totals(const struct sets *sets, uint64_t *wqes, uint64_t *doorbells, uint64_t *cqes)
{
    *wqes = *doorbells = *cqes = 0;
    for (uint32_t i = 0; i < sets->n; i++) {
        const struct sstar_link *link = sstar_links_to(sets->links[i], 1);
        const struct carrier *c = sets->links[i]->carrier;
        *cqes += atomic_load(&c->cqes);
        for (uint32_t q = 0; q < link->data_qps; q++) {
            *doorbells += link->qps[q].post.doorbells;
            *wqes += c->lanes[q].posted;
        }
    }
}

static int stream_measure(struct path_test *test, const struct path_way *way, struct sets *sets,
                          void *result)
{
    struct path_rate *rate = result;
    struct caller *callers = aligned_alloc(alignof(struct caller), sizeof(*callers) * way->callers);
    _Atomic uint32_t ready = 0;
    if (!callers)
        return -ENOMEM;
    callers_fill(test, way, sets, callers, &ready);
    int err = path_callers_run(test, way, stream_main, callers, sizeof(*callers));
    uint64_t messages = 0, begun = UINT64_MAX, ended = 0, wqes, doorbells, cqes;
    for (uint32_t i = 0; i < way->callers; i++) {
        err = err ? err : callers[i].err;
        messages += callers[i].posted;
        begun = callers[i].begun_ns < begun ? callers[i].begun_ns : begun;
        ended = callers[i].ended_ns > ended ? callers[i].ended_ns : ended;
    }
    free(callers);
    if (err)
        return err;
    totals(sets, &wqes, &doorbells, &cqes);
    *rate = (struct path_rate){.per_us = (double)messages * 1e3 / (double)(ended - begun),
                               .wqes_per_doorbell = (double)wqes / (double)doorbells,
                               .doorbells_per_message = (double)doorbells / (double)messages,
                               .cqes_per_message = (double)cqes / (double)messages};
    return 0;
}

int path_rate(struct path_test *test, const struct path_way *way, struct path_rate *rate)
{
    *rate = (struct path_rate){0};
    return with_sets(test, way, rate, stream_measure);
}

int path_beta(struct path_test *test, double *bytes_per_ns)
{
    const struct path_way way = {.control = SSTAR_CONTROL_DIRECT,
                                 .method = POST_CHAIN,
                                 .batch = 1,
                                 .signal = 1,
                                 .qps = 1,
                                 .callers = 1,
                                 .proxies = 1,
                                 .bytes = BETA_BYTES};
    struct path_rate rate;
    int err = path_rate(test, &way, &rate);
    *bytes_per_ns = rate.per_us * BETA_BYTES / 1e3;
    return err;
}

/* ---- opening -------------------------------------------------------------------------------- */

int path_open(struct path_test *test)
{
    struct sstar_world *world = test->world;
    struct sstar_remote_region mine, all[2];
    size_t bytes = PATH_MOST_CALLERS * stride(test);
    /* The other rank sleeps, and has no proxy: waiting here takes nobody's core. */
    world->ranks_on_host = 1;
    int err = sstar_alloc(world, bytes, (void **)&test->memory);
    if (!err)
        err = sstar_register(world, test->memory, bytes, &test->region);
    if (err)
        return err;
    sstar_region_describe(test->region, &mine);
    err = sstar_allgather(world, &mine, sizeof(mine), all);
    test->remote = all[1];
    if (!err && sstar_rank(world) == 0) {
        test->clock = stage_calibrate();
        test->line_ns = path_line_ns(test);
    }
    return err ? err : sstar_barrier(world);
}

void path_close(struct path_test *test)
{
    sstar_deregister(test->region);
    if (test->memory)
        sstar_free(test->world, test->memory);
}
