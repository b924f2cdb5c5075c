/* SPDX-License-Identifier: MIT */
/* sstar alltoall --memory: what a world of any size would take for messages, without having one. */
#include "tools/alltoall.h"
#include "tools/strategies.h"
#include <stdlib.h>
#include <string.h>

static const struct column columns[] = {
    {"strategy", "strategy", "%s", 8},
    {"flush_bytes", "buffer(B)", "%llu", 10},
    {"memory_mb", "MB/rank", "%.2f", 10},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

int alltoall_memory(struct sstar_world *world, const struct alltoall_arguments *a)
{
    const struct sstar_wire *wire = &a->common.config.wire;
    struct sstar_cost cost = {
        .alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps};
    struct sstar_aggregator_attr attr = {.item_bytes = a->message_bytes,
                                         .flush_bytes = a->flush_bytes ? a->flush_bytes
                                                                       : flush_bytes_of(&cost),
                                         .max_age_us = a->max_age_us,
                                         .flush = a->flush,
                                         .hops = a->hops};
    json_t *report = record_new(world, "alltoall-memory"), *rows = json_array();
    printf(
        "# sstar alltoall: %d ranks, %d per node, %u B per message: bytes for messages under way "
        "of the rank that needs most\n",
        a->memory_ranks, a->memory_per_node, a->message_bytes);
    table_head(stdout, columns, COLUMNS);
    for (int s = 0; s < SSTAR_STRATEGIES; s++) {
        uint64_t bytes = 0;
        attr.strategy = (enum sstar_strategy)s;
        if (!a->strategies[s])
            continue;
        int err = sstar_aggregator_memory(&attr, a->memory_ranks, a->memory_per_node, &bytes);
        if (err) {
            fprintf(stderr, "sstar alltoall: no figure for these: %s\n", strerror(-err));
            json_decref(rows);
            json_decref(report);
            return EXIT_FAILURE;
        }
        json_t *row = json_object();
        record_text(row, "strategy", sstar_strategy_name(attr.strategy));
        record_count(row, "flush_bytes", attr.flush_bytes);
        record_count(row, "memory_bytes", bytes);
        record_number(row, "memory_mb", (double)bytes * 1e-6);
        table_row(stdout, columns, COLUMNS, row);
        json_array_append_new(rows, row);
    }
    json_object_set_new(report, "alltoall_memory", rows);
    int status = record_write_json(report, a->common.json);
    status = record_write_csv(report, "alltoall_memory", a->common.csv) || status;
    json_decref(report);
    return status;
}
