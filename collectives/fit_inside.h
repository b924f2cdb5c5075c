/* SPDX-License-Identifier: MIT */
/* What the parts of the fit share: estimates from medians. Private to fit*.c. */
#ifndef SSTAR_COLLECTIVES_FIT_INSIDE_H
#define SSTAR_COLLECTIVES_FIT_INSIDE_H

#include "collectives/fit.h"

/* Bytes per microsecond in a GB/s. */
#define BYTES_PER_US 1e3

/* What is estimated, for the intervals. */
enum { ALPHA, BETA, S_STAR, GAP, STREAM_BETA, S_STAR_RATE, ESTIMATES };

struct fit {
    const struct fit_samples *samples;
    const struct fit_options *options;
    int n;                   /* sizes */
    int used;                /* of which the first so many are fitted */
    int streams;             /* how many sizes have a stream */
    double *scratch;         /* as many as the most samples of a size, rounded up to a block */
    double *x, *y, *sx, *sy; /* [n] each: size and median, lone and stream */
};

/* From the first n of f->x, f->y and of f->sx, f->sy into the members of `out` that they concern.
 */
void fit_estimate_lone(const struct fit *f, int n, double *out);
void fit_estimate_stream(const struct fit *f, int n, enum fit_form form, double *out);
/* The intervals of all estimates, by bootstrap; overwrites the medians. 0 or -ENOMEM. */
int fit_intervals(const struct fit *f, struct fit_result *result);

#endif
