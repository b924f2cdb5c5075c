/* SPDX-License-Identifier: MIT */
/* Peers that do not answer, and what becomes of the work of a queue pair that has failed. */
#include "tests/conformance.h"

static struct options impatient(void)
{
    struct options o = default_options();
    o.timeout = 8; /* about 1 ms */
    o.retry_count = 1;
    return o;
}

/* A queue pair that is not ready to receive is silent: the sender's retries run out. */
static void peer_in_state(struct trial *t)
{
    struct options o = impatient();
    enum ibv_qp_state state = (enum ibv_qp_state)t->check->parameter;
    pair_make(t, &o);
    bring(t, &t->b, &t->a.address, state);
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    struct work w;
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_RETRY_EXC_ERR);
    expect_state(t, &t->a, IBV_QPS_ERR);
    expect_memory(t, &t->b, "b");
}

/* InfiniBand, Modify Queue Pair: 7 retries are 7; for rnr_retry alone does 7 stand for no end. */
static void peer_that_is_not_there(struct trial *t)
{
    struct options o = impatient();
    o.retry_count = (uint8_t)t->check->parameter;
    pair_make(t, &o);
    struct address nobody = t->b.address;
    nobody.qpn = 0xfffff0;
    bring(t, &t->a, &nobody, IBV_QPS_RTS);
    struct work w;
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_RETRY_EXC_ERR);
    expect_state(t, &t->a, IBV_QPS_ERR);
}

static void peer_destroyed_in_mid_stream(struct trial *t)
{
    struct options o = impatient();
    trial_connect(t, &o);
    struct work first, second;
    payload(t, &t->a, 0, 64);
    work_make(t, &first, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &first);
    expect_sent(t, &t->a, &first, IBV_WC_SUCCESS);
    destroy_qp(t, t->b.qp);
    work_make(t, &second, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 512, 64);
    post(t, &t->a, &second);
    expect_sent(t, &t->a, &second, IBV_WC_RETRY_EXC_ERR);
    expect_copy(&t->a, 0, &t->b, 0, 64);
    expect_memory(t, &t->b, "b");
}

static void peer_destroyed_while_a_send_waits(struct trial *t)
{
    struct options o = impatient();
    trial_connect(t, &o);
    struct work w;
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_quiet(t, t->a.send_cq);
    destroy_qp(t, t->b.qp);
    expect_sent(t, &t->a, &w, IBV_WC_RETRY_EXC_ERR);
}

/* --- flush ---------------------------------------------------------------------------------- */

static void both_queues_are_flushed_in_order(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w[6];
    struct receive r[6];
    for (int i = 0; i < 6; i++) {
        receive_make(t, &r[i], &t->a, 0, 64);
        post_receive(t, &t->a, &r[i]);
        work_make(t, &w[i], IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 64);
        post(t, &t->a, &w[i]); /* waits: b has no receive */
    }
    expect_quiet(t, t->a.send_cq);
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_ERR), 0, "modify_qp to ERR");
    for (int i = 0; i < 6; i++) {
        expect_sent(t, &t->a, &w[i], IBV_WC_WR_FLUSH_ERR);
        expect_received(t, &t->a, &r[i], IBV_WC_WR_FLUSH_ERR);
    }
    expect_quiet(t, t->a.send_cq);
    expect_quiet(t, t->a.recv_cq);
    expect_memory(t, &t->b, "b");
}

/* The failed request has its own status; those before it succeed, those behind it are flushed. */
static void work_behind_a_failure_is_flushed(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w[7];
    struct receive r[3];
    for (int i = 0; i < 3; i++) {
        receive_make(t, &r[i], &t->a, 0, 64);
        post_receive(t, &t->a, &r[i]);
    }
    payload(t, &t->a, 0, 64);
    for (size_t i = 0; i < 7; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 64 * i, 64);
        if (i == 3)
            w[i].wr.wr.rdma.rkey ^= 0x5a5a5a;
        if (i)
            w[i - 1].wr.next = &w[i].wr;
    }
    post(t, &t->a, &w[0]);
    for (size_t i = 0; i < 7; i++) {
        expect_sent(t, &t->a, &w[i],
                    i < 3    ? IBV_WC_SUCCESS
                    : i == 3 ? IBV_WC_REM_ACCESS_ERR
                             : IBV_WC_WR_FLUSH_ERR);
        if (i < 3)
            expect_copy(&t->a, 0, &t->b, 64 * i, 64);
    }
    for (int i = 0; i < 3; i++)
        expect_received(t, &t->a, &r[i], IBV_WC_WR_FLUSH_ERR);
    expect_memory(t, &t->b, "b");
}

/* Unsignalled requests that fail or are flushed do show a completion. */
static void unsignalled_failures_are_shown(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w[3];
    for (int i = 0; i < 3; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
        w[i].wr.send_flags = 0;
    }
    w[0].wr.wr.rdma.rkey ^= 0x5a5a5a;
    w[0].wr.next = &w[1].wr;
    w[1].wr.next = &w[2].wr;
    post(t, &t->a, &w[0]);
    expect_sent(t, &t->a, &w[0], IBV_WC_REM_ACCESS_ERR);
    expect_sent(t, &t->a, &w[1], IBV_WC_WR_FLUSH_ERR);
    expect_sent(t, &t->a, &w[2], IBV_WC_WR_FLUSH_ERR);
}

static void requests_posted_in_err_are_flushed(struct trial *t)
{
    trial_connect(t, NULL);
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_ERR), 0, "modify_qp to ERR");
    for (int round = 0; round < 100; round++) {
        struct work w;
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
        w.wr.send_flags = round & 1 ? IBV_SEND_SIGNALED : 0;
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_WR_FLUSH_ERR);
    }
    expect_memory(t, &t->b, "b");
}

static void receives_posted_in_err_are_flushed(struct trial *t)
{
    trial_connect(t, NULL);
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_ERR), 0, "modify_qp to ERR");
    for (int round = 0; round < 100; round++) {
        struct receive r;
        receive_make(t, &r, &t->a, 0, 64);
        post_receive(t, &t->a, &r);
        expect_received(t, &t->a, &r, IBV_WC_WR_FLUSH_ERR);
    }
}

/* The receives of a queue pair whose peer did something forbidden are flushed too. */
static void a_failed_responder_flushes(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    struct receive r[4];
    for (int i = 0; i < 4; i++) {
        receive_make(t, &r[i], &t->b, 0, 64);
        post_receive(t, &t->b, &r[i]);
    }
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    for (int i = 0; i < 4; i++)
        expect_received(t, &t->b, &r[i], IBV_WC_WR_FLUSH_ERR);
}

/* A failure is one queue pair's own: its neighbour works on, and it works again after RESET. */
static void a_failed_queue_pair_recovers(struct trial *t)
{
    trial_connect(t, NULL);
    for (int round = 0; round < 5; round++) {
        struct work w;
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
        w.wr.wr.rdma.rkey ^= 0x5a5a5a;
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
        expect_state(t, &t->a, IBV_QPS_ERR);
        expect_state(t, &t->b, IBV_QPS_ERR);
        expect_equal(t, move(t, &t->a, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
        expect_equal(t, move(t, &t->b, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
        bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
        bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
        payload(t, &t->a, 0, 64);
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
        expect_copy(&t->a, 0, &t->b, 0, 64);
        expect_memory(t, &t->b, "b");
    }
}

static void a_neighbour_works_on(struct trial *t)
{
    trial_connect(t, NULL);
    struct side near = t->a, far = t->b;
    near.qp = trial_qp(t, &near, &near.options);
    far.qp = trial_qp(t, &far, &far.options);
    near.address.qpn = near.qp->qp_num;
    far.address.qpn = far.qp->qp_num;
    bring(t, &near, &far.address, IBV_QPS_RTS);
    bring(t, &far, &near.address, IBV_QPS_RTS);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &near, 0, &far.address, 0, 64);
    post(t, &near, &w);
    expect_sent(t, &near, &w, IBV_WC_SUCCESS);
    expect_state(t, &far, IBV_QPS_RTS);
    expect_copy(&t->a, 0, &t->b, 0, 64);
    expect_memory(t, &t->b, "b");
}

/* One queue for all completions: what broke the queue pair comes before what it flushed. */
static void the_cause_comes_first(struct trial *t)
{
    struct options o = default_options();
    bool receiver = t->check->parameter != 0;
    o.one_cq = true;
    for (int round = 0; round < 4; round++) { /* a device may look at its queues by turns */
        trial_connect(t, &o);
        struct side *broken = receiver ? &t->b : &t->a;
        struct receive near, far;
        struct work w;
        receive_make(t, &near, &t->a, 0, 8);
        post_receive(t, &t->a, &near);
        receive_make(t, &far, &t->b, 0, receiver ? 8 : 64);
        post_receive(t, &t->b, &far);
        receive_make(t, &far, &t->b, 0, 64);
        post_receive(t, &t->b, &far);
        work_make(t, &w, receiver ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0,
                  64);
        w.wr.wr.rdma.rkey ^= 0x5a5a5a;
        post(t, &t->a, &w);
        expect_state(t, broken, IBV_QPS_ERR);
        enum ibv_wc_status first = next_wc(t, broken->send_cq).status;
        expect(t, first != IBV_WC_WR_FLUSH_ERR && first != IBV_WC_SUCCESS,
               "the first status is '%s'", ibv_wc_status_str(first));
        expect_equal(t, next_wc(t, broken->send_cq).status, IBV_WC_WR_FLUSH_ERR, "the second");
    }
}

static const struct check checks[] = {
    {.name = "the cause comes first, sender", .run = the_cause_comes_first},
    {.name = "the cause comes first, receiver", .run = the_cause_comes_first, .parameter = 1},
    {.name = "a peer in RESET is silent", .run = peer_in_state, .parameter = IBV_QPS_RESET},
    {.name = "a peer in INIT is silent", .run = peer_in_state, .parameter = IBV_QPS_INIT},
    {.name = "a peer in ERR is silent", .run = peer_in_state, .parameter = IBV_QPS_ERR},
    {.name = "a peer that is not there", .run = peer_that_is_not_there, .parameter = 1},
    {.name = "a peer that is not there, 7 retries", .run = peer_that_is_not_there, .parameter = 7},
    {.name = "a peer destroyed in mid-stream", .run = peer_destroyed_in_mid_stream},
    {.name = "a peer destroyed while a SEND waits", .run = peer_destroyed_while_a_send_waits},
    {.name = "both queues are flushed in order", .run = both_queues_are_flushed_in_order},
    {.name = "work behind a failure is flushed", .run = work_behind_a_failure_is_flushed},
    {.name = "unsignalled failures are shown", .run = unsignalled_failures_are_shown},
    {.name = "requests posted in ERR are flushed", .run = requests_posted_in_err_are_flushed},
    {.name = "receives posted in ERR are flushed", .run = receives_posted_in_err_are_flushed},
    {.name = "a failed responder flushes", .run = a_failed_responder_flushes},
    {.name = "a failed queue pair recovers", .run = a_failed_queue_pair_recovers},
    {.name = "a neighbour works on", .run = a_neighbour_works_on},
};

const struct check_group failure_checks = GROUP("failures and flush", checks);
