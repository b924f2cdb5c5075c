/* SPDX-License-Identifier: MIT */
/* The one wait: what it says, when it gives up, whom it does not blame. Time is moved by hand: the
 * waiter's own marks are set back, so nothing here depends on how fast the machine is. */
#include "transport/control.h"
#include "transport/wait.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t second = 1000000000u;

struct fixture {
    struct sstar_world world;
    struct rank_info ranks[4];
};

/* Rank 1 of 4, alone in the test: without a control plane, logging to a file in memory. */
static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    f->world.rank = 1;
    f->world.size = 4;
    f->world.cores = 2;
    f->world.ranks_on_host = 1;
    f->world.ranks = f->ranks;
    f->world.config.timeout_s = 60;
    f->world.log = (struct log){
        .level = SSTAR_LOG_WARN, .fd = memfd_create("log", MFD_CLOEXEC), .rank = 1, .host = "here"};
    for (int r = 0; r < 4; r++)
        f->ranks[r] = (struct rank_info){.pid = 100000000 + r, .host = "there"};
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    close(f->world.log.fd);
    free(f);
    return 0;
}

static void read_log(struct fixture *f, char *text, size_t size)
{
    ssize_t n = pread(f->world.log.fd, text, size - 1, 0);
    text[n > 0 ? n : 0] = '\0';
}

/* Steps until one has looked at the clock. */
static int step_to_look(struct waiter *w)
{
    uint64_t before = w->looked_ns;
    for (int i = 0; i < 1000; i++) {
        int err = wait_step(w);
        if (err < 0 || w->looked_ns != before)
            return err;
    }
    fail_msg("1000 steps without a look at the clock");
    return 0;
}

/* As if `seconds` of waiting had passed, in steps short enough to be ours. */
static void pretend(struct waiter *w, unsigned seconds)
{
    w->started_ns -= seconds * second;
    w->deadline_ns -= seconds * second;
}

static void test_quiet_at_first(void **state)
{
    struct fixture *f = *state;
    struct waiter w = wait_begin(&f->world, "a credit", 2, 17);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(wait_step(&w), 0);
    char text[512];
    read_log(f, text, sizeof(text));
    assert_string_equal(text, "");
}

static void test_warns_once(void **state)
{
    struct fixture *f = *state;
    struct waiter w = wait_begin(&f->world, "allreduce chunk", 2, 17);
    assert_int_equal(step_to_look(&w), 0);
    pretend(&w, 5);
    assert_int_equal(step_to_look(&w), 0);
    char text[2048];
    read_log(f, text, sizeof(text));
    assert_non_null(strstr(text, "rank 1 waits for rank 2 (host there, pid 100000002): allreduce "
                                 "chunk (sequence 17), 5 s so far\n"));
    size_t length = strlen(text);
    pretend(&w, 5);
    assert_int_equal(step_to_look(&w), 0);
    read_log(f, text, sizeof(text));
    assert_int_equal(strlen(text), length);
    /* something moved: the next five seconds are new ones */
    wait_progress(&w);
    assert_int_equal(step_to_look(&w), 0);
    read_log(f, text, sizeof(text));
    assert_int_equal(strlen(text), length);
    pretend(&w, 6);
    assert_int_equal(step_to_look(&w), 0);
    read_log(f, text, sizeof(text));
    assert_non_null(strstr(text + length, "6 s so far"));
}

static void test_timeouts(void **state)
{
    (void)state;
    assert_int_equal(timeout_ns(0.001), 1000000);
    assert_int_equal(timeout_ns(1e7), 10000000ull * second);
    assert_int_equal(timeout_ns(-1), 0);
    assert_int_equal(timeout_ns((double)NAN), 0);
    const double long_s[] = {1e10, 1e11, 1e300, (double)INFINITY};
    for (size_t i = 0; i < sizeof long_s / sizeof *long_s; i++) {
        uint64_t now = clock_ns(), ns = timeout_ns(long_s[i]);
        assert_true(ns > 3600ull * 24 * 365 * 100 * second);
        assert_true(now + 2 * ns > now); /* rendezvous.c adds it twice */
    }
}

/* For ever is longer than any time, and not none at all. */
static void test_waits_for_ever(void **state)
{
    struct fixture *f = *state;
    f->world.config.timeout_s = (double)INFINITY;
    struct waiter w = wait_begin(&f->world, "a credit", 3, 4);
    assert_int_equal(step_to_look(&w), 0);
    pretend(&w, 1000000);
    assert_int_equal(step_to_look(&w), 0);
    assert_int_equal(f->world.failed, 0);
}

static void test_gives_up(void **state)
{
    struct fixture *f = *state;
    struct waiter w = wait_begin(&f->world, "a credit", 3, 4);
    assert_int_equal(step_to_look(&w), 0);
    pretend(&w, 59);
    assert_int_equal(step_to_look(&w), 0);
    pretend(&w, 1);
    assert_int_equal(step_to_look(&w), -ETIMEDOUT);
    assert_int_equal(f->world.failed, -ETIMEDOUT);
    const char *text = sstar_last_error(&f->world);
    assert_non_null(strstr(text, "rank 1 waits for rank 3"));
    assert_non_null(strstr(text, "a credit (sequence 4)"));
    assert_non_null(strstr(text, "SSTAR_TIMEOUT is 60 s"));
    /* from now on every wait ends */
    struct waiter other = wait_begin(&f->world, "a message", -1, 0);
    assert_int_equal(step_to_look(&other), -ETIMEDOUT);
    assert_int_equal(wait_sleep(&other), -ETIMEDOUT);
}

static void test_nobody_in_particular(void **state)
{
    struct fixture *f = *state;
    struct waiter w = wait_begin(&f->world, "the window", -1, 9);
    assert_int_equal(wait_sleep(&w), 0);
    pretend(&w, 61);
    assert_int_equal(wait_sleep(&w), -ETIMEDOUT);
    assert_non_null(strstr(sstar_last_error(&f->world), "rank 1 waits for the others: the window"));
}

/* A gap between two looks is our own absence: stopped, or busy with something else. */
static void test_own_absence_does_not_count(void **state)
{
    struct fixture *f = *state;
    struct waiter w = wait_begin(&f->world, "a credit", 2, 1);
    assert_int_equal(step_to_look(&w), 0);
    pretend(&w, 300);
    w.looked_ns -= 299 * second;
    assert_int_equal(step_to_look(&w), 0);
    assert_false(w.warned);
    assert_int_equal(f->world.failed, 0);
}

static void test_crowded_machine(void **state)
{
    struct fixture *f = *state;
    f->world.ranks_on_host = 8;
    struct waiter w = wait_begin(&f->world, "a credit", 2, 1);
    for (int i = 0; i < 100; i++)
        assert_int_equal(wait_step(&w), 0);
    assert_int_not_equal(w.started_ns, 0);
}

static void test_names_a_stopped_rank(void **state)
{
    struct fixture *f = *state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    f->ranks[2].pid = pid;
    f->ranks[2].same_host = true;
    struct waiter w = wait_begin(&f->world, "a credit", 2, 1);
    assert_int_equal(step_to_look(&w), 0);
    pretend(&w, 5);
    assert_int_equal(step_to_look(&w), 0); /* reported, not condemned */
    char text[1024];
    read_log(f, text, sizeof(text));
    /* whoever waits for another, which in turn waits for that one, hears of it too */
    struct waiter other = wait_begin(&f->world, "a credit", 3, 1);
    assert_int_equal(step_to_look(&other), 0);
    pretend(&other, 5);
    assert_int_equal(step_to_look(&other), 0);
    size_t length = strlen(text);
    read_log(f, text, sizeof(text));
    kill(pid, SIGCONT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_non_null(strstr(text, "waits for rank 2"));
    assert_non_null(strstr(text, "; rank 2 is stopped"));
    assert_non_null(strstr(text + length, "waits for rank 3"));
    assert_non_null(strstr(text + length, "; rank 2 is stopped"));
    assert_int_equal(f->world.failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_quiet_at_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_warns_once, set_up, tear_down),
        cmocka_unit_test(test_timeouts),
        cmocka_unit_test_setup_teardown(test_waits_for_ever, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_gives_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nobody_in_particular, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_own_absence_does_not_count, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_crowded_machine, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_names_a_stopped_rank, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
