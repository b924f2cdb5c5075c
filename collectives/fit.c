/* SPDX-License-Identifier: MIT */
/* See fit.h: the whole, and whether the line holds. */
#include "collectives/fit_inside.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- does the line describe the sizes? ------------------------------------------------ */

enum {
    RUN = 3,       /* so many neighbours off the line to the same side are no accident */
    SHORT_RUN = 2, /* nor so many that are off by SHORT_RUN_FACTOR times as much */
};
#define SHORT_RUN_FACTOR 1.2

struct run {
    int first, last;
    double worst;
};

static bool off(double residual, double limit, int side)
{
    return side > 0 ? residual > limit : residual < -limit;
}

/* A run of sizes on one side of the line, beyond the tolerance. */
static bool find_run(const double *residual, int n, int length, double limit, struct run *run)
{
    for (int side = -1; side <= 1; side += 2) {
        for (int i = 0; i + length <= n; i++) {
            int j = i;
            double worst = 0;
            while (j < n && off(residual[j], limit, side)) {
                worst = fabs(residual[j]) > fabs(worst) ? residual[j] : worst;
                j++;
            }
            if (j - i >= length) {
                *run = (struct run){i, j - 1, worst};
                return true;
            }
        }
    }
    return false;
}

static bool misfit(const double *residual, int n, double tolerance, struct run *run)
{
    return find_run(residual, n, RUN, tolerance, run) ||
           find_run(residual, n, SHORT_RUN, tolerance * SHORT_RUN_FACTOR, run);
}

/* Where two lines describe the medians far better than one, and one is off somewhere: the first
 * size of the second line, or 0. */
enum { LEAST_OF_TWO = 3, TWO_LINES_FACTOR = 3 };
static int find_break(const struct fit *f, int used, const double *residual, double tolerance)
{
    double one = 0, worst = 0, best = INFINITY;
    int at = 0;
    for (int i = 0; i < used; i++) {
        one += fabs(residual[i]);
        worst = fmax(worst, fabs(residual[i]));
    }
    for (int k = LEAST_OF_TWO; k + LEAST_OF_TWO <= used; k++) {
        double a = 0, b = 0;
        double two = fit_line(f->x, f->y, k, &a, &b);
        two += fit_line(f->x + k, f->y + k, used - k, &a, &b);
        if (two < best) {
            best = two;
            at = k;
        }
    }
    return worst > tolerance && best * TWO_LINES_FACTOR < one ? at : 0;
}

static bool positive(double value)
{
    return isfinite(value) && value > 0;
}

/* Fit the first `used` sizes; the residuals of all. */
static void fit_lone(struct fit *f, int used, double *out, double *residual)
{
    fit_estimate_lone(f, used, out);
    for (int i = 0; i < f->n; i++) {
        double predicted = out[ALPHA] + f->x[i] / (out[BETA] * BYTES_PER_US);
        residual[i] = predicted > 0 ? (f->y[i] - predicted) / predicted : INFINITY;
    }
}

/*
 * Whether the line through the first `used` sizes holds, and if not the reason. The sizes must
 * reach from well below S* (or alpha is not seen) to past it (or beta is not seen).
 */
static bool line_holds(struct fit *f, int used, double tolerance, double *out, double *residual,
                       char *reason, size_t room)
{
    struct run run;
    fit_lone(f, used, out, residual);
    if (!positive(out[ALPHA]) || !positive(out[BETA]))
        return snprintf(reason, room,
                        "time does not grow from a start-up time in proportion to size "
                        "(alpha %.4g us, beta %.4g GB/s)",
                        out[ALPHA], out[BETA]),
               false;
    if (misfit(residual, used, tolerance, &run))
        return snprintf(reason, room,
                        "the sizes from %.0f to %.0f bytes lie off the line alpha + S/beta by up "
                        "to %+.0f %%: a change of protocol or of cache there, not one line",
                        f->x[run.first], f->x[run.last], run.worst * 100),
               false;
    int at = find_break(f, used, residual, tolerance);
    if (at)
        return snprintf(
                   reason, room,
                   "two lines meet at %.0f bytes, one does not fit: the sizes lie off the line "
                   "alpha + S/beta (a change of protocol or of cache there)",
                   f->x[at]),
               false;
    if (fabs(residual[used - 1]) > tolerance)
        return snprintf(reason, room, "%.0f bytes lie off the line alpha + S/beta by %+.0f %%",
                        f->x[used - 1], residual[used - 1] * 100),
               false;
    if (f->x[used - 1] < 2 * out[S_STAR])
        return snprintf(reason, room,
                        "%.0f bytes are too short to see beta, S* would be near %.0f: measure to "
                        "at least %.0f bytes (-e)",
                        f->x[used - 1], out[S_STAR], 9 * out[S_STAR]),
               false;
    if (f->x[0] > out[S_STAR] / 2)
        return snprintf(reason, room,
                        "%.0f bytes are too long to see alpha, S* would be near %.0f: measure "
                        "from at most %.0f bytes (-b)",
                        f->x[0], out[S_STAR], out[S_STAR] / 8),
               false;
    return true;
}

/* Long sizes may leave the line (a cache is full); the line is then of use up to there, if that is
 * past 80 % efficiency. Choose how many sizes are fitted, or refuse. */
static void choose_used(struct fit *f, double tolerance, double *out, double *residual,
                        struct fit_result *result)
{
    if (line_holds(f, f->n, tolerance, out, residual, result->reason, sizeof result->reason)) {
        f->used = f->n;
        return;
    }
    char ignored[sizeof result->reason];
    for (int used = f->n - 1; used >= FIT_LEAST_SIZES && 2 * used > f->n; used--) {
        if (!line_holds(f, used, tolerance, out, residual, ignored, sizeof ignored) ||
            f->x[used - 1] < 4 * out[S_STAR])
            continue;
        snprintf(result->note, sizeof result->note,
                 "the line holds up to %.0f bytes and was fitted to these sizes; longer ones lie "
                 "off it by up to %+.0f %%",
                 f->x[used - 1], residual[f->n - 1] * 100);
        result->reason[0] = '\0';
        f->used = used;
        return;
    }
    f->used = f->n;
    result->refused = true;
    fit_lone(f, f->n, out, residual);
}

/* ---- the whole ------------------------------------------------------------------------ */

static double form_predicts(enum fit_form form, double gap, double beta_gbps, double size)
{
    double bytes_us = size / (beta_gbps * BYTES_PER_US);
    return form == FIT_SUM ? gap + bytes_us : fmax(gap, bytes_us);
}

/* Both forms through the streams of the sizes in use; the better one's estimates. */
static void fit_streams(struct fit *f, double *out, struct fit_result *result)
{
    double both[2][ESTIMATES] = {{0}};
    int n = 0;
    for (int i = 0; i < f->used; i++) {
        const struct fit_samples *s = &f->samples[i];
        if (s->stream_count == 0)
            continue;
        memcpy(f->scratch, s->stream_us, (size_t)s->stream_count * sizeof *f->scratch);
        f->sx[n] = s->size_bytes;
        f->sy[n++] = fit_quantile(f->scratch, s->stream_count, 0.5);
    }
    f->streams = n;
    if (n < 3) {
        f->streams = 0;
        result->rate_refused = true;
        snprintf(result->rate_reason, sizeof result->rate_reason, "streams of %d sizes only", n);
        return;
    }
    for (int form = FIT_SUM; form <= FIT_MAX; form++) {
        fit_estimate_stream(f, n, form, both[form]);
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += fabs(
                f->sy[i] / form_predicts(form, both[form][GAP], both[form][STREAM_BETA], f->sx[i]) -
                1);
        result->form_error[form] = sum / n;
    }
    bool sum_holds = positive(both[FIT_SUM][GAP]) && positive(both[FIT_SUM][STREAM_BETA]);
    result->form = sum_holds && !(result->form_error[FIT_MAX] < result->form_error[FIT_SUM])
                       ? FIT_SUM
                       : FIT_MAX;
    for (int e = GAP; e < ESTIMATES; e++)
        out[e] = both[result->form][e];
}

static void fill_points(const struct fit *f, const double *out, const double *residual,
                        const struct fit_result *result, struct fit_point *points)
{
    for (int i = 0; i < f->n; i++) {
        const struct fit_samples *s = &f->samples[i];
        struct fit_point *p = &points[i];
        *p = (struct fit_point){.size_bytes = s->size_bytes, .used = i < f->used};
        memcpy(f->scratch, s->lone_us, (size_t)s->lone_count * sizeof *f->scratch);
        p->median_us = fit_quantile(f->scratch, s->lone_count, 0.5);
        p->p99_us = fit_quantile(f->scratch, s->lone_count, 0.99);
        p->predicted_us = out[ALPHA] + s->size_bytes / (out[BETA] * BYTES_PER_US);
        p->residual = residual[i];
        if (s->stream_count == 0)
            continue;
        memcpy(f->scratch, s->stream_us, (size_t)s->stream_count * sizeof *f->scratch);
        p->stream_us = fit_quantile(f->scratch, s->stream_count, 0.5);
        if (!f->streams)
            continue;
        p->stream_predicted_us =
            form_predicts(result->form, out[GAP], out[STREAM_BETA], s->size_bytes);
        p->stream_residual = p->stream_us / p->stream_predicted_us - 1;
    }
}

static void judge_streams(const struct fit *f, double tolerance, const struct fit_point *points,
                          double *residual, struct fit_result *result)
{
    struct run run;
    int n = 0;
    if (result->rate_refused)
        return;
    for (int i = 0; i < f->used; i++)
        if (points[i].stream_us > 0)
            residual[n++] = points[i].stream_residual;
    result->rate_refused = misfit(residual, n, tolerance, &run);
    if (result->rate_refused)
        snprintf(result->rate_reason, sizeof result->rate_reason,
                 "streams of %.0f to %.0f bytes lie off both forms, by up to %+.0f %%",
                 f->sx[run.first], f->sx[run.last], run.worst * 100);
}

/* An interval that leaves S* open by more than this factor says nothing. */
#define WIDEST 2.0

static void judge_interval(struct fit_result *result)
{
    const struct fit_estimate *s = &result->s_star_bytes;
    if (result->refused || (positive(s->low) && isfinite(s->high) && s->high <= WIDEST * s->low))
        return;
    result->refused = true;
    snprintf(result->reason, sizeof result->reason,
             "the samples scatter too much: S* lies somewhere from %.3g to %.3g bytes; measure "
             "longer (-n) or on a quieter machine",
             s->low, s->high);
}

static int check(const struct fit_samples *samples, int n, int *most)
{
    *most = 0;
    if (n < FIT_LEAST_SIZES)
        return -EINVAL;
    for (int i = 0; i < n; i++) {
        const struct fit_samples *s = &samples[i];
        if (s->lone_count < 1 || s->stream_count < 0 || !positive(s->size_bytes) ||
            (i && s->size_bytes <= samples[i - 1].size_bytes))
            return -EINVAL;
        for (int k = 0; k < s->lone_count; k++)
            if (!positive(s->lone_us[k]))
                return -EINVAL;
        for (int k = 0; k < s->stream_count; k++)
            if (!positive(s->stream_us[k]))
                return -EINVAL;
        *most = s->lone_count > *most ? s->lone_count : *most;
        *most = s->stream_count > *most ? s->stream_count : *most;
    }
    return 0;
}

int fit_sweep(const struct fit_samples *samples, int n, const struct fit_options *options,
              struct fit_point *points, struct fit_result *result)
{
    int most, err = check(samples, n, &most);
    if (err)
        return err;
    double *room = calloc((size_t)most + 5 * (size_t)n, sizeof *room);
    if (!room)
        return -ENOMEM;
    struct fit f = {.samples = samples, .options = options, .n = n, .scratch = room};
    f.x = room + most;
    f.y = f.x + n;
    f.sx = f.y + n;
    f.sy = f.sx + n;
    double *residual = f.sy + n;
    double tolerance = options->tolerance > 0 ? options->tolerance : 0.1;
    double out[ESTIMATES] = {0};
    struct fit_result r = {0};

    for (int i = 0; i < n; i++) {
        memcpy(f.scratch, samples[i].lone_us, (size_t)samples[i].lone_count * sizeof *f.scratch);
        f.x[i] = samples[i].size_bytes;
        f.y[i] = fit_quantile(f.scratch, samples[i].lone_count, 0.5);
    }
    choose_used(&f, tolerance, out, residual, &r);
    fit_streams(&f, out, &r);
    fill_points(&f, out, residual, &r, points);
    judge_streams(&f, tolerance, points, residual, &r);
    r.used = f.used;
    r.alpha_us.value = out[ALPHA];
    r.beta_gbps.value = out[BETA];
    r.s_star_bytes.value = out[S_STAR];
    r.gap_us.value = out[GAP];
    r.stream_beta_gbps.value = out[STREAM_BETA];
    r.s_star_rate_bytes.value = out[S_STAR_RATE];
    err = fit_intervals(&f, &r);
    if (!err) {
        judge_interval(&r);
        *result = r;
    }
    free(room);
    return err;
}
