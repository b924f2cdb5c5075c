/* SPDX-License-Identifier: MIT */
/* The method, the same for every library: commands, checks, times. */
#include "peer.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WARMUP = 5, LEAST_ITERATIONS = 10, MOST_ITERATIONS = 20000 };
/* Rotating, a vector comes back only after so much other memory was used. */
static const size_t rotation_bytes = (size_t)96 << 20;

struct trial {
    char operation[16];
    size_t bytes; /* of the vector, or for each pair */
    double budget_us;
    bool in_place, rotate, shared, trust;
    size_t total, stride, places; /* bytes at a place, from place to place, and how many */
    char *send, *recv;
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static bool is(const struct trial *t, const char *operation)
{
    return strcmp(t->operation, operation) == 0;
}

/* ---- memory --------------------------------------------------------------------------------- */

static char *memory_take(const struct trial *t)
{
    size_t bytes = (t->places - 1) * t->stride + t->total + 64;
    void *memory = NULL;
    if (t->shared)
        memory = peer_alloc(bytes);
    else if (posix_memalign(&memory, 4096, bytes))
        memory = NULL;
    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

static void memory_give(const struct trial *t, char *memory)
{
    if (t->shared && memory)
        peer_free(memory);
    else
        free(memory);
}

static bool trial_prepare(struct trial *t)
{
    t->total = t->bytes * (is(t, "alltoall") ? (size_t)peer_size() : 1);
    /* A page and a line more: other sets of the caches each time. */
    t->stride = (t->total + 4095) / 4096 * 4096 + 64;
    t->places = t->rotate ? rotation_bytes / t->stride + 1 : 1;
    t->send = memory_take(t);
    t->recv = memory_take(t);
    return t->send && t->recv;
}

/* ---- one operation -------------------------------------------------------------------------- */

static void run(const struct trial *t, size_t i)
{
    size_t at = i % t->places * t->stride;
    const char *send = (t->in_place ? t->recv : t->send) + at;
    if (is(t, "allreduce"))
        peer_allreduce(send, t->recv + at, t->bytes / sizeof(float));
    else if (is(t, "alltoall"))
        peer_alltoall(send, t->recv + at, t->bytes);
    else
        peer_barrier();
}

static void prepare(const struct trial *t)
{
    if (is(t, "alltoall"))
        peer_alltoall_prepare(t->bytes);
}

/* Sums of small whole numbers are exact in any order. */
static float addend(int rank, size_t i)
{
    return (float)((rank + 1) * (int)(i % 13 + 1));
}

static size_t check_sums(const struct trial *t)
{
    size_t count = t->bytes / sizeof(float), wrong = 0;
    float *send = (float *)(t->in_place ? t->recv : t->send), *recv = (float *)t->recv;
    memset(recv, 0xff, count * sizeof *recv);
    for (size_t i = 0; i < count; i++)
        send[i] = addend(peer_rank(), i);
    run(t, 0);
    float ranks = (float)(peer_size() * (peer_size() + 1) / 2);
    for (size_t i = 0; i < count; i++)
        wrong += recv[i] != ranks * addend(0, i);
    memset(send, 0, count * sizeof *send);
    memset(recv, 0, count * sizeof *recv); /* sums in place stay zero */
    return wrong;
}

static unsigned char block_byte(int from, int to, size_t i)
{
    return (unsigned char)((size_t)(from * 31 + to * 7) + i);
}

static size_t check_blocks(const struct trial *t)
{
    size_t wrong = 0, n = (size_t)peer_size();
    unsigned char *send = (unsigned char *)t->send, *recv = (unsigned char *)t->recv;
    memset(recv, 0xee, t->total);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < t->bytes; i++)
            send[r * t->bytes + i] = block_byte(peer_rank(), (int)r, i);
    prepare(t);
    run(t, 0);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < t->bytes; i++)
            wrong += recv[r * t->bytes + i] != block_byte((int)r, peer_rank(), i);
    return wrong;
}

static double check(const struct trial *t)
{
    return t->trust || is(t, "barrier") ? 0
           : is(t, "allreduce")         ? (double)check_sums(t)
                                        : (double)check_blocks(t);
}

/* ---- timing --------------------------------------------------------------------------------- */

static double time_one(const struct trial *t, size_t i)
{
    prepare(t);
    peer_barrier();
    double begin = now_us();
    run(t, i);
    return now_us() - begin;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Iterations that fit the budget, from the median of the first ones: where ranks lack cores some
 * take a hundred times as long as the quickest. The same on all ranks. */
static int warm_up(const struct trial *t)
{
    double us[WARMUP];
    for (size_t i = 0; i < WARMUP; i++) {
        double begin = now_us();
        time_one(t, i);
        us[i] = now_us() - begin;
    }
    qsort(us, WARMUP, sizeof *us, compare);
    double typical = us[WARMUP / 2], n = t->budget_us / (typical > 0.05 ? typical : 0.05);
    n = n < LEAST_ITERATIONS ? LEAST_ITERATIONS : n > MOST_ITERATIONS ? MOST_ITERATIONS : n;
    char text[PEER_COMMAND_BYTES];
    snprintf(text, sizeof text, "%d", (int)n);
    peer_tell(text);
    int iterations = atoi(text);
    for (int i = 0; i < iterations / 10; i++)
        time_one(t, (size_t)i);
    return iterations;
}

static void answer_time(const struct trial *t)
{
    int n = warm_up(t);
    double *times = calloc((size_t)n, sizeof *times);
    if (!times)
        abort();
    for (int i = 0; i < n; i++)
        times[i] = time_one(t, (size_t)i);
    peer_greatest(times, n);
    if (peer_rank() == 0) {
        qsort(times, (size_t)n, sizeof *times, compare);
        printf("= %.4f %d\n", times[n / 2], n);
    }
    free(times);
}

static bool trial_parse(struct trial *t, const char *command)
{
    char flags[4][16] = {"", "", "", ""};
    double ms;
    if (sscanf(command, "%15s %zu %lf %15s %15s %15s %15s", t->operation, &t->bytes, &ms, flags[0],
               flags[1], flags[2], flags[3]) < 3)
        return false;
    t->budget_us = ms * 1e3;
    for (int i = 0; i < 4; i++) {
        t->in_place |= strcmp(flags[i], "in-place") == 0;
        t->rotate |= strcmp(flags[i], "rotate") == 0;
        t->shared |= strcmp(flags[i], "shared") == 0;
        t->trust |= strcmp(flags[i], "trust") == 0;
    }
    return is(t, "allreduce") || is(t, "alltoall") || is(t, "barrier");
}

static void answer_trial(const char *command)
{
    struct trial t = {0};
    double failed = !trial_parse(&t, command) || !trial_prepare(&t), wrong = 0;
    peer_greatest(&failed, 1);
    char verdict[PEER_COMMAND_BYTES];
    if (!failed)
        wrong = check(&t);
    peer_greatest(&wrong, 1);
    snprintf(verdict, sizeof verdict, "%s", failed || wrong ? "bad" : "good");
    peer_tell(verdict); /* only rank 0 is sure to know */
    if (strcmp(verdict, "good") == 0)
        answer_time(&t);
    else if (peer_rank() == 0)
        printf("! %s: %s\n", failed ? "cannot do this, or has no such memory" : "wrong results",
               command);
    peer_barrier(); /* nobody takes memory away that another still reads */
    memory_give(&t, t.send);
    memory_give(&t, t.recv);
}

/* ---- commands ------------------------------------------------------------------------------- */

static void answer_machine(const char *command)
{
    size_t bytes;
    if (peer_rank() != 0)
        return;
    if (sscanf(command, "stream %zu", &bytes) == 1)
        printf("= %.3f 1\n", machine_stream_gbps(bytes));
    else
        printf("= %.1f 1\n", machine_line_ns());
}

/* False: no more. */
static bool answer(char *command)
{
    if (peer_rank() == 0) {
        if (!fgets(command, PEER_COMMAND_BYTES, stdin))
            strcpy(command, "quit");
        command[strcspn(command, "\n")] = '\0';
    }
    peer_tell(command);
    if (strcmp(command, "quit") == 0)
        return false;
    if (strcmp(command, "line") == 0 || strncmp(command, "stream ", 7) == 0)
        answer_machine(command);
    else
        answer_trial(command);
    fflush(stdout);
    return true;
}

static void pin(void)
{
    cpu_set_t set;
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(&set);
    CPU_SET(peer_rank() % cores, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        perror("cannot keep a rank to a core");
}

int main(int argc, char **argv)
{
    peer_open(&argc, &argv);
    if (argc > 1 && strcmp(argv[1], "--pin") == 0)
        pin();
    if (peer_rank() == 0)
        printf("= %d 1\n", peer_size());
    fflush(stdout);
    char command[PEER_COMMAND_BYTES] = "";
    while (answer(command))
        ;
    peer_close();
    return 0;
}
