/* SPDX-License-Identifier: MIT */
/* The sweep of sstar overlap (overlap_sweep.c). Private to tools. */
#ifndef SSTAR_TOOLS_OVERLAP_SWEEP_H
#define SSTAR_TOOLS_OVERLAP_SWEEP_H

#include "tools/overlap.h"
#include "tools/tool.h"

struct overlap_arguments {
    struct common_options common;
    const char *path;
    double buckets[OPTION_REALS_MOST]; /* MiB */
    int n_buckets, rounds;
    double time_scale, size_scale; /* what is measured stands for times / and sizes * these */
    double compute; /* times as long as the AllReduce of all; 0: as the file says, or 1 */
    enum overlap_progress progress;
};
/* `arguments`: struct overlap_arguments. */
int overlap_run(struct sstar_world *world, void *arguments, int *status);

#endif
