/* SPDX-License-Identifier: MIT */
/* See fit.h: estimates from medians, and their intervals. */
#include "collectives/fit_inside.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

static int below(uint64_t *state, int n)
{
    return (int)((fit_random(state) >> 32) * (uint64_t)n >> 32);
}

/* The median of a size's samples drawn anew, block by block. */
static double redrawn_median(double *scratch, const double *us, int count, int block,
                             uint64_t *random)
{
    if (block < 1 || count < 3 * block)
        block = 1;
    int drawn = 0;
    while (drawn < count) {
        int start = below(random, count / block) * block;
        for (int i = 0; i < block && drawn < count; i++)
            scratch[drawn++] = us[start + i];
    }
    return fit_quantile(scratch, count, 0.5);
}

void fit_estimate_lone(const struct fit *f, int n, double *out)
{
    double a = 0, b = 0;
    fit_line(f->x, f->y, n, &a, &b);
    out[ALPHA] = a;
    out[BETA] = 1 / (b * BYTES_PER_US); /* infinite or negative where the line is not one */
    out[S_STAR] = a / b;
}

void fit_estimate_stream(const struct fit *f, int n, enum fit_form form, double *out)
{
    double a = 0, b = 0;
    (form == FIT_SUM ? fit_line : fit_corner)(f->sx, f->sy, n, &a, &b);
    out[GAP] = a;
    out[STREAM_BETA] = 1 / (b * BYTES_PER_US);
    out[S_STAR_RATE] = a / b;
}

static bool several(const double *x, int n)
{
    for (int i = 1; i < n; i++)
        if (x[i] != x[0])
            return true;
    return false;
}

/* Draw sizes and their samples anew and estimate again; false if the draw admits no line. */
static bool resample(const struct fit *f, enum fit_form form, uint64_t *random, double *out)
{
    int n = 0;
    for (int i = 0; i < f->used; i++) {
        const struct fit_samples *s = &f->samples[below(random, f->used)];
        f->x[n] = s->size_bytes;
        f->y[n++] = redrawn_median(f->scratch, s->lone_us, s->lone_count, s->lone_block, random);
    }
    if (!several(f->x, n))
        return false;
    fit_estimate_lone(f, n, out);
    if (!f->streams)
        return true;
    n = 0;
    while (n < f->used) { /* as many draws as sizes, from those that have a stream */
        const struct fit_samples *s = &f->samples[below(random, f->used)];
        if (s->stream_count == 0)
            continue;
        f->sx[n] = s->size_bytes;
        f->sy[n++] =
            redrawn_median(f->scratch, s->stream_us, s->stream_count, s->stream_block, random);
    }
    if (!several(f->sx, n))
        return false;
    fit_estimate_stream(f, n, form, out);
    return true;
}

static void set_interval(struct fit_estimate *e, double *draws, int n)
{
    e->low = fmin(e->value, fit_quantile(draws, n, 0.025));
    e->high = fmax(e->value, fit_quantile(draws, n, 0.975));
}

int fit_intervals(const struct fit *f, struct fit_result *result)
{
    struct fit_estimate *estimates[ESTIMATES] = {
        [ALPHA] = &result->alpha_us,
        [BETA] = &result->beta_gbps,
        [S_STAR] = &result->s_star_bytes,
        [GAP] = &result->gap_us,
        [STREAM_BETA] = &result->stream_beta_gbps,
        [S_STAR_RATE] = &result->s_star_rate_bytes,
    };
    int resamples = f->options->resamples;
    double *draws = calloc((size_t)ESTIMATES * (size_t)(resamples + 1), sizeof *draws);
    if (!draws)
        return -ENOMEM;
    uint64_t random = f->options->seed;
    int done = 0;
    for (int r = 0; r < resamples; r++) {
        double out[ESTIMATES] = {0};
        if (!resample(f, result->form, &random, out))
            continue;
        for (int e = 0; e < ESTIMATES; e++)
            draws[e * resamples + done] = out[e];
        done++;
    }
    for (int e = 0; e < ESTIMATES; e++) {
        estimates[e]->low = estimates[e]->high = estimates[e]->value;
        if (done && (e < GAP || f->streams))
            set_interval(estimates[e], draws + e * resamples, done);
    }
    free(draws);
    return 0;
}
