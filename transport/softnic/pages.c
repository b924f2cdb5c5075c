/* SPDX-License-Identifier: MIT */
/*
 * Shared pages for private memory (SOFTNIC_SHARE_PAGES): whole pages of a region are copied into a
 * memfd, which is then put in their place, so that peers can map them; at deregistration they
 * become private again.
 *
 * What could go wrong, and what is done:
 *  - Another thread writes between the copy and the exchange: the pages are write-protected by a
 *    userfaultfd meanwhile, and whoever writes waits. Where that is not to be had, only a process
 *    with a single thread gets shared pages.
 *  - The pages are more than plain private memory (pages_check.c): they stay as they are.
 *  - A peer that has them registered already would write into the old ones: they stay.
 *  - A child after fork must have pages of its own (pages_fork.c).
 * Whatever is refused is reached by process_vm_* as without the option.
 */
#include "transport/softnic/pages.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Freeze the range for writers. -1: not to be had. Closing the descriptor lets them go on. */
static int freeze(void *at, size_t bytes)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd < 0)
        return -1;
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_WP_HUGETLBFS_SHMEM};
    struct uffdio_range range = {(uintptr_t)at, bytes};
    struct uffdio_register reg = {.range = range, .mode = UFFDIO_REGISTER_MODE_WP};
    struct uffdio_writeprotect protect = {.range = range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    /* A page that is not there is not protected. */
    if (ioctl(fd, UFFDIO_API, &api) != 0 || madvise(at, bytes, MADV_POPULATE_WRITE) != 0 ||
        ioctl(fd, UFFDIO_REGISTER, &reg) != 0 || ioctl(fd, UFFDIO_WRITEPROTECT, &protect) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int copy_out(int fd, const uint8_t *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        /* Not by pwrite(): ThreadSanitizer knows nothing of pages that are held. */
        ssize_t n = syscall(SYS_pwrite64, fd, from + done, bytes - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENOSPC;
        done += (size_t)n;
    }
    return 0;
}

/* The new pages take the place of the old at one stroke: whoever touches them meanwhile waits. */
static int exchange(void *new, void *at, size_t bytes)
{
    if (mremap(new, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED)
        return 0;
    int err = errno;
    munmap(new, bytes);
    return err;
}

static int to_shared(void *at, size_t bytes)
{
    int fd = memfd_create(PAGES_NAME, MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int err = copy_out(fd, at, bytes);
    void *new = MAP_FAILED;
    if (err == 0) {
        new = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        err = new == MAP_FAILED ? errno : exchange(new, at, bytes);
    }
    if (err == 0)
        return fd;
    close(fd);
    return -err;
}

/* For the same reason not by memcpy(), nor by a loop that becomes one. */
__attribute__((no_sanitize("thread"))) static void
copy_words(volatile uint64_t *to, const volatile uint64_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] = from[i];
}

int pages_to_private(void *at, size_t bytes)
{
    void *new = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (new == MAP_FAILED)
        return errno;
    copy_words(new, at, bytes);
    return exchange(new, at, bytes);
}

/* Pages of a region that is registered and reached through the kernel stay where they are. */
static bool registered(const struct ctx *ctx, uint64_t start, uint64_t end)
{
    for (uint32_t i = 1; i < ctx->mr_end; i++) {
        const struct shared_mr *smr = &ctx->own->mr[i];
        uint64_t addr = smr->addr + smr->shift;
        if (atomic_load_explicit(&smr->busy, memory_order_relaxed) != 0 && addr < end &&
            addr + smr->length > start)
            return true;
    }
    return false;
}

static bool whole_pages(const void *addr, size_t length, uint64_t *start, uint64_t *end)
{
    *start = ((uint64_t)(uintptr_t)addr + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    *end = ((uint64_t)(uintptr_t)addr + length) / PAGE_BYTES * PAGE_BYTES;
    return *start < *end;
}

/* Whether nobody can write into the range until *frozen is closed, if it is one. */
static bool hold_still(struct ctx *ctx, void *at, size_t bytes, int *frozen)
{
    *frozen = freeze(at, bytes);
    if (*frozen >= 0 || pages_single_thread())
        return true;
    nic_say(ctx, "pages are not shared, since other threads run and the kernel refuses a "
                 "userfaultfd to hold them: allow it (sysctl vm.unprivileged_userfaultfd=1)");
    return false;
}

int nic_pages_share(struct ctx *ctx, void *addr, size_t length)
{
    uint64_t start, end;
    if (!ctx->share_pages || !whole_pages(addr, length, &start, &end) ||
        registered(ctx, start, end))
        return -1;
    void *at = (void *)(uintptr_t)start;
    int made = -1, frozen = -1;
    pages_lock();
    if (nic_file_fits(end - start) && pages_may_fork() && pages_plain(start, end) &&
        hold_still(ctx, at, end - start, &frozen))
        made = to_shared(at, end - start);
    if (frozen >= 0)
        close(frozen);
    pages_unlock();
    return made < 0 ? -1 : made;
}

void nic_pages_unshare(struct ctx *ctx, const void *addr, size_t length)
{
    uint64_t start, end;
    if (!ctx->share_pages || !whole_pages(addr, length, &start, &end) ||
        registered(ctx, start, end))
        return;
    void *at = (void *)(uintptr_t)start;
    int frozen = -1;
    pages_lock();
    if (pages_made_here(start, end) && hold_still(ctx, at, end - start, &frozen))
        pages_to_private(at, end - start);
    if (frozen >= 0)
        close(frozen);
    pages_unlock();
}
