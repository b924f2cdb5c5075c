/* SPDX-License-Identifier: MIT */
#include "tests/seeds.h"
#include <stdlib.h>

uint64_t seeds_first(void)
{
    const char *seed = getenv("SSTAR_TEST_SEED");
    return seed != NULL ? strtoull(seed, NULL, 0) : 1;
}

uint64_t seeds_count(uint64_t usual, uint64_t full)
{
    const char *n = getenv("SSTAR_TEST_SEEDS");
    if (n != NULL)
        return strtoull(n, NULL, 0);
    return getenv("SSTAR_TEST_FULL") != NULL ? full : usual;
}
