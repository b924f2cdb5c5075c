/* SPDX-License-Identifier: MIT */
/* The barrier behind sstar_fast_barrier. Private. */
#ifndef SSTAR_TRANSPORT_BARRIER_H
#define SSTAR_TRANSPORT_BARRIER_H

#include "transport/transport.h"

/* Free what the first sstar_fast_barrier of a world opened; accepts a world that has none. Call it
 * before the links and the node's memory are closed. */
void barrier_close(struct sstar_world *world);

#endif
