/* SPDX-License-Identifier: MIT */
#include "transport/world.h"
#include "transport/turn.h"

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
