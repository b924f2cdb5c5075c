/* SPDX-License-Identifier: MIT */
/*
 * sstar overlap: the gradients of a backward pass are reduced in buckets while it computes on. The
 * layers (overlap_layers.c), the arithmetic (overlap_work.c), a pass (overlap_pass.c), the sweep
 * and the command (overlap.c). Private to tools.
 */
#ifndef SSTAR_TOOLS_OVERLAP_H
#define SSTAR_TOOLS_OVERLAP_H

#include "collectives/collectives.h"
#include "collectives/rounds.h"
#include <stdbool.h>

/* A file, plain or gzip: the line layer,parameters or layer,parameters,flops or
 * layer,parameters,microseconds, then one line for each layer, first to last; # begins a comment.
 */
struct layer {
    double parameters, weight; /* share of the computation; all together 1 */
};
struct layers {
    int n;
    struct layer *layers; /* in the order of the file, which is that of the forward pass */
    double parameters;
    double microseconds; /* of the whole, if the file says so; else 0 */
};
/* 0, or a negative errno with a sentence (file, line) in `error`. */
int layers_read(const char *path, struct layers *out, char *error, size_t error_size);
void layers_free(struct layers *layers);

/* Arithmetic that keeps a core busy: so many units, each the same work. */
struct work {
    double units_per_us;
    float values[256];
};
/* Time it on this core, now. */
void work_calibrate(struct work *work);
void work_do(struct work *work, uint64_t units);

enum overlap_progress { PROGRESS_THREAD, PROGRESS_CALLS, PROGRESS_NONE };

struct bucket {
    size_t first, count; /* elements of the vector */
    int last_layer;      /* that must be done before, counted in backward order */
};
enum { PASS_UNDER_WAY = 2 }; /* AllReduces */

/* What a pass works on. Layers stand in backward order here. */
struct pass {
    struct sstar_world *world;
    struct sstar_collective *plans[PASS_UNDER_WAY];
    enum overlap_progress progress;
    struct work *work;
    const uint64_t *units; /* [layers] */
    int layers;
    float *vector;
    const struct bucket *buckets;
    int n_buckets;
    bool computes, reduces; /* at least one of them */
    /* Now: */
    int ready, next, done; /* buckets: computed, started, reduced */
};
/* Cut the layers (elements of each, backward order) into buckets of at least `least` elements: how
 * many; `buckets` has room for as many as there are layers. */
int pass_buckets(const size_t *elements, int layers, size_t least, struct bucket *buckets);
/* Once, from a barrier until all is computed and reduced. Collective. */
int pass_run(struct pass *pass, struct round_time *time);
/* What that should take: layer times, price of each bucket's AllReduce; one at a time. */
double pass_predict(const double *layer_us, int layers, const struct bucket *buckets,
                    const double *bucket_us, int n);

#endif
