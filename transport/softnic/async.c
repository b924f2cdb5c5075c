/* SPDX-License-Identifier: MIT */
/* Asynchronous events: records in a pipe, its reading end is async_fd, its writing end peers open
 * through /proc. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int nic_async_create(struct ctx *ctx)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return errno;
    /* Whoever raises an event must not wait for whoever reads it. */
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    ibv_of(ctx)->async_fd = fds[0];
    ctx->async_wfd = fds[1];
    return 0;
}

/* `peer`: in whose process the event is to be seen; NULL: here. */
void nic_async_raise(struct ctx *ctx, struct peer *peer, enum ibv_event_type type, uint32_t number)
{
    struct async_record record = {(uint32_t)type, number};
    if (peer == NULL || peer->same_process) {
        nic_pipe_write(peer == NULL ? ctx->async_wfd : peer->own->async_wfd, &record,
                       sizeof record);
    } else {
        /* For reading too: without a reader it would be SIGPIPE. */
        int fd = nic_peer_fd(peer, nic_once(peer->member->async_wfd), O_RDWR | O_NONBLOCK);
        if (fd < 0)
            return;
        nic_pipe_write(fd, &record, sizeof record);
        close(fd);
    }
}

static bool is_cq_event(uint32_t type)
{
    return type == IBV_EVENT_CQ_ERR;
}

static bool is_srq_event(uint32_t type)
{
    return type == IBV_EVENT_SRQ_ERR || type == IBV_EVENT_SRQ_LIMIT_REACHED;
}

/* Give the event its object. False: it was destroyed meanwhile. */
static bool take(struct ctx *ctx, const struct async_record *record, struct ibv_async_event *event)
{
    bool found = false;
    pthread_mutex_lock(&ctx->lock);
    event->event_type = (enum ibv_event_type)record->type;
    if (is_cq_event(record->type)) {
        struct cq *cq = record->number < CQS_MAX ? ctx->cqs[record->number] : NULL;
        if (cq != NULL) {
            event->element.cq = &cq->base;
            cq->async_given++;
            found = true;
        }
    } else if (is_srq_event(record->type)) {
        struct srq *srq = record->number < SRQS_MAX ? ctx->srqs[record->number] : NULL;
        if (srq != NULL) {
            event->element.srq = &srq->base;
            srq->events_given++;
            found = true;
        }
    } else {
        struct qp *qp = atomic_load(&ctx->qps[record->number % QPS_MAX]);
        if (qp != NULL && qp->ex.qp_base.qp_num == record->number) {
            event->element.qp = &qp->ex.qp_base;
            qp->events_given++;
            found = true;
        }
    }
    pthread_mutex_unlock(&ctx->lock);
    return found;
}

int softnic_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    struct ctx *ctx = to_ctx(context);
    struct async_record record;
    if (nic_after_fork(ctx)) {
        errno = nic_refuse_child(ctx);
        return -1;
    }
    for (;;) {
        ssize_t n = read(context->async_fd, &record, sizeof record);
        if (n == (ssize_t)sizeof record) {
            if (take(ctx, &record, event))
                return 0;
        } else {
            if (n >= 0)
                errno = EIO;
            return -1;
        }
    }
}

void softnic_ack_async_event(struct ibv_async_event *event)
{
    if (is_cq_event(event->event_type)) {
        struct ibv_cq *cq = event->element.cq;
        pthread_mutex_lock(&cq->mutex);
        cq->async_events_completed++;
        pthread_cond_signal(&cq->cond);
        pthread_mutex_unlock(&cq->mutex);
    } else if (is_srq_event(event->event_type)) {
        struct ibv_srq *srq = event->element.srq;
        pthread_mutex_lock(&srq->mutex);
        srq->events_completed++;
        pthread_cond_signal(&srq->cond);
        pthread_mutex_unlock(&srq->mutex);
    } else {
        struct ibv_qp *qp = event->element.qp;
        pthread_mutex_lock(&qp->mutex);
        qp->events_completed++;
        pthread_cond_signal(&qp->cond);
        pthread_mutex_unlock(&qp->mutex);
    }
}
