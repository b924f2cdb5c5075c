/* SPDX-License-Identifier: MIT */
/* What softnic must refuse, each time with a sentence that says what to do. */
#include "tests/softnic_side.h"
#include "transport/softnic/shared.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* How a child says what it found. */
enum { FINE, WRONG, CANNOT_TRY };

static int child_status(pid_t pid)
{
    int status;
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void hush(void)
{
    if (freopen("/dev/null", "w", stderr) == NULL)
        _exit(CANNOT_TRY);
}

static void test_bad_names(void **state)
{
    static const char *const names[] = {
        "", "a/b", "a b", "\x80",
        "0123456789012345678901234567890123456789012345678901234567890123"};
    (void)state;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        char error[256] = "";
        struct softnic_attr attr = {
            .port_name = names[i], .error = error, .error_size = sizeof error};
        errno = 0;
        assert_null(softnic_open_port(&attr));
        assert_int_equal(errno, EINVAL);
        assert_true(strlen(error) > 0);
    }
}

/* What it says on stderr meanwhile. */
static struct ibv_device **list_with(const char *names, char *said, size_t size)
{
    FILE *file = tmpfile(), *old = stderr;
    assert_non_null(file);
    setenv("SOFTNIC_PORT", names, 1);
    stderr = file;
    struct ibv_device **list = softnic_get_device_list(NULL);
    int err = errno;
    stderr = old;
    unsetenv("SOFTNIC_PORT");
    rewind(file);
    said[fread(said, 1, size - 1, file)] = '\0';
    fclose(file);
    errno = err;
    return list;
}

/* Names alike in the 63 characters that a name may have would be one port, without a word. */
static void test_names_in_environment(void **state)
{
#define SIXTY "012345678901234567890123456789012345678901234567890123456789"
    static const struct {
        const char *names, *said;
    } bad[] = {
        {SIXTY "abcd", "is no name of a port: 1 to 63 of"},
        {"a," SIXTY "abcd", "is no name of a port"},
        {"a b", "\"a b\" is no name of a port"},
        {"a,,b", "\"\" is no name of a port"},
        {"a,", "\"\" is no name of a port"},
        {"a,b,a", "names the port \"a\" twice"},
    };
    char said[512];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(list_with(bad[i].names, said, sizeof said));
        assert_int_equal(errno, EINVAL);
        if (strstr(said, bad[i].said) == NULL)
            fail_msg("SOFTNIC_PORT=%s: '%s'", bad[i].names, said);
    }
    struct ibv_device **list = list_with(SIXTY "abc," SIXTY "abd", said, sizeof said);
    assert_non_null(list);
    assert_string_equal(said, "");
    assert_string_equal(list[0]->name, SIXTY "abc");
    assert_string_equal(list[1]->name, SIXTY "abd");
    assert_null(list[2]);
    softnic_free_device_list(list);
}

static void test_garbage_in_environment(void **state)
{
    static const struct {
        const char *variable, *text;
    } bad[] = {
        {"SOFTNIC_SHARE_PAGES", "yes"}, {"SOFTNIC_SHARE_PAGES", "2"}, {"SOFTNIC_ALPHA_US", "-1"},
        {"SOFTNIC_ALPHA_US", "nan"},    {"SOFTNIC_GAP_US", "1us"},    {"SOFTNIC_BETA_GBPS", "inf"},
        {"SOFTNIC_ORDER", "loose"},     {"SOFTNIC_PLACE", "later"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char name[64], error[256] = "";
        struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "garbage"),
                                    .error = error,
                                    .error_size = sizeof error};
        setenv(bad[i].variable, bad[i].text, 1);
        errno = 0;
        assert_null(softnic_open_port(&attr));
        assert_int_equal(errno, EINVAL);
        assert_true(strlen(error) > 20);
        unsetenv(bad[i].variable);
    }
}

/* In a child the parent's port is refused. */
static void test_after_fork(void **state)
{
    static uint8_t memory[BYTES];
    char name[64];
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "fork")};
    struct nic_side s;
    (void)state;
    nic_side_open(&s, &attr, memory);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct ibv_wc wc;
        hush();
        if (softnic_poll_cq(s.cq, 1, &wc) != -1 || softnic_dereg_mr(s.mr) == 0 ||
            softnic_alloc_pd(s.context) != NULL)
            _exit(WRONG);
        _exit(strstr(softnic_last_error(s.context), "after fork") != NULL ? FINE : WRONG);
    }
    assert_int_equal(child_status(pid), FINE);
    nic_side_close(&s);
}

/* Such a program must not find its files grown by what we meant for our memory. */
static int close_all_descriptors(void)
{
    static uint8_t memory[BYTES];
    struct softnic_attr attr = {.port_name = "test-closed"};
    struct nic_side s;
    struct stat st;
    hush();
    nic_side_open(&s, &attr, memory);
    closefrom(3);
    int own = memfd_create("own", 0), far_up = fcntl(own, F_DUPFD, 500);
    for (int i = 0; i < 20; i++)
        (void)fcntl(own, F_DUPFD, 0);
    struct ibv_cq *cq = softnic_create_cq(s.context, 1, NULL, NULL, 0);
    if (cq != NULL || errno != EBADF ||
        strstr(softnic_last_error(s.context), "close only what you have opened") == NULL)
        return WRONG;
    if (nic_side_write(&s, &(struct nic_address){0}, 1, 8) == 0) /* not connected */
        return WRONG;
    nic_side_close(&s);
    return fstat(far_up, &st) == 0 && st.st_size == 0 ? FINE : WRONG;
}

static void test_closed_descriptors(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(close_all_descriptors());
    assert_int_equal(child_status(pid), FINE);
}

/* With every number of descriptors that is too small, and then with one that is enough. */
static int open_without_descriptors(const char *name)
{
    struct softnic_attr attr = {.port_name = name};
    struct rlimit limit;
    int failed = 0;
    hush();
    getrlimit(RLIMIT_NOFILE, &limit);
    for (limit.rlim_cur = 4; limit.rlim_cur < 100; limit.rlim_cur++) {
        struct ibv_context *context = NULL;
        if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && (context = softnic_open_port(&attr)) != NULL) {
            softnic_close_device(context);
            return failed > 3 ? FINE : WRONG;
        }
        if (errno != EMFILE)
            return WRONG;
        failed++;
    }
    return WRONG;
}

struct seen {
    const char *name;
    int processes;
};

static void count_processes(void *arg, const struct softnic_port_counters *port)
{
    struct seen *seen = arg;
    if (strcmp(port->name, seen->name) == 0)
        seen->processes += port->processes;
}

/* Who cannot look whether another lives for want of a descriptor does not take it for dead. */
static void test_no_descriptors(void **state)
{
    static uint8_t memory[BYTES];
    char name[64];
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "nofile")};
    struct nic_side s;
    (void)state;
    nic_side_open(&s, &attr, memory);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(open_without_descriptors(name));
    assert_int_equal(child_status(pid), FINE);
    struct seen seen = {name, 0};
    const struct softnic_counters_visitor visitor = {NULL, count_processes, &seen};
    assert_int_equal(softnic_visit_counters(&visitor), 0);
    assert_int_equal(seen.processes, 1);
    nic_side_close(&s);
}

static void test_another_version(void **state)
{
    char name[64], path[96], error[256] = "";
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "version"),
                                .error = error,
                                .error_size = sizeof error};
    (void)state;
    struct ibv_context *context = softnic_open_port(&attr);
    assert_non_null(context);
    nic_test_file(context, path, sizeof path);
    assert_int_equal(softnic_close_device(context), 0);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "another version", 15), 15);
    close(fd);
    errno = 0;
    assert_null(softnic_open_port(&attr));
    assert_int_equal(errno, EPROTO);
    assert_non_null(strstr(error, path));
    assert_int_equal(unlink(path), 0);
}

/* What another version of softnic makes of a port's file: its head, and a size of its own. */
static int make_other_version(const char *path)
{
    const struct {
        uint64_t magic;
        uint32_t version;
        uint8_t rest[500];
    } file = {MEETING_MAGIC, SHARED_VERSION + 1, {0}};
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &file, sizeof file), sizeof file);
    return fd;
}

/* It goes when its users are dead: when its port is opened, and when another is. */
static void test_another_version_is_dead(void **state)
{
    char name[64], other_name[64], path[96], error[256] = "";
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "dead-version"),
                                .error = error,
                                .error_size = sizeof error};
    struct softnic_attr other = {.port_name =
                                     nic_test_port(other_name, sizeof other_name, "other")};
    struct flock hold = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
    (void)state;
    for (int by_other = 0; by_other < 2; by_other++) {
        struct ibv_context *context = softnic_open_port(&attr);
        assert_non_null(context);
        nic_test_file(context, path, sizeof path);
        assert_int_equal(softnic_close_device(context), 0);
        int fd = make_other_version(path);
        assert_int_equal(fcntl(fd, F_OFD_SETLK, &hold), 0);
        context = softnic_open_port(&other);
        assert_non_null(context);
        assert_int_equal(softnic_close_device(context), 0);
        assert_null(softnic_open_port(&attr));
        assert_non_null(strstr(error, "another version"));
        assert_int_equal(access(path, F_OK), 0);
        close(fd);
        context = softnic_open_port(by_other ? &other : &attr);
        assert_non_null(context);
        assert_int_equal(softnic_close_device(context), 0);
        assert_int_equal(access(path, F_OK), -1);
    }
}

static bool put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return done;
}

/* A mount namespace of our own; where we are not root, as ourselves in a user namespace. */
static bool leave_mounts(void)
{
    char uid[32], gid[32];
    if (unshare(CLONE_NEWNS) == 0)
        return true;
    snprintf(uid, sizeof uid, "%u %u 1", (unsigned)geteuid(), (unsigned)geteuid());
    snprintf(gid, sizeof gid, "%u %u 1", (unsigned)getegid(), (unsigned)getegid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && put("/proc/self/setgroups", "deny") &&
           put("/proc/self/uid_map", uid) && put("/proc/self/gid_map", gid);
}

static int open_without_room(void)
{
    char error[256] = "";
    struct softnic_attr attr = {
        .port_name = "test-full", .error = error, .error_size = sizeof error};
    if (!leave_mounts())
        return CANNOT_TRY;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=8k") != 0)
        return CANNOT_TRY;
    errno = 0;
    if (softnic_open_port(&attr) != NULL || errno != ENOSPC || strstr(error, "/dev/shm") == NULL)
        return WRONG;
    return FINE;
}

static void test_no_room(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0)
        _exit(open_without_room());
    int status = child_status(pid);
    if (status == CANNOT_TRY)
        skip();
    assert_int_equal(status, FINE);
}

/* From here on the kernel refuses this process to reach into others. */
static int forbid_process_vm(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) | prctl(PR_SET_SECCOMP, 2, &program);
}

static int write_forbidden(const char *name, int in, int out)
{
    static uint8_t memory[BYTES];
    struct softnic_attr attr = {.port_name = name};
    struct nic_side s;
    struct nic_address to, own;
    hush();
    nic_side_open(&s, &attr, memory);
    own = nic_side_address(&s);
    if (write(out, &own, sizeof own) != sizeof own || read(in, &to, sizeof to) != sizeof to)
        return WRONG;
    nic_side_connect(&s, &to);
    if (forbid_process_vm() != 0)
        return CANNOT_TRY;
    if (nic_side_write(&s, &to, 1, 8) != 0 || nic_side_poll(&s).status != IBV_WC_REM_OP_ERR)
        return WRONG;
    if (strstr(softnic_last_error(s.context), "SYS_PTRACE") == NULL)
        return WRONG;
    nic_side_close(&s);
    return FINE;
}

static void test_process_vm_forbidden(void **state)
{
    static uint8_t memory[BYTES];
    char name[64];
    int down[2], up[2];
    struct nic_side s;
    struct nic_address to, own;
    (void)state;
    assert_int_equal(pipe(down) | pipe(up), 0);
    nic_test_port(name, sizeof name, "vm");
    pid_t pid = fork();
    if (pid == 0)
        _exit(write_forbidden(name, down[0], up[1]));
    struct softnic_attr attr = {.port_name = name};
    nic_side_open(&s, &attr, memory);
    own = nic_side_address(&s);
    assert_int_equal(read(up[0], &to, sizeof to), sizeof to);
    nic_side_connect(&s, &to);
    assert_int_equal(write(down[1], &own, sizeof own), sizeof own);
    int status = child_status(pid);
    nic_side_close(&s);
    for (unsigned i = 0; i < 2; i++) {
        close(down[i]);
        close(up[i]);
    }
    if (status == CANNOT_TRY)
        skip();
    assert_int_equal(status, FINE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_names),
        cmocka_unit_test(test_names_in_environment),
        cmocka_unit_test(test_garbage_in_environment),
        cmocka_unit_test(test_after_fork),
        cmocka_unit_test(test_closed_descriptors),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_another_version),
        cmocka_unit_test(test_another_version_is_dead),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_process_vm_forbidden),
    };
    return cmocka_run_group_tests_name("softnic refusals", tests, NULL, NULL);
}
