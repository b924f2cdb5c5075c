/* SPDX-License-Identifier: MIT */
/* Receives: order, room, immediate data, and a receiver that is not ready. */
#include "tests/conformance.h"

static void receives_are_used_in_order(struct trial *t)
{
    trial_connect(t, NULL);
    struct receive r[16];
    struct work w[16];
    for (size_t i = 0; i < 16; i++) {
        receive_make(t, &r[i], &t->b, 4096 + i * 128, 100);
        post_receive(t, &t->b, &r[i]);
    }
    for (size_t i = 0; i < 16; i++) {
        payload(t, &t->a, i * 128, 1 + i * 5);
        work_make(t, &w[i], IBV_WR_SEND, &t->a, i * 128, &t->b.address, 0, 1 + (uint32_t)i * 5);
        post(t, &t->a, &w[i]);
        expect_copy(&t->a, i * 128, &t->b, 4096 + i * 128, 1 + i * 5);
    }
    for (size_t i = 0; i < 16; i++) {
        struct ibv_wc wc = expect_received(t, &t->b, &r[i], IBV_WC_SUCCESS);
        expect_equal(t, wc.byte_len, 1 + i * 5, "byte_len");
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
    }
    expect_memory(t, &t->b, "b");
}

/* The queues wrap many times; every message arrives once, in its receive. */
static void a_thousand_messages(struct trial *t)
{
    struct options o = default_options();
    o.receives = 8;
    o.sends = 8;
    o.wr_calls = t->check->way == BY_WR_CALLS;
    trial_connect(t, &o);
    struct receive r[8];
    struct work w[8];
    for (uint32_t i = 0; i < 1008; i++) {
        uint32_t slot = i % 8;
        if (i >= 8) {
            struct ibv_wc wc = expect_received(t, &t->b, &r[slot], IBV_WC_SUCCESS);
            expect_equal(t, wc.imm_data, w[slot].wr.imm_data, "imm_data");
            expect_sent(t, &t->a, &w[slot], IBV_WC_SUCCESS);
            expect(t, !memcmp(t->b.memory + slot * 64, t->a.expected + slot * 64, 64),
                   "message %u differs", i - 8);
        }
        receive_make(t, &r[slot], &t->b, slot * 64, 64);
        post_receive(t, &t->b, &r[slot]);
        payload(t, &t->a, slot * 64, 64);
        work_make(t, &w[slot], IBV_WR_SEND_WITH_IMM, &t->a, slot * 64, &t->b.address, 0, 64);
        post(t, &t->a, &w[slot]);
    }
}

static void a_chain_of_receives(struct trial *t)
{
    trial_connect(t, NULL);
    struct receive r[5];
    struct work w;
    for (size_t i = 0; i < 5; i++) {
        receive_make(t, &r[i], &t->b, 1000 + i * 16, 16);
        if (i)
            r[i - 1].wr.next = &r[i].wr;
    }
    post_receive(t, &t->b, &r[0]);
    for (size_t i = 0; i < 5; i++) {
        payload(t, &t->a, 0, 16);
        work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
        post(t, &t->a, &w);
        expect_received(t, &t->b, &r[i], IBV_WC_SUCCESS);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
        expect_copy(&t->a, 0, &t->b, 1000 + i * 16, 16);
    }
    expect_memory(t, &t->b, "b");
}

/* A WRITE_WITH_IMM takes a receive, be it without any buffer, and a WRITE takes none. */
static void immediate_takes_a_receive_without_buffer(struct trial *t)
{
    trial_connect(t, NULL);
    struct receive r;
    struct work plain, with;
    receive_make(t, &r, &t->b, 0, 0);
    r.wr.num_sge = 0;
    r.wr.sg_list = NULL;
    post_receive(t, &t->b, &r);
    payload(t, &t->a, 0, 200);
    work_make(t, &plain, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 500, 100);
    work_make(t, &with, IBV_WR_RDMA_WRITE_WITH_IMM, &t->a, 100, &t->b.address, 600, 100);
    post(t, &t->a, &plain);
    expect_sent(t, &t->a, &plain, IBV_WC_SUCCESS);
    expect_quiet(t, t->b.recv_cq);
    post(t, &t->a, &with);
    struct ibv_wc wc = expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_equal(t, wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM, "opcode");
    expect_equal(t, wc.imm_data, with.wr.imm_data, "imm_data");
    expect_equal(t, wc.byte_len, 100, "byte_len");
    expect_sent(t, &t->a, &with, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 500, 200);
    expect_memory(t, &t->b, "b");
}

/* InfiniBand 9.9.3: too little room is the receiver's length error and the sender's bad request. */
static void a_receive_too_small(struct trial *t)
{
    trial_connect(t, NULL);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 1024, 99);
    post_receive(t, &t->b, &r);
    payload(t, &t->a, 0, 100);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 100);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_INV_REQ_ERR);
    expect_received(t, &t->b, &r, IBV_WC_LOC_LEN_ERR);
    expect_state(t, &t->a, IBV_QPS_ERR);
    expect_state(t, &t->b, IBV_QPS_ERR);
    memcpy(t->b.expected + 1024, t->b.memory + 1024, 99); /* may hold a part */
    expect_memory(t, &t->b, "b");
}

static void a_receive_with_a_bad_key(struct trial *t)
{
    trial_connect(t, NULL);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 1024, 64);
    r.sge[0].lkey ^= 0x5a5a5a;
    post_receive(t, &t->b, &r);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_OP_ERR);
    expect_received(t, &t->b, &r, IBV_WC_LOC_PROT_ERR);
    expect_state(t, &t->b, IBV_QPS_ERR);
    expect_memory(t, &t->b, "b");
}

static void a_receive_without_local_write(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_mr *mr = trial_mr(t, t->b.pd, t->b.memory, t->b.bytes, 0);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 1024, 64);
    r.sge[0].lkey = mr->lkey;
    post_receive(t, &t->b, &r);
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_OP_ERR);
    expect_received(t, &t->b, &r, IBV_WC_LOC_PROT_ERR);
    expect_memory(t, &t->b, "b");
}

static void no_receive(struct trial *t)
{
    struct options o = default_options();
    o.rnr_retry = (uint8_t)t->check->size;
    trial_connect(t, &o);
    struct work w;
    payload(t, &t->a, 0, 64);
    work_make(t, &w, (enum ibv_wr_opcode)t->check->parameter, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_RNR_RETRY_EXC_ERR);
    expect_state(t, &t->a, IBV_QPS_ERR);
    expect_state(t, &t->b, IBV_QPS_RTS);
    expect_quiet(t, t->b.recv_cq);
    if (t->check->parameter == IBV_WR_SEND)
        expect_memory(t, &t->b, "b");
}

static void a_late_receive_recovers(struct trial *t)
{
    trial_connect(t, NULL);
    struct receive r[3];
    struct work w[3];
    for (size_t i = 0; i < 3; i++) {
        payload(t, &t->a, i * 64, 64);
        work_make(t, &w[i], (enum ibv_wr_opcode)t->check->parameter, &t->a, i * 64, &t->b.address,
                  2048 + i * 64, 64);
        post(t, &t->a, &w[i]);
        expect_copy(&t->a, i * 64, &t->b, 2048 + i * 64, 64);
    }
    expect_quiet(t, t->a.send_cq);
    for (size_t i = 0; i < 3; i++) {
        receive_make(t, &r[i], &t->b, 2048 + i * 64, 64);
        post_receive(t, &t->b, &r[i]);
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
        expect_received(t, &t->b, &r[i], IBV_WC_SUCCESS);
        expect_quiet(t, t->a.send_cq);
    }
    expect_memory(t, &t->b, "b");
}

/* Where a SEND waits for a receive, what was posted behind it waits too. */
static void nothing_overtakes_a_waiting_send(struct trial *t)
{
    trial_connect(t, NULL);
    struct receive r;
    struct work send, write;
    payload(t, &t->a, 0, 128);
    work_make(t, &send, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 64);
    work_make(t, &write, IBV_WR_RDMA_WRITE, &t->a, 64, &t->b.address, 3000, 64);
    post(t, &t->a, &send);
    post(t, &t->a, &write);
    expect_quiet(t, t->a.send_cq);
    expect_memory(t, &t->b, "b");
    receive_make(t, &r, &t->b, 2000, 64);
    post_receive(t, &t->b, &r);
    expect_sent(t, &t->a, &send, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &write, IBV_WC_SUCCESS);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 2000, 64);
    expect_copy(&t->a, 64, &t->b, 3000, 64);
    expect_memory(t, &t->b, "b");
}

static const struct check checks[] = {
    {.name = "receives are used in order", .run = receives_are_used_in_order},
    {.name = "a thousand messages", .run = a_thousand_messages},
    {.name = "a thousand messages by ibv_wr_*", .run = a_thousand_messages, .way = BY_WR_CALLS},
    {.name = "a chain of receives", .run = a_chain_of_receives},
    {.name = "immediate data takes a receive without buffer",
     .run = immediate_takes_a_receive_without_buffer},
    {.name = "a receive that is too small", .run = a_receive_too_small},
    {.name = "a receive with a bad key", .run = a_receive_with_a_bad_key},
    {.name = "a receive without local write", .run = a_receive_without_local_write},
    {.name = "no receive and no retry: SEND", .run = no_receive, .parameter = IBV_WR_SEND},
    {.name = "no receive and 2 retries: SEND",
     .run = no_receive,
     .parameter = IBV_WR_SEND,
     .size = 2},
    {.name = "no receive and 2 retries: WRITE_WITH_IMM",
     .run = no_receive,
     .parameter = IBV_WR_RDMA_WRITE_WITH_IMM,
     .size = 2},
    {.name = "a late receive recovers: SEND",
     .run = a_late_receive_recovers,
     .parameter = IBV_WR_SEND},
    {.name = "a late receive recovers: WRITE_WITH_IMM",
     .run = a_late_receive_recovers,
     .parameter = IBV_WR_RDMA_WRITE_WITH_IMM},
    {.name = "nothing overtakes a waiting SEND", .run = nothing_overtakes_a_waiting_send},
};

const struct check_group receive_checks = GROUP("receives", checks);
