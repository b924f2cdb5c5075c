/* SPDX-License-Identifier: MIT */
/* What sstar replay says: a row for each entry and how it was done, then the sums by kind. */
#include "tools/record.h"
#include "tools/replay.h"
#include "transport/world.h"
#include <string.h>

static const struct column columns[] = {
    {"seq", "seq", "%d", 6},
    {"kind", "collective", "%s", 13},
    {"bytes", "bytes", "%d", 11},
    {"element_bytes", "elem", "%d", 4},
    {"by", "by", "%s", 22},
    {"time_us", "time(us)", "%.2f", 11},
    {"predicted_us", "predicted", "%.2f", 11},
    {"ratio", "ratio", "%.3f", 7},
    {"wire_messages", "wire msgs", "%d", 9},
    {"percent_past_s_star", "B>S*%", "%.1f", 6},
    {"wrong", "wrong", "%d", 6},
};
static const struct column sum_columns[] = {
    {"kind", "collective", "%s", 13},    {"by", "by", "%s", 22},
    {"entries", "entries", "%d", 7},     {"bytes", "bytes", "%d", 12},
    {"time_us", "time(us)", "%.2f", 12}, {"predicted_us", "predicted", "%.2f", 12},
    {"ratio", "ratio", "%.3f", 7},
};
enum {
    COLUMNS = sizeof columns / sizeof *columns,
    SUM_COLUMNS = sizeof sum_columns / sizeof *sum_columns
};
static const char collectives_by[] = "auto"; /* in the sums: the cheapest for each entry */

static double real(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}
static const char *text(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

static void set_price(json_t *row, double us, double predicted_us)
{
    bool priced = predicted_us > 0;
    json_object_set_new(row, "time_us", record_real(us));
    json_object_set_new(row, "predicted_us", priced ? record_real(predicted_us) : json_null());
    json_object_set_new(row, "ratio", priced ? record_real(us / predicted_us) : json_null());
}

json_t *replay_row(const struct replay_entry *entry, const char *by, const char *device_class,
                   const struct replay_outcome *o)
{
    json_t *row = json_object();
    json_object_set_new(row, "seq", json_integer(entry->seq));
    json_object_set_new(row, "kind", json_string(replay_kind_name(entry->kind)));
    json_object_set_new(row, "bytes", json_integer((json_int_t)entry->bytes));
    json_object_set_new(row, "element_bytes", json_integer(entry->element_bytes));
    json_object_set_new(row, "by", json_string(by));
    set_price(row, o->us, o->predicted_us);
    if (replay_is_alltoall(entry->kind)) {
        json_object_set_new(row, "wire_messages", json_integer((json_int_t)o->wire_messages));
        json_object_set_new(row, "cross_bytes", json_integer((json_int_t)o->cross_bytes));
        json_object_set_new(row, "percent_past_s_star",
                            o->cross_bytes
                                ? record_real(100 * (double)o->past_bytes / (double)o->cross_bytes)
                                : json_null());
    }
    json_object_set_new(row, "wrong", json_integer((json_int_t)o->wrong));
    json_object_set_new(row, "device", json_string(device_class));
    return row;
}

void replay_print_head(struct sstar_world *world, const struct replay_arguments *a,
                       const struct replay *replay, const struct sstar_cost *cost,
                       const char *device_class)
{
    printf("# sstar replay: %zu collectives of %s, %d ranks on %s, %s, median of %u rounds\n",
           replay->n, a->path, sstar_size(world), nodes_text(sstar_node_count(world)).text,
           device_class, a->repeat);
    if (cost->beta_gbps > 0)
        printf("# alpha %.4g us, g %.4g us, beta %.4g GB/s (%s): S* = %.0f B\n", cost->alpha_us,
               cost->gap_us, cost->beta_gbps,
               world->config.wire.beta_gbps > 0 ? "imposed" : "measured", sstar_s_star_bytes(cost));
    table_head(stdout, columns, COLUMNS);
}

void replay_print_row(const json_t *row)
{
    table_row(stdout, columns, COLUMNS, row);
}

/* ---- sums ---------------------------------------------------------------------------------------
 */

static bool is_alltoall(const json_t *row)
{
    return json_object_get(row, "wire_messages");
}

static json_t *sum_for(json_t *sums, const char *kind, const char *by)
{
    size_t i;
    json_t *sum;
    json_array_foreach(sums, i, sum) if (!strcmp(text(sum, "kind"), kind) &&
                                         !strcmp(text(sum, "by"), by)) return sum;
    sum = json_object();
    json_object_set_new(sum, "kind", json_string(kind));
    json_object_set_new(sum, "by", json_string(by));
    json_array_append_new(sums, sum);
    return sum;
}

static void add_to(json_t *sum, const json_t *row)
{
    double us = real(sum, "time_us") + real(row, "time_us");
    double predicted = real(sum, "predicted_us") + real(row, "predicted_us");
    json_object_set_new(sum, "entries",
                        json_integer(json_integer_value(json_object_get(sum, "entries")) + 1));
    json_object_set_new(sum, "bytes",
                        json_integer(json_integer_value(json_object_get(sum, "bytes")) +
                                     json_integer_value(json_object_get(row, "bytes"))));
    set_price(sum, us, predicted);
}

/* The whole list, for each strategy its all-to-alls may go by. */
static void add_wholes(json_t *sums, const json_t *rows)
{
    size_t i, j, n = json_array_size(sums);
    json_t *row;
    for (i = 0; i < n; i++) {
        const char *by = text(json_array_get(sums, i), "by");
        if (!strcmp(by, collectives_by))
            continue;
        json_t *all = sum_for(sums, "all", by);
        if (!json_object_get(all, "entries"))
            json_array_foreach(rows, j, row) if (!is_alltoall(row) || !strcmp(text(row, "by"), by))
                add_to(all, row);
    }
}

json_t *replay_sums(const json_t *rows)
{
    json_t *sums = json_array(), *row;
    size_t i;
    json_array_foreach(rows, i, row) add_to(
        sum_for(sums, text(row, "kind"), is_alltoall(row) ? text(row, "by") : collectives_by), row);
    add_wholes(sums, rows);
    return sums;
}

void replay_print_sums(const json_t *sums)
{
    size_t i;
    json_t *sum;
    printf("#\n# by kind, and the whole list with each strategy for its all-to-alls\n");
    table_head(stdout, sum_columns, SUM_COLUMNS);
    json_array_foreach(sums, i, sum) table_row(stdout, sum_columns, SUM_COLUMNS, sum);
}
