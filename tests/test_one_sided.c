/* SPDX-License-Identifier: MIT */
/* Put, get and remote add, with signals, inside a node and through the NIC. */
#include "tests/ranks.h"
#include "transport/device.h"
#include "transport/link.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

enum { PUT_BYTES = 3000, PUT_SLOTS = 40, PUTS = 400 };

struct board {
    uint64_t sum;
    uint64_t filler[7];
    uint8_t data[PUT_SLOTS][PUT_BYTES];
};
struct shared {
    struct board board; /* peers write here */
    uint8_t out[PUT_SLOTS][PUT_BYTES];
    uint8_t in[PUT_BYTES];
    uint64_t before;
};

#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_err;                                                                               \
        struct waiter try_w = wait_begin(world, "test operation", -1, 0);                          \
        while ((try_err = (call)) == -EAGAIN)                                                      \
            CHECK(sstar_links_progress(links) >= 0 && wait_step(&try_w) == 0);                     \
        CHECK(try_err == 0);                                                                       \
    } while (0)

/* One rank's end. */
struct side {
    struct sstar_world *world;
    struct sstar_links *links;
    struct sstar_link *link;
    struct shared *mine;
    struct sstar_region *region;
    struct sstar_remote_region all[64];
    int rank, peer;
    bool foreign; /* memory that does not come from sstar_alloc */
};

/* Round r: write PUT_SLOTS pieces to the peer, each with a signal; wait for as many; compare. */
static int put_rounds(const struct side *s)
{
    struct sstar_world *world = s->world;
    struct sstar_links *links = s->links;
    struct sstar_link *link = s->link;
    struct shared *mine = s->mine;
    int rank = s->rank, peer = s->peer;
    uint64_t ticket = 0;
    for (int round = 0; round < PUTS / PUT_SLOTS; round++) {
        for (int i = 0; i < PUT_SLOTS; i++) {
            int number = round * PUT_SLOTS + i;
            uint32_t bytes = (uint32_t)(pattern_seed(rank, peer, number) % (PUT_BYTES + 1));
            pattern_fill(mine->out[i], bytes, pattern_seed(rank, peer, number));
            TRY(sstar_put(link, s->region, mine->out[i], &s->all[peer],
                          offsetof(struct board, data[i]), bytes,
                          SSTAR_SIGNAL | (i % 4 ? SSTAR_MORE : 0), &ticket));
        }
        CHECK(sstar_link_ring(link) == 0);
        CHECK(sstar_signal_wait(link, (uint64_t)(round + 1) * PUT_SLOTS) == 0);
        CHECK(sstar_signals(link) == (uint64_t)(round + 1) * PUT_SLOTS);
        for (int i = 0; i < PUT_SLOTS; i++) {
            int number = round * PUT_SLOTS + i;
            uint32_t bytes = (uint32_t)(pattern_seed(peer, rank, number) % (PUT_BYTES + 1));
            CHECK(pattern_holds(mine->board.data[i], bytes, pattern_seed(peer, rank, number)));
        }
        CHECK(sstar_link_wait(link, ticket) == 0);
        CHECK(sstar_link_done(link, ticket));
        CHECK(sstar_fast_barrier(world) == 0);
    }
    return 0;
}

/* Get what the peer wrote last into its own memory. */
static int get_back(const struct side *s)
{
    struct sstar_world *world = s->world;
    struct sstar_links *links = s->links;
    struct shared *mine = s->mine;
    uint64_t ticket;
    for (int i = 0; i < PUT_SLOTS; i++) {
        int number = PUTS - PUT_SLOTS + i;
        uint32_t bytes = (uint32_t)(pattern_seed(s->peer, s->rank, number) % (PUT_BYTES + 1));
        TRY(sstar_get(s->link, s->region, mine->in, &s->all[s->peer],
                      offsetof(struct shared, out[i]), bytes, 0, &ticket));
        CHECK(sstar_link_wait(s->link, ticket) == 0);
        CHECK(pattern_holds(mine->in, bytes, pattern_seed(s->peer, s->rank, number)));
    }
    return 0;
}

/* Both ranks of a pair add to the word of the lower one. */
static int add_together(const struct side *s)
{
    struct sstar_world *world = s->world;
    struct sstar_links *links = s->links;
    int lower = s->rank & ~1;
    enum { ADDS = 200 };
    uint64_t last = 0, ticket;
    /* The CPU adds inside a node, if its atomics and the device's may meet. */
    bool coherent = !world->device || world->device->coherent_atomics;
    bool can_add = !link_is_local(s->link) || (coherent && !s->foreign);
    if (s->rank != lower && can_add) {
        for (int i = 0; i < ADDS; i++) {
            TRY(sstar_fetch_add(s->link, s->region, &s->mine->before, &s->all[lower],
                                offsetof(struct board, sum), 3, i + 1 == ADDS ? SSTAR_SIGNAL : 0,
                                &ticket));
            CHECK(sstar_link_wait(s->link, ticket) == 0);
            CHECK(s->mine->before == last);
            last += 3;
        }
    } else if (can_add) {
        CHECK(sstar_signal_wait(s->link, PUTS + 1) == 0);
        CHECK(__atomic_load_n(&s->mine->board.sum, __ATOMIC_ACQUIRE) == 3 * ADDS);
    }
    return 0;
}

/* Memory is let go of while a batch is open. */
static int register_within_a_batch(const struct side *s)
{
    struct sstar_world *world = s->world;
    struct sstar_links *links = s->links;
    struct sstar_region *other;
    uint64_t ticket;
    TRY(sstar_put(s->link, s->region, s->mine->out, &s->all[s->peer],
                  offsetof(struct board, filler), 56, SSTAR_MORE, &ticket));
    CHECK(sstar_register(world, &ticket, sizeof ticket, &other) == 0);
    CHECK(sstar_deregister(other) == 0);
    CHECK(sstar_link_wait(s->link, ticket) == 0);
    return 0;
}

/* Without doing anything. */
static int refused(const struct side *s)
{
    struct sstar_world *world = s->world;
    struct sstar_link *link = s->link;
    struct sstar_region *region = s->region;
    struct shared *mine = s->mine;
    const struct sstar_remote_region *peers = &s->all[s->peer];
    uint64_t ticket;
    CHECK(sstar_put(link, region, mine->in, peers, sizeof *mine - 1, 2, 0, &ticket) == -EINVAL);
    CHECK(sstar_put(link, region, (char *)mine - 1, peers, 0, 2, 0, &ticket) == -EINVAL);
    CHECK(sstar_put(link, region, mine->in, &s->all[s->rank], 0, 2, 0, &ticket) == -EINVAL);
    CHECK(sstar_fetch_add(link, region, &mine->before, peers, 4, 1, 0, &ticket) == -EINVAL);
    return 0;
}

static int body_one_sided(struct sstar_world *world, void *arg)
{
    const struct sstar_link_attr *attr = arg;
    int rank = sstar_rank(world), peer = rank ^ 1, n = sstar_size(world);
    struct side s = {.world = world, .rank = rank, .peer = peer, .foreign = attr->slots == 1};
    CHECK(attr->slots != 2 || use_plain_device(world) == 0);
    struct sstar_link_attr real = {
        .queue_pairs = attr->queue_pairs, .puts = attr->puts, .through_nic = attr->through_nic};
    struct sstar_links *links;
    CHECK(sstar_links_open(world, &peer, 1, &real, &links) == 0);
    struct sstar_link *link = sstar_links_to(links, peer);
    void *memory = NULL;
    if (s.foreign)
        memory = aligned_alloc(64, (sizeof(struct shared) + 63) / 64 * 64);
    else
        CHECK(sstar_alloc(world, sizeof(struct shared), &memory) == 0);
    CHECK(memory != NULL);
    struct shared *mine = memory;
    memset(mine, 0, sizeof *mine);
    struct sstar_region *region;
    struct sstar_remote_region here;
    CHECK(sstar_register(world, mine, sizeof *mine, &region) == 0);
    sstar_region_describe(region, &here);
    CHECK(sstar_allgather(world, &here, sizeof here, s.all) == 0);
    s.links = links;
    s.link = link;
    s.mine = mine;
    s.region = region;
    CHECK(put_rounds(&s) == 0);
    CHECK(get_back(&s) == 0);
    CHECK(add_together(&s) == 0);
    CHECK(register_within_a_batch(&s) == 0);
    CHECK(refused(&s) == 0);
    CHECK(n >= 2);
    sstar_links_close(links);
    CHECK(sstar_deregister(region) == 0);
    if (s.foreign)
        free(memory);
    else
        CHECK(sstar_free(world, memory) == 0);
    return 0;
}

static int body_add_refused(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    CHECK(sstar_links_open(world, &peer, 1, &(struct sstar_link_attr){0}, &links) == 0);
    uint64_t words[2] = {0, 0}, ticket;
    struct sstar_region *region;
    struct sstar_remote_region mine, all[2];
    CHECK(sstar_register(world, words, sizeof words, &region) == 0);
    sstar_region_describe(region, &mine);
    CHECK(sstar_allgather(world, &mine, sizeof mine, all) == 0);
    CHECK(sstar_fetch_add(sstar_links_to(links, peer), region, &words[1], &all[peer], 0, 1, 0,
                          &ticket) == -EOPNOTSUPP);
    CHECK(strstr(sstar_last_error(world), "sstar_alloc"));
    sstar_links_close(links);
    CHECK(sstar_deregister(region) == 0);
    return 0;
}

/* ---- the tests - */

static void one_sided(int size, int per_node, struct sstar_link_attr attr,
                      const struct sstar_wire *wire)
{
    ranks_expect_both((struct ranks){.size = size,
                                     .ranks_per_node = per_node,
                                     .wire = wire ? *wire : (struct sstar_wire){0},
                                     .body = body_one_sided,
                                     .arg = &attr});
}

static void test_one_sided_local(void **state)
{
    (void)state;
    one_sided(2, 0, (struct sstar_link_attr){.puts = 8}, NULL);
    one_sided(4, 2, (struct sstar_link_attr){.puts = 8}, NULL);
    one_sided(2, 0, (struct sstar_link_attr){.slots = 1}, NULL);
    /* Threads of one process reach such a word; processes do not. */
    ranks_expect(&(struct ranks){.size = 2, .processes = true, .body = body_add_refused});
}

static void nic_one_sided(const struct sstar_wire *wire)
{
    for (uint32_t k = 1; k <= 8; k *= 2)
        one_sided(2, 1, (struct sstar_link_attr){.queue_pairs = k, .puts = 2 * k}, wire);
    one_sided(2, 1, (struct sstar_link_attr){.queue_pairs = 3, .puts = 64, .slots = 1}, wire);
    one_sided(2, 1, (struct sstar_link_attr){.queue_pairs = 2, .puts = 32, .slots = 2}, wire);
    one_sided(4, 1, (struct sstar_link_attr){.puts = 1}, wire);
    one_sided(2, 0, (struct sstar_link_attr){.through_nic = true}, wire);
}

static void test_one_sided_nic(void **state)
{
    (void)state;
    nic_one_sided(NULL);
}

static void test_one_sided_nic_by_completion(void **state)
{
    (void)state;
    nic_one_sided(&ranks_shaped);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_sided_local),
        cmocka_unit_test(test_one_sided_nic),
        cmocka_unit_test(test_one_sided_nic_by_completion),
    };
    printf("# seed %llu\n", (unsigned long long)PATTERN_SEED);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
