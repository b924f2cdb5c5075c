/* SPDX-License-Identifier: MIT */
/* The meeting file of a port, under /dev/shm: opening, locking, and clearing what the dead left. */
#include "transport/softnic/nic.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_STEP_US = 50, VISIT_TRIES = 100 };

uint64_t nic_pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

/* Forget members that were killed. Number of those that live. */
unsigned nic_meeting_clear_dead(struct meeting *meeting)
{
    unsigned live = 0;
    for (unsigned i = 0; i < MEMBERS_MAX; i++) {
        struct meeting_member *m = &meeting->member[i];
        if (atomic_load(&m->live) == 0)
            continue;
        if (nic_alive(m->pid, m->start_time))
            live++;
        else
            atomic_store(&m->live, 0);
    }
    return live;
}

bool nic_meeting_readable(const struct meeting *meeting, const struct stat *st)
{
    return st->st_size == (off_t)sizeof *meeting && meeting->magic == MEETING_MAGIC &&
           meeting->version == SHARED_VERSION && meeting->size == sizeof *meeting;
}

struct meeting *nic_meeting_map(int fd)
{
    struct meeting *meeting =
        mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return meeting == MAP_FAILED ? NULL : meeting;
}

/* A mapping keeps the file open, and a child has it too: closing alone does not unlock. */
void nic_port_unlock(int fd)
{
    flock(fd, LOCK_UN);
    close(fd);
}

/* Who has a port open holds a lock of one byte of its file until it ends, however it ends. That
 * does not depend on what somebody may have written there. */
void nic_meeting_hold(int fd)
{
    struct flock hold = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
    fcntl(fd, F_OFD_SETLK, &hold);
}

bool nic_meeting_held(int fd)
{
    struct flock ask = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &ask) != 0 || ask.l_type != F_UNLCK;
}

/* Locked. Whether its maker was killed before it was whole, or all of its members since; a file of
 * another version says so too, once its version knows of the lock that its users hold. */
bool nic_meeting_left(int fd, const struct stat *st)
{
    enum { HELD_SINCE_VERSION = 3 };
    struct {
        uint64_t magic;
        uint32_t version;
    } head;
    if (st->st_size == 0)
        return true; /* who has just made it locks it first, and starts anew if it is gone by then
                      */
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head)
        return false;
    if (head.magic == 0)
        return true;
    bool ours = head.magic == MEETING_MAGIC ? head.version >= HELD_SINCE_VERSION
                                            : st->st_size == (off_t)sizeof(struct meeting);
    return ours && !nic_meeting_held(fd);
}

/* What a killed last member left of another port of ours goes, when nobody is using it. One in use
 * is not even locked: we may get no processor for long while its members look for each other. */
static void clear_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (nic_meeting_held(fd)) {
        close(fd);
        return;
    }
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
        st.st_nlink == 1 && S_ISREG(st.st_mode) && nic_meeting_left(fd, &st))
        unlink(path);
    nic_port_unlock(fd);
}

void nic_meeting_clear_others(const char *own_path)
{
    char prefix[48], path[512];
    snprintf(prefix, sizeof prefix, "softnic-%u-", (unsigned)geteuid());
    DIR *dir = opendir("/dev/shm");
    if (dir == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        snprintf(path, sizeof path, "/dev/shm/%s", entry->d_name);
        if (strcmp(path, own_path) != 0)
            clear_file(path);
    }
    closedir(dir);
}

/* Lock it, or ETIMEDOUT: a process that was stopped may hold the lock for ever. */
int nic_meeting_lock(int fd, int how, unsigned tries)
{
    while (flock(fd, how | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return errno;
        if (tries-- == 0)
            return ETIMEDOUT;
        usleep(LOCK_STEP_US);
    }
    return 0;
}

/* Open the file of this name and lock it; again if it was unlinked before the lock came. */
int nic_meeting_open(const char *path, int flags, int how, unsigned tries, int *out)
{
    for (;;) {
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
        if (fd < 0)
            return errno;
        struct stat st;
        int err = nic_meeting_lock(fd, how, tries);
        if (err != 0) {
            close(fd);
            return err;
        }
        if (fstat(fd, &st) != 0)
            err = errno;
        if (err == 0 && st.st_nlink > 0) {
            *out = fd;
            return 0;
        }
        nic_port_unlock(fd);
        if (err != 0)
            return err;
    }
}

/* Visitors only read, so they do not keep each other out: in a large world all come at once. */
int nic_port_visit(uint32_t ip, struct meeting **out, int *out_fd)
{
    char path[64];
    int fd = -1;
    nic_port_path(ip, path, sizeof path);
    int err = nic_meeting_open(path, 0, LOCK_SH, VISIT_TRIES, &fd);
    if (err != 0)
        return err;
    struct stat st;
    struct meeting *meeting = NULL;
    if (fstat(fd, &st) != 0 || st.st_size != (off_t)sizeof *meeting || st.st_uid != geteuid())
        err = EPROTO;
    else if ((meeting = nic_meeting_map(fd)) == NULL)
        err = errno;
    else if (!nic_meeting_readable(meeting, &st) || meeting->pid_namespace != nic_pid_namespace())
        err = EPROTO;
    if (err != 0) {
        if (meeting != NULL)
            munmap(meeting, sizeof *meeting);
        nic_port_unlock(fd);
        return err;
    }
    *out = meeting;
    *out_fd = fd;
    return 0;
}
