/* SPDX-License-Identifier: MIT */
/* What `sstar alltoall` says: a row for each strategy, and what they mean in words. */
#include "collectives/ledger.h"
#include "tools/alltoall.h"
#include "transport/world.h"
#include <stdlib.h>
#include <string.h>

static const struct column columns[] = {
    {"strategy", "strategy", "%s", 8},
    {"messages", "messages", "%llu", 10},
    {"time_ms", "time(ms)", "%.3f", 10},
    {"predicted_ms", "predicted", "%.3f", 10},
    {"messages_per_s", "messages/s", "%.4g", 10},
    {"wire_messages", "wire msgs", "%llu", 9},
    {"wire_bytes_p50", "p50(B)", "%.0f", 8},
    {"wire_bytes_p99", "p99(B)", "%.0f", 8},
    {"percent_messages_past_s_star", "msgs>S*%", "%.2f", 8},
    {"percent_bytes_past_s_star", "B>S*%", "%.2f", 7},
    {"percent_bytes_past_s_star_rate", "B>S*rate%", "%.2f", 9},
    {"age_p50_us", "age50(us)", "%.1f", 9},
    {"age_p99_us", "age99(us)", "%.1f", 9},
    {"lost", "lost", "%llu", 5},
    {"doubled", "doubled", "%llu", 7},
    {"altered", "altered", "%llu", 7},
};
/* Before them, of a sweep. */
static const struct column swept[] = {{"flush_bytes", "flush(B)", "%llu", 8},
                                      {"max_age_us", "bound(us)", "%.4g", 9}};
enum { COLUMNS = sizeof columns / sizeof *columns, SWEPT = sizeof swept / sizeof *swept };

/* The columns of a row, of all that are asked for. */
static int choose_columns(const struct alltoall_arguments *a, struct column out[COLUMNS + SWEPT])
{
    int n = a->sweep == SWEEP_BYTES || a->sweep == SWEEP_AGE ? SWEPT : 0;
    memcpy(out, swept, (size_t)n * sizeof *out);
    memcpy(out + n, columns, sizeof columns);
    return n + COLUMNS;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

/* Sizes of wire messages, where there are any: how many, and which share of the bytes that cross
 * nodes they carried. */
static json_t *histogram(const struct sstar_ledger *l)
{
    json_t *list = json_array();
    for (int i = 0; i < LEDGER_WIRE_CLASSES; i++) {
        if (!l->wire_class[i])
            continue;
        json_t *bin = json_object();
        record_number(bin, "size_bytes", (double)l->wire_class_total[i] / (double)l->wire_class[i]);
        record_count(bin, "wire_messages", l->wire_class[i]);
        record_count(bin, "messages", l->wire_class_messages[i]);
        record_number(bin, "share_bytes", share(l->wire_class_bytes[i], l->cross_bytes));
        json_array_append_new(list, bin);
    }
    return list;
}

static void put_ledger(json_t *row, const struct sstar_ledger *l)
{
    const struct sstar_past *past = l->past;
    record_count(row, "cross_messages", l->cross_messages);
    record_count(row, "cross_bytes", l->cross_bytes);
    if (past[SSTAR_PAST_S_STAR].bytes > 0) {
        record_number(row, "share_messages_past_s_star",
                      share(past[SSTAR_PAST_S_STAR].messages, l->cross_messages));
        record_number(row, "share_bytes_past_s_star",
                      share(past[SSTAR_PAST_S_STAR].message_bytes, l->cross_bytes));
        record_number(row, "share_bytes_past_4_s_star",
                      share(past[SSTAR_PAST_4_S_STAR].message_bytes, l->cross_bytes));
        record_number(row, "share_bytes_past_9_s_star",
                      share(past[SSTAR_PAST_9_S_STAR].message_bytes, l->cross_bytes));
        record_number(row, "share_messages_past_s_star_rate",
                      share(past[SSTAR_PAST_S_STAR_RATE].messages, l->cross_messages));
        record_number(row, "share_bytes_past_s_star_rate",
                      share(past[SSTAR_PAST_S_STAR_RATE].message_bytes, l->cross_bytes));
    }
    record_count(row, "wire_messages", l->wire_messages);
    record_count(row, "wire_bytes", l->wire_bytes);
    record_number(row, "wire_bytes_p50", ledger_wire_quantile(l, 0.50));
    record_number(row, "wire_bytes_p99", ledger_wire_quantile(l, 0.99));
    record_number(row, "age_p50_us", ledger_age_quantile_us(l, 0.50));
    record_number(row, "age_p99_us", ledger_age_quantile_us(l, 0.99));
    record_count(row, "copied_bytes", l->copied_bytes);
    record_count(row, "pushes_refused", l->full);
}

static json_t *row_of(const struct plan *plan, const struct sstar_cost *cost,
                      const char *device_class, const struct outcome *o)
{
    json_t *row = json_object();
    json_object_set_new(row, "strategy", json_string(sstar_strategy_name(o->strategy)));
    json_object_set_new(row, "device", json_string(device_class));
    record_count(row, "message_bytes", plan->mean_bytes);
    record_count(row, "messages", o->ledger.messages);
    record_number(row, "messages_per_s",
                  o->seconds > 0 ? (double)o->ledger.messages / o->seconds : 0);
    record_number(row, "seconds", o->seconds);
    json_object_set_new(row, "predicted_seconds",
                        o->predicted_seconds > 0 ? record_real(o->predicted_seconds) : json_null());
    record_count(row, "flush_bytes", o->strategy == SSTAR_NONE ? 0 : o->point.flush_bytes);
    record_number(row, "max_age_us", o->point.max_age_us);
    record_number(row, "offered_per_s",
                  plan->offered_seconds > 0 ? (double)o->ledger.messages / plan->offered_seconds
                                            : 0);
    record_number(row, "s_star_bytes", sstar_s_star_bytes(cost));
    record_number(row, "s_star_rate_bytes", sstar_s_star_rate_bytes(cost));
    put_ledger(row, &o->ledger);
    record_count(row, "lost", o->lost);
    record_count(row, "doubled", o->doubled);
    record_count(row, "altered", o->altered);
    json_object_set_new(row, "wire_histogram", histogram(&o->ledger));
    ledger_record(row, o);
    return row;
}

/* The table shows ms and percent. */
static void print_row(const struct alltoall_arguments *a, const json_t *row)
{
    static const char *const percents[][2] = {
        {"share_messages_past_s_star", "percent_messages_past_s_star"},
        {"share_bytes_past_s_star", "percent_bytes_past_s_star"},
        {"share_bytes_past_s_star_rate", "percent_bytes_past_s_star_rate"},
    };
    json_t *shown = json_copy((json_t *)row), *value;
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++)
        if ((value = json_object_get(row, percents[i][0])))
            record_number(shown, percents[i][1], 100 * json_number_value(value));
    record_number(shown, "time_ms", 1e3 * json_number_value(json_object_get(row, "seconds")));
    value = json_object_get(row, "predicted_seconds");
    if (json_is_number(value))
        record_number(shown, "predicted_ms", 1e3 * json_number_value(value));
    struct column all[COLUMNS + SWEPT];
    table_row(stdout, all, choose_columns(a, all), shown);
    json_decref(shown);
}

/* ---- in words -----------------------------------------------------------------------------------
 */

static const struct outcome *find(const struct outcome *outcomes, int n, enum sstar_strategy s)
{
    for (int i = 0; i < n; i++)
        if (outcomes[i].strategy == s)
            return &outcomes[i];
    return NULL;
}

/* "node was 14.2 times as fast as none (the wire alone: 14.7 times); ..." */
static void compare(const struct outcome *none, const struct outcome *other)
{
    double gain = none->seconds / other->seconds;
    const char *name = sstar_strategy_name(other->strategy);
    if (gain >= 1.05)
        printf("# %s was %.1f times as fast as none", name, gain);
    else if (gain > 0.95)
        printf("# %s was as fast as none, so here aggregation does not pay", name);
    else
        printf("# %s was %.1f times slower than none: here aggregation does not pay", name,
               1 / gain);
    if (none->predicted_seconds > 0 && other->predicted_seconds > 0)
        printf(" (the wire alone: %.1f times)", none->predicted_seconds / other->predicted_seconds);
    const struct sstar_past *past = &other->ledger.past[SSTAR_PAST_S_STAR];
    if (past->bytes > 0 && other->ledger.cross_bytes)
        printf("; %.1f %% of the bytes that cross nodes travelled past S*, %.1f %% with none",
               100 * share(past->message_bytes, other->ledger.cross_bytes),
               100 * share(none->ledger.past[SSTAR_PAST_S_STAR].message_bytes,
                           none->ledger.cross_bytes));
    printf(".\n");
}

static void print_words(struct sstar_world *world, const struct alltoall_arguments *a,
                        const struct plan *plan, const struct sstar_cost *cost,
                        const struct outcome *outcomes, int n)
{
    if (sstar_node_count(world) == 1) {
        printf("# All ranks are on one node: no message crosses nodes, so there is nothing to "
               "aggregate.\n");
        return;
    }
    for (int i = 0; i < n && a->ledger; i++)
        ledger_print(&outcomes[i]);
    if (a->sweep == SWEEP_BYTES || a->sweep == SWEEP_AGE)
        return;
    for (int i = 0; i < n; i++)
        ledger_explain(world, plan, cost, &outcomes[i]);
    const struct outcome *none = plan->offered_seconds > 0 ? NULL : find(outcomes, n, SSTAR_NONE);
    for (int i = 0; none && i < n; i++)
        if (&outcomes[i] != none && none->seconds > 0 && outcomes[i].seconds > 0)
            compare(none, &outcomes[i]);
}

static void print_head(struct sstar_world *world, const struct alltoall_arguments *a,
                       const struct plan *plan, const struct sstar_cost *cost,
                       const struct sstar_device_info *device)
{
    printf("# sstar alltoall: %d ranks on %s, %s, %llu B per message%s%s%s\n", sstar_size(world),
           nodes_text(sstar_node_count(world)).text, device->device_class,
           (unsigned long long)plan->mean_bytes, a->routing ? ", routing " : "",
           a->routing ? a->routing : "",
           a->per_layer && plan->layers > 1 ? ", a barrier after each layer" : "");
    if (cost->beta_gbps > 0)
        printf("# alpha %.4g us, g %.4g us, beta %.4g GB/s (%s): S* = %.0f B, S*rate = %.0f B\n",
               cost->alpha_us, cost->gap_us, cost->beta_gbps,
               world->config.wire.beta_gbps > 0 ? "imposed" : "measured", sstar_s_star_bytes(cost),
               sstar_s_star_rate_bytes(cost));
    struct column all[COLUMNS + SWEPT];
    table_head(stdout, all, choose_columns(a, all));
}

/* How many times as fast as `none`, and as the wire alone foretells. */
static void put_gain(json_t *row, const struct outcome *none, const struct outcome *o)
{
    if (!none || none->seconds <= 0 || o->seconds <= 0)
        return;
    record_number(row, "gain", none->seconds / o->seconds);
    if (none->predicted_seconds > 0 && o->predicted_seconds > 0)
        record_number(row, "gain_predicted", none->predicted_seconds / o->predicted_seconds);
}

static void put_arguments(json_t *report, const struct alltoall_arguments *a)
{
    json_object_set_new(report, "seed", json_integer((json_int_t)a->common.seed));
    json_object_set_new(report, "routing", a->routing ? record_string(a->routing) : json_null());
    json_object_set_new(report, "per_layer", json_boolean(a->per_layer));
    json_object_set_new(report, "checked", json_boolean(a->check));
    record_text(report, "sweep", alltoall_sweep_names[a->sweep]);
    record_text(report, "pattern", alltoall_pattern_names[a->pattern]);
    record_number(report, "rate", a->rate);
    record_text(report, "arrivals",
                a->trace     ? "trace"
                : a->poisson ? "poisson"
                : a->burst   ? "burst"
                             : "even");
    json_object_set_new(report, "trace", a->trace ? record_string(a->trace) : json_null());
    json_object_set_new(report, "flush", json_string(sstar_flush_name(a->flush)));
    json_object_set_new(report, "max_age_us", record_real(a->max_age_us));
}

int alltoall_report(struct sstar_world *world, const struct alltoall_arguments *a,
                    const struct plan *plan, const struct sstar_cost *cost,
                    const struct outcome *outcomes, int n)
{
    struct sstar_device_info device;
    if (sstar_device_info(world, &device)) {
        fprintf(stderr, "sstar alltoall: %s\n", sstar_last_error(world));
        return EXIT_FAILURE;
    }
    json_t *report = record_new(world, "alltoall"), *rows = json_array();
    uint64_t wrong = 0;
    print_head(world, a, plan, cost, &device);
    for (int i = 0; i < n; i++) {
        json_t *row = row_of(plan, cost, device.device_class, &outcomes[i]);
        put_gain(row, find(outcomes, n, SSTAR_NONE), &outcomes[i]);
        print_row(a, row);
        json_array_append_new(rows, row);
        wrong += outcomes[i].lost + outcomes[i].doubled + outcomes[i].altered;
    }
    print_words(world, a, plan, cost, outcomes, n);
    put_arguments(report, a);
    json_object_set_new(report, "alltoall", rows);
    int status = record_write_json(report, a->common.json);
    status = record_write_csv(report, "alltoall", a->common.csv) || status;
    json_decref(report);
    if (wrong)
        fprintf(stderr, "sstar alltoall: %llu messages were lost, came twice or came altered\n",
                (unsigned long long)wrong);
    return status || wrong ? EXIT_FAILURE : 0;
}
