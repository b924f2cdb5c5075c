/* SPDX-License-Identifier: MIT */
#include "transport/turn.h"
#include "transport/world.h"

void sstar_counters_read(const struct sstar_world *world, struct sstar_counters *out)
{
    WORLD_TURN(world);
    *out = world->counters;
}

void sstar_counters_timed(struct sstar_world *world, bool on)
{
    WORLD_TURN(world);
    world->timed = on;
}
