/* SPDX-License-Identifier: MIT */
/*
 * From samples to alpha, g, beta and S*: statistics only, no clock and no wire. Private.
 *
 * A lone message of S bytes takes alpha + S/beta; a stream of them is spaced g + S/beta, or
 * max(g, S/beta). Each size is represented by the median of its samples; a line is laid through the
 * medians that makes the sum of the *relative* absolute deviations least, so that neither an
 * outlier nor the longest sizes rule it. Intervals are bootstrapped: sizes are drawn with
 * replacement, and within a size whole blocks of samples (those taken in one go, which share
 * whatever disturbed them). Drawing both makes them rather too wide than too narrow, and lets a
 * line that fits less well show it. Where the line does not describe the medians, no S* is given
 * but the reason.
 */
#ifndef SSTAR_COLLECTIVES_FIT_H
#define SSTAR_COLLECTIVES_FIT_H

#include <stdbool.h>
#include <stdint.h>

/* Samples of one size, in the order they were taken, in blocks of *_block taken in one go. */
struct fit_samples {
    double size_bytes;
    const double *lone_us; /* one way, from send to arrival */
    int lone_count, lone_block;
    const double *stream_us; /* time per message of a full stream; count 0: none taken */
    int stream_count, stream_block;
};

struct fit_options {
    uint64_t seed;
    int resamples;    /* of the bootstrap; 0: no intervals (low and high are the value) */
    double tolerance; /* a run of sizes may deviate by so much of the prediction; 0: 0.1 */
};

struct fit_estimate {
    double value, low, high; /* and the 95 % interval */
};

enum fit_form { FIT_SUM, FIT_MAX }; /* g + S/beta, max(g, S/beta) */

struct fit_point {
    double size_bytes, median_us, p99_us, predicted_us;
    double residual;                       /* (median - predicted) / predicted */
    double stream_us, stream_predicted_us; /* 0 where no stream was measured */
    double stream_residual;
    bool used; /* the line was laid through this one too */
};

struct fit_result {
    struct fit_estimate alpha_us, beta_gbps, s_star_bytes;
    struct fit_estimate gap_us, stream_beta_gbps;
    struct fit_estimate s_star_rate_bytes; /* g times the stream's beta */
    enum fit_form form;                    /* that describes the streams better */
    double form_error[2];                  /* mean relative deviation of the streams under each */
    int used;                              /* the line holds for so many sizes, from the smallest */
    bool refused;                          /* no S*: why is in `reason` */
    bool rate_refused;                     /* no S*rate: why is in `rate_reason` */
    char reason[256], rate_reason[256];
    char note[256]; /* what else must be said: sizes left out; "" if nothing */
};

/*
 * Fit `n` sizes, ascending, at least FIT_LEAST_SIZES. `points` (n of them) and `result` are filled
 * also when S* is refused. 0, -EINVAL (too few sizes, not ascending, no or senseless samples),
 * -ENOMEM.
 */
enum { FIT_LEAST_SIZES = 5 };
int fit_sweep(const struct fit_samples *samples, int n, const struct fit_options *options,
              struct fit_point *points, struct fit_result *result);

/* The parts of it, each of use alone (fit_robust.c). */

/* Order statistic of unsorted values, which it reorders: share 0.5 is the median. */
double fit_quantile(double *values, int n, double share);
/* The line y = a + b*x with the least sum of |y - a - b*x| / y (all y > 0, two different x);
 * returns that sum. */
double fit_line(const double *x, const double *y, int n, double *a, double *b);
/* The same for y = max(a, b*x), all x > 0. */
double fit_corner(const double *x, const double *y, int n, double *a, double *b);
/* A seeded generator (splitmix64). */
uint64_t fit_random(uint64_t *state);

#endif
