/* SPDX-License-Identifier: MIT */
#include "transport/world.h"

void sstar_counters_read(const struct sstar_world *world, struct sstar_counters *out)
{
    *out = world->counters;
}

void sstar_counters_timed(struct sstar_world *world, bool on)
{
    world->timed = on;
}
