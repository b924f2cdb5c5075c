/* SPDX-License-Identifier: MIT */
/* Registered private pages that are exchanged for shared ones: what stays as it was, for the
 * process, its threads and its children, and what is not exchanged at all. */
#include "tests/softnic_side.h"
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 8, ALL = PAGE * PAGES };
enum { LOCAL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

struct nic {
    struct ibv_context *context;
    struct ibv_pd *pd;
};

static int open_nic(void **state)
{
    static struct nic nic;
    char name[64];
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "pages")};
    nic.context = softnic_open_port(&attr);
    nic.pd = nic.context ? softnic_alloc_pd(nic.context) : NULL;
    *state = &nic;
    return nic.pd == NULL;
}

static int close_nic(void **state)
{
    struct nic *nic = *state;
    return softnic_dealloc_pd(nic->pd) != 0 || softnic_close_device(nic->context) != 0;
}

static struct ibv_mr *reg(const struct nic *nic, void *at, size_t bytes)
{
    struct ibv_mr *mr = softnic_reg_mr(nic->pd, at, bytes, LOCAL);
    assert_non_null(mr);
    return mr;
}

/* Whether the page at `at` is mapped from a file of softnic's. */
static bool is_shared(const void *at)
{
    uint64_t address = (uint64_t)(uintptr_t)at, low, high;
    char line[4608], rights[8];
    bool shared = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &low, &high, rights) == 3 &&
            address >= low && address < high)
            shared = rights[3] == 's' && strstr(line, "softnic-pages") != NULL;
    fclose(maps);
    return shared;
}

static uint8_t *pages(void)
{
    uint8_t *at = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    for (unsigned i = 0; i < ALL; i++)
        at[i] = (uint8_t)(i * 13 + i / PAGE);
    return at;
}

static void check_pages(const uint8_t *at)
{
    for (unsigned i = 0; i < ALL; i++)
        assert_int_equal(at[i], (uint8_t)(i * 13 + i / PAGE));
}

static void test_content_stays(void **state)
{
    uint8_t *at = pages();
    struct ibv_mr *mr = reg(*state, at, ALL);
    assert_true(is_shared(at) && is_shared(at + ALL - 1));
    check_pages(at);
    assert_int_equal(softnic_dereg_mr(mr), 0);
    assert_false(is_shared(at));
    check_pages(at);
    munmap(at, ALL);
}

/* Only what lies wholly inside is exchanged: at the ends there may be anybody's data. */
static void test_whole_pages_only(void **state)
{
    uint8_t *at = pages();
    struct ibv_mr *mr = reg(*state, at + 100, ALL - 200);
    assert_false(is_shared(at) || is_shared(at + ALL - 1));
    assert_true(is_shared(at + PAGE) && is_shared(at + ALL - PAGE - 1));
    check_pages(at);
    struct ibv_mr *small = reg(*state, at + PAGE + 8, PAGE);
    assert_int_equal(softnic_dereg_mr(mr), 0);
    assert_true(is_shared(at + PAGE)); /* another region still covers it */
    assert_int_equal(softnic_dereg_mr(small), 0);
    check_pages(at);
    munmap(at, ALL);
}

static void refused(void **state, void *at, size_t bytes)
{
    struct ibv_mr *mr = reg(*state, at, bytes);
    assert_false(is_shared((uint8_t *)at + bytes / 2));
    assert_int_equal(softnic_dereg_mr(mr), 0);
}

static void test_refused(void **state)
{
    uint8_t on_stack[4 * PAGE], *at = pages();
    memset(on_stack, 1, sizeof on_stack);
    refused(state, on_stack, sizeof on_stack);
    assert_int_equal(madvise(at + PAGE, PAGE, MADV_DONTFORK), 0);
    refused(state, at, ALL);
    assert_int_equal(madvise(at + PAGE, PAGE, MADV_DOFORK), 0);
    if (syscall(SYS_mlock, at, PAGE) == 0) { /* sanitizers make mlock() do nothing */
        refused(state, at, ALL);
        syscall(SYS_munlock, at, PAGE);
    }
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    uint8_t *file = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    assert_true(fd >= 0 && file != MAP_FAILED);
    refused(state, file, PAGE);
    munmap(file, PAGE);
    close(fd);
    struct ibv_mr *mr = softnic_reg_mr(((struct nic *)*state)->pd, at, PAGE, 0);
    assert_true(mr != NULL && is_shared(at)); /* after all that it may */
    assert_int_equal(softnic_dereg_mr(mr), 0);
    assert_int_equal(mprotect(at, PAGE, PROT_READ), 0);
    mr = softnic_reg_mr(((struct nic *)*state)->pd, at, PAGE, 0);
    assert_true(mr != NULL && !is_shared(at));
    assert_int_equal(softnic_dereg_mr(mr), 0);
    munmap(at, ALL);
}

/* A child has what was there at the fork, and writes into its own. */
static void test_fork(void **state)
{
    uint8_t *at = pages();
    struct ibv_mr *mr = reg(*state, at, ALL);
    int status = -1;
    assert_true(is_shared(at));
    pid_t child = fork();
    if (child == 0) {
        bool good = !is_shared(at);
        for (unsigned i = 0; i < ALL; i++)
            good = good && at[i] == (uint8_t)(i * 13 + i / PAGE);
        memset(at, 0xff, ALL);
        _exit(good ? 0 : 1);
    }
    memset(at, 0, 8); /* the child has its copy by now */
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
    for (unsigned i = 0; i < ALL; i++)
        assert_int_equal(at[i], i < 8 ? 0 : (uint8_t)(i * 13 + i / PAGE));
    assert_int_equal(softnic_dereg_mr(mr), 0);
    munmap(at, ALL);
}

/* Nor when the parent has no descriptor left: the fork succeeds all the same. */
static void test_fork_without_descriptors(void **state)
{
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    uint8_t *at = pages();
    struct ibv_mr *mr = reg(*state, at, ALL);
    int status = -1;
    assert_true(is_shared(at));
    int next = dup(STDIN_FILENO);
    assert_true(next >= 0 && close(next) == 0);
    none = (struct rlimit){(rlim_t)next, before.rlim_max};
    for (int round = 0; round < 3; round++) {
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        pid_t child = fork();
        if (child == 0) {
            memset(at, 0xff, ALL);
            _exit(0);
        }
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_true(child > 0 && waitpid(child, &status, 0) == child);
        assert_int_equal(status, 0);
        check_pages(at);
    }
    assert_int_equal(softnic_dereg_mr(mr), 0);
    munmap(at, ALL);
}

struct writer {
    uint8_t *at;
    _Atomic bool stop;
    uint64_t last;
};

/* Counts up, in every page; what it wrote last must be what stands there. */
static void *write_on(void *argument)
{
    struct writer *w = argument;
    while (!atomic_load(&w->stop)) {
        w->last++;
        for (unsigned page = 0; page < PAGES; page++)
            atomic_store_explicit((_Atomic uint64_t *)(void *)(w->at + page * PAGE), w->last,
                                  memory_order_relaxed);
    }
    return NULL;
}

static void test_writing_thread(void **state)
{
    struct writer w = {.at = pages()};
    pthread_t thread;
    memset(w.at, 0, ALL);
    assert_int_equal(pthread_create(&thread, NULL, write_on, &w), 0);
    for (unsigned round = 0; round < 20; round++) {
        uint64_t before = atomic_load((_Atomic uint64_t *)(void *)w.at);
        struct ibv_mr *mr = reg(*state, w.at, ALL);
        /* It goes on, and never back. */
        assert_true(atomic_load((_Atomic uint64_t *)(void *)w.at) >= before);
        assert_int_equal(softnic_dereg_mr(mr), 0);
    }
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    for (unsigned page = 0; page < PAGES; page++)
        assert_int_equal(*(uint64_t *)(void *)(w.at + page * PAGE), w.last);
    munmap(w.at, ALL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content_stays),
        cmocka_unit_test(test_whole_pages_only),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_fork_without_descriptors),
        cmocka_unit_test(test_writing_thread),
    };
    setenv("SOFTNIC_SHARE_PAGES", "1", 1);
    return cmocka_run_group_tests(tests, open_nic, close_nic);
}
