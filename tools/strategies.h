/* SPDX-License-Identifier: MIT */
/* What the commands that aggregate have in common. Private to tools. */
#ifndef SSTAR_TOOLS_STRATEGIES_H
#define SSTAR_TOOLS_STRATEGIES_H

#include "collectives/collectives.h"
#include <argp.h>

/* The value of --strategy: names separated by commas, or all. */
void option_strategies(const char *text, bool strategies[SSTAR_STRATEGIES],
                       struct argp_state *state);
/* All, if none was asked for. */
void strategies_default(bool strategies[SSTAR_STRATEGIES]);
/* The default of --flush-bytes: 4*S*, the 80 % size; where there is no wire, any. */
uint32_t flush_bytes_of(const struct sstar_cost *cost);

#endif
