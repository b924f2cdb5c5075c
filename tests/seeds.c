/* SPDX-License-Identifier: MIT */
#include "tests/seeds.h"
#include <stdlib.h>

bool sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

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
    if (getenv("SSTAR_TEST_FULL") != NULL)
        return full;
    return sanitized() ? (usual + 3) / 4 : usual;
}
