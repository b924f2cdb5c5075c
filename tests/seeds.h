/* SPDX-License-Identifier: MIT */
/* Which seeds a test tries: SSTAR_TEST_SEEDS many, from SSTAR_TEST_SEED on, so that many can be
 * tried in parts; without these as many as it likes from 1 on, or with SSTAR_TEST_FULL set its full
 * number. */
#ifndef SSTAR_TESTS_SEEDS_H
#define SSTAR_TESTS_SEEDS_H

#include <stdint.h>

uint64_t seeds_first(void);
uint64_t seeds_count(uint64_t usual, uint64_t full);

#endif
