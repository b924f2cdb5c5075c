/* SPDX-License-Identifier: MIT */
/* The event loop, over io_uring (where the kernel lets us) and over ppoll: the same behaviour. */
#include "tests/loops.h"
#include "transport/loop.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t ample_us = 5 * 1000 * 1000; /* never reached where something is ready */

struct pipe_end {
    struct loop *loop;
    int fds[2];
    int calls;
    int read_bytes;       /* at each call */
    struct pipe_end *end; /* unwatched at a call, if any */
};

static void ready(void *arg)
{
    struct pipe_end *p = arg;
    p->calls++;
    char bytes[64];
    if (p->read_bytes)
        assert_int_equal(read(p->fds[0], bytes, (size_t)p->read_bytes), p->read_bytes);
    if (p->end)
        loop_unwatch(p->loop, p->end->fds[0]);
}

static void pipe_open(struct pipe_end *p, struct loop *loop)
{
    *p = (struct pipe_end){.loop = loop, .read_bytes = 1};
    assert_int_equal(pipe2(p->fds, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(loop_watch(loop, p->fds[0], POLLIN, ready, p), 0);
}

static void pipe_close(struct pipe_end *p)
{
    loop_unwatch(p->loop, p->fds[0]);
    close(p->fds[0]);
    close(p->fds[1]);
}

static void put(struct pipe_end *p, const char *text)
{
    assert_int_equal(write(p->fds[1], text, strlen(text)), (ssize_t)strlen(text));
}

/* Sleep until `calls` calls have come. */
static void sleep_for(struct loop *loop, const struct pipe_end *p, int calls)
{
    for (int i = 0; i < 100 && p->calls < calls; i++)
        assert_true(loop_sleep(loop, ample_us) >= 0);
    assert_int_equal(p->calls, calls);
}

static struct loop *open_over(void **state)
{
    struct loop *loop;
    assert_int_equal(loop_open(&loop, *(enum loop_choice *)*state, NULL), 0);
    return loop;
}

static void test_backend(void **state)
{
    struct loop *loop = open_over(state);
    if (*(enum loop_choice *)*state == LOOP_PPOLL)
        assert_string_equal(loop_backend(loop), "ppoll");
    else
        print_message("the automatic choice is %s\n", loop_backend(loop));
    loop_close(loop);
}

static void test_nothing_ready(void **state)
{
    struct loop *loop = open_over(state);
    assert_int_equal(loop_poll(loop), 0);
    assert_int_equal(loop_sleep(loop, 1000), 0);
    struct pipe_end p;
    pipe_open(&p, loop);
    assert_int_equal(loop_poll(loop), 0);
    assert_int_equal(loop_sleep(loop, 0), 0);
    assert_int_equal(p.calls, 0);
    pipe_close(&p);
    loop_close(loop);
}

static void test_level_triggered(void **state)
{
    struct loop *loop = open_over(state);
    struct pipe_end p;
    pipe_open(&p, loop);
    put(&p, "abc"); /* one byte is read at a call, so it stays ready for three */
    sleep_for(loop, &p, 3);
    assert_int_equal(loop_sleep(loop, 1000), 0);
    put(&p, "d");
    sleep_for(loop, &p, 4);
    assert_int_equal(loop_poll(loop), 0);
    pipe_close(&p);
    loop_close(loop);
}

static void test_poll_alone_sees_events(void **state)
{
    struct loop *loop = open_over(state);
    struct pipe_end p;
    pipe_open(&p, loop);
    put(&p, "x");
    for (long turns = 0; p.calls == 0 && turns < 100000000; turns++)
        assert_true(loop_poll(loop) >= 0);
    assert_int_equal(p.calls, 1);
    pipe_close(&p);
    loop_close(loop);
}

static void test_unwatch(void **state)
{
    struct loop *loop = open_over(state);
    struct pipe_end p;
    pipe_open(&p, loop);
    assert_int_equal(loop_watch(loop, p.fds[0], POLLIN, ready, &p), -EEXIST);
    assert_int_equal(loop_watch(loop, -1, POLLIN, ready, &p), -EBADF);
    put(&p, "x"); /* an event is there, or under way, when the watch ends */
    loop_unwatch(loop, p.fds[0]);
    loop_unwatch(loop, p.fds[0]);
    loop_unwatch(loop, -1);
    assert_true(loop_sleep(loop, 1000) >= 0);
    assert_int_equal(p.calls, 0);
    assert_int_equal(loop_rewatch(loop, p.fds[0], POLLIN), -ENOENT);
    /* the same fd again: the old event must not count, the new one must */
    assert_int_equal(loop_watch(loop, p.fds[0], POLLIN, ready, &p), 0);
    sleep_for(loop, &p, 1);
    pipe_close(&p);
    loop_close(loop);
}

/* Two are ready, and whichever is called first ends the watch of the other. */
static void test_unwatch_from_a_call(void **state)
{
    struct loop *loop = open_over(state);
    struct pipe_end a, b;
    pipe_open(&a, loop);
    pipe_open(&b, loop);
    a.end = &b;
    b.end = &a;
    put(&a, "aa");
    put(&b, "bb");
    for (int i = 0; i < 10 && a.calls + b.calls == 0; i++)
        assert_true(loop_sleep(loop, ample_us) >= 0);
    struct pipe_end *first = a.calls ? &a : &b;
    first->end = first; /* from now on its own */
    sleep_for(loop, first, 2);
    assert_int_equal(loop_sleep(loop, 1000), 0);
    assert_int_equal(a.calls + b.calls, 2);
    pipe_close(&a);
    pipe_close(&b);
    loop_close(loop);
}

static void test_rewatch(void **state)
{
    struct loop *loop = open_over(state);
    struct pipe_end p = {.loop = loop};
    assert_int_equal(pipe2(p.fds, O_CLOEXEC | O_NONBLOCK), 0);
    /* the writing end is always ready to be written, never to be read */
    assert_int_equal(loop_watch(loop, p.fds[1], POLLIN, ready, &p), 0);
    assert_int_equal(loop_sleep(loop, 1000), 0);
    assert_int_equal(loop_rewatch(loop, p.fds[1], POLLIN | POLLOUT), 0);
    sleep_for(loop, &p, 1);
    assert_int_equal(loop_rewatch(loop, p.fds[1], POLLIN), 0);
    loop_sleep(loop, 1000); /* one event may have been under way */
    int calls = p.calls;
    assert_int_equal(loop_sleep(loop, 1000), 0);
    assert_int_equal(p.calls, calls);
    loop_unwatch(loop, p.fds[1]);
    close(p.fds[0]);
    close(p.fds[1]);
    loop_close(loop);
}

static void test_end_of_stream(void **state)
{
    struct loop *loop = open_over(state);
    struct pipe_end p;
    pipe_open(&p, loop);
    p.read_bytes = 0;
    close(p.fds[1]);
    p.fds[1] = -1;
    sleep_for(loop, &p, 1);
    sleep_for(loop, &p, 2); /* it stays ready */
    pipe_close(&p);
    loop_close(loop);
}

static void test_many(void **state)
{
    enum { MANY = 200 };
    struct loop *loop = open_over(state);
    struct pipe_end p[MANY];
    for (int round = 0; round < 3; round++) { /* places are used again */
        for (int i = 0; i < MANY; i++)
            pipe_open(&p[i], loop);
        for (int i = 0; i < MANY; i++)
            put(&p[i], "x");
        for (int i = 0; i < MANY; i++)
            sleep_for(loop, &p[i], 1);
        for (int i = 0; i < MANY; i++)
            pipe_close(&p[i]);
    }
    assert_int_equal(loop_sleep(loop, 1000), 0);
    loop_close(loop);
}

static void *watch_and_leave(void *arg)
{
    pipe_open(arg, ((struct pipe_end *)arg)->loop);
    return NULL;
}

/* A world belongs to one thread at a time, not to one for ever: what a thread watched that is gone
 * since is still watched. */
static void test_another_thread(void **state)
{
    struct loop *loop = open_over(state);
    struct pipe_end p = {.loop = loop};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, watch_and_leave, &p), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    put(&p, "x");
    sleep_for(loop, &p, 1);
    put(&p, "x");
    sleep_for(loop, &p, 2);
    pipe_close(&p);
    loop_close(loop);
}

/* A sandbox that lets us set up a ring and not use it: then the loop is over ppoll. */
static void test_ring_refused_in_use(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
        struct loop *loop;
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
            _exit(77); /* no filters here, so nothing to see */
        if (loop_open(&loop, LOOP_AUTOMATIC, NULL) < 0)
            _exit(1);
        _exit(strcmp(loop_backend(loop), "ppoll") == 0 ? 0 : 2);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_close(void **state)
{
    struct loop *loop = open_over(state);
    struct pipe_end p;
    pipe_open(&p, loop);
    put(&p, "x");
    loop_close(loop); /* with a watch under way */
    loop_close(NULL);
    close(p.fds[0]);
    close(p.fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_refused_in_use), /* before there are threads */
        OVER_BOTH_LOOPS(test_backend),
        OVER_BOTH_LOOPS(test_nothing_ready),
        OVER_BOTH_LOOPS(test_level_triggered),
        OVER_BOTH_LOOPS(test_poll_alone_sees_events),
        OVER_BOTH_LOOPS(test_unwatch),
        OVER_BOTH_LOOPS(test_unwatch_from_a_call),
        OVER_BOTH_LOOPS(test_rewatch),
        OVER_BOTH_LOOPS(test_end_of_stream),
        OVER_BOTH_LOOPS(test_many),
        OVER_BOTH_LOOPS(test_another_thread),
        OVER_BOTH_LOOPS(test_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
