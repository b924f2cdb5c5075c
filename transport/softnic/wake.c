/* SPDX-License-Identifier: MIT */
/*
 * Waking who sleeps on a completion channel. What is there is told through the channel's pipe,
 * which peers open through /proc. What is due later is told by a timer of its completion queue,
 * which peers reach through the owner's pidfd: so the channel is not readable before there is
 * something to be had. Where the kernel refuses that, or the port's clock is not the kernel's, the
 * pipe tells it early.
 */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { NS_PER_S = 1000000000 };

bool nic_timer_at(int fd, uint64_t at_ns)
{
    struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(at_ns / NS_PER_S), .tv_nsec = (long)(at_ns % NS_PER_S)}};
    return timerfd_settime(fd, TFD_TIMER_ABSTIME, &at, NULL) == 0;
}

/* The timer stays its owner's: we hold it for as long as setting it takes. */
static bool set_timer_of(const struct peer *peer, int timer_fd, uint64_t at_ns)
{
    int fd = peer->pidfd >= 0 ? (int)syscall(SYS_pidfd_getfd, peer->pidfd, timer_fd, 0) : -1;
    if (fd < 0)
        return false;
    bool set = nic_timer_at(fd, at_ns);
    close(fd);
    return set;
}

static void ring_peer(struct peer *peer, const struct shared_cq *scq)
{
    pthread_mutex_lock(&peer->lock);
    if (peer->wake_fd < 0 || peer->wake_id != scq->wake_id) {
        if (peer->wake_fd >= 0)
            close(peer->wake_fd);
        /* For reading too: without a reader it would be SIGPIPE. */
        peer->wake_fd = nic_peer_fd(peer, nic_once(scq->wake_fd), O_RDWR | O_NONBLOCK);
        peer->wake_id = scq->wake_id;
    }
    if (peer->wake_fd >= 0)
        nic_pipe_write(peer->wake_fd, "", 1);
    pthread_mutex_unlock(&peer->lock);
}

/* Is it due later, and nobody asked to be told early? */
static bool is_for_later(struct ctx *ctx, struct shared_cq *scq, uint64_t due_ns)
{
    if (due_ns == 0 || ctx->clock_is_handed || nic_once(scq->timer_fd) < 0 ||
        atomic_load(&scq->early) != 0)
        return false;
    uint64_t now = nic_now(ctx);
    return due_ns > now && due_ns - now <= SPOILT_NS;
}

void nic_cq_wake(struct ctx *ctx, struct peer *peer, struct shared_cq *scq, bool solicited,
                 uint64_t due_ns)
{
    uint32_t armed = atomic_load(&scq->armed);
    if (__builtin_expect(armed == CQ_DISARMED, 1) || (armed == CQ_ARMED_SOLICITED && !solicited))
        return;
    if (!atomic_compare_exchange_strong(&scq->armed, &armed, CQ_DISARMED))
        return;
    atomic_store(&scq->event, 1);
    int fd = nic_once(scq->wake_fd), timer_fd = nic_once(scq->timer_fd);
    if (fd < 0)
        return;
    bool here = peer == NULL || peer->same_process;
    if (is_for_later(ctx, scq, due_ns) &&
        (here ? nic_timer_at(timer_fd, due_ns) : set_timer_of(peer, timer_fd, due_ns)))
        return;
    if (here)
        nic_pipe_write(fd, "", 1);
    else
        ring_peer(peer, scq);
}
