/* SPDX-License-Identifier: MIT */
/* What `sstar fit` needs before it measures: the pair, and an unshaped world beside it. */
#include "tools/fit_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fit_say(struct sstar_world *world, int err)
{
    fprintf(stderr, "sstar fit: %s\n",
            *sstar_last_error(world) ? sstar_last_error(world) : strerror(-err));
    return err;
}

uint64_t fit_longest(const struct fit_arguments *a)
{
    const uint64_t chosen_bytes = 4 << 20;
    if (a->end_bytes)
        return a->end_bytes;
    return a->begin_bytes * 64 > chosen_bytes ? a->begin_bytes * 64 : chosen_bytes;
}

static bool imposed(const struct sstar_wire *wire)
{
    return wire->alpha_us > 0 || wire->gap_us > 0 || wire->beta_gbps > 0;
}

/* The same ranks once more on an unshaped wire: what the software takes by itself. */
static int open_unshaped(struct fit_run *run)
{
    struct sstar_config config = run->arguments->common.config;
    char error[512];
    config.wire = (struct sstar_wire){0};
    snprintf(config.token + strlen(config.token), sizeof config.token - strlen(config.token), "u");
    int err = sstar_world_open(&run->unshaped_world, &config, error, sizeof error);
    if (err) {
        fprintf(stderr, "sstar fit: cannot measure the unshaped latency: %s\n", error);
        return err;
    }
    err = pair_open(&run->unshaped, run->unshaped_world, run->arguments->begin_bytes);
    return err ? fit_say(run->unshaped_world, err) : 0;
}

int fit_open(struct fit_run *run)
{
    int err = pair_open(&run->pair, run->world, fit_longest(run->arguments));
    if (!err)
        err = sstar_device_info(run->world, &run->device);
    if (err)
        return fit_say(run->world, err);
    return run->pair.across_nodes && imposed(&run->device.wire) ? open_unshaped(run) : 0;
}

void fit_close(struct fit_run *run)
{
    pair_close(&run->unshaped);
    sstar_world_close(run->unshaped_world);
    pair_close(&run->pair);
    free(run->samples);
}
