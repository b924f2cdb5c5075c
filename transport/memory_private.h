/* SPDX-License-Identifier: MIT */
/* What memory.c and region.c share. */
#ifndef SSTAR_TRANSPORT_MEMORY_PRIVATE_H
#define SSTAR_TRANSPORT_MEMORY_PRIVATE_H

#include "transport/region.h"
#include <stdatomic.h>
#include <sys/types.h>

enum { DIRECTORY_MAGIC = 0x44525353, DIRECTORY_VERSION = 1, DIRECTORY_ENTRIES = 1023 };

/* One piece of sstar_alloc memory. `generation` is odd while the entry holds memory and grows with
 * every change, so a peer that has it mapped sees that the mapping is out of date. */
struct entry {
    _Atomic uint64_t generation, base, size, inode;
    _Atomic int32_t fd;
};

/* The first segment of each rank; peers read it. */
struct directory {
    uint32_t magic, version, size;
    _Atomic uint32_t count; /* entries beyond were never used */
    uint64_t nonce;
    struct entry entries[DIRECTORY_ENTRIES];
};

struct segment {
    void *memory;
    size_t size;
    int fd, index;
    int users; /* regions of sstar_register that lie in it */
    struct sstar_region region;
};

/* A peer's segment in our address space. */
struct mapping {
    void *local;
    uint64_t base, generation;
    size_t size;
    struct entry *entry;
};

struct peer_memory {
    pid_t pid;
    bool same_process;
    struct directory *directory;
    struct mapping *mappings; /* [DIRECTORY_ENTRIES] */
    struct mapping *last;
};

struct node_memory {
    struct directory *directory;
    int directory_fd;
    struct segment *segments[DIRECTORY_ENTRIES];
    struct segment *last;
    struct peer_memory **peers; /* [size of the world], of this node only */
    struct sstar_region *regions;
};

/* What each rank tells the others about its directory. */
struct introduction {
    uint64_t nonce, address, inode;
    uint32_t magic, version, size;
    int32_t fd;
};

uint64_t memory_inode(int fd);
/* Find the directory of a rank of our node and prove that it is shared. On failure it is for
 * peer_memory_close all the same. */
int peer_memory_open(struct sstar_world *world, int rank, const struct introduction *it);
void peer_memory_close(struct peer_memory *peer);

/* Our own segment that holds this memory, or NULL. */
struct segment *memory_segment(struct sstar_world *world, const void *memory, size_t bytes);
void segment_unbind(struct segment *segment);

#endif
