/* SPDX-License-Identifier: MIT */
/* What a cache line takes from core to core, and what two cores can move through memory. Between
 * the first two cores that this process may use; with one core only, 0. */
#include "peer.h"

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THROWS = 200, ROUNDS = 50, COPIES = 5 };

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return values[n / 2];
}

/* ---- two threads, each on a core of its own ------------------------------------------------- */

struct pair {
    int cores[2];
    cpu_set_t before;
    alignas(64) atomic_int word;
    alignas(64) atomic_int begun; /* copies that both have come to */
    char *from[2], *to[2];
    size_t bytes;
    double times[COPIES][2][2]; /* begin and end of each */
};

static void keep_to(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static bool find_cores(struct pair *pair)
{
    int found = 0;
    sched_getaffinity(0, sizeof pair->before, &pair->before);
    /* A rank that is kept to one core looks at the whole machine. */
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    sched_getaffinity(0, sizeof all, &all);
    for (int core = 0; core < CPU_SETSIZE && found < 2; core++)
        if (CPU_ISSET(core, &all))
            pair->cores[found++] = core;
    return found == 2;
}

static bool start(struct pair *pair, void *(*other)(void *), pthread_t *thread)
{
    if (!find_cores(pair) || pthread_create(thread, NULL, other, pair)) {
        sched_setaffinity(0, sizeof pair->before, &pair->before);
        return false;
    }
    keep_to(pair->cores[0]);
    return true;
}

static void end(struct pair *pair, pthread_t thread)
{
    pthread_join(thread, NULL);
    sched_setaffinity(0, sizeof pair->before, &pair->before);
}

/* ---- a cache line --------------------------------------------------------------------------- */

static void wait_for(atomic_int *word, int value)
{
    while (atomic_load_explicit(word, memory_order_acquire) < value)
#ifdef __x86_64__
        __builtin_ia32_pause();
#else
        ;
#endif
}

static void *throw_back(void *arg)
{
    struct pair *pair = arg;
    keep_to(pair->cores[1]);
    for (int i = 0; i < THROWS * ROUNDS; i++) {
        wait_for(&pair->word, 2 * i + 1);
        atomic_store_explicit(&pair->word, 2 * i + 2, memory_order_release);
    }
    return NULL;
}

double machine_line_ns(void)
{
    struct pair *pair = aligned_alloc(64, (sizeof *pair + 63) / 64 * 64);
    double times[ROUNDS];
    pthread_t thread;
    if (!pair)
        return 0;
    memset(pair, 0, sizeof *pair);
    if (!start(pair, throw_back, &thread)) {
        free(pair);
        return 0;
    }
    for (int round = 0, i = 0; round < ROUNDS; round++) {
        double begin = now_ns();
        for (int k = 0; k < THROWS; k++, i++) {
            atomic_store_explicit(&pair->word, 2 * i + 1, memory_order_release);
            wait_for(&pair->word, 2 * i + 2);
        }
        times[round] = (now_ns() - begin) / THROWS / 2;
    }
    end(pair, thread);
    free(pair);
    return median(times, ROUNDS);
}

/* ---- a stream ------------------------------------------------------------------------------- */

#ifdef __x86_64__
#include <emmintrin.h>
/* `bytes`: a multiple of 64. */
static void copy_past_caches(char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64)
        for (size_t i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(to + at + i),
                             _mm_load_si128((const __m128i *)(from + at + i)));
    _mm_sfence();
}
#else
static void copy_past_caches(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif

static void copies(struct pair *pair, int me)
{
    for (int i = 0; i < COPIES; i++) {
        atomic_fetch_add(&pair->begun, 1);
        wait_for(&pair->begun, 2 * i + 2);
        pair->times[i][me][0] = now_ns();
        copy_past_caches(pair->to[me], pair->from[me], pair->bytes);
        pair->times[i][me][1] = now_ns();
    }
}

static void *copy_too(void *arg)
{
    struct pair *pair = arg;
    keep_to(pair->cores[1]);
    copies(pair, 1);
    return NULL;
}

static double fastest(const struct pair *pair)
{
    double best = 0;
    for (int i = 0; i < COPIES; i++) {
        const double(*t)[2] = pair->times[i];
        double begin = t[0][0] < t[1][0] ? t[0][0] : t[1][0];
        double done = t[0][1] > t[1][1] ? t[0][1] : t[1][1];
        double gbps = 4 * (double)pair->bytes / (done - begin);
        best = gbps > best ? gbps : best;
    }
    return best;
}

double machine_stream_gbps(size_t bytes)
{
    struct pair *pair = aligned_alloc(64, (sizeof *pair + 63) / 64 * 64);
    bytes = (bytes + 4095) / 4096 * 4096;
    char *memory = aligned_alloc(4096, 4 * bytes);
    double gbps = 0;
    pthread_t thread;
    if (pair && memory) {
        memset(pair, 0, sizeof *pair);
        memset(memory, 1, 4 * bytes);
        pair->bytes = bytes;
        for (size_t i = 0; i < 2; i++) {
            pair->from[i] = memory + 2 * i * bytes;
            pair->to[i] = pair->from[i] + bytes;
        }
        if (start(pair, copy_too, &thread)) {
            copies(pair, 0);
            end(pair, thread);
            gbps = fastest(pair);
        }
    }
    free(memory);
    free(pair);
    return gbps;
}
