/* SPDX-License-Identifier: MIT */
/* A process that has no file descriptor left: what it cannot do it says, and nothing else becomes
 * wrong. */
#include "tests/softnic_side.h"
#include "transport/softnic/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOCAL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };
enum { REGIONS = 3, FIRST = 100, ADDED = 7, CANNOT_TRY = 77 };

/* No more can be opened until the limit is given back. */
static bool take_descriptors(struct rlimit *before)
{
    int next = dup(STDIN_FILENO);
    if (next < 0 || getrlimit(RLIMIT_NOFILE, before) != 0)
        return false;
    close(next);
    struct rlimit limit = {(rlim_t)next, before->rlim_max};
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

static bool give_descriptors(const struct rlimit *before)
{
    return setrlimit(RLIMIT_NOFILE, before) == 0;
}

static void *shared_memory(size_t bytes)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return NULL;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory; /* the descriptor stays for softnic to find */
}

static void ended_well(pid_t pid)
{
    int status = -1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
}

/* ---- registering -------------------------------------------------------------------------------
 */

static void test_shared_memory_is_not_taken_for_private(void **state)
{
    char name[64];
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "fd-mr")};
    struct rlimit before;
    (void)state;
    struct ibv_context *context = softnic_open_port(&attr);
    struct ibv_pd *pd = softnic_alloc_pd(context);
    uint8_t *memory = shared_memory(BYTES);
    assert_non_null(memory);
    /* One for /proc/self/maps and none for the file: the next numbers, one by one. */
    bool made = false;
    for (rlim_t more = 0; !made; more++) {
        assert_true(take_descriptors(&before));
        struct rlimit limit = {0};
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
        limit.rlim_cur += more;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        struct ibv_mr *mr = softnic_reg_mr(pd, memory, BYTES, LOCAL);
        int err = errno;
        assert_true(give_descriptors(&before));
        made = mr != NULL;
        if (made) {
            assert_true(more > 1); /* maps, the list of our descriptors, the copy of one */
            assert_int_equal(softnic_dereg_mr(mr), 0);
        } else {
            assert_int_equal(err, EMFILE);
            assert_non_null(strstr(softnic_last_error(context), "ulimit -n"));
        }
    }
    munmap(memory, BYTES);
    assert_int_equal(softnic_dealloc_pd(pd), 0);
    assert_int_equal(softnic_close_device(context), 0);
}

/* ---- atomics -----------------------------------------------------------------------------------
 */

struct party {
    struct nic_address side;
    uint32_t rkey[REGIONS];
    uint64_t word[REGIONS];
};

static int add(struct nic_side *s, uint32_t rkey, uint64_t word)
{
    struct ibv_sge sge = {(uint64_t)(uintptr_t)s->memory, 8, s->mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.atomic = {word, ADDED, 0, rkey}};
    return softnic_post_send(s->qp, &wr, &bad) ? -1 : (int)nic_side_poll(s).status;
}

static int write_word(struct nic_side *s, const struct party *to, int region, uint64_t value)
{
    struct nic_address there = to->side;
    there.rkey = to->rkey[region];
    there.memory = to->word[region];
    memcpy(s->memory, &value, sizeof value);
    return nic_side_write(s, &there, 1, 8) ? -1 : (int)nic_side_poll(s).status;
}

/* Which step was not as it should be. */
static int add_without_descriptors(const char *name, int in, int out)
{
    static uint8_t memory[BYTES];
    struct softnic_attr attr = {.port_name = name};
    struct nic_side s;
    struct party to;
    struct rlimit before;
    if (freopen("/dev/null", "w", stderr) == NULL)
        return 1;
    nic_side_open(&s, &attr, memory);
    struct nic_address own = nic_side_address(&s);
    if (write(out, &own, sizeof own) != sizeof own || read(in, &to, sizeof to) != sizeof to)
        return 2;
    nic_side_connect(&s, &to.side);
    if (write_word(&s, &to, 0, FIRST) != IBV_WC_SUCCESS || !take_descriptors(&before))
        return 3;
    /* A write has another way; and when there are descriptors again the memory is mapped. */
    if (write_word(&s, &to, 1, FIRST) != IBV_WC_SUCCESS || !give_descriptors(&before) ||
        add(&s, to.rkey[1], to.word[1]) != IBV_WC_SUCCESS || *(uint64_t *)(void *)memory != FIRST)
        return 4;
    /* An atomic has none: the owner adds to that word, too, and sees no kernel's copy. */
    if (!take_descriptors(&before) || add(&s, to.rkey[2], to.word[2]) != IBV_WC_REM_OP_ERR ||
        strstr(softnic_last_error(s.context), "ulimit -n") == NULL)
        return 5;
    if (!give_descriptors(&before))
        return 6;
    nic_side_close(&s);
    return 0;
}

static void test_no_atomic_past_those_who_add(void **state)
{
    static uint8_t memory[BYTES];
    char name[64];
    int down[2], up[2];
    struct nic_side s;
    struct nic_address there;
    (void)state;
    assert_int_equal(pipe(down) | pipe(up), 0);
    nic_test_port(name, sizeof name, "fd-atomic");
    pid_t pid = fork();
    if (pid == 0)
        _exit(add_without_descriptors(name, down[0], up[1]));
    struct softnic_attr attr = {.port_name = name};
    nic_side_open(&s, &attr, memory);
    uint64_t *word[REGIONS];
    struct ibv_mr *mr[REGIONS];
    struct party own = {.side = nic_side_address(&s)};
    for (int i = 0; i < REGIONS; i++) {
        word[i] = shared_memory(BYTES);
        assert_non_null(word[i]);
        *word[i] = FIRST;
        mr[i] = softnic_reg_mr(s.pd, word[i], BYTES, LOCAL);
        assert_non_null(mr[i]);
        own.rkey[i] = mr[i]->rkey;
        own.word[i] = (uint64_t)(uintptr_t)word[i];
    }
    assert_int_equal(read(up[0], &there, sizeof there), sizeof there);
    nic_side_connect(&s, &there);
    assert_int_equal(write(down[1], &own, sizeof own), sizeof own);
    ended_well(pid);
    assert_int_equal(*word[1], FIRST + ADDED);
    assert_int_equal(*word[2], FIRST);
    for (int i = 0; i < REGIONS; i++) {
        assert_int_equal(softnic_dereg_mr(mr[i]), 0);
        munmap(word[i], BYTES);
    }
    nic_side_close(&s);
    for (int i = 0; i < 2; i++) {
        close(down[i]);
        close(up[i]);
    }
}

/* ---- who lives ---------------------------------------------------------------------------------
 */

/* From here on the kernel opens nothing for this process: it says that it has no memory. */
static int forbid_open(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) | prctl(PR_SET_SECCOMP, 2, &program);
}

static int look_without_memory(pid_t live, uint64_t start_time, pid_t dead)
{
    if (!nic_alive(live, start_time) || nic_alive(live, start_time + 1) || nic_alive(dead, 1))
        return 1;
    if (forbid_open() != 0)
        return CANNOT_TRY;
    return !nic_alive(live, start_time) || nic_alive(dead, 1) ? 2 : 0;
}

/* Whatever keeps a process from looking, it takes none for dead that may live. */
static void test_who_cannot_look(void **state)
{
    (void)state;
    uint64_t start_time = nic_start_time(getpid());
    assert_true(start_time != 0);
    pid_t live = getpid(), dead = fork();
    if (dead == 0)
        _exit(0);
    ended_well(dead);
    pid_t pid = fork();
    if (pid == 0)
        _exit(look_without_memory(live, start_time, dead));
    int status = -1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) == CANNOT_TRY)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_memory_is_not_taken_for_private),
        cmocka_unit_test(test_no_atomic_past_those_who_add),
        cmocka_unit_test(test_who_cannot_look),
    };
    return cmocka_run_group_tests_name("softnic without descriptors", tests, NULL, NULL);
}
