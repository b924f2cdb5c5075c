/* SPDX-License-Identifier: MIT */
/* What `sstar moe` says: a row for dispatch and one for combine of each strategy. */
#include "tools/moe.h"
#include "tools/record.h"
#include "transport/world.h"
#include <stdlib.h>

static const struct column columns[] = {
    {"strategy", "strategy", "%s", 8},
    {"phase", "phase", "%s", 8},
    {"time_ms", "time(ms)", "%.3f", 10},
    {"predicted_ms", "predicted", "%.3f", 10},
    {"copies", "copies", "%llu", 8},
    {"crossings", "crossings", "%llu", 9},
    {"saved", "saved", "%.3f", 6},
    {"saved_predicted", "predicted", "%.3f", 9},
    {"wire_messages", "wire msgs", "%llu", 9},
    {"wire_bytes", "wire(B)", "%llu", 11},
    {"saved_wire_bytes", "B saved", "%.3f", 7},
    {"percent_bytes_past_s_star", "B>S*%", "%.2f", 7},
    {"wrong", "wrong", "%llu", 6},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static json_t *row_of(const struct moe_work *w, const struct moe_outcome *o, bool back,
                      const char *device_class)
{
    const struct sstar_ledger *l = back ? &o->combine : &o->dispatch;
    const struct sstar_past *past = &l->past[SSTAR_PAST_S_STAR];
    double seconds = back ? o->combine_seconds : o->dispatch_seconds;
    double predicted = back ? o->combine_predicted : o->dispatch_predicted;
    uint64_t copies = l->cross_messages + l->merged_messages;
    json_t *row = json_object();
    record_text(row, "strategy", sstar_strategy_name(o->strategy));
    record_text(row, "phase", back ? "combine" : "dispatch");
    record_text(row, "device", device_class);
    record_number(row, "seconds", seconds);
    record_number(row, "predicted_seconds", predicted);
    record_number(row, "time_ms", seconds * 1e3);
    record_number(row, "predicted_ms", predicted * 1e3);
    record_count(row, "copies", copies);
    record_count(row, "crossings", l->cross_messages);
    record_number(row, "saved", ratio((double)copies, (double)l->cross_messages));
    record_number(row, "saved_predicted", ratio((double)w->all_copies, (double)w->all_crossings));
    record_count(row, "cross_bytes", l->cross_bytes);
    record_count(row, "wire_messages", l->wire_messages);
    record_count(row, "wire_bytes", l->wire_bytes);
    record_number(row, "saved_wire_bytes",
                  ratio((double)o->copies_wire_bytes[back], (double)l->wire_bytes));
    record_number(row, "percent_bytes_past_s_star",
                  100 * ratio((double)past->message_bytes, (double)l->cross_bytes));
    record_count(row, "copied_bytes", l->copied_bytes);
    record_count(row, "memory_bytes", o->memory_bytes);
    record_count(row, "wrong", o->wrong);
    return row;
}

static void print_head(struct sstar_world *world, const struct moe_work *w,
                       const struct sstar_cost *cost, const char *device_class)
{
    const struct moe_arguments *a = w->arguments;
    printf("# sstar moe: %d ranks on %s, %s; %u layers, top %u of %u experts, at most %u "
           "tokens of a rank; %u values, %s there and %s back; routing %s\n",
           w->map.size, nodes_text(w->map.nodes).text, device_class, w->layers, w->routing.top,
           w->routing.experts, w->most_tokens, a->values, sstar_type_name(a->token_type),
           sstar_type_name(a->result_type), a->routing ? a->routing : "made up");
    if (cost->beta_gbps > 0)
        printf("# alpha %.4g us, g %.4g us, beta %.4g GB/s (%s): S* = %.0f B, S*rate = %.0f B\n",
               cost->alpha_us, cost->gap_us, cost->beta_gbps,
               world->config.wire.beta_gbps > 0 ? "imposed" : "measured", sstar_s_star_bytes(cost),
               sstar_s_star_rate_bytes(cost));
    table_head(stdout, columns, COLUMNS);
}

int moe_report(struct sstar_world *world, const struct moe_work *w, const struct sstar_cost *cost,
               const struct moe_outcome *outcomes, int n)
{
    struct sstar_device_info device;
    if (sstar_device_info(world, &device)) {
        fprintf(stderr, "sstar moe: %s\n", sstar_last_error(world));
        return EXIT_FAILURE;
    }
    json_t *report = record_new(world, "moe"), *rows = json_array();
    uint64_t wrong = 0;
    print_head(world, w, cost, device.device_class);
    for (int i = 0; i < 2 * n; i++) {
        json_t *row = row_of(w, &outcomes[i / 2], i % 2, device.device_class);
        table_row(stdout, columns, COLUMNS, row);
        json_array_append_new(rows, row);
        wrong += i % 2 ? outcomes[i / 2].wrong : 0;
    }
    if (w->map.nodes > 1)
        printf(
            "# A token crosses to a node once: %.3f times fewer messages than one for each token "
            "and expert, there and back.\n",
            ratio((double)w->all_copies, (double)w->all_crossings));
    else
        printf("# All ranks are on one node: nothing crosses.\n");
    if (w->arguments->check)
        printf("# %llu sums were not, bit for bit, those of a plain computation.\n",
               (unsigned long long)wrong);
    record_text(report, "routing", w->arguments->routing ? w->arguments->routing : "made up");
    record_text(report, "token_type", sstar_type_name(w->arguments->token_type));
    record_text(report, "result_type", sstar_type_name(w->arguments->result_type));
    record_count(report, "values", w->arguments->values);
    record_count(report, "layers", w->layers);
    json_object_set_new(report, "checked", json_boolean(w->arguments->check));
    json_object_set_new(report, "moe", rows);
    int status = record_write_json(report, w->arguments->common.json);
    status = record_write_csv(report, "moe", w->arguments->common.csv) || status;
    json_decref(report);
    return status || wrong ? EXIT_FAILURE : 0;
}
