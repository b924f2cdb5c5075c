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

enum { SIZE = 4, COUNT = 4000, ROUNDS = 6, FATAL_ROUND = 3, SLOW_US = 100 * 1000, TOLD_S = 5 };

enum fate { DIES, IS_STOPPED, IS_SLOW };

struct scene {
    enum sstar_operation operation;
    enum sstar_algorithm algorithm;
    enum fate fate;
    int victim;
};

/* What befalls the victim before a round. */
static void meet_fate(const struct scene *scene, int rank, int round)
{
    if (rank != scene->victim)
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
    snprintf(who, sizeof(who), "rank %d (host ", scene->victim);
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

/* ---- scenes ------------------------------------------------------------------------------------
 */

enum { MOST_SCENES = SSTAR_OPERATIONS * SSTAR_ALGORITHMS * SIZE };

static bool full(void)
{
    const char *text = getenv("SSTAR_TEST_FULL");
    return text && strcmp(text, "1") == 0;
}

static bool is_in_sample(enum sstar_operation operation, enum sstar_algorithm algorithm, int victim)
{
    static const enum sstar_algorithm some[SSTAR_OPERATIONS] = {
        SSTAR_HIERARCHICAL_RING,     SSTAR_HIERARCHICAL_CIRCULANT, SSTAR_RING, SSTAR_TREE,
        SSTAR_HIERARCHICAL_DOUBLING, SSTAR_HIERARCHICAL_DOUBLING};
    return algorithm == some[operation] && victim == 2;
}

/* Each operation once; with SSTAR_TEST_FULL=1 by each of its algorithms, and with each rank as the
 * victim. */
static int scenes_of(enum fate fate, struct scene scenes[MOST_SCENES])
{
    int n = 0;
    for (int o = 0; o < SSTAR_OPERATIONS; o++)
        for (int a = SSTAR_RING; a < SSTAR_ALGORITHMS; a++)
            for (int victim = 0; victim < SIZE; victim++) {
                enum sstar_operation operation = (enum sstar_operation)o;
                enum sstar_algorithm algorithm = (enum sstar_algorithm)a;
                if (algorithm == SSTAR_HIERARCHICAL ||
                    !sstar_algorithm_exists(operation, algorithm))
                    continue;
                if (full() || is_in_sample(operation, algorithm, victim))
                    scenes[n++] = (struct scene){operation, algorithm, fate, victim};
            }
    return n;
}

static void start(const struct scene *scene, const char *log, pid_t pids[CREW_MAX])
{
    struct sstar_config config;
    crew_config(&config, SIZE);
    config.ranks_per_node = 2;
    snprintf(config.log_file, sizeof config.log_file, "%.99s", log);
    crew_start(&config, be_in_the_scene, (void *)scene, pids);
}

static void expect(const struct scene *scene, const int results[CREW_MAX])
{
    for (int r = 0; r < SIZE; r++)
        if (results[r] != (scene->fate == DIES && r == scene->victim ? 128 + SIGKILL : 0))
            fail_msg("%s by %s, rank %d the victim: rank %d ended with %d",
                     sstar_operation_name(scene->operation), sstar_algorithm_name(scene->algorithm),
                     scene->victim, r, results[r]);
}

/* ---- dead, slow --------------------------------------------------------------------------------
 */

static void each(enum fate fate)
{
    struct scene scenes[MOST_SCENES];
    int n = scenes_of(fate, scenes);
    for (int i = 0; i < n; i++) {
        pid_t pids[CREW_MAX];
        int results[CREW_MAX];
        siginfo_t info;
        start(&scenes[i], "", pids);
        assert_int_equal(waitid(P_PID, (id_t)pids[scenes[i].victim], &info, WEXITED | WNOWAIT), 0);
        uint64_t dead_ns = clock_ns();
        crew_join(pids, SIZE, results);
        expect(&scenes[i], results);
        if (fate == DIES && clock_ns() - dead_ns > TOLD_S * 1000000000ull)
            fail_msg("%s by %s: told %.1f s after rank %d died",
                     sstar_operation_name(scenes[i].operation),
                     sstar_algorithm_name(scenes[i].algorithm),
                     (double)(clock_ns() - dead_ns) / 1e9, scenes[i].victim);
    }
}

static void one_dies(void **state)
{
    (void)state;
    each(DIES);
}

static void one_is_slow(void **state)
{
    (void)state;
    each(IS_SLOW);
}

/* ---- stopped -----------------------------------------------------------------------------------
 */

/* Whether some rank has said in the log whom it waits for and that he is stopped. */
static bool has_been_said(const char *path, int victim)
{
    char line[1024], text[64];
    bool found = false;
    FILE *file = fopen(path, "re");
    snprintf(text, sizeof text, "rank %d is stopped", victim);
    while (file && !found && fgets(line, sizeof line, file))
        found = strstr(line, "waits for") && strstr(line, text);
    if (file)
        fclose(file);
    return found;
}

static void await_word(const struct scene *scene, pid_t victim, const char *log)
{
    int status;
    assert_int_equal(waitpid(victim, &status, WUNTRACED), victim);
    assert_true(WIFSTOPPED(status));
    bool said = false;
    for (uint64_t end = clock_ns() + 25ull * 1000000000; !said && clock_ns() < end;) {
        usleep(50 * 1000);
        said = has_been_said(log, scene->victim);
    }
    assert_int_equal(kill(victim, SIGCONT), 0);
    if (!said)
        fail_msg("%s by %s: nobody said that rank %d is stopped",
                 sstar_operation_name(scene->operation), sstar_algorithm_name(scene->algorithm),
                 scene->victim);
}

/* So many at once, since each takes its 5 s. */
enum { AT_ONCE = 8 };

static void some_are_stopped(const struct scene *scenes, int n)
{
    pid_t pids[AT_ONCE][CREW_MAX];
    char logs[AT_ONCE][64];
    for (int i = 0; i < n; i++) {
        snprintf(logs[i], sizeof logs[i], "/tmp/sstar-stopped-%d-%d", (int)getpid(), i);
        start(&scenes[i], logs[i], pids[i]);
    }
    for (int i = 0; i < n; i++) {
        int results[CREW_MAX];
        await_word(&scenes[i], pids[i][scenes[i].victim], logs[i]);
        crew_join(pids[i], SIZE, results);
        unlink(logs[i]);
        expect(&scenes[i], results);
    }
}

static void one_is_stopped(void **state)
{
    (void)state;
    struct scene scenes[MOST_SCENES];
    int n = scenes_of(IS_STOPPED, scenes);
    for (int i = 0; i < n; i += AT_ONCE)
        some_are_stopped(scenes + i, n - i < AT_ONCE ? n - i : AT_ONCE);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_dies),
        cmocka_unit_test(one_is_slow),
        cmocka_unit_test(one_is_stopped),
    };
    print_message("%s\n", full() ? "every algorithm, every rank"
                                 : "a sample; every algorithm and rank with SSTAR_TEST_FULL=1");
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
