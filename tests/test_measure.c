/* SPDX-License-Identifier: MIT */
/* sstar_measure_cost: figures that can be computed with, the same bits on all ranks. No figure is
 * compared with a time. */
#include "collectives/collectives.h"
#include "tests/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_RANKS = 8 };

static int measure(struct sstar_world *world, void *arg)
{
    struct sstar_cost cost, all[MAX_RANKS];
    for (int times = *(const int *)arg; times > 0; times--) {
        CHECK(sstar_measure_cost(world, &cost) == 0);
        CHECK(isfinite(cost.alpha_us) && cost.alpha_us > 0);
        CHECK(isfinite(cost.gap_us) && cost.gap_us > 0);
        CHECK(isfinite(cost.beta_gbps) && cost.beta_gbps > 0);
        CHECK(sstar_allgather(world, &cost, sizeof cost, all) == 0);
        for (int rank = 0; rank < sstar_size(world); rank++)
            CHECK(memcmp(&all[rank], &cost, sizeof cost) == 0);
    }
    return 0;
}

/* Threads, which the thread sanitizer sees into, and processes. */
static void sensible(struct ranks ranks, int times)
{
    ranks.body = measure;
    ranks.arg = &times;
    assert_int_equal(ranks_run(&ranks), 0);
    ranks.processes = true;
    assert_int_equal(ranks_run(&ranks), 0);
}

static void test_one_node(void **state)
{
    (void)state;
    sensible((struct ranks){.size = 2}, 1);
    sensible((struct ranks){.size = 3}, 1);
}

static void test_two_nodes(void **state)
{
    (void)state;
    sensible((struct ranks){.size = 2, .ranks_per_node = 1}, 1);
}

/* Ranks that take no part, nodes of different sizes. */
static void test_onlookers(void **state)
{
    (void)state;
    sensible((struct ranks){.size = 5, .ranks_per_node = 2}, 1);
    sensible((struct ranks){.size = 3, .ranks_per_node = 1}, 1);
}

static void test_shaped(void **state)
{
    (void)state;
    sensible((struct ranks){.size = 2, .ranks_per_node = 1, .wire = {20, 1, 1}}, 1);
    sensible((struct ranks){.size = 4, .ranks_per_node = 2, .wire = {120, 10, 0.1}}, 1);
}

static void test_again_in_one_world(void **state)
{
    (void)state;
    sensible((struct ranks){.size = 3, .ranks_per_node = 2}, 3);
}

static int measure_alone(struct sstar_world *world, void *arg)
{
    struct sstar_cost cost = {.alpha_us = 1, .gap_us = 1, .beta_gbps = 1};
    (void)arg;
    CHECK(sstar_measure_cost(world, &cost) == 0);
    CHECK(cost.alpha_us == 0 && cost.gap_us == 0 && cost.beta_gbps == 0);
    CHECK(sstar_s_star_bytes(&cost) == 0);
    return 0;
}

/* A world of one rank has no wire. */
static void test_alone(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(&(struct ranks){.size = 1, .body = measure_alone}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node),           cmocka_unit_test(test_two_nodes),
        cmocka_unit_test(test_onlookers),          cmocka_unit_test(test_shaped),
        cmocka_unit_test(test_again_in_one_world), cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
