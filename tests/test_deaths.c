/* SPDX-License-Identifier: MIT */
/* Ranks that die: every other rank gets an error that names the victim, whoever left because of it.
 * Ranks that are merely stopped are not condemned. */
#include "tests/crew.h"
#include "tests/loops.h"
#include "transport/control.h"
#include "transport/memory.h"
#include "transport/wait.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SIZE = 5 };

/* What the survivors do when it happens. */
enum occupation { IN_BARRIER, IN_WAIT, IN_LARGE_EXCHANGE, IN_POLL, MIXED, OCCUPATIONS };

struct scene {
    enum loop_choice choice;
    int victim;
    enum occupation occupation;
    bool leave_at_once; /* survivors end without closing the world, as a program in trouble may */
    int stopped;        /* this one is stopped by the test meanwhile; -1: none */
};

static int large_exchange(struct sstar_world *world)
{
    const size_t bytes = 1 << 20;
    char *send = calloc(SIZE, bytes), *receive = calloc(SIZE, bytes);
    int err = 0;
    while (err == 0)
        err = sstar_alltoall_blocks(world, send, bytes, receive);
    free(send);
    free(receive);
    return err;
}

static int be_busy(struct sstar_world *world, const struct scene *scene)
{
    enum occupation occupation = scene->occupation;
    if (occupation == MIXED)
        occupation = (enum occupation)(sstar_rank(world) % 2 ? IN_WAIT : IN_BARRIER);
    int err = 0;
    struct waiter w = wait_begin(world, "a credit", scene->victim, 17);
    switch (occupation) {
    case IN_BARRIER:
        return sstar_barrier(world);
    case IN_LARGE_EXCHANGE:
        return large_exchange(world);
    case IN_POLL:
        while (err == 0)
            err = control_poll(world);
        return err;
    default:
        while (err == 0)
            err = wait_step(&w);
        return err;
    }
}

/* The victim ends by itself, so the test needs no timing. */
static void die(struct sstar_world *world, const struct scene *scene)
{
    if (scene->occupation == IN_LARGE_EXCHANGE) {
        const size_t bytes = 1 << 20;
        char *buffer = calloc(2 * SIZE, bytes);
        sstar_alltoall_blocks(world, buffer, bytes, buffer + SIZE * bytes);
        /* the survivors are in the next one */
    }
    raise(SIGKILL);
}

static int be_in_the_scene(const struct sstar_config *config, void *arg)
{
    const struct scene *scene = arg;
    struct sstar_world *world;
    char error[512] = "";
    if (world_open_over(&world, config, scene->choice, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    int err = sstar_barrier(world);
    if (scene->stopped == config->rank)
        raise(SIGSTOP); /* the test lets it go on when the others are gone */
    if (config->rank == scene->victim && scene->stopped >= 0)
        pause(); /* the test kills it when that one is seen to have stopped */
    if (config->rank == scene->victim)
        die(world, scene);
    if (err == 0) /* the death may have come before the barrier was over */
        err = be_busy(world, scene);
    char who[32];
    snprintf(who, sizeof(who), "rank %d (host ", scene->victim);
    const char *text = sstar_last_error(world);
    int bad = 0;
    if (err != -ECONNRESET || strncmp(text, who, strlen(who)) != 0 || !strstr(text, "died"))
        bad = crew_complain(config->rank, "victim %d, occupation %d: %d, \"%s\"", scene->victim,
                            scene->occupation, err, text);
    if (control_poll(world) != err || sstar_barrier(world) != err) /* and it stays so */
        bad = crew_complain(config->rank, "the world is not failed");
    if (!scene->leave_at_once)
        sstar_world_close(world);
    return bad;
}

/* What the dead had shared is not to be had any more; the reason is what is told. */
static int look_for_memory(const struct sstar_config *config, void *arg)
{
    struct sstar_world *world;
    char error[512] = "", path[64];
    (void)arg;
    if (sstar_world_open(&world, config, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    void *memory;
    uint64_t address = 0, all[2] = {0};
    if (sstar_alloc(world, 4096, &memory) == 0)
        address = (uint64_t)(uintptr_t)memory;
    int err = sstar_allgather(world, &address, sizeof(address), all);
    if (config->rank == 1)
        raise(SIGKILL);
    snprintf(path, sizeof(path), "/proc/%ld/fd/0", (long)world->ranks[1].pid);
    while (access(path, F_OK) == 0)
        usleep(1000);
    int bad = 0;
    if (err == 0 && memory_peer(world, 1, all[1], 4096))
        bad = crew_complain(0, "the memory of the dead is there");
    const char *text = sstar_last_error(world);
    if (control_await_news(world) != -ECONNRESET || strncmp(text, "rank 1 (host ", 13) != 0)
        bad = crew_complain(0, "\"%s\"", text);
    sstar_world_close(world);
    return bad;
}

static void test_memory_of_the_dead(void **state)
{
    struct sstar_config config;
    int results[CREW_MAX];
    (void)state;
    crew_config(&config, 2);
    crew_processes(&config, look_for_memory, NULL, results);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], 128 + SIGKILL);
}

static void play(const struct scene *scene)
{
    struct sstar_config config;
    int results[CREW_MAX];
    crew_config(&config, SIZE);
    config.ranks_per_node = 2;
    crew_processes(&config, be_in_the_scene, (void *)scene, results);
    for (int r = 0; r < SIZE; r++)
        assert_int_equal(results[r], r == scene->victim ? 128 + SIGKILL : 0);
}

static void test_every_rank(void **state)
{
    for (int victim = 0; victim < SIZE; victim++)
        for (int occupation = 0; occupation < OCCUPATIONS; occupation++)
            for (int leave = 0; leave < 2; leave++) {
                const struct scene scene = {.choice = *(enum loop_choice *)*state,
                                            .victim = victim,
                                            .occupation = (enum occupation)occupation,
                                            .leave_at_once = leave,
                                            .stopped = -1};
                play(&scene);
            }
}

/*
 * One rank is stopped, the victim dies, the others notice and leave; only then the stopped one goes
 * on. It finds everybody dead and must name the one that began it.
 */
static void play_with_stopped(const struct scene *scene)
{
    struct sstar_config config;
    pid_t pids[CREW_MAX];
    int status, results[CREW_MAX];
    crew_config(&config, SIZE);
    crew_start(&config, be_in_the_scene, (void *)scene, pids);
    assert_int_equal(waitpid(pids[scene->stopped], &status, WUNTRACED), pids[scene->stopped]);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(kill(pids[scene->victim], SIGKILL), 0);
    for (int r = 0; r < SIZE; r++)
        if (r != scene->stopped)
            crew_join(&pids[r], 1, &results[r]);
    assert_int_equal(kill(pids[scene->stopped], SIGCONT), 0);
    crew_join(&pids[scene->stopped], 1, &results[scene->stopped]);
    for (int r = 0; r < SIZE; r++)
        assert_int_equal(results[r], r == scene->victim ? 128 + SIGKILL : 0);
}

static void test_late_witness(void **state)
{
    for (int victim = 0; victim < SIZE; victim++)
        for (int stopped = 0; stopped < SIZE; stopped += 2) {
            if (stopped == victim)
                continue;
            const struct scene scene = {.choice = *(enum loop_choice *)*state,
                                        .victim = victim,
                                        .occupation = IN_WAIT,
                                        .leave_at_once = stopped > 0,
                                        .stopped = stopped};
            play_with_stopped(&scene);
        }
}

/* A rank that ends without closing its world is as dead as one that was killed. */
static int end_without_closing(const struct sstar_config *config, void *arg)
{
    (void)arg;
    struct sstar_world *world;
    char error[512] = "";
    if (sstar_world_open(&world, config, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    if (config->rank == 1)
        return 0;
    int err = sstar_barrier(world), bad = 0;
    if (err != -ECONNRESET || !strstr(sstar_last_error(world), "rank 1 (host "))
        bad = crew_complain(config->rank, "%d, \"%s\"", err, sstar_last_error(world));
    sstar_world_close(world);
    return bad;
}

static void test_ends_without_closing(void **state)
{
    (void)state;
    struct sstar_config config;
    crew_config(&config, 3);
    crew_processes_pass(&config, end_without_closing, NULL);
}

/* One rank finds the world failed by itself; the others get its sentence. */
static int fail_by_itself(const struct sstar_config *config, void *arg)
{
    (void)arg;
    struct sstar_world *world;
    char error[512] = "";
    if (sstar_world_open(&world, config, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    int err = sstar_barrier(world), bad = 0;
    if (config->rank == 2)
        err = world_fail(world, -EIO, "the link to rank 1 is broken");
    else if (err == 0)
        err = sstar_barrier(world);
    if (err != -EIO || !strstr(sstar_last_error(world), "the link to rank 1 is broken") ||
        (config->rank != 2 && !strstr(sstar_last_error(world), "rank 2: ")))
        bad = crew_complain(config->rank, "%d, \"%s\"", err, sstar_last_error(world));
    sstar_world_close(world);
    return bad;
}

static void test_a_failure_reaches_all(void **state)
{
    (void)state;
    struct sstar_config config;
    crew_config(&config, 4);
    crew_processes_pass(&config, fail_by_itself, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVER_BOTH_LOOPS(test_every_rank),
        OVER_BOTH_LOOPS(test_late_witness),
        cmocka_unit_test(test_ends_without_closing),
        cmocka_unit_test(test_a_failure_reaches_all),
        cmocka_unit_test(test_memory_of_the_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
