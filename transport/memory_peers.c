/* SPDX-License-Identifier: MIT */
/* The memory of the other ranks of the node: found through their directories, mapped once. */
#include "transport/memory.h"
#include "transport/memory_private.h"
#include "transport/world.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t memory_inode(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static int proc_open(pid_t pid, int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Map what the peer's fd stands for, if it is still the file that the peer meant. */
static void *peer_map(pid_t pid, int fd, uint64_t inode, size_t size)
{
    int file = proc_open(pid, fd), err = ESTALE;
    if (file < 0)
        return NULL;
    void *mapped = MAP_FAILED;
    struct stat status;
    if (fstat(file, &status) == 0 && (uint64_t)status.st_ino == inode &&
        (size_t)status.st_size >= size) {
        mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        err = errno;
    }
    close(file);
    errno = err;
    return mapped == MAP_FAILED ? NULL : mapped;
}

static void mapping_drop(const struct peer_memory *peer, struct mapping *mapping)
{
    if (mapping->local && !peer->same_process)
        munmap(mapping->local, mapping->size);
    *mapping = (struct mapping){0};
}

static struct mapping *mapping_make(struct peer_memory *peer, uint32_t index, uint64_t generation)
{
    struct entry *entry = &peer->directory->entries[index];
    struct mapping *mapping = &peer->mappings[index];
    mapping_drop(peer, mapping);
    uint64_t base = atomic_load_explicit(&entry->base, memory_order_relaxed);
    size_t size = atomic_load_explicit(&entry->size, memory_order_relaxed);
    void *local = peer->same_process
                      ? (void *)(uintptr_t)base
                      : peer_map(peer->pid, atomic_load_explicit(&entry->fd, memory_order_relaxed),
                                 atomic_load_explicit(&entry->inode, memory_order_relaxed), size);
    if (!local)
        return NULL;
    *mapping = (struct mapping){
        .local = local, .base = base, .size = size, .generation = generation, .entry = entry};
    return mapping;
}

static bool mapping_holds(const struct mapping *mapping, uint64_t address, size_t bytes)
{
    uint64_t offset = address - mapping->base;
    return offset <= mapping->size && bytes <= mapping->size - offset;
}

static void *mapping_at(const struct mapping *mapping, uint64_t address)
{
    return (char *)mapping->local + (address - mapping->base);
}

static void *peer_search(struct peer_memory *peer, uint64_t address, size_t bytes)
{
    uint32_t count = atomic_load_explicit(&peer->directory->count, memory_order_acquire);
    errno = EFAULT;
    for (uint32_t i = 0; i < count && i < DIRECTORY_ENTRIES; i++) {
        struct entry *entry = &peer->directory->entries[i];
        uint64_t generation = atomic_load_explicit(&entry->generation, memory_order_acquire);
        struct mapping *mapping = &peer->mappings[i];
        if (mapping->local && mapping->generation != generation) {
            if (peer->last == mapping)
                peer->last = NULL;
            mapping_drop(peer, mapping);
        }
        if (!(generation & 1))
            continue;
        uint64_t offset = address - atomic_load_explicit(&entry->base, memory_order_relaxed);
        size_t size = atomic_load_explicit(&entry->size, memory_order_relaxed);
        if (offset > size || bytes > size - offset)
            continue;
        if (!mapping->local)
            mapping = mapping_make(peer, i, generation);
        if (!mapping || !mapping_holds(mapping, address, bytes))
            return NULL;
        peer->last = mapping;
        return mapping_at(mapping, address);
    }
    return NULL;
}

void *memory_peer(struct sstar_world *world, int rank, uint64_t address, size_t bytes)
{
    struct peer_memory *peer = world->node_memory->peers[rank];
    if (!peer) {
        errno = EFAULT;
        return NULL;
    }
    const struct mapping *last = peer->last;
    if (last && mapping_holds(last, address, bytes) &&
        atomic_load_explicit(&last->entry->generation, memory_order_acquire) == last->generation)
        return mapping_at(last, address);
    return peer_search(peer, address, bytes);
}

/* What this process lacks, as an errno with its remedy; 0: it is not that. */
static int lacks(int why, const char **remedy)
{
    *remedy =
        why == EMFILE || why == ENFILE
            ? "raise the limit of open files (ulimit -n)"
            : "raise the limit of address space (ulimit -v) or of mappings (vm.max_map_count)";
    return why == EMFILE || why == ENFILE || why == ENOMEM ? why : 0;
}

int memory_peer_missing(struct sstar_world *world, int rank, const char *who)
{
    const char *remedy;
    int why = lacks(errno, &remedy);
    if (why)
        return world_fail(world, -why, "%s: rank %d cannot map the memory of rank %d: %s; %s", who,
                          world->rank, rank, strerror(why), remedy);
    if (control_await_news(world) < 0)
        return world->failed;
    return world_fail(world, -EFAULT, "%s: rank %d cannot map the memory of rank %d of its node",
                      who, world->rank, rank);
}

bool memory_same_process(const struct sstar_world *world, int rank)
{
    const struct peer_memory *peer = world->node_memory->peers[rank];
    return peer && peer->same_process;
}

void peer_memory_close(struct peer_memory *peer)
{
    if (!peer)
        return;
    for (int i = 0; peer->mappings && i < DIRECTORY_ENTRIES; i++)
        mapping_drop(peer, &peer->mappings[i]);
    free(peer->mappings);
    if (peer->directory && !peer->same_process)
        munmap(peer->directory, sizeof *peer->directory);
    free(peer);
}

/* Whether that file is open in this very process under the same number (a pid may mean another
 * process in another container). */
static bool is_same_process(const struct sstar_world *world, int rank,
                            const struct introduction *it)
{
    return world->ranks[rank].pid == getpid() && memory_inode(it->fd) == it->inode;
}

static int peer_refused(struct sstar_world *world, int rank, const char *why)
{
    if (control_await_news(world) < 0)
        return world->failed;
    return report_set(&world->report, -EPROTO,
                      "rank %d (pid %d) counts as one node with rank %d, but its memory cannot be "
                      "shared: %s; start them with one user and one pid namespace, or with "
                      "SSTAR_RANKS_PER_NODE=1",
                      rank, (int)world->ranks[rank].pid, world->rank, why);
}

int peer_memory_open(struct sstar_world *world, int rank, const struct introduction *it)
{
    if (it->magic != DIRECTORY_MAGIC || it->version != DIRECTORY_VERSION ||
        it->size != sizeof(struct directory))
        return peer_refused(world, rank, "it was built from another version of sstar");
    struct peer_memory *peer = calloc(1, sizeof *peer);
    struct mapping *mappings = calloc(DIRECTORY_ENTRIES, sizeof *mappings);
    if (!peer || !mappings) {
        free(mappings);
        free(peer);
        return report_set(&world->report, -ENOMEM, "out of memory");
    }
    peer->pid = world->ranks[rank].pid;
    peer->mappings = mappings;
    peer->same_process = is_same_process(world, rank, it);
    peer->directory = peer->same_process
                          ? (void *)(uintptr_t)it->address
                          : peer_map(peer->pid, it->fd, it->inode, sizeof(struct directory));
    world->node_memory->peers[rank] = peer;
    if (!peer->directory) {
        const char *remedy;
        int why = lacks(errno, &remedy);
        return why ? report_set(&world->report, -why,
                                "rank %d cannot map the memory of rank %d: %s; %s", world->rank,
                                rank, strerror(why), remedy)
                   : peer_refused(world, rank, "its file in /proc cannot be opened");
    }
    if (peer->directory->magic != DIRECTORY_MAGIC || peer->directory->nonce != it->nonce)
        return peer_refused(world, rank, "the memory found there is not the one it means");
    return 0;
}
