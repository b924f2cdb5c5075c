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

/* A process as one word, for locks that must be broken if their holder is killed. */
uint64_t nic_token(pid_t pid, uint64_t start_time)
{
    return (uint64_t)(uint32_t)pid << 32 | (uint32_t)start_time;
}

/* Free the lock if its holder was killed; called seldom. */
static void break_dead_holder(_Atomic uint64_t *lock, uint64_t self)
{
    uint64_t holder = atomic_load(lock);
    if (holder == 0 || holder == self)
        return;
    pid_t pid = (pid_t)(holder >> 32);
    if (nic_token(pid, nic_start_time(pid)) != holder)
        atomic_compare_exchange_strong(lock, &holder, 0);
}

bool nic_inbound_try(struct shared_qp *sqp, uint64_t self)
{
    uint64_t nobody = 0;
    if (!atomic_compare_exchange_strong(&sqp->inbound, &nobody, self))
        return false;
    uint32_t count = atomic_load_explicit(&sqp->inbound_count, memory_order_relaxed);
    atomic_store_explicit(&sqp->inbound_count, count + 1, memory_order_release);
    return true;
}

void nic_inbound_lock(struct ctx *ctx, struct shared_qp *sqp)
{
    unsigned turn = 0;
    while (!nic_inbound_try(sqp, ctx->token)) {
        spin_wait(&turn);
        if (turn % TURNS_BETWEEN_LOOKS == 0)
            break_dead_holder(&sqp->inbound, ctx->token);
    }
}

/* The first to come may have been counted late, so that only the second is certainly another. */
void nic_inbound_drain(struct shared_qp *sqp, uint64_t self)
{
    uint32_t count = atomic_load(&sqp->inbound_count);
    unsigned turn = 0;
    while (atomic_load(&sqp->inbound) != 0 && atomic_load(&sqp->inbound_count) - count < 2) {
        spin_wait(&turn);
        if (turn % TURNS_BETWEEN_LOOKS == 0)
            break_dead_holder(&sqp->inbound, self);
    }
}

void nic_atomic_lock(struct member *member, uint64_t self)
{
    unsigned turn = 0;
    uint64_t nobody = 0;
    while (!atomic_compare_exchange_strong(&member->atomic_lock, &nobody, self)) {
        nobody = 0;
        spin_wait(&turn);
        if (turn % TURNS_BETWEEN_LOOKS == 0)
            break_dead_holder(&member->atomic_lock, self);
    }
}

void nic_atomic_unlock(struct member *member)
{
    atomic_store_explicit(&member->atomic_lock, 0, memory_order_release);
}
