/* SPDX-License-Identifier: MIT */
/* Asynchronous events. */
#include "tests/conformance.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static void no_asynchronous_event(struct trial *t)
{
    trial_connect(t, NULL);
    set_nonblocking(t, t->a.context->async_fd);
    struct ibv_async_event event;
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    errno = 0;
    expect_equal(t, t->verbs->get_async_event(t->a.context, &event), -1, "get_async_event");
    expect_equal(t, errno, EAGAIN, "errno of get_async_event");
}

/* InfiniBand 11.6.3: a request that is forbidden is an access error of the responder. */
static void a_forbidden_request_is_an_event(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    expect_async(t, &t->b, IBV_EVENT_QP_ACCESS_ERR, t->b.qp);
}

static void the_event_can_be_waited_for(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    struct ibv_async_event event;
    work_make(t, &w, IBV_WR_RDMA_READ, &t->a, 0, &t->b.address, 0, 8);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    do {
        expect(t, poll_readable(t->b.context->async_fd, t->deadline_ms),
               "async_fd is not readable");
        expect_equal(t, t->verbs->get_async_event(t->b.context, &event), 0, "get_async_event");
        t->verbs->ack_async_event(&event);
    } while (event.event_type == IBV_EVENT_COMM_EST);
    expect_equal(t, event.event_type, IBV_EVENT_QP_ACCESS_ERR, "event_type");
    expect(t, event.element.qp == t->b.qp, "the event is of another queue pair");
}

struct qp_destroyer {
    const struct verbs *verbs;
    struct ibv_qp *qp;
    int result;
    atomic_bool done;
};

static void *destroy_qp_in_thread(void *argument)
{
    struct qp_destroyer *d = argument;
    d->result = d->verbs->destroy_qp(d->qp);
    atomic_store(&d->done, true);
    return NULL;
}

/* ibv_get_async_event(3): so does destroying a queue pair. */
static void destroying_waits_for_its_asynchronous_event(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    struct ibv_async_event event;
    work_make(t, &w, IBV_WR_RDMA_READ, &t->a, 0, &t->b.address, 0, 8);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    expect(t, poll_readable(t->b.context->async_fd, t->deadline_ms), "async_fd is not readable");
    expect_equal(t, t->verbs->get_async_event(t->b.context, &event), 0, "get_async_event");
    struct qp_destroyer d = {.verbs = t->verbs, .qp = t->b.qp};
    pthread_t thread;
    int err = pthread_create(&thread, NULL, destroy_qp_in_thread, &d);
    if (!err)
        trial_forget(t, d.qp);
    usleep(20000); /* a wait that is too short can only hide a fault, not show one */
    bool early = atomic_load(&d.done);
    if (!early)
        t->verbs->ack_async_event(&event);
    expect_equal(t, err, 0, "pthread_create");
    pthread_join(thread, NULL);
    expect(t, !early, "destroy_qp did not wait for the acknowledgement");
    expect_equal(t, d.result, 0, "destroy_qp");
}

static void a_drained_send_queue_is_an_event(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY),
                 0, "modify_qp to SQD");
    expect_async(t, &t->a, IBV_EVENT_SQ_DRAINED, t->a.qp);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
}

static const struct check checks[] = {
    {.name = "no asynchronous event", .run = no_asynchronous_event},
    {.name = "a forbidden request is an event", .run = a_forbidden_request_is_an_event},
    {.name = "the event can be waited for", .run = the_event_can_be_waited_for},
    {.name = "destroying waits for its asynchronous event",
     .run = destroying_waits_for_its_asynchronous_event},
    {.name = "a drained send queue is an event", .run = a_drained_send_queue_is_an_event},
};

const struct check_group async_checks = GROUP("asynchronous events", checks);
