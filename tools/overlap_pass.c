/* SPDX-License-Identifier: MIT */
/*
 * One backward pass. Layers are computed from last to first; when a bucket's layers are done its
 * AllReduce is due, and it is started when the one before the last has ended: they are carried out
 * in turn, as on one stream of a GPU, and while one waits for its peers the wire has the other's
 * data. Between slices of the computation the caller looks whether the next can be started.
 */
#include "tools/overlap.h"

/* A look wakes the progress thread, which costs two switches of the core; without it a look is what
 * moves things on, and must come often. */
enum { THREAD_SLICE_US = 300, CALLS_SLICE_US = 50 };

int pass_buckets(const size_t *elements, int layers, size_t least, struct bucket *buckets)
{
    int n = 0;
    size_t first = 0, at = 0;
    for (int i = 0; i < layers; i++) {
        at += elements[i];
        if (at > first && (at - first >= least || i == layers - 1)) {
            buckets[n++] = (struct bucket){first, at - first, i};
            first = at;
        }
    }
    return n;
}

/* Start what is due, as far as there is a plan for it. */
static int start_due(struct pass *p)
{
    int done = 1;
    while (done > 0 && p->done < p->next && p->progress != PROGRESS_NONE) {
        done = sstar_collective_test(p->plans[p->done % PASS_UNDER_WAY]);
        if (done < 0)
            return done;
        p->done += done;
    }
    for (; p->next < p->ready && p->next - p->done < PASS_UNDER_WAY; p->next++) {
        const struct bucket *b = &p->buckets[p->next];
        float *at = p->vector + b->first;
        int err = sstar_collective_start(p->plans[p->next % PASS_UNDER_WAY], at, at, b->count,
                                         SSTAR_FLOAT32, SSTAR_SUM);
        if (err)
            return err;
    }
    return 0;
}

static int compute_layer(struct pass *p, int layer)
{
    uint64_t left = p->computes ? p->units[layer] : 0;
    int slice_us = p->progress == PROGRESS_THREAD ? THREAD_SLICE_US : CALLS_SLICE_US;
    uint64_t slice = (uint64_t)(slice_us * p->work->units_per_us) + 1;
    while (left) {
        uint64_t now = left < slice ? left : slice;
        work_do(p->work, now);
        left -= now;
        int err = start_due(p);
        if (err)
            return err;
    }
    return 0;
}

static int compute_and_start(struct pass *p)
{
    int err = 0;
    for (int i = 0; i < p->layers && !err; i++) {
        err = compute_layer(p, i);
        if (p->reduces && p->ready < p->n_buckets && p->buckets[p->ready].last_layer == i) {
            p->ready++;
            err = err ? err : start_due(p);
        }
    }
    return err;
}

static int end_all(struct pass *p)
{
    int err = 0;
    while (!err && p->done < p->ready) {
        err = start_due(p);
        if (!err && p->done < p->next) {
            err = sstar_collective_wait(p->plans[p->done % PASS_UNDER_WAY]);
            p->done++;
        }
    }
    return err;
}

int pass_run(struct pass *p, struct round_time *time)
{
    p->ready = p->next = p->done = 0;
    int err = sstar_fast_barrier(p->world);
    time->begin_ns = sstar_now_ns(p->world);
    if (!err)
        err = compute_and_start(p);
    if (!err)
        err = end_all(p);
    time->end_ns = sstar_now_ns(p->world);
    return err;
}

double pass_predict(const double *layer_us, int layers, const struct bucket *buckets,
                    const double *bucket_us, int n)
{
    double computed = 0, reduced = 0;
    for (int i = 0, b = 0; i < layers; i++) {
        computed += layer_us[i];
        if (b < n && buckets[b].last_layer == i) {
            reduced = (reduced > computed ? reduced : computed) + bucket_us[b];
            b++;
        }
    }
    return reduced > computed ? reduced : computed;
}
