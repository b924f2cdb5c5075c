/* SPDX-License-Identifier: MIT */
/* Event channels: what their descriptor watches, and taking the next event. */
#include "transport/softnic/cm/cm.h"
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { NS_PER_S = 1000000000 };

pthread_mutex_t cm_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int cancel_state;

void cm_enter(void)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    pthread_mutex_lock(&cm_lock);
}

void cm_leave(void)
{
    pthread_mutex_unlock(&cm_lock);
    pthread_setcancelstate(cancel_state, NULL);
}

uint64_t cm_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* The timer at the earliest deadline, or in the past if an event waits. Setting it takes back what
 * it has told so far. */
void cm_channel_arm(struct cm_channel *channel)
{
    uint64_t due = channel->first != NULL ? 1 : 0;
    for (struct cm_id *id = channel->ids; id != NULL && due != 1; id = id->next) {
        if (id->deadline_ns != 0 && (due == 0 || id->deadline_ns < due))
            due = id->deadline_ns;
    }
    struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(due / NS_PER_S), .tv_nsec = (long)(due % NS_PER_S)}};
    timerfd_settime(channel->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

void cm_set_deadline(struct cm_id *id, uint64_t after_ns)
{
    id->deadline_ns = after_ns == 0 ? 0 : cm_now_ns() + after_ns;
    cm_channel_arm(to_channel(id->base.channel));
}

int cm_watch(struct cm_id *id)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = id};
    if (epoll_ctl(id->base.channel->fd, EPOLL_CTL_ADD, id->fd, &event) != 0)
        return -errno;
    id->watched = true;
    return 0;
}

void cm_unwatch(struct cm_id *id)
{
    if (id->watched)
        epoll_ctl(id->base.channel->fd, EPOLL_CTL_DEL, id->fd, NULL);
    id->watched = false;
}

void cm_channel_add(struct cm_channel *channel, struct cm_id *id)
{
    id->base.channel = &channel->base;
    id->next = channel->ids;
    channel->ids = id;
}

void cm_channel_remove(struct cm_id *id)
{
    struct cm_id **at = &to_channel(id->base.channel)->ids;
    while (*at != id)
        at = &(*at)->next;
    *at = id->next;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
    struct cm_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL)
        return NULL;
    channel->base.fd = epoll_create1(EPOLL_CLOEXEC);
    if (channel->base.fd < 0)
        goto free_channel;
    channel->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (channel->timer_fd < 0)
        goto close_epoll;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(channel->base.fd, EPOLL_CTL_ADD, channel->timer_fd, &event) != 0)
        goto close_timer;
    return &channel->base;
close_timer:
    close(channel->timer_fd);
close_epoll:
    close(channel->base.fd);
free_channel:
    free(channel);
    return NULL;
}

void rdma_destroy_event_channel(struct rdma_event_channel *base)
{
    struct cm_channel *channel = to_channel(base);
    if (base == NULL)
        return;
    cm_enter();
    cm_events_drop(channel, NULL);
    close(channel->timer_fd);
    close(base->fd);
    base->fd = -1;
    channel->destroyed = true;
    bool used = channel->users > 0;
    cm_leave();
    if (!used)
        free(channel);
}

static void expire(struct cm_channel *channel)
{
    uint64_t now = cm_now_ns();
    for (struct cm_id *id = channel->ids, *next; id != NULL; id = next) {
        next = id->next;
        if (id->deadline_ns != 0 && id->deadline_ns <= now) {
            id->deadline_ns = 0;
            cm_expired(id);
        }
    }
    cm_channel_arm(channel);
}

/* What is ready now, one at a time: whoever is ready may end another. */
static void look(struct cm_channel *channel)
{
    enum {
        AT_ONCE = 256
    }; /* one that cannot be served now, for want of descriptors, stays ready */
    struct epoll_event ready;
    for (int i = 0; i < AT_ONCE && channel->first == NULL; i++) {
        if (epoll_wait(channel->base.fd, &ready, 1, 0) != 1)
            return;
        if (ready.data.ptr == NULL)
            expire(channel);
        else
            cm_pump(ready.data.ptr);
    }
}

/* Its user learns of an id: with a synchronous listener it gets a channel of its own. */
static bool bear(struct cm_id *id, const struct cm_id *listener)
{
    struct rdma_event_channel *own = NULL;
    if (listener->sync) {
        own = rdma_create_event_channel();
        if (own == NULL || cm_id_move(id, to_channel(own)) != 0)
            goto abandon;
        id->sync = true;
    }
    id->listener = NULL;
    return true;
abandon:
    if (own != NULL)
        rdma_destroy_event_channel(own);
    return false;
}

static struct cm_event *take(struct cm_channel *channel)
{
    struct cm_event *event;
    while ((event = channel->first) != NULL) {
        channel->first = event->next;
        if (event->base.event != RDMA_CM_EVENT_CONNECT_REQUEST ||
            bear(to_id(event->base.id), to_id(event->base.listen_id)))
            break;
        cm_id_abandon(to_id(event->base.id));
        free(event);
    }
    if (event != NULL)
        event->counted_on->events_given++;
    cm_channel_arm(channel);
    return event;
}

/* A thread that was waiting when the channel was destroyed: with the kernel's it would never
 * return, and programs that end soon after (rping) rely on that. */
static void never_return(void)
{
    for (;;)
        pause();
}

/* As the flags of the descriptor have it: wait, or EAGAIN. */
static int wait_for(int fd)
{
    struct pollfd ask = {.fd = fd, .events = POLLIN};
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return errno;
    if ((flags & O_NONBLOCK) != 0)
        return EAGAIN;
    /* Without end, as the call is specified. EINTR is the caller's, as with the kernel's. */
    return poll(&ask, 1, -1) < 0 ? errno : 0;
}

int rdma_get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event **out)
{
    struct cm_channel *channel = to_channel(base);
    struct cm_event *event = NULL;
    int err = 0;
    if (base == NULL || out == NULL)
        return cm_fail(EINVAL);
    cm_enter();
    channel->users++;
    while (err == 0 && !channel->destroyed) {
        look(channel);
        event = take(channel);
        if (event != NULL)
            break;
        int fd = base->fd;
        cm_leave();
        err = wait_for(fd);
        cm_enter();
    }
    bool destroyed = channel->destroyed, last = --channel->users == 0;
    cm_leave();
    if (destroyed) {
        if (last)
            free(channel);
        never_return();
    }
    if (event == NULL)
        return cm_fail(err);
    *out = &event->base;
    return 0;
}
