/* SPDX-License-Identifier: MIT */
/* The memory of a context that its peers map: a sealed memfd, and a heap of pages in it. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* A program that closes all descriptors closes this one too, and has files of its own under its
 * number then. */
static bool is_ours(const struct ctx *ctx)
{
    struct stat st;
    return fstat(ctx->member_fd, &st) == 0 && st.st_ino == ctx->member_ino &&
           st.st_size == (off_t)MEMBER_BYTES;
}

/* Have the pages behind [at, at + bytes) now, as ENOSPC and not as SIGBUS later. */
int nic_member_commit(struct ctx *ctx, const void *at, size_t bytes)
{
    uint64_t offset = (uint64_t)((const char *)at - (const char *)ctx->member);
    if (!is_ours(ctx)) {
        nic_say(ctx,
                "the program has closed descriptor %d, by which others reach the memory of port "
                "%s: close only what you have opened, or open the port after that",
                ctx->member_fd, ctx->port_name);
        return EBADF;
    }
    uint64_t first = offset / PAGE * PAGE;
    int err;
    do {
        err = posix_fallocate(ctx->member_fd, (off_t)first, (off_t)(offset + bytes - first));
    } while (err == EINTR);
    return err;
}

int nic_member_create(struct ctx *ctx)
{
    if (!nic_file_fits(MEMBER_BYTES))
        return EFBIG;
    ctx->member_fd = memfd_create("softnic", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ctx->member_fd < 0)
        return errno;
    int err = 0;
    struct stat st;
    if (ftruncate(ctx->member_fd, (off_t)MEMBER_BYTES) != 0 ||
        fcntl(ctx->member_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
        fstat(ctx->member_fd, &st) != 0) {
        err = errno;
        goto close_fd;
    }
    ctx->member_ino = st.st_ino;
    void *map = mmap(NULL, MEMBER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                     ctx->member_fd, 0);
    if (map == MAP_FAILED) {
        err = errno;
        goto close_fd;
    }
    ctx->member = map;
    err = nic_member_commit(ctx, map, offsetof(struct member, qp));
    if (err != 0)
        goto unmap;
    struct member *m = ctx->member;
    m->magic = MEMBER_MAGIC;
    m->version = SHARED_VERSION;
    m->size = MEMBER_BYTES;
    m->pid = ctx->pid;
    m->start_time = ctx->start_time;
    m->async_wfd = ctx->async_wfd;
    ctx->member_end = round_up(sizeof *m, PAGE);
    err = nic_own_create(ctx);
    if (err != 0)
        goto unmap;
    return 0;
unmap:
    munmap(map, MEMBER_BYTES);
    ctx->member = NULL;
close_fd:
    close(ctx->member_fd);
    return err;
}

void nic_member_destroy(struct ctx *ctx)
{
    while (ctx->heap != NULL) {
        struct heap_block *block = ctx->heap;
        ctx->heap = block->next;
        free(block);
    }
    if (ctx->own != NULL)
        nic_own_put(ctx->own);
    ctx->own = NULL;
    ctx->member = NULL;
    if (is_ours(ctx))
        close(ctx->member_fd);
}

/* First fit among what was given back, then from the end. Rings only, so few blocks. */
uint64_t nic_heap_alloc(struct ctx *ctx, uint64_t bytes)
{
    bytes = round_up(bytes, PAGE);
    uint64_t offset = 0;
    for (struct heap_block **at = &ctx->heap; *at != NULL; at = &(*at)->next) {
        struct heap_block *block = *at;
        if (block->size != bytes)
            continue;
        offset = block->offset;
        *at = block->next;
        free(block);
        break;
    }
    if (offset == 0) {
        if (bytes > MEMBER_BYTES - ctx->member_end)
            return 0;
        offset = ctx->member_end;
        ctx->member_end += bytes;
    }
    char *at = (char *)ctx->member + offset;
    if (nic_member_commit(ctx, at, bytes) != 0) {
        nic_heap_free(ctx, offset, bytes);
        return 0;
    }
    memset(at, 0, bytes);
    return offset;
}

void nic_heap_free(struct ctx *ctx, uint64_t offset, uint64_t bytes)
{
    struct heap_block *block = malloc(sizeof *block);
    if (block == NULL)
        return; /* the room is lost until close, which is better than a failing destroy */
    *block = (struct heap_block){ctx->heap, offset, round_up(bytes, PAGE)};
    ctx->heap = block;
}
