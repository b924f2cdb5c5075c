/* SPDX-License-Identifier: MIT */
/* The model of the all-to-all against sums made by hand, and the ledger's arithmetic. */
#include "collectives/aggregator_wire.h"
#include "collectives/ledger.h"
#include "collectives/model_alltoall.h"
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct sstar_cost wire = {.alpha_us = 120, .gap_us = 10, .beta_gbps = 0.1};

static void near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-9 * fabs(expected) + 1e-15))
        fail_msg("%.12g is not %.12g", value, expected);
}

/* 4 ranks on 2 nodes: rank 0 sends 1000 messages to rank 2 and nothing else happens. */
static const int two_by_two[4] = {0, 0, 1, 1};
static const uint64_t one_pair[16] = {[0 * 4 + 2] = 1000};

static struct alltoall_traffic traffic(const uint64_t *messages, uint32_t bytes)
{
    return (struct alltoall_traffic){.ranks = 4,
                                     .nodes = 2,
                                     .node_of = two_by_two,
                                     .messages = messages,
                                     .message_bytes = bytes};
}

static void none_pays_the_gap_of_every_message(void **state)
{
    (void)state;
    struct alltoall_traffic t = traffic(one_pair, 64);
    struct alltoall_prediction p;
    assert_int_equal(model_alltoall(&t, SSTAR_NONE, 0, &wire, &p), 0);
    /* 64 + 8 + 16 bytes each; each of 8 ordered pairs across nodes ends with 8 + 8 + 16. */
    assert_int_equal(p.wire_messages, 1000 + 8);
    assert_int_equal(p.wire_bytes, 1000 * 88 + 8 * 32);
    double us = 120 + (1000 + 4 - 1) * 10 + (1000 * 88 + 4 * 32) / 100.0;
    near(p.seconds, us * 1e-6);
}

static void rank_fills_buffers(void **state)
{
    (void)state;
    struct alltoall_traffic t = traffic(one_pair, 64);
    struct alltoall_prediction p;
    /* A buffer of 8 + n * 72 reaches 1024 with its 15th item. */
    assert_int_equal(model_alltoall(&t, SSTAR_PER_RANK, 1024, &wire, &p), 0);
    uint64_t full = 1000 / 15, rest = 1000 % 15;
    assert_int_equal(p.wire_messages, full + 8);
    uint64_t ours = full * (8 + 15 * 72 + 16) + (8 + rest * 72 + 8 + 16);
    assert_int_equal(p.wire_bytes, ours + 7 * 32);
    near(p.seconds, (120 + (full + 4 - 1) * 10.0 + (ours + 3 * 32) / 100.0) * 1e-6);
}

static void node_shares_one_stream(void **state)
{
    (void)state;
    struct alltoall_traffic t = traffic(one_pair, 64);
    struct alltoall_prediction p;
    /* 72 n reaches 48000 with 667 items; the directory of 2 pieces and 2 readers is 48 bytes. */
    assert_int_equal(model_alltoall(&t, SSTAR_PER_NODE, 48000, &wire, &p), 0);
    assert_int_equal(p.wire_messages, 1 + 2);
    assert_int_equal(p.wire_bytes, (48 + 667 * 72 + 16) + (64 + 333 * 72 + 16) + (64 + 16));
    near(p.seconds, (120 + 10 + ((48 + 667 * 72 + 16) + (64 + 333 * 72 + 16)) / 100.0) * 1e-6);
}

/* 1000 messages of 64 bytes are told as 64000 bytes in 1000 messages. */
static void sizes_may_vary(void **state)
{
    (void)state;
    static const uint64_t bytes[16] = {[0 * 4 + 2] = 64000};
    for (int s = SSTAR_NONE; s < SSTAR_STRATEGIES; s++) {
        struct alltoall_traffic alike = traffic(one_pair, 64), told = traffic(one_pair, 0);
        struct alltoall_prediction p, q;
        told.bytes = bytes;
        assert_int_equal(model_alltoall(&alike, (enum sstar_strategy)s, 1024, &wire, &p), 0);
        assert_int_equal(model_alltoall(&told, (enum sstar_strategy)s, 1024, &wire, &q), 0);
        assert_int_equal(p.wire_bytes, q.wire_bytes);
        near(q.seconds, p.seconds);
    }
}

static void the_receiver_can_be_the_limit(void **state)
{
    (void)state;
    /* Three nodes of one rank; 1 and 2 send to 0: its port takes in what two ports send. */
    static const int node_of[3] = {0, 1, 2};
    static const uint64_t messages[9] = {[1 * 3 + 0] = 100, [2 * 3 + 0] = 100};
    struct alltoall_traffic t = {
        .ranks = 3, .nodes = 3, .node_of = node_of, .messages = messages, .message_bytes = 100000};
    struct alltoall_prediction p;
    assert_int_equal(model_alltoall(&t, SSTAR_NONE, 0, &wire, &p), 0);
    near(p.seconds, (120 + (200.0 * (100000 + 8 + 16) + 2 * 32) / 100.0) * 1e-6);
    t.port_per_rank = true;
    double shared = p.seconds;
    assert_int_equal(model_alltoall(&t, SSTAR_NONE, 0, &wire, &p), 0);
    near(p.seconds, shared);
}

static void nothing_across_nodes_costs_nothing(void **state)
{
    (void)state;
    static const int node_of[4] = {0, 0, 0, 0};
    struct alltoall_traffic t = {
        .ranks = 4, .nodes = 1, .node_of = node_of, .messages = one_pair, .message_bytes = 64};
    struct alltoall_prediction p;
    for (int s = SSTAR_NONE; s <= SSTAR_PER_NODE; s++) {
        assert_int_equal(model_alltoall(&t, (enum sstar_strategy)s, 1024, &wire, &p), 0);
        assert_int_equal(p.wire_messages, 0);
        near(p.seconds, 0);
    }
    assert_int_equal(model_alltoall(&t, SSTAR_PER_NODE, 0, &wire, &p), -EINVAL);
    assert_int_equal(model_alltoall(&t, (enum sstar_strategy)7, 1024, &wire, &p), -EINVAL);
}

static void classes_are_quarter_powers_of_two(void **state)
{
    (void)state;
    assert_int_equal(ledger_class(0, 128), 0);
    assert_int_equal(ledger_class(1, 128), 0);
    for (unsigned i = 8; i < 250; i++) {
        /* The least whole number of a class lies in it, the one before does not. */
        double begin = ledger_class_begin(i);
        if (begin > 0x1p32)
            break;
        uint64_t least = (uint64_t)ceil(begin);
        if ((double)least >= ledger_class_begin(i + 1))
            continue; /* a class of small numbers that holds none */
        assert_int_equal(ledger_class(least, 256), i);
        assert_true(ledger_class(least - 1, 256) < i);
    }
    assert_int_equal(ledger_class(UINT64_MAX, 128), 127);
    assert_int_equal(ledger_class(1u << 20, 128), 80);
}

static void shares_past_sizes_are_exact(void **state)
{
    (void)state;
    struct sstar_ledger a, b;
    ledger_reset(&a, 12000, 1000);
    ledger_wire(&a, 11999, 100, 6400);
    ledger_wire(&a, 12000, 10, 640);
    ledger_wire(&a, 108000, 1, 64);
    ledger_wire(&a, 999, 2, 128);
    ledger_age(&a, 1500000, 1);
    assert_int_equal(a.wire_messages, 4);
    assert_int_equal(a.wire_bytes, 11999 + 12000 + 108000 + 999);
    assert_int_equal(a.past[SSTAR_PAST_S_STAR].messages, 11);
    assert_int_equal(a.past[SSTAR_PAST_S_STAR].message_bytes, 704);
    assert_int_equal(a.past[SSTAR_PAST_4_S_STAR].wire_messages, 1);
    assert_int_equal(a.past[SSTAR_PAST_9_S_STAR].messages, 1);
    assert_int_equal(a.past[SSTAR_PAST_S_STAR_RATE].messages, 111);
    ledger_reset(&b, 12000, 1000);
    ledger_add(&b, &a);
    ledger_add(&b, &a);
    assert_int_equal(b.wire_messages, 8);
    assert_int_equal(b.past[SSTAR_PAST_S_STAR].messages, 22);
    assert_int_equal(b.age_class[ledger_class(1500000, 192)], 2);
    near(ledger_wire_quantile(&b, 1.0), 108000);
    near(ledger_wire_quantile(&b, 0.25), 999);
    assert_true(fabs(ledger_age_quantile_us(&b, 0.5) / 1500 - 1) < 0.1);
    ledger_reset(&b, 0, 0);
    ledger_wire(&b, 5, 1, 1);
    assert_int_equal(b.past[SSTAR_PAST_S_STAR].wire_messages, 0);
    near(ledger_age_quantile_us(&b, 0.99), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_pays_the_gap_of_every_message),
        cmocka_unit_test(rank_fills_buffers),
        cmocka_unit_test(node_shares_one_stream),
        cmocka_unit_test(sizes_may_vary),
        cmocka_unit_test(the_receiver_can_be_the_limit),
        cmocka_unit_test(nothing_across_nodes_costs_nothing),
        cmocka_unit_test(classes_are_quarter_powers_of_two),
        cmocka_unit_test(shares_past_sizes_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
