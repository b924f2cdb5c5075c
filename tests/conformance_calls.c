/* SPDX-License-Identifier: MIT */
/* ibv_wr_*: batches that are begun, completed, aborted and spoilt. */
#include "tests/conformance.h"

static void open_with_calls(struct trial *t)
{
    struct options o = default_options();
    o.wr_calls = true;
    o.inline_bytes = 32;
    trial_connect(t, &o);
}

static void a_batch_goes_out_as_one(struct trial *t)
{
    open_with_calls(t);
    struct work w[8];
    for (size_t i = 0; i < 8; i++) {
        size_t there = i / 2 * 200;
        bool read = i % 2;
        if (!read)
            payload(t, &t->a, i * 100, 90);
        work_make(t, &w[i], read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, &t->a,
                  read ? 4096 + i * 100 : i * 100, &t->b.address, there, 90);
        if (i)
            w[i - 1].wr.next = &w[i].wr;
        if (read)
            expect_copy(&t->b, there, &t->a, 4096 + i * 100, 90);
        else
            expect_copy(&t->a, i * 100, &t->b, there, 90);
    }
    post(t, &t->a, &w[0]);
    for (size_t i = 0; i < 8; i++)
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

static void begin_write(struct trial *t, uint64_t wr_id)
{
    struct ibv_qp_ex *qpx = t->a.qpx;
    qpx->wr_id = wr_id;
    qpx->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qpx, t->b.address.rkey, t->b.address.memory);
    ibv_wr_set_sge(qpx, t->a.mr->lkey, (uintptr_t)t->a.memory, 64);
}

static void nothing_leaves_before_complete(struct trial *t)
{
    open_with_calls(t);
    payload(t, &t->a, 0, 64);
    ibv_wr_start(t->a.qpx);
    begin_write(t, 7);
    expect_quiet(t, t->a.send_cq); /* polling while a batch is being built is allowed */
    expect_quiet(t, t->a.recv_cq);
    expect_quiet(t, t->b.recv_cq);
    expect_memory(t, &t->b, "b");
    expect_equal(t, ibv_wr_complete(t->a.qpx), 0, "ibv_wr_complete");
    expect_wc(t, t->a.send_cq, 7, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 0, 64);
    expect_memory(t, &t->b, "b");
}

static void an_aborted_batch_leaves_no_trace(struct trial *t)
{
    open_with_calls(t);
    struct work w;
    payload(t, &t->a, 0, 64);
    for (uint32_t round = 0; round < 3 * t->a.cap.max_send_wr; round++) {
        ibv_wr_start(t->a.qpx);
        for (int i = 0; i < 5; i++)
            begin_write(t, 1);
        ibv_wr_abort(t->a.qpx);
    }
    expect_quiet(t, t->a.send_cq);
    expect_memory(t, &t->b, "b");
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 2000, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 2000, 64);
    expect_memory(t, &t->b, "b");
}

/* An error in the middle is told by complete, and none of the batch goes out. */
static void a_spoilt_batch_leaves_no_trace(struct trial *t)
{
    open_with_calls(t);
    struct work w[3];
    payload(t, &t->a, 0, 4096);
    if (t->a.cap.max_inline_data >= 4096)
        trial_skip(t, "more inline data is granted than the check has");
    for (size_t i = 0; i < 3; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, i * 64, 8);
        if (i)
            w[i - 1].wr.next = &w[i].wr;
    }
    w[1].sge[0].length = 4096;
    w[1].wr.send_flags |= IBV_SEND_INLINE;
    int err = post_any(&t->a, t->verbs, &w[0].wr, BY_WR_CALLS);
    expect(t, err > 0, "ibv_wr_complete: %d", err); /* ibv_wr_post(3) names no errno */
    expect_quiet(t, t->a.send_cq);
    expect_memory(t, &t->b, "b");
    ibv_wr_start(t->a.qpx);
    expect_equal(t, ibv_wr_complete(t->a.qpx), 0, "ibv_wr_complete of an empty batch");
    work_make(t, &w[0], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w[0]);
    expect_sent(t, &t->a, &w[0], IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 0, 8);
    expect_memory(t, &t->b, "b");
}

/* Both interfaces on one queue pair, in turn: one order of completions. */
static void both_interfaces_in_turn(struct trial *t)
{
    open_with_calls(t);
    struct work w[20];
    for (size_t i = 0; i < 20; i++) {
        payload(t, &t->a, i * 64, 64);
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, i * 64, &t->b.address, i * 64, 64);
        int err = post_any(&t->a, t->verbs, &w[i].wr, i % 2 ? BY_WR_CALLS : BY_POST_SEND);
        expect(t, !err, "posting: %s", strerror(err));
        expect_copy(&t->a, i * 64, &t->b, i * 64, 64);
    }
    for (size_t i = 0; i < 20; i++)
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
    expect_memory(t, &t->b, "b");
}

static void calls_are_refused_before_rts(struct trial *t)
{
    struct options o = default_options();
    o.wr_calls = true;
    pair_make(t, &o);
    bring(t, &t->a, &t->b.address, IBV_QPS_RTR);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    expect_equal(t, post_any(&t->a, t->verbs, &w.wr, BY_WR_CALLS), EINVAL, "ibv_wr_complete");
    expect_quiet(t, t->a.send_cq);
}

static void calls_with_bad_keys(struct trial *t)
{
    open_with_calls(t);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_WR_FLUSH_ERR);
    expect_memory(t, &t->b, "b");
}

static void the_extended_view_is_the_same_queue_pair(struct trial *t)
{
    trial_connect(t, NULL);
    struct options o = default_options();
    o.wr_calls = true;
    struct side other = t->a;
    struct ibv_qp *qp = trial_qp(t, &other, &o);
    struct ibv_qp_ex *qpx = t->verbs->qp_to_qp_ex(qp);
    expect(t, qpx && &qpx->qp_base == qp, "qp_to_qp_ex of a queue pair with ibv_wr_*");
}

/* Other calls of the thread that builds a batch do not wait for its end. */
static void other_calls_amid_a_batch(struct trial *t)
{
    open_with_calls(t);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    payload(t, &t->a, 0, 64);
    struct ibv_mr *mr = trial_mr(t, t->a.pd, t->a.memory, 64, IBV_ACCESS_LOCAL_WRITE);
    ibv_wr_start(t->a.qpx);
    begin_write(t, 7);
    int query = t->verbs->query_qp(t->a.qp, &attr, IBV_QP_STATE, &init);
    trial_forget(t, mr);
    int deregister_err = t->verbs->dereg_mr(mr);
    int done = ibv_wr_complete(t->a.qpx);
    expect_equal(t, query, 0, "query_qp amid a batch");
    expect_equal(t, attr.qp_state, IBV_QPS_RTS, "qp_state");
    expect_equal(t, deregister_err, 0, "dereg_mr amid a batch");
    expect_equal(t, done, 0, "ibv_wr_complete");
    expect_wc(t, t->a.send_cq, 7, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 0, 64);
    expect_memory(t, &t->b, "b");
}

/* Its key is looked at when the batch goes out, and is invalid then. */
static void a_region_of_a_batch_may_go(struct trial *t)
{
    open_with_calls(t);
    struct ibv_mr *mr = trial_mr(t, t->a.pd, t->a.memory, 64, IBV_ACCESS_LOCAL_WRITE);
    ibv_wr_start(t->a.qpx);
    t->a.qpx->wr_id = 9;
    t->a.qpx->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(t->a.qpx, t->b.address.rkey, t->b.address.memory);
    ibv_wr_set_sge(t->a.qpx, mr->lkey, (uintptr_t)t->a.memory, 64);
    trial_forget(t, mr);
    int err = t->verbs->dereg_mr(mr);
    int done = ibv_wr_complete(t->a.qpx);
    expect_equal(t, err, 0, "dereg_mr amid a batch");
    expect_equal(t, done, 0, "ibv_wr_complete");
    expect_equal(t, next_wc(t, t->a.send_cq).status, IBV_WC_LOC_PROT_ERR, "status");
    expect_memory(t, &t->b, "b");
}

static const struct check checks[] = {
    {.name = "other calls amid a batch", .run = other_calls_amid_a_batch},
    {.name = "a region of a batch may go", .run = a_region_of_a_batch_may_go},
    {.name = "a batch goes out as one", .run = a_batch_goes_out_as_one},
    {.name = "nothing leaves before complete", .run = nothing_leaves_before_complete},
    {.name = "an aborted batch leaves no trace", .run = an_aborted_batch_leaves_no_trace},
    {.name = "a spoilt batch leaves no trace", .run = a_spoilt_batch_leaves_no_trace},
    {.name = "both interfaces in turn", .run = both_interfaces_in_turn},
    {.name = "ibv_wr_* are refused before RTS", .run = calls_are_refused_before_rts},
    {.name = "ibv_wr_* with bad keys", .run = calls_with_bad_keys},
    {.name = "the extended view is the same queue pair",
     .run = the_extended_view_is_the_same_queue_pair},
};

const struct check_group calls_checks = GROUP("ibv_wr_*", checks);
