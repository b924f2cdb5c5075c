/* SPDX-License-Identifier: MIT */
/* Unreliable connections: what is lost is lost without a word, and what is wrong at home is told.
 */
#include "tests/conformance.h"

static struct options unreliable_options(void)
{
    struct options o = default_options();
    o.type = IBV_QPT_UC;
    return o;
}

static void connect_unreliable(struct trial *t)
{
    struct options o = unreliable_options();
    trial_connect(t, &o);
}

/* A message of 16 bytes with a receive, which shows that the connection lives. */
static void expect_alive(struct trial *t, struct receive *r)
{
    struct work w;
    payload(t, &t->a, 0, 16);
    work_make(t, &w, IBV_WR_SEND_WITH_IMM, &t->a, 0, &t->b.address, 0, 16);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    struct ibv_wc wc = expect_received(t, &t->b, r, IBV_WC_SUCCESS);
    expect_equal(t, wc.imm_data, w.wr.imm_data, "imm_data of the message that got through");
    expect_equal(t, wc.byte_len, 16, "byte_len");
    expect_copy(&t->a, 0, &t->b, r->sge[0].addr - (uintptr_t)t->b.memory, 16);
    expect_memory(t, &t->b, "b");
}

/* InfiniBand 9.8.2.2: nobody is told, and the next message gets through. */
static void a_message_without_receive_is_lost(struct trial *t)
{
    enum ibv_wr_opcode opcode = (enum ibv_wr_opcode)t->check->parameter;
    connect_unreliable(t);
    struct work w;
    struct receive r;
    work_make(t, &w, opcode, &t->a, 0, &t->b.address, 0, 16);
    if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        w.wr.num_sge = 0;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_quiet(t, t->b.recv_cq);
    expect_state(t, &t->a, IBV_QPS_RTS);
    expect_state(t, &t->b, IBV_QPS_RTS);
    give_receive(t, &r, 1024, 16);
    expect_alive(t, &r);
}

static void a_message_too_long_is_lost(struct trial *t)
{
    connect_unreliable(t);
    struct receive r;
    struct work w;
    give_receive(t, &r, 1024, 32);
    payload(t, &t->a, 0, 33);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 33);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_quiet(t, t->b.recv_cq);
    memcpy(t->b.expected + 1024, t->b.memory + 1024, 32); /* may hold a part */
    expect_state(t, &t->b, IBV_QPS_RTS);
    expect_alive(t, &r);
}

enum fault { BAD_KEY, OUT_OF_BOUNDS, NO_RIGHT_OF_REGION, NO_RIGHT_OF_QUEUE_PAIR };

static void a_forbidden_write_is_lost(struct trial *t)
{
    struct options o = unreliable_options();
    enum fault fault = (enum fault)t->check->parameter;
    if (fault == NO_RIGHT_OF_REGION)
        o.access = IBV_ACCESS_LOCAL_WRITE;
    if (fault == NO_RIGHT_OF_QUEUE_PAIR)
        o.qp_access = 0;
    trial_connect(t, &o);
    struct work w;
    struct receive r;
    payload(t, &t->a, 0, 32);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 32);
    if (fault == BAD_KEY)
        w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    if (fault == OUT_OF_BOUNDS)
        w.wr.wr.rdma.remote_addr += t->b.bytes - 31;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_state(t, &t->a, IBV_QPS_RTS);
    give_receive(t, &r, 1024, 16);
    expect_alive(t, &r);
    expect_state(t, &t->b, IBV_QPS_RTS);
}

static void a_forbidden_write_takes_no_receive(struct trial *t)
{
    connect_unreliable(t);
    struct work w;
    struct receive r;
    give_receive(t, &r, 1024, 16);
    work_make(t, &w, IBV_WR_RDMA_WRITE_WITH_IMM, &t->a, 0, &t->b.address, 0, 32);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_quiet(t, t->b.recv_cq);
    expect_alive(t, &r);
}

/* In RESET it does not hear; once it is connected again it does. */
static void a_peer_that_does_not_listen(struct trial *t)
{
    enum ibv_qp_state state = (enum ibv_qp_state)t->check->parameter;
    connect_unreliable(t);
    struct receive r;
    struct work w;
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
    if (state == IBV_QPS_INIT)
        bring(t, &t->b, &t->a.address, IBV_QPS_INIT);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_state(t, &t->a, IBV_QPS_RTS);
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    give_receive(t, &r, 1024, 16);
    expect_alive(t, &r);
}

static void a_peer_that_is_gone(struct trial *t)
{
    connect_unreliable(t);
    destroy_qp(t, t->b.qp);
    for (int i = 0; i < 5; i++) {
        struct work w;
        work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
    expect_state(t, &t->a, IBV_QPS_RTS);
}

/* --- errors of one's own --------------------------------------------------------------------- */

/* InfiniBand 10.3.1.6: the send queue stops in SQE, and what is posted behind is flushed. */
static void spoil_send_queue(struct trial *t)
{
    struct work bad, behind;
    work_make(t, &bad, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
    work_make(t, &behind, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
    bad.sge[0].lkey ^= 0x5a5a5a;
    bad.wr.next = &behind.wr;
    post(t, &t->a, &bad);
    expect_sent(t, &t->a, &bad, IBV_WC_LOC_PROT_ERR);
    expect_sent(t, &t->a, &behind, IBV_WC_WR_FLUSH_ERR);
    expect_state(t, &t->a, IBV_QPS_SQE);
}

static void a_bad_lkey_stops_the_send_queue(struct trial *t)
{
    connect_unreliable(t);
    spoil_send_queue(t);
    expect_state(t, &t->b, IBV_QPS_RTS);
}

static void a_stopped_send_queue_still_receives(struct trial *t)
{
    connect_unreliable(t);
    spoil_send_queue(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->a, 1024, 16);
    post_receive(t, &t->a, &r);
    payload(t, &t->b, 0, 16);
    work_make(t, &w, IBV_WR_SEND, &t->b, 0, &t->a.address, 0, 16);
    post(t, &t->b, &w);
    expect_sent(t, &t->b, &w, IBV_WC_SUCCESS);
    expect_received(t, &t->a, &r, IBV_WC_SUCCESS);
    expect_copy(&t->b, 0, &t->a, 1024, 16);
    expect_memory(t, &t->a, "a");
}

static void a_stopped_send_queue_can_be_started(struct trial *t)
{
    connect_unreliable(t);
    spoil_send_queue(t);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE};
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), 0,
                 "modify_qp from SQE to RTS");
    struct receive r;
    give_receive(t, &r, 1024, 16);
    expect_alive(t, &r);
}

/* A receive that names bad memory is the receiver's own fault: it is told, the sender is not. */
static void a_receive_with_a_bad_key(struct trial *t)
{
    connect_unreliable(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 1024, 16);
    r.sge[0].lkey ^= 0x5a5a5a;
    post_receive(t, &t->b, &r);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_received(t, &t->b, &r, IBV_WC_LOC_PROT_ERR);
    expect_state(t, &t->b, IBV_QPS_ERR);
    expect_state(t, &t->a, IBV_QPS_RTS);
    expect_memory(t, &t->b, "b");
}

static void what_is_not_carried_is_refused(struct trial *t)
{
    connect_unreliable(t);
    struct work w;
    struct ibv_send_wr *bad = NULL;
    work_make(t, &w, (enum ibv_wr_opcode)t->check->parameter, &t->a, 0, &t->b.address, 0, 8);
    int err = t->verbs->post_send(t->a.qp, &w.wr, &bad);
    expect(t, err == EINVAL || err == EOPNOTSUPP, "post_send: %s", strerror(err));
    expect(t, bad == &w.wr, "bad_wr does not point to the request");
    expect_quiet(t, t->a.send_cq);
    expect_state(t, &t->a, IBV_QPS_RTS);
}

static void ibv_wr_reads_are_not_granted(struct trial *t)
{
    pair_make(t, NULL);
    struct ibv_qp_init_attr_ex ex = {.send_cq = t->a.send_cq,
                                     .recv_cq = t->a.recv_cq,
                                     .cap = {8, 8, 1, 1, 0},
                                     .qp_type = IBV_QPT_UC,
                                     .comp_mask =
                                         IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                     .pd = t->a.pd,
                                     .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ};
    struct ibv_qp *qp = t->verbs->create_qp_ex(t->a.context, &ex);
    int err = errno;
    if (qp)
        trial_track(t, QP, qp, 0);
    expect(t, !qp, "a UC queue pair with ibv_wr_rdma_read is made");
    expect(t, err == EOPNOTSUPP || err == EINVAL, "create_qp_ex: %s", strerror(err));
}

static void errors_flush_both_queues(struct trial *t)
{
    connect_unreliable(t);
    struct receive r;
    struct work w;
    give_receive(t, &r, 0, 16);
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_ERR), 0, "modify_qp to ERR");
    expect_received(t, &t->b, &r, IBV_WC_WR_FLUSH_ERR);
    work_make(t, &w, IBV_WR_SEND, &t->b, 0, &t->a.address, 0, 16);
    post(t, &t->b, &w);
    expect_sent(t, &t->b, &w, IBV_WC_WR_FLUSH_ERR);
    expect_quiet(t, t->a.recv_cq);
}

#define WITH(text, function, value)                                                                \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (value)                                    \
    }

static const struct check checks[] = {
    WITH("UC: a SEND without a receive is lost", a_message_without_receive_is_lost, IBV_WR_SEND),
    WITH("UC: an immediate without a receive is lost", a_message_without_receive_is_lost,
         IBV_WR_RDMA_WRITE_WITH_IMM),
    {.name = "UC: a SEND longer than its receive is lost", .run = a_message_too_long_is_lost},
    WITH("UC: a WRITE with a bad key is lost", a_forbidden_write_is_lost, BAD_KEY),
    WITH("UC: a WRITE beyond the region is lost", a_forbidden_write_is_lost, OUT_OF_BOUNDS),
    WITH("UC: a WRITE that the region forbids is lost", a_forbidden_write_is_lost,
         NO_RIGHT_OF_REGION),
    WITH("UC: a WRITE that the queue pair forbids is lost", a_forbidden_write_is_lost,
         NO_RIGHT_OF_QUEUE_PAIR),
    {.name = "UC: a forbidden WRITE takes no receive", .run = a_forbidden_write_takes_no_receive},
    WITH("UC: a peer in RESET", a_peer_that_does_not_listen, IBV_QPS_RESET),
    WITH("UC: a peer in INIT", a_peer_that_does_not_listen, IBV_QPS_INIT),
    {.name = "UC: a peer that is gone", .run = a_peer_that_is_gone},
    {.name = "UC: a bad lkey stops the send queue", .run = a_bad_lkey_stops_the_send_queue},
    {.name = "UC: a stopped send queue still receives", .run = a_stopped_send_queue_still_receives},
    {.name = "UC: a stopped send queue can be started", .run = a_stopped_send_queue_can_be_started},
    {.name = "UC: a receive with a bad key", .run = a_receive_with_a_bad_key},
    WITH("UC carries no READ", what_is_not_carried_is_refused, IBV_WR_RDMA_READ),
    WITH("UC carries no compare and swap", what_is_not_carried_is_refused,
         IBV_WR_ATOMIC_CMP_AND_SWP),
    WITH("UC carries no fetch and add", what_is_not_carried_is_refused,
         IBV_WR_ATOMIC_FETCH_AND_ADD),
    {.name = "UC grants no ibv_wr_rdma_read", .run = ibv_wr_reads_are_not_granted},
    {.name = "UC: ERR flushes both queues", .run = errors_flush_both_queues},
};

const struct check_group losses_checks = GROUP("losses of unreliable connections", checks);
