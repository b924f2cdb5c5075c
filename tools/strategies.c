/* SPDX-License-Identifier: MIT */
#include "tools/strategies.h"
#include <string.h>

enum { FLUSH_LEAST = 64, FLUSH_MOST = 64 << 20, FLUSH_ON_ONE_NODE = 65536 };

void setting_strategies(const struct setting *s, void *member, const char *text,
                        struct argp_state *state)
{
    bool *strategies = member;
    const char *at = text;
    for (bool more = true; more;) {
        size_t length = strcspn(at, ",");
        int found = -1;
        bool all = length == 3 && !strncmp(at, "all", length);
        for (int i = SSTAR_NONE; i < SSTAR_STRATEGIES; i++) {
            const char *name = sstar_strategy_name((enum sstar_strategy)i);
            if (all)
                strategies[found = i] = true;
            else if (strlen(name) == length && !strncmp(at, name, length))
                found = i;
        }
        if (found < 0) {
            setting_refuse(s, "none, rank, node, mesh, adaptive, several with commas or all", text,
                           state);
            return;
        }
        strategies[found] = true;
        more = at[length] == ',';
        at += length + 1;
    }
}

void setting_float_type(const struct setting *s, void *member, const char *text,
                        struct argp_state *state)
{
    static const enum sstar_type types[] = {SSTAR_FLOAT32, SSTAR_FLOAT16, SSTAR_BFLOAT16,
                                            SSTAR_FLOAT8_E4M3, SSTAR_FLOAT8_E5M2};
    enum { TYPES = sizeof types / sizeof *types };
    const char *names[TYPES];
    char all[128];
    for (int i = 0; i < TYPES; i++) {
        names[i] = sstar_type_name(types[i]);
        if (!strcmp(text, names[i])) {
            *(enum sstar_type *)member = types[i];
            return;
        }
    }
    names_text(names, 0, TYPES, all, sizeof all);
    setting_refuse(s, all, text, state);
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
