/* SPDX-License-Identifier: MIT */
/* A peer process dies, and whoever speaks to it is told. */
#include "tests/conformance.h"

static struct options impatient(void)
{
    struct options o = default_options();
    o.retry_count = 1;
    return o;
}

static void a_killed_peer_is_an_error(struct trial *t)
{
    enum ibv_wr_opcode opcode = (enum ibv_wr_opcode)t->check->parameter;
    struct options o = impatient();
    struct peer *peer = peer_meet(t, &o);
    struct work before, after;
    struct receive r;
    receive_make(t, &r, &t->a, 8192, 64);
    post_receive(t, &t->a, &r);
    work_make(t, &before, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &before);
    expect_sent(t, &t->a, &before, IBV_WC_SUCCESS);
    peer_kill(peer);
    work_make(t, &after, opcode, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &after);
    expect_sent(t, &t->a, &after, IBV_WC_RETRY_EXC_ERR);
    expect_received(t, &t->a, &r, IBV_WC_WR_FLUSH_ERR);
    expect_state(t, &t->a, IBV_QPS_ERR);
}

/* The SEND waits for a receive that will never come. */
static void a_peer_killed_while_a_send_waits(struct trial *t)
{
    struct options o = impatient();
    struct peer *peer = peer_meet(t, &o);
    struct work w;
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    expect_quiet(t, t->a.send_cq);
    peer_kill(peer);
    expect_sent(t, &t->a, &w, IBV_WC_RETRY_EXC_ERR);
}

/* Killed at some moment of a stream: every request completes, in order, the last ones flushed. */
static void a_peer_killed_in_mid_stream(struct trial *t)
{
    enum { DEPTH = 16 };
    struct options o = impatient();
    struct peer *peer = peer_meet(t, &o);
    struct work w[DEPTH];
    uint64_t posted = 0, done = 0;
    bool failed = false;
    while (!failed || done < posted) {
        while (!failed && posted < done + DEPTH) {
            struct work *slot = &w[posted % DEPTH];
            work_make(t, slot, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 4096);
            post(t, &t->a, slot);
            posted++;
        }
        if (done == 5 * DEPTH + 3)
            peer_kill(peer);
        struct ibv_wc wc = next_wc(t, t->a.send_cq);
        expect_equal(t, wc.wr_id, w[done % DEPTH].wr.wr_id, "wr_id");
        if (failed)
            expect_equal(t, wc.status, IBV_WC_WR_FLUSH_ERR, "status behind the failure");
        else if (wc.status != IBV_WC_SUCCESS)
            expect_equal(t, wc.status, IBV_WC_RETRY_EXC_ERR, "status of the failure");
        failed |= wc.status != IBV_WC_SUCCESS;
        done++;
    }
}

static void a_peer_that_quits_is_an_error(struct trial *t)
{
    struct options o = impatient();
    struct peer *peer = peer_meet(t, &o);
    struct work w;
    peer_quit(t, peer);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_RETRY_EXC_ERR);
}

/* One of two peers dies; the other is served as before. */
static void a_death_is_one_peers_own(struct trial *t)
{
    struct options o = impatient();
    struct peer *lasting = peer_start(t, 1, &o, false);
    struct peer *dying = peer_meet(t, &o);
    struct side other = t->a;
    other.qp = trial_qp(t, &other, &o);
    other.address.qpn = other.qp->qp_num;
    bring(t, &other, &lasting->address, IBV_QPS_RTS);
    peer_connect(t, lasting, &other.address);
    struct work w;
    peer_kill(dying);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_RETRY_EXC_ERR);
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &other, 0, &lasting->address, 96, 64);
    post(t, &other, &w);
    expect_sent(t, &other, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 96, 64);
    expect_peer_memory(t, lasting);
    peer_quit(t, lasting);
}

#define KILLED(text, operation, kind)                                                              \
    PROCESS("a killed peer: " text, a_killed_peer_is_an_error, operation, kind)

static const struct check checks[] = {
    KILLED("WRITE", IBV_WR_RDMA_WRITE, PEER_PRIVATE),
    KILLED("READ", IBV_WR_RDMA_READ, PEER_PRIVATE),
    KILLED("SEND", IBV_WR_SEND, PEER_PRIVATE),
    KILLED("FETCH_AND_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD, PEER_PRIVATE),
    KILLED("WRITE to a memfd", IBV_WR_RDMA_WRITE, PEER_MEMFD),
    PROCESS("a peer killed while a SEND waits", a_peer_killed_while_a_send_waits, 0, PEER_PRIVATE),
    BOTH_KINDS("a peer killed in mid-stream", a_peer_killed_in_mid_stream),
    PROCESS("a peer that quits is an error", a_peer_that_quits_is_an_error, 0, PEER_PRIVATE),
    PROCESS("a death is one peer's own", a_death_is_one_peers_own, 0, PEER_PRIVATE),
};

const struct check_group death_checks = GROUP("deaths", checks);
