/* SPDX-License-Identifier: MIT */
/* Completion queues that are read field by field, and the size of completion queues. */
#include "tests/conformance.h"

static struct ibv_cq_ex *make_ex(struct trial *t, struct side *side, int cqe, uint64_t wc_flags,
                                 struct ibv_comp_channel *channel)
{
    struct ibv_cq_init_attr_ex attr = {
        .cqe = (uint32_t)cqe, .cq_context = side, .channel = channel, .wc_flags = wc_flags};
    struct ibv_cq_ex *cq = t->verbs->create_cq_ex(side->context, &attr);
    if (!cq && (errno == EOPNOTSUPP || errno == ENOSYS))
        trial_skip(t, "the device does not give these fields");
    expect(t, cq, "create_cq_ex: %s", strerror(errno));
    trial_track(t, CQ, ibv_cq_ex_to_cq(cq), 0);
    return cq;
}

struct ex_pair {
    struct ibv_cq_ex *send, *recv;
};

/* The pair, with b's receives and a's sends completing into such queues. */
static struct ex_pair connect_ex(struct trial *t, const struct options *options, uint64_t wc_flags)
{
    struct ex_pair ex;
    pair_make(t, options);
    ex.send = make_ex(t, &t->a, 64, wc_flags, NULL);
    ex.recv = make_ex(t, &t->b, 64, wc_flags, NULL);
    destroy_qp(t, t->a.qp);
    destroy_qp(t, t->b.qp);
    t->a.send_cq = ibv_cq_ex_to_cq(ex.send);
    t->b.recv_cq = ibv_cq_ex_to_cq(ex.recv);
    t->a.qp = trial_qp(t, &t->a, &t->a.options);
    t->b.qp = trial_qp(t, &t->b, &t->b.options);
    t->a.address.qpn = t->a.qp->qp_num;
    t->b.address.qpn = t->b.qp->qp_num;
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    if (options->type == IBV_QPT_UD)
        t->a.ah = trial_ah(t, &t->a, &t->b.address, t->a.gid_index);
    return ex;
}

/* Begins a poll that finds something. */
static void begin(struct trial *t, struct ibv_cq_ex *cq)
{
    struct ibv_poll_cq_attr attr = {0};
    uint64_t started = 0;
    int err;
    while ((err = ibv_start_poll(cq, &attr)) == ENOENT) {
        struct ibv_wc wc;
        if (t->device->polled)
            t->verbs->poll_cq(t->a.send_cq, 0, &wc);
        expect(t, !deadline_passed(t, &started), "no completion came before the deadline");
    }
    expect_equal(t, err, 0, "ibv_start_poll");
}

static void expect_fields(struct trial *t, struct ibv_cq_ex *cq, uint64_t wr_id, int opcode,
                          uint32_t qp_num)
{
    uint64_t got_id = cq->wr_id;
    enum ibv_wc_status status = cq->status;
    int got_opcode = ibv_wc_read_opcode(cq);
    uint32_t got_qp = ibv_wc_read_qp_num(cq);
    ibv_wc_read_vendor_err(cq);
    ibv_end_poll(cq); /* a check that fails must not leave it open */
    expect_equal(t, got_id, wr_id, "wr_id");
    expect_equal(t, status, IBV_WC_SUCCESS, "status");
    expect_equal(t, got_opcode, opcode, "opcode");
    expect_equal(t, got_qp, qp_num, "qp_num");
}

static void a_completion_is_read(struct trial *t)
{
    struct options o = default_options();
    o.wr_calls = t->check->way == BY_WR_CALLS;
    struct ex_pair ex = connect_ex(t, &o, IBV_WC_STANDARD_FLAGS);
    t->a.qpx = o.wr_calls ? t->verbs->qp_to_qp_ex(t->a.qp) : NULL;
    struct receive r;
    struct work w;
    give_receive(t, &r, 0, 100);
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_SEND_WITH_IMM, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    begin(t, ex.recv);
    uint32_t bytes = ibv_wc_read_byte_len(ex.recv), imm = ibv_wc_read_imm_data(ex.recv);
    unsigned flags = ibv_wc_read_wc_flags(ex.recv);
    expect_fields(t, ex.recv, r.wr.wr_id, IBV_WC_RECV, t->b.qp->qp_num);
    expect_equal(t, bytes, 64, "byte_len");
    expect_equal(t, imm, w.wr.imm_data, "imm_data");
    expect(t, flags & IBV_WC_WITH_IMM, "IBV_WC_WITH_IMM is not set");
    begin(t, ex.send);
    expect_fields(t, ex.send, w.wr.wr_id, IBV_WC_SEND, t->a.qp->qp_num);
    expect_copy(&t->a, 0, &t->b, 0, 64);
    expect_memory(t, &t->b, "b");
}

static void a_datagram_is_read(struct trial *t)
{
    struct options o = default_options();
    o.type = IBV_QPT_UD;
    struct ex_pair ex = connect_ex(t, &o, IBV_WC_STANDARD_FLAGS);
    struct receive r;
    struct work w;
    give_receive(t, &r, 0, 100);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 32);
    aim(&w, &t->a, &t->b);
    post(t, &t->a, &w);
    begin(t, ex.recv);
    uint32_t bytes = ibv_wc_read_byte_len(ex.recv), from = ibv_wc_read_src_qp(ex.recv);
    unsigned flags = ibv_wc_read_wc_flags(ex.recv);
    ibv_wc_read_slid(ex.recv);
    ibv_wc_read_sl(ex.recv);
    ibv_wc_read_dlid_path_bits(ex.recv);
    expect_fields(t, ex.recv, r.wr.wr_id, IBV_WC_RECV, t->b.qp->qp_num);
    expect_equal(t, bytes, 72, "byte_len");
    expect_equal(t, from, t->a.address.qpn, "src_qp");
    expect(t, flags & IBV_WC_GRH, "IBV_WC_GRH is not set");
}

/* start_poll, then next_poll until there are no more. */
static void many_in_one_poll(struct trial *t)
{
    struct options o = default_options();
    struct ex_pair ex = connect_ex(t, &o, IBV_WC_STANDARD_FLAGS);
    struct work w[20];
    for (int i = 0; i < 20; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &w[i]);
    }
    uint64_t started = 0;
    for (int seen = 0; seen < 20;) {
        struct ibv_poll_cq_attr attr = {0};
        int err = ibv_start_poll(ex.send, &attr);
        if (err == ENOENT) {
            expect(t, !deadline_passed(t, &started), "no completion came before the deadline");
            continue;
        }
        expect_equal(t, err, 0, "ibv_start_poll");
        uint64_t wrong = 0;
        do {
            if (seen >= 20 || ex.send->wr_id != w[seen].wr.wr_id)
                wrong = ex.send->wr_id;
            seen++;
        } while ((err = ibv_next_poll(ex.send)) == 0);
        ibv_end_poll(ex.send);
        expect_equal(t, wrong, 0, "wr_id out of order");
        expect_equal(t, err, ENOENT, "ibv_next_poll at the end");
    }
}

static void an_empty_queue_answers_enoent(struct trial *t)
{
    struct options o = default_options();
    struct ex_pair ex = connect_ex(t, &o, IBV_WC_STANDARD_FLAGS);
    for (int i = 0; i < 3; i++) {
        struct ibv_poll_cq_attr attr = {0};
        expect_equal(t, ibv_start_poll(ex.send, &attr), ENOENT, "ibv_start_poll");
    }
}

static void an_unknown_attribute_is_refused(struct trial *t)
{
    struct options o = default_options();
    struct ex_pair ex = connect_ex(t, &o, IBV_WC_STANDARD_FLAGS);
    struct ibv_poll_cq_attr attr = {.comp_mask = 1u << 31};
    expect_equal(t, ibv_start_poll(ex.send, &attr), EINVAL, "ibv_start_poll");
}

/* The plain call works on it too, and takes what the other has not. */
static void the_plain_poll_works_too(struct trial *t)
{
    struct options o = default_options();
    struct ex_pair ex = connect_ex(t, &o, IBV_WC_STANDARD_FLAGS);
    struct work w[2];
    for (int i = 0; i < 2; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &w[i]);
    }
    begin(t, ex.send);
    expect_fields(t, ex.send, w[0].wr.wr_id, IBV_WC_RDMA_WRITE, t->a.qp->qp_num);
    expect_sent(t, &t->a, &w[1], IBV_WC_SUCCESS);
}

static void an_error_is_read(struct trial *t)
{
    struct options o = default_options();
    struct ex_pair ex = connect_ex(t, &o, IBV_WC_STANDARD_FLAGS);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    begin(t, ex.send);
    enum ibv_wc_status status = ex.send->status;
    uint64_t wr_id = ex.send->wr_id;
    ibv_end_poll(ex.send);
    expect_equal(t, status, IBV_WC_REM_ACCESS_ERR, "status");
    expect_equal(t, wr_id, w.wr.wr_id, "wr_id");
}

/* Later completions have later times, and none lies after now. */
static void times_go_on(struct trial *t)
{
    struct options o = default_options();
    struct ex_pair ex =
        connect_ex(t, &o, IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    if (t->verbs->query_rt_values(t->a.context, &values))
        trial_skip(t, "the device's clock cannot be read");
    uint64_t before = (uint64_t)values.raw_clock.tv_nsec;
    for (int i = 0; i < 10; i++) {
        struct work w;
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &w);
        begin(t, ex.send);
        uint64_t stamp = ibv_wc_read_completion_ts(ex.send);
        expect_fields(t, ex.send, w.wr.wr_id, IBV_WC_RDMA_WRITE, t->a.qp->qp_num);
        expect_equal(t, t->verbs->query_rt_values(t->a.context, &values), 0, "query_rt_values");
        uint64_t after = (uint64_t)values.raw_clock.tv_nsec;
        expect(t, before <= stamp && stamp <= after, "completed at %llu, between %llu and %llu",
               (unsigned long long)stamp, (unsigned long long)before, (unsigned long long)after);
        before = stamp;
    }
}

static void unknown_fields_are_refused(struct trial *t)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 16, .wc_flags = 1ull << 40};
    struct ibv_cq_ex *cq = t->verbs->create_cq_ex(t->a.context, &attr);
    int err = errno;
    if (cq)
        trial_track(t, CQ, ibv_cq_ex_to_cq(cq), 0);
    expect(t, !cq, "create_cq_ex takes a field that nobody knows");
    expect(t, err == EOPNOTSUPP || err == EINVAL || err == ENOSYS, "create_cq_ex: %s",
           strerror(err));
}

static void an_event_of_such_a_queue(struct trial *t)
{
    pair_make(t, NULL);
    struct ibv_comp_channel *channel = trial_channel(t, t->a.context);
    struct ibv_cq_ex *cq = make_ex(t, &t->a, 16, IBV_WC_STANDARD_FLAGS, channel);
    destroy_qp(t, t->a.qp);
    t->a.send_cq = ibv_cq_ex_to_cq(cq);
    t->a.qp = trial_qp(t, &t->a, &t->a.options);
    t->a.address.qpn = t->a.qp->qp_num;
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    struct work w;
    struct ibv_cq *found = NULL;
    void *cq_context = NULL;
    expect_equal(t, t->verbs->req_notify_cq(t->a.send_cq, 0), 0, "req_notify_cq");
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    expect(t, poll_readable(channel->fd, t->deadline_ms), "the channel is not readable");
    expect_equal(t, t->verbs->get_cq_event(channel, &found, &cq_context), 0, "get_cq_event");
    t->verbs->ack_cq_events(found, 1);
    expect(t, found == t->a.send_cq && cq_context == &t->a, "the event is of another CQ");
    begin(t, cq);
    expect_fields(t, cq, w.wr.wr_id, IBV_WC_RDMA_WRITE, t->a.qp->qp_num);
}

/* --- resizing -------------------------------------------------------------------------------- */

static void resize(struct trial *t, int cqe)
{
    int err = t->verbs->resize_cq(t->a.send_cq, cqe);
    if (err == EOPNOTSUPP || err == ENOSYS)
        trial_skip(t, "the device does not resize completion queues");
    expect_equal(t, err, 0, "resize_cq");
    expect(t, t->a.send_cq->cqe >= cqe, "resize_cq granted %d entries, asked for %d",
           t->a.send_cq->cqe, cqe);
}

static void entries_outlive_resizing(struct trial *t)
{
    struct options o = default_options();
    o.cqe = t->check->parameter < 0 ? 128 : 16;
    trial_connect(t, &o);
    struct work w[10];
    for (int i = 0; i < 10; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &w[i]);
    }
    expect_sent(t, &t->a, &w[0], IBV_WC_SUCCESS); /* so that some have come for certain */
    resize(t, t->check->parameter < 0 ? 32 : 256);
    for (int i = 1; i < 10; i++)
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
    work_make(t, &w[0], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w[0]);
    expect_sent(t, &t->a, &w[0], IBV_WC_SUCCESS);
}

static void a_larger_queue_holds_more(struct trial *t)
{
    struct options o = default_options();
    o.sends = 200;
    o.cqe = 16;
    trial_connect(t, &o);
    resize(t, 200);
    struct work w[200];
    for (int i = 0; i < 200; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &w[i]);
    }
    for (int i = 0; i < 200; i++)
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
    expect_state(t, &t->a, IBV_QPS_RTS);
}

static void too_small_for_what_it_holds(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w[20];
    for (int i = 0; i < 20; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        w[i].wr.send_flags = IBV_SEND_SIGNALED;
        post(t, &t->a, &w[i]);
    }
    struct ibv_cq *other = trial_cq(t, &t->a, 16, NULL);
    expect_sent(t, &t->a, &w[0], IBV_WC_SUCCESS);
    int err = t->verbs->resize_cq(t->a.send_cq, 2);
    if (err == EOPNOTSUPP || err == ENOSYS)
        trial_skip(t, "the device does not resize completion queues");
    if (!err) /* more may have been granted, or fewer have come yet */
        expect(t, t->a.send_cq->cqe >= 2 && other, "resize_cq granted %d", t->a.send_cq->cqe);
    else
        expect_equal(t, err, EINVAL, "resize_cq to 2 entries");
    if (t->device->strict && !t->device->polled && !t->device->order)
        expect_equal(t, err, EINVAL, "resize_cq below what it holds");
    if (err)
        for (int i = 1; i < 20; i++)
            expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
}

static void impossible_sizes_are_refused(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_device_attr device;
    expect_equal(t, t->verbs->query_device(t->a.context, &device), 0, "query_device");
    int before = t->a.send_cq->cqe;
    int err = t->verbs->resize_cq(t->a.send_cq, device.max_cqe + 1);
    if (err == EOPNOTSUPP || err == ENOSYS)
        trial_skip(t, "the device does not resize completion queues");
    expect_equal(t, err, EINVAL, "resize_cq beyond max_cqe");
    expect_equal(t, t->verbs->resize_cq(t->a.send_cq, 0), EINVAL, "resize_cq to 0 entries");
    expect_equal(t, t->a.send_cq->cqe, before, "cqe");
}

#define WITH(text, function, value)                                                                \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (value)                                    \
    }

static const struct check checks[] = {
    {.name = "CQ ex: a completion is read", .run = a_completion_is_read},
    {.name = "CQ ex: a completion of ibv_wr_* is read",
     .run = a_completion_is_read,
     .way = BY_WR_CALLS},
    {.name = "CQ ex: a datagram is read", .run = a_datagram_is_read},
    {.name = "CQ ex: many in one poll", .run = many_in_one_poll},
    {.name = "CQ ex: an empty queue answers ENOENT", .run = an_empty_queue_answers_enoent},
    {.name = "CQ ex: an unknown attribute is refused", .run = an_unknown_attribute_is_refused},
    {.name = "CQ ex: the plain poll works too", .run = the_plain_poll_works_too},
    {.name = "CQ ex: an error is read", .run = an_error_is_read},
    {.name = "CQ ex: times go on", .run = times_go_on},
    {.name = "CQ ex: unknown fields are refused", .run = unknown_fields_are_refused},
    {.name = "CQ ex: an event", .run = an_event_of_such_a_queue},
    WITH("entries outlive a larger CQ", entries_outlive_resizing, 1),
    WITH("entries outlive a smaller CQ", entries_outlive_resizing, -1),
    {.name = "a CQ that was made larger holds more", .run = a_larger_queue_holds_more},
    {.name = "a CQ is not made too small for what it holds", .run = too_small_for_what_it_holds},
    {.name = "impossible sizes of a CQ are refused", .run = impossible_sizes_are_refused},
};

const struct check_group cq_ex_checks = GROUP("completion queues", checks);
