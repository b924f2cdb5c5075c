/* SPDX-License-Identifier: MIT */
/* The order of completions, and completion queues that are shared. */
#include "tests/conformance.h"

static void completions_come_in_order(struct trial *t)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
                                                 IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct options o = default_options();
    o.memory_bytes = 1 << 18;
    trial_connect(t, &o);
    struct work w[32];
    struct receive r[8];
    memset(t->b.memory, 0, 64);
    for (int i = 0; i < 8; i++) {
        receive_make(t, &r[i], &t->b, 65536, 65536);
        post_receive(t, &t->b, &r[i]);
    }
    for (size_t i = 0; i < 32; i++) {
        enum ibv_wr_opcode opcode = opcodes[i % 4];
        bool atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
        /* Long ones among short ones: a device must not let the short ones overtake. */
        uint32_t bytes = atomic ? 8 : i % 8 < 4 ? 60000 : 1;
        work_make(t, &w[i], opcode, &t->a, 65536, &t->b.address, atomic ? 0 : 1024, bytes);
        post(t, &t->a, &w[i]);
    }
    for (int i = 0; i < 32; i++)
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
    for (int i = 0; i < 8; i++)
        expect_received(t, &t->b, &r[i], IBV_WC_SUCCESS);
}

static void many_are_polled_at_once(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w[20];
    struct ibv_wc wc[64];
    for (int i = 0; i < 20; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &w[i]);
    }
    uint64_t started = 0;
    for (int seen = 0; seen < 20;) {
        int got = t->verbs->poll_cq(t->a.send_cq, seen ? 64 : 3, wc);
        expect(t, got >= 0 && got <= (seen ? 64 : 3), "poll_cq answers %d", got);
        for (int i = 0; i < got; i++, seen++)
            expect(t,
                   seen < 20 && wc[i].wr_id == w[seen].wr.wr_id && wc[i].status == IBV_WC_SUCCESS,
                   "completion %d is of wr_id %llu, %s", seen, (unsigned long long)wc[i].wr_id,
                   ibv_wc_status_str(wc[i].status));
        expect(t, got || !deadline_passed(t, &started), "only %d of 20 completions came", seen);
    }
    expect_equal(t, t->verbs->poll_cq(t->a.send_cq, 64, wc), 0, "poll_cq of an empty queue");
    expect_equal(t, t->verbs->poll_cq(t->a.send_cq, 0, wc), 0, "poll_cq of no entries");
}

/* --- many queue pairs on one completion queue ----------------------------------------------------
 */

enum { PAIRS = 64, ROUNDS = 4 };

static void make_many(struct trial *t, struct side *near, struct side *far)
{
    struct options o = default_options();
    o.sends = o.receives = ROUNDS;
    o.cqe = PAIRS * ROUNDS;
    o.memory_bytes = PAIRS * 64;
    trial_connect(t, &o);
    for (int i = 0; i < PAIRS; i++) {
        near[i] = t->a;
        far[i] = t->b;
        near[i].qp = trial_qp(t, &near[i], &o);
        far[i].qp = trial_qp(t, &far[i], &o);
        near[i].address.qpn = near[i].qp->qp_num;
        far[i].address.qpn = far[i].qp->qp_num;
        bring(t, &near[i], &far[i].address, IBV_QPS_RTS);
        bring(t, &far[i], &near[i].address, IBV_QPS_RTS);
    }
}

/* Each queue pair's completions are its own and in order, however they are mixed. */
static void count_many(struct trial *t, struct ibv_cq *cq, const struct side *sides,
                       uint64_t wr_ids[PAIRS][ROUNDS])
{
    int seen[PAIRS] = {0};
    for (int n = 0; n < PAIRS * ROUNDS; n++) {
        struct ibv_wc wc = next_wc(t, cq);
        expect_equal(t, wc.status, IBV_WC_SUCCESS, "status");
        int i = 0;
        while (i < PAIRS && sides[i].qp->qp_num != wc.qp_num)
            i++;
        expect(t, i < PAIRS && seen[i] < ROUNDS, "a completion of queue pair %#x", wc.qp_num);
        expect_equal(t, wc.wr_id, wr_ids[i][seen[i]], "wr_id");
        seen[i]++;
    }
    expect_quiet(t, cq);
}

static void many_queue_pairs_on_one_cq(struct trial *t)
{
    static const size_t piece = 16;
    struct side *near = trial_memory(t, sizeof *near * PAIRS);
    struct side *far = trial_memory(t, sizeof *far * PAIRS);
    make_many(t, near, far);
    uint64_t sent[PAIRS][ROUNDS], received[PAIRS][ROUNDS];
    for (size_t round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < PAIRS; i++) {
            struct receive r;
            struct work w;
            size_t at = (i * ROUNDS + round) * piece;
            receive_make(t, &r, &far[i], at, (uint32_t)piece);
            post_receive(t, &far[i], &r);
            payload(t, &t->a, at, piece);
            work_make(t, &w, IBV_WR_SEND, &near[i], at, &far[i].address, 0, (uint32_t)piece);
            post(t, &near[i], &w);
            expect_copy(&t->a, at, &t->b, at, piece);
            sent[i][round] = w.wr.wr_id;
            received[i][round] = r.wr.wr_id;
        }
    count_many(t, t->a.send_cq, near, sent);
    count_many(t, t->b.recv_cq, far, received);
    expect_memory(t, &t->b, "b");
}

static void sends_and_receives_have_their_own_cq(struct trial *t)
{
    trial_connect(t, NULL);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 0, 8);
    post_receive(t, &t->b, &r);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_quiet(t, t->a.recv_cq);
    expect_quiet(t, t->b.send_cq);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
}

static void sends_and_receives_may_share_a_cq(struct trial *t)
{
    struct options o = default_options();
    o.one_cq = true;
    trial_connect(t, &o);
    struct receive r;
    struct work from_a, from_b;
    receive_make(t, &r, &t->b, 0, 8);
    post_receive(t, &t->b, &r);
    work_make(t, &from_a, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
    work_make(t, &from_b, IBV_WR_RDMA_WRITE, &t->b, 0, &t->a.address, 64, 8);
    post(t, &t->a, &from_a);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    post(t, &t->b, &from_b);
    expect_sent(t, &t->b, &from_b, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &from_a, IBV_WC_SUCCESS);
    expect_quiet(t, t->a.send_cq);
}

/* A queue pair is gone; the completions of its neighbour on the same CQ are not. */
static void destroying_leaves_the_neighbours_entries(struct trial *t)
{
    trial_connect(t, NULL);
    struct side near = t->a, far = t->b;
    near.qp = trial_qp(t, &near, &near.options);
    far.qp = trial_qp(t, &far, &far.options);
    near.address.qpn = near.qp->qp_num;
    far.address.qpn = far.qp->qp_num;
    bring(t, &near, &far.address, IBV_QPS_RTS);
    bring(t, &far, &near.address, IBV_QPS_RTS);
    struct work kept[4], gone;
    for (int i = 0; i < 4; i++) {
        work_make(t, &gone, IBV_WR_RDMA_WRITE, &near, 0, &far.address, 0, 8);
        post(t, &near, &gone);
        work_make(t, &kept[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &kept[i]);
    }
    destroy_qp(t, near.qp);
    for (int i = 0; i < 4;) { /* entries of the one that is gone may or may not be shown */
        struct ibv_wc wc = next_wc(t, t->a.send_cq);
        if (wc.qp_num != t->a.qp->qp_num)
            continue;
        expect_equal(t, wc.wr_id, kept[i].wr.wr_id, "wr_id");
        expect_equal(t, wc.status, IBV_WC_SUCCESS, "status");
        i++;
    }
}

static void queue_pairs_of_one_context_meet(struct trial *t)
{
    struct options o = default_options();
    side_make(t, &t->a, &o);
    struct side other = t->a;
    other.qp = trial_qp(t, &other, &o);
    other.address.qpn = other.qp->qp_num;
    bring(t, &t->a, &other.address, IBV_QPS_RTS);
    bring(t, &other, &t->a.address, IBV_QPS_RTS);
    struct receive r;
    struct work w;
    receive_make(t, &r, &other, 4096, 64);
    post_receive(t, &other, &r);
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &other.address, 0, 64);
    post(t, &t->a, &w);
    expect_received(t, &other, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->a, 4096, 64);
    expect_memory(t, &t->a, "a");
}

static const struct check checks[] = {
    {.name = "completions come in order", .run = completions_come_in_order},
    {.name = "many are polled at once", .run = many_are_polled_at_once},
    {.name = "64 queue pairs on one CQ", .run = many_queue_pairs_on_one_cq},
    {.name = "sends and receives have their own CQ", .run = sends_and_receives_have_their_own_cq},
    {.name = "sends and receives may share a CQ", .run = sends_and_receives_may_share_a_cq},
    {.name = "destroying leaves the neighbour's entries",
     .run = destroying_leaves_the_neighbours_entries},
    {.name = "queue pairs of one context meet", .run = queue_pairs_of_one_context_meet},
};

const struct check_group order_checks = GROUP("order and sharing", checks);
