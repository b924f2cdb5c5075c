/* SPDX-License-Identifier: MIT */
/*
 * AllReduce over worlds of 1 to 8 ranks, ranks being threads or processes, in one node and on
 * virtual nodes: every value is checked on every rank. Cases are drawn with a seed that is printed;
 * SSTAR_TEST_FULL=1 takes them all.
 */
#include "collectives/collectives.h"
#include "collectives/element.h"
#include "tests/ranks.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t run_seed(void)
{
    const char *text = getenv("SSTAR_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : 1;
}

static const size_t counts[] = {0, 1, 2, 7, 1023, 65537, 1 << 20};
enum { COUNTS = 7, TYPES = SSTAR_TYPES, OPS = SSTAR_OPS, CASES = COUNTS * TYPES * OPS * 2 };

/* One AllReduce of `count` elements. memory: two bits, whether send and recv are from sstar_alloc.
 */
struct one {
    size_t count;
    enum sstar_type type;
    enum sstar_op op;
    bool in_place;
    uint32_t salt;
    unsigned memory;
};

struct buffers {
    void *send[2], *recv[2]; /* ours from malloc, from sstar_alloc */
};

static int try_one(struct sstar_world *world, struct sstar_allreduce *plan, const struct one *one,
                   const struct buffers *buffers)
{
    int rank = sstar_rank(world), size = sstar_size(world), wrong = 0;
    size_t bytes = one->count * sstar_type_bytes(one->type);
    void *recv = buffers->recv[one->memory >> 1 & 1];
    void *send = one->in_place ? recv : buffers->send[one->memory & 1];
    for (size_t i = 0; i < one->count; i++)
        element_set(send, i, one->type,
                    element_of_rank(rank, size, i, one->salt, one->type, one->op));
    memset((char *)recv + bytes, 0x5a, 8);
    int err = sstar_allreduce_run(plan, send, recv, one->count, one->type, one->op);
    if (err)
        return err;
    for (size_t i = 0; i < one->count; i++) {
        wrong += element_get(recv, i, one->type) !=
                 element_reduced(size, i, one->salt, one->type, one->op);
        if (!one->in_place)
            wrong += element_get(send, i, one->type) !=
                     element_of_rank(rank, size, i, one->salt, one->type, one->op);
    }
    for (int i = 0; i < 8; i++)
        wrong += ((char *)recv)[bytes + (size_t)i] != 0x5a;
    if (wrong)
        fprintf(stderr,
                "rank %d of %d on %d nodes: count %zu %s %s in place %d memory %u: %d wrong\n",
                rank, size, sstar_node_count(world), one->count, sstar_type_name(one->type),
                sstar_op_name(one->op), one->in_place, one->memory, wrong);
    return wrong;
}

struct trial {
    enum sstar_algorithm algorithm;
    uint32_t queue_pairs, slice_bytes;
    uint64_t seed;
    int cases; /* drawn; CASES: all of them */
    bool large;
};

static struct one case_of(const struct trial *trial, int i, int rank)
{
    uint64_t state = trial->seed + (uint64_t)i * 977;
    uint64_t drawn = random_next(&state);
    int number = trial->cases == CASES ? i : (int)(drawn % CASES);
    struct one one = {.count = counts[number % COUNTS],
                      .type = (enum sstar_type)(number / COUNTS % TYPES),
                      .op = (enum sstar_op)(number / COUNTS / TYPES % OPS),
                      .in_place = number / COUNTS / TYPES / OPS,
                      .salt = (uint32_t)(drawn >> 32)};
    if (one.count > 65537 && !trial->large)
        one.count = (size_t)(drawn >> 40 & 0x3fff);
    /* Now all alike, now each for itself. */
    one.memory =
        drawn >> 20 & 1 ? (unsigned)(drawn >> 21) & 3 : (unsigned)(drawn >> (24 + rank)) & 3;
    return one;
}

static int try_plan(struct sstar_world *world, void *argument)
{
    const struct trial *trial = argument;
    const size_t most = ((size_t)1 << 20) * 8 + 64;
    struct buffers b;
    b.send[0] = malloc(most);
    b.recv[0] = malloc(most);
    int err = sstar_alloc(world, most, &b.send[1]);
    if (!err)
        err = sstar_alloc(world, most, &b.recv[1]);
    struct sstar_allreduce_attr attr = {trial->algorithm, trial->queue_pairs, trial->slice_bytes};
    struct sstar_allreduce *plan = NULL;
    if (!err)
        err = sstar_allreduce_open(world, &attr, &plan);
    int wrong = 0;
    for (int i = 0; !err && i < trial->cases; i++) {
        struct one one = case_of(trial, i, sstar_rank(world));
        int found = try_one(world, plan, &one, &b);
        if (found < 0)
            err = found;
        else
            wrong += found > 0;
    }
    if (err)
        ranks_complain(world, __FILE__, __LINE__, strerror(-err));
    if (plan)
        sstar_allreduce_close(plan);
    free(b.send[0]);
    free(b.recv[0]);
    return err ? err : wrong;
}

static bool full(void)
{
    const char *text = getenv("SSTAR_TEST_FULL");
    return text && strcmp(text, "1") == 0;
}

static void try_world(int n, int per_node, const struct trial *trial, bool processes)
{
    struct trial own = *trial;
    struct ranks ranks = {.size = n,
                          .ranks_per_node = per_node,
                          .processes = processes,
                          .body = try_plan,
                          .arg = &own};
    int bad = ranks_run(&ranks);
    if (bad)
        fail_msg(
            "%d ranks, %d a node, %s, %u queue pairs, slices of %u, seed %llu: %d ranks failed", n,
            per_node, sstar_algorithm_name(trial->algorithm), trial->queue_pairs,
            trial->slice_bytes, (unsigned long long)trial->seed, bad);
}

/* 1 to 8 ranks, 1 to 4 a node: all of them, with queue pairs in turn. */
static void try_worlds(bool one_node)
{
    uint64_t seed = run_seed();
    const uint32_t queue_pairs[] = {1, 2, 4, 8};
    int turn = 0;
    for (int n = 1; n <= 8; n++)
        for (int per_node = 1; per_node <= 4 && per_node <= n; per_node++)
            for (int algorithm = SSTAR_RING; algorithm <= SSTAR_HIERARCHICAL; algorithm++)
                for (int q = 0; q < (full() && !one_node ? 4 : 1); q++) {
                    struct trial trial = {.algorithm = (enum sstar_algorithm)algorithm,
                                          .queue_pairs = queue_pairs[(turn++ / 3 + q) % 4],
                                          .seed = random_next(&seed),
                                          .cases = full() ? CASES : 10,
                                          .large = full()};
                    if (!one_node || per_node == 1)
                        try_world(n, one_node ? 0 : per_node, &trial, false);
                }
}

static void one_node(void **state)
{
    (void)state;
    try_worlds(true);
}

static void virtual_nodes(void **state)
{
    (void)state;
    try_worlds(false);
}

static void large_counts(void **state)
{
    (void)state;
    uint64_t seed = run_seed() + 1000;
    for (int per_node = 0; per_node <= 2; per_node++)
        for (int algorithm = SSTAR_RING; algorithm <= SSTAR_HIERARCHICAL; algorithm++) {
            struct trial trial = {
                (enum sstar_algorithm)algorithm, 2, 0, random_next(&seed), 16, true};
            try_world(3, per_node, &trial, false);
        }
}

/* Slices so small that a vector takes many passes. */
static void small_slices(void **state)
{
    (void)state;
    uint64_t seed = run_seed() + 2000;
    for (uint32_t slice = 8; slice <= 4096; slice *= 8)
        for (int per_node = 0; per_node <= 2; per_node++) {
            struct trial trial = {SSTAR_RING,           4,    slice, random_next(&seed),
                                  slice < 512 ? 3 : 10, false};
            try_world(4, per_node, &trial, false);
        }
}

static void ranks_are_processes(void **state)
{
    (void)state;
    uint64_t seed = run_seed() + 3000;
    for (int per_node = 0; per_node <= 3; per_node++)
        for (int algorithm = SSTAR_AUTO; algorithm <= SSTAR_HIERARCHICAL; algorithm++) {
            struct trial trial = {
                (enum sstar_algorithm)algorithm, 0, 0, random_next(&seed), 12, true};
            try_world(5, per_node, &trial, true);
        }
}

/* On a shaped wire a rank that has its result must not leave messages behind that only it can move:
 * here it goes to the control plane after each, which does not poll. */
static int leave_the_wire(struct sstar_world *world, void *argument)
{
    const enum sstar_algorithm algorithm = *(const enum sstar_algorithm *)argument;
    struct sstar_allreduce_attr attr = {.algorithm = algorithm, .queue_pairs = 2};
    struct sstar_allreduce *plan;
    const size_t most = 30000;
    int32_t *numbers = malloc(most * sizeof *numbers);
    int err = sstar_allreduce_open(world, &attr, &plan), bad = 0;
    for (size_t count = 100; !err && count <= most; count = count * 17 / 10) {
        for (size_t i = 0; i < count; i++)
            numbers[i] =
                element_of_rank(sstar_rank(world), sstar_size(world), i, 7, SSTAR_INT32, SSTAR_SUM);
        err = sstar_allreduce_run(plan, numbers, numbers, count, SSTAR_INT32, SSTAR_SUM);
        if (!err)
            err = sstar_barrier(world);
        for (size_t i = 0; i < count; i++)
            bad +=
                numbers[i] != (int)element_reduced(sstar_size(world), i, 7, SSTAR_INT32, SSTAR_SUM);
    }
    if (err)
        ranks_complain(world, __FILE__, __LINE__, strerror(-err));
    else
        sstar_allreduce_close(plan);
    free(numbers);
    return err ? err : bad;
}

static void shaped_wire(void **state)
{
    (void)state;
    for (int per_node = 1; per_node <= 3; per_node++)
        for (int algorithm = SSTAR_RING; algorithm <= SSTAR_HIERARCHICAL; algorithm++) {
            enum sstar_algorithm own = (enum sstar_algorithm)algorithm;
            struct ranks ranks = {.size = 6,
                                  .ranks_per_node = per_node,
                                  .wire = {30, 3, 0.4},
                                  .processes = per_node == 3,
                                  .port_per_rank = per_node == 2,
                                  .body = leave_the_wire,
                                  .arg = &own};
            assert_int_equal(ranks_run(&ranks), 0);
        }
}

/* Numbers whose sums are rounded: the same bits on every rank, in every run, out of place and in.
 */
static int same_bits(struct sstar_world *world, void *argument)
{
    const enum sstar_algorithm algorithm = *(const enum sstar_algorithm *)argument;
    enum { COUNT = 5000 };
    int size = sstar_size(world), bad = 0;
    float *numbers, *sums = malloc(3 * COUNT * sizeof *sums);
    float *all = malloc((size_t)size * COUNT * sizeof *all);
    void *memory;
    int err = sstar_alloc(world, COUNT * sizeof *numbers, &memory);
    struct sstar_allreduce *plan = NULL;
    struct sstar_allreduce_attr attr = {.algorithm = algorithm};
    if (!err)
        err = sstar_allreduce_open(world, &attr, &plan);
    if (err)
        goto out;
    numbers = memory;
    for (int count = 1; !err && count <= COUNT; count += COUNT - 1) {
        uint64_t state = (uint64_t)sstar_rank(world) + 5;
        for (int i = 0; i < count; i++)
            numbers[i] = (float)(random_next(&state) >> 40) / 1e3f - 7e3f;
        for (int run = 0; !err && run < 2; run++)
            err = sstar_allreduce_run(plan, numbers, sums + run * COUNT, (size_t)count,
                                      SSTAR_FLOAT32, SSTAR_SUM);
        memcpy(sums + 2 * COUNT, numbers, COUNT * sizeof *sums);
        if (!err)
            err = sstar_allreduce_run(plan, sums + 2 * COUNT, sums + 2 * COUNT, (size_t)count,
                                      SSTAR_FLOAT32, SSTAR_SUM);
        if (!err)
            err = sstar_allgather(world, sums, COUNT * sizeof *sums, all);
        size_t bytes = (size_t)count * sizeof *sums;
        bad += memcmp(sums, sums + COUNT, bytes) != 0;
        bad += memcmp(sums, sums + 2 * COUNT, bytes) != 0;
        for (int rank = 0; rank < size; rank++)
            bad += memcmp(sums, all + (size_t)rank * COUNT, bytes) != 0;
    }
out:
    if (err)
        ranks_complain(world, __FILE__, __LINE__, strerror(-err));
    if (plan)
        sstar_allreduce_close(plan);
    free(sums);
    free(all);
    return err ? err : bad;
}

static void the_same_bits(void **state)
{
    (void)state;
    for (int per_node = 0; per_node <= 2; per_node++)
        for (int algorithm = SSTAR_RING; algorithm <= SSTAR_HIERARCHICAL; algorithm++) {
            enum sstar_algorithm own = (enum sstar_algorithm)algorithm;
            struct ranks ranks = {
                .size = 5, .ranks_per_node = per_node, .body = same_bits, .arg = &own};
            assert_int_equal(ranks_run(&ranks), 0);
        }
}

/* Of every algorithm: the same figures on all ranks, none below 0, a node step only where there is
 * one; the wire's stay as they are. */
static int overheads(struct sstar_world *world)
{
    int bad = 0, n = sstar_size(world), nodes = sstar_node_count(world);
    for (int algorithm = SSTAR_RING; algorithm <= SSTAR_HIERARCHICAL; algorithm++) {
        struct sstar_allreduce_attr attr = {.algorithm = (enum sstar_algorithm)algorithm};
        struct sstar_cost cost = {.alpha_us = 5, .gap_us = 1, .beta_gbps = 1}, all[8];
        struct sstar_allreduce *plan;
        int err = sstar_allreduce_open(world, &attr, &plan);
        if (!err)
            err = sstar_measure_overhead(plan, &cost);
        if (!err)
            err = sstar_allgather(world, &cost, sizeof cost, all);
        if (err)
            return err;
        sstar_allreduce_close(plan);
        for (int rank = 0; rank < n; rank++)
            bad += memcmp(&all[rank], &cost, sizeof cost) != 0;
        bad += cost.alpha_us != 5 || cost.gap_us != 1 || cost.beta_gbps != 1;
        bad += !(cost.overhead_us >= 0 && cost.node_us >= 0);
        bool steps = algorithm == SSTAR_HIERARCHICAL && nodes < n;
        bad += (cost.node_us > 0) != steps;
    }
    return bad;
}

/* The plan that the world keeps, wrong arguments, ranks that do not agree. */
static int edges(struct sstar_world *world, void *argument)
{
    (void)argument;
    int bad = 0;
    int64_t mine = sstar_rank(world) + 1, sum = 0, n = sstar_size(world);
    int err = sstar_allreduce(world, &mine, &sum, 1, SSTAR_INT64, SSTAR_SUM);
    bad += sum != n * (n + 1) / 2;
    if (!err)
        err = sstar_allreduce(world, &mine, &sum, 1, SSTAR_INT64, SSTAR_MAX);
    bad += sum != n;
    if (err)
        return err;
    bad += sstar_allreduce(world, NULL, NULL, 0, SSTAR_INT64, SSTAR_SUM) != 0;
    bad += sstar_allreduce(world, NULL, &sum, 1, SSTAR_INT64, SSTAR_SUM) != -EINVAL;
    bad += sstar_allreduce(world, &mine, &sum, 1, (enum sstar_type)SSTAR_TYPES, SSTAR_SUM) != -EINVAL;
    bad += sstar_allreduce(world, &mine, &sum, 1, SSTAR_INT64, (enum sstar_op)SSTAR_OPS) != -EINVAL;

    struct sstar_allreduce *plan;
    struct sstar_allreduce_attr attr = {.slice_bytes = 7};
    bad += sstar_allreduce_open(world, &attr, &plan) != -EINVAL;
    bad += sstar_last_error(world)[0] == '\0';
    if (n > 1) {
        attr = (struct sstar_allreduce_attr){.algorithm = sstar_rank(world) ? SSTAR_RING
                                                                            : SSTAR_HIERARCHICAL};
        bad += sstar_allreduce_open(world, &attr, &plan) != -EINVAL;
    }
    double us = -1;
    struct sstar_cost cost = {.alpha_us = 5, .gap_us = 1, .beta_gbps = 1};
    attr = (struct sstar_allreduce_attr){0};
    err = sstar_allreduce_open(world, &attr, &plan);
    if (err)
        return err;
    bad += sstar_allreduce_price(plan, 1000, SSTAR_FLOAT32, &cost, &us) != 0;
    bad += sstar_node_count(world) == 1 ? us != 0 : us < 10;
    sstar_allreduce_close(plan);
    return bad + overheads(world);
}

static void edges_and_refusals(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++)
        for (int per_node = 0; per_node <= 2 && per_node <= n; per_node++) {
            struct ranks ranks = {.size = n, .ranks_per_node = per_node, .body = edges};
            assert_int_equal(ranks_run(&ranks), 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_and_refusals), cmocka_unit_test(one_node),
        cmocka_unit_test(the_same_bits),      cmocka_unit_test(virtual_nodes),
        cmocka_unit_test(shaped_wire),        cmocka_unit_test(large_counts),
        cmocka_unit_test(small_slices),       cmocka_unit_test(ranks_are_processes),
    };
    print_message("seed %llu (SSTAR_TEST_SEED), %s\n", (unsigned long long)run_seed(),
                  full() ? "all cases" : "cases drawn; all of them with SSTAR_TEST_FULL=1");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
