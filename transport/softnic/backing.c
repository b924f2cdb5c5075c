/* SPDX-License-Identifier: MIT */
/*
 * What stands behind a range of memory. A range that one shared file backs, a memfd or a file under
 * /dev/shm, can be mapped by peers, if we have a descriptor for it; all else is reached through
 * the kernel.
 */
#include "transport/softnic/nic.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct fd_share {
    struct fd_share *next;
    dev_t dev;
    ino_t ino;
    int fd;
    uint32_t refs;
};

/* What /proc/self/maps says of one range. */
struct backing {
    bool covered, shared;
    dev_t dev;
    ino_t ino;
    uint64_t start, offset; /* an address, and its place in the file */
    char path[256];
};

/* Take one line in. False: the range cannot be covered any more. */
static bool take_line(const char *line, uint64_t *at, uint64_t end, bool write,
                      struct backing *backing, bool first)
{
    uint64_t low, high, offset, inode;
    unsigned major_number, minor_number;
    char rights[8];
    int path_at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64 " %n", &low, &high,
               rights, &offset, &major_number, &minor_number, &inode, &path_at) < 7)
        return true;
    if (high <= *at)
        return true;
    if (low > *at || rights[0] != 'r' || (write && rights[1] != 'w'))
        return false;
    dev_t dev = makedev(major_number, minor_number);
    if (first) {
        backing->shared = rights[3] == 's' && inode != 0;
        backing->dev = dev;
        backing->ino = inode;
        backing->offset = offset + (*at - low);
        snprintf(backing->path, sizeof backing->path, "%s", path_at > 0 ? line + path_at : "");
        backing->path[strcspn(backing->path, "\n")] = '\0';
        backing->start = *at;
    } else if (backing->shared) {
        backing->shared = rights[3] == 's' && dev == backing->dev && inode == backing->ino &&
                          offset == backing->offset + (low - backing->start);
    }
    *at = high;
    backing->covered = high >= end;
    return !backing->covered;
}

static int read_maps(uint64_t start, uint64_t end, bool write, struct backing *backing)
{
    char line[4608];
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return errno;
    uint64_t at = start;
    while (fgets(line, sizeof line, maps) != NULL) {
        uint64_t before = at;
        if (!take_line(line, &at, end, write, backing, before == start))
            break;
    }
    fclose(maps);
    return backing->covered ? 0 : EFAULT;
}

/* The descriptor may be anybody's, even closed by now: looked at by path, since ThreadSanitizer
 * takes an fstat for a use that races with its owner's open and close. */
static bool same_file(int fd, const struct backing *backing)
{
    struct stat st;
    return fstatat(fd, "", &st, AT_EMPTY_PATH) == 0 && st.st_dev == backing->dev &&
           st.st_ino == backing->ino;
}

/* A descriptor of ours for the file, a new one; -ENOENT if there is none to be had, -EMFILE or
 * -ENFILE if for want of descriptors. */
static int find_fd(const struct backing *backing)
{
    if (strncmp(backing->path, "/dev/shm/", 9) == 0) {
        int fd = open(backing->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0 && same_file(fd, backing))
            return fd;
        if (fd >= 0)
            close(fd);
    }
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL)
        return nic_no_fd_left(errno) ? -errno : -ENOENT;
    int found = -ENOENT;
    for (struct dirent *entry; found == -ENOENT && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        int fd = atoi(entry->d_name);
        if (fd == dirfd(dir) || !same_file(fd, backing) ||
            (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
            continue;
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (copy < 0 && nic_no_fd_left(errno))
            found = -errno;
        /* The number may have been closed and reused since we looked. */
        else if (copy >= 0 && !same_file(copy, backing))
            close(copy);
        else if (copy >= 0)
            found = copy;
    }
    closedir(dir);
    return found;
}

/* 0 or an errno. */
static int share_get(struct ctx *ctx, const struct backing *backing, struct fd_share **out)
{
    for (struct fd_share *share = ctx->shares; share != NULL; share = share->next) {
        if (share->dev == backing->dev && share->ino == backing->ino) {
            share->refs++;
            *out = share;
            return 0;
        }
    }
    struct fd_share *share = malloc(sizeof *share);
    if (share == NULL)
        return ENOMEM;
    int fd = find_fd(backing);
    if (fd < 0) {
        free(share);
        return -fd;
    }
    *share = (struct fd_share){ctx->shares, backing->dev, backing->ino, fd, 1};
    *out = ctx->shares = share;
    return 0;
}

/* Under ctx->lock. 0 with *share NULL if peers cannot map it; EFAULT if it is not all there. Others
 * that share the memory add to it with instructions, which what goes through the kernel does not
 * see: so to have no descriptor left just now is a failure and not another way. */
int nic_backing_find(struct ctx *ctx, const void *addr, size_t length, bool write,
                     struct fd_share **share, uint64_t *offset)
{
    struct backing backing = {0};
    uint64_t start = (uint64_t)(uintptr_t)addr;
    *share = NULL;
    int err = read_maps(start, start + length, write, &backing);
    if (err == 0 && backing.shared)
        err = share_get(ctx, &backing, share);
    *offset = backing.offset;
    return err == ENOENT ? 0 : err;
}

int nic_share_fd(const struct fd_share *share)
{
    return share->fd;
}

void nic_share_put(struct ctx *ctx, struct fd_share *share)
{
    if (share == NULL || --share->refs > 0)
        return;
    struct fd_share **at = &ctx->shares;
    while (*at != share)
        at = &(*at)->next;
    *at = share->next;
    close(share->fd);
    free(share);
}

/* Of regions that were never deregistered. */
void nic_share_close_all(struct ctx *ctx)
{
    while (ctx->shares != NULL) {
        struct fd_share *share = ctx->shares;
        ctx->shares = share->next;
        close(share->fd);
        free(share);
    }
}
