/* SPDX-License-Identifier: MIT */
/* sstar overlap on one rank: bucket size after bucket size, to table and record. */
#include "collectives/element.h"
#include "tools/overlap_table.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const double mib = 1 << 20;

struct sweep {
    struct sstar_world *world;
    const struct overlap_arguments *arguments;
    struct layers layers;
    struct work work;
    struct pass pass;
    struct overlap_table table;
    size_t elements, *layer_elements; /* in backward order, as all of these */
    uint64_t *units;
    double *layer_us, *bucket_us; /* the latter: prices */
    struct bucket *buckets;
    struct round_time *times;
    uint64_t wrong;
};

/* ---- passes -------------------------------------------------------------------------------------
 */

/* Counted in backward order. */
static const struct layer *layer_at(const struct sweep *s, int i)
{
    return &s->layers.layers[s->layers.n - 1 - i];
}

static double cpu_us(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int one_pass(struct sweep *s, enum kind kind, struct round_time *time, double *cpu)
{
    double begun = cpu_us();
    s->pass.computes = kind != REDUCING;
    s->pass.reduces = kind != COMPUTING;
    int err = pass_run(&s->pass, time);
    *cpu += cpu_us() - begun;
    return err;
}

static int time_passes(struct sweep *s, struct timing *timing)
{
    int rounds = s->arguments->rounds, err = 0;
    *timing = (struct timing){0};
    for (int i = 0; i < rounds && !err; i++)
        for (int kind = 0; kind < KINDS && !err; kind++)
            err = one_pass(s, (enum kind)kind, &s->times[kind * rounds + i], &timing->cpu_us[kind]);
    for (int kind = 0; kind < KINDS && !err; kind++) {
        timing->cpu_us[kind] /= rounds;
        err = rounds_median(s->world, s->times + kind * rounds, (size_t)rounds, &timing->us[kind]);
    }
    return err;
}

/* One pass whose sums are known; then zeros, which stay what they are. */
static int check(struct sweep *s, uint64_t *wrong)
{
    int rank = sstar_rank(s->world), size = sstar_size(s->world);
    uint64_t salt = s->arguments->common.seed, mine = 0, *all;
    struct round_time ignored;
    for (size_t i = 0; i < s->elements; i++)
        s->pass.vector[i] = (float)element_of_rank(rank, size, i, salt, SSTAR_FLOAT32, SSTAR_SUM);
    s->pass.computes = s->pass.reduces = true;
    int err = pass_run(&s->pass, &ignored);
    for (size_t i = 0; i < s->elements && !err; i++)
        mine += s->pass.vector[i] != element_reduced(size, i, salt, SSTAR_FLOAT32, SSTAR_SUM);
    memset(s->pass.vector, 0, s->elements * sizeof *s->pass.vector);
    all = calloc((size_t)size, sizeof *all);
    if (!err)
        err = all ? sstar_allgather(s->world, &mine, sizeof mine, all) : -ENOMEM;
    *wrong = 0;
    for (int r = 0; r < size && !err; r++)
        *wrong += all[r];
    free(all);
    return err;
}

/* ---- a bucket size ------------------------------------------------------------------------------
 */

static int predict(struct sweep *s, double compute_us, double *us)
{
    const struct pass *p = &s->pass;
    *us = 0;
    if (!s->table.rows || sstar_node_count(s->world) == 1)
        return 0;
    for (int b = 0; b < p->n_buckets; b++) {
        struct sstar_price price;
        int err = sstar_collective_price(p->plans[0], p->buckets[b].count, SSTAR_FLOAT32, &price);
        if (err || price.us <= 0) /* no price where an algorithm was asked for */
            return err;
        s->bucket_us[b] = price.us;
    }
    for (int i = 0; i < p->layers; i++)
        s->layer_us[i] = layer_at(s, i)->weight * compute_us;
    *us = pass_predict(s->layer_us, p->layers, p->buckets, s->bucket_us, p->n_buckets);
    return 0;
}

static int one_size(struct sweep *s, double bucket_mib)
{
    struct timing timing;
    double least = bucket_mib * mib / s->arguments->size_scale / sizeof(float), predicted_us = 0;
    size_t elements = least < 1 ? 1 : (size_t)least;
    uint64_t wrong = 0;
    s->pass.n_buckets = pass_buckets(s->layer_elements, s->pass.layers, elements, s->buckets);
    int err = check(s, &wrong);
    if (!err)
        err = time_passes(s, &timing);
    if (!err)
        err = predict(s, timing.us[COMPUTING], &predicted_us);
    s->wrong += wrong;
    if (!err && s->table.rows)
        overlap_table_add(&s->table, bucket_mib, elements * sizeof(float), s->pass.n_buckets,
                          &timing, predicted_us, wrong);
    return err;
}

/* ---- before and after ---------------------------------------------------------------------------
 */

static int allocate(struct sweep *s)
{
    size_t n = (size_t)s->layers.n;
    s->layer_elements = calloc(n, sizeof *s->layer_elements);
    s->units = calloc(n, sizeof *s->units);
    s->layer_us = calloc(n, sizeof *s->layer_us);
    s->bucket_us = calloc(n, sizeof *s->bucket_us);
    s->buckets = calloc(n, sizeof *s->buckets);
    s->times = calloc((size_t)s->arguments->rounds * KINDS, sizeof *s->times);
    if (!s->layer_elements || !s->units || !s->layer_us || !s->bucket_us || !s->buckets ||
        !s->times)
        return world_fail(s->world, -ENOMEM, "no memory for %zu layers", n);
    for (size_t i = 0; i < n; i++) {
        const struct layer *layer = layer_at(s, (int)i);
        double elements = layer->parameters / s->arguments->size_scale;
        s->layer_elements[i] = layer->parameters < 1 ? 0 : elements < 1 ? 1 : (size_t)elements;
        s->elements += s->layer_elements[i];
    }
    void *vector;
    int err = sstar_alloc(s->world, s->elements * sizeof(float), &vector);
    if (!err)
        s->pass.vector = vector;
    return err;
}

/* The slowest rank's speed, so that all do the same work. */
static int agree_on_speed(struct sweep *s)
{
    int size = sstar_size(s->world);
    double *all = calloc((size_t)size, sizeof *all);
    int err = all ? sstar_barrier(s->world) : -ENOMEM;
    work_calibrate(&s->work);
    if (!err)
        err = sstar_allgather(s->world, &s->work.units_per_us, sizeof *all, all);
    for (int r = 0; r < size && !err; r++)
        if (all[r] < s->work.units_per_us)
            s->work.units_per_us = all[r];
    free(all);
    return err;
}

/* How long the whole takes to be reduced: what the wire needs for it, which the machine's load does
 * not change as it does what ranks add; on one node, and where an algorithm was asked for, which
 * has no price, as measured. */
static int reduce_whole(struct sweep *s)
{
    struct sstar_price price = {0};
    struct timing timing;
    int err = 0;
    if (sstar_node_count(s->world) > 1)
        err = sstar_collective_price(s->pass.plans[0], s->elements, SSTAR_FLOAT32, &price);
    if (err || price.wire_us > 0) {
        s->table.whole_us = price.wire_us;
        return err;
    }
    s->pass.n_buckets = pass_buckets(s->layer_elements, s->pass.layers, s->elements, s->buckets);
    err = time_passes(s, &timing); /* nothing is computed yet */
    s->table.whole_us = timing.us[REDUCING];
    return err;
}

/* From that how long the pass computes. */
static int set_computation(struct sweep *s)
{
    const struct overlap_arguments *a = s->arguments;
    int err = reduce_whole(s);
    s->table.compute_us = a->compute > 0               ? a->compute * s->table.whole_us
                          : s->layers.microseconds > 0 ? s->layers.microseconds * a->time_scale
                                                       : s->table.whole_us;
    for (int i = 0; i < s->layers.n && !err; i++)
        s->units[i] =
            (uint64_t)(layer_at(s, i)->weight * s->table.compute_us * s->work.units_per_us);
    return err;
}

static int prepare(struct sweep *s)
{
    struct sstar_collective_attr attr = {.operation = SSTAR_ALL_REDUCE,
                                         .progress_thread =
                                             s->arguments->progress == PROGRESS_THREAD};
    struct sstar_device_info device;
    int err = allocate(s);
    for (int i = 0; i < PASS_UNDER_WAY && !err; i++)
        err = sstar_collective_open(s->world, &attr, &s->pass.plans[i]);
    strcpy(s->table.device_class, "memory");
    if (!err && sstar_node_count(s->world) > 1 && !(err = sstar_device_info(s->world, &device)))
        strcpy(s->table.device_class, device.device_class);
    s->pass.world = s->world;
    s->pass.progress = s->arguments->progress;
    s->pass.work = &s->work;
    s->pass.units = s->units;
    s->pass.layers = s->layers.n;
    s->pass.buckets = s->buckets;
    if (!err)
        err = agree_on_speed(s);
    return err ? err : set_computation(s);
}

static int all_sizes(struct sweep *s, int *status)
{
    const struct overlap_arguments *a = s->arguments;
    int err = prepare(s);
    for (int i = 0; i < a->n_buckets && !err; i++) {
        progress_show(&a->common, s->world, "overlap", (double)i / a->n_buckets);
        err = one_size(s, a->buckets[i]);
    }
    progress_clear(&a->common, s->world);
    if (err)
        return err;
    if (s->table.rows) {
        overlap_table_print(&s->table);
        *status = overlap_table_write(&s->table);
    }
    if (s->wrong) {
        *status = EXIT_FAILURE;
        if (s->table.rows)
            fprintf(stderr, "sstar overlap: %llu sums are wrong\n", (unsigned long long)s->wrong);
    }
    return 0;
}

int overlap_run(struct sstar_world *world, void *arguments, int *status)
{
    struct sweep s = {.world = world, .arguments = arguments};
    char error[512];
    s.table = (struct overlap_table){.world = world, .arguments = arguments, .layers = &s.layers};
    s.table.rows = sstar_rank(world) == 0 ? json_array() : NULL;
    int err = layers_read(s.arguments->path, &s.layers, error, sizeof error);
    err = err ? world_fail(world, err, "%s", error) : all_sizes(&s, status);
    for (int i = 0; i < PASS_UNDER_WAY; i++)
        sstar_collective_close(s.pass.plans[i]);
    if (s.pass.vector)
        sstar_free(world, s.pass.vector);
    free(s.times);
    free(s.buckets);
    free(s.bucket_us);
    free(s.layer_us);
    free(s.units);
    free(s.layer_elements);
    layers_free(&s.layers);
    json_decref(s.table.rows);
    return err;
}
