/* SPDX-License-Identifier: MIT */
/* Where a proxy runs. Private. */
#ifndef SSTAR_TRANSPORT_PROXY_PLACE_H
#define SSTAR_TRANSPORT_PROXY_PLACE_H

#include "transport/world.h"

/* The CPUs for proxy i of this rank; false: wherever the system puts it. */
bool proxy_place(struct sstar_world *world, uint32_t i, cpu_set_t *cpus);

#endif
