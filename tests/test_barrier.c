/* SPDX-License-Identifier: MIT */
/* The fast barrier: nobody leaves before all have come. */
#include "tests/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

/* Each rank puts the number of the round into every other's memory, then comes to the barrier:
 * behind it all have this round's number from all. */
static int body_barrier(struct sstar_world *world, void *arg)
{
    (void)arg;
    enum { OUT = 63 };
    /* Where a polling rank waits for its time slice a round is long. */
    const uint64_t rounds = ranks_can_shape() ? 150 : 50;
    int size = sstar_size(world), rank = sstar_rank(world), peers[64], n = 0;
    for (int peer = 0; peer < size; peer++)
        if (peer != rank)
            peers[n++] = peer;
    void *memory;
    struct sstar_links *links;
    struct sstar_region *region;
    struct sstar_remote_region mine, all[64];
    CHECK(sstar_alloc(world, 64 * sizeof(uint64_t), &memory) == 0);
    CHECK(sstar_links_open(world, peers, n, &(struct sstar_link_attr){.puts = 4}, &links) == 0);
    CHECK(sstar_register(world, memory, 64 * sizeof(uint64_t), &region) == 0);
    sstar_region_describe(region, &mine);
    CHECK(sstar_allgather(world, &mine, sizeof mine, all) == 0);
    uint64_t *board = memory;
    for (uint64_t round = 1; round <= rounds; round++) {
        board[OUT] = round;
        for (int i = 0; i < n; i++) {
            struct sstar_link *link = sstar_links_to(links, peers[i]);
            uint64_t ticket;
            CHECK(sstar_put(link, region, &board[OUT], &all[peers[i]],
                            (uint64_t)rank * sizeof *board, sizeof *board, 0, &ticket) == 0);
            CHECK(sstar_link_wait(link, ticket) == 0);
        }
        CHECK(sstar_fast_barrier(world) == 0);
        for (int i = 0; i < n; i++)
            CHECK(board[peers[i]] == round);
        CHECK(sstar_fast_barrier(world) == 0);
    }
    sstar_links_close(links);
    CHECK(sstar_deregister(region) == 0);
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

/* Rank 0 has posted more than its wire takes at once, and waits in the control plane, which has to
 * move its links on: rank 1 comes there only when all has arrived. */
static int body_left_behind(struct sstar_world *world, void *arg)
{
    (void)arg;
    enum { PUTS = 500 };
    int peer = 1 - sstar_rank(world);
    void *memory;
    struct sstar_links *links;
    struct sstar_region *region;
    struct sstar_remote_region mine, all[2];
    CHECK(sstar_alloc(world, PUTS * sizeof(uint64_t), &memory) == 0);
    CHECK(sstar_links_open(world, &peer, 1, &(struct sstar_link_attr){.puts = 2 * PUTS}, &links) ==
          0);
    CHECK(sstar_register(world, memory, PUTS * sizeof(uint64_t), &region) == 0);
    sstar_region_describe(region, &mine);
    CHECK(sstar_allgather(world, &mine, sizeof mine, all) == 0);
    uint64_t *words = memory;
    for (uint64_t i = 0, ticket; i < PUTS && peer == 1; i++) {
        words[i] = i + 1;
        CHECK(sstar_put(sstar_links_to(links, peer), region, &words[i], &all[peer],
                        i * sizeof *words, sizeof *words, SSTAR_SIGNAL, &ticket) == 0);
    }
    if (peer == 0) {
        CHECK(sstar_signal_wait(sstar_links_to(links, peer), PUTS) == 0);
        for (uint64_t i = 0; i < PUTS; i++)
            CHECK(words[i] == i + 1);
    }
    CHECK(sstar_barrier(world) == 0);
    sstar_links_close(links);
    CHECK(sstar_deregister(region) == 0);
    CHECK(sstar_free(world, memory) == 0);
    return 0;
}

static void test_left_behind(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){
        .size = 2, .ranks_per_node = 1, .wire = ranks_shaped, .body = body_left_behind});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_barrier),
                                       cmocka_unit_test(test_left_behind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
