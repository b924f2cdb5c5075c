/* SPDX-License-Identifier: MIT */
/* What `sstar control-path` says of stages, and of what alpha may be. */
#include "tools/control_path.h"
#include "tools/record.h"
#include <stdio.h>
#include <string.h>

const char *const path_stage_names[STAGES] = {
    [STAGE_HANDOVER] = "hand-over",       [STAGE_BUILD] = "build WQE",
    [STAGE_BATCH] = "wait for batch",     [STAGE_DOORBELL] = "doorbell",
    [STAGE_DEVICE] = "device (emulated)", [STAGE_COMPLETION] = "completion",
    [STAGE_TOLD] = "caller told",
};

static const struct column stage_columns[] = {
    {"path", "path", "%s", 6},          {"post", "post", "%s", 5},
    {"inline", "inline", "%s", 6},      {"size_bytes", "bytes", "%d", 7},
    {"stage", "stage", "%s", 18},       {"typical_ns", "typical[ns]", "%.1f", 11},
    {"median_ns", "median", "%.1f", 9}, {"p99_ns", "p99", "%.1f", 10},
    {"max_ns", "greatest", "%.0f", 10}, {"share_percent", "share[%]", "%.1f", 8},
};
static const struct column budget_columns[] = {
    {"size_bytes", "bytes", "%d", 9},
    {"beta_GBps", "beta[GB/s]", "%.3g", 10},
    {"bytes_us", "S/beta[us]", "%.3f", 10},
    {"alpha_for_50_us", "alpha: 50%", "%.3f", 10},
    {"alpha_for_80_us", "80%", "%.3f", 9},
    {"alpha_for_90_us", "90%[us]", "%.3f", 9},
    {"path", "path", "%s", 7},
    {"post", "post", "%s", 5},
    {"alpha_us", "has[us]", "%.3f", 9},
    {"efficiency_percent", "eff.[%]", "%.1f", 7},
};

static json_t *stage_row(const char *name, double typical_ns, double whole_ns)
{
    json_t *row = json_object();
    json_object_set_new(row, "stage", json_string(name));
    json_object_set_new(row, "typical_ns", record_real(typical_ns));
    json_object_set_new(row, "share_percent", record_real(100 * typical_ns / whole_ns));
    return row;
}

json_t *path_stage_rows(const struct path_lone *lone)
{
    json_t *rows = json_array();
    double sum = 0;
    for (int i = 0; i < STAGES; i++)
        sum += lone->stage[i].typical_ns;
    for (int i = 0; i < STAGES; i++) {
        const struct path_spread *spread = &lone->stage[i];
        json_t *row = stage_row(path_stage_names[i], spread->typical_ns, sum);
        json_object_set_new(row, "median_ns", record_real(spread->median_ns));
        json_object_set_new(row, "p99_ns", record_real(spread->p99_ns));
        json_object_set_new(row, "max_ns", record_real(spread->max_ns));
        json_array_append_new(rows, row);
    }
    json_t *row = stage_row("sum", sum, lone->alpha_ns);
    json_object_set_new(row, "samples", json_integer(lone->samples));
    if (lone->stamps_add_ns != 0)
        json_object_set_new(row, "stamps_add_ns", record_real(lone->stamps_add_ns));
    json_array_append_new(rows, row);
    json_array_append_new(rows, stage_row("from outside", lone->alpha_ns, lone->alpha_ns));
    return rows;
}

void path_report_stages(const json_t *stages)
{
    enum { COLUMNS = sizeof(stage_columns) / sizeof(*stage_columns) };
    const json_t *row;
    size_t i;
    printf(
        "# stages of a lone message; typical: mean over the middle half of the messages; shares of "
        "the sum, and that beside what is measured from outside\n");
    table_head(stdout, stage_columns, COLUMNS);
    json_array_foreach((json_t *)(uintptr_t)stages, i, row)
        table_row(stdout, stage_columns, COLUMNS, row);
}

/* The least alpha and the greatest rate of a path; false: it was not measured. */
static bool best_of(const json_t *rates, const char *path, double *alpha_us, double *rate)
{
    const json_t *row;
    size_t i;
    *alpha_us = *rate = 0;
    json_array_foreach((json_t *)(uintptr_t)rates, i, row)
    {
        double alpha = json_number_value(json_object_get(row, "alpha_us"));
        double per_us = json_number_value(json_object_get(row, "rate_per_us"));
        if (strcmp(json_string_value(json_object_get(row, "path")), path) != 0)
            continue;
        *alpha_us = *alpha_us == 0 || alpha < *alpha_us ? alpha : *alpha_us;
        *rate = per_us > *rate ? per_us : *rate;
    }
    return *rate > 0;
}

void path_report_summary(const json_t *rates)
{
    double alpha[2], rate[2];
    if (best_of(rates, "direct", &alpha[0], &rate[0]) &&
        best_of(rates, "proxy", &alpha[1], &rate[1]))
        printf("# a proxy adds %.3f us to a lone message (%.3f to %.3f) and at best carries %.1f "
               "of the %.1f million messages/s that go directly\n",
               alpha[1] - alpha[0], alpha[0], alpha[1], rate[1], rate[0]);
}

void path_report_budget(json_t *budget, const struct sstar_device_info *device)
{
    enum { COLUMNS = sizeof(budget_columns) / sizeof(*budget_columns) };
    json_t *row;
    size_t i;
    if (json_array_size(budget) == 0)
        return;
    printf("# budget: what alpha may be for a lone message to reach a share of the bandwidth, and "
           "what it is here\n");
    if (strcmp(device->device_class, "softnic") == 0)
        printf("# softnic without a wire: that is the software's path alone; add a wire's alpha, "
               "or impose one (--wire)\n");
    table_head(stdout, budget_columns, COLUMNS);
    json_array_foreach(budget, i, row) table_row(stdout, budget_columns, COLUMNS, row);
}
