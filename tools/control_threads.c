/* SPDX-License-Identifier: MIT */
/* Threads of `sstar control-path`: where they run, and how far apart two cores are. */
#include "tools/control_path.h"
#include "transport/launcher.h"
#include "transport/world.h"
#include <errno.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { LINES = 24, TURNS = 100, ROUNDS = 80 }; /* short ones: some are not interrupted */

static int nth_cpu(const cpu_set_t *set, int n)
{
    int count = CPU_COUNT(set);
    n %= count > 0 ? count : 1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set) && n-- == 0)
            return cpu;
    return 0;
}

/* The cores for callers: all, but for those that proxies have, if any are left. */
static cpu_set_t caller_cpus(const struct path_test *test, const struct path_way *way)
{
    cpu_set_t set = test->world->allowed, rest = set;
    int cpus[PATH_MOST_CALLERS];
    int n = config_cpus(test->world->config.proxy_cpus, cpus, PATH_MOST_CALLERS);
    if (way->control == SSTAR_CONTROL_DIRECT)
        return set;
    for (int i = 0; i < n && i < (int)way->proxies; i++)
        CPU_CLR(cpus[i], &rest);
    return CPU_COUNT(&rest) > 0 ? rest : set;
}

static int thread_on(pthread_t *thread, int cpu, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_attr_init(&attr);
    pthread_attr_setaffinity_np(&attr, sizeof(one), &one);
    int err = pthread_create(thread, &attr, run, arg);
    pthread_attr_destroy(&attr);
    return -err;
}

int path_callers_run(struct path_test *test, const struct path_way *way, void *(*caller)(void *),
                     void *arguments, size_t size)
{
    pthread_t threads[PATH_MOST_CALLERS];
    cpu_set_t cpus = caller_cpus(test, way);
    uint32_t started = 0;
    int err = 0;
    for (; started < way->callers && !err; started += !err)
        err = thread_on(&threads[started], nth_cpu(&cpus, (int)started), caller,
                        (char *)arguments + started * size);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return err;
}

/* ---- cache lines that go to and fro ---- */

/* How long one takes depends on where the chip keeps account of it: half as long again for some. So
 * many are tried, each by the mean of its middle half, as messages are. */
struct lines {
    struct {
        _Alignas(4096) _Atomic uint32_t turn;
        char apart[4096]; /* neither two of them in one set of a cache */
    } line[LINES];
};
struct player {
    struct lines *lines;
    uint32_t parity;
    double ns[LINES][ROUNDS]; /* of one turn */
};

static void *play(void *arg)
{
    struct player *p = arg;
    for (int at = 0; at < LINES; at++) {
        _Atomic uint32_t *line = &p->lines->line[at].turn + 16 * at;
        uint32_t turn = p->parity;
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t begun = clock_ns();
            for (int i = 0; i < TURNS; i++, turn += 2) {
                for (uint32_t spins = 0; atomic_load(line) != turn; spins++)
                    if (spins > 100000)
                        sched_yield();
                atomic_store(line, turn + 1);
            }
            p->ns[at][round] = (double)(clock_ns() - begun) / (2.0 * TURNS);
        }
    }
    return NULL;
}

static double play_both(const cpu_set_t *allowed, struct player *players)
{
    pthread_t threads[2];
    double sum = 0;
    if (thread_on(&threads[0], nth_cpu(allowed, 0), play, &players[0]))
        return 0;
    if (thread_on(&threads[1], nth_cpu(allowed, CPU_COUNT(allowed) - 1), play, &players[1]))
        play(&players[1]); /* somebody has to */
    else
        pthread_join(threads[1], NULL);
    pthread_join(threads[0], NULL);
    for (int at = 0; at < LINES; at++)
        sum += path_middle_half(players[0].ns[at], ROUNDS);
    return sum / LINES;
}

double path_line_ns(const struct path_test *test)
{
    const cpu_set_t *allowed = &test->world->allowed;
    struct lines *lines = aligned_alloc(alignof(struct lines), sizeof(*lines));
    struct player *players = calloc(2, sizeof(*players));
    double ns = 0;
    if (lines && players && CPU_COUNT(allowed) > 1) {
        memset(lines, 0, sizeof(*lines));
        for (uint32_t i = 0; i < 2; i++) {
            players[i].lines = lines;
            players[i].parity = i;
        }
        ns = play_both(allowed, players);
    }
    free(lines);
    free(players);
    return ns;
}
