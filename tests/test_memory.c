/* SPDX-License-Identifier: MIT */
/* Memory that ranks of a node share. */
#include "tests/ranks.h"
#include "transport/memory.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

static int addresses_gather(struct sstar_world *world, void *memory, uint64_t *all)
{
    uint64_t mine = (uintptr_t)memory;
    return sstar_allgather(world, &mine, sizeof mine, all);
}

/* Each rank writes its number into the memory of every other of its node. */
static int body_share(struct sstar_world *world, void *arg)
{
    (void)arg;
    enum { BYTES = 3 * 4096 + 100 };
    int rank = sstar_rank(world), size = sstar_size(world), node = sstar_node_of(world, rank);
    uint64_t all[64];
    void *memory;
    CHECK(sstar_alloc(world, BYTES, &memory) == 0);
    CHECK((uintptr_t)memory % 4096 == 0);
    for (int i = 0; i < BYTES; i++)
        CHECK(((char *)memory)[i] == 0);
    CHECK(addresses_gather(world, memory, all) == 0);
    for (int peer = 0; peer < size; peer++) {
        int *theirs = memory_peer(world, peer, all[peer] + 4096, 4096);
        CHECK((theirs != NULL) == (sstar_node_of(world, peer) == node));
        if (!theirs)
            continue;
        theirs[rank] = 1000 + rank;
        CHECK(memory_peer(world, peer, all[peer] + 4096, 4096) == theirs);
        CHECK(memory_peer(world, peer, all[peer], BYTES) != NULL);
        CHECK(memory_peer(world, peer, all[peer] - 1, 2) == NULL);
        CHECK(memory_peer(world, peer, all[peer] + 4096, 4 * 4096) == NULL);
        CHECK(memory_peer(world, peer, all[peer] + 4096, SIZE_MAX) == NULL);
    }
    CHECK(sstar_barrier(world) == 0);
    for (int peer = 0; peer < size; peer++)
        CHECK(((int *)memory)[1024 + peer] ==
              (sstar_node_of(world, peer) == node ? 1000 + peer : 0));
    CHECK(sstar_barrier(world) == 0);
    CHECK(sstar_free(world, memory) == 0);
    return 0;
}

/* What a peer has mapped must not be found once its owner has freed it, and memory got later must.
 */
static int body_reuse(struct sstar_world *world, void *arg)
{
    (void)arg;
    int rank = sstar_rank(world), peer = rank ^ 1;
    uint64_t all[64];
    for (int round = 0; round < 20; round++) {
        void *memory;
        CHECK(sstar_alloc(world, 4096u << (round % 3), &memory) == 0);
        *(int *)memory = round * 2 + rank;
        CHECK(addresses_gather(world, memory, all) == 0);
        const int *theirs = memory_peer(world, peer, all[peer], 4096);
        CHECK(theirs && *theirs == round * 2 + peer);
        CHECK(sstar_barrier(world) == 0);
        CHECK(sstar_free(world, memory) == 0);
        CHECK(sstar_barrier(world) == 0);
        CHECK(memory_peer(world, peer, all[peer], 4096) == NULL);
        CHECK(sstar_barrier(world) == 0);
    }
    return 0;
}

/* The kernel lays mappings side by side, so one begins where another ends. */
static int body_neighbours(struct sstar_world *world, void *arg)
{
    (void)arg;
    enum { SEGMENTS = 8, BYTES = 64 * 1024 };
    void *memory[SEGMENTS];
    struct sstar_region *region;
    for (int i = 0; i < SEGMENTS; i++)
        CHECK(sstar_alloc(world, BYTES, &memory[i]) == 0);
    for (int i = 0; i < SEGMENTS; i++) {
        for (int k = i + 1; k < SEGMENTS; k++) { /* each was the last one looked at */
            CHECK(sstar_register(world, memory[k], BYTES, &region) == 0);
            CHECK(sstar_deregister(region) == 0);
        }
        CHECK(sstar_free(world, memory[i]) == 0);
    }
    return 0;
}

static int body_refused(struct sstar_world *world, void *arg)
{
    (void)arg;
    void *memory, *other = &arg;
    struct sstar_region *region;
    int error;
    CHECK(sstar_alloc(world, 0, &memory) == -EINVAL);
    CHECK(sstar_alloc(world, SIZE_MAX - 5, &memory) == -EINVAL);
    CHECK(sstar_alloc(world, 1ull << 50, &memory) == -ENOMEM);
    CHECK(sstar_alloc(world, 10000, &memory) == 0);
    CHECK(sstar_free(world, (char *)memory + 64) == -EINVAL);
    CHECK(sstar_free(world, other) == -EINVAL);
    CHECK(sstar_free(world, NULL) == 0);
    CHECK(memory_region(world, other, 8, &error) == NULL && error == 0);
    CHECK(memory_region(world, memory, 10000, &error) != NULL && error == 0);
    CHECK(sstar_register(world, memory, 0, &region) == -EINVAL);
    CHECK(sstar_register(world, (char *)memory + 8, 500, &region) == 0);
    CHECK(sstar_free(world, memory) == -EBUSY);
    struct sstar_remote_region remote;
    sstar_region_describe(region, &remote);
    CHECK(remote.address == (uintptr_t)memory + 8 && remote.size_bytes == 500);
    CHECK(remote.rank == sstar_rank(world));
    CHECK(sstar_deregister(region) == 0);
    CHECK(sstar_free(world, memory) == 0);
    return 0;
}

static void test_shared(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 1, .body = body_share});
    ranks_expect_both((struct ranks){.size = 3, .body = body_share});
    ranks_expect_both((struct ranks){.size = 5, .ranks_per_node = 2, .body = body_share});
}

static void test_reuse(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 2, .body = body_reuse});
}

static void test_refused(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 2, .body = body_refused});
}

static void test_neighbours(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 1, .body = body_neighbours});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
