/* SPDX-License-Identifier: MIT */
/*
 * Memory that the ranks of a node share: the segments of this rank, its directory, and the mappings
 * of the other ranks' segments. Registration is in region.c.
 */
#include "transport/memory.h"
#include "transport/available.h"
#include "transport/memory_private.h"
#include "transport/turn.h"
#include "transport/world.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ASK_FIRST = 1 << 20 };

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- segments ------------------------------------------------------------------------------- */

static int segment_error(struct sstar_world *world, int err, const char *call, size_t bytes)
{
    const char *remedy = err == ENOMEM && strcmp(call, "mmap") == 0
                             ? "raise `ulimit -v`, or vm.max_map_count"
                         : err == ENOSPC || err == ENOMEM
                             ? "the machine, or its memory cgroup, has not that much left"
                         : err == EMFILE || err == ENFILE ? "raise `ulimit -n`"
                         : err == EFBIG ? "shared memory counts as a file: raise `ulimit -f`"
                                        : "look at what the system forbids here";
    return report_set(&world->report, -err,
                      "rank %d cannot have %zu bytes of memory to share in its node: %s: %s; %s",
                      world->rank, bytes, call, strerror(err), remedy);
}

/* A memfd of `bytes`, allocated in full so that a full machine is an error here and not SIGBUS
 * later, and mapped. The fd stays open: peers reach it through /proc. */
static int segment_map(struct sstar_world *world, size_t bytes, int *fd, void **memory)
{
    if (bytes >= ASK_FIRST && bytes > memory_available() / 16 * 15)
        return segment_error(world, ENOMEM, "before asking the kernel", bytes);
    /* Of a file beyond this limit the kernel makes SIGXFSZ. */
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        bytes > limit.rlim_cur)
        return segment_error(world, EFBIG, "ftruncate", bytes);
    const char *call = "memfd_create";
    int file = memfd_create("sstar", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0)
        return segment_error(world, errno, call, bytes);
    int err = 0;
    call = "ftruncate";
    if (ftruncate(file, (off_t)bytes) != 0)
        err = errno;
    if (!err) {
        call = "fallocate";
        do
            err = fallocate(file, 0, 0, (off_t)bytes) != 0 ? errno : 0;
        while (err == EINTR);
    }
    if (!err && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        call = "F_ADD_SEALS";
        err = errno;
    }
    void *mapped = MAP_FAILED;
    if (!err) {
        call = "mmap";
        mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        err = mapped == MAP_FAILED ? errno : 0;
    }
    if (err) {
        close(file);
        return segment_error(world, err, call, bytes);
    }
    *fd = file;
    *memory = mapped;
    return 0;
}

static void entry_publish(struct directory *directory, int index, const struct segment *segment)
{
    struct entry *entry = &directory->entries[index];
    atomic_store_explicit(&entry->base, (uintptr_t)segment->memory, memory_order_relaxed);
    atomic_store_explicit(&entry->size, segment->size, memory_order_relaxed);
    atomic_store_explicit(&entry->inode, memory_inode(segment->fd), memory_order_relaxed);
    atomic_store_explicit(&entry->fd, segment->fd, memory_order_relaxed);
    atomic_fetch_add_explicit(&entry->generation, 1, memory_order_release);
    uint32_t count = atomic_load_explicit(&directory->count, memory_order_relaxed);
    if ((uint32_t)index >= count)
        atomic_store_explicit(&directory->count, (uint32_t)index + 1, memory_order_release);
}

static int entry_free_index(const struct node_memory *node)
{
    for (int i = 0; i < DIRECTORY_ENTRIES; i++)
        if (!node->segments[i])
            return i;
    return -1;
}

int sstar_alloc(struct sstar_world *world, size_t size_bytes, void **memory)
{
    WORLD_TURN(world);
    struct node_memory *node = world->node_memory;
    if (world->failed)
        return world->failed;
    if (size_bytes == 0 || size_bytes > SIZE_MAX / 4)
        return report_set(&world->report, -EINVAL, "sstar_alloc: %zu bytes cannot be meant",
                          size_bytes);
    int index = entry_free_index(node);
    if (index < 0)
        return report_set(
            &world->report, -ENOMEM,
            "sstar_alloc: rank %d holds %d pieces of memory already; take fewer and larger ones",
            world->rank, DIRECTORY_ENTRIES);
    struct segment *segment = calloc(1, sizeof *segment);
    if (!segment)
        return report_set(&world->report, -ENOMEM, "out of memory");
    segment->size = round_up(size_bytes, (size_t)sysconf(_SC_PAGESIZE));
    segment->index = index;
    int err = segment_map(world, segment->size, &segment->fd, &segment->memory);
    if (err) {
        free(segment);
        return err;
    }
    segment->region = (struct sstar_region){
        .world = world, .memory = segment->memory, .size_bytes = segment->size, .segment = segment};
    node->segments[index] = segment;
    entry_publish(node->directory, index, segment);
    *memory = segment->memory;
    return 0;
}

/* Ranks that are threads of this process use our mapping. In good order they are done with it when
 * it goes; after a failure they may still be writing, so then it stays until the process ends. */
static void unmap(const struct sstar_world *world, void *memory, size_t bytes)
{
    for (int rank = 0; world->failed && rank < world->size; rank++)
        if (rank != world->rank && memory_same_process(world, rank))
            return;
    munmap(memory, bytes);
}

static void segment_free(const struct sstar_world *world, struct segment *segment)
{
    struct node_memory *node = world->node_memory;
    /* Peers see first that the entry is void, and drop their mappings. After a failure they may
     * still be at work in them (one that was stopped and goes on), so then they keep them. */
    if (!world->failed)
        atomic_fetch_add_explicit(&node->directory->entries[segment->index].generation, 1,
                                  memory_order_release);
    node->segments[segment->index] = NULL;
    if (node->last == segment)
        node->last = NULL;
    segment_unbind(segment);
    unmap(world, segment->memory, segment->size);
    close(segment->fd);
    free(segment);
}

struct segment *memory_segment(struct sstar_world *world, const void *memory, size_t bytes)
{
    struct node_memory *node = world->node_memory;
    if (node->last && region_holds(&node->last->region, memory, bytes))
        return node->last;
    uint32_t count = atomic_load_explicit(&node->directory->count, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        struct segment *segment = node->segments[i];
        if (segment && region_holds(&segment->region, memory, bytes))
            return node->last = segment;
    }
    return NULL;
}

int sstar_free(struct sstar_world *world, void *memory)
{
    WORLD_TURN(world);
    if (!memory)
        return 0;
    /* With a byte: none at all would also lie at the end of the segment before. */
    struct segment *segment = memory_segment(world, memory, 1);
    if (!segment || segment->memory != memory)
        return report_set(&world->report, -EINVAL, "sstar_free: %p was not got from sstar_alloc",
                          memory);
    if (segment->users > 0)
        return report_set(
            &world->report, -EBUSY,
            "sstar_free: %d regions of %p are still registered; deregister them first",
            segment->users, memory);
    segment_free(world, segment);
    return 0;
}

/* ---- opening and closing -------------------------------------------------------------------- */

static int directory_open(struct sstar_world *world)
{
    struct node_memory *node = world->node_memory;
    void *memory;
    int err = segment_map(world, sizeof(struct directory), &node->directory_fd, &memory);
    if (err)
        return err;
    node->directory = memory;
    node->directory->magic = DIRECTORY_MAGIC;
    node->directory->version = DIRECTORY_VERSION;
    node->directory->size = sizeof(struct directory);
    if (getrandom(&node->directory->nonce, sizeof node->directory->nonce, 0) !=
        (ssize_t)sizeof node->directory->nonce)
        return report_set(&world->report, -EIO, "getrandom failed");
    return 0;
}

static int peers_open(struct sstar_world *world, struct introduction *all)
{
    const struct node_memory *node = world->node_memory;
    struct introduction mine = {.nonce = node->directory->nonce,
                                .address = (uintptr_t)node->directory,
                                .inode = memory_inode(node->directory_fd),
                                .magic = DIRECTORY_MAGIC,
                                .version = DIRECTORY_VERSION,
                                .size = sizeof(struct directory),
                                .fd = node->directory_fd};
    int err = sstar_allgather(world, &mine, sizeof mine, all);
    int my_node = world->ranks[world->rank].node;
    for (int rank = 0; rank < world->size && !err; rank++)
        if (world->ranks[rank].node == my_node)
            err = peer_memory_open(world, rank, &all[rank]);
    return err;
}

int node_memory_open(struct sstar_world *world)
{
    struct node_memory *node = calloc(1, sizeof *node);
    struct introduction *all = calloc((size_t)world->size, sizeof *all);
    struct peer_memory **peers = calloc((size_t)world->size, sizeof *peers);
    if (!node || !all || !peers) {
        free(node);
        free(all);
        free(peers);
        return report_set(&world->report, -ENOMEM, "out of memory");
    }
    node->directory_fd = -1;
    node->peers = peers;
    world->node_memory = node;
    int err = directory_open(world);
    if (!err)
        err = peers_open(world, all);
    free(all);
    /* Nobody may leave before all have mapped: a directory goes with its rank. */
    if (!err)
        err = sstar_barrier(world);
    if (err)
        node_memory_close(world);
    return err;
}

void node_memory_close(struct sstar_world *world)
{
    struct node_memory *node = world->node_memory;
    if (!node)
        return;
    memory_unbind(world);
    for (int i = 0; i < DIRECTORY_ENTRIES; i++)
        if (node->segments[i])
            segment_free(world, node->segments[i]);
    if (node->directory)
        unmap(world, node->directory, sizeof *node->directory);
    for (int rank = 0; rank < world->size; rank++)
        peer_memory_close(node->peers[rank]);
    free(node->peers);
    if (node->directory_fd >= 0)
        close(node->directory_fd);
    free(node);
    world->node_memory = NULL;
}
