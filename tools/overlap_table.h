/* SPDX-License-Identifier: MIT */
/* The table of sstar overlap and its record (overlap_table.c). Private to tools. */
#ifndef SSTAR_TOOLS_OVERLAP_TABLE_H
#define SSTAR_TOOLS_OVERLAP_TABLE_H

#include "tools/overlap_sweep.h"
#include <jansson.h>

/* What is timed, in turn, so that a drift of the machine hits all alike. */
enum kind { REDUCING, COMPUTING, BOTH, KINDS };
struct timing {
    double us[KINDS];     /* medians of the rounds */
    double cpu_us[KINDS]; /* processor time of this rank, mean */
};

struct overlap_table {
    struct sstar_world *world;
    const struct overlap_arguments *arguments;
    const struct layers *layers;
    char device_class[24];
    double whole_us,
        compute_us;      /* alone: the AllReduce of all in one piece; computing, as it should be */
    json_t *rows, *best; /* rank 0 */
};
/* A row for a bucket size. predicted_us 0: there is no price. */
void overlap_table_add(struct overlap_table *table, double bucket_mib, size_t bucket_bytes,
                       int buckets, const struct timing *timing, double predicted_us,
                       uint64_t wrong);
/* Marks the best row, too. */
void overlap_table_print(struct overlap_table *table);
/* To the files asked for. An exit status. */
int overlap_table_write(const struct overlap_table *table);

#endif
