/* SPDX-License-Identifier: MIT */
/* Locks of a few instructions, inside a process and between processes that may be killed. */
#include "transport/softnic/nic.h"
#include <sched.h>
#include <time.h>
#include <unistd.h>

enum { SPINS_BEFORE_YIELD = 64, TURNS_BETWEEN_TIMES = 256, LOOK_NS = 1000000 };

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

/* How long a holder that lives may take: far more than any batch, unless it was stopped. */
#define HOLD_LIMIT_NS 5000000000ull

static uint64_t clock_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool nic_wait_turn(struct patience *p, uint64_t holder, uint64_t self)
{
    bool shorter = p->limit_ns != 0 && p->limit_ns < HOLD_LIMIT_NS;
    uint64_t limit_ns = shorter ? p->limit_ns : HOLD_LIMIT_NS;
    spin_wait(&p->turn);
    if (p->turn % TURNS_BETWEEN_TIMES != 0 || holder == 0)
        return true;
    uint64_t now = clock_now_ns();
    if (p->since_ns == 0)
        p->since_ns = p->looked_ns = now;
    if (now - p->looked_ns < LOOK_NS)
        return true;
    p->looked_ns = now;
    /* Another thread of ours may hold it; or somebody wrote that, and time tells. */
    return (holder == self || nic_token_alive(holder)) && now - p->since_ns < limit_ns;
}

void nic_word_lock(_Atomic uint64_t *word, uint64_t self)
{
    struct patience patience = {0};
    uint64_t holder = 0;
    while (!atomic_compare_exchange_strong(word, &holder, self)) {
        if (nic_wait_turn(&patience, holder, self))
            holder = 0; /* else take it from this very holder */
    }
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
    nic_word_lock(&sqp->inbound, ctx->token);
    atomic_fetch_add(&sqp->inbound_count, 1);
}

/* The first to come may have been counted late, so that only the second is certainly another. */
void nic_inbound_drain(struct shared_qp *sqp, uint64_t self)
{
    uint32_t count = atomic_load(&sqp->inbound_count);
    struct patience patience = {0};
    uint64_t holder;
    while ((holder = atomic_load(&sqp->inbound)) != 0 &&
           atomic_load(&sqp->inbound_count) - count < 2) {
        if (!nic_wait_turn(&patience, holder, self))
            return;
    }
}

void nic_atomic_lock(struct member *member, uint64_t self)
{
    nic_word_lock(&member->atomic_lock, self);
}

void nic_atomic_unlock(struct member *member)
{
    atomic_store_explicit(&member->atomic_lock, 0, memory_order_release);
}
