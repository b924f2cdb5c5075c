/* SPDX-License-Identifier: MIT */
/* Completion channels. */
#include "tests/conformance.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static void open_with_channel(struct trial *t)
{
    struct options o = default_options();
    o.channel = true;
    trial_connect(t, &o);
}

static void arm(struct trial *t, struct ibv_cq *cq, int solicited_only)
{
    expect_equal(t, t->verbs->req_notify_cq(cq, solicited_only), 0, "req_notify_cq");
}

/* Waits on the descriptor, so that the call itself can be trusted not to block for ever. */
static void expect_event(struct trial *t, struct side *side, struct ibv_cq *cq)
{
    struct ibv_cq *found = NULL;
    void *cq_context = NULL;
    expect(t, poll_readable(side->channel->fd, t->deadline_ms), "the channel is not readable");
    expect_equal(t, t->verbs->get_cq_event(side->channel, &found, &cq_context), 0, "get_cq_event");
    t->verbs->ack_cq_events(found, 1);
    expect(t, found == cq && cq_context == cq->cq_context, "the event is of another CQ");
}

/* The channel must be non-blocking. Called once the completion has been polled. */
static void expect_no_event(struct trial *t, struct side *side)
{
    struct ibv_cq *found;
    void *cq_context;
    errno = 0;
    int answer = t->verbs->get_cq_event(side->channel, &found, &cq_context);
    int err = errno;
    if (answer == 0)
        t->verbs->ack_cq_events(found, 1);
    expect_equal(t, answer, -1, "get_cq_event without an event");
    expect_equal(t, err, EAGAIN, "errno of get_cq_event");
}

static void write_once(struct trial *t, struct work *w)
{
    work_make(t, w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, w);
}

/* Posts one SEND with these flags to b and, where it says so, polls both ends. */
static void send_once(struct trial *t, unsigned flags, struct receive *r, struct work *w)
{
    receive_make(t, r, &t->b, 0, 8);
    post_receive(t, &t->b, r);
    work_make(t, w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
    w->wr.send_flags |= flags;
    post(t, &t->a, w);
}

static void an_armed_cq_gives_an_event(struct trial *t)
{
    open_with_channel(t);
    for (int round = 0; round < 20; round++) {
        struct work w;
        arm(t, t->a.send_cq, 0);
        write_once(t, &w);
        expect_event(t, &t->a, t->a.send_cq);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
}

static void a_receiver_is_woken(struct trial *t)
{
    open_with_channel(t);
    for (int round = 0; round < 20; round++) {
        struct receive r;
        struct work w;
        arm(t, t->b.recv_cq, 0);
        send_once(t, 0, &r, &w);
        expect_event(t, &t->b, t->b.recv_cq);
        expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
}

/* Not earlier: who polls the descriptor does not ask twice. */
static void a_readable_channel_has_an_event(struct trial *t)
{
    open_with_channel(t);
    set_nonblocking(t, t->a.channel->fd);
    set_nonblocking(t, t->b.channel->fd);
    for (int round = 0; round < 20; round++) {
        struct receive r;
        struct work w;
        arm(t, t->a.send_cq, 0);
        arm(t, t->b.recv_cq, 0);
        send_once(t, 0, &r, &w);
        expect_event(t, &t->b, t->b.recv_cq);
        expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
        expect_event(t, &t->a, t->a.send_cq);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
    expect_no_event(t, &t->a);
    expect_no_event(t, &t->b);
}

static void an_unarmed_cq_gives_none(struct trial *t)
{
    open_with_channel(t);
    set_nonblocking(t, t->a.channel->fd);
    struct work w;
    expect_no_event(t, &t->a);
    write_once(t, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_no_event(t, &t->a);
}

static void one_arming_gives_one_event(struct trial *t)
{
    open_with_channel(t);
    set_nonblocking(t, t->a.channel->fd);
    struct work w[3];
    arm(t, t->a.send_cq, 0);
    for (int i = 0; i < 3; i++)
        write_once(t, &w[i]);
    expect_event(t, &t->a, t->a.send_cq);
    for (int i = 0; i < 3; i++)
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
    expect_no_event(t, &t->a);
    write_once(t, &w[0]);
    expect_sent(t, &t->a, &w[0], IBV_WC_SUCCESS);
    expect_no_event(t, &t->a);
}

static void solicited_only(struct trial *t)
{
    open_with_channel(t);
    set_nonblocking(t, t->b.channel->fd);
    struct receive r;
    struct work w;
    arm(t, t->b.recv_cq, 1);
    send_once(t, 0, &r, &w);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_no_event(t, &t->b);
    send_once(t, IBV_SEND_SOLICITED, &r, &w);
    expect_event(t, &t->b, t->b.recv_cq);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
}

static void a_solicited_write_with_immediate(struct trial *t)
{
    open_with_channel(t);
    struct receive r;
    struct work w;
    arm(t, t->b.recv_cq, 1);
    receive_make(t, &r, &t->b, 0, 0);
    post_receive(t, &t->b, &r);
    work_make(t, &w, IBV_WR_RDMA_WRITE_WITH_IMM, &t->a, 0, &t->b.address, 0, 8);
    w.wr.send_flags |= IBV_SEND_SOLICITED;
    post(t, &t->a, &w);
    expect_event(t, &t->b, t->b.recv_cq);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
}

/* ibv_req_notify_cq(3): a completion in error counts as solicited. */
static void an_error_counts_as_solicited(struct trial *t)
{
    open_with_channel(t);
    struct receive r;
    receive_make(t, &r, &t->b, 0, 8);
    post_receive(t, &t->b, &r);
    arm(t, t->b.recv_cq, 1);
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_ERR), 0, "modify_qp to ERR");
    expect_event(t, &t->b, t->b.recv_cq);
    expect_received(t, &t->b, &r, IBV_WC_WR_FLUSH_ERR);
}

/* Nobody polls: a failure of the sending side wakes who sleeps for the receives it flushes. */
static void a_failure_wakes_who_waits_to_receive(struct trial *t)
{
    open_with_channel(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->a, 0, 8);
    post_receive(t, &t->a, &r);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    arm(t, t->a.recv_cq, 0);
    post(t, &t->a, &w);
    expect_event(t, &t->a, t->a.recv_cq);
    expect_received(t, &t->a, &r, IBV_WC_WR_FLUSH_ERR);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
}

static void a_forbidden_request_wakes_who_waits_to_receive(struct trial *t)
{
    open_with_channel(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 0, 8);
    post_receive(t, &t->b, &r);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    arm(t, t->b.recv_cq, 1);
    post(t, &t->a, &w);
    expect_event(t, &t->b, t->b.recv_cq);
    expect_received(t, &t->b, &r, IBV_WC_WR_FLUSH_ERR);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
}

/* A SEND that waits for a receive fails, or goes on, while its poster sleeps. */
static void a_waiting_send_wakes_its_poster(struct trial *t)
{
    struct options o = default_options();
    o.channel = true;
    o.rnr_retry = t->check->parameter ? 7 : 1;
    trial_connect(t, &o);
    struct receive r;
    struct work w;
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
    arm(t, t->a.send_cq, 0);
    post(t, &t->a, &w);
    if (t->check->parameter) {
        receive_make(t, &r, &t->b, 0, 8);
        post_receive(t, &t->b, &r);
    }
    expect_event(t, &t->a, t->a.send_cq);
    expect_sent(t, &t->a, &w, t->check->parameter ? IBV_WC_SUCCESS : IBV_WC_RNR_RETRY_EXC_ERR);
}

static void two_cqs_on_one_channel(struct trial *t)
{
    open_with_channel(t);
    struct receive r;
    struct work from_a, from_b;
    arm(t, t->b.recv_cq, 0);
    arm(t, t->b.send_cq, 0);
    send_once(t, 0, &r, &from_a);
    expect_event(t, &t->b, t->b.recv_cq);
    work_make(t, &from_b, IBV_WR_RDMA_WRITE, &t->b, 0, &t->a.address, 0, 8);
    post(t, &t->b, &from_b);
    expect_event(t, &t->b, t->b.send_cq);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->b, &from_b, IBV_WC_SUCCESS);
}

/* An event that is not acknowledged, except after the check if that is left by a failure. */
static void take_event(struct trial *t, struct side *side)
{
    struct ibv_cq *found = NULL;
    void *cq_context;
    expect(t, poll_readable(side->channel->fd, t->deadline_ms), "the channel is not readable");
    expect_equal(t, t->verbs->get_cq_event(side->channel, &found, &cq_context), 0, "get_cq_event");
    t->unacked_cq = found;
    t->unacked++;
}

static void many_events_are_acknowledged_at_once(struct trial *t)
{
    open_with_channel(t);
    for (int i = 0; i < 7; i++) {
        struct work w;
        arm(t, t->a.send_cq, 0);
        write_once(t, &w);
        take_event(t, &t->a);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
    t->verbs->ack_cq_events(t->a.send_cq, 7);
    t->unacked = 0;
}

struct destroyer {
    const struct verbs *verbs;
    struct ibv_cq *cq;
    int result;
    atomic_bool done;
};

static void *destroy_in_thread(void *argument)
{
    struct destroyer *d = argument;
    d->result = d->verbs->destroy_cq(d->cq);
    atomic_store(&d->done, true);
    return NULL;
}

/* ibv_get_cq_event(3): destroying a CQ waits until its events are acknowledged. */
static void destroying_waits_for_acknowledgement(struct trial *t)
{
    open_with_channel(t);
    struct work w;
    arm(t, t->a.send_cq, 0);
    write_once(t, &w);
    take_event(t, &t->a);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    destroy_qp(t, t->a.qp);
    struct destroyer d = {.verbs = t->verbs, .cq = t->a.send_cq};
    pthread_t thread;
    expect_equal(t, pthread_create(&thread, NULL, destroy_in_thread, &d), 0, "pthread_create");
    trial_forget(t, d.cq);
    t->unacked = 0;
    usleep(20000); /* a wait that is too short can only hide a fault, not show one */
    bool early = atomic_load(&d.done);
    if (!early)
        t->verbs->ack_cq_events(d.cq, 1);
    pthread_join(thread, NULL);
    expect(t, !early, "destroy_cq did not wait for the acknowledgement");
    expect_equal(t, d.result, 0, "destroy_cq");
}

static const struct check checks[] = {
    {.name = "an armed CQ gives an event", .run = an_armed_cq_gives_an_event},
    {.name = "a receiver is woken", .run = a_receiver_is_woken},
    {.name = "a readable channel has an event", .run = a_readable_channel_has_an_event},
    {.name = "an unarmed CQ gives none", .run = an_unarmed_cq_gives_none},
    {.name = "one arming gives one event", .run = one_arming_gives_one_event},
    {.name = "solicited only", .run = solicited_only},
    {.name = "a solicited WRITE_WITH_IMM", .run = a_solicited_write_with_immediate},
    {.name = "an error counts as solicited", .run = an_error_counts_as_solicited},
    {.name = "a failure wakes who waits to receive", .run = a_failure_wakes_who_waits_to_receive},
    {.name = "a forbidden request wakes who waits to receive",
     .run = a_forbidden_request_wakes_who_waits_to_receive},
    {.name = "a waiting SEND wakes its poster: failure", .run = a_waiting_send_wakes_its_poster},
    {.name = "a waiting SEND wakes its poster: success",
     .run = a_waiting_send_wakes_its_poster,
     .parameter = 1},
    {.name = "two CQs on one channel", .run = two_cqs_on_one_channel},
    {.name = "many events are acknowledged at once", .run = many_events_are_acknowledged_at_once},
    {.name = "destroying waits for acknowledgement", .run = destroying_waits_for_acknowledgement},
};

const struct check_group events_checks = GROUP("completion events", checks);
