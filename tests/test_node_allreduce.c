/* SPDX-License-Identifier: MIT */
/*
 * AllReduce where one node is all, by each of its ways (collectives/node_all.c): sizes around the
 * edges of slots, cells, pieces and of what goes past the caches; every type and operation; memory
 * of both kinds, the same for all ranks or not; at odd addresses; in place or not; waited for at
 * once or in parts. Every value is checked, and what lies beside the result.
 */
#include "collectives/collective_plan.h"
#include "collectives/element.h"
#include "tests/ranks.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { GUARD = 64, SEED = 11 };

struct way {
    bool large;
    int groups; /* instead of those that the machine has cores for, so that all ways are tried */
};

struct buffers {
    char *send[2], *recv[2]; /* from malloc, from sstar_alloc */
};

struct one {
    size_t bytes;
    enum sstar_type type;
    enum sstar_op op;
    bool in_place, in_parts;
    unsigned send_kind, recv_kind;
    size_t offset; /* of the vectors in their memory: any number of bytes */
};

static const size_t edges[] = {
    8,
    NODE_ALL_BYTES,
    NODE_ALL_CROWDED_BYTES,
    NODE_COPIED_BYTES,
    NODE_FEW_CELLS *NODE_CELL_BYTES,
    NODE_CELL_BYTES,
    (size_t)NODE_CELL_BYTES *NODE_CELLS,
    (size_t)3 * NODE_CELL_BYTES *NODE_CELLS,
    (size_t)128 * 1024,
    1024 * 1024 + 4096,
};
enum { EDGES = sizeof edges / sizeof *edges };
static const size_t past_caches = 4 << 20;

static int run_one(struct sstar_collective *plan, const struct one *one, const char *send,
                   char *recv, size_t count)
{
    if (!one->in_parts)
        return sstar_collective_run(plan, send, recv, count, one->type, one->op);
    int err = sstar_collective_start(plan, send, recv, count, one->type, one->op), done = 0;
    for (int i = 0; !err && !done && i < 100; i++)
        done = sstar_collective_test(plan);
    return err ? err : done < 0 ? done : sstar_collective_wait(plan);
}

static int try_one(struct sstar_world *world, struct sstar_collective *plan,
                   const struct buffers *buffers, const struct one *one)
{
    int rank = sstar_rank(world), size = sstar_size(world), wrong = 0;
    size_t width = sstar_type_bytes(one->type), count = one->bytes / width;
    char *recv = buffers->recv[one->recv_kind] + GUARD + one->offset;
    char *send = one->in_place ? recv : buffers->send[one->send_kind] + GUARD + one->offset;
    struct element_case it = {SSTAR_ALL_REDUCE, size,          0,         count, one->type,
                              one->op,          one->in_place, one->bytes};
    memset(recv - GUARD, 0x5a, count * width + (size_t)2 * GUARD);
    for (size_t i = 0; i < count; i++)
        element_set(send, i, one->type,
                    element_of_rank(rank, size, i, it.salt, one->type, one->op));
    int err = run_one(plan, one, send, recv, count);
    if (err)
        return err;
    for (size_t i = 0; i < count; i++)
        wrong += element_get(recv, i, one->type) != element_expected(&it, rank, i);
    for (size_t i = 0; i < count && !one->in_place; i++)
        wrong += element_get(send, i, one->type) !=
                 element_of_rank(rank, size, i, it.salt, one->type, one->op);
    for (size_t i = 0; i < GUARD; i++)
        wrong += recv[(long)i - GUARD] != 0x5a || recv[count * width + i] != 0x5a;
    if (wrong)
        fprintf(stderr,
                "rank %d of %d: %zu bytes of %s %s, in place %d, kinds %u %u, at %zu: %d wrong\n",
                rank, size, one->bytes, sstar_type_name(one->type), sstar_op_name(one->op),
                one->in_place, one->send_kind, one->recv_kind, one->offset, wrong);
    return wrong;
}

/* Around each edge, with what else is to be tried drawn. */
static int try_edges(struct sstar_world *world, struct sstar_collective *plan,
                     const struct buffers *buffers)
{
    uint64_t common = SEED, own = SEED + 100 + (uint64_t)sstar_rank(world);
    int bad = 0;
    for (int edge = 0; edge < EDGES; edge++)
        for (long beside = -8; beside <= 8; beside += 8)
            for (int kind = 0; kind < 3; kind++) { /* ordinary, shared, each for itself */
                uint64_t drawn = random_next(&common), mine = random_next(&own) >> 33;
                struct one one = {.bytes = edges[edge] + (size_t)beside,
                                  .type = (enum sstar_type)(drawn >> 40) % SSTAR_TYPES,
                                  .op = (enum sstar_op)((drawn >> 50) % SSTAR_OPS),
                                  .in_place = drawn >> 30 & 1,
                                  .in_parts = drawn >> 31 & 1,
                                  .offset = drawn >> 32 & 1 ? (drawn >> 33) % 64 : 0};
                one.send_kind = kind == 2 ? mine & 1 : (unsigned)kind;
                one.recv_kind = kind == 2 ? mine >> 1 & 1 : (unsigned)kind;
                int found = try_one(world, plan, buffers, &one);
                if (found < 0)
                    return found;
                bad += found != 0;
            }
    return bad;
}

static int try_types(struct sstar_world *world, struct sstar_collective *plan,
                     const struct buffers *buffers)
{
    int bad = 0;
    for (int type = 0; type < SSTAR_TYPES; type++)
        for (int op = 0; op < SSTAR_OPS; op++)
            for (unsigned kind = 0; kind < 2; kind++) {
                struct one one = {.bytes = 5 * NODE_ALL_CROWDED_BYTES + 24,
                                  .type = (enum sstar_type)type,
                                  .op = (enum sstar_op)op,
                                  .in_place = (type + op) & 1,
                                  .send_kind = kind,
                                  .recv_kind = kind,
                                  .offset = (size_t)(type * 5 + op) % 64};
                int found = try_one(world, plan, buffers, &one);
                if (found < 0)
                    return found;
                bad += found != 0;
            }
    return bad;
}

static int try_large(struct sstar_world *world, struct sstar_collective *plan,
                     const struct buffers *buffers)
{
    int bad = 0;
    for (unsigned kind = 0; kind < 4; kind++) {
        struct one one = {.bytes = past_caches + (kind & 1 ? 68 : (size_t)0),
                          .type = kind & 1 ? SSTAR_FLOAT32 : SSTAR_INT64,
                          .op = SSTAR_SUM,
                          .in_place = kind == 3,
                          .send_kind = kind >> 1,
                          .recv_kind = kind >> 1,
                          .offset = kind & 1 ? 4 : 0};
        int found = try_one(world, plan, buffers, &one);
        if (found < 0)
            return found;
        bad += found != 0;
    }
    return bad;
}

static int body(struct sstar_world *world, void *argument)
{
    const size_t most = past_caches + 4096;
    const struct way *way = argument;
    struct buffers b = {{malloc(most)}, {malloc(most)}};
    struct sstar_collective *plan = NULL;
    void *memory[2] = {NULL, NULL};
    int err = b.send[0] && b.recv[0] ? sstar_alloc(world, most, &memory[0]) : -1, bad = 0;
    if (!err)
        err = sstar_alloc(world, most, &memory[1]);
    if (!err)
        err = sstar_collective_open(world, NULL, &plan);
    if (!err) /* whatever caches the machine has */
        plan->node.cached_bytes = past_caches - 1;
    if (!err && way->groups)
        plan->node.groups = way->groups;
    b.send[1] = memory[0];
    b.recv[1] = memory[1];
    int (*const parts[])(struct sstar_world *, struct sstar_collective *,
                         const struct buffers *) = {try_edges, try_types, try_large};
    for (int i = 0; i < (way->large ? 3 : 2) && !err; i++) {
        int found = parts[i](world, plan, &b);
        err = found < 0 ? found : 0;
        bad += found > 0 ? found : 0;
    }
    if (err)
        ranks_complain(world, __FILE__, __LINE__, strerror(-err));
    sstar_collective_close(plan);
    free(b.send[0]);
    free(b.recv[0]);
    return err ? err : bad;
}

static void ranks_of_one_node(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n++) {
        struct way way = {.large = n == 2};
        ranks_expect(&(struct ranks){.size = n, .processes = n & 1, .body = body, .arg = &way});
    }
}

/* As with three cores, and with one. */
static void ways_of_other_machines(void **state)
{
    (void)state;
    struct way three = {.groups = 3}, each = {.groups = 3};
    ranks_expect(&(struct ranks){.size = 6, .body = body, .arg = &three});
    ranks_expect(&(struct ranks){.size = 3, .body = body, .arg = &each});
}

/* Four ranks then share cores two by two, wherever the test runs. */
static void keep_to_two_cores(void)
{
    cpu_set_t set, two;
    int found = 0;
    CPU_ZERO(&two);
    sched_getaffinity(0, sizeof set, &set);
    for (int core = 0; core < CPU_SETSIZE && found < 2; core++)
        if (CPU_ISSET(core, &set)) {
            CPU_SET(core, &two);
            found++;
        }
    sched_setaffinity(0, sizeof two, &two);
}

/* What 1e8, 1, -1e8, 1 sum to: 1 in the order of ranks, 2 where ranks 0 and 2 do it first. */
static int sums_to(struct sstar_world *world, const char *path, const char *line, float wanted)
{
    static const float inputs[] = {1e8f, 1, -1e8f, 1};
    enum { COUNT = 5000 };
    float send[COUNT], recv[COUNT];
    struct sstar_collective *plan;
    if (sstar_rank(world) == 0 && line) {
        FILE *file = fopen(path, "we");
        fputs(line, file);
        fclose(file);
    }
    snprintf(world->config.tuning, sizeof world->config.tuning, "%s", path);
    int err = sstar_barrier(world), bad = 0;
    if (!err)
        err = sstar_collective_open(world, NULL, &plan);
    if (err)
        return err;
    for (size_t count = 1; count <= COUNT && !err; count *= COUNT / 5) {
        for (size_t i = 0; i < count; i++)
            send[i] = inputs[sstar_rank(world)];
        err = sstar_collective_run(plan, send, recv, count, SSTAR_FLOAT32, SSTAR_SUM);
        for (size_t i = 0; i < count; i++)
            bad += recv[i] != wanted;
    }
    sstar_collective_close(plan);
    return err ? err : bad;
}

/* The tuning file says on how many cores it is; what it does not say is written there. */
static int order_is_frozen(struct sstar_world *world, void *argument)
{
    char *path = argument, line[64] = "";
    struct sstar_collective *plan;
    int cores = 0;
    CHECK(sums_to(world, path, NULL, 2) == 0); /* the two cores that we keep to */
    FILE *file = fopen(path, "re");
    CHECK(file && fgets(line, sizeof line, file));
    fclose(file);
    CHECK(sscanf(line, "cores 4 1 %d", &cores) == 1 && cores == 2);
    CHECK(sstar_barrier(world) == 0);
    CHECK(sums_to(world, path, "cores 4 1 1\n", 1) == 0);
    CHECK(sums_to(world, path, "# none\ncores 4 2 1\ncores 4 1 2\n", 2) == 0);
    CHECK(sums_to(world, path, "cores 4 1 0\n", 2) == -EINVAL);
    CHECK(strstr(sstar_last_error(world),
                 sstar_rank(world) ? "rank 0 could not open" : "line 1 of "));
    CHECK(sstar_collective_open(world, NULL, &plan) == -EINVAL);
    return 0;
}

static void order_of_a_tuning_file(void **state)
{
    (void)state;
    char path[] = "/tmp/sstar-tuning-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    int bad = ranks_run(&(struct ranks){.size = 4, .body = order_is_frozen, .arg = path});
    unlink(path);
    assert_int_equal(bad, 0);
}

int main(void)
{
    keep_to_two_cores();
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_of_one_node),
                                       cmocka_unit_test(ways_of_other_machines),
                                       cmocka_unit_test(order_of_a_tuning_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
