/* SPDX-License-Identifier: MIT */
/* Choices that several commands offer. Private to tools. */
#ifndef SSTAR_TOOLS_STRATEGIES_H
#define SSTAR_TOOLS_STRATEGIES_H

#include "collectives/collectives.h"
#include "tools/settings.h"

/* Takers of settings (settings.h): names separated by commas, or all, into bool[SSTAR_STRATEGIES];
 * float or what it can be shortened to, into enum sstar_type. */
setting_take setting_strategies, setting_float_type;
#define TAKES_STRATEGIES(TYPE)         .take = setting_strategies, .offset = offsetof(TYPE, strategies)
#define TAKES_FLOAT_TYPE(TYPE, MEMBER) .take = setting_float_type, .offset = offsetof(TYPE, MEMBER)
/* All, if none was asked for. */
void strategies_default(bool strategies[SSTAR_STRATEGIES]);
/* The default of --flush-bytes: 4*S*, the 80 % size; where there is no wire, any. */
uint32_t flush_bytes_of(const struct sstar_cost *cost);

#endif
