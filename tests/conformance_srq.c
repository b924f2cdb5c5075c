/* SPDX-License-Identifier: MIT */
/* Shared receive queues. */
#include "tests/conformance.h"

enum { GRH = 40 };

static struct options shared_options(const struct trial *t)
{
    struct options o = default_options();
    o.type = t->check->parameter ? (enum ibv_qp_type)t->check->parameter : IBV_QPT_RC;
    o.wr_calls = t->check->way == BY_WR_CALLS;
    o.srq_wr = 32;
    return o;
}

static void connect_shared(struct trial *t)
{
    struct options o = shared_options(t);
    trial_connect(t, &o);
}

/* Another pair whose receiving side takes from b's shared queue. */
static void more_pair(struct trial *t, struct side *near, struct side *far)
{
    *near = t->a;
    *far = t->b;
    near->srq = NULL;
    near->qp = trial_qp(t, near, &near->options);
    far->qp = trial_qp(t, far, &far->options);
    near->address.qpn = near->qp->qp_num;
    far->address.qpn = far->qp->qp_num;
    bring(t, near, &far->address, IBV_QPS_RTS);
    bring(t, far, &near->address, IBV_QPS_RTS);
}

static void make(struct trial *t, struct work *w, const struct side *from, const struct side *to,
                 size_t at, uint32_t bytes)
{
    work_make(t, w, IBV_WR_SEND_WITH_IMM, from, at, &to->address, 0, bytes);
    if (from->options.type == IBV_QPT_UD)
        aim(w, from, to);
}

static size_t header(const struct trial *t)
{
    return t->a.options.type == IBV_QPT_UD ? GRH : 0;
}

/* A message of 64 bytes into this receive, which lies at `at` of b's memory. */
static void deliver(struct trial *t, struct side *from, struct side *to, const struct receive *r,
                    size_t at)
{
    struct work w;
    payload(t, from, 0, 64);
    make(t, &w, from, to, 0, 64);
    post(t, from, &w);
    struct ibv_wc wc = expect_received(t, to, r, IBV_WC_SUCCESS);
    expect_sent(t, from, &w, IBV_WC_SUCCESS);
    expect_equal(t, wc.byte_len, 64 + header(t), "byte_len");
    expect_equal(t, wc.imm_data, w.wr.imm_data, "imm_data");
    expect(t, !memcmp(t->b.memory + at + header(t), from->memory, 64), "the message differs");
}

static void receives_come_from_the_shared_queue(struct trial *t)
{
    connect_shared(t);
    for (size_t i = 0; i < 100; i++) {
        struct receive r;
        give_receive(t, &r, i % 8 * 128, 128);
        deliver(t, &t->a, &t->b, &r, i % 8 * 128);
    }
}

static void two_queue_pairs_share(struct trial *t)
{
    connect_shared(t);
    struct side near, far;
    struct receive r[8];
    more_pair(t, &near, &far);
    if (t->a.options.type == IBV_QPT_UD)
        near.ah = t->a.ah;
    for (size_t i = 0; i < 8; i++)
        give_receive(t, &r[i], i * 128, 128);
    for (size_t i = 0; i < 8; i++) /* in the order in which they were posted, whoever takes */
        deliver(t, i % 3 ? &near : &t->a, i % 3 ? &far : &t->b, &r[i], i * 128);
}

static void an_immediate_takes_one_too(struct trial *t)
{
    connect_shared(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 0, 0);
    r.wr.num_sge = 0;
    post_receive(t, &t->b, &r);
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE_WITH_IMM, &t->a, 0, &t->b.address, 512, 64);
    post(t, &t->a, &w);
    struct ibv_wc wc = expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_equal(t, wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM, "opcode");
    expect_copy(&t->a, 0, &t->b, 512, 64);
    expect_memory(t, &t->b, "b");
}

static void pieces(struct trial *t)
{
    connect_shared(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 1000, 30);
    r.sge[1] = (struct ibv_sge){(uintptr_t)t->b.memory + 3000, 10, t->b.mr->lkey};
    r.sge[2] = (struct ibv_sge){(uintptr_t)t->b.memory + 5000, 90, t->b.mr->lkey};
    r.wr.num_sge = 3;
    post_receive(t, &t->b, &r);
    payload(t, &t->a, 0, 100);
    make(t, &w, &t->a, &t->b, 0, 100);
    post(t, &t->a, &w);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 1000, 30);
    expect_copy(&t->a, 30, &t->b, 3000, 10);
    expect_copy(&t->a, 40, &t->b, 5000, 60);
    expect_memory(t, &t->b, "b");
}

static void a_chain_of_receives(struct trial *t)
{
    connect_shared(t);
    struct receive r[5];
    for (size_t i = 0; i < 5; i++) {
        receive_make(t, &r[i], &t->b, i * 128, 128);
        if (i)
            r[i - 1].wr.next = &r[i].wr;
    }
    post_receive(t, &t->b, &r[0]);
    for (size_t i = 0; i < 5; i++)
        deliver(t, &t->a, &t->b, &r[i], i * 128);
}

/* A SEND waits for a receive as it does for a queue pair's own. */
static void a_late_receive(struct trial *t)
{
    connect_shared(t);
    struct receive r;
    struct work w;
    payload(t, &t->a, 0, 64);
    make(t, &w, &t->a, &t->b, 0, 64);
    post(t, &t->a, &w);
    expect_quiet(t, t->b.recv_cq);
    give_receive(t, &r, 0, 64);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 0, 64);
    expect_memory(t, &t->b, "b");
}

static void retries_end(struct trial *t)
{
    struct options o = shared_options(t);
    o.rnr_retry = 1;
    trial_connect(t, &o);
    struct work w;
    make(t, &w, &t->a, &t->b, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_RNR_RETRY_EXC_ERR);
    expect_state(t, &t->b, IBV_QPS_RTS);
}

/* InfiniBand 9.9.3: what took no receive is lost. */
static void without_receive_it_is_lost(struct trial *t)
{
    connect_shared(t);
    struct receive r;
    struct work w;
    make(t, &w, &t->a, &t->b, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_quiet(t, t->a.send_cq); /* it may land late: not before it was looked at */
    expect_quiet(t, t->b.recv_cq);
    give_receive(t, &r, 0, 128);
    deliver(t, &t->a, &t->b, &r, 0);
}

static void a_full_queue_refuses(struct trial *t)
{
    connect_shared(t);
    struct ibv_srq_attr attr;
    expect_equal(t, t->verbs->query_srq(t->b.srq, &attr), 0, "query_srq");
    struct receive r;
    struct ibv_recv_wr *bad = NULL;
    for (uint32_t i = 0; i < attr.max_wr; i++)
        give_receive(t, &r, 0, 128);
    receive_make(t, &r, &t->b, 0, 128);
    expect_equal(t, t->verbs->post_srq_recv(t->b.srq, &r.wr, &bad), ENOMEM,
                 "post_srq_recv to a full queue");
    expect(t, bad == &r.wr, "bad_wr does not point to the receive");
}

static void too_long_a_list_is_refused(struct trial *t)
{
    connect_shared(t);
    struct ibv_srq_attr attr;
    expect_equal(t, t->verbs->query_srq(t->b.srq, &attr), 0, "query_srq");
    struct receive r;
    struct ibv_recv_wr *bad = NULL;
    receive_make(t, &r, &t->b, 0, 8);
    if (attr.max_sge >= MAX_SGE)
        trial_skip(t, "more pieces are granted than the check has");
    r.wr.num_sge = (int)attr.max_sge + 1;
    for (uint32_t i = 1; i <= attr.max_sge; i++)
        r.sge[i] = r.sge[0];
    expect_equal(t, t->verbs->post_srq_recv(t->b.srq, &r.wr, &bad), EINVAL, "post_srq_recv");
    expect(t, bad == &r.wr, "bad_wr does not point to the receive");
}

static void its_queue_pair_takes_no_receive(struct trial *t)
{
    connect_shared(t);
    struct receive r;
    struct ibv_recv_wr *bad = NULL;
    receive_make(t, &r, &t->b, 0, 8);
    int err = t->verbs->post_recv(t->b.qp, &r.wr, &bad);
    expect(t, err != 0, "post_recv to a queue pair with a shared receive queue");
    expect(t, bad == &r.wr, "bad_wr does not point to the receive");
}

static void a_queue_in_use_is_not_destroyed(struct trial *t)
{
    connect_shared(t);
    expect_equal(t, t->verbs->destroy_srq(t->b.srq), EBUSY, "destroy_srq with a queue pair");
    struct receive r;
    give_receive(t, &r, 0, 128);
    deliver(t, &t->a, &t->b, &r, 0);
}

static void a_queue_holds_its_pd(struct trial *t)
{
    struct side side = t->a;
    side.pd = trial_pd(t, t->a.context);
    struct ibv_srq *srq = trial_srq(t, &side, 8, 1);
    expect_equal(t, t->verbs->dealloc_pd(side.pd), EBUSY, "dealloc_pd with a shared queue");
    trial_forget(t, srq);
    expect_equal(t, t->verbs->destroy_srq(srq), 0, "destroy_srq");
}

/* What was posted outlives the queue pairs that took from it. */
static void receives_outlive_a_queue_pair(struct trial *t)
{
    connect_shared(t);
    struct receive r[4];
    for (size_t i = 0; i < 4; i++)
        give_receive(t, &r[i], i * 128, 128);
    deliver(t, &t->a, &t->b, &r[0], 0);
    destroy_qp(t, t->b.qp);
    t->b.qp = trial_qp(t, &t->b, &t->b.options);
    t->b.address.qpn = t->b.qp->qp_num;
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    for (size_t i = 1; i < 4; i++)
        deliver(t, &t->a, &t->b, &r[i], i * 128);
}

/* ERR gives back nothing of the shared queue: others use it on. */
static void an_error_leaves_the_others_their_receives(struct trial *t)
{
    connect_shared(t);
    struct side near, far;
    struct receive r[3];
    more_pair(t, &near, &far);
    for (size_t i = 0; i < 3; i++)
        give_receive(t, &r[i], i * 128, 128);
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_ERR), 0, "modify_qp to ERR");
    expect_quiet(t, t->b.recv_cq);
    for (size_t i = 0; i < 3; i++)
        deliver(t, &near, &far, &r[i], i * 128);
}

/* ibv_get_async_event(3), InfiniBand 11.6.3: it will take no more of it. */
static void the_last_wqe_is_an_event(struct trial *t)
{
    connect_shared(t);
    struct receive r;
    give_receive(t, &r, 0, 128);
    deliver(t, &t->a, &t->b, &r, 0);
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_ERR), 0, "modify_qp to ERR");
    expect_async(t, &t->b, IBV_EVENT_QP_LAST_WQE_REACHED, t->b.qp);
}

static void the_last_wqe_of_a_broken_queue_pair(struct trial *t)
{
    connect_shared(t);
    struct receive r;
    struct work w;
    give_receive(t, &r, 0, 128);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    expect_async(t, &t->b, IBV_EVENT_QP_LAST_WQE_REACHED, t->b.qp);
}

/* --- the limit ------------------------------------------------------------------------------- */

static void arm(struct trial *t, uint32_t limit)
{
    struct ibv_srq_attr attr = {.srq_limit = limit};
    expect_equal(t, t->verbs->modify_srq(t->b.srq, &attr, IBV_SRQ_LIMIT), 0, "modify_srq");
}

static uint32_t limit_of(struct trial *t)
{
    struct ibv_srq_attr attr = {0};
    expect_equal(t, t->verbs->query_srq(t->b.srq, &attr), 0, "query_srq");
    return attr.srq_limit;
}

static void expect_no_async(struct trial *t, struct side *side)
{
    struct ibv_async_event event;
    set_nonblocking(t, side->context->async_fd);
    while (t->verbs->get_async_event(side->context, &event) == 0) {
        t->verbs->ack_async_event(&event);
        expect(t, event.event_type == IBV_EVENT_COMM_EST, "an asynchronous event '%s'",
               ibv_event_type_str(event.event_type));
    }
}

static void below_the_limit_is_an_event(struct trial *t)
{
    connect_shared(t);
    struct receive r[4];
    for (size_t i = 0; i < 4; i++)
        give_receive(t, &r[i], i * 128, 128);
    arm(t, 3);
    expect_equal(t, limit_of(t), 3, "srq_limit");
    deliver(t, &t->a, &t->b, &r[0], 0);
    expect_no_async(t, &t->b);
    deliver(t, &t->a, &t->b, &r[1], 128);
    expect_async(t, &t->b, IBV_EVENT_SRQ_LIMIT_REACHED, t->b.srq);
    expect_equal(t, limit_of(t), 0, "srq_limit after the event");
}

static void one_arming_gives_one_event(struct trial *t)
{
    connect_shared(t);
    struct receive r[4];
    for (size_t i = 0; i < 4; i++)
        give_receive(t, &r[i], i * 128, 128);
    arm(t, 4);
    deliver(t, &t->a, &t->b, &r[0], 0);
    expect_async(t, &t->b, IBV_EVENT_SRQ_LIMIT_REACHED, t->b.srq);
    deliver(t, &t->a, &t->b, &r[1], 128);
    expect_no_async(t, &t->b);
    arm(t, 2);
    deliver(t, &t->a, &t->b, &r[2], 256);
    expect_async(t, &t->b, IBV_EVENT_SRQ_LIMIT_REACHED, t->b.srq);
}

static void an_unarmed_queue_gives_none(struct trial *t)
{
    connect_shared(t);
    struct receive r;
    expect_equal(t, limit_of(t), 0, "srq_limit of a new queue");
    give_receive(t, &r, 0, 128);
    deliver(t, &t->a, &t->b, &r, 0);
    expect_no_async(t, &t->b);
}

static void a_limit_beyond_the_queue_is_refused(struct trial *t)
{
    connect_shared(t);
    struct ibv_srq_attr attr = {0};
    expect_equal(t, t->verbs->query_srq(t->b.srq, &attr), 0, "query_srq");
    attr.srq_limit = attr.max_wr + 1;
    expect_equal(t, t->verbs->modify_srq(t->b.srq, &attr, IBV_SRQ_LIMIT), EINVAL,
                 "modify_srq of a limit beyond max_wr");
    expect_equal(t, limit_of(t), 0, "srq_limit");
}

static void query_gives_the_capacity(struct trial *t)
{
    struct ibv_srq *srq = trial_srq(t, &t->a, 20, 3);
    struct ibv_srq_attr attr = {0};
    expect_equal(t, t->verbs->query_srq(srq, &attr), 0, "query_srq");
    expect(t, attr.max_wr >= 20 && attr.max_sge >= 3, "%u receives of %u pieces", attr.max_wr,
           attr.max_sge);
}

#define FOR(text, function, type)                                                                  \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (type)                                     \
    }

static const struct check checks[] = {
    FOR("SRQ: receives come from it, RC", receives_come_from_the_shared_queue, IBV_QPT_RC),
    FOR("SRQ: receives come from it, UC", receives_come_from_the_shared_queue, IBV_QPT_UC),
    FOR("SRQ: receives come from it, UD", receives_come_from_the_shared_queue, IBV_QPT_UD),
    {.name = "SRQ: receives come from it, RC by ibv_wr_*",
     .run = receives_come_from_the_shared_queue,
     .way = BY_WR_CALLS},
    FOR("SRQ: two queue pairs share, RC", two_queue_pairs_share, IBV_QPT_RC),
    FOR("SRQ: two queue pairs share, UC", two_queue_pairs_share, IBV_QPT_UC),
    FOR("SRQ: two queue pairs share, UD", two_queue_pairs_share, IBV_QPT_UD),
    {.name = "SRQ: an immediate takes one too", .run = an_immediate_takes_one_too},
    FOR("SRQ: pieces, RC", pieces, IBV_QPT_RC),
    FOR("SRQ: pieces, UC", pieces, IBV_QPT_UC),
    {.name = "SRQ: a chain of receives", .run = a_chain_of_receives},
    {.name = "SRQ: a late receive", .run = a_late_receive},
    {.name = "SRQ: retries end", .run = retries_end},
    FOR("SRQ: without a receive it is lost, UC", without_receive_it_is_lost, IBV_QPT_UC),
    FOR("SRQ: without a receive it is lost, UD", without_receive_it_is_lost, IBV_QPT_UD),
    {.name = "SRQ: a full queue refuses", .run = a_full_queue_refuses},
    {.name = "SRQ: too long a list is refused", .run = too_long_a_list_is_refused},
    {.name = "SRQ: its queue pair takes no receive", .run = its_queue_pair_takes_no_receive},
    {.name = "SRQ: in use it is not destroyed", .run = a_queue_in_use_is_not_destroyed},
    {.name = "SRQ: it holds its PD", .run = a_queue_holds_its_pd},
    {.name = "SRQ: receives outlive a queue pair", .run = receives_outlive_a_queue_pair},
    {.name = "SRQ: an error leaves the others their receives",
     .run = an_error_leaves_the_others_their_receives},
    {.name = "SRQ: the last WQE is an event", .run = the_last_wqe_is_an_event},
    {.name = "SRQ: the last WQE of a broken queue pair",
     .run = the_last_wqe_of_a_broken_queue_pair},
    {.name = "SRQ: below the limit is an event", .run = below_the_limit_is_an_event},
    {.name = "SRQ: one arming gives one event", .run = one_arming_gives_one_event},
    {.name = "SRQ: unarmed it gives none", .run = an_unarmed_queue_gives_none},
    {.name = "SRQ: a limit beyond the queue is refused",
     .run = a_limit_beyond_the_queue_is_refused},
    {.name = "SRQ: query gives the capacity", .run = query_gives_the_capacity},
};

const struct check_group srq_checks = GROUP("shared receive queues", checks);
