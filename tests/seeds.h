/* SPDX-License-Identifier: MIT */
/* Which seeds a test tries: SSTAR_TEST_SEEDS many, from SSTAR_TEST_SEED on, so that many can be
 * tried in parts; without these as many as it likes from 1 on, or with SSTAR_TEST_FULL set its full
 * number. Under a sanitizer a quarter of what it likes. */
#ifndef SSTAR_TESTS_SEEDS_H
#define SSTAR_TESTS_SEEDS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a sanitizer watches. It sees what is wrong on a path, not how often the path is taken,
 * and makes everything slow: a part of what is tried without it does. */
bool sanitized(void);

uint64_t seeds_first(void);
uint64_t seeds_count(uint64_t usual, uint64_t full);

#endif
