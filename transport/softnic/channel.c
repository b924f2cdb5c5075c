/* SPDX-License-Identifier: MIT */
/*
 * Completion channels. The fd that the user sees is an epoll over a pipe, into which whoever
 * completes something writes a byte, a timer for each completion queue whose entries are due later
 * (wake.c), and one for send queues that wait for the wire or a receiver, and must be looked at.
 */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* A sleep of 100 us overshoots by 60 us and more: nearer than this we look instead. */
enum { NO_SLEEP_NS = 150000, HANDED_CLOCK_STEP_NS = 1000000 };

static struct channel *to_channel(struct ibv_comp_channel *base)
{
    return (struct channel *)base;
}

static int watch(int epoll_fd, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : errno;
}

static int open_fds(struct channel *ch)
{
    int fds[2], err;
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return errno;
    ch->read_fd = fds[0];
    ch->write_fd = fds[1];
    ch->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (ch->timer_fd < 0) {
        err = errno;
        goto close_pipe;
    }
    ch->base.fd = epoll_create1(EPOLL_CLOEXEC);
    if (ch->base.fd < 0) {
        err = errno;
        goto close_timer;
    }
    err = watch(ch->base.fd, ch->read_fd);
    if (err == 0)
        err = watch(ch->base.fd, ch->timer_fd);
    if (err == 0)
        return 0;
    close(ch->base.fd);
close_timer:
    close(ch->timer_fd);
close_pipe:
    close(fds[0]);
    close(fds[1]);
    return err;
}

struct ibv_comp_channel *softnic_create_comp_channel(struct ibv_context *context)
{
    struct ctx *ctx = to_ctx(context);
    if (nic_after_fork(ctx)) {
        errno = nic_refuse_child(ctx);
        return NULL;
    }
    struct channel *ch = calloc(1, sizeof *ch);
    if (ch == NULL)
        return NULL;
    ch->base.context = context;
    int err = open_fds(ch);
    if (err != 0) {
        free(ch);
        errno = err;
        return NULL;
    }
    pthread_mutex_lock(&ctx->channels_lock);
    ch->wake_id = ++ctx->next_wake;
    ch->next = ctx->channels;
    ctx->channels = ch;
    atomic_fetch_add(&ctx->channel_count, 1);
    pthread_mutex_unlock(&ctx->channels_lock);
    return &ch->base;
}

int softnic_destroy_comp_channel(struct ibv_comp_channel *base)
{
    struct channel *ch = to_channel(base);
    struct ctx *ctx = to_ctx(base->context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    pthread_mutex_lock(&ctx->lock);
    int users = base->refcnt;
    pthread_mutex_unlock(&ctx->lock);
    if (users != 0)
        return EBUSY;
    pthread_mutex_lock(&ctx->channels_lock);
    struct channel **at = &ctx->channels;
    while (*at != ch)
        at = &(*at)->next;
    *at = ch->next;
    atomic_fetch_sub(&ctx->channel_count, 1);
    pthread_mutex_unlock(&ctx->channels_lock);
    close(base->fd);
    close(ch->timer_fd);
    close(ch->read_fd);
    close(ch->write_fd);
    free(ch);
    return 0;
}

/* Its completions that are due later have a timer; an unshaped port has none of those. */
int nic_channel_add_cq(struct channel *ch, struct cq *cq)
{
    cq->timer_fd = -1;
    if (!nic_shaped(cq->ctx->meeting) || cq->ctx->clock_is_handed)
        return 0;
    cq->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int err = cq->timer_fd < 0 ? errno : watch(ch->base.fd, cq->timer_fd);
    if (err != 0 && cq->timer_fd >= 0)
        close(cq->timer_fd);
    return err;
}

void nic_channel_remove_cq(struct channel *ch, struct cq *cq)
{
    if (cq->timer_fd < 0)
        return;
    /* A peer that is just setting it keeps it open, and watched. */
    epoll_ctl(ch->base.fd, EPOLL_CTL_DEL, cq->timer_fd, NULL);
    close(cq->timer_fd);
}

/* UINT64_MAX: not at all. */
static void set_timer(struct channel *ch, uint64_t delta_ns)
{
    struct itimerspec at = {0};
    bool set = delta_ns != UINT64_MAX;
    if (!atomic_exchange(&ch->timer_is_set, set) && !set)
        return;
    if (set) {
        if (delta_ns == 0)
            delta_ns = 1; /* 0 would disarm it */
        at.it_value.tv_sec = (time_t)(delta_ns / 1000000000u);
        at.it_value.tv_nsec = (long)(delta_ns % 1000000000u);
    }
    timerfd_settime(ch->timer_fd, 0, &at, NULL);
}

/* How long to sleep at most until `next` on the port's clock. */
static uint64_t sleep_ns(struct ctx *ctx, uint64_t next, uint64_t ahead)
{
    if (next == UINT64_MAX)
        return UINT64_MAX;
    uint64_t now = nic_now(ctx);
    uint64_t delta = next > now + ahead ? next - now - ahead : 0;
    /* A clock that was handed to us need not run with the kernel's. */
    if (ctx->clock_is_handed && delta > HANDED_CLOCK_STEP_NS)
        delta = HANDED_CLOCK_STEP_NS;
    return delta;
}

/* May anybody be asleep? */
static bool any_armed(struct ctx *ctx)
{
    uint32_t end = atomic_load_explicit(&ctx->cq_end, memory_order_relaxed);
    for (uint32_t i = 0; i < end; i++) {
        if (atomic_load_explicit(&ctx->member->cq[i].armed, memory_order_relaxed) != CQ_DISARMED)
            return true;
    }
    return false;
}

/* Unless it is set to come before that. */
static void set_timer_sooner(struct channel *ch, uint64_t delta_ns)
{
    struct itimerspec old;
    if (timerfd_gettime(ch->timer_fd, &old) == 0 &&
        (old.it_value.tv_sec != 0 || old.it_value.tv_nsec != 0) &&
        (uint64_t)old.it_value.tv_sec * 1000000000u + (uint64_t)old.it_value.tv_nsec < delta_ns)
        return;
    set_timer(ch, delta_ns);
}

/* A send queue began to wait: those who sleep on a channel must wake for it. */
void nic_channel_rearm(struct ctx *ctx)
{
    if (atomic_load_explicit(&ctx->channel_count, memory_order_relaxed) == 0 || !any_armed(ctx))
        return;
    uint64_t next = nic_next_wake(ctx);
    if (next == UINT64_MAX)
        return;
    uint64_t delta = sleep_ns(ctx, next, 0);
    pthread_mutex_lock(&ctx->channels_lock);
    for (struct channel *ch = ctx->channels; ch != NULL; ch = ch->next)
        set_timer_sooner(ch, delta);
    pthread_mutex_unlock(&ctx->channels_lock);
}

int softnic_req_notify_cq(struct ibv_cq *base, int solicited_only)
{
    struct cq *cq = to_cq(base);
    struct ctx *ctx = cq->ctx;
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    /* Armed for any completion, it stays so when armed for solicited ones. */
    uint32_t want = solicited_only ? CQ_ARMED_SOLICITED : CQ_ARMED_ANY;
    uint32_t armed = atomic_load(&cq->shared->armed);
    while (armed < want && !atomic_compare_exchange_weak(&cq->shared->armed, &armed, want))
        ;
    if (base->channel == NULL)
        return 0;
    /* An entry that is there but not due cannot be polled now, so it must wake the user later. */
    uint64_t due = nic_cq_due(cq, solicited_only != 0);
    if (due != 0 && due != UINT64_MAX && due > nic_now(ctx)) {
        armed = atomic_exchange(&cq->shared->armed, CQ_DISARMED);
        if (armed != CQ_DISARMED)
            atomic_store(&cq->shared->event, 1);
        if (cq->timer_fd >= 0 && nic_timer_at(cq->timer_fd, due))
            due = UINT64_MAX;
    } else {
        due = UINT64_MAX;
    }
    uint64_t wake = nic_next_wake(ctx);
    if (due < wake)
        wake = due;
    if (wake != UINT64_MAX)
        set_timer_sooner(to_channel(base->channel), sleep_ns(ctx, wake, 0));
    return 0;
}

static void drain(struct channel *ch)
{
    char bytes[256];
    uint64_t expired;
    while (read(ch->read_fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
    if (read(ch->timer_fd, &expired, sizeof expired) < 0) {
        /* it has not expired */
    }
}

/* The next event that is due. *next: when there may be one otherwise. */
static struct cq *collect(struct ctx *ctx, struct channel *ch, uint64_t *next)
{
    struct cq *found = NULL;
    bool more = false;
    *next = UINT64_MAX;
    pthread_mutex_lock(&ctx->lock);
    drain(ch);
    for (uint32_t i = 0; i < CQS_MAX; i++) {
        uint32_t index = (ch->next_cq + i) % CQS_MAX;
        struct cq *cq = ctx->cqs[index];
        if (cq == NULL || cq->base.channel != &ch->base || atomic_load(&cq->shared->event) == 0)
            continue;
        uint64_t due = nic_cq_due(cq, false);
        if (due != 0 && due != UINT64_MAX && due > nic_now(ctx)) {
            if (due < *next)
                *next = due;
        } else if (found == NULL) {
            found = cq;
        } else {
            more = true;
        }
    }
    if (found != NULL) {
        if (found->timer_fd >= 0)
            nic_timer_at(found->timer_fd, 0);
        atomic_store(&found->shared->event, 0);
        found->events_given++;
        ch->next_cq = found->index + 1;
        if (more && write(ch->write_fd, "", 1) < 0) {
            /* full is as good */
        }
    }
    pthread_mutex_unlock(&ctx->lock);
    uint64_t wake = nic_next_wake(ctx);
    if (wake < *next)
        *next = wake;
    return found;
}

/* Whoever waits in the call itself comes back in time by looking at the clock, if it knows ahead.
 */
static void welcome_early(struct ctx *ctx, const struct channel *ch, bool early)
{
    if (!nic_shaped(ctx->meeting))
        return;
    pthread_mutex_lock(&ctx->lock);
    for (uint32_t i = 0; i < CQS_MAX; i++) {
        if (ctx->cqs[i] != NULL && ctx->cqs[i]->base.channel == &ch->base)
            atomic_store(&ctx->cqs[i]->shared->early, early);
    }
    pthread_mutex_unlock(&ctx->lock);
}

static int wait_for(struct ctx *ctx, struct channel *ch, uint64_t next)
{
    uint64_t delta = sleep_ns(ctx, next, ctx->clock_is_handed ? 0 : NO_SLEEP_NS);
    if (delta == 0) {
        sched_yield();
        return 0;
    }
    set_timer(ch, delta);
    struct pollfd ask = {.fd = ch->base.fd, .events = POLLIN};
    return poll(&ask, 1, -1) < 0 ? errno : 0;
}

/* 0 or an errno. */
static int next_event(struct ctx *ctx, struct channel *ch, struct cq **out)
{
    bool welcome = false;
    for (;;) {
        uint64_t next;
        int err = nic_after_fork(ctx) ? nic_refuse_child(ctx) : 0;
        if (err != 0)
            return err;
        nic_progress(ctx);
        struct cq *cq = collect(ctx, ch, &next);
        bool waits = (fcntl(ch->base.fd, F_GETFL) & O_NONBLOCK) == 0;
        if (cq == NULL && waits && !welcome) {
            welcome_early(ctx, ch, true); /* and look again */
            welcome = true;
            continue;
        }
        if (cq == NULL && waits && (err = wait_for(ctx, ch, next)) == 0)
            continue;
        if (welcome)
            welcome_early(ctx, ch, false);
        if (cq == NULL && waits)
            return err;
        set_timer(ch, sleep_ns(ctx, next, 0));
        *out = cq;
        return cq != NULL ? 0 : EAGAIN;
    }
}

int softnic_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **out, void **cq_context)
{
    struct cq *cq = NULL;
    int err = next_event(to_ctx(base->context), to_channel(base), &cq);
    if (err != 0) {
        errno = err;
        return -1;
    }
    *out = &cq->base;
    *cq_context = cq->base.cq_context;
    return 0;
}

void softnic_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
    if (nevents == 0)
        return;
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += nevents;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}
