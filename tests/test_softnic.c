/* SPDX-License-Identifier: MIT */
/* softnic's own tests: what belongs to this NIC alone. The rest is in the conformance suite. */
#include "tests/softnic_side.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static uint8_t *shared_memory(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(memory != MAP_FAILED);
    return memory; /* fd stays open: peers map the region through it */
}

static void test_two_in_one_process(void **state)
{
    static uint8_t a_memory[BYTES], b_memory[BYTES];
    char name[64], path[96];
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "one")};
    struct nic_side a, b;
    (void)state;
    nic_side_open(&a, &attr, a_memory);
    nic_side_open(&b, &attr, b_memory);
    struct nic_address to_a = nic_side_address(&a), to_b = nic_side_address(&b);
    nic_side_connect(&a, &to_b);
    nic_side_connect(&b, &to_a);
    for (unsigned i = 0; i < BYTES; i++)
        a_memory[i] = (uint8_t)(i * 7 + 1);
    assert_int_equal(nic_side_write(&a, &to_b, 42, BYTES), 0);
    struct ibv_wc wc = nic_side_poll(&a);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_int_equal(wc.wr_id, 42);
    assert_int_equal(wc.opcode, IBV_WC_RDMA_WRITE);
    assert_memory_equal(a_memory, b_memory, BYTES);
    nic_test_file(a.context, path, sizeof path);
    nic_side_close(&a);
    assert_int_equal(access(path, F_OK), 0);
    nic_side_close(&b);
    assert_int_equal(access(path, F_OK), -1);
}

/* The child writes into us, tells us, and is killed; what we then send fails. */
static void child_main(const char *name, int in, int out, bool shared)
{
    struct softnic_attr attr = {.port_name = name};
    struct nic_side s;
    struct nic_address to, own;
    uint8_t *memory = shared ? shared_memory() : malloc(BYTES);
    nic_side_open(&s, &attr, memory);
    own = nic_side_address(&s);
    if (write(out, &own, sizeof own) != sizeof own || read(in, &to, sizeof to) != sizeof to)
        _exit(1);
    nic_side_connect(&s, &to);
    memset(memory, 0x5a, BYTES);
    if (nic_side_write(&s, &to, 1, BYTES) != 0 || nic_side_poll(&s).status != IBV_WC_SUCCESS)
        _exit(2);
    if (write(out, "k", 1) != 1)
        _exit(3);
    for (;;)
        pause();
}

static void with_child(bool shared)
{
    char name[64], byte;
    int down[2], up[2];
    struct nic_side s;
    struct nic_address to, own;
    nic_test_port(name, sizeof name, shared ? "mapped" : "private");
    assert_int_equal(pipe(down) | pipe(up), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        child_main(name, down[0], up[1], shared);
    struct softnic_attr attr = {.port_name = name};
    uint8_t *memory = shared ? shared_memory() : calloc(1, BYTES);
    nic_side_open(&s, &attr, memory);
    own = nic_side_address(&s);
    assert_int_equal(read(up[0], &to, sizeof to), sizeof to);
    nic_side_connect(&s, &to);
    assert_int_equal(write(down[1], &own, sizeof own), sizeof own);
    assert_int_equal(read(up[0], &byte, 1), 1);
    for (unsigned i = 0; i < BYTES; i++)
        assert_int_equal(memory[i], 0x5a);
    assert_int_equal(nic_side_write(&s, &to, 7, BYTES), 0);
    assert_int_equal(nic_side_poll(&s).status, IBV_WC_SUCCESS);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(nic_side_write(&s, &to, 8, 8), 0);
    struct ibv_wc wc = nic_side_poll(&s);
    assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(wc.wr_id, 8);
    char path[96];
    nic_test_file(s.context, path, sizeof path);
    nic_side_close(&s);
    assert_int_equal(access(path, F_OK), -1);
    if (shared)
        munmap(memory, BYTES);
    else
        free(memory);
}

static void test_processes_mapped(void **state)
{
    (void)state;
    with_child(true);
}

static void test_processes_private(void **state)
{
    (void)state;
    with_child(false);
}

/* What a killed process left is cleared when any port of the user is opened next. */
static void test_leftovers(void **state)
{
    static uint8_t memory[BYTES];
    char name[64], path[96] = "";
    int up[2];
    struct nic_side s;
    (void)state;
    assert_int_equal(pipe(up), 0);
    nic_test_port(name, sizeof name, "left");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct softnic_attr attr = {.port_name = name};
        nic_side_open(&s, &attr, memory);
        nic_test_file(s.context, path, sizeof path);
        if (write(up[1], path, sizeof path) != sizeof path)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(up[0], path, sizeof path), sizeof path);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "next")};
    nic_side_open(&s, &attr, memory);
    assert_int_equal(access(path, F_OK), -1);
    nic_side_close(&s);
    close(up[0]);
    close(up[1]);
}

/* Of a file whose maker was killed before it held anything, or before it was whole, too. */
static void test_stillborn(void **state)
{
    static uint8_t memory[BYTES];
    char name[64], paths[2][96];
    struct nic_side s;
    (void)state;
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "stillborn")};
    nic_side_open(&s, &attr, memory);
    char path[96];
    struct stat whole;
    nic_test_file(s.context, path, sizeof path);
    assert_int_equal(stat(path, &whole), 0);
    nic_side_close(&s);
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "/dev/shm/softnic-%u-stillborn-%d-%d",
                 (unsigned)geteuid(), (int)getpid(), i);
        int fd = open(paths[i], O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, i == 0 ? 0 : whole.st_size), 0);
        close(fd);
    }
    nic_side_open(&s, &attr, memory);
    assert_int_equal(access(paths[0], F_OK), -1);
    assert_int_equal(access(paths[1], F_OK), -1);
    nic_side_close(&s);
}

/* Visitors of a port only read: one that holds its file does not keep us from our peer. */
static void test_visitor(void **state)
{
    static uint8_t memory[2][BYTES];
    char name[64], path[96];
    struct nic_side s[2];
    (void)state;
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "visited")};
    for (int i = 0; i < 2; i++)
        nic_side_open(&s[i], &attr, memory[i]);
    struct nic_address address[2] = {nic_side_address(&s[0]), nic_side_address(&s[1])};
    nic_side_connect(&s[0], &address[1]);
    nic_side_connect(&s[1], &address[0]);
    nic_test_file(s[0].context, path, sizeof path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_SH | LOCK_NB), 0);
    assert_int_equal(nic_side_write(&s[0], &address[1], 1, 8), 0);
    assert_int_equal(nic_side_poll(&s[0]).status, IBV_WC_SUCCESS);
    close(fd);
    nic_side_close(&s[0]);
    nic_side_close(&s[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_in_one_process), cmocka_unit_test(test_processes_mapped),
        cmocka_unit_test(test_processes_private),  cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_stillborn),          cmocka_unit_test(test_visitor),
    };
    return cmocka_run_group_tests_name("softnic", tests, NULL, NULL);
}
