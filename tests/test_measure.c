/* SPDX-License-Identifier: MIT */
/* sstar_measure_cost: figures that can be computed with, the same bits on all ranks. No figure is
 * compared with a time. */
#include "collectives/collectives.h"
#include <arpa/inet.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_RANKS = 6 };

struct shape {
    int ranks, ranks_per_node;
    struct sstar_wire wire;
    int times; /* in a row, in the same world */
};

/* What a rank answers to the test. */
struct answer {
    int err;
    struct sstar_cost cost;
};

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static struct answer measure(const struct shape *shape, int rank, int port)
{
    struct answer answer = {0};
    struct sstar_config config;
    struct sstar_world *world;
    char error[512] = "";
    answer.err = sstar_config_init(&config, error, sizeof error);
    if (!answer.err) {
        config.rank = rank;
        config.size = shape->ranks;
        config.ranks_per_node = shape->ranks_per_node;
        config.root_port = port;
        config.wire = shape->wire;
        strcpy(config.root_host, "127.0.0.1");
        strcpy(config.ib_dev, "softnic");
        snprintf(config.token, sizeof config.token, "measure-%d", port);
        answer.err = sstar_world_open(&world, &config, error, sizeof error);
    }
    if (answer.err) {
        fprintf(stderr, "rank %d: %s\n", rank, error);
        return answer;
    }
    for (int i = 0; i < shape->times && !answer.err; i++)
        answer.err = sstar_measure_cost(world, &answer.cost);
    if (answer.err)
        fprintf(stderr, "rank %d: %s\n", rank, sstar_last_error(world));
    sstar_world_close(world);
    return answer;
}

static void run(const struct shape *shape, struct answer *answers)
{
    int port = free_port(), ends[2];
    pid_t pids[MAX_RANKS];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    for (int rank = 0; rank < shape->ranks; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank])
            continue;
        struct {
            int rank;
            struct answer answer;
        } told = {rank, measure(shape, rank, port)};
        _exit(write(ends[1], &told, sizeof told) == sizeof told ? 0 : 1);
    }
    close(ends[1]);
    for (int i = 0; i < shape->ranks; i++) {
        struct {
            int rank;
            struct answer answer;
        } told;
        assert_int_equal(read(ends[0], &told, sizeof told), sizeof told);
        answers[told.rank] = told.answer;
    }
    close(ends[0]);
    for (int rank = 0; rank < shape->ranks; rank++) {
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        assert_int_equal(status, 0);
    }
}

static void sensible(const struct shape *shape)
{
    struct answer answers[MAX_RANKS] = {0};
    run(shape, answers);
    for (int rank = 0; rank < shape->ranks; rank++) {
        const struct sstar_cost *c = &answers[rank].cost;
        assert_int_equal(answers[rank].err, 0);
        assert_true(isfinite(c->alpha_us) && c->alpha_us > 0);
        assert_true(isfinite(c->gap_us) && c->gap_us > 0);
        assert_true(isfinite(c->beta_gbps) && c->beta_gbps > 0);
        assert_memory_equal(c, &answers[0].cost, sizeof *c);
    }
}

static void test_two_nodes(void **state)
{
    (void)state;
    sensible(&(struct shape){.ranks = 2, .ranks_per_node = 1, .times = 1});
}

static void test_one_node(void **state)
{
    (void)state;
    sensible(&(struct shape){.ranks = 2, .times = 1});
}

static void test_onlookers(void **state)
{
    (void)state;
    sensible(&(struct shape){.ranks = 5, .ranks_per_node = 2, .times = 1});
    sensible(&(struct shape){.ranks = 3, .ranks_per_node = 1, .times = 1});
}

static void test_shaped(void **state)
{
    (void)state;
    sensible(&(struct shape){.ranks = 2, .ranks_per_node = 1, .wire = {20, 1, 1}, .times = 1});
    sensible(&(struct shape){.ranks = 4, .ranks_per_node = 2, .wire = {120, 10, 0.1}, .times = 1});
}

static void test_again_in_one_world(void **state)
{
    (void)state;
    sensible(&(struct shape){.ranks = 3, .ranks_per_node = 2, .times = 3});
}

/* A world of one rank has no wire. */
static void test_alone(void **state)
{
    (void)state;
    struct answer answer = {0};
    run(&(struct shape){.ranks = 1, .times = 1}, &answer);
    assert_int_equal(answer.err, 0);
    assert_true(answer.cost.alpha_us == 0 && answer.cost.gap_us == 0 && answer.cost.beta_gbps == 0);
    assert_true(sstar_s_star_bytes(&answer.cost) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_nodes),          cmocka_unit_test(test_one_node),
        cmocka_unit_test(test_onlookers),          cmocka_unit_test(test_shaped),
        cmocka_unit_test(test_again_in_one_world), cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
