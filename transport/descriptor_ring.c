/* SPDX-License-Identifier: MIT */
#include "transport/descriptor_ring.h"
#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int descriptor_ring_open(struct descriptor_ring *ring, uint32_t size)
{
    struct descriptor *slots = aligned_alloc(64, (size_t)size * sizeof *slots);
    if (!slots)
        return -ENOMEM;
    memset(slots, 0, (size_t)size * sizeof *slots);
    *ring = (struct descriptor_ring){.slots = slots, .size = size};
    /* Where it is refused a nap may last its whole time, which is short for that reason. */
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    return 0;
}

void descriptor_ring_close(struct descriptor_ring *ring)
{
    free(ring->slots);
    ring->slots = NULL;
}

int descriptor_claim(struct descriptor_ring *ring, uint32_t n, uint64_t *place)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    do {
        uint64_t read = atomic_load_explicit(&ring->read, memory_order_acquire);
        /* An old tail may lie before what has been read since: then the exchange fails. */
        if ((int64_t)(tail + n - read) > (int64_t)ring->size)
            return -EAGAIN;
    } while (!atomic_compare_exchange_weak_explicit(&ring->tail, &tail, tail + n,
                                                    memory_order_relaxed, memory_order_relaxed));
    *place = tail;
    return 0;
}

void descriptor_wake(struct descriptor_ring *ring)
{
    if (atomic_exchange(&ring->asleep, 0))
        syscall(SYS_futex, &ring->asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void descriptor_nap(struct descriptor_ring *ring, uint64_t timeout_ns)
{
    struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                         .tv_nsec = (long)(timeout_ns % 1000000000u)};
    atomic_store(&ring->asleep, 1);
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    if (!descriptor_peek(ring, 0))
        syscall(SYS_futex, &ring->asleep, FUTEX_WAIT_PRIVATE, 1, &t, NULL, 0);
    atomic_store(&ring->asleep, 0);
}
