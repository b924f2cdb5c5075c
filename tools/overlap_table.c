/* SPDX-License-Identifier: MIT */
/* What the sweep of sstar overlap found: rows, the best of them, table and record. */
#include "tools/overlap_table.h"
#include "tools/record.h"
#include <string.h>

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
    {"possible_percent", "possible%", "%.1f", 9},
    {"stands_for_us", "stands for", "%.0f", 10},
    {"cpu_percent", "cpu%", "%.0f", 5},
    {"taken_percent", "taken%", "%.1f", 6},
    {"wrong", "wrong", "%d", 5},
    {"note", "", "%s", 4},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

void overlap_table_add(struct overlap_table *table, double bucket_mib, size_t bucket_bytes,
                       int buckets, const struct timing *t, double predicted_us, uint64_t wrong)
{
    json_t *row = json_object();
    bool priced = predicted_us > 0;
    double us = t->us[BOTH], alone_us = t->us[REDUCING] + t->us[COMPUTING];
    double hidden = 100 * (alone_us - us) / t->us[REDUCING];
    double possible = 100 * (alone_us - predicted_us) / t->us[REDUCING];
    json_object_set_new(row, "bucket_MiB", record_real(bucket_mib));
    json_object_set_new(row, "bucket_bytes", json_integer((json_int_t)bucket_bytes));
    json_object_set_new(row, "buckets", json_integer(buckets));
    json_object_set_new(row, "time_us", record_real(us));
    json_object_set_new(row, "predicted_us", priced ? record_real(predicted_us) : json_null());
    json_object_set_new(row, "ratio", priced ? record_real(us / predicted_us) : json_null());
    json_object_set_new(row, "compute_us", record_real(t->us[COMPUTING]));
    json_object_set_new(row, "reduce_us", record_real(t->us[REDUCING]));
    /* More than all is not hidden: what was timed alone was disturbed. */
    json_object_set_new(row, "hidden_percent", hidden <= 100 ? record_real(hidden) : json_null());
    json_object_set_new(row, "possible_percent", priced ? record_real(possible) : json_null());
    json_object_set_new(row, "stands_for_us", record_real(us / table->arguments->time_scale));
    json_object_set_new(row, "cpu_percent", record_real(100 * t->cpu_us[BOTH] / us));
    json_object_set_new(row, "taken_percent",
                        record_real(100 * (t->cpu_us[BOTH] - t->cpu_us[COMPUTING]) / us));
    json_object_set_new(row, "wrong", json_integer((json_int_t)wrong));
    json_object_set_new(row, "device", json_string(table->device_class));
    json_array_append_new(table->rows, row);
    if (!table->best || us < json_number_value(json_object_get(table->best, "time_us")))
        table->best = row;
}

static const char *const progress_names[] = {"a thread of the library", "calls while computing",
                                             "nothing"};

static void print_head(const struct overlap_table *table)
{
    const struct overlap_arguments *a = table->arguments;
    printf("# sstar overlap: %s, %d layers, %.4g M parameters in float32, %d ranks on %s, %s; "
           "moved on by %s\n",
           a->path, table->layers->n, table->layers->parameters / 1e6, sstar_size(table->world),
           nodes_text(sstar_node_count(table->world)).text, table->device_class,
           progress_names[a->progress]);
    printf("# computation set to %.0f us; all gradients in one AllReduce %.0f us\n",
           table->compute_us, table->whole_us);
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
static void say_disturbed(const struct overlap_table *table)
{
    const double far = 1.5;
    double most = 0;
    const json_t *row;
    size_t i;
    json_array_foreach(table->rows, i, row) if (real(row, "compute_us") > most) most =
        real(row, "compute_us");
    if (most > far * table->compute_us)
        printf("# computing alone took up to %.1f times what it was set to: others use the cores, "
               "or ranks share them; what is hidden, and which size is best, may be chance\n",
               most / table->compute_us);
}

void overlap_table_print(struct overlap_table *table)
{
    print_head(table);
    size_t i;
    json_t *row;
    const json_t *small = json_array_get(table->rows, 0);
    const json_t *large = json_array_get(table->rows, json_array_size(table->rows) - 1);
    if (table->best)
        json_object_set_new(table->best, "note", json_string("best"));
    json_array_foreach(table->rows, i, row) table_row(stdout, columns, COLUMNS, row);
    say_disturbed(table);
    char hidden[64] = "";
    if (table->best && json_is_real(json_object_get(table->best, "hidden_percent")))
        snprintf(hidden, sizeof hidden, ", %.1f %% of the AllReduces hidden",
                 real(table->best, "hidden_percent"));
    if (table->best)
        printf("# best: buckets of %g MiB%s; %g MiB takes %.2f times "
               "as long, %g MiB %.2f times\n",
               real(table->best, "bucket_MiB"), hidden, real(small, "bucket_MiB"),
               real(small, "time_us") / real(table->best, "time_us"), real(large, "bucket_MiB"),
               real(large, "time_us") / real(table->best, "time_us"));
}

int overlap_table_write(const struct overlap_table *table)
{
    const struct overlap_arguments *a = table->arguments;
    json_t *record = record_new(table->world, "overlap");
    json_object_set_new(record, "file", record_string(a->path));
    json_object_set_new(record, "parameters", record_real(table->layers->parameters));
    json_object_set_new(record, "compute_us", record_real(table->compute_us));
    json_object_set_new(record, "whole_us", record_real(table->whole_us));
    json_object_set_new(record, "time_scale", record_real(a->time_scale));
    json_object_set_new(record, "size_scale", record_real(a->size_scale));
    json_object_set_new(record, "progress", json_string(progress_names[a->progress]));
    json_object_set(record, "overlap", table->rows);
    int status = record_write_json(record, a->common.json) ||
                 record_write_csv(record, "overlap", a->common.csv);
    json_decref(record);
    return status;
}
