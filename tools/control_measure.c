/* SPDX-License-Identifier: MIT */
/* Measuring one way to post: lone messages, stage by stage, and streams. */
#include "tools/control_path.h"
#include "transport/link_carrier.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    LONE_MOST = 65536,
    LONE_LEAST = 256,
    LONE_INTERVAL = 64, /* one message in so many is stamped, of few more */
    QUEUE = 512,        /* requests that a queue pair takes */
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
    double *blocks_ns;
    uint32_t n;
    uint32_t interval; /* of stamped ones; 0: none */
    uint32_t block;    /* messages timed together from outside */
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

static void *lone_main(void *arg)
{
    struct caller *c = arg;
    struct sstar_one_sided op = operation(c, 0);
    op.flags |= SSTAR_TELL;
    const struct sstar_one_sided plain = op;
    struct stamped stamp;
    op.flags |= POST_STAMPED;
    op.add = (uintptr_t)&stamp;
    uint64_t last = clock_ns();
    uint32_t to_stamp = c->interval ? c->interval / 2 : UINT32_MAX, sample = 0;
    for (uint32_t left = c->n, of_block = c->block, block = 0; left > 0 && !c->err; left--) {
        bool stamped = to_stamp-- == 0;
        if (stamped) {
            stamp.stamps = &c->stamps[sample];
            stamp.written = stage_now();
        }
        c->err = post(c, stamped ? &op : &plain, 1);
        if (!c->err)
            c->err = await(c, 0);
        if (stamped) {
            c->told[sample++] = stage_now();
            to_stamp = c->interval - 1;
        }
        if (--of_block == 0) {
            uint64_t now = clock_ns();
            c->blocks_ns[block++] = (double)(now - last) / c->block;
            of_block = c->block;
            last = now;
        }
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct path_spread spread(double *values, uint32_t n)
{
    struct path_spread s = {0};
    uint32_t quarter = n / 4;
    qsort(values, n, sizeof(*values), compare);
    for (uint32_t i = quarter; i < n - quarter; i++)
        s.typical_ns += values[i] / (n - 2 * quarter);
    s.median_ns = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    s.p99_ns = values[(uint32_t)(0.99 * (n - 1) + 0.5)];
    s.max_ns = values[n - 1];
    return s;
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

static void lone_reduce(const struct path_test *test, struct caller *c, struct path_lone *lone,
                        double *values)
{
    uint32_t n = lone->samples = c->n / c->interval;
    bool device = c->stamps[0].device > 0;
    lone->interval = c->interval;
    for (int stage = 0; stage < STAGES; stage++) {
        double cost = stage_stamps(device, stage) * test->clock.stamp_ns;
        for (uint32_t i = 0; i < n; i++) /* below 0 by a step of the counter at most */
            values[i] =
                stage_ticks(&c->stamps[i], c->told[i], stage) * test->clock.ns_per_tick - cost;
        lone->stage[stage] = spread(values, n);
    }
}

/* One run from outside: the median of its blocks. */
static int lone_run(struct path_test *test, const struct path_way *way, struct caller *c,
                    uint32_t n, uint32_t interval, double *ns)
{
    c->n = n;
    c->interval = interval;
    int err = path_callers_run(test, way, lone_main, c, sizeof(*c));
    *ns = spread(c->blocks_ns, n / c->block).median_ns;
    return err ? err : c->err;
}

/* How many fit the time, from a short trial, which also warms up. */
static int lone_count(struct path_test *test, const struct path_way *way, struct caller *c,
                      uint32_t *count)
{
    double each;
    c->block = LONE_LEAST / 4;
    int err = lone_run(test, way, c, LONE_LEAST, 0, &each);
    double n = test->seconds * 1e9 / each;
    n = n > LONE_MOST ? LONE_MOST : n < LONE_LEAST ? LONE_LEAST : n;
    *count = (uint32_t)n / LONE_INTERVAL * LONE_INTERVAL;
    c->block = *count >= LONE_INTERVAL * LONE_INTERVAL ? LONE_INTERVAL : *count / LONE_INTERVAL;
    *count -= *count % c->block;
    return err;
}

static int lone_measure(struct path_test *test, const struct path_way *way, struct sets *sets,
                        struct path_lone *lone)
{
    struct caller *c = aligned_alloc(64, sizeof(*c));
    struct stage_stamps *stamps =
        aligned_alloc(alignof(struct stage_stamps), LONE_MOST * sizeof(*stamps));
    uint64_t *told = calloc(LONE_MOST, sizeof(*told));
    double *values = calloc(LONE_MOST, sizeof(*values)), stamped_ns;
    uint32_t n = 0;
    int err = c && stamps && told && values ? 0 : -ENOMEM;
    if (!err) {
        callers_fill(test, way, sets, c, NULL);
        c->stamps = stamps;
        c->told = told;
        c->blocks_ns = values;
        err = lone_count(test, way, c, &n);
    }
    if (!err)
        err = lone_run(test, way, c, n, 0, &lone->alpha_ns);
    if (!err)
        err = lone_run(test, way, c, n, c->block, &stamped_ns);
    if (!err) {
        lone_reduce(test, c, lone, values);
    }
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

static int lone_any(struct path_test *test, const struct path_way *way, struct sets *sets,
                    void *result)
{
    return lone_measure(test, way, sets, result);
}

int path_lone(struct path_test *test, const struct path_way *way, struct path_lone *lone)
{
    struct path_way alone = *way;
    alone.callers = alone.qps = alone.batch = alone.signal = alone.proxies = 1;
    *lone = (struct path_lone){0};
    return with_sets(test, &alone, lone, lone_any);
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
    struct caller *callers = aligned_alloc(64, sizeof(*callers) * way->callers);
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
