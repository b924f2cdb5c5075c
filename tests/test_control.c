/* SPDX-License-Identifier: MIT */
/* A world that works, the map of ranks, the exchange, and its misuse. */
#include "tests/crew.h"
#include "tests/loops.h"
#include "transport/control.h"
#include "transport/rank_map.h"
#include "transport/wait.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the world works ------------------------------------------------------------------------ */

struct plan {
    enum loop_choice choice;
    size_t block_bytes;
    int rounds;
};

/* What rank `from` sends to rank `to` at place `i`. */
static uint8_t pattern(int from, int to, size_t i)
{
    return (uint8_t)(from * 31 + to * 7 + (int)(i % 251) + 1);
}

static int check_allgather(struct sstar_world *world, size_t bytes)
{
    const int rank = sstar_rank(world), size = sstar_size(world);
    uint8_t *all = malloc((size_t)size * bytes + 1), *mine = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = pattern(rank, 0, i);
    int bad = sstar_allgather(world, mine, bytes, all) < 0;
    for (int from = 0; from < size && !bad; from++)
        for (size_t i = 0; i < bytes && !bad; i++)
            bad = all[(size_t)from * bytes + i] != pattern(from, 0, i);
    free(all);
    free(mine);
    return bad ? crew_complain(rank, "allgather of %zu bytes: %s", bytes, sstar_last_error(world))
               : 0;
}

static int check_alltoall(struct sstar_world *world, size_t bytes)
{
    const int rank = sstar_rank(world), size = sstar_size(world);
    uint8_t *send = malloc((size_t)size * bytes + 1), *receive = malloc((size_t)size * bytes + 1);
    for (int to = 0; to < size; to++)
        for (size_t i = 0; i < bytes; i++)
            send[(size_t)to * bytes + i] = pattern(rank, to, i);
    int bad = sstar_alltoall_blocks(world, send, bytes, receive) < 0;
    for (int from = 0; from < size && !bad; from++)
        for (size_t i = 0; i < bytes && !bad; i++)
            bad = receive[(size_t)from * bytes + i] != pattern(from, rank, i);
    free(send);
    free(receive);
    return bad ? crew_complain(rank, "alltoall of %zu bytes: %s", bytes, sstar_last_error(world))
               : 0;
}

static int work(const struct sstar_config *config, void *arg)
{
    const struct plan *plan = arg;
    struct sstar_world *world;
    char error[512];
    if (world_open_over(&world, config, plan->choice, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    int bad = sstar_rank(world) != config->rank || sstar_size(world) != config->size;
    for (int i = 0; i < plan->rounds && !bad; i++) {
        bad |= sstar_barrier(world) < 0;
        bad = bad || check_allgather(world, plan->block_bytes);
        bad = bad || check_alltoall(world, plan->block_bytes);
    }
    sstar_world_close(world);
    return bad;
}

static void run_sizes(const struct plan *plan, int largest, bool threads)
{
    for (int size = 1; size <= largest; size++) {
        struct sstar_config config;
        crew_config(&config, size);
        (threads ? crew_threads_pass : crew_processes_pass)(&config, work, (void *)plan);
    }
}

static void test_threads(void **state)
{
    const struct plan plan = {*(enum loop_choice *)*state, 40, 5};
    run_sizes(&plan, 8, true);
}

static void test_processes(void **state)
{
    const struct plan plan = {*(enum loop_choice *)*state, 40, 5};
    run_sizes(&plan, 8, false);
}

static void test_large(void **state)
{
    struct plan plan = {*(enum loop_choice *)*state, (3u << 20) + 5, 2};
    run_sizes(&plan, 3, true);
    plan.block_bytes = 0;
    run_sizes(&plan, 3, true);
    plan.block_bytes = 1;
    run_sizes(&plan, 3, true);
}

/* Several worlds at a time, and one after the other at the same port. */
static int two_worlds(const struct sstar_config *config, void *arg)
{
    struct sstar_config other = *config;
    other.root_port = *(int *)arg;
    struct sstar_world *a, *b;
    char error[512];
    for (int round = 0; round < 3; round++) {
        if (sstar_world_open(&a, config, error, sizeof(error)) < 0)
            return crew_complain(config->rank, "first: %s", error);
        if (sstar_world_open(&b, &other, error, sizeof(error)) < 0)
            return crew_complain(config->rank, "second: %s", error);
        int bad = check_allgather(a, 8) || check_alltoall(b, 8) || check_allgather(a, 8);
        sstar_world_close(a);
        bad = bad || check_allgather(b, 8);
        sstar_world_close(b);
        if (bad)
            return 1;
    }
    return 0;
}

static void test_two_worlds(void **state)
{
    (void)state;
    struct sstar_config config, other;
    crew_config(&config, 3);
    crew_config(&other, 3);
    assert_int_not_equal(config.root_port, other.root_port);
    crew_threads_pass(&config, two_worlds, &other.root_port);
}

/* ---- the map -------------------------------------------------------------------------------- */

struct map_case {
    const char *hosts; /* one letter per rank */
    int ranks_per_node;
    const char *nodes, *locals; /* one digit per rank */
};

static const struct map_case map_cases[] = {
    {"a", 0, "0", "0"},
    {"aaaa", 0, "0000", "0123"},
    {"aaaaa", 2, "00112", "01010"},
    {"aaaaaaaa", 4, "00001111", "01230123"},
    {"aabb", 0, "0011", "0101"},
    {"abab", 0, "0101", "0011"},
    {"abab", 1, "0123", "0000"},
    {"aaabbb", 2, "001223", "010010"},
    {"babaaba", 2, "0101232", "0011001"},
    {"aaa", 3, "000", "012"},
};

static void check_map(const struct map_case *c)
{
    const int size = (int)strlen(c->hosts);
    struct hello hellos[16];
    memset(hellos, 0, sizeof(hellos));
    for (int r = 0; r < size; r++) {
        hellos[r].boot_id[0] = c->hosts[r];
        hellos[r].pid = 1000 + r;
        snprintf(hellos[r].host, sizeof(hellos[r].host), "host-%c", c->hosts[r]);
    }
    for (int rank = 0; rank < size; rank++) {
        struct sstar_world world = {
            .rank = rank, .size = size, .config.ranks_per_node = c->ranks_per_node};
        assert_int_equal(rank_map(&world, hellos), 0);
        int here = 0;
        for (int r = 0; r < size; r++) {
            assert_int_equal(sstar_node_of(&world, r), c->nodes[r] - '0');
            assert_int_equal(sstar_local_rank_of(&world, r), c->locals[r] - '0');
            assert_int_equal(sstar_rank_at(&world, c->nodes[r] - '0', c->locals[r] - '0'), r);
            assert_int_equal(world.ranks[r].same_host, c->hosts[r] == c->hosts[rank]);
            assert_int_equal(world.ranks[r].pid, 1000 + r);
            here += c->hosts[r] == c->hosts[rank];
        }
        assert_int_equal(world.ranks_on_host, here);
        int total = 0;
        for (int node = 0; node < sstar_node_count(&world); node++)
            total += sstar_local_size_of(&world, node);
        assert_int_equal(total, size);
        free(world.ranks);
        free(world.node_members);
        free(world.node_first_member);
    }
}

static void test_map(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(map_cases) / sizeof(map_cases[0]); i++)
        check_map(&map_cases[i]);
}

static void test_host_needs_all_three(void **state)
{
    (void)state;
    struct hello hellos[5];
    memset(hellos, 0, sizeof(hellos));
    for (int r = 0; r < 4; r++)
        strcpy(hellos[r].boot_id, "boot");
    hellos[1].pid_namespace = 5;
    hellos[2].uid = 5;
    strcpy(hellos[3].boot_id, "other");
    hellos[4].boot_id[0] = '\0'; /* unknown is like nobody */
    struct sstar_world world = {.size = 5};
    assert_int_equal(rank_map(&world, hellos), 0);
    assert_int_equal(sstar_node_count(&world), 5);
    assert_int_equal(world.ranks_on_host, 1);
    free(world.ranks);
    free(world.node_members);
    free(world.node_first_member);
}

/* ---- misuse --------------------------------------------------------------------------------- */

struct misuse {
    enum loop_choice choice;
    int odd;       /* the rank that calls something else */
    int operation; /* what it calls */
};

/* All call barrier but one. Every rank gets a sentence that names what was called. */
static int call_different_things(const struct sstar_config *config, void *arg)
{
    const struct misuse *m = arg;
    struct sstar_world *world;
    char error[512] = "", all[CREW_MAX * 8] = "", mine[CREW_MAX * 8] = "";
    if (world_open_over(&world, config, m->choice, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    int err = sstar_barrier(world);
    if (err < 0)
        return crew_complain(config->rank, "first barrier: %s", sstar_last_error(world));
    const char *name = "sstar_allgather";
    if (config->rank != m->odd)
        err = sstar_barrier(world);
    else if (m->operation == OPERATION_ALLGATHER)
        err = sstar_allgather(world, mine, 8, all);
    else if (m->operation == OPERATION_ALLTOALL)
        err = sstar_alltoall_blocks(world, mine, 8, all);
    if (m->operation == OPERATION_ALLTOALL)
        name = "sstar_alltoall_blocks";
    const char *text = sstar_last_error(world);
    char who[64];
    snprintf(who, sizeof(who), "rank %d called %s", m->odd, name);
    int bad = 0;
    if (err != -EPROTO || !strstr(text, who) || !strstr(text, "called sstar_barrier"))
        bad = crew_complain(config->rank, "%d, \"%s\"", err, text);
    if (sstar_barrier(world) != -EPROTO) /* the world stays failed */
        bad = crew_complain(config->rank, "the world is not failed");
    sstar_world_close(world);
    return bad;
}

static void test_mismatch(void **state)
{
    for (int odd = 0; odd < 3; odd++) {
        for (int operation = OPERATION_ALLGATHER; operation <= OPERATION_ALLTOALL; operation++) {
            struct misuse m = {*(enum loop_choice *)*state, odd, operation};
            struct sstar_config config;
            crew_config(&config, 3);
            crew_threads_pass(&config, call_different_things, &m);
        }
    }
}

static int call_with_different_sizes(const struct sstar_config *config, void *arg)
{
    (void)arg;
    struct sstar_world *world;
    char error[512] = "", all[64] = "", mine[16] = "";
    if (sstar_world_open(&world, config, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    int err = sstar_allgather(world, mine, config->rank == 1 ? 4 : 8, all);
    const char *text = sstar_last_error(world);
    int bad = 0;
    if (err != -EPROTO || !strstr(text, "rank 1 called sstar_allgather with 4 bytes"))
        bad = crew_complain(config->rank, "%d, \"%s\"", err, text);
    sstar_world_close(world);
    return bad;
}

static void test_mismatch_of_sizes(void **state)
{
    (void)state;
    struct sstar_config config;
    crew_config(&config, 2);
    crew_threads_pass(&config, call_with_different_sizes, NULL);
}

/* Rank 1 has had enough, as a program that failed by itself. */
static int leave_early(const struct sstar_config *config, void *arg)
{
    (void)arg;
    struct sstar_world *world;
    char error[512] = "";
    if (sstar_world_open(&world, config, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    int bad = 0;
    if (config->rank != 1) {
        int err = sstar_barrier(world);
        const char *text = sstar_last_error(world);
        if (err != -EPROTO || !strstr(text, "rank 1 left the world") ||
            !strstr(text, "called sstar_barrier"))
            bad = crew_complain(config->rank, "%d, \"%s\"", err, text);
    }
    sstar_world_close(world);
    return bad;
}

static void test_early_leave(void **state)
{
    (void)state;
    struct sstar_config config;
    crew_config(&config, 3);
    crew_threads_pass(&config, leave_early, NULL);
}

/* Rank 1 never comes to the barrier; it learns of the failure all the same. */
static int stay_away(const struct sstar_config *config, void *arg)
{
    (void)arg;
    struct sstar_world *world;
    char error[512] = "";
    if (sstar_world_open(&world, config, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    int err = 0;
    if (config->rank == 1)
        for (int i = 0; i < 30000 && err == 0; i++)
            err = control_sleep(world, 1000);
    else
        err = sstar_barrier(world);
    const char *text = sstar_last_error(world);
    int bad = 0;
    if (err != -ETIMEDOUT || !strstr(text, "rank 0 waits for rank 1") ||
        !strstr(text, "sstar_barrier"))
        bad = crew_complain(config->rank, "%d, \"%s\"", err, text);
    sstar_world_close(world);
    return bad;
}

static void test_absent_rank_is_named(void **state)
{
    (void)state;
    struct sstar_config config;
    crew_config(&config, 3);
    config.timeout_s = 1;
    crew_threads_pass(&config, stay_away, NULL);
}

static void test_child_cannot_use_it(void **state)
{
    struct sstar_config config;
    crew_config(&config, 1);
    struct sstar_world *world;
    char error[512];
    assert_int_equal(
        world_open_over(&world, &config, *(enum loop_choice *)*state, error, sizeof(error)), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int bad = sstar_barrier(world) != -EPERM || control_poll(world) != -EPERM ||
                  control_sleep(world, 1000) != -EPERM ||
                  !strstr(sstar_last_error(world), "child of the process that opened it");
        sstar_world_close(world);
        _exit(bad);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(sstar_barrier(world), 0);
    assert_int_equal(control_poll(world), 0);
    sstar_world_close(world);
    sstar_world_close(NULL);
}

static void count_call(void *arg)
{
    char bytes[8];
    int *fd_and_calls = arg;
    assert_int_equal(read(fd_and_calls[0], bytes, sizeof(bytes)), 1);
    fd_and_calls[1]++;
}

static void test_watch(void **state)
{
    struct sstar_config config;
    crew_config(&config, 1);
    struct sstar_world *world;
    char error[512];
    assert_int_equal(
        world_open_over(&world, &config, *(enum loop_choice *)*state, error, sizeof(error)), 0);
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    int fd_and_calls[2] = {fds[0], 0};
    assert_int_equal(control_watch(world, fds[0], count_call, fd_and_calls), 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    for (int i = 0; i < 5000 && fd_and_calls[1] == 0; i++)
        assert_int_equal(control_sleep(world, 1000), 0);
    assert_int_equal(fd_and_calls[1], 1);
    control_unwatch(world, fds[0]);
    close(fds[0]);
    close(fds[1]);
    sstar_world_close(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVER_BOTH_LOOPS(test_processes), /* first, before there are threads to fork with */
        OVER_BOTH_LOOPS(test_child_cannot_use_it),
        OVER_BOTH_LOOPS(test_threads),
        OVER_BOTH_LOOPS(test_large),
        cmocka_unit_test(test_two_worlds),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_host_needs_all_three),
        OVER_BOTH_LOOPS(test_mismatch),
        cmocka_unit_test(test_mismatch_of_sizes),
        cmocka_unit_test(test_early_leave),
        cmocka_unit_test(test_absent_rank_is_named),
        OVER_BOTH_LOOPS(test_watch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
