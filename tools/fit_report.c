/* SPDX-License-Identifier: MIT */
/* The result of `sstar fit` as a table, in words and as JSON. */
#include "tools/fit_run.h"
#include "tools/record.h"
#include <math.h>
#include <stdio.h>

static const struct column columns[] = {
    {"size_bytes", "size", "%d", 9},
    {"median_us", "median_us", "%.2f", 11},
    {"p99_us", "p99_us", "%.2f", 11},
    {"predicted_us", "predicted_us", "%.2f", 12},
    {"residual_percent", "residual_%", "%+.1f", 10},
    {"efficiency_percent", "efficiency_%", "%.1f", 12},
    {"stream_us", "stream_us", "%.3f", 11},
    {"stream_predicted_us", "predicted_us", "%.3f", 12},
    {"stream_residual_percent", "residual_%", "%+.1f", 10},
    {"fitted", "fitted", "%s", 6},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* ---- JSON ----------------------------------------------------------------------------- */

static json_t *interval(const struct fit_estimate *e)
{
    json_t *pair = json_array();
    json_array_append_new(pair, record_real(e->low));
    json_array_append_new(pair, record_real(e->high));
    return pair;
}

static void set(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

/* In per cent; a size through which the line was laid is off by nothing, not by rounding errors. */
static json_t *percent(double share)
{
    return record_real(fabs(share) < 1e-9 ? 0 : share * 100);
}

static json_t *point_json(const struct fit_run *run, int i)
{
    const struct fit_point *p = &run->points[i];
    json_t *row = json_object();
    double beta = run->result.beta_gbps.value;
    set(row, "size_bytes", json_integer((json_int_t)run->size_bytes[i]));
    set(row, "median_us", record_real(p->median_us));
    set(row, "iterations", json_integer(run->lone[i].clean * run->lone[i].block));
    set(row, "p99_us", record_real(p->p99_us));
    set(row, "predicted_us", record_real(p->predicted_us));
    set(row, "residual_percent", percent(p->residual));
    if (beta > 0)
        set(row, "efficiency_percent",
            record_real(p->size_bytes / (p->median_us * beta * 1e3) * 100));
    if (p->stream_us > 0)
        set(row, "stream_us", record_real(p->stream_us));
    if (p->stream_predicted_us > 0) {
        set(row, "stream_predicted_us", record_real(p->stream_predicted_us));
        set(row, "stream_residual_percent", percent(p->stream_residual));
    }
    set(row, "fitted", json_boolean(p->used));
    set(row, "device_class", json_string(run->device.device_class));
    return row;
}

static json_t *points_json(const struct fit_run *run)
{
    json_t *rows = json_array();
    for (int i = 0; i < run->sizes; i++)
        json_array_append_new(rows, point_json(run, i));
    return rows;
}

static double percent_off(double value, double expected)
{
    return (value / expected - 1) * 100;
}

static double expected_alpha(const struct fit_run *run)
{
    return run->device.wire.alpha_us + run->unshaped_latency_us;
}

static void add_imposed(json_t *fit, const struct fit_run *run)
{
    const struct sstar_wire *wire = &run->device.wire;
    const struct fit_result *r = &run->result;
    json_t *imposed = json_object(), *deviation = json_object();
    set(imposed, "alpha_us", record_real(wire->alpha_us));
    set(imposed, "gap_us", record_real(wire->gap_us));
    set(imposed, "beta_GBps", record_real(wire->beta_gbps));
    set(imposed, "alpha_expected_us", record_real(expected_alpha(run)));
    set(deviation, "alpha_percent",
        record_real(percent_off(r->alpha_us.value, expected_alpha(run))));
    if (wire->gap_us > 0)
        set(deviation, "gap_percent", record_real(percent_off(r->gap_us.value, wire->gap_us)));
    if (wire->beta_gbps > 0)
        set(deviation, "beta_percent",
            record_real(percent_off(r->beta_gbps.value, wire->beta_gbps)));
    set(fit, "imposed", imposed);
    set(fit, "unshaped_latency_us", record_real(run->unshaped_latency_us));
    set(fit, "deviation", deviation);
}

static void add_estimate(json_t *fit, bool known, const char *key, const char *interval_key,
                         const struct fit_estimate *e)
{
    set(fit, key, known ? record_real(e->value) : json_null());
    set(fit, interval_key, known ? interval(e) : json_null());
}

static void add_streams(json_t *fit, const struct fit_result *r, bool streams)
{
    add_estimate(fit, streams, "gap_us", "gap_ci_us", &r->gap_us);
    add_estimate(fit, streams, "stream_beta_GBps", "stream_beta_ci", &r->stream_beta_gbps);
    add_estimate(fit, !r->rate_refused, "s_star_rate_bytes", "s_star_rate_ci_bytes",
                 &r->s_star_rate_bytes);
    if (r->rate_refused)
        set(fit, "rate_refused", json_string(r->rate_reason));
    if (!streams)
        return;
    set(fit, "form", json_string(r->form == FIT_SUM ? "g+S/beta" : "max(g,S/beta)"));
    set(fit, "form_sum_error_percent", record_real(r->form_error[FIT_SUM] * 100));
    set(fit, "form_max_error_percent", record_real(r->form_error[FIT_MAX] * 100));
}

json_t *fit_json(const struct fit_run *run)
{
    const struct fit_result *r = &run->result;
    json_t *fit = json_object();
    bool known = !r->refused;
    set(fit, "device", json_string(run->device.device_class));
    add_estimate(fit, true, "alpha_us", "alpha_ci_us", &r->alpha_us);
    add_estimate(fit, true, "beta_GBps", "beta_ci", &r->beta_gbps);
    add_estimate(fit, known, "s_star_bytes", "s_star_ci_bytes", &r->s_star_bytes);
    set(fit, "size_80_bytes", known ? record_real(4 * r->s_star_bytes.value) : json_null());
    set(fit, "size_90_bytes", known ? record_real(9 * r->s_star_bytes.value) : json_null());
    set(fit, "refused", known ? json_null() : json_string(r->reason));
    add_streams(fit, r, r->gap_us.value > 0);
    if (*r->note)
        set(fit, "note", json_string(r->note));
    set(fit, "fitted_to_bytes", json_integer((json_int_t)run->size_bytes[r->used - 1]));
    set(fit, "seed", json_integer((json_int_t)run->arguments->common.seed));
    set(fit, "rounds", json_integer(run->rounds));
    set(fit, "sizes_left_out", json_integer(run->dropped));
    set(fit, "disturbed_left_out", json_integer(run->left_out));
    if (run->unshaped_world)
        add_imposed(fit, run);
    set(fit, "points", points_json(run));
    return fit;
}

/* ---- table and words ------------------------------------------------------------------ */

static void print_table(const struct fit_run *run)
{
    const struct sstar_device_info *device = &run->device;
    json_t *rows = points_json(run), *row;
    size_t i;
    printf("# sstar fit: ranks %d and %d, put with signal, ", run->pair.asks, run->pair.answers);
    if (run->pair.across_nodes)
        printf("through %s (%s)\n", device->name, device->device_class);
    else
        printf("one node, through memory\n");
    printf(
        "# %d interleaved rounds, in each of a size %d round trips (long ones fewer) and a stream; "
        "seed %llu\n",
        run->rounds, run->trips[0], (unsigned long long)run->arguments->common.seed);
    if (run->left_out)
        printf("# %d times somebody else took a core meanwhile: left out\n", run->left_out);
    if (run->dropped)
        printf(
            "# %d sizes (up to %llu bytes) were disturbed each time and are not shown: quiet the "
            "machine to have them\n",
            run->dropped, (unsigned long long)run->longest_dropped);
    printf("# lone messages: one way; predicted: alpha + S/beta; efficiency: S/(median*beta); "
           "streams: time per message\n");
    table_head(stdout, columns, COLUMNS);
    json_array_foreach(rows, i, row) table_row(stdout, columns, COLUMNS, row);
    json_decref(rows);
}

/* 512 B, 12.3 KB, 4.5 MB (powers of ten). */
static const char *bytes_text(double bytes, char *text, size_t room)
{
    if (bytes < 999.5)
        snprintf(text, room, "%.0f B", bytes);
    else if (bytes < 999.5e3) /* else three digits would be 1e+03 */
        snprintf(text, room, "%.3g KB", bytes / 1e3);
    else
        snprintf(text, room, "%.3g MB", bytes / 1e6);
    return text;
}

static void print_bytes(const char *name, const struct fit_estimate *e)
{
    char value[32], low[32], high[32];
    printf("%s %s [%s, %s]", name, bytes_text(e->value, value, sizeof value),
           bytes_text(e->low, low, sizeof low), bytes_text(e->high, high, sizeof high));
}

static void print_s_star(const struct fit_result *r)
{
    char s80[32], s90[32];
    if (r->refused) {
        printf("No S*: %s.\n", r->reason);
        return;
    }
    print_bytes("S* = alpha*beta =", &r->s_star_bytes);
    printf(
        ": a lone message of that size is half as fast as beta;\n80 %% from %s, 90 %% from %s.\n",
        bytes_text(4 * r->s_star_bytes.value, s80, sizeof s80),
        bytes_text(9 * r->s_star_bytes.value, s90, sizeof s90));
}

static void print_streams(const struct fit_result *r)
{
    if (!(r->gap_us.value > 0)) {
        printf("No g: %s.\n", r->rate_reason);
        return;
    }
    printf("Streams: g = %.3f us [%.3f, %.3f], %.2f GB/s, as %s (off by %.1f %% on average; "
           "as %s by %.1f %%).\n",
           r->gap_us.value, r->gap_us.low, r->gap_us.high, r->stream_beta_gbps.value,
           r->form == FIT_SUM ? "g + S/beta" : "max(g, S/beta)", r->form_error[r->form] * 100,
           r->form == FIT_SUM ? "max(g, S/beta)" : "g + S/beta", r->form_error[!r->form] * 100);
    if (r->rate_refused) {
        printf("No S*rate: %s.\n", r->rate_reason);
        return;
    }
    print_bytes("S*rate = g*beta =", &r->s_star_rate_bytes);
    printf(".\n");
}

static void print_imposed(const struct fit_run *run)
{
    const struct sstar_wire *wire = &run->device.wire;
    const struct fit_result *r = &run->result;
    printf("\n# %-6s %10s %18s %10s %12s\n", "wire", "imposed", "+ unshaped = ", "measured",
           "deviation_%");
    printf("  %-6s %10.3f %7.3f = %7.3f  %10.3f %+12.1f\n", "alpha", wire->alpha_us,
           run->unshaped_latency_us, expected_alpha(run), r->alpha_us.value,
           percent_off(r->alpha_us.value, expected_alpha(run)));
    if (wire->gap_us > 0)
        printf("  %-6s %10.3f %18s %10.3f %+12.1f\n", "g", wire->gap_us, "", r->gap_us.value,
               percent_off(r->gap_us.value, wire->gap_us));
    if (wire->beta_gbps > 0)
        printf("  %-6s %10.3f %18s %10.3f %+12.1f\n", "beta", wire->beta_gbps, "",
               r->beta_gbps.value, percent_off(r->beta_gbps.value, wire->beta_gbps));
}

void fit_print(const struct fit_run *run)
{
    const struct fit_result *r = &run->result;
    print_table(run);
    printf("\nMeasured on %s: alpha = %.2f us [%.2f, %.2f], beta = %.3f GB/s [%.3f, %.3f] "
           "(95 %% intervals).\n",
           run->device.device_class, r->alpha_us.value, r->alpha_us.low, r->alpha_us.high,
           r->beta_gbps.value, r->beta_gbps.low, r->beta_gbps.high);
    print_s_star(r);
    if (*r->note)
        printf("Note: %s.\n", r->note);
    print_streams(r);
    if (run->unshaped_world)
        print_imposed(run);
    fflush(stdout);
}
