/* SPDX-License-Identifier: MIT */
/*
 * The list of late messages, and who moves it on: whoever posts or polls, and where nobody does a
 * thread. On a relaxed port a look lands a few pieces that chance picks; on a port that places on
 * time it lands what is due.
 */
#include "transport/softnic/late.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

/* Of looks at a relaxed port, one in so many lands something, so that a wrong order stands for a
 * while; of what is pending it lands one part in so many, and one more. */
enum { LOOKS_A_LANDING = 4, PART_A_LANDING = 8 };
/* How long the thread sleeps between its looks, and how close to a due time it does not. */
enum { RELAXED_SLEEP_NS = 100000, LONGEST_SLEEP_NS = 500000, NO_SLEEP_NS = 60000 };

void nic_late_init(struct ctx *ctx)
{
    pthread_mutex_init(&ctx->late.lock, NULL);
    pthread_cond_init(&ctx->late.come, NULL);
}

static uint32_t order_of(const struct qp *qp)
{
    uint32_t own = qp->ctx->order, far = qp->peer->order;
    bool open = (own & (PORT_RELAXED | PORT_KEEP_QPS)) == PORT_RELAXED ||
                (far & (PORT_RELAXED | PORT_KEEP_QPS)) == PORT_RELAXED;
    return ((own | far) & PORT_LATE) | (open ? 0 : PORT_KEEP_QPS);
}

static void keep(struct ctx *ctx, struct late_op *op)
{
    struct late *late = &ctx->late;
    struct qp *qp = op->qp;
    op->prev = late->last;
    *(late->last != NULL ? &late->last->next : &late->first) = op;
    late->last = op;
    *(qp->late_last != NULL ? &qp->late_last->next_of_qp : &qp->late_first) = op;
    qp->late_last = op;
    if (op->recv != NULL)
        op->recv_index = atomic_load(&qp->remote->rq_consumed) + qp->late_recvs++;
    if (atomic_fetch_add(&late->count, 1) == 0)
        atomic_fetch_add(&ctx->waiting, 1);
    pthread_cond_signal(&late->come);
}

/* The first of its queue pair goes. */
static void forget(struct late_op *op)
{
    struct qp *qp = op->qp;
    struct ctx *ctx = qp->ctx;
    struct late *late = &ctx->late;
    *(op->prev != NULL ? &op->prev->next : &late->first) = op->next;
    *(op->next != NULL ? &op->next->prev : &late->last) = op->prev;
    qp->late_first = op->next_of_qp;
    if (qp->late_first == NULL)
        qp->late_last = NULL;
    qp->late_recvs -= op->recv != NULL;
    if (atomic_fetch_sub(&late->count, 1) == 1)
        atomic_fetch_sub(&ctx->waiting, 1);
    late_free(op);
}

/* A message could not land: all after it is flushed, by whoever polls next. */
static void break_qp(struct qp *qp)
{
    struct cq *recv = to_cq(qp->ex.qp_base.recv_cq);
    atomic_store(&qp->shared->state, IBV_QPS_ERR);
    for (struct late_op *op; (op = qp->late_first) != NULL; forget(op))
        nic_send_complete_at(qp, &op->wqe, IBV_WC_WR_FLUSH_ERR, 0, op->due_ns, op->sq_count);
    nic_cq_mark(&recv->shared->bits, qp->slot);
    nic_cq_wake(qp->ctx, NULL, recv->shared, true, 0);
}

/* The same without answers: what comes after it took receives behind the one that it did not use.
 * All that is lost with it, which nobody was promised. */
static void lose_rest(struct qp *qp)
{
    for (struct late_op *op; (op = qp->late_first) != NULL; forget(op))
        nic_count(&qp->shared->sent.drops, 1);
}

/* Retire it if it has landed and is the first of its queue pair; sq_lock held. */
static bool retire(struct late_op *op, bool inbound_held)
{
    struct qp *qp = op->qp;
    if (op->left != 0 || qp->late_first != op || !late_complete(op, inbound_held))
        return false;
    bool broken = op->status != IBV_WC_SUCCESS, had_recv = op->recv != NULL;
    forget(op);
    if (broken && !nic_is_unanswered(qp))
        break_qp(qp);
    else if (broken && had_recv)
        lose_rest(qp);
    return true;
}

/* ---- what may land -------------------------------------------------------------------------- */

static bool is_due(const struct late_op *op, uint64_t now)
{
    return (op->order & PORT_ON_TIME) == 0 || op->due_ns <= now;
}

/* A READ or an atomic sees everything before it; a fenced message is behind all of those. Where
 * queue pairs are kept in order everything is behind what was before it. */
static bool may_land(const struct late_op *op, uint64_t now)
{
    bool kept = (op->order & PORT_KEEP_QPS) != 0;
    bool fenced = (op->wqe.flags & IBV_SEND_FENCE) != 0;
    if (!is_due(op, now))
        return false;
    if (!kept && late_is_put(op) && !fenced)
        return true;
    for (const struct late_op *at = op->qp->late_first; at != op; at = at->next_of_qp) {
        if (at->left != 0 && (kept || !late_is_put(op) || !late_is_put(at)))
            return false;
    }
    return true;
}

static void land_random(struct ctx *ctx, uint64_t now)
{
    struct late *late = &ctx->late;
    uint32_t count = atomic_load(&late->count);
    struct late_op *op = late->first;
    for (uint64_t n = late_random(&late->random) % count; n > 0; n--)
        op = op->next;
    if (op->left == 0 || !may_land(op, now))
        return;
    /* The last piece by itself, or among the others. */
    bool last_last = (op->order & PORT_KEEP_QPS) != 0 && (op->left & (op->left - 1)) != 0;
    uint64_t pieces = op->pieces - last_last, piece = late_random(&late->random) % pieces;
    while ((op->left >> piece & 1) == 0)
        piece = (piece + 1) % pieces;
    late_land(op, (unsigned)piece, false);
}

/* Everything that is due and ordered strictly; and retire what has landed. */
static void land_due_and_retire(struct ctx *ctx, uint64_t now)
{
    for (struct late_op *op = ctx->late.first, *next; op != NULL; op = next) {
        struct qp *qp = op->qp;
        next = op->next;
        if ((op->order & PORT_RELAXED) == 0 && op->left != 0 && may_land(op, now))
            late_land(op, 0, false);
        if (op->left != 0 || !is_due(op, now) || qp->late_first != op)
            continue;
        /* It may be held between ibv_wr_start and ibv_wr_complete by this very thread. */
        if (!spin_trylock(&qp->sq_lock))
            continue;
        if (retire(op, false) && qp->late_first == NULL)
            next = ctx->late.first; /* others of it may have been flushed */
        spin_unlock(&qp->sq_lock);
    }
}

/* ---- looks ---------------------------------------------------------------------------------- */

/* late.lock held */
static void look(struct ctx *ctx, bool land)
{
    uint64_t now = nic_now(ctx);
    uint32_t count = atomic_load(&ctx->late.count);
    for (uint32_t n = land ? count / PART_A_LANDING + 1 : 0; n > 0; n--)
        land_random(ctx, now);
    land_due_and_retire(ctx, now);
}

void nic_late_progress(struct ctx *ctx)
{
    struct late *late = &ctx->late;
    if (pthread_mutex_trylock(&late->lock) != 0)
        return; /* somebody is at it */
    atomic_fetch_add(&late->looks, 1);
    if (late->first != NULL) {
        bool relaxed = (late->first->order & PORT_RELAXED) != 0;
        bool land = relaxed && late_random(&late->random) % LOOKS_A_LANDING == 0;
        if (land || !relaxed)
            look(ctx, land);
    }
    pthread_mutex_unlock(&late->lock);
}

static uint64_t next_due(const struct late *late)
{
    uint64_t next = UINT64_MAX;
    for (const struct late_op *op = late->first; op != NULL; op = op->next) {
        uint64_t due = (op->order & PORT_ON_TIME) != 0 ? op->due_ns : 0;
        if (due < next)
            next = due;
    }
    return next;
}

/* When somebody must look. Where the thread does it nobody need wake for it. */
uint64_t nic_late_next(struct ctx *ctx)
{
    struct late *late = &ctx->late;
    pthread_mutex_lock(&late->lock);
    uint64_t next = late->running ? UINT64_MAX : next_due(late);
    pthread_mutex_unlock(&late->lock);
    return next;
}

/* late.lock held; given up meanwhile. */
static void sleep_or_yield(struct late *late, uint64_t ns)
{
    const struct timespec t = {0, (long)ns};
    pthread_mutex_unlock(&late->lock);
    if (ns == 0)
        sched_yield();
    else
        nanosleep(&t, NULL);
    pthread_mutex_lock(&late->lock);
}

static void *run(void *arg)
{
    struct ctx *ctx = arg;
    struct late *late = &ctx->late;
    uint32_t seen = 0;
    prctl(PR_SET_TIMERSLACK, 1);
    pthread_mutex_lock(&late->lock);
    while (!late->stop) {
        if (late->first == NULL) {
            pthread_cond_wait(&late->come, &late->lock);
            continue;
        }
        uint64_t due = next_due(late), now = due != 0 ? nic_now(ctx) : 0;
        uint64_t ahead = due > now ? due - now : 0;
        if (due == 0)
            sleep_or_yield(late, RELAXED_SLEEP_NS);
        else if (ahead > LONGEST_SLEEP_NS + NO_SLEEP_NS)
            sleep_or_yield(late, LONGEST_SLEEP_NS);
        else
            sleep_or_yield(late, ahead > NO_SLEEP_NS ? ahead - NO_SLEEP_NS : 0);
        uint32_t looks = atomic_load(&late->looks);
        if (late->first != NULL && (due != 0 || looks == seen))
            look(ctx, due == 0);
        seen = looks;
    }
    pthread_mutex_unlock(&late->lock);
    return NULL;
}

static bool start_thread(struct ctx *ctx)
{
    struct late *late = &ctx->late;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    late->running = pthread_create(&late->thread, NULL, run, ctx) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return late->running;
}

/* ---- from the send queue -------------------------------------------------------------------- */

bool nic_late_launch(struct qp *qp, const struct work *work)
{
    struct ctx *ctx = qp->ctx;
    struct late *late = &ctx->late;
    bool relaxed = (order_of(qp) & PORT_RELAXED) != 0;
    if (!relaxed && work->due_ns == 0 && qp->late_first == NULL)
        return false; /* nothing to wait for */
    pthread_mutex_lock(&late->lock);
    bool driven = late->running || ctx->clock_is_handed || start_thread(ctx);
    struct late_op *op = driven ? late_make(qp, work, relaxed ? &late->random : NULL) : NULL;
    if (op != NULL) {
        op->order = order_of(qp);
        keep(ctx, op);
    }
    pthread_mutex_unlock(&late->lock);
    if (op == NULL && !qp->datagram)
        nic_late_force(qp, true);
    return op != NULL;
}

/* All pieces, as they were posted. False: the far side is busy. */
static bool land_all(struct late_op *op, bool inbound_held)
{
    if (op->qp->datagram && op->left != 0 && !late_arrive(op))
        return false;
    for (unsigned piece = 0; piece < op->pieces; piece++) {
        if ((op->left >> piece & 1) != 0 && !late_land(op, piece, inbound_held))
            return false;
    }
    return retire(op, inbound_held);
}

/* The far side lives and lets nobody in: its process was stopped in the middle of something. For
 * the sender that is a peer which does not answer. */
static void give_up(struct late_op *op)
{
    struct qp *qp = op->qp;
    if (!op->unanswered)
        nic_say(
            qp->ctx,
            "process %d holds its queue pair %#x longer than queue pair %#x waits for an answer: "
            "was it stopped? What it has not taken fails with a retry error",
            (int)qp->peer->pid, qp->shared->dest_qpn, qp->ex.qp_base.qp_num);
    op->status = IBV_WC_RETRY_EXC_ERR;
    op->left = 0;
    qp->late_recvs -= op->recv != NULL;
    op->recv = NULL;
    retire(op, false);
}

/* As long as the queue pair waits for an answer, and no longer than anybody may hold a lock. */
static uint64_t limit_of(const struct qp *qp)
{
    return qp->attr.timeout == 0 ? 0 : (4096ull << qp->attr.timeout) * (qp->attr.retry_cnt + 1u);
}

void nic_late_force(struct qp *qp, bool inbound_held)
{
    struct late *late = &qp->ctx->late;
    if (qp->late_first == NULL)
        return;
    struct patience patience = {.limit_ns = limit_of(qp)};
    pthread_mutex_lock(&late->lock);
    for (struct late_op *op; (op = qp->late_first) != NULL;) {
        if (land_all(op, inbound_held))
            continue;
        uint64_t holder = qp->remote != NULL ? atomic_load(&qp->remote->inbound) : 0;
        if (!nic_wait_turn(&patience, holder, qp->ctx->token))
            give_up(op);
    }
    pthread_mutex_unlock(&late->lock);
}

void nic_late_flush(struct qp *qp)
{
    struct late *late = &qp->ctx->late;
    if (qp->late_first == NULL || nic_is_unanswered(qp))
        return; /* without answers they are on their way all the same */
    pthread_mutex_lock(&late->lock);
    for (struct late_op *op; (op = qp->late_first) != NULL; forget(op))
        nic_send_complete_at(qp, &op->wqe, IBV_WC_WR_FLUSH_ERR, 0, op->due_ns, op->sq_count);
    pthread_mutex_unlock(&late->lock);
}

void nic_late_drop(struct qp *qp)
{
    struct late *late = &qp->ctx->late;
    if (qp->late_first == NULL)
        return;
    pthread_mutex_lock(&late->lock);
    for (struct late_op *op; (op = qp->late_first) != NULL;)
        forget(op);
    pthread_mutex_unlock(&late->lock);
}

void late_relieve(struct qp *qp)
{
    enum { UNDER_WAY_MOST = 64 };
    const struct late_op *first = qp->late_first;
    if (first != NULL && (first->order & PORT_RELAXED) != 0 &&
        atomic_load(&qp->ctx->late.count) >= UNDER_WAY_MOST)
        nic_late_force(qp, false);
}

/* The sender of these was told that they are sent. */
void nic_late_finish(struct qp *qp)
{
    if (!nic_is_unanswered(qp))
        return;
    spin_lock(&qp->sq_lock);
    nic_late_force(qp, false);
    spin_unlock(&qp->sq_lock);
}

/* What has not landed never will. */
void nic_late_close(struct ctx *ctx)
{
    struct late *late = &ctx->late;
    pthread_mutex_lock(&late->lock);
    late->stop = true;
    pthread_cond_signal(&late->come);
    pthread_mutex_unlock(&late->lock);
    if (late->running)
        pthread_join(late->thread, NULL);
    late->running = false;
    while (late->first != NULL)
        forget(late->first);
}
