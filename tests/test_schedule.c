/* SPDX-License-Identifier: MIT */
/*
 * Every schedule is right, for many shapes: played with symbols. SSTAR_TEST_FULL=1 takes every
 * number of ranks from 1 to 130, and 256, 512 and 1024.
 */
#include "collectives/check.h"
#include "tests/seeds.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = 16, MOST_RANKS = 1024 };

static uint64_t seed_of_run(void)
{
    const char *text = getenv("SSTAR_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : 1;
}

static bool full(void)
{
    const char *text = getenv("SSTAR_TEST_FULL");
    return text && strcmp(text, "1") == 0;
}

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void check_one(const struct schedule_shape *shape, const struct check_attr *attr)
{
    char error[256] = "";
    if (check_schedule(shape, attr, error, sizeof error) != 0)
        fail_msg("%s by %s, %d ranks, %d nodes, root %d, count %zu, slices of %zu, window %u, %u "
                 "channels, in place %d, rank %d lane %d late: %s",
                 sstar_operation_name(shape->operation), sstar_algorithm_name(shape->algorithm),
                 shape->map->size, shape->map->nodes, shape->root, shape->count,
                 shape->slice_elements, shape->window, shape->channels, attr->in_place,
                 attr->late_rank, attr->late_lane, error);
}

/* Everything there is, with a shape whose other members are given. */
static void check_all(struct schedule_shape shape, uint64_t seed)
{
    size_t count = shape.count;
    for (int operation = 0; operation < SSTAR_OPERATIONS; operation++)
        for (int algorithm = 0; algorithm < SSTAR_ALGORITHMS; algorithm++) {
            shape.operation = (enum sstar_operation)operation;
            /* Of a block of each rank there are as many elements as ranks in the vector. */
            bool blocks = operation == SSTAR_REDUCE_SCATTER || operation == SSTAR_ALL_GATHER;
            shape.count = blocks && shape.map->size > 12 ? count % 3 : count;
            shape.algorithm = (enum sstar_algorithm)algorithm;
            if (!schedule_exists(shape.operation, shape.algorithm))
                continue;
            for (int in_place = 0; in_place < 2; in_place++)
                check_one(&shape, &(struct check_attr){.slots = SLOTS,
                                                       .in_place = in_place,
                                                       .seed = seed + (uint64_t)in_place,
                                                       .late_lane = -1});
        }
}

/* Counts around the ranks; slices, windows, channels and the root drawn. */
static void check_map(const struct node_map *map, uint64_t seed, bool few)
{
    size_t n = (size_t)map->size;
    const size_t counts[] = {n + 1, 0, 1, 7, n - 1, 2 * n, 3 * n + 2, 131};
    for (size_t c = 0; c < (few ? 2 : sizeof counts / sizeof *counts); c++) {
        uint64_t state = seed + c;
        struct schedule_shape shape = {.map = map,
                                       .count = counts[few ? 7 * c / 2 : c],
                                       .root = (int)(draw(&state) % n),
                                       .slice_elements = draw(&state) % 2 ? 1000 : 3,
                                       .window = (uint32_t)(draw(&state) % (SLOTS / 2)) + 1,
                                       .channels = draw(&state) % 2 ? 3 : 1};
        check_all(shape, draw(&state));
    }
}

static void check_nodes(int size, const int *node_of, uint64_t seed, bool few)
{
    struct node_map map;
    assert_int_equal(node_map_init(&map, size, node_of), 0);
    check_map(&map, seed, few);
    node_map_destroy(&map);
}

/* Ranks in blocks, dealt out, and drawn with each node at least once. */
static void check_size(int size, uint64_t seed, bool few)
{
    static int node_of[MOST_RANKS];
    const int per_node[] = {1, 2, 5, MOST_RANKS};
    for (size_t k = few ? 1 : 0; k < (few ? 2 : sizeof per_node / sizeof *per_node); k++) {
        for (int r = 0; r < size; r++)
            node_of[r] = r / per_node[k];
        check_nodes(size, node_of, seed + k, few);
    }
    uint64_t state = seed + (uint64_t)size;
    int nodes = 2 + (int)draw(&state) % 4;
    if (size < nodes)
        return;
    for (int r = 0; r < size; r++)
        node_of[r] = r % nodes;
    check_nodes(size, node_of, seed + 10, few);
    for (int r = nodes; r < size; r++)
        node_of[r] = (int)(draw(&state) % (unsigned)nodes);
    check_nodes(size, node_of, seed + 20, few);
}

static void every_number_of_ranks(void **state)
{
    (void)state;
    uint64_t seed = seed_of_run();
    for (int size = 1; size <= (full() ? 130 : sanitized() ? 11 : 17); size++)
        check_size(size, seed + (uint64_t)size * 100, size > 40);
    const int more[] = {24, 31, 33, 40, 64, 65, 100, 127, 130};
    for (size_t i = 0; !full() && i < sizeof more / sizeof *more; i += sanitized() ? 3 : 1)
        check_size(more[i], seed + (uint64_t)more[i] * 100, true);
}

static void very_many_ranks(void **state)
{
    (void)state;
    const int sizes[] = {256, 512, 1024};
    uint64_t seed = seed_of_run() + 1000000;
    for (size_t i = 0; i < (full() ? 3 : sanitized() ? 0 : 1); i++)
        check_size(sizes[i], seed, true);
}

/* One lane alone meets nobody. */
static void lanes_late(const struct schedule_shape *shape, uint64_t *random)
{
    struct schedule schedule = {0};
    for (int rank = 0; rank < shape->map->size; rank++) {
        assert_int_equal(schedule_make(&schedule, shape, rank), 0);
        for (int lane = 0; lane < schedule.n_lanes && schedule.n_lanes > 1; lane++)
            check_one(shape, &(struct check_attr){.slots = SLOTS,
                                                  .in_place = lane % 2,
                                                  .seed = draw(random),
                                                  .late_rank = rank,
                                                  .late_lane = lane});
    }
    schedule_destroy(&schedule);
}

/* Lanes of a rank work on the same memory only one after the other: each made late in turn. */
static void lanes_do_not_meet(void **state)
{
    (void)state;
    int node_of[MOST_RANKS];
    uint64_t random = seed_of_run();
    for (int size = 2; size <= (full() ? 40 : 9); size++) {
        struct node_map map;
        for (int r = 0; r < size; r++)
            node_of[r] = r / (1 + size % 3);
        assert_int_equal(node_map_init(&map, size, node_of), 0);
        struct schedule_shape shape = {.map = &map,
                                       .count = (size_t)size * 2 + 1,
                                       .root = size / 2,
                                       .slice_elements = 3,
                                       .window = 2,
                                       .channels = 3};
        for (int operation = 0; operation < SSTAR_OPERATIONS; operation++)
            for (int algorithm = SSTAR_RING; algorithm < SSTAR_ALGORITHMS; algorithm++) {
                shape.operation = (enum sstar_operation)operation;
                shape.algorithm = (enum sstar_algorithm)algorithm;
                if (schedule_exists(shape.operation, shape.algorithm))
                    lanes_late(&shape, &random);
            }
        node_map_destroy(&map);
    }
}

/* With fewer slots than the pipeline is deep the ring must stop, and the checker must say so. */
static void too_few_slots_are_a_deadlock(void **state)
{
    (void)state;
    int node_of[] = {0, 1, 2};
    struct node_map map;
    assert_int_equal(node_map_init(&map, 3, node_of), 0);
    struct schedule_shape shape = {.algorithm = SSTAR_RING,
                                   .map = &map,
                                   .count = 2400,
                                   .slice_elements = 100,
                                   .window = 8,
                                   .channels = 1};
    char error[256];
    struct check_attr attr = {.slots = 4, .late_lane = -1};
    assert_int_equal(check_schedule(&shape, &attr, error, sizeof error), -EDEADLK);
    attr.slots = 8; /* enough only if credits came back at once */
    assert_int_equal(check_schedule(&shape, &attr, error, sizeof error), -EDEADLK);
    attr.slots = 16;
    assert_int_equal(check_schedule(&shape, &attr, error, sizeof error), 0);
    node_map_destroy(&map);
}

/* Elements that the busiest rank sends, and its messages. */
static size_t most_sent(const struct schedule_shape *shape, size_t *messages)
{
    struct schedule schedule = {0};
    size_t most = 0;
    *messages = 0;
    for (int rank = 0; rank < shape->map->size; rank++) {
        size_t sent = 0, number = 0;
        assert_int_equal(schedule_make(&schedule, shape, rank), 0);
        for (size_t i = 0; i < schedule.n_steps; i++)
            for (int k = 0; k < 2; k++)
                if (schedule.steps[i].to[k] >= 0) {
                    sent += schedule.steps[i].count;
                    number++;
                    assert_true(schedule.steps[i].count <= shape->slice_elements);
                }
        most = sent > most ? sent : most;
        *messages = number > *messages ? number : *messages;
    }
    schedule_destroy(&schedule);
    return most;
}

/* What the cost lines say of bytes and rounds. */
static void as_many_bytes_as_the_cost_lines_say(void **state)
{
    (void)state;
    int node_of[64];
    for (int n = 2; n <= 64; n++) {
        struct node_map map;
        size_t messages, count = (size_t)n * 60, log = 0;
        for (int r = 0; r < n; r++)
            node_of[r] = r;
        while ((1 << log) < n)
            log++;
        bool power = (n & (n - 1)) == 0;
        assert_int_equal(node_map_init(&map, n, node_of), 0);
        struct schedule_shape shape = {.map = &map,
                                       .count = count,
                                       .slice_elements = SIZE_MAX / 4,
                                       .window = 8,
                                       .channels = 1};
        size_t least = 2 * (count - 60);
        shape.algorithm = SSTAR_RING;
        assert_int_equal(most_sent(&shape, &messages), least);
        assert_int_equal(messages, 2 * (size_t)(n - 1));
        shape.algorithm = SSTAR_CIRCULANT;
        assert_int_equal(most_sent(&shape, &messages), least);
        shape.algorithm = SSTAR_HALVING;
        size_t sent = most_sent(&shape, &messages);
        assert_true(power ? sent <= least + 2 * log && messages == 2 * log
                          : sent <= 3 * count + 64);
        shape.algorithm = SSTAR_DOUBLING;
        sent = most_sent(&shape, &messages);
        assert_int_equal(sent, count * (power ? log : log));
        shape.algorithm = SSTAR_TREE; /* inner places: one message up and two down of a half, one
                                         up of the other */
        assert_true(most_sent(&shape, &messages) <= 2 * count && messages <= 4);
        node_map_destroy(&map);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_ranks),
        cmocka_unit_test(very_many_ranks),
        cmocka_unit_test(lanes_do_not_meet),
        cmocka_unit_test(too_few_slots_are_a_deadlock),
        cmocka_unit_test(as_many_bytes_as_the_cost_lines_say),
    };
    print_message("seed %llu (SSTAR_TEST_SEED), %s\n", (unsigned long long)seed_of_run(),
                  full() ? "all numbers of ranks" : "a sample; all with SSTAR_TEST_FULL=1");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
