/* SPDX-License-Identifier: MIT */
/* A rank dies, is stopped or is slow during each operation: the dead is named to all, whoever waits
 * for the stopped says so and has right results when it goes on, the slow is waited for. */
#include "collectives/element.h"
#include "tests/crew.h"
#include "transport/wait.h"
#include "transport/world.h"
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

enum { SIZE = 4, VICTIM = 2, COUNT = 4000, ROUNDS = 6, FATAL_ROUND = 3, SLOW_US = 100 * 1000 };

enum fate { DIES, IS_STOPPED, IS_SLOW };

struct scene {
    enum sstar_operation operation;
    enum sstar_algorithm algorithm;
    enum fate fate;
};

/* What befalls the victim before a round. */
static void meet_fate(const struct scene *scene, int rank, int round)
{
    if (rank != VICTIM)
        return;
    if (scene->fate == IS_SLOW)
        usleep(SLOW_US);
    else if (round == FATAL_ROUND)
        raise(scene->fate == DIES ? SIGKILL : SIGSTOP);
}

static int one_round(struct sstar_world *world, struct sstar_collective *plan,
                     const struct element_case *it)
{
    static float vectors[2][SIZE * COUNT];
    int rank = sstar_rank(world), wrong = 0;
    struct element_layout at = element_layout(it, rank);
    for (size_t i = 0; i < at.send_count; i++)
        element_set(vectors[0], at.send_at + i, it->type,
                    element_of_rank(rank, it->size, i, it->salt, it->type, it->op));
    int err = sstar_collective_run(plan, vectors[0] + at.send_at, vectors[1] + at.recv_at, COUNT,
                                   it->type, it->op);
    for (size_t i = 0; i < at.recv_count && !err; i++)
        wrong += element_get(vectors[1], at.recv_at + i, it->type) != element_expected(it, rank, i);
    if (wrong)
        return crew_complain(rank, "%s: %d wrong", sstar_operation_name(it->operation), wrong);
    return err;
}

static int judge(const struct scene *scene, struct sstar_world *world, int err)
{
    const char *text = sstar_last_error(world), *name = sstar_operation_name(scene->operation);
    int rank = sstar_rank(world);
    if (scene->fate != DIES)
        return err ? crew_complain(rank, "%s: %d, \"%s\"", name, err, text) : 0;
    char who[32];
    snprintf(who, sizeof(who), "rank %d (host ", VICTIM);
    if (err != -ECONNRESET || !strstr(text, who) || !strstr(text, "died"))
        return crew_complain(rank, "%s: %d, \"%s\"", name, err, text);
    return 0;
}

static int be_in_the_scene(const struct sstar_config *config, void *arg)
{
    const struct scene *scene = arg;
    struct sstar_world *world;
    char error[512] = "";
    if (sstar_world_open(&world, config, error, sizeof(error)) < 0)
        return crew_complain(config->rank, "open: %s", error);
    struct sstar_collective_attr attr = {.operation = scene->operation,
                                         .algorithm = scene->algorithm};
    struct element_case it = {.operation = scene->operation, .size = SIZE, .count = COUNT};
    struct sstar_collective *plan = NULL;
    int err = sstar_collective_open(world, &attr, &plan);
    /* The dead may be no one's partner in an operation that flows one way: more rounds come. */
    for (int round = 0; !err && (round < ROUNDS || scene->fate == DIES); round++) {
        meet_fate(scene, config->rank, round);
        it.salt = (uint64_t)round;
        err = one_round(world, plan, &it);
    }
    int bad = err > 0 ? err : judge(scene, world, err);
    sstar_collective_close(plan);
    sstar_world_close(world);
    return bad;
}

static enum sstar_algorithm algorithm_for(int operation)
{
    static const enum sstar_algorithm some[SSTAR_OPERATIONS] = {
        SSTAR_HIERARCHICAL_RING,    SSTAR_CIRCULANT, SSTAR_RING, SSTAR_TREE, SSTAR_TREE,
        SSTAR_HIERARCHICAL_DOUBLING};
    return some[operation];
}

static void each_operation(enum fate fate)
{
    for (int operation = 0; operation < SSTAR_OPERATIONS; operation++) {
        struct scene scene = {(enum sstar_operation)operation, algorithm_for(operation), fate};
        struct sstar_config config;
        int results[CREW_MAX];
        crew_config(&config, SIZE);
        config.ranks_per_node = 2;
        crew_processes(&config, be_in_the_scene, &scene, results);
        for (int r = 0; r < SIZE; r++)
            assert_int_equal(results[r], fate == DIES && r == VICTIM ? 128 + SIGKILL : 0);
    }
}

static void one_dies(void **state)
{
    (void)state;
    each_operation(DIES);
}

static void one_is_slow(void **state)
{
    (void)state;
    each_operation(IS_SLOW);
}

/* Whether some rank has said in the log whom it waits for and that he is stopped. */
static bool has_been_said(const char *path)
{
    char line[1024], victim[64];
    bool found = false;
    FILE *file = fopen(path, "re");
    snprintf(victim, sizeof victim, "rank %d is stopped", VICTIM);
    while (file && !found && fgets(line, sizeof line, file))
        found = strstr(line, "waits for") && strstr(line, victim);
    if (file)
        fclose(file);
    return found;
}

/* Stopped ranks of all operations at once, since each takes its 5 s. */
static void one_is_stopped(void **state)
{
    (void)state;
    struct scene scenes[SSTAR_OPERATIONS];
    pid_t pids[SSTAR_OPERATIONS][CREW_MAX];
    char logs[SSTAR_OPERATIONS][64];
    for (int i = 0; i < SSTAR_OPERATIONS; i++) {
        struct sstar_config config;
        crew_config(&config, SIZE);
        config.ranks_per_node = 2;
        snprintf(logs[i], sizeof logs[i], "/tmp/sstar-stopped-%d-%d", (int)getpid(), i);
        snprintf(config.log_file, sizeof config.log_file, "%s", logs[i]);
        scenes[i] = (struct scene){(enum sstar_operation)i, algorithm_for(i), IS_STOPPED};
        crew_start(&config, be_in_the_scene, &scenes[i], pids[i]);
    }
    for (int i = 0; i < SSTAR_OPERATIONS; i++) {
        int status, results[CREW_MAX];
        assert_int_equal(waitpid(pids[i][VICTIM], &status, WUNTRACED), pids[i][VICTIM]);
        assert_true(WIFSTOPPED(status));
        bool said = false;
        for (uint64_t end = clock_ns() + 25ull * 1000000000; !said && clock_ns() < end;) {
            usleep(50 * 1000);
            said = has_been_said(logs[i]);
        }
        assert_int_equal(kill(pids[i][VICTIM], SIGCONT), 0);
        crew_join(pids[i], SIZE, results);
        unlink(logs[i]);
        if (!said)
            fail_msg("%s: nobody said that rank %d is stopped",
                     sstar_operation_name(scenes[i].operation), VICTIM);
        for (int r = 0; r < SIZE; r++)
            assert_int_equal(results[r], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_dies),
        cmocka_unit_test(one_is_slow),
        cmocka_unit_test(one_is_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
