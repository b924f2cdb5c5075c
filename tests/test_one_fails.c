/* SPDX-License-Identifier: MIT */
/* One rank cannot do its part of a collective opening: all are told of it while they still wait,
 * and not when that rank leaves, and all say why. */
#include "tests/ranks.h"
#include "transport/world.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { SIZE = 4, VICTIM = 1 };

/* No file can be opened any more in this process. */
static int take_descriptors(void)
{
    struct rlimit limit;
    int next = dup(STDIN_FILENO);
    if (next < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return -1;
    close(next);
    limit.rlim_cur = (rlim_t)next;
    return setrlimit(RLIMIT_NOFILE, &limit);
}

/* The victim must not leave before all were told. */
static int told(struct sstar_world *world, int err, const char *why)
{
    CHECK(err < 0);
    CHECK(sstar_barrier(world) < 0);
    CHECK(world->failed < 0);
    CHECK(strstr(sstar_last_error(world), "rank 1 ") != NULL);
    CHECK(strstr(sstar_last_error(world), why) != NULL);
    return 0;
}

/* After the ranks have told each other what their links are. */
static int without_its_proxy(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peers[SIZE], n = 0;
    for (int rank = 0; rank < SIZE; rank++)
        if (rank != sstar_rank(world))
            peers[n++] = rank;
    world->config.control = SSTAR_CONTROL_DIRECT;
    if (sstar_rank(world) == VICTIM) {
        world->config.control = SSTAR_CONTROL_PROXY;
        world->config.proxy_threads = 1;
        strcpy(world->config.proxy_cpus, "1023"); /* which is not there */
    }
    struct sstar_links *links = NULL;
    struct sstar_link_attr attr = {.puts = 1};
    int err = sstar_links_open(world, peers, n, &attr, &links);
    return told(world, err, "cannot start proxy");
}

static void test_proxy(void **state)
{
    (void)state;
    ranks_expect(&(struct ranks){.size = SIZE, .ranks_per_node = 1, .body = without_its_proxy});
}

/* A node of one rank: the others look at the words of their own nodes only. */
static int without_words(struct sstar_world *world, void *arg)
{
    (void)arg;
    if (sstar_rank(world) == VICTIM)
        CHECK(take_descriptors() == 0);
    return told(world, sstar_fast_barrier(world), "ulimit -n");
}

static void test_barrier(void **state)
{
    (void)state;
    ranks_expect(&(struct ranks){
        .size = SIZE, .ranks_per_node = 1, .processes = true, .body = without_words});
    ranks_expect(&(struct ranks){
        .size = SIZE, .ranks_per_node = 2, .processes = true, .body = without_words});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_proxy),
                                       cmocka_unit_test(test_barrier)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
