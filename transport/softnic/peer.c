/* SPDX-License-Identifier: MIT */
/* Members of ports as we reach them: their memory, their regions, whether they live. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Between two questions to the kernel; about 100 us where the tick is a time stamp counter. */
enum { TICKS_BETWEEN_QUESTIONS = 200000 };

int nic_peer_fd(struct peer *peer, int fd, int flags)
{
    char path[48];
    if (fd < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)peer->pid, fd);
    return open(path, flags | O_CLOEXEC);
}

static struct member *map_member(struct ctx *ctx, struct peer *peer, const struct meeting_member *m)
{
    if (peer->same_process) {
        struct member *member = (struct member *)(uintptr_t)m->address;
        atomic_fetch_add(&member->local_refs, 1);
        return member;
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
    struct stat st;
    void *map = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size == (off_t)MEMBER_BYTES)
        map = mmap(NULL, MEMBER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
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
    if (peer->member != NULL && peer->same_process) {
        /* Under the lock of its port, as the owner's own leaving is. */
        nic_member_unref(peer->member);
    } else if (peer->member != NULL) {
        munmap(peer->member, MEMBER_BYTES);
    }
    for (unsigned i = 0; i < peer->mr_end; i++)
        unmap_region(&peer->mr[i]);
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
    if (nic_port_visit(peer->ip, &meeting, &fd) != 0)
        return false;
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
    pthread_mutex_lock(&ctx->peers_lock);
    struct peer *peer = find(ctx, ip, slot);
    if (peer != NULL) {
        peer->refs++;
    } else if ((peer = calloc(1, sizeof *peer)) != NULL) {
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

/* Mappings of regions that were deregistered. Their owner has waited for all who used them before
 * it let go of `busy`, and so have we: nobody is copying there any more. */
static void sweep(struct peer *peer)
{
    for (unsigned i = 0; i < peer->mr_end; i++) {
        struct mapped_mr *at = &peer->mr[i];
        uint32_t key = atomic_load_explicit(&at->key, memory_order_relaxed);
        struct shared_mr *smr = &peer->member->mr[i];
        if (key == 0 || at->map == NULL ||
            (atomic_load(&smr->busy) && atomic_load(&smr->key) == key))
            continue;
        if (atomic_load(&smr->busy) && atomic_load(&smr->key) == 0)
            continue; /* being taken back */
        atomic_store_explicit(&at->key, 0, memory_order_release);
        unmap_region(at);
    }
}

static void map_region(struct peer *peer, struct mapped_mr *at, const struct shared_mr *smr)
{
    enum { PAGE = 4096 };
    uint64_t first = smr->file_offset / PAGE * PAGE;
    size_t ahead = (size_t)(smr->file_offset - first);
    int fd = nic_peer_fd(peer, smr->fd, O_RDWR);
    at->failed = 1;
    if (fd < 0)
        return;
    size_t size = smr->length - smr->head - smr->tail + ahead;
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)first);
    close(fd);
    if (map == MAP_FAILED)
        return;
    at->map = map;
    at->map_size = size;
    at->base = (uint8_t *)map + ahead;
    at->failed = 0;
}

uint8_t *nic_peer_map_slow(struct peer *peer, uint32_t key)
{
    uint32_t index = key >> 8;
    const struct shared_mr *smr = &peer->member->mr[index];
    struct mapped_mr *at = &peer->mr[index];
    pthread_mutex_lock(&peer->lock);
    if (atomic_load_explicit(&at->key, memory_order_relaxed) != key) {
        sweep(peer);
        if (peer->mr_end <= index)
            peer->mr_end = index + 1;
        unmap_region(at);
        map_region(peer, at, smr);
        atomic_store_explicit(&at->key, key, memory_order_release);
    }
    uint8_t *base = at->failed ? NULL : at->base;
    pthread_mutex_unlock(&peer->lock);
    return base;
}
