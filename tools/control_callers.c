/* SPDX-License-Identifier: MIT */
#include "tools/control_callers.h"
#include <errno.h>
#include <sched.h>

enum { WAIT_S = 20 };

/* A set's place in the passive memory: sets are posted by threads of their own. */
static uint64_t stride(const struct path_test *test)
{
    uint64_t bytes = test->max_bytes > PATH_BETA_BYTES ? test->max_bytes : PATH_BETA_BYTES;
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
        .queue_pairs = sets->qps, .puts = PATH_QUEUE / 4 * sets->qps, .posts = true};
    /* The other rank is passive, and needs nobody to post for it. */
    world->config.control = sstar_rank(world) == 0 ? way->control : SSTAR_CONTROL_DIRECT;
    for (; sets->n < n && !err; sets->n += !err)
        err = sstar_links_open(world, &peer, 1, &attr, &sets->links[sets->n]);
    if (!err && sstar_rank(world) == 0)
        err = method_apply(sets, way);
    return err;
}

int path_with_sets(struct path_test *test, const struct path_way *way, void *result,
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
void callers_fill(struct path_test *test, const struct path_way *way, struct sets *sets,
                  struct caller *callers, _Atomic uint32_t *ready)
{
    bool direct = way->control == SSTAR_CONTROL_DIRECT;
    int cores = CPU_COUNT(&test->world->allowed) - (int)way->proxies;
    for (uint32_t i = 0; i < way->callers; i++) {
        struct sstar_links *links = sets->links[i % sets->n];
        uint32_t users = (way->callers + sets->n - 1) / sets->n, place = i / sets->n;
        uint32_t share = sets->qps > users ? sets->qps / users : 1;
        callers[i] = (struct caller){.test = test,
                                     .way = way,
                                     .link = sstar_links_to(links, 1),
                                     .direct = direct ? links->carrier : NULL,
                                     .share_core = !direct && (int)way->callers > cores,
                                     .ready = ready,
                                     .first_qp = place * share % sets->qps,
                                     .offset = i % sets->n * stride(test),
                                     .n_qps = share};
    }
}

/* ---- posting -------------------------------------------------------------------------------- */

struct sstar_one_sided caller_operation(struct caller *c, uint32_t qp)
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
        .completion = &c->completion[c->at],
    };
}

static void progress(struct caller *c)
{
    if (c->direct)
        carrier_poll(c->direct);
}

int caller_post(struct caller *c, const struct sstar_one_sided *ops, int n)
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

int caller_await(struct caller *c, uint64_t left)
{
    uint64_t until = 0;
    for (uint32_t i = 1; sstar_completed(&c->completion[c->at]) + left < c->posted; i++) {
        progress(c);
        if (c->share_core)
            sched_yield(); /* who spins keeps those away who could write */
        if (i % 1024 != 0)
            continue;
        uint64_t now = clock_ns();
        until = until ? until : now + WAIT_S * 1000000000ull;
        if (now > until)
            return -ETIMEDOUT;
        if (i > 65536)
            sched_yield();
    }
    return c->completion[c->at].error;
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
