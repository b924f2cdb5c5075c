/* SPDX-License-Identifier: MIT */
/*
 * A child after fork has a right to pages of its own, and its parent to pages that the child does
 * not write into. So the child exchanges what is shared for private copies before it goes on, and
 * the parent waits until it has. What is here is global because fork is.
 */
#include "transport/softnic/pages.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of forking and of exchanging pages */
/* Under `lock`, across a fork. It stands ready from the first exchange on, since a fork may come
 * when no descriptor is left; with one end closed the child has one, to look for its pages. */
static int pipe_fds[2] = {-1, -1};
static struct stat pipe_file;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* One line of /proc/self/maps at a time, without malloc. */
struct reader {
    int fd;
    size_t at, end;
    char bytes[4096];
};

static bool next_line(struct reader *r, char *line, size_t size)
{
    size_t length = 0;
    for (;;) {
        if (r->at == r->end) {
            ssize_t n = read(r->fd, r->bytes, sizeof r->bytes);
            if (n <= 0)
                return false;
            r->at = 0;
            r->end = (size_t)n;
        }
        char c = r->bytes[r->at++];
        if (c == '\n')
            break;
        if (length + 1 < size)
            line[length++] = c;
    }
    line[length] = '\0';
    return true;
}

static uint64_t hexadecimal(const char **at)
{
    uint64_t value = 0;
    for (;; ++*at) {
        char c = **at;
        if (c >= '0' && c <= '9')
            value = value << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        else
            return value;
    }
}

/* The next mapping of ours from `from` on. */
static bool find_next(uint64_t from, uint64_t *low, uint64_t *high)
{
    struct reader reader = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    char line[512];
    bool found = false;
    if (reader.fd < 0)
        return false;
    while (!found && next_line(&reader, line, sizeof line)) {
        const char *at = line;
        *low = hexadecimal(&at);
        at += *at == '-';
        *high = hexadecimal(&at);
        size_t length = strlen(line), path = strlen(PAGES_PATH);
        found = *low >= from && length > path && strcmp(line + length - path, PAGES_PATH) == 0;
    }
    close(reader.fd);
    return found;
}

/* A program that closes all descriptors closes these too, and may have others under their numbers.
 */
static bool is_ours(int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == pipe_file.st_dev &&
           st.st_ino == pipe_file.st_ino;
}

static bool make_pipe(void)
{
    if (is_ours(pipe_fds[0]) && is_ours(pipe_fds[1]))
        return true;
    if (pipe2(pipe_fds, O_CLOEXEC) == 0)
        return fstat(pipe_fds[0], &pipe_file) == 0;
    pipe_fds[0] = pipe_fds[1] = -1;
    return false;
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    make_pipe();
}

/* Its end of the pipe is closed when the child has what it needs, or is no more. */
static void in_parent(void)
{
    char byte;
    if (pipe_fds[1] >= 0) {
        close(pipe_fds[1]);
        while (read(pipe_fds[0], &byte, 1) < 0 && errno == EINTR)
            ;
        close(pipe_fds[0]);
        pipe_fds[0] = pipe_fds[1] = -1;
        make_pipe();
    }
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    uint64_t low, high = 0;
    if (pipe_fds[0] >= 0)
        close(pipe_fds[0]);
    while (find_next(high, &low, &high))
        pages_to_private((void *)(uintptr_t)low, high - low);
    if (pipe_fds[1] >= 0)
        close(pipe_fds[1]);
    pipe_fds[0] = pipe_fds[1] = -1;
    pthread_mutex_unlock(&lock);
}

static void register_handlers(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

void pages_lock(void)
{
    pthread_once(&once, register_handlers);
    pthread_mutex_lock(&lock);
}

bool pages_may_fork(void)
{
    return make_pipe();
}

void pages_unlock(void)
{
    pthread_mutex_unlock(&lock);
}
