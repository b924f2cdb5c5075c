/* SPDX-License-Identifier: MIT */
/* Members of ports as we reach them: their memory, their regions, whether they live. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Between two questions to the kernel; about 100 us where the tick is a time stamp counter. */
enum { TICKS_BETWEEN_QUESTIONS = 200000 };

void nic_pipe_write(int fd, const void *bytes, size_t size)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) && write(fd, bytes, size) < 0) {
        /* full: the owner has been told often enough */
    }
}

/* What follows of it (a peer out of reach, one that is not woken) does not look like its cause. */
static void say_no_fd_left(struct peer *peer)
{
    nic_say(peer->ctx,
            "no file descriptor is left to reach the members of port %s: raise the limit "
            "(ulimit -n)",
            peer->ctx->port_name);
}

/* Nor does that of a peer that cannot be mapped. */
static void say_no_address_space(struct peer *peer, int err)
{
    nic_say(
        peer->ctx,
        "the memory of a member of port %s cannot be mapped (%llu MiB of address space): %s; raise "
        "the limit (ulimit -v)",
        peer->ctx->port_name, MEMBER_BYTES >> 20, strerror(err));
}

int nic_peer_fd(struct peer *peer, int fd, int flags)
{
    char path[48];
    if (fd < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)peer->pid, fd);
    int got = open(path, flags | O_CLOEXEC), err = errno;
    if (got < 0 && nic_no_fd_left(err))
        say_no_fd_left(peer);
    errno = err;
    return got;
}

/* Of a size that stays. */
static bool is_sealed(int fd)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &st) == 0 &&
           st.st_size == (off_t)MEMBER_BYTES;
}

static struct member *map_member(struct ctx *ctx, struct peer *peer, const struct meeting_member *m)
{
    if (peer->same_process) {
        peer->own = nic_own_get(peer->ip, peer->slot);
        return peer->own != NULL ? peer->own->member : NULL;
    }
    int fd = nic_peer_fd(peer, m->fd, O_RDWR);
    if (fd < 0) {
        if (errno == EACCES || errno == EPERM)
            nic_say(ctx,
                    "the kernel lets us not open the memory of process %d: both must run as "
                    "one user, with the same capabilities, and be dumpable",
                    (int)peer->pid);
        return NULL;
    }
    void *map = MAP_FAILED;
    int err = 0;
    if (is_sealed(fd)) {
        map = mmap(NULL, MEMBER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        err = map == MAP_FAILED ? errno : 0;
    }
    close(fd);
    if (err != 0)
        say_no_address_space(peer, err);
    if (map == MAP_FAILED)
        return NULL;
    struct member *member = map;
    if (member->magic == MEMBER_MAGIC && member->version == SHARED_VERSION &&
        member->pid == peer->pid && member->generation == m->generation)
        return member;
    munmap(map, MEMBER_BYTES);
    return NULL;
}

static void unmap_region(struct mapped_mr *at)
{
    if (at->map != NULL)
        munmap(at->map, at->map_size);
    at->map = NULL;
    at->base = NULL;
}

static void peer_free(struct ctx *ctx, struct peer *peer)
{
    if (peer->own != NULL) {
        nic_own_put(peer->own);
    } else if (peer->member != NULL) {
        munmap(peer->member, MEMBER_BYTES);
    }
    for (unsigned i = 0; i < peer->mr_end; i++)
        unmap_region(&peer->mr[i]);
    while (peer->graves != NULL) {
        struct grave *grave = peer->graves;
        peer->graves = grave->next;
        munmap(grave->map, grave->map_size);
        free(grave);
    }
    free(peer->mr);
    if (peer->meeting != NULL && peer->meeting != ctx->meeting)
        munmap(peer->meeting, sizeof *peer->meeting);
    if (peer->pidfd >= 0)
        close(peer->pidfd);
    if (peer->wake_fd >= 0)
        close(peer->wake_fd);
    pthread_mutex_destroy(&peer->lock);
    free(peer);
}

/* Fill `peer` from what stands in its port's meeting file. */
static bool look_up(struct ctx *ctx, struct peer *peer)
{
    struct meeting *meeting;
    int fd;
    int err = nic_port_visit(peer->ip, &meeting, &fd);
    if (err != 0) {
        if (nic_no_fd_left(err))
            say_no_fd_left(peer);
        else if (err == ENOMEM)
            say_no_address_space(peer, err);
        return false;
    }
    const struct meeting_member *m = &meeting->member[peer->slot];
    if (atomic_load(&m->live) != 0 && nic_alive(m->pid, m->start_time)) {
        peer->pid = m->pid;
        peer->start_time = m->start_time;
        peer->generation = m->generation;
        peer->same_process = m->pid == ctx->pid && m->start_time == ctx->start_time;
        peer->member = map_member(ctx, peer, m);
    }
    nic_port_unlock(fd);
    if (peer->ip == ctx->ip) {
        munmap(meeting, sizeof *meeting);
        meeting = ctx->meeting;
    }
    peer->meeting = meeting;
    peer->order = atomic_load(&meeting->mode) & PORT_ORDER;
    if (peer->member == NULL)
        return false;
    peer->table = peer->own != NULL ? peer->own->mr : peer->member->mr;
    peer->pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0); /* -1: /proc must do */
    return nic_alive(peer->pid, peer->start_time);
}

static struct peer *find(struct ctx *ctx, uint32_t ip, uint32_t slot)
{
    for (struct peer *peer = ctx->peers; peer != NULL; peer = peer->next) {
        if (peer->ip == ip && peer->slot == slot && !nic_peer_dead(peer))
            return peer;
    }
    return NULL;
}

/* The member that has this slot now, NULL if none that we can reach. */
struct peer *nic_peer_get(struct ctx *ctx, uint32_t ip, uint32_t slot)
{
    if (slot >= MEMBERS_MAX)
        return NULL;
    pthread_mutex_lock(&ctx->peers_lock);
    struct peer *peer = find(ctx, ip, slot);
    if (peer != NULL) {
        peer->refs++;
    } else if ((peer = calloc(1, sizeof *peer)) != NULL) {
        peer->ctx = ctx;
        peer->ip = ip;
        peer->slot = slot;
        peer->refs = 1;
        peer->pidfd = peer->wake_fd = -1;
        pthread_mutex_init(&peer->lock, NULL);
        peer->mr = calloc(MRS_MAX, sizeof *peer->mr);
        if (peer->mr != NULL && look_up(ctx, peer)) {
            peer->next = ctx->peers;
            ctx->peers = peer;
        } else {
            peer_free(ctx, peer);
            peer = NULL;
        }
    }
    pthread_mutex_unlock(&ctx->peers_lock);
    return peer;
}

void nic_peer_put(struct ctx *ctx, struct peer *peer)
{
    pthread_mutex_lock(&ctx->peers_lock);
    if (--peer->refs == 0) {
        struct peer **at = &ctx->peers;
        while (*at != peer)
            at = &(*at)->next;
        *at = peer->next;
        peer_free(ctx, peer);
    }
    pthread_mutex_unlock(&ctx->peers_lock);
}

bool nic_peer_dead(struct peer *peer)
{
    if (atomic_load_explicit(&peer->dead, memory_order_relaxed) ||
        atomic_load_explicit(&peer->member->closed, memory_order_acquire))
        return true;
    if (peer->same_process)
        return false;
    bool dead;
    if (peer->pidfd >= 0) {
        struct pollfd ask = {.fd = peer->pidfd, .events = POLLIN};
        dead = poll(&ask, 1, 0) > 0;
    } else {
        dead = !nic_alive(peer->pid, peer->start_time);
    }
    if (dead)
        atomic_store(&peer->dead, 1);
    return dead;
}

bool nic_peer_dead_maybe(struct peer *peer)
{
    if (atomic_load_explicit(&peer->member->closed, memory_order_relaxed))
        return true;
    if (peer->same_process)
        return false;
    uint64_t tick = nic_tick();
    uint64_t asked = atomic_load_explicit(&peer->asked_tick, memory_order_relaxed);
    if (tick - asked < TICKS_BETWEEN_QUESTIONS)
        return atomic_load_explicit(&peer->dead, memory_order_relaxed);
    atomic_store_explicit(&peer->asked_tick, tick, memory_order_relaxed);
    return nic_peer_dead(peer);
}

/* Is no thread but this one in the middle of a request? */
static bool alone(const struct qp *self)
{
    struct ctx *ctx = self->ctx;
    bool alone = atomic_load(&ctx->late.count) == 0;
    if (!alone || pthread_mutex_trylock(&ctx->lock) != 0) /* queue pairs stay while it is held */
        return false;
    for (unsigned slot = 0; slot < QPS_MAX; slot++) {
        const struct qp *qp = atomic_load(&ctx->qps[slot]);
        alone &= qp == NULL || qp == self || atomic_load(&qp->sq_lock.held) == 0;
    }
    pthread_mutex_unlock(&ctx->lock);
    return alone;
}

/* Nobody finds the mapping any more, but somebody may be copying through it. */
static void bury(struct peer *peer, struct mapped_mr *at, const struct qp *qp)
{
    struct grave *grave = at->map != NULL ? malloc(sizeof *grave) : NULL;
    atomic_store(&at->key, 0);
    if (grave != NULL) {
        *grave = (struct grave){peer->graves, at->map, at->map_size, qp, qp->sq_executed};
        peer->graves = grave;
    }
    at->map = NULL;
    at->base = NULL;
}

static void unmap_buried(struct peer *peer, const struct qp *qp)
{
    if (peer->graves == NULL || !alone(qp))
        return;
    for (struct grave **at = &peer->graves, *grave; (grave = *at) != NULL;) {
        if (grave->qp == qp && grave->request == qp->sq_executed) {
            at = &grave->next;
            continue;
        }
        *at = grave->next;
        munmap(grave->map, grave->map_size);
        free(grave);
    }
}

/* Mappings of regions that were deregistered. Their owner says that it has waited for all who used
 * them; whether that is so we see for ourselves before they go. */
static void sweep(struct peer *peer, const struct qp *qp)
{
    for (unsigned i = 0; i < peer->mr_end; i++) {
        struct mapped_mr *at = &peer->mr[i];
        uint32_t key = atomic_load_explicit(&at->key, memory_order_relaxed);
        struct shared_mr *smr = &peer->member->mr[i];
        uint32_t there = atomic_load(&smr->key);
        if (key == 0 || at->map == NULL ||
            (atomic_load(&smr->busy) && (there == key || there == 0))) /* 0: being taken back */
            continue;
        bury(peer, at, qp);
    }
    unmap_buried(peer, qp);
}

/* The part of a file that is the region, if it is a file that has it. */
static void *map_file(int fd, uint64_t offset, uint64_t length)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size < offset ||
        (uint64_t)st.st_size - offset < length)
        return MAP_FAILED;
    return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
}

/* False: for want of a descriptor, which may pass. */
static bool map_region(struct peer *peer, struct mapped_mr *at, const struct shared_mr *smr)
{
    enum { PAGE = 4096 };
    uint64_t offset = nic_once(smr->file_offset), length = nic_once(smr->length);
    uint16_t head = nic_once(smr->head), tail = nic_once(smr->tail);
    length = length > (uint64_t)head + tail ? length - head - tail : 0;
    uint64_t ahead = offset % PAGE;
    int fd = length < UINT64_MAX - ahead ? nic_peer_fd(peer, nic_once(smr->fd), O_RDWR) : -1;
    at->failed = 1;
    if (fd < 0)
        return length >= UINT64_MAX - ahead || !nic_no_fd_left(errno);
    void *map = map_file(fd, offset - ahead, length + ahead);
    close(fd);
    if (map == MAP_FAILED)
        return true;
    at->map = map;
    at->map_size = length + ahead;
    at->base = (uint8_t *)map + ahead;
    at->addr = nic_once(smr->addr) + head;
    at->length = length;
    at->failed = 0;
    return true;
}

const struct mapped_mr *nic_peer_map_slow(struct peer *peer, uint32_t key, const struct qp *qp)
{
    uint32_t index = key >> 8;
    const struct shared_mr *smr = &peer->member->mr[index];
    struct mapped_mr *at = &peer->mr[index];
    pthread_mutex_lock(&peer->lock);
    if (atomic_load_explicit(&at->key, memory_order_relaxed) != key) {
        sweep(peer, qp);
        if (peer->mr_end <= index)
            peer->mr_end = index + 1;
        bury(peer, at, qp);
        if (map_region(peer, at, smr))
            atomic_store_explicit(&at->key, key, memory_order_release);
    }
    pthread_mutex_unlock(&peer->lock);
    return at;
}
