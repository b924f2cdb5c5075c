/* SPDX-License-Identifier: MIT */
/* Streams: message rate, bandwidth. */
#include "tools/control_callers.h"
#include <errno.h>
#include <stdlib.h>

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
            ops[q][i] = caller_operation(c, q);
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
        c->err = caller_post(c, ops[qp], (int)way->batch);
        /* A queue pair gets as many as one completion covers before the next has its turn. */
        if (at % (way->signal > way->batch ? way->signal : way->batch) == 0)
            qp = qp + 1 == c->n_qps ? 0 : qp + 1;
        if (!c->err && c->posted - sstar_completed(&c->completion[c->at]) > window)
            c->err = caller_await(c, window / 2);
    }
    /* The last of each queue pair says when all are done. */
    for (uint32_t q = 0; q < c->n_qps && !c->err; q++) {
        struct sstar_one_sided last = caller_operation(c, q);
        last.flags |= SSTAR_TELL;
        c->err = caller_post(c, &last, 1);
    }
    if (!c->err)
        c->err = caller_await(c, 0);
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
    return path_with_sets(test, way, rate, stream_measure);
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
                                 .bytes = PATH_BETA_BYTES};
    struct path_rate rate;
    int err = path_rate(test, &way, &rate);
    *bytes_per_ns = rate.per_us * PATH_BETA_BYTES / 1e3;
    return err;
}
