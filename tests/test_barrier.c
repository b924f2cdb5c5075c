/* SPDX-License-Identifier: MIT */
/* The fast barrier: nobody leaves before all have come. */
#include "tests/ranks.h"
#include "transport/memory.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

static int body_barrier(struct sstar_world *world, void *arg)
{
    (void)arg;
    int size = sstar_size(world), rank = sstar_rank(world);
    uint64_t all[64];
    void *memory;
    CHECK(sstar_alloc(world, 4096, &memory) == 0);
    _Atomic uint64_t *word = memory;
    uint64_t mine = (uintptr_t)memory;
    CHECK(sstar_allgather(world, &mine, sizeof mine, all) == 0);
    for (uint64_t round = 1; round <= 300; round++) {
        atomic_store(word, round);
        CHECK(sstar_fast_barrier(world) == 0);
        for (int peer = 0; peer < size; peer++) {
            _Atomic uint64_t *theirs = memory_peer(world, peer, all[peer], 8);
            CHECK(!theirs || atomic_load(theirs) == round);
        }
        CHECK(sstar_fast_barrier(world) == 0);
    }
    (void)rank;
    CHECK(sstar_free(world, memory) == 0);
    return 0;
}

static void test_barrier(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 1, .body = body_barrier});
    ranks_expect_both((struct ranks){.size = 4, .body = body_barrier});
    for (int size = 2; size <= 6; size++)
        ranks_expect_both(
            (struct ranks){.size = size, .ranks_per_node = 1 + size % 2, .body = body_barrier});
    ranks_expect_both(
        (struct ranks){.size = 3, .ranks_per_node = 1, .wire = ranks_shaped, .body = body_barrier});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_barrier)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
