/* SPDX-License-Identifier: MIT */
#ifndef SSTAR_COLLECTIVES_WIRE_COST_H
#define SSTAR_COLLECTIVES_WIRE_COST_H

#include "collectives/collectives.h"

/* alpha, g and beta: imposed, or measured once in a world; zeros in a world of one node.
 * Collective. */
int wire_cost(struct sstar_world *world, struct sstar_cost *cost);

#endif
