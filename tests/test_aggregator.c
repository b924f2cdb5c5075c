/* SPDX-License-Identifier: MIT */
/*
 * The aggregating all-to-all: every message arrives once, whole, in the order of its pair, for
 * every strategy, many shapes of world and of traffic, with room for a few messages only, and again
 * after a reset. Ranks are threads (what ThreadSanitizer can see) or processes.
 */
#include "collectives/collectives.h"
#include "collectives/model_alltoall.h"
#include "tests/ranks.h"
#include "tests/seeds.h"
#include "tests/traffic.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct traffic kinds[] = {
    {"small messages", UNIFORM, 400, 1, 64, 1024, 0, 0, 2, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"all sizes", UNIFORM, 200, 1, 2048, 8192, 0, 0, 1, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"no payload", UNIFORM, 50, 0, 1, 256, 0, 0, 1, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"a buffer for each message", UNIFORM, 100, 8, 8, 64, 0, 0, 1, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"all to one", ALL_TO_ONE, 200, 64, 64, 4096, 0, 0, 2, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"one to all", ONE_TO_ALL, 600, 100, 700, 4096, 0, 0, 2, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"neighbours", NEIGHBOUR, 300, 512, 512, 20000, 0, 0, 1, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"nothing", NOTHING, 0, 1, 8, 1024, 0, 0, 3, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"room for two", UNIFORM, 300, 1, 200, 100000, 1, 0, 2, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"room for two, all to one", ALL_TO_ONE, 200, 2048, 2048, 3000, 1, 0, 1, false,
     SSTAR_FLUSH_BYTES, 0, 0},
    {"old at once", UNIFORM, 200, 16, 16, 1 << 20, 0, 0.001, 1, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"some age", UNIFORM, 200, 16, 1000, 1 << 20, 8192, 100, 1, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"bytes alike", UNIFORM, 700, 1, 1, 200, 0, 0, 2, true, SSTAR_FLUSH_BYTES, 0, 0},
    {"three words alike", UNIFORM, 300, 12, 12, 1024, 1, 0, 2, true, SSTAR_FLUSH_BYTES, 0, 0},
    {"odd and alike", ALL_TO_ONE, 300, 157, 157, 3000, 0, 0, 1, true, SSTAR_FLUSH_BYTES, 0, 0},
    {"long and alike", UNIFORM, 40, 2048, 2048, 3000, 1, 0, 1, true, SSTAR_FLUSH_BYTES, 0, 0},
    {"as the wire is free", UNIFORM, 200, 8, 100, 4096, 0, 0, 2, false, SSTAR_FLUSH_MARGINAL, 0, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static int all_kinds(struct sstar_world *world, void *arg)
{
    (void)arg;
    for (int k = 0; k < KINDS; k++) {
        for (int s = SSTAR_NONE; s < SSTAR_STRATEGIES; s++) {
            if (traffic_run(world, &kinds[k], (enum sstar_strategy)s, &(struct totals){0})) {
                fprintf(stderr, "(%s, strategy %d, seed %llu)\n", kinds[k].name, s,
                        (unsigned long long)TRAFFIC_SEED);
                return -1;
            }
        }
    }
    return 0;
}

static int run(const struct ranks *r)
{
    int failed = ranks_run(r);
    if (failed)
        fprintf(stderr, "%d ranks, %d per node, %s\n", r->size, r->ranks_per_node,
                r->processes ? "processes" : "threads");
    return failed;
}

static void on_one_node(void **state)
{
    (void)state;
    for (int size = 1; size <= 8; size += size < 4 ? 1 : 2)
        assert_int_equal(run(&(struct ranks){.size = size, .body = all_kinds}), 0);
}

static void across_nodes(void **state)
{
    (void)state;
    /* Ranks, ranks per node; the last node may have fewer. */
    static const int shapes[][2] = {{2, 1}, {3, 1}, {3, 2}, {4, 2}, {5, 4},
                                    {6, 3}, {7, 2}, {8, 4}, {8, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += sanitized() ? 2 : 1)
        assert_int_equal(run(&(struct ranks){.size = shapes[i][0],
                                             .ranks_per_node = shapes[i][1],
                                             .body = all_kinds}),
                         0);
}

static const struct sstar_wire shaped = {.alpha_us = 20, .gap_us = 1, .beta_gbps = 1};

static void on_a_shaped_wire(void **state)
{
    (void)state;
    assert_int_equal(
        run(&(struct ranks){.size = 4, .ranks_per_node = 2, .wire = shaped, .body = all_kinds}), 0);
    assert_int_equal(run(&(struct ranks){.size = 5,
                                         .ranks_per_node = 2,
                                         .wire = shaped,
                                         .port_per_rank = true,
                                         .queue_pairs = 1,
                                         .body = all_kinds}),
                     0);
}

static void as_processes(void **state)
{
    (void)state;
    static const int shapes[][2] = {{4, 0}, {4, 2}, {5, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        assert_int_equal(run(&(struct ranks){.size = shapes[i][0],
                                             .ranks_per_node = shapes[i][1],
                                             .processes = true,
                                             .body = all_kinds}),
                         0);
    assert_int_equal(
        run(&(struct ranks){
            .size = 6, .ranks_per_node = 3, .wire = shaped, .processes = true, .body = all_kinds}),
        0);
}

/* More writers in a node than a work request has pieces: the wire message is copied together. */
static int copied_kinds(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct totals sum;
    return traffic_run(world, &kinds[0], SSTAR_PER_NODE, &sum) ||
           traffic_run(world, &kinds[5], SSTAR_PER_NODE, &sum) ||
           traffic_run(world, &kinds[8], SSTAR_PER_NODE, &sum);
}

static void with_many_writers(void **state)
{
    (void)state;
    assert_int_equal(run(&(struct ranks){.size = 22, .ranks_per_node = 18, .body = copied_kinds}),
                     0);
}

/* ---- the model knows what goes over the wire ---------------------------------------------------
 */

static const struct traffic both_alike[] = {
    {"alike", UNIFORM, 2000, 64, 64, 4096, 0, 0, 1, false, SSTAR_FLUSH_BYTES, 0, 0},
    {"alike", UNIFORM, 2000, 64, 64, 4096, 0, 0, 1, true, SSTAR_FLUSH_BYTES, 0, 0}};

static int predicted_of(struct sstar_world *world, const struct traffic *alike)
{
    int size = sstar_size(world), node_of[RANKS_MOST];
    uint64_t matrix[RANKS_MOST * RANKS_MOST] = {0};
    static const struct sstar_cost cost = {.alpha_us = 120, .gap_us = 10, .beta_gbps = 0.1};
    for (int from = 0; from < size; from++) {
        node_of[from] = sstar_node_of(world, from);
        for (uint32_t i = 0; i < alike->messages; i++)
            matrix[from * size + traffic_destination(alike, size, from, i)]++;
    }
    struct alltoall_traffic t = {.ranks = size,
                                 .nodes = sstar_node_count(world),
                                 .node_of = node_of,
                                 .messages = matrix,
                                 .message_bytes = 64,
                                 .fixed = alike->fixed};
    for (enum sstar_strategy s = SSTAR_NONE; s < SSTAR_STRATEGIES; s++) {
        struct alltoall_prediction p;
        struct totals sums;
        CHECK(model_alltoall(&t, s, alike->flush_bytes, &cost, &p) == 0);
        if (traffic_run(world, alike, s, &sums))
            return -1;
        if (s == SSTAR_PER_NODE) {
            /* Not every wire message has a piece from every writer, now and then a ring that begins
             * anew ends one early, and the end of a stream may come with a full one. */
            CHECK(sums.wire + 6 >= p.wire_messages);
            CHECK(sums.wire <= p.wire_messages * 11 / 10 + 2);
            CHECK(sums.wire_bytes <= p.wire_bytes * 102 / 100);
            CHECK(sums.wire_bytes >= p.wire_bytes * 98 / 100);
        } else if (s == SSTAR_ADAPTIVE) {
            CHECK(sums.in_wire_bytes == 64 * sums.cross); /* what goes which way is a race */
        } else {
            CHECK(sums.wire == p.wire_messages);
            CHECK(sums.wire_bytes == p.wire_bytes);
        }
    }
    return 0;
}

static int predicted(struct sstar_world *world, void *arg)
{
    (void)arg;
    return predicted_of(world, &both_alike[0]) || predicted_of(world, &both_alike[1]) ? -1 : 0;
}

static void the_model_knows_the_wire_messages(void **state)
{
    (void)state;
    static const int shapes[][2] = {{4, 2}, {5, 2}, {3, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        assert_int_equal(run(&(struct ranks){.size = shapes[i][0],
                                             .ranks_per_node = shapes[i][1],
                                             .body = predicted}),
                         0);
}

/* ---- what the age bound is for ------------------------------------------------------------------
 */

/* A question and its answer, while nobody is done and the threshold is far away. */
static int question_and_answer(struct sstar_world *world, void *arg)
{
    int me = sstar_rank(world), last = sstar_size(world) - 1;
    struct sstar_aggregator_attr attr = {.strategy = *(enum sstar_strategy *)arg,
                                         .max_item_bytes = 16,
                                         .flush_bytes = 1 << 20,
                                         .max_age_us = 50};
    struct sstar_aggregator *a;
    struct sstar_item item;
    CHECK(sstar_aggregator_open(world, &attr, &a) == 0);
    uint64_t told = 0;
    for (uint64_t turn = 0; turn < 20; turn++) {
        int got = 0;
        if (me == 0)
            CHECK(sstar_push(a, last, &turn, sizeof turn) == 0);
        while ((me == 0 || me == last) && !got) {
            CHECK((got = sstar_pull(a, &item)) >= 0);
            CHECK(got || sstar_advance(a, false) == 1);
        }
        if (got) {
            memcpy(&told, item.data, sizeof told);
            CHECK(told == turn);
        }
        if (me == last)
            CHECK(sstar_push(a, 0, &told, sizeof told) == 0);
    }
    int left;
    while ((left = sstar_advance(a, true)) == 1)
        CHECK(sstar_pull(a, &item) == 0);
    CHECK(left == 0);
    sstar_aggregator_close(a);
    return 0;
}

static void an_age_bound_lets_answers_come(void **state)
{
    (void)state;
    for (enum sstar_strategy s = SSTAR_NONE; s < SSTAR_STRATEGIES; s++)
        assert_int_equal(
            run(&(struct ranks){
                .size = 4, .ranks_per_node = 2, .body = question_and_answer, .arg = &s}),
            0);
}

/* ---- what cannot be
 * ------------------------------------------------------------------------------ */

static int mistakes(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct sstar_aggregator_attr attr = {
        .strategy = SSTAR_PER_NODE, .max_item_bytes = 8, .flush_bytes = 1000};
    struct sstar_aggregator *a = NULL;
    uint8_t data[16] = {0};
    struct sstar_aggregator_attr bad = attr;
    bad.max_item_bytes = 0;
    CHECK(sstar_aggregator_open(world, &bad, &a) == -EINVAL && !a);
    bad = attr;
    bad.strategy = SSTAR_STRATEGIES;
    CHECK(sstar_aggregator_open(world, &bad, &a) == -EINVAL);
    bad = attr;
    bad.max_age_us = -1;
    CHECK(sstar_aggregator_open(world, &bad, &a) == -EINVAL);
    bad = attr;
    bad.hops = 4;
    CHECK(sstar_aggregator_open(world, &bad, &a) == -EINVAL);
    bad = attr;
    bad.flush = SSTAR_FLUSH_RULES;
    CHECK(sstar_aggregator_open(world, &bad, &a) == -EINVAL);
    bad = attr;
    bad.flush_bytes = 1000 + (uint32_t)sstar_rank(world);
    CHECK(sstar_aggregator_open(world, &bad, &a) == -EINVAL && !a);
    CHECK(strstr(sstar_last_error(world), "other attributes"));
    CHECK(sstar_aggregator_open(world, &attr, &a) == 0);
    CHECK(sstar_push(a, -1, data, 8) == -EINVAL);
    CHECK(sstar_push(a, sstar_size(world), data, 8) == -EINVAL);
    CHECK(strstr(sstar_last_error(world), "there is no rank"));
    CHECK(sstar_push(a, 0, data, 9) == -EMSGSIZE);
    CHECK(sstar_aggregator_reset(a) == -EINVAL);
    int left;
    while ((left = sstar_advance(a, true)) == 1)
        ;
    CHECK(left == 0);
    CHECK(sstar_push(a, 0, data, 8) == -EINVAL);
    sstar_aggregator_close(a);
    sstar_aggregator_close(NULL);
    return 0;
}

static int fixed_mistakes(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct sstar_aggregator_attr attr = {.item_bytes = 8, .flush_bytes = 1000};
    struct sstar_aggregator *a;
    uint8_t data[16] = {0};
    int last = sstar_size(world) - 1, left;
    CHECK(sstar_aggregator_open(world, &attr, &a) == 0);
    CHECK(sstar_push(a, last, data, 7) == -EMSGSIZE);
    CHECK(strstr(sstar_last_error(world), "opened for messages of 8"));
    CHECK(sstar_push(a, last, data, 9) == -EMSGSIZE);
    while ((left = sstar_advance(a, true)) == 1)
        CHECK(sstar_push(a, last, data, 8) == -EINVAL);
    CHECK(left == 0);
    sstar_aggregator_close(a);
    return 0;
}

/* More than any machine has: the same answer on every rank, before anything is taken. */
static int too_much(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct sstar_aggregator_attr attr = {.strategy = SSTAR_PER_NODE,
                                         .max_item_bytes = 8,
                                         .flush_bytes = 1000,
                                         .buffer_bytes = UINT32_MAX};
    struct sstar_aggregator *a = NULL;
    uint64_t bytes;
    CHECK(sstar_aggregator_open(world, &attr, &a) == -ENOMEM && !a);
    CHECK(strstr(sstar_last_error(world), "its 8 ranks on host"));
    CHECK(sstar_aggregator_memory(&attr, 8, 4, &bytes) == 0);
    CHECK(bytes > 4ull << 32); /* a ring from each rank of the node */
    attr.buffer_bytes = 0;
    CHECK(sstar_aggregator_open(world, &attr, &a) == 0);
    int left;
    while ((left = sstar_advance(a, true)) == 1)
        ;
    CHECK(left == 0);
    sstar_aggregator_close(a);
    return 0;
}

/* Whatever the world, and as the strategies promise. */
static void memory_is_bounded(void **state)
{
    (void)state;
    uint64_t small[SSTAR_STRATEGIES], big[SSTAR_STRATEGIES];
    for (enum sstar_strategy s = SSTAR_NONE; s < SSTAR_STRATEGIES; s++) {
        struct sstar_aggregator_attr attr = {.strategy = s, .item_bytes = 64, .flush_bytes = 48000};
        assert_int_equal(sstar_aggregator_memory(&attr, 64, 8, &small[s]), 0);
        assert_int_equal(sstar_aggregator_memory(&attr, 1024, 8, &big[s]), 0);
        printf("%-8s %7.1f MB at 64 ranks, %7.1f MB at 1024\n", sstar_strategy_name(s),
               (double)small[s] * 1e-6, (double)big[s] * 1e-6);
        assert_true(big[s] < 640ull << 20);
        attr.flush_bytes = 0;
        assert_int_equal(sstar_aggregator_memory(&attr, 64, 8, &small[s]), -EINVAL);
    }
    assert_true(2 * big[SSTAR_MESH] < big[SSTAR_PER_RANK]);
    /* The mesh, and a pool that does not grow with the world. */
    assert_true(big[SSTAR_ADAPTIVE] < big[SSTAR_MESH] + (20 << 20));
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    assert_int_equal(run(&(struct ranks){.size = 4, .ranks_per_node = 2, .body = mistakes}), 0);
    assert_int_equal(run(&(struct ranks){.size = 4, .ranks_per_node = 2, .body = fixed_mistakes}),
                     0);
    assert_int_equal(run(&(struct ranks){.size = 8, .ranks_per_node = 4, .body = too_much}), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_node),
        cmocka_unit_test(across_nodes),
        cmocka_unit_test(on_a_shaped_wire),
        cmocka_unit_test(as_processes),
        cmocka_unit_test(with_many_writers),
        cmocka_unit_test(the_model_knows_the_wire_messages),
        cmocka_unit_test(an_age_bound_lets_answers_come),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(mistakes_are_refused),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
