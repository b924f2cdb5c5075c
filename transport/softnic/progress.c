/* SPDX-License-Identifier: MIT */
/*
 * Queue pairs that have work but could not do it at the doorbell: the wire is taken, the peer is
 * not ready, or has posted no receive. They stand in a list, and whoever posts or polls moves them
 * on: one work request a turn on a shaped wire, so that none keeps the others out.
 */
#include "transport/softnic/nic.h"
#include <errno.h>

static void append(struct ctx *ctx, struct qp *qp)
{
    qp->next_waiting = NULL;
    if (ctx->last_waiting != NULL)
        ctx->last_waiting->next_waiting = qp;
    else
        ctx->first_waiting = qp;
    ctx->last_waiting = qp;
}

static void prepend(struct ctx *ctx, struct qp *qp)
{
    qp->next_waiting = ctx->first_waiting;
    ctx->first_waiting = qp;
    if (ctx->last_waiting == NULL)
        ctx->last_waiting = qp;
}

void nic_wait_add(struct qp *qp)
{
    struct ctx *ctx = qp->ctx;
    spin_lock(&ctx->waiting_lock);
    append(ctx, qp);
    atomic_store(&qp->wait_state, WAITING_LISTED);
    atomic_fetch_add(&ctx->waiting, 1);
    spin_unlock(&ctx->waiting_lock);
}

/* Out of the list, for destroying or resetting: no other thread is at work on it afterwards. */
void nic_wait_remove(struct qp *qp)
{
    struct ctx *ctx = qp->ctx;
    unsigned turn = 0;
    for (;;) {
        spin_lock(&ctx->waiting_lock);
        uint32_t state = atomic_load(&qp->wait_state);
        if (state == WAITING_LISTED) {
            struct qp **at = &ctx->first_waiting, *before = NULL;
            while (*at != qp) {
                before = *at;
                at = &before->next_waiting;
            }
            *at = qp->next_waiting;
            atomic_store_explicit(&ctx->wire_blocks, 0, memory_order_relaxed);
            if (ctx->last_waiting == qp)
                ctx->last_waiting = before;
            atomic_store(&qp->wait_state, NOT_WAITING);
            atomic_fetch_sub(&ctx->waiting, 1);
        }
        spin_unlock(&ctx->waiting_lock);
        if (state != WAITING_RUNNING)
            return;
        spin_wait(&turn);
    }
}

static struct qp *pop(struct ctx *ctx)
{
    spin_lock(&ctx->waiting_lock);
    struct qp *qp = ctx->first_waiting;
    if (qp != NULL) {
        ctx->first_waiting = qp->next_waiting;
        if (ctx->first_waiting == NULL)
            ctx->last_waiting = NULL;
        atomic_store(&qp->wait_state, WAITING_RUNNING);
        atomic_store_explicit(&ctx->wire_blocks, 0, memory_order_relaxed);
    }
    spin_unlock(&ctx->waiting_lock);
    return qp;
}

/* `first`: it is next in turn, and only the wire was in its way. */
static void put_back(struct ctx *ctx, struct qp *qp, bool left, bool first)
{
    spin_lock(&ctx->waiting_lock);
    if (!left) {
        atomic_store(&qp->wait_state, NOT_WAITING);
        atomic_fetch_sub(&ctx->waiting, 1);
    } else {
        if (first)
            prepend(ctx, qp);
        else
            append(ctx, qp);
        atomic_store(&qp->wait_state, WAITING_LISTED);
        if (first)
            atomic_store_explicit(&ctx->wire_blocks, 1, memory_order_relaxed);
    }
    spin_unlock(&ctx->waiting_lock);
}

enum turn { TURN_NOTHING, TURN_MOVED, TURN_WIRE_TAKEN, TURN_LIST_EMPTY };

static enum turn take_turn(struct ctx *ctx, uint32_t limit)
{
    struct qp *qp = pop(ctx);
    if (qp == NULL)
        return TURN_LIST_EMPTY;
    /* Held between ibv_wr_start and ibv_wr_complete, perhaps by this very thread, which may have
     * started on several queue pairs: never wait for it here. */
    if (!spin_trylock(&qp->sq_lock)) {
        put_back(ctx, qp, true, false);
        return TURN_NOTHING;
    }
    uint32_t executed = qp->sq_executed;
    bool left = qp->execute(qp, limit);
    bool moved = qp->sq_executed != executed;
    bool wire_taken = left && !moved && qp->reason == WAIT_WIRE;
    put_back(ctx, qp, left, wire_taken);
    spin_unlock(&qp->sq_lock);
    return wire_taken ? TURN_WIRE_TAKEN : moved ? TURN_MOVED : TURN_NOTHING;
}

void nic_progress(struct ctx *ctx)
{
    bool moved = true;
    if (atomic_load_explicit(&ctx->late.count, memory_order_relaxed) != 0)
        nic_late_progress(ctx);
    /* Most looks end here while a deep queue drains. */
    if (atomic_load_explicit(&ctx->wire_blocks, memory_order_relaxed) &&
        nic_wire_opens(ctx) > nic_now(ctx))
        return;
    while (moved) {
        uint32_t waiting = atomic_load(&ctx->waiting);
        uint32_t limit = nic_shaped(ctx->meeting) ? 1 : UINT32_MAX;
        moved = false;
        while (waiting-- > 0) {
            enum turn turn = take_turn(ctx, limit);
            if (turn == TURN_WIRE_TAKEN || turn == TURN_LIST_EMPTY)
                return;
            moved |= turn == TURN_MOVED;
        }
    }
}

uint64_t nic_next_wake(struct ctx *ctx)
{
    uint64_t next = UINT64_MAX;
    if (atomic_load(&ctx->waiting) == 0)
        return next;
    spin_lock(&ctx->waiting_lock);
    for (const struct qp *qp = ctx->first_waiting; qp != NULL; qp = qp->next_waiting) {
        uint64_t wake = atomic_load(&qp->wake_ns);
        if (wake < next)
            next = wake;
    }
    bool blocked = atomic_load_explicit(&ctx->wire_blocks, memory_order_relaxed) != 0;
    spin_unlock(&ctx->waiting_lock);
    /* The others know no better than when they last tried. */
    if (blocked) {
        uint64_t opens = nic_wire_opens(ctx);
        next = opens > next ? opens : next;
    }
    uint64_t late = nic_late_next(ctx);
    return late < next ? late : next;
}

int softnic_next_poll(struct ibv_cq *base, uint64_t *at_ns)
{
    struct cq *cq = to_cq(base);
    struct ctx *ctx = cq->ctx;
    struct softnic_wire wire;
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    if (!nic_shaped(ctx->meeting))
        return EOPNOTSUPP;
    uint64_t wake = nic_next_wake(ctx);
    nic_wire_load(ctx->meeting, &wire);
    *at_ns =
        wake != UINT64_MAX ? wake + (uint64_t)(wire.alpha_us * 1e3 / 2) : nic_cq_due(cq, false);
    return 0;
}
