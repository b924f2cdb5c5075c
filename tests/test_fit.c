/* SPDX-License-Identifier: MIT */
/* The statistics of `sstar fit` on samples made up with known alpha, g and beta. */
#include "collectives/fit.h"
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIZES = 18, LONE = 120, STREAM = 24, SEEDS = 200 };

/* A sweep of 8 B .. 1 MiB, made up. */
struct sweep {
    double lone[SIZES][LONE], stream[SIZES][STREAM];
    struct fit_samples samples[SIZES];
    struct fit_point points[SIZES];
    struct fit_result result;
};

struct recipe {
    double alpha_us, gap_us, beta_gbps;
    double noise;    /* relative, of each sample: exponential, so that it is skewed as in life */
    double outliers; /* share of samples that take 1 to 100 times as long */
    enum fit_form form;
    double jump_at, jump_us;     /* longer ones take so much more: another protocol */
    double knee_at, beyond_gbps; /* bytes past knee_at pass at this rate: a cache is full */
    double bend;                 /* not a line at all: time to this power */
};

static double unit(uint64_t *random)
{
    return (double)((fit_random(random) >> 11) + 1) / 9007199254740993.0;
}

static double disturbed(double us, const struct recipe *r, uint64_t *random)
{
    /* The median of an exponential is ln 2: the medians stay true. */
    us *= 1 + r->noise * (-log(unit(random)) - log(2));
    if (unit(random) < r->outliers)
        us *= 1 + 99 * unit(random);
    return us;
}

static double lone_us(const struct recipe *r, double size)
{
    double bytes = size, us = r->alpha_us;
    if (r->knee_at > 0 && bytes > r->knee_at) {
        us += (bytes - r->knee_at) / (r->beyond_gbps * 1e3);
        bytes = r->knee_at;
    }
    us += bytes / (r->beta_gbps * 1e3);
    if (r->jump_at > 0 && size > r->jump_at)
        us += r->jump_us;
    return r->bend > 0 ? pow(us, r->bend) : us;
}

static void make(struct sweep *w, const struct recipe *r, uint64_t seed)
{
    uint64_t random = seed;
    for (int i = 0; i < SIZES; i++) {
        double size = 8 * pow(2, i), wire = size / (r->beta_gbps * 1e3);
        double spaced = r->form == FIT_SUM ? r->gap_us + wire : fmax(r->gap_us, wire);
        for (int k = 0; k < LONE; k++)
            w->lone[i][k] = disturbed(lone_us(r, size), r, &random);
        for (int k = 0; k < STREAM; k++)
            w->stream[i][k] = disturbed(spaced, r, &random);
        w->samples[i] = (struct fit_samples){.size_bytes = size,
                                             .lone_us = w->lone[i],
                                             .lone_count = LONE,
                                             .lone_block = 4,
                                             .stream_us = w->stream[i],
                                             .stream_count = STREAM,
                                             .stream_block = 1};
    }
}

static const struct fit_result *fit(struct sweep *w, const struct recipe *r, uint64_t seed,
                                    int resamples)
{
    make(w, r, seed);
    struct fit_options options = {.seed = seed, .resamples = resamples};
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &w->result), 0);
    return &w->result;
}

static struct sweep *sweep_new(void)
{
    struct sweep *w = calloc(1, sizeof *w);
    assert_non_null(w);
    return w;
}

static void near(double value, double expected, double share)
{
    if (fabs(value - expected) > share * expected)
        fail_msg("%g is not within %g %% of %g", value, share * 100, expected);
}

static const struct recipe clean = {.alpha_us = 12, .gap_us = 0.6, .beta_gbps = 2};

static void test_exact(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    const struct fit_result *r = fit(w, &clean, 1, 100);
    near(r->alpha_us.value, 12, 1e-9);
    near(r->beta_gbps.value, 2, 1e-9);
    near(r->gap_us.value, 0.6, 1e-9);
    near(r->s_star_bytes.value, 24000, 1e-9);
    near(r->s_star_rate_bytes.value, 1200, 1e-9);
    near(r->alpha_us.low, 12, 1e-9);
    near(r->alpha_us.high, 12, 1e-9);
    assert_int_equal(r->form, FIT_SUM);
    assert_int_equal(r->used, SIZES);
    assert_false(r->refused);
    assert_false(r->rate_refused);
    assert_string_equal(r->note, "");
    for (int i = 0; i < SIZES; i++) {
        assert_true(w->points[i].used);
        near(w->points[i].predicted_us, lone_us(&clean, w->points[i].size_bytes), 1e-9);
        near(w->points[i].median_us, w->points[i].predicted_us, 1e-9);
    }
    free(w);
}

/* A tenth of the samples up to 100 times too long, the rest skewed: within 3 % all the same. */
static void test_outliers(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    struct recipe recipe = clean;
    recipe.noise = 0.05;
    recipe.outliers = 0.1;
    const struct fit_result *r = fit(w, &recipe, 7, 200);
    assert_false(r->refused);
    near(r->alpha_us.value, 12, 0.03);
    near(r->beta_gbps.value, 2, 0.03);
    near(r->gap_us.value, 0.6, 0.03);
    near(r->s_star_bytes.value, 24000, 0.04);
    /* Three whole sizes gone wrong, the longest among them, do not move the line either. */
    for (int k = 0; k < LONE; k++) {
        w->lone[2][k] *= 2;
        w->lone[9][k] *= 3;
        w->lone[SIZES - 1][k] *= 1.8;
    }
    struct fit_options options = {.seed = 7, .resamples = 200};
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &w->result), 0);
    assert_false(r->refused);
    near(r->alpha_us.value, 12, 0.03);
    near(r->beta_gbps.value, 2, 0.03);
    free(w);
}

static void test_form(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct recipe recipe = clean;
        recipe.noise = 0.05;
        assert_int_equal(fit(w, &recipe, seed, 0)->form, FIT_SUM);
        near(w->result.gap_us.value, 0.6, 0.05);
        recipe.form = FIT_MAX;
        assert_int_equal(fit(w, &recipe, seed, 0)->form, FIT_MAX);
        near(w->result.gap_us.value, 0.6, 0.05);
        near(w->result.stream_beta_gbps.value, 2, 0.05);
        assert_true(w->result.form_error[FIT_MAX] < w->result.form_error[FIT_SUM]);
        assert_false(w->result.rate_refused);
    }
    free(w);
}

/* The intervals hold the truth about as often as they say. */
static void test_coverage(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    struct recipe recipe = clean;
    recipe.noise = 0.1;
    recipe.outliers = 0.03;
    const double truth[6] = {12, 2, 24000, 0.6, 2, 1200};
    int hits[6] = {0};
    double width[6] = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const struct fit_result *r = fit(w, &recipe, seed, 200);
        const struct fit_estimate *e[6] = {&r->alpha_us,         &r->beta_gbps,
                                           &r->s_star_bytes,     &r->gap_us,
                                           &r->stream_beta_gbps, &r->s_star_rate_bytes};
        for (int i = 0; i < 6; i++) {
            hits[i] += e[i]->low <= truth[i] && truth[i] <= e[i]->high;
            width[i] += (e[i]->high - e[i]->low) / truth[i] / SEEDS;
        }
        assert_false(r->refused);
    }
    const char *names[6] = {"alpha", "beta", "S*", "g", "beta of streams", "S*rate"};
    for (int i = 0; i < 6; i++) {
        print_message("%s: %d of %d seeds, mean width %.1f %%\n", names[i], hits[i], SEEDS,
                      width[i] * 100);
        assert_in_range(hits[i], SEEDS * 85 / 100, SEEDS);
        assert_true(width[i] < 0.25); /* and are of use */
    }
    free(w);
}

/* The same seed gives the same bits, another one other intervals of the same estimate. */
static void test_seed(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    struct recipe recipe = clean;
    recipe.noise = 0.1;
    struct fit_result first = *fit(w, &recipe, 3, 100);
    struct fit_result again = *fit(w, &recipe, 3, 100);
    assert_memory_equal(&first.alpha_us, &again.alpha_us, sizeof first.alpha_us);
    assert_memory_equal(&first.s_star_bytes, &again.s_star_bytes, sizeof first.s_star_bytes);
    struct fit_options options = {.seed = 4, .resamples = 100};
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &again), 0);
    assert_true(first.alpha_us.value == again.alpha_us.value);
    assert_true(first.alpha_us.low != again.alpha_us.low);
    free(w);
}

static void assert_refused(struct sweep *w, const struct recipe *recipe, const char *because)
{
    struct recipe noisy = *recipe;
    for (int step = 0; step <= 5; step++) {
        noisy.noise = 0.02 * step;
        const struct fit_result *r = fit(w, &noisy, 11 + (uint64_t)step, 100);
        if (!r->refused || !strstr(r->reason, because))
            fail_msg("noise %g: refused %d, because \"%s\", not \"%s\"", noisy.noise, r->refused,
                     r->reason, because);
        for (int i = 0; i < SIZES; i++)
            assert_true(w->points[i].median_us > 0); /* the table is there */
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    struct recipe jump = clean, knee = clean, bend = clean, flat = clean, steep = clean;
    jump.jump_at = 16384; /* before S*: there are two lines, and S* is on neither */
    jump.jump_us = 8;
    assert_refused(w, &jump, "off the line");
    knee.knee_at = 32768;
    knee.beyond_gbps = 0.7;
    assert_refused(w, &knee, "lie off the line");
    bend.bend = 0.6;
    assert_refused(w, &bend, "lie off the line");
    flat.beta_gbps = 400; /* S* is past the longest size */
    assert_refused(w, &flat, "too short to see beta");
    steep.alpha_us = 0.002; /* S* is below the shortest */
    assert_refused(w, &steep, "too long to see alpha");
    free(w);
}

static void test_scatter_is_refused(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    make(w, &clean, 1);
    uint64_t random = 5;
    for (int i = 0; i < SIZES; i++) {
        w->samples[i].lone_count = 8;
        for (int k = 0; k < 8; k++)
            w->lone[i][k] *= pow(16, unit(&random) - 0.5);
    }
    struct fit_options options = {.seed = 5, .resamples = 200};
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &w->result), 0);
    assert_true(w->result.refused);
    assert_true(strlen(w->result.reason) > 0);
    free(w);
}

/* A knee past the 80 % size leaves a line that is good up to there, and that is said. */
static void test_long_sizes_left_out(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    struct recipe recipe = clean;
    recipe.noise = 0.03;
    recipe.knee_at = 150000;
    recipe.beyond_gbps = 0.5;
    const struct fit_result *r = fit(w, &recipe, 21, 200);
    assert_false(r->refused);
    assert_true(r->used < SIZES);
    assert_true(w->points[r->used - 1].size_bytes >= 4 * r->s_star_bytes.value);
    assert_true(w->points[r->used - 1].size_bytes < 300000);
    assert_false(w->points[SIZES - 1].used);
    assert_non_null(strstr(r->note, "up to 131072 bytes"));
    near(r->alpha_us.value, 12, 0.03);
    near(r->beta_gbps.value, 2, 0.05);
    free(w);
}

static void test_streams_refused(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    make(w, &clean, 1);
    for (int i = 4; i < 9; i++)
        for (int k = 0; k < STREAM; k++)
            w->stream[i][k] *= i % 2 ? 2.5 : 2.2;
    struct fit_options options = {.seed = 1, .resamples = 50};
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &w->result), 0);
    assert_false(w->result.refused); /* lone messages are as they were */
    near(w->result.s_star_bytes.value, 24000, 1e-9);
    assert_true(w->result.rate_refused);
    assert_non_null(strstr(w->result.rate_reason, "streams of"));
    /* Without streams there is an S* and no S*rate. */
    for (int i = 0; i < SIZES; i++)
        w->samples[i].stream_count = 0;
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &w->result), 0);
    assert_false(w->result.refused);
    assert_true(w->result.rate_refused);
    free(w);
}

static void test_arguments(void **state)
{
    (void)state;
    struct sweep *w = sweep_new();
    struct fit_options options = {.seed = 1};
    make(w, &clean, 1);
    assert_int_equal(fit_sweep(w->samples, FIT_LEAST_SIZES - 1, &options, w->points, &w->result),
                     -EINVAL);
    assert_int_equal(fit_sweep(w->samples, FIT_LEAST_SIZES, &options, w->points, &w->result), 0);
    w->samples[1].size_bytes = 8;
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &w->result), -EINVAL);
    w->samples[1].size_bytes = 16;
    w->samples[3].lone_count = 0;
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &w->result), -EINVAL);
    w->samples[3].lone_count = LONE;
    w->lone[5][5] = 0;
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &w->result), -EINVAL);
    w->lone[5][5] = NAN;
    assert_int_equal(fit_sweep(w->samples, SIZES, &options, w->points, &w->result), -EINVAL);
    free(w);
}

static void test_quantile(void **state)
{
    (void)state;
    uint64_t random = 9;
    for (int n = 1; n < 60; n++) {
        double v[60];
        for (int i = 0; i < n; i++)
            v[i] = i; /* shuffled */
        for (int i = n - 1; i > 0; i--) {
            int j = (int)(fit_random(&random) % (uint64_t)(i + 1));
            double t = v[i];
            v[i] = v[j];
            v[j] = t;
        }
        near(1 + fit_quantile(v, n, 0.5), 1 + (n - 1) / 2.0, 1e-12);
        near(1 + fit_quantile(v, n, 0), 1, 1e-12);
        near(1 + fit_quantile(v, n, 1), n, 1e-12);
        near(1 + fit_quantile(v, n, 0.99), 1 + 0.99 * (n - 1), 1e-12);
    }
    double same[5] = {3, 3, 3, 3, 3};
    assert_true(fit_quantile(same, 5, 0.5) == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_outliers),
        cmocka_unit_test(test_form),
        cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_scatter_is_refused),
        cmocka_unit_test(test_long_sizes_left_out),
        cmocka_unit_test(test_streams_refused),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_quantile),
    };
    print_message("seeds 1 to %d\n", SEEDS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
