/* SPDX-License-Identifier: MIT */
/*
 * Collectives that were started are moved on by a thread of the library, or by whoever waits for
 * something else: several at once, waited for in different orders, with other calls in between; the
 * thread sleeps when there is nothing, and what it meets reaches the one who waits.
 */
#include "collectives/element.h"
#include "tests/crew.h"
#include "tests/ranks.h"
#include "transport/turn.h"
#include "transport/wait.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLANS = SSTAR_BARRIER, SIZE = 4, COUNT = 3000, ROUNDS = 6 };
static const uint64_t patience_ns = 30ull * 1000 * 1000 * 1000;

/* A plan for each operation, with vectors of its own. */
struct several {
    struct sstar_collective *plans[PLANS];
    struct element_case cases[PLANS];
    char *send[PLANS], *recv[PLANS];
};

static int open_several(struct several *s, struct sstar_world *world, bool thread)
{
    int err = 0;
    for (int p = 0; p < PLANS && !err; p++) {
        struct sstar_collective_attr attr = {.operation = (enum sstar_operation)p,
                                             .algorithm = p < SSTAR_ALL_GATHER ? SSTAR_CIRCULANT
                                                                               : SSTAR_RING,
                                             .slice_bytes = 512,
                                             .root = p % sstar_size(world),
                                             .progress_thread = thread};
        s->cases[p] = (struct element_case){.operation = attr.operation,
                                            .size = sstar_size(world),
                                            .root = attr.root,
                                            .count = COUNT};
        s->send[p] = malloc((size_t)COUNT * SIZE * sizeof(float));
        s->recv[p] = malloc((size_t)COUNT * SIZE * sizeof(float));
        err = sstar_collective_open(world, &attr, &s->plans[p]);
    }
    return err;
}

static void close_several(struct several *s)
{
    for (int p = 0; p < PLANS; p++) {
        sstar_collective_close(s->plans[p]);
        free(s->send[p]);
        free(s->recv[p]);
    }
}

static int start_one(struct several *s, int p, int rank, uint64_t salt)
{
    struct element_case *it = &s->cases[p];
    it->salt = salt;
    struct element_layout at = element_layout(it, rank);
    for (size_t i = 0; i < at.send_count; i++)
        element_set(s->send[p], at.send_at + i, it->type,
                    element_of_rank(rank, it->size, i, it->salt, it->type, it->op));
    size_t bytes = sizeof(float);
    return sstar_collective_start(s->plans[p], s->send[p] + at.send_at * bytes,
                                  s->recv[p] + at.recv_at * bytes, COUNT, it->type, it->op);
}

static int wrong_in(const struct several *s, int p, int rank)
{
    struct element_layout at = element_layout(&s->cases[p], rank);
    int wrong = 0;
    for (size_t i = 0; i < at.recv_count; i++)
        wrong += element_get(s->recv[p], at.recv_at + i, SSTAR_FLOAT32) !=
                 element_expected(&s->cases[p], rank, i);
    return wrong;
}

/* Each rank starts in one order and waits in an order of its own; every other round with other
 * calls in between, which some ranks make before they wait and some after. */
static int in_any_order(struct sstar_world *world, void *argument)
{
    const bool *thread = argument;
    struct several s;
    int rank = sstar_rank(world), err = open_several(&s, world, *thread);
    for (int round = 0; round < ROUNDS && !err; round++) {
        bool early = round % 2 && rank % 2;
        void *memory;
        for (int p = 0; p < PLANS && !err; p++)
            err = start_one(&s, p, rank, (uint64_t)round);
        if (!err && early)
            err = sstar_barrier(world) || sstar_fast_barrier(world);
        CHECK(!err && sstar_alloc(world, 1 << 16, &memory) == 0);
        for (int i = 0; i < PLANS && !err; i++) {
            int p = (i * (rank % 2 ? 1 : PLANS - 1) + rank + round) % PLANS;
            err = sstar_collective_wait(s.plans[p]);
            CHECK(err || wrong_in(&s, p, rank) == 0);
        }
        CHECK(sstar_free(world, memory) == 0);
        if (!err && round % 2 && !early)
            err = sstar_barrier(world) || sstar_fast_barrier(world);
    }
    close_several(&s);
    return err;
}

static void waited_for_in_any_order(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        bool thread = variant & 1;
        struct ranks ranks = {.size = SIZE,
                              .ranks_per_node = 1 + (variant >> 1),
                              .body = in_any_order,
                              .arg = &thread};
        ranks_expect(&ranks);
    }
}

/* Only looks: where there is a thread sstar_collective_test moves nothing. Then the thread sleeps.
 */
static int only_looks(struct sstar_world *world, void *argument)
{
    (void)argument;
    struct several s;
    int rank = sstar_rank(world), err = open_several(&s, world, true);
    uint64_t until = clock_ns() + patience_ns;
    for (int round = 0; round < ROUNDS && !err; round++) {
        for (int p = 0; p < PLANS && !err; p++)
            err = start_one(&s, p, rank, (uint64_t)round);
        for (int p = 0; p < PLANS && !err; p++) {
            int done;
            while ((done = sstar_collective_test(s.plans[p])) == 0 && clock_ns() < until)
                sched_yield();
            CHECK(done == 1);
            CHECK(wrong_in(&s, p, rank) == 0);
        }
    }
    bool asleep = false;
    while (!asleep && clock_ns() < until) {
        WORLD_TURN(world);
        asleep = our_turn->asleep && !our_turn->work;
    }
    CHECK(asleep);
    close_several(&s);
    return err;
}

static void moved_on_by_the_thread(void **state)
{
    (void)state;
    struct ranks ranks = {.size = SIZE, .ranks_per_node = 2, .helped = true, .body = only_looks};
    ranks_expect_both(ranks);
    ranks.wire = ranks_shaped;
    ranks_expect(&ranks);
}

/* A plan that is under way is not started again; blocking ones and plans without the thread go on
 * beside it, on ranks that have a thread and ranks that have none. */
static int side_by_side(struct sstar_world *world, void *argument)
{
    (void)argument;
    int rank = sstar_rank(world), n = sstar_size(world);
    struct sstar_collective_attr attr = {.algorithm = SSTAR_RING, .progress_thread = rank % 2 == 0};
    struct sstar_collective *slow, *fast;
    CHECK(sstar_collective_open(world, &attr, &slow) == 0);
    attr.progress_thread = false;
    CHECK(sstar_collective_open(world, &attr, &fast) == 0);
    int64_t mine = rank + 1, late = 0, sum = 0;
    if (rank)
        CHECK(sstar_collective_start(slow, &mine, &late, 1, SSTAR_INT64, SSTAR_SUM) == 0);
    for (int i = 0; i < 50; i++) {
        CHECK(sstar_collective_run(fast, &mine, &sum, 1, SSTAR_INT64, SSTAR_SUM) == 0);
        CHECK(sum == (int64_t)n * (n + 1) / 2);
    }
    if (rank) /* rank 0 has not begun, so none can be done */
        CHECK(sstar_collective_start(slow, &mine, &late, 1, SSTAR_INT64, SSTAR_SUM) == -EBUSY);
    CHECK(sstar_barrier(world) == 0);
    if (!rank)
        CHECK(sstar_collective_start(slow, &mine, &late, 1, SSTAR_INT64, SSTAR_SUM) == 0);
    CHECK(sstar_collective_wait(slow) == 0);
    CHECK(late == (int64_t)n * (n + 1) / 2);
    CHECK(sstar_collective_test(slow) == 1);
    sstar_collective_close(slow);
    sstar_collective_close(fast);
    return 0;
}

static void beside_others(void **state)
{
    (void)state;
    struct ranks ranks = {.size = SIZE, .ranks_per_node = 2, .helped = true, .body = side_by_side};
    ranks_expect_both(ranks);
}

/* ---- a death ------------------------------------------------------------------------------------
 */

static int one_dies(const struct sstar_config *config, void *arg)
{
    (void)arg;
    struct sstar_world *world;
    char error[512] = "";
    if (sstar_world_open(&world, config, error, sizeof error) < 0)
        return crew_complain(config->rank, "open: %s", error);
    struct several s;
    int err = open_several(&s, world, true), rank = config->rank, bad = 0;
    for (int p = 0; p < PLANS && !err; p++)
        err = start_one(&s, p, rank, 1) || sstar_collective_wait(s.plans[p]);
    if (rank == 1)
        raise(SIGKILL);
    /* All are started before the first is looked at: the thread meets the death. */
    int started[PLANS] = {0}, done = 0;
    for (int p = 0; p < PLANS && !err; p++)
        started[p] = start_one(&s, p, rank, 2);
    uint64_t until = clock_ns() + patience_ns;
    while (!err && !started[0] && (done = sstar_collective_test(s.plans[0])) == 0 &&
           clock_ns() < until)
        sched_yield();
    for (int p = 0; p < PLANS && !err; p++) {
        int got = started[p] ? started[p] : sstar_collective_wait(s.plans[p]);
        if (got != -ECONNRESET || (p == 0 && !started[0] && done != -ECONNRESET))
            bad = crew_complain(rank, "plan %d: %d, %d", p, done, got);
    }
    const char *text = sstar_last_error(world);
    if (!strstr(text, "rank 1 (host ") || !strstr(text, "died"))
        bad = crew_complain(rank, "\"%s\"", text);
    close_several(&s);
    sstar_world_close(world);
    return err ? crew_complain(rank, "%d", err) : bad;
}

static void a_death_reaches_the_waiter(void **state)
{
    (void)state;
    struct sstar_config config;
    int results[CREW_MAX];
    crew_config(&config, SIZE);
    config.ranks_per_node = 2;
    crew_processes(&config, one_dies, NULL, results);
    for (int r = 0; r < SIZE; r++)
        assert_int_equal(results[r], r == 1 ? 128 + SIGKILL : 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waited_for_in_any_order), cmocka_unit_test(moved_on_by_the_thread),
        cmocka_unit_test(beside_others), cmocka_unit_test(a_death_reaches_the_waiter)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
