/* SPDX-License-Identifier: MIT */
/* The simulation against times that can be written down. */
#include "collectives/simulate.h"
#include "transport/link.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct sstar_cost wire = {.alpha_us = 120, .gap_us = 10, .beta_gbps = 0.1};

static double wire_us(double bytes)
{
    return (bytes + LINK_TRAILER_BYTES) / (wire.beta_gbps * 1e3);
}

static void near(double got, double want, double share)
{
    if (fabs(got - want) > share * want + 1e-9)
        fail_msg("%.3f us where %.3f us are due", got, want);
}

/* So many slots that no credit is given back: it would take gaps too. */
static double price_on(const struct sstar_cost *cost, enum sstar_algorithm algorithm, int size,
                       int per_node, size_t bytes, uint32_t slices)
{
    int node_of[64];
    for (int r = 0; r < size; r++)
        node_of[r] = r / per_node;
    struct node_map map;
    assert_int_equal(node_map_init(&map, size, node_of), 0);
    size_t parts = algorithm == SSTAR_RING ? (size_t)size
                   : algorithm == SSTAR_HIERARCHICAL
                       ? (size_t)map.nodes * (size_t)node_map_least(&map)
                       : 1;
    size_t block = bytes / 4 / parts; /* the slices of these are meant */
    struct schedule_shape shape = {.algorithm = algorithm,
                                   .map = &map,
                                   .count = bytes / 4,
                                   .slice_elements = block / slices + (block % slices != 0),
                                   .window = 8,
                                   .channels = 1};
    struct simulate_attr attr = {
        .cost = *cost, .queue_pairs = 4, .slots = 1024, .element_bytes = 4};
    double us = -1;
    assert_int_equal(simulate_schedule(&shape, &attr, &us), 0);
    node_map_destroy(&map);
    return us;
}

static double price_of(enum sstar_algorithm algorithm, int size, int per_node, size_t bytes,
                       uint32_t slices)
{
    return price_on(&wire, algorithm, size, per_node, bytes, slices);
}

static void ring_unsliced(void **state)
{
    (void)state;
    for (int n = 2; n <= 16; n *= 2)
        for (size_t bytes = 1024; bytes <= 4 << 20; bytes *= 4)
            near(price_of(SSTAR_RING, n, 1, bytes, 1),
                 2 * (n - 1) * (wire.alpha_us + wire_us((double)bytes / n)), 1e-9);
}

static void ring_sliced(void **state)
{
    (void)state;
    /* P slices while the port has time to spare: each later one is a gap and its bytes behind. */
    double slice = wire_us(16384.0 / 8 / 4);
    near(price_of(SSTAR_RING, 8, 1, 16384, 4),
         14 * (wire.alpha_us + slice) + 3 * (wire.gap_us + slice), 1e-9);
    /* The port full: all messages one after the other, and the way of the last. */
    slice = wire_us((double)(1 << 20) / 8 / 4);
    near(price_of(SSTAR_RING, 8, 1, 1 << 20, 4),
         14 * 4 * (wire.gap_us + slice) + wire.alpha_us - wire.gap_us, 0.02);
}

static void one_node_is_free(void **state)
{
    (void)state;
    near(price_of(SSTAR_RING, 4, 4, 1 << 16, 2), 0, 0);
    near(price_of(SSTAR_HIERARCHICAL, 4, 4, 1 << 16, 2), 0, 0);
}

/* Two nodes of four: against a flat ring on the same ports. */
static void hierarchical_beside_ring(void **state)
{
    (void)state;
    for (size_t bytes = 1024; bytes <= 4 << 20; bytes *= 4) {
        double ring = price_of(SSTAR_RING, 8, 4, bytes, 1);
        double hierarchical = price_of(SSTAR_HIERARCHICAL, 8, 4, bytes, 1);
        print_message("%8zu bytes: ring %10.1f us, hierarchical %10.1f us, %.2f times\n", bytes,
                      ring, hierarchical, ring / hierarchical);
        assert_true(hierarchical < ring);
        /* Its two steps, the gaps of a node's port, and the bytes that pass it. */
        double least = 2 * wire.alpha_us, bytes_us = (double)bytes / (wire.beta_gbps * 1e3);
        assert_true(hierarchical >= fmax(least, bytes_us));
        assert_true(hierarchical <= least + 8 * wire.gap_us + 1.1 * bytes_us + 8 * wire_us(0));
    }
}

/* Operation by algorithm, from or to the last rank, on nodes to which 8 ranks are dealt out: of 4
 * and 4 where each rank has a block, as the ranks of uneven nodes stand in for each other there,
 * one block after the other; else of 3, 2 and 3. */
static double price_of_operation(enum sstar_operation operation, enum sstar_algorithm algorithm,
                                 size_t bytes)
{
    static const int even[] = {0, 0, 0, 0, 1, 1, 1, 1}, uneven[] = {0, 1, 2, 0, 1, 2, 0, 2};
    struct node_map map;
    bool blocks = operation == SSTAR_REDUCE_SCATTER || operation == SSTAR_ALL_GATHER;
    assert_int_equal(node_map_init(&map, 8, blocks ? even : uneven), 0);
    struct schedule_shape shape = {.operation = operation,
                                   .algorithm = algorithm,
                                   .map = &map,
                                   .count = bytes / 4 / (blocks ? 8 : 1),
                                   .root = 7,
                                   .slice_elements = 4096,
                                   .window = 8,
                                   .channels = 1};
    struct sstar_cost cost = wire;
    cost.node_us = 10;
    struct simulate_attr attr = {.cost = cost, .queue_pairs = 4, .slots = 16, .element_bytes = 4};
    double us = -1;
    assert_int_equal(simulate_schedule(&shape, &attr, &us), 0);
    node_map_destroy(&map);
    return us;
}

/* The cheapest of an operation is a hierarchical one: nothing crosses nodes twice. */
static void hierarchical_for_every_operation(void **state)
{
    (void)state;
    for (int o = 0; o < SSTAR_OPERATIONS; o++)
        for (size_t bytes = 64; bytes <= 1 << 20; bytes *= 32) {
            enum sstar_operation operation = (enum sstar_operation)o;
            double best[2] = {INFINITY, INFINITY};
            for (int a = SSTAR_RING; a < SSTAR_ALGORITHMS; a++) {
                enum sstar_algorithm it = (enum sstar_algorithm)a;
                double *of_family = &best[algorithm_is_hierarchical(it)];
                if (schedule_exists(operation, it))
                    *of_family = fmin(*of_family, price_of_operation(operation, it, bytes));
            }
            print_message("%s of %zu bytes: flat %.1f us, hierarchical %.1f us\n",
                          sstar_operation_name(operation), bytes, best[0], best[1]);
            assert_true(best[1] < best[0]);
        }
}

static void a_port_for_each_rank(void **state)
{
    (void)state;
    int node_of[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    struct node_map map;
    assert_int_equal(node_map_init(&map, 8, node_of), 0);
    struct schedule_shape shape = {.algorithm = SSTAR_HIERARCHICAL,
                                   .map = &map,
                                   .count = 1024,
                                   .slice_elements = 4096,
                                   .window = 8,
                                   .channels = 1};
    struct simulate_attr attr = {
        .cost = wire, .port_per_rank = true, .queue_pairs = 4, .slots = 64, .element_bytes = 4};
    double us;
    assert_int_equal(simulate_schedule(&shape, &attr, &us), 0);
    near(us, 2 * (wire.alpha_us + wire_us(4096.0 / 8)), 1e-9);
    node_map_destroy(&map);
}

/* o once for each message that has to be acted on before the next may leave. */
static void overhead_of_messages(void **state)
{
    (void)state;
    struct sstar_cost cost = wire;
    cost.overhead_us = 12;
    for (int n = 2; n <= 16; n *= 2)
        near(price_on(&cost, SSTAR_RING, n, 1, 4096, 1),
             2 * (n - 1) * (wire.alpha_us + wire_us(4096.0 / n) + 12), 1e-9);
    /* The slices of a block come a gap and their bytes apart: o hides behind that while it is less,
     * and else each waits until the rank has handled the one before. */
    double slice = wire_us(16384.0 / 8 / 4), apart = wire.gap_us + slice;
    near(price_on(&cost, SSTAR_RING, 8, 1, 16384, 4), 14 * (wire.alpha_us + slice + 12) + 3 * apart,
         1e-9);
    cost.overhead_us = apart + 5;
    near(price_on(&cost, SSTAR_RING, 8, 1, 16384, 4),
         14 * (wire.alpha_us + slice + apart + 5) + 3 * (apart + 5), 1e-9);
    /* A port that is full all the time: o counts for the last message only. */
    cost.overhead_us = 1;
    near(price_on(&cost, SSTAR_RING, 8, 1, 1 << 20, 4), price_of(SSTAR_RING, 8, 1, 1 << 20, 4),
         1e-3);
    /* In the memory of a node there is nothing else. */
    near(price_on(&cost, SSTAR_RING, 4, 4, 4096, 1), 6, 1e-9);
    near(price_on(&cost, SSTAR_RING, 4, 4, 4096, 2), 12, 1e-9);
}

/* Two nodes of four: two node steps around two messages, those of a node a gap apart. */
static void steps_of_nodes(void **state)
{
    (void)state;
    struct sstar_cost cost = wire;
    cost.node_us = 30;
    double alone = price_of(SSTAR_HIERARCHICAL, 8, 4, 4096, 1);
    near(price_on(&cost, SSTAR_HIERARCHICAL, 8, 4, 4096, 1), alone + 60, 1e-9);
    cost.overhead_us = 7;
    near(price_on(&cost, SSTAR_HIERARCHICAL, 8, 4, 4096, 1), alone + 60 + 14, 1e-9);
    near(price_on(&cost, SSTAR_RING, 8, 1, 4096, 1), 14 * (wire.alpha_us + wire_us(512) + 7), 1e-9);
    /* One node: one step; o has no part in it. */
    near(price_on(&cost, SSTAR_HIERARCHICAL, 4, 4, 4096, 1), 30, 1e-9);
}

static double log2_of(int n)
{
    double log = 0;
    for (; n > 1; n /= 2)
        log++;
    return log;
}

/* The cost lines of the schedules that move whole messages, one port for each place. */
static void cost_lines(void **state)
{
    (void)state;
    for (int n = 2; n <= 32; n *= 2)
        for (size_t bytes = 1024; bytes <= 1 << 20; bytes *= 4) {
            double log = log2_of(n), S = (double)bytes, headers = wire_us(0);
            near(price_of(SSTAR_DOUBLING, n, 1, bytes, 1), log * (wire.alpha_us + wire_us(S)),
                 1e-9);
            double halves = 2 * log * (wire.alpha_us + headers) +
                            2 * (n - 1) / (double)n * S / (wire.beta_gbps * 1e3);
            near(price_of(SSTAR_HALVING, n, 1, bytes, 1), halves, 1e-9);
            /* Blocks that go round the end of the vector are two messages. */
            double circulant = price_of(SSTAR_CIRCULANT, n, 1, bytes, 1);
            assert_true(circulant >= halves - 1e-6);
            assert_true(circulant <= halves + 2 * log * (wire.gap_us + headers) + 1e-6);
        }
}

/* Whole messages: of the places' algorithms the one with fewer rounds wins below 2.4 S*, that with
 * fewer bytes above (8 places: 3 alpha = 1.25 S/beta). */
static void crossing_of_doubling_and_halving(void **state)
{
    (void)state;
    double s_star = sstar_s_star_bytes(&wire);
    size_t below = (size_t)(2.3 * s_star) / 64 * 64, above = (size_t)(2.5 * s_star) / 64 * 64;
    assert_true(price_of(SSTAR_DOUBLING, 8, 1, below, 1) < price_of(SSTAR_HALVING, 8, 1, below, 1));
    assert_true(price_of(SSTAR_DOUBLING, 8, 1, above, 1) > price_of(SSTAR_HALVING, 8, 1, above, 1));
    /* The tree before the ring while alpha counts. */
    assert_true(price_of(SSTAR_TREE, 8, 1, 1024, 1) < price_of(SSTAR_RING, 8, 1, 1024, 1));
}

/* What the parts are of: Euler's formula gives back the cost line. */
static void parts_of_a_price(void **state)
{
    (void)state;
    int node_of[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct node_map map;
    assert_int_equal(node_map_init(&map, 8, node_of), 0);
    struct schedule_shape shape = {.algorithm = SSTAR_DOUBLING,
                                   .map = &map,
                                   .count = 1024,
                                   .slice_elements = 4096,
                                   .window = 8,
                                   .channels = 1};
    struct simulate_attr attr = {.cost = wire, .queue_pairs = 4, .slots = 64, .element_bytes = 4};
    attr.cost.overhead_us = 7;
    attr.cost.byte_ns = 0.5;
    struct simulate_parts parts;
    assert_int_equal(simulate_parts(&shape, &attr, &parts), 0);
    near(parts.alpha_us, 3 * wire.alpha_us, 1e-4);
    near(parts.beta_us, 3 * wire_us(4096), 1e-4);
    near(parts.gap_us, 0, 1e-4);
    near(parts.work_us, 3 * (7 + 2 * 4096 * 0.5e-3), 1e-3);
    near(parts.alpha_us + parts.gap_us + parts.beta_us + parts.work_us, parts.us, 1e-6);
    size_t steps = 0;
    double us;
    attr.most_steps = 10;
    attr.steps = &steps;
    assert_int_equal(simulate_schedule(&shape, &attr, &us), -E2BIG);
    node_map_destroy(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_unsliced),
        cmocka_unit_test(ring_sliced),
        cmocka_unit_test(one_node_is_free),
        cmocka_unit_test(hierarchical_beside_ring),
        cmocka_unit_test(hierarchical_for_every_operation),
        cmocka_unit_test(a_port_for_each_rank),
        cmocka_unit_test(overhead_of_messages),
        cmocka_unit_test(steps_of_nodes),
        cmocka_unit_test(cost_lines),
        cmocka_unit_test(crossing_of_doubling_and_halving),
        cmocka_unit_test(parts_of_a_price),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
