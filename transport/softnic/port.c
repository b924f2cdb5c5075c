/* SPDX-License-Identifier: MIT */
/* Joining and leaving a port: the meeting file under /dev/shm, and what follows from its name. */
#include "transport/softnic/nic.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint32_t ip_of_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325ull ^ geteuid();
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    hash ^= hash >> 32;
    hash = (hash ^ hash >> 24) & 0xffffff;
    if (hash == 0 || hash == 0xffffff)
        hash = 1;
    return 10u << 24 | (uint32_t)hash;
}

void nic_port_path(uint32_t ip, char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/softnic-%u-%u.%u.%u.%u", (unsigned)geteuid(), ip >> 24,
             ip >> 16 & 255, ip >> 8 & 255, ip & 255);
}

/* Index 0 is link-local, made as from the MAC address 02:00:10.a.b.c; index 1 is the mapped IPv4.
 */
void nic_gid_of_ip(uint32_t ip, int index, union ibv_gid *gid)
{
    uint8_t octets[4] = {(uint8_t)(ip >> 24), (uint8_t)(ip >> 16), (uint8_t)(ip >> 8), (uint8_t)ip};
    memset(gid, 0, sizeof *gid);
    if (index == 0) {
        const uint8_t head[12] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, octets[0], 0xff};
        memcpy(gid->raw, head, sizeof head);
        gid->raw[12] = 0xfe;
        memcpy(gid->raw + 13, octets + 1, 3);
    } else {
        gid->raw[10] = gid->raw[11] = 0xff;
        memcpy(gid->raw + 12, octets, sizeof octets);
    }
}

uint32_t nic_ip_of_gid(const union ibv_gid *gid)
{
    uint32_t ip =
        10u << 24 | (uint32_t)gid->raw[13] << 16 | (uint32_t)gid->raw[14] << 8 | gid->raw[15];
    for (int index = 0; index < 2; index++) {
        union ibv_gid ours;
        nic_gid_of_ip(ip, index, &ours);
        if (memcmp(&ours, gid, sizeof ours) == 0)
            return ip;
    }
    return 0;
}

static uint64_t pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

/* Forget members that were killed. Number of those that live. */
static unsigned clear_dead(struct meeting *meeting)
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

static bool readable(const struct meeting *meeting, const struct stat *st)
{
    return st->st_size == (off_t)sizeof *meeting && meeting->magic == MEETING_MAGIC &&
           meeting->version == SHARED_VERSION && meeting->size == sizeof *meeting;
}

static struct meeting *map_meeting(int fd)
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

/* What a killed last member left of another port of ours goes, when nobody is using it. */
static void clear_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
        st.st_nlink == 1 && S_ISREG(st.st_mode)) {
        struct meeting *meeting = NULL;
        if (st.st_size == (off_t)sizeof *meeting)
            meeting = map_meeting(fd);
        if (meeting != NULL && readable(meeting, &st) &&
            meeting->pid_namespace == pid_namespace() && clear_dead(meeting) == 0)
            unlink(path);
        if (meeting != NULL)
            munmap(meeting, sizeof *meeting);
    }
    nic_port_unlock(fd);
}

static void clear_other_ports(const char *own_path)
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

/* Open the file of this name and lock it; again if it was unlinked before the lock came. */
static int open_locked(const char *path, int flags, int *out)
{
    for (;;) {
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
        if (fd < 0)
            return errno;
        struct stat st;
        int err = 0;
        while (flock(fd, LOCK_EX) != 0) {
            if (errno != EINTR) {
                err = errno;
                break;
            }
        }
        if (err == 0 && fstat(fd, &st) != 0)
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

static int start_anew(struct ctx *ctx, int fd, struct meeting **out)
{
    int err = ftruncate(fd, 0) != 0 ? errno : posix_fallocate(fd, 0, sizeof(struct meeting));
    if (err != 0) {
        nic_error(ctx, "no room for %zu bytes at %s: %s", sizeof(struct meeting), ctx->path,
                  strerror(err));
        return err;
    }
    struct meeting *meeting = map_meeting(fd);
    if (meeting == NULL)
        return errno;
    meeting->version = SHARED_VERSION;
    meeting->size = sizeof *meeting;
    meeting->pid_namespace = pid_namespace();
    memcpy(meeting->name, ctx->port_name, sizeof meeting->name);
    __atomic_store_n(&meeting->magic, MEETING_MAGIC, __ATOMIC_RELEASE);
    *out = meeting;
    return 0;
}

/* Map what is there, or make it. *others: members that live. */
static int attach(struct ctx *ctx, int fd, struct meeting **out, unsigned *others)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return errno;
    *others = 0;
    if (st.st_uid != geteuid()) {
        nic_error(ctx, "%s belongs to user %u, not to us", ctx->path, (unsigned)st.st_uid);
        return EPERM;
    }
    uint64_t magic = 0;
    if (st.st_size == 0 || (pread(fd, &magic, sizeof magic, 0) == sizeof magic && magic == 0))
        return start_anew(ctx, fd, out);
    if (st.st_size != (off_t)sizeof(struct meeting)) {
        nic_error(ctx, "%s was made by another version of softnic: end its users or remove it",
                  ctx->path);
        return EPROTO;
    }
    struct meeting *meeting = map_meeting(fd);
    if (meeting == NULL)
        return errno;
    int err = 0;
    if (!readable(meeting, &st)) {
        nic_error(ctx, "%s was made by another version of softnic: end its users or remove it",
                  ctx->path);
        err = EPROTO;
    } else if (meeting->pid_namespace != pid_namespace()) {
        nic_error(ctx, "%s is in use from another pid namespace (container)", ctx->path);
        err = EPERM;
    } else if ((*others = clear_dead(meeting)) > 0 &&
               strncmp(meeting->name, ctx->port_name, sizeof meeting->name) != 0) {
        nic_error(ctx, "the names %s and %s fall on one GID: choose another", ctx->port_name,
                  meeting->name);
        err = EEXIST;
    }
    if (err != 0 || *others == 0) {
        munmap(meeting, sizeof *meeting);
        return err != 0 ? err : start_anew(ctx, fd, out);
    }
    *out = meeting;
    return 0;
}

static int settle_wire(struct ctx *ctx, struct meeting *meeting, const struct softnic_attr *attr,
                       bool first)
{
    struct softnic_wire wire = {0}, there;
    bool given = attr->wire != NULL;
    if (given)
        wire = *attr->wire;
    else if (nic_wire_env(&wire, &given) != 0) {
        nic_error(ctx, "SOFTNIC_ALPHA_US, SOFTNIC_GAP_US and SOFTNIC_BETA_GBPS take a number that "
                       "is not negative");
        return EINVAL;
    }
    if (nic_wire_check(&wire) != 0) {
        nic_error(ctx, "alpha %g us, gap %g us, beta %g GB/s is no shape of a wire", wire.alpha_us,
                  wire.gap_us, wire.beta_gbps);
        return EINVAL;
    }
    if (first) {
        nic_wire_store(meeting, &wire);
        return 0;
    }
    nic_wire_load(meeting, &there);
    if (given && (there.alpha_us != wire.alpha_us || there.gap_us != wire.gap_us ||
                  there.beta_gbps != wire.beta_gbps)) {
        nic_error(ctx, "port %s is open with another wire (alpha %g us, gap %g us, beta %g GB/s)",
                  ctx->port_name, there.alpha_us, there.gap_us, there.beta_gbps);
        return EBUSY;
    }
    return 0;
}

static int take_slot(struct ctx *ctx, struct meeting *meeting)
{
    uint32_t generation = ++meeting->generation;
    for (uint32_t i = 0; i < MEMBERS_MAX; i++) {
        uint32_t slot = (generation + i) % MEMBERS_MAX;
        struct meeting_member *m = &meeting->member[slot];
        if (atomic_load(&m->live) != 0)
            continue;
        ctx->slot = slot;
        ctx->member->slot = slot;
        ctx->member->generation = generation;
        ctx->member->ip = ctx->ip;
        m->generation = generation;
        m->pid = ctx->pid;
        m->fd = ctx->member_fd;
        m->start_time = ctx->start_time;
        m->address = (uint64_t)(uintptr_t)ctx->member;
        atomic_store(&m->live, 1);
        return 0;
    }
    nic_error(ctx, "port %s is open %d times, which is all it takes", ctx->port_name, MEMBERS_MAX);
    return EBUSY;
}

/* ctx->member exists and is told to the others here. */
int nic_port_join(struct ctx *ctx, const struct softnic_attr *attr)
{
    struct meeting *meeting = NULL;
    unsigned others = 0;
    int fd = -1;
    ctx->ip = ip_of_name(ctx->port_name);
    nic_port_path(ctx->ip, ctx->path, sizeof ctx->path);
    clear_other_ports(ctx->path);
    int err = open_locked(ctx->path, O_CREAT, &fd);
    if (err != 0) {
        nic_error(ctx, "cannot open %s: %s%s", ctx->path, strerror(err),
                  err == EACCES ? " (it belongs to another user)" : "");
        return err;
    }
    err = attach(ctx, fd, &meeting, &others);
    if (err == 0)
        err = settle_wire(ctx, meeting, attr, others == 0);
    if (err == 0)
        err = take_slot(ctx, meeting);
    if (err != 0) {
        if (meeting != NULL) {
            if (others == 0)
                unlink(ctx->path);
            munmap(meeting, sizeof *meeting);
        } else if (err == ENOSPC) {
            unlink(ctx->path);
        }
        nic_port_unlock(fd);
        return err;
    }
    ctx->meeting = meeting;
    ctx->meeting_fd = fd;
    flock(fd, LOCK_UN);
    return 0;
}

void nic_port_leave(struct ctx *ctx)
{
    flock(ctx->meeting_fd, LOCK_EX);
    atomic_store(&ctx->meeting->member[ctx->slot].live, 0);
    atomic_store(&ctx->member->closed, 1);
    if (clear_dead(ctx->meeting) == 0)
        unlink(ctx->path);
    nic_member_unref(ctx->member);
    ctx->member = NULL;
    munmap(ctx->meeting, sizeof *ctx->meeting);
    nic_port_unlock(ctx->meeting_fd);
}

int nic_port_visit(uint32_t ip, struct meeting **out, int *out_fd)
{
    char path[64];
    int fd;
    nic_port_path(ip, path, sizeof path);
    int err = open_locked(path, 0, &fd);
    if (err != 0)
        return err;
    struct stat st;
    struct meeting *meeting = NULL;
    if (fstat(fd, &st) != 0 || st.st_size != (off_t)sizeof *meeting || st.st_uid != geteuid())
        err = EPROTO;
    else if ((meeting = map_meeting(fd)) == NULL)
        err = errno;
    else if (!readable(meeting, &st) || meeting->pid_namespace != pid_namespace())
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
