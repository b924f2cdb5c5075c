/* SPDX-License-Identifier: MIT */
/* Limits of the process (ulimit) that are too low: the sentence names the one. */
#include "tests/ranks.h"
#include "tests/softnic_side.h"
#include "transport/world.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint64_t MiB = 1 << 20;

static bool limit(int which, uint64_t value)
{
    struct rlimit now;
    if (getrlimit(which, &now) != 0)
        return false;
    now.rlim_cur = value;
    return setrlimit(which, &now) == 0;
}

/* So much more address space than there is now. */
static bool limit_space(uint64_t more)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    bool read = file && fscanf(file, "%lu", &pages) == 1;
    if (file)
        fclose(file);
    return read && limit(RLIMIT_AS, pages * (uint64_t)sysconf(_SC_PAGESIZE) + more);
}

static bool space_can_be_limited(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false; /* sanitizers take terabytes, and end when they get no more */
#else
    return true;
#endif
}

static void ended_well(pid_t pid)
{
    int status = -1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
}

/* ---- address space -----------------------------------------------------------------------------
 */

enum { VICTIM = 1, SLOTS = 64, SLOT_BYTES = 1 << 20 };

/* Its own links it can have, and those of its neighbour not. */
static int links_with_little_space(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = !sstar_rank(world);
    struct sstar_links *links = NULL;
    struct sstar_link_attr attr = {.slots = SLOTS, .slot_bytes = SLOT_BYTES};
    if (sstar_rank(world) == VICTIM)
        CHECK(limit_space(SLOTS * 3 / 2 * MiB));
    CHECK(sstar_links_open(world, &peer, 1, &attr, &links) == -ENOMEM);
    CHECK(strstr(sstar_last_error(world), "rank 1 cannot map the memory of rank 0"));
    CHECK(strstr(sstar_last_error(world), "ulimit -v"));
    return 0;
}

static void test_links(void **state)
{
    (void)state;
    if (!space_can_be_limited())
        skip();
    ranks_expect(&(struct ranks){.size = 2, .processes = true, .body = links_with_little_space});
}

/* Which step was not as it should be. */
static int send_with_little_space(const char *name, int in, int out)
{
    static uint8_t memory[BYTES];
    struct softnic_attr attr = {.port_name = name};
    struct nic_side s;
    struct nic_address to, own;
    if (!freopen("/dev/null", "w", stderr))
        return 1;
    nic_side_open(&s, &attr, memory);
    own = nic_side_address(&s);
    if (write(out, &own, sizeof own) != sizeof own || read(in, &to, sizeof to) != sizeof to)
        return 2;
    nic_side_connect(&s, &to);
    if (!limit_space(64 * MiB))
        return 3;
    if (nic_side_write(&s, &to, 1, 8) != 0 || nic_side_poll(&s).status != IBV_WC_RETRY_EXC_ERR)
        return 4;
    if (!strstr(softnic_last_error(s.context), "ulimit -v"))
        return 5;
    char error[256] = "";
    struct softnic_attr more = {.port_name = name, .error = error, .error_size = sizeof error};
    if (softnic_open_port(&more) || errno != ENOMEM || !strstr(error, "ulimit -v"))
        return 6;
    return 0;
}

static void test_softnic(void **state)
{
    static uint8_t memory[BYTES];
    char name[64];
    int down[2], up[2];
    struct nic_side s;
    struct nic_address there, own;
    (void)state;
    if (!space_can_be_limited())
        skip();
    assert_int_equal(pipe(down) | pipe(up), 0);
    nic_test_port(name, sizeof name, "space");
    pid_t pid = fork();
    if (pid == 0)
        _exit(send_with_little_space(name, down[0], up[1]));
    struct softnic_attr attr = {.port_name = name};
    nic_side_open(&s, &attr, memory);
    own = nic_side_address(&s);
    assert_int_equal(read(up[0], &there, sizeof there), sizeof there);
    nic_side_connect(&s, &there);
    assert_int_equal(write(down[1], &own, sizeof own), sizeof own);
    ended_well(pid);
    nic_side_close(&s);
    for (int i = 0; i < 2; i++) {
        close(down[i]);
        close(up[i]);
    }
}

/* ---- length of files ---------------------------------------------------------------------------
 */

static int open_with_short_files(void)
{
    char error[256] = "";
    struct softnic_attr attr = {
        .port_name = "test-fsize", .error = error, .error_size = sizeof error};
    if (!limit(RLIMIT_FSIZE, 4096))
        return 1;
    if (softnic_open_port(&attr) || errno != EFBIG || !strstr(error, "ulimit -f"))
        return 2;
    return 0;
}

static int alloc_with_short_files(struct sstar_world *world, void *arg)
{
    (void)arg;
    void *memory = NULL;
    CHECK(limit(RLIMIT_FSIZE, 16 * MiB));
    CHECK(sstar_alloc(world, 16 * MiB + 1, &memory) == -EFBIG);
    CHECK(strstr(sstar_last_error(world), "ulimit -f"));
    CHECK(sstar_alloc(world, 16 * MiB, &memory) == 0);
    return sstar_free(world, memory);
}

static void test_file_size(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(open_with_short_files());
    ended_well(pid);
    ranks_expect(&(struct ranks){.size = 2, .processes = true, .body = alloc_with_short_files});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_links), cmocka_unit_test(test_softnic),
                                       cmocka_unit_test(test_file_size)};
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
