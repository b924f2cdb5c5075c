/* SPDX-License-Identifier: MIT */
/*
 * A process killed in the middle of anything: its peer gets an error, and the next to open a port
 * finds nothing left. And a process of another user gets at nothing.
 */
#include "tests/seeds.h"
#include "tests/softnic_side.h"
#include "transport/softnic/softnic.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST_S = 20 };

static uint64_t trials(void)
{
    return seeds_count(20, 500);
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

struct meet {
    struct nic_address victim, survivor;
    _Atomic int victim_there, survivor_there;
    _Atomic uint32_t steps; /* of the victim's */
};

/* Everything that takes a lock or holds one: writes, receives, regions, queue pairs. */
static void live(struct meet *meet, const struct softnic_attr *attr)
{
    static uint8_t memory[BYTES];
    struct nic_side s;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    nic_side_open(&s, attr, memory);
    meet->victim = nic_side_address(&s);
    atomic_store(&meet->victim_there, 1);
    while (atomic_load(&meet->survivor_there) == 0)
        usleep(50);
    nic_side_connect(&s, &meet->survivor);
    atomic_store(&meet->victim_there, 2);
    for (;;) {
        struct ibv_wc wc[16];
        struct ibv_recv_wr *bad, recv = {0};
        softnic_post_recv(s.qp, &recv, &bad);
        nic_side_write(&s, &meet->survivor, 0, BYTES / 2);
        struct ibv_mr *mr = softnic_reg_mr(s.pd, memory, BYTES, 0);
        struct ibv_qp *qp = nic_side_qp(&s);
        softnic_poll_cq(s.cq, 16, wc);
        softnic_destroy_qp(qp);
        if (mr != NULL)
            softnic_dereg_mr(mr);
        atomic_fetch_add(&meet->steps, 1);
    }
}

/* The survivor writes until it is told that nobody is there. */
static void expect_error(struct nic_side *s, const struct nic_address *to)
{
    struct timespec t, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        struct ibv_wc wc;
        nic_side_write(s, to, 1, 64);
        int n = softnic_poll_cq(s->cq, 1, &wc);
        assert_true(n >= 0);
        if (n == 1 && wc.status != IBV_WC_SUCCESS)
            return;
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (t.tv_sec - start.tv_sec > LONGEST_S)
            fail_msg("no error after %d s", LONGEST_S);
    }
}

static void kill_at(uint64_t seed)
{
    char name[64], victim_name[80], path[64];
    uint64_t r = mix(seed);
    struct meet *meet =
        mmap(NULL, sizeof *meet, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(meet != MAP_FAILED);
    const struct softnic_wire wire = {0};
    const struct softnic_order order = {.relaxed = r % 3 == 0, .seed = seed};
    struct softnic_attr attr = {.wire = &wire, .order = &order};
    nic_test_port(name, sizeof name, "killed");
    snprintf(victim_name, sizeof victim_name, "%s-v", name);
    pid_t pid = fork();
    assert_true(pid >= 0);
    attr.port_name = victim_name;
    if (pid == 0)
        live(meet, &attr);
    static uint8_t memory[BYTES];
    struct nic_side s;
    attr.port_name = name;
    nic_side_open(&s, &attr, memory);
    meet->survivor = nic_side_address(&s);
    atomic_store(&meet->survivor_there, 1);
    while (atomic_load(&meet->victim_there) == 0)
        usleep(50);
    nic_side_connect(&s, &meet->victim);
    while (atomic_load(&meet->victim_there) < 2 || atomic_load(&meet->steps) < 1 + r % 200) {
        struct ibv_wc wc;
        nic_side_write(&s, &meet->victim, 0, 64);
        softnic_poll_cq(s.cq, 1, &wc);
    }
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    expect_error(&s, &meet->victim);
    /* The next start, of any port, clears what the dead one left. */
    attr.port_name = victim_name;
    struct ibv_context *next = softnic_open_port(&attr);
    assert_non_null(next);
    nic_test_file(next, path, sizeof path);
    assert_int_equal(softnic_close_device(next), 0);
    assert_int_equal(access(path, F_OK), -1);
    nic_side_close(&s);
    munmap(meet, sizeof *meet);
}

static void test_killed(void **state)
{
    (void)state;
    for (uint64_t seed = seeds_first(), n = trials(); n > 0; seed++, n--)
        kill_at(seed);
}

/* As nobody: neither the meeting file nor the memory behind it opens. */
static void intrude(pid_t pid, const char *path)
{
    char link[64];
    if (setgid(65534) != 0 || setuid(65534) != 0)
        _exit(9);
    if (open(path, O_RDWR) >= 0 || errno != EACCES)
        _exit(1);
    for (int fd = 3; fd < 64; fd++) {
        snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)pid, fd);
        if (open(link, O_RDWR | O_NONBLOCK) >= 0 || errno != EACCES)
            _exit(2);
    }
    _exit(0);
}

static void test_another_user(void **state)
{
    char name[64], path[64];
    (void)state;
    if (geteuid() != 0)
        skip();
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "user")};
    struct ibv_context *context = softnic_open_port(&attr);
    assert_non_null(context);
    nic_test_file(context, path, sizeof path);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        intrude(getppid(), path);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(softnic_close_device(context), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed),
                                       cmocka_unit_test(test_another_user)};
    print_message("# %llu seeds from %llu on\n", (unsigned long long)trials(),
                  (unsigned long long)seeds_first());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
