/* SPDX-License-Identifier: MIT */
/* Which processes live, and whether we are still the one that opened the port. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

uint64_t nic_start_time(pid_t pid)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    /* The command, in parentheses, may hold anything: count fields after the last ')'. */
    char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ')
        return 0;
    at += 2;
    bool gone = *at == 'Z' || *at == 'X';
    for (int field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return 0;
        at++;
        /* A first thread that ended before the others looks like a dead process. */
        if (field + 1 == 20 && gone && strtol(at, NULL, 10) < 2)
            return 0;
    }
    return strtoull(at, NULL, 10) + 1; /* never 0 */
}

bool nic_no_fd_left(int err)
{
    return err == EMFILE || err == ENFILE;
}

bool nic_file_fits(uint64_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           bytes <= limit.rlim_cur;
}

/* Who cannot look, for want of descriptors, memory or whatever it is, takes no neighbour for dead:
 * its locks would be broken and its port cleared. */
static bool alive(pid_t pid, uint64_t start_time, uint64_t known_bits)
{
    errno = 0;
    uint64_t found = nic_start_time(pid);
    if (found == 0 && errno != 0 && errno != ENOENT && errno != ESRCH)
        return kill(pid, 0) == 0 || errno != ESRCH;
    return found != 0 && ((found ^ start_time) & known_bits) == 0;
}

bool nic_alive(pid_t pid, uint64_t start_time)
{
    return alive(pid, start_time, UINT64_MAX);
}

uint64_t nic_token(pid_t pid, uint64_t start_time)
{
    return (uint64_t)(uint32_t)pid << 32 | (uint32_t)start_time;
}

bool nic_token_alive(uint64_t token)
{
    return alive((pid_t)(token >> 32), token, UINT32_MAX);
}

uint64_t nic_tick(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}

int nic_refuse_child(struct ctx *ctx)
{
    nic_say(ctx,
            "softnic port %s was opened by process %d and cannot be used in its child %d: open it "
            "again after fork",
            ctx->port_name, (int)ctx->pid, (int)getpid());
    return EPERM;
}
