/* SPDX-License-Identifier: MIT */
/* Locks of a few instructions, inside a process and between processes that may be killed. */
#include "transport/softnic/nic.h"
#include <sched.h>
#include <unistd.h>

enum { SPINS_BEFORE_YIELD = 64, TURNS_BETWEEN_LOOKS = 2048 };

void spin_wait(unsigned *turn)
{
    if (++*turn < SPINS_BEFORE_YIELD) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    } else {
        sched_yield(); /* the holder may have lost its core */
    }
}

void spin_lock_slow(struct spin *spin)
{
    unsigned turn = 0;
    do {
        while (atomic_load_explicit(&spin->held, memory_order_relaxed) != 0)
            spin_wait(&turn);
    } while (!spin_trylock(spin));
}

bool nic_inbound_try(struct shared_qp *sqp, pid_t pid, uint64_t start_time)
{
    uint32_t nobody = 0;
    if (!atomic_compare_exchange_strong(&sqp->inbound, &nobody, (uint32_t)pid))
        return false;
    if (atomic_load_explicit(&sqp->inbound_start, memory_order_relaxed) != start_time)
        atomic_store_explicit(&sqp->inbound_start, start_time, memory_order_relaxed);
    uint32_t count = atomic_load_explicit(&sqp->inbound_count, memory_order_relaxed);
    atomic_store_explicit(&sqp->inbound_count, count + 1, memory_order_relaxed);
    return true;
}

/* Free `inbound` if its holder was killed; called seldom. */
static void break_dead_holder(struct shared_qp *sqp, pid_t self)
{
    uint32_t holder = atomic_load(&sqp->inbound);
    if (holder == 0 || holder == (uint32_t)self)
        return;
    uint64_t start_time = atomic_load(&sqp->inbound_start);
    /* A process killed between the two stores left the start time of an earlier holder: then
     * the pid alone must do. */
    if (nic_start_time((pid_t)holder) == 0 || !nic_alive((pid_t)holder, start_time))
        atomic_compare_exchange_strong(&sqp->inbound, &holder, 0);
}

void nic_inbound_lock(struct ctx *ctx, struct shared_qp *sqp)
{
    unsigned turn = 0;
    while (!nic_inbound_try(sqp, ctx->pid, ctx->start_time)) {
        spin_wait(&turn);
        if (turn % TURNS_BETWEEN_LOOKS == 0)
            break_dead_holder(sqp, ctx->pid);
    }
}

void nic_inbound_drain(struct shared_qp *sqp, pid_t self)
{
    uint32_t count = atomic_load(&sqp->inbound_count);
    unsigned turn = 0;
    while (atomic_load(&sqp->inbound) != 0 && atomic_load(&sqp->inbound_count) == count) {
        spin_wait(&turn);
        if (turn % TURNS_BETWEEN_LOOKS == 0)
            break_dead_holder(sqp, self);
    }
}

void nic_atomic_lock(struct member *member, pid_t pid, uint64_t start_time)
{
    unsigned turn = 0;
    for (;;) {
        uint32_t holder = 0;
        if (atomic_compare_exchange_strong(&member->atomic_lock, &holder, (uint32_t)pid))
            break;
        spin_wait(&turn);
        if (turn % TURNS_BETWEEN_LOOKS == 0 && holder != (uint32_t)pid &&
            !nic_alive((pid_t)holder, atomic_load(&member->atomic_lock_start)))
            atomic_compare_exchange_strong(&member->atomic_lock, &holder, 0);
    }
    atomic_store_explicit(&member->atomic_lock_start, start_time, memory_order_relaxed);
}

void nic_atomic_unlock(struct member *member)
{
    atomic_store_explicit(&member->atomic_lock, 0, memory_order_release);
}
