/* SPDX-License-Identifier: MIT */
#include "tools/strategies.h"
#include <string.h>

enum { FLUSH_LEAST = 64, FLUSH_MOST = 64 << 20, FLUSH_ON_ONE_NODE = 65536 };

void option_strategies(const char *text, bool strategies[SSTAR_STRATEGIES],
                       struct argp_state *state)
{
    const char *at = text;
    for (bool more = true; more;) {
        size_t length = strcspn(at, ",");
        int found = -1;
        bool all = length == 3 && !strncmp(at, "all", length);
        for (int s = SSTAR_NONE; s < SSTAR_STRATEGIES; s++)
            if (all)
                strategies[found = s] = true;
            else if (strlen(sstar_strategy_name((enum sstar_strategy)s)) == length &&
                     !strncmp(at, sstar_strategy_name((enum sstar_strategy)s), length))
                found = s;
        if (found < 0) {
            argp_error(state,
                       "--strategy takes none, rank, node, mesh, adaptive, several with commas or "
                       "all, not '%s'",
                       text);
            return;
        }
        strategies[found] = true;
        more = at[length] == ',';
        at += length + 1;
    }
}

void strategies_default(bool strategies[SSTAR_STRATEGIES])
{
    bool any = false;
    for (int s = 0; s < SSTAR_STRATEGIES; s++)
        any = any || strategies[s];
    for (int s = 0; !any && s < SSTAR_STRATEGIES; s++)
        strategies[s] = true;
}

uint32_t flush_bytes_of(const struct sstar_cost *cost)
{
    double bytes = 4 * sstar_s_star_bytes(cost);
    if (bytes <= 0)
        return FLUSH_ON_ONE_NODE;
    return bytes < FLUSH_LEAST ? FLUSH_LEAST : bytes > FLUSH_MOST ? FLUSH_MOST : (uint32_t)bytes;
}
