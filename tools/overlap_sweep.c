/* SPDX-License-Identifier: MIT */
/* sstar overlap on one rank: bucket size after bucket size, to table and record. */
#include "tools/overlap_sweep.h"
#include "collectives/element.h"
#include "tools/record.h"
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
    char device_class[24];
    size_t elements, *layer_elements; /* in backward order, as all of these */
    uint64_t *units;
    double *layer_us, *bucket_us; /* the latter: prices */
    struct bucket *buckets;
    struct round_time *times;
    double whole_us,
        compute_us; /* alone: the AllReduce of all in one piece; computing, as it should be */
    uint64_t wrong;
    json_t *rows, *best; /* rank 0 */
};

static const struct column columns[] = {
    {"bucket_MiB", "bucket(MiB)", "%g", 11},
    {"bucket_bytes", "sent(B)", "%d", 10},
    {"buckets", "buckets", "%d", 7},
    {"time_us", "time(us)", "%.0f", 10},
    {"predicted_us", "predicted", "%.0f", 10},
    {"ratio", "ratio", "%.3f", 6},
    {"compute_us", "compute", "%.0f", 10},
    {"reduce_us", "AllReduces", "%.0f", 10},
    {"hidden_percent", "hidden%", "%.1f", 7},
    {"stands_for_us", "stands for", "%.0f", 10},
    {"cpu_percent", "cpu%", "%.0f", 5},
    {"taken_percent", "taken%", "%.1f", 6},
    {"wrong", "wrong", "%d", 5},
    {"note", "", "%s", 4},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

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

/* What is timed, in turn, so that a drift of the machine hits all alike. */
enum kind { REDUCING, COMPUTING, BOTH, KINDS };
struct timing {
    double us[KINDS];     /* medians of the rounds */
    double cpu_us[KINDS]; /* processor time of this rank, mean */
};

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
    if (!s->rows || sstar_node_count(s->world) == 1)
        return 0;
    for (int b = 0; b < p->n_buckets; b++) {
        struct sstar_price price;
        int err = sstar_collective_price(p->plans[0], p->buckets[b].count, SSTAR_FLOAT32, &price);
        if (err)
            return err;
        s->bucket_us[b] = price.us;
    }
    for (int i = 0; i < p->layers; i++)
        s->layer_us[i] = layer_at(s, i)->weight * compute_us;
    *us = pass_predict(s->layer_us, p->layers, p->buckets, s->bucket_us, p->n_buckets);
    return 0;
}

static void add_row(struct sweep *s, double bucket_mib, size_t bucket_bytes, const struct timing *t,
                    double predicted_us, uint64_t wrong)
{
    json_t *row = json_object();
    bool priced = predicted_us > 0;
    double us = t->us[BOTH], alone_us = t->us[REDUCING] + t->us[COMPUTING];
    double hidden = 100 * (alone_us - us) / t->us[REDUCING];
    json_object_set_new(row, "bucket_MiB", record_real(bucket_mib));
    json_object_set_new(row, "bucket_bytes", json_integer((json_int_t)bucket_bytes));
    json_object_set_new(row, "buckets", json_integer(s->pass.n_buckets));
    json_object_set_new(row, "time_us", record_real(us));
    json_object_set_new(row, "predicted_us", priced ? record_real(predicted_us) : json_null());
    json_object_set_new(row, "ratio", priced ? record_real(us / predicted_us) : json_null());
    json_object_set_new(row, "compute_us", record_real(t->us[COMPUTING]));
    json_object_set_new(row, "reduce_us", record_real(t->us[REDUCING]));
    /* More than all is not hidden: what was timed alone was disturbed. */
    json_object_set_new(row, "hidden_percent", hidden <= 100 ? record_real(hidden) : json_null());
    json_object_set_new(row, "stands_for_us", record_real(us / s->arguments->time_scale));
    json_object_set_new(row, "cpu_percent", record_real(100 * t->cpu_us[BOTH] / us));
    json_object_set_new(row, "taken_percent",
                        record_real(100 * (t->cpu_us[BOTH] - t->cpu_us[COMPUTING]) / us));
    json_object_set_new(row, "wrong", json_integer((json_int_t)wrong));
    json_object_set_new(row, "device", json_string(s->device_class));
    json_array_append_new(s->rows, row);
    if (!s->best || us < json_number_value(json_object_get(s->best, "time_us")))
        s->best = row;
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
    if (!err && s->rows)
        add_row(s, bucket_mib, elements * sizeof(float), &timing, predicted_us, wrong);
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
 * not change as it does what ranks add; on one node as measured. */
static int reduce_whole(struct sweep *s)
{
    struct sstar_price price;
    struct timing timing;
    int err = 0;
    if (sstar_node_count(s->world) > 1) {
        err = sstar_collective_price(s->pass.plans[0], s->elements, SSTAR_FLOAT32, &price);
        s->whole_us = err ? 0 : price.wire_us;
        return err;
    }
    s->pass.n_buckets = pass_buckets(s->layer_elements, s->pass.layers, s->elements, s->buckets);
    err = time_passes(s, &timing); /* nothing is computed yet */
    s->whole_us = timing.us[REDUCING];
    return err;
}

/* From that how long the pass computes. */
static int set_computation(struct sweep *s)
{
    const struct overlap_arguments *a = s->arguments;
    int err = reduce_whole(s);
    s->compute_us = a->compute > 0               ? a->compute * s->whole_us
                    : s->layers.microseconds > 0 ? s->layers.microseconds * a->time_scale
                                                 : s->whole_us;
    for (int i = 0; i < s->layers.n && !err; i++)
        s->units[i] = (uint64_t)(layer_at(s, i)->weight * s->compute_us * s->work.units_per_us);
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
    strcpy(s->device_class, "memory");
    if (!err && sstar_node_count(s->world) > 1 && !(err = sstar_device_info(s->world, &device)))
        strcpy(s->device_class, device.device_class);
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

static const char *const progress_names[] = {"a thread of the library", "calls while computing",
                                             "nothing"};

static void print_head(const struct sweep *s)
{
    const struct overlap_arguments *a = s->arguments;
    printf("# sstar overlap: %s, %d layers, %.4g M parameters in float32, %d ranks on %s, %s; "
           "moved on by %s\n",
           a->path, s->layers.n, s->layers.parameters / 1e6, sstar_size(s->world),
           nodes_text(sstar_node_count(s->world)).text, s->device_class,
           progress_names[a->progress]);
    printf("# computation set to %.0f us; all gradients in one AllReduce %.0f us\n", s->compute_us,
           s->whole_us);
    if (a->time_scale != 1 || a->size_scale != 1)
        printf("# times here are %g times as long, sizes 1/%g of what they stand for\n",
               a->time_scale, a->size_scale);
    table_head(stdout, columns, COLUMNS);
}

static double real(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

/* The same work takes longer only if somebody else had the core. */
static void say_disturbed(const struct sweep *s)
{
    const double far = 1.5;
    double most = 0;
    const json_t *row;
    size_t i;
    json_array_foreach(s->rows, i, row) if (real(row, "compute_us") > most) most =
        real(row, "compute_us");
    if (most > far * s->compute_us)
        printf("# computing alone took up to %.1f times what it was set to: others use the cores, "
               "or ranks share them; what is hidden, and which size is best, may be chance\n",
               most / s->compute_us);
}

static void print_rows(const struct sweep *s)
{
    size_t i;
    json_t *row;
    const json_t *small = json_array_get(s->rows, 0);
    const json_t *large = json_array_get(s->rows, json_array_size(s->rows) - 1);
    if (s->best)
        json_object_set_new(s->best, "note", json_string("best"));
    json_array_foreach(s->rows, i, row) table_row(stdout, columns, COLUMNS, row);
    say_disturbed(s);
    char hidden[64] = "";
    if (s->best && json_is_real(json_object_get(s->best, "hidden_percent")))
        snprintf(hidden, sizeof hidden, ", %.1f %% of the AllReduces hidden",
                 real(s->best, "hidden_percent"));
    if (s->best)
        printf("# best: buckets of %g MiB%s; %g MiB takes %.2f times "
               "as long, %g MiB %.2f times\n",
               real(s->best, "bucket_MiB"), hidden, real(small, "bucket_MiB"),
               real(small, "time_us") / real(s->best, "time_us"), real(large, "bucket_MiB"),
               real(large, "time_us") / real(s->best, "time_us"));
}

static int write_record(const struct sweep *s)
{
    const struct overlap_arguments *a = s->arguments;
    json_t *record = record_new(s->world, "overlap");
    json_object_set_new(record, "file", record_string(a->path));
    json_object_set_new(record, "parameters", record_real(s->layers.parameters));
    json_object_set_new(record, "compute_us", record_real(s->compute_us));
    json_object_set_new(record, "whole_us", record_real(s->whole_us));
    json_object_set_new(record, "time_scale", record_real(a->time_scale));
    json_object_set_new(record, "size_scale", record_real(a->size_scale));
    json_object_set_new(record, "progress", json_string(progress_names[a->progress]));
    json_object_set(record, "overlap", s->rows);
    int status = record_write_json(record, a->common.json) ||
                 record_write_csv(record, "overlap", a->common.csv);
    json_decref(record);
    return status;
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
    if (s->rows) {
        print_head(s);
        print_rows(s);
        *status = write_record(s);
    }
    if (s->wrong) {
        *status = EXIT_FAILURE;
        if (s->rows)
            fprintf(stderr, "sstar overlap: %llu sums are wrong\n", (unsigned long long)s->wrong);
    }
    return 0;
}

int overlap_run(struct sstar_world *world, void *arguments, int *status)
{
    struct sweep s = {.world = world, .arguments = arguments};
    char error[512];
    s.rows = sstar_rank(world) == 0 ? json_array() : NULL;
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
    json_decref(s.rows);
    return err;
}
