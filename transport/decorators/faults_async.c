/* SPDX-License-Identifier: MIT */
/*
 * Asynchronous events of ours beside the device's. The context's async_fd becomes an epoll over the
 * device's descriptor and an eventfd; while the device is asked it has its own back, which is set
 * not to block, so that this is short.
 */
#include "transport/decorators/event.h"
#include "transport/decorators/faults_private.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

int faults_async_open(struct faults *f)
{
    f->inner_fd = f->epoll_fd = f->event_fd = -1;
    if (!faults_has(f, 1u << FAULT_FATAL | 1u << FAULT_DOWN))
        return 0;
    int inner = f->context->async_fd, flags = fcntl(inner, F_GETFL), err;
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int both = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event readable = {.events = EPOLLIN};
    if (event < 0 || both < 0 || flags < 0 ||
        epoll_ctl(both, EPOLL_CTL_ADD, inner, &readable) != 0 ||
        epoll_ctl(both, EPOLL_CTL_ADD, event, &readable) != 0 ||
        fcntl(inner, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(both, F_SETFL, flags) != 0) {
        err = errno;
        if (event >= 0)
            close(event);
        if (both >= 0)
            close(both);
        return err;
    }
    f->inner_fd = inner;
    f->event_fd = event;
    f->epoll_fd = f->context->async_fd = both;
    return 0;
}

static void free_list(struct fault_event *e)
{
    while (e) {
        struct fault_event *next = e->next;
        free(e);
        e = next;
    }
}

void faults_async_close(struct faults *f)
{
    free_list(f->events);
    free_list(f->given);
    if (f->epoll_fd < 0)
        return;
    f->context->async_fd = f->inner_fd;
    close(f->epoll_fd);
    close(f->event_fd);
}

void faults_async_raise(struct faults *f, enum ibv_event_type type, struct ibv_qp *qp)
{
    struct fault_event *e = calloc(1, sizeof *e);
    uint64_t one = 1;
    if (!e)
        return;
    e->event.event_type = type;
    if (qp)
        e->event.element.qp = qp;
    else
        e->event.element.port_num = 1;
    *f->events_end = e;
    f->events_end = &e->next;
    ssize_t n = write(f->event_fd, &one, sizeof one);
    (void)n; /* full only after 2^64 events */
}

/* The queue pair is destroyed: no event names it any more. */
void faults_async_forget(struct faults *f, const struct ibv_qp *qp)
{
    for (struct fault_event **at = &f->events; *at;) {
        struct fault_event *e = *at;
        if (e->event.event_type != IBV_EVENT_QP_FATAL || e->event.element.qp != qp) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        if (f->events_end == &e->next)
            f->events_end = at;
        free(e);
    }
}

static bool take_ours(struct faults *f, struct ibv_async_event *event)
{
    uint64_t count;
    pthread_mutex_lock(&f->lock);
    struct fault_event *e = f->events;
    if (e) {
        f->events = e->next;
        if (!f->events) {
            f->events_end = &f->events;
            ssize_t n = read(f->event_fd, &count, sizeof count);
            (void)n;
        }
        *event = e->event;
        e->next = f->given;
        f->given = e;
    }
    pthread_mutex_unlock(&f->lock);
    return e != NULL;
}

void faults_own_fd(struct faults *f)
{
    pthread_mutex_lock(&f->async_lock);
    if (f->epoll_fd >= 0)
        f->context->async_fd = f->inner_fd;
}

void faults_our_fd(struct faults *f)
{
    if (f->epoll_fd >= 0)
        f->context->async_fd = f->epoll_fd;
    pthread_mutex_unlock(&f->async_lock);
}

int faults_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    struct faults *f = faults_of(context);
    if (f->epoll_fd < 0)
        return f->inner->get_async_event(context, event);
    for (;;) {
        if (take_ours(f, event))
            return 0;
        faults_own_fd(f);
        int err = f->inner->get_async_event(context, event), why = errno;
        faults_our_fd(f);
        bool blocks = (fcntl(f->epoll_fd, F_GETFL) & O_NONBLOCK) == 0;
        errno = why;
        if (err == 0 || !blocks || why != EAGAIN)
            return err;
        struct pollfd ready = {.fd = f->epoll_fd, .events = POLLIN};
        if (poll(&ready, 1, -1) < 0)
            return -1;
    }
}

void faults_ack_async_event(struct ibv_async_event *event)
{
    struct ibv_context *context = event_context(event);
    if (!context)
        return;
    struct faults *f = faults_of(context);
    pthread_mutex_lock(&f->lock);
    struct fault_event **at = &f->given;
    while (*at && ((*at)->event.event_type != event->event_type ||
                   (*at)->event.element.qp != event->element.qp))
        at = &(*at)->next;
    struct fault_event *ours = *at;
    if (ours)
        *at = ours->next;
    pthread_mutex_unlock(&f->lock);
    free(ours);
    if (!ours)
        f->inner->ack_async_event(event);
}
