/* SPDX-License-Identifier: MIT */
/* Every schedule is right, for many shapes: played with symbols. */
#include "collectives/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = 16 };

static uint64_t seed_of_run(void)
{
    const char *text = getenv("SSTAR_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : 1;
}

static void check_one(const struct schedule_shape *shape, uint64_t seed)
{
    char error[256] = "";
    for (int in_place = 0; in_place < 2; in_place++) {
        struct check_attr attr = {
            .slots = SLOTS, .in_place = in_place, .seed = seed + (uint64_t)in_place};
        if (check_schedule(shape, &attr, error, sizeof error) != 0)
            fail_msg("%s, %d ranks, %d nodes, count %zu, %u slices of %zu, in place %d: %s",
                     sstar_algorithm_name(shape->algorithm), shape->map->size, shape->map->nodes,
                     shape->count, shape->slices, shape->slice_elements, in_place, error);
    }
}

/* Counts around the ranks, and slices from one to the most that the slots allow. */
static void check_map(const struct node_map *map, uint64_t seed)
{
    size_t n = (size_t)map->size;
    const size_t counts[] = {0, 1, 2, 7, n - 1, n, n + 1, 3 * n + 2, 131};
    const uint32_t slices[] = {1, 2, 3, SLOTS / 2};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t p = 0; p < sizeof slices / sizeof *slices; p++)
            for (int hierarchical = 0; hierarchical < 2; hierarchical++) {
                struct schedule_shape shape = {
                    .algorithm = hierarchical ? SSTAR_HIERARCHICAL : SSTAR_RING,
                    .map = map,
                    .count = counts[c],
                    .slices = slices[p],
                    .slice_elements = p == 1 ? 3 : 1000,
                };
                check_one(&shape, seed + c * 100 + p);
            }
}

static void check_nodes(int size, const int *node_of, uint64_t seed)
{
    struct node_map map;
    assert_int_equal(node_map_init(&map, size, node_of), 0);
    check_map(&map, seed);
    node_map_destroy(&map);
}

static void every_size_in_blocks(void **state)
{
    (void)state;
    uint64_t seed = seed_of_run();
    const int per_node[] = {1, 2, 5, 40};
    int node_of[40];
    for (int size = 1; size <= 40; size++)
        for (size_t k = 0; k < sizeof per_node / sizeof *per_node; k++) {
            for (int r = 0; r < size; r++)
                node_of[r] = r / per_node[k];
            check_nodes(size, node_of, seed);
        }
}

static void ranks_dealt_out_and_uneven(void **state)
{
    (void)state;
    uint64_t seed = seed_of_run();
    int node_of[40];
    for (int size = 2; size <= 40; size += 3)
        for (int nodes = 2; nodes <= 5 && nodes <= size; nodes++) {
            for (int r = 0; r < size; r++)
                node_of[r] = r % nodes;
            check_nodes(size, node_of, seed);
            /* Drawn, each node at least once. */
            uint64_t random = seed + (uint64_t)size * 8 + (uint64_t)nodes;
            for (int r = nodes; r < size; r++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                node_of[r] = (int)((random >> 33) % (unsigned)nodes);
            }
            check_nodes(size, node_of, seed);
        }
}

/* With fewer slots than the pipeline is deep the ring must stop, and the checker must say so. */
static void too_few_slots_are_a_deadlock(void **state)
{
    (void)state;
    int node_of[] = {0, 1, 2};
    struct node_map map;
    assert_int_equal(node_map_init(&map, 3, node_of), 0);
    struct schedule_shape shape = {SSTAR_RING, &map, 300, 8, 100};
    char error[256];
    struct check_attr attr = {.slots = 4};
    assert_int_equal(check_schedule(&shape, &attr, error, sizeof error), -EDEADLK);
    attr.slots = 8; /* enough only if credits came back at once */
    assert_int_equal(check_schedule(&shape, &attr, error, sizeof error), -EDEADLK);
    attr.slots = 16;
    assert_int_equal(check_schedule(&shape, &attr, error, sizeof error), 0);
    node_map_destroy(&map);
}

/* Bytes that a ring moves: 2 (n-1)/n of the vector from each place, no message above its bound. */
static void ring_moves_the_least(void **state)
{
    (void)state;
    int node_of[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct node_map map;
    assert_int_equal(node_map_init(&map, 8, node_of), 0);
    struct schedule_shape shape = {SSTAR_RING, &map, 8 * 1000, 4, 64};
    for (int rank = 0; rank < 8; rank++) {
        struct schedule schedule;
        struct step step;
        size_t sent = 0, received = 0;
        schedule_begin(&schedule, &shape, rank);
        while (schedule_next(&schedule, &step)) {
            assert_true(step.count > 0 && step.count <= shape.slice_elements);
            sent += step.what & STEP_SEND ? step.count : 0;
            received += step.what & STEP_RECEIVE ? step.count : 0;
        }
        /* Blocks of a pass differ by an element at most. */
        assert_in_range(sent, 14 * 1000 - 14 * 4, 14 * 1000 + 14 * 4);
        assert_in_range(received, 14 * 1000 - 14 * 4, 14 * 1000 + 14 * 4);
    }
    node_map_destroy(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_in_blocks),
        cmocka_unit_test(ranks_dealt_out_and_uneven),
        cmocka_unit_test(too_few_slots_are_a_deadlock),
        cmocka_unit_test(ring_moves_the_least),
    };
    print_message("seed %llu (SSTAR_TEST_SEED)\n", (unsigned long long)seed_of_run());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
