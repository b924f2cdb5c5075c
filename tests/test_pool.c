/* SPDX-License-Identifier: MIT */
/*
 * The common pool of `adaptive`: a hot destination never has more of it than was stated beforehand,
 * its pushers are held back, and what goes to others is not; with more hot pairs than the pool has
 * buffers for, all is delivered.
 */
#include "collectives/aggregator_pool.h"
#include "tests/ranks.h"
#include "tests/traffic.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 6, PER_NODE = 2, HOT = 1, COLD = 40, FLUSH_BYTES = 4096, WORDS = 8 };

/* Told past the world, since the hot rank reads nothing meanwhile. */
static struct {
    _Atomic int held_back; /* ranks that were refused a push to it */
    _Atomic int cold_came;
    _Atomic uint64_t pushed;
} told;

/* Not on the hot one's node: there the base's streams are full of what it has not read. */
static int cold_target(int me)
{
    return me < 2 * PER_NODE ? me % PER_NODE + 2 * PER_NODE : me - PER_NODE;
}
static int cold_expected(int me)
{
    int n = 0;
    for (int r = 0; r < RANKS; r++)
        n += r != HOT && cold_target(r) == me ? COLD : 0;
    return n;
}

static bool is_remote(const struct sstar_world *world)
{
    return sstar_node_of(world, sstar_rank(world)) != sstar_node_of(world, HOT);
}
static uint64_t hot_bytes(const struct sstar_aggregator *a)
{
    struct sstar_link_ledger links[RANKS];
    sstar_aggregator_links(a, links);
    return links[HOT].pool_peak_bytes;
}

/* Push to the hot rank what it takes, and now and then to a cold one. */
static int push_both(struct sstar_world *world, struct sstar_aggregator *a, int *cold,
                     bool *held_back)
{
    uint64_t message[WORDS] = {(uint64_t)sstar_rank(world)};
    int err = 0;
    for (int i = 0; i < 100 && !err; i++) {
        err = sstar_push(a, HOT, message, sizeof message);
        told.pushed += !err;
        CHECK(!err || err == -EAGAIN);
    }
    if (err && !*held_back && (!is_remote(world) || hot_bytes(a) > 0)) {
        *held_back = true;
        told.held_back++;
    }
    if (*cold < COLD) {
        err = sstar_push(a, cold_target(sstar_rank(world)), message, sizeof message);
        CHECK(!err || err == -EAGAIN);
        *cold += !err;
    }
    return 0;
}

static int pull_all(struct sstar_world *world, struct sstar_aggregator *a, uint64_t *n)
{
    struct sstar_item item;
    int got;
    while ((got = sstar_pull(a, &item)) == 1) {
        CHECK(item.bytes == WORDS * sizeof(uint64_t));
        uint64_t source;
        memcpy(&source, item.data, sizeof source);
        CHECK(source == (uint64_t)item.source);
        ++*n;
    }
    CHECK(got == 0);
    return 0;
}

static int check_bound(struct sstar_world *world, struct sstar_aggregator *a, uint64_t stated)
{
    struct sstar_ledger ledger;
    struct sstar_link_ledger links[RANKS];
    sstar_aggregator_ledger(a, &ledger);
    sstar_aggregator_links(a, links);
    CHECK(ledger.memory_bytes <= stated);
    CHECK(ledger.pool_bound_bytes > 0 && ledger.pool_bound_bytes < ledger.memory_bytes);
    for (int r = 0; r < RANKS; r++)
        CHECK(links[r].pool_peak_bytes <= ledger.pool_bound_bytes);
    CHECK(!is_remote(world) || links[HOT].pool_peak_bytes > 0);
    CHECK(links[cold_target(sstar_rank(world))].pool_peak_bytes == 0);
    return 0;
}

static int one_is_hot(struct sstar_world *world, void *arg)
{
    (void)arg;
    /* Old enough that a slow machine fills S* in time. */
    struct sstar_aggregator_attr attr = {.strategy = SSTAR_ADAPTIVE,
                                         .item_bytes = WORDS * sizeof(uint64_t),
                                         .flush_bytes = FLUSH_BYTES,
                                         .max_age_us = 30e3};
    struct sstar_aggregator *a;
    uint64_t stated, came = 0;
    bool hot = sstar_rank(world) == HOT, held_back = hot;
    int cold = 0, left = 1;
    CHECK(sstar_aggregator_memory(&attr, RANKS, PER_NODE, &stated) == 0);
    CHECK(sstar_aggregator_open(world, &attr, &a) == 0);
    if (hot)
        told.held_back++;
    /* The hot one moves what comes, and reads none of it, until all others were refused and all
     * that went elsewhere is there. */
    uint64_t before = 0, expected = hot ? 0 : (uint64_t)cold_expected(sstar_rank(world));
    while (told.held_back < RANKS || told.cold_came < (RANKS - 1) * COLD) {
        if (!hot && (push_both(world, a, &cold, &held_back) || pull_all(world, a, &came)))
            return -1;
        told.cold_came += (int)(came - before);
        before = came;
        CHECK(sstar_advance(a, false) == 1);
    }
    while (left > 0) {
        if (pull_all(world, a, &came))
            return -1;
        left = sstar_advance(a, true);
    }
    CHECK(left == 0);
    CHECK(sstar_fast_barrier(world) == 0);
    CHECK(came == (hot ? told.pushed : expected));
    if (check_bound(world, a, stated))
        return -1;
    sstar_aggregator_close(a);
    return 0;
}

static void a_hot_destination_keeps_to_its_bound(void **state)
{
    (void)state;
    told.held_back = told.cold_came = 0;
    told.pushed = 0;
    assert_int_equal(
        ranks_run(&(struct ranks){.size = RANKS, .ranks_per_node = PER_NODE, .body = one_is_hot}),
        0);
}

/* ---- more pairs than buffers --------------------------------------------------------------------
 */

static int all_are_hot(struct sstar_world *world, void *arg)
{
    (void)arg;
    for (int age = 0; age < 2; age++) {
        struct traffic t = {.name = "all hot",
                            .pattern = UNIFORM,
                            .messages = 3000,
                            .least_bytes = 64,
                            .most_bytes = 64,
                            .flush_bytes = 3 << 20,
                            .max_age_us = age ? 500 : 0,
                            .s_star_bytes = 256,
                            .rounds = 3,
                            .fixed = true};
        if (traffic_run(world, &t, SSTAR_ADAPTIVE, &(struct totals){0}))
            return -1;
    }
    return 0;
}

static void more_hot_pairs_than_buffers_are_served(void **state)
{
    (void)state;
    struct pool_sizes sizes = pool_sizes(3 << 20);
    assert_int_equal(sizes.places, 4);
    assert_int_equal(sizes.most, 2);
    assert_true(pool_bytes(&sizes) == 8 * sizes.stride && sizes.stride > 3 << 20);
    assert_int_equal(
        ranks_run(&(struct ranks){.size = RANKS, .ranks_per_node = 1, .body = all_are_hot}), 0);
    if (!ranks_can_shape()) /* and no order either */
        return;
    assert_int_equal(ranks_run(&(struct ranks){.size = RANKS,
                                               .ranks_per_node = 1,
                                               .order = {.relaxed = true, .seed = 7},
                                               .body = all_are_hot}),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hot_destination_keeps_to_its_bound),
        cmocka_unit_test(more_hot_pairs_than_buffers_are_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
