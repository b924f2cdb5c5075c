/* SPDX-License-Identifier: MIT */
/*
 * Messages without answers on ports where bytes land late: the sender is done at once, what the
 * receiver is told of is there, and until then anything goes.
 */
#include "tests/softnic_side.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MANY_LOOKS = 100000, SEEDS = 40, DATA = 4096, DATA_BYTES = 1024, QKEY = 0x1234, GRH = 40 };

/* Two ports, and a queue pair on each; a clock that the test moves, so that no thread runs. */
struct two {
    uint64_t clock;
    struct nic_side a, b;
    struct nic_address to_b;
    struct ibv_ah *ah; /* of b, for datagrams */
    uint8_t a_memory[BYTES], b_memory[BYTES];
};

static void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
    assert_int_equal(softnic_modify_qp(qp, &attr, mask | IBV_QP_STATE), 0);
}

static struct ibv_qp *make_qp(struct nic_side *s, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 2},
        .qp_type = type,
        .sq_sig_all = 1};
    struct ibv_qp *qp = softnic_create_qp(s->pd, &init);
    assert_non_null(qp);
    assert_int_equal(softnic_destroy_qp(s->qp), 0);
    return qp;
}

static void connect_uc(struct nic_side *s, const struct nic_address *to)
{
    modify(s->qp,
           (struct ibv_qp_attr){
               .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE},
           IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    modify(
        s->qp,
        (struct ibv_qp_attr){
            .qp_state = IBV_QPS_RTR,
            .path_mtu = IBV_MTU_4096,
            .dest_qp_num = to->qpn,
            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .sgid_index = 1}}},
        IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
    modify(s->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_SQ_PSN);
}

static void ready_ud(struct nic_side *s)
{
    modify(s->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY},
           IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    modify(s->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR}, 0);
    modify(s->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_SQ_PSN);
}

static struct two *two_open(enum ibv_qp_type type, const struct softnic_order *order,
                            const struct softnic_wire *wire)
{
    const struct softnic_wire flat = {0};
    char name[64];
    struct two *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->clock = 1000000;
    struct softnic_attr attr = {.wire = wire != NULL ? wire : &flat,
                                .order = order,
                                .now_ns = nic_hand_ns,
                                .clock = &t->clock};
    attr.port_name = nic_test_port(name, sizeof name, "unanswered-a");
    nic_side_open(&t->a, &attr, t->a_memory);
    attr.port_name = nic_test_port(name, sizeof name, "unanswered-b");
    nic_side_open(&t->b, &attr, t->b_memory);
    t->a.qp = make_qp(&t->a, type);
    t->b.qp = make_qp(&t->b, type);
    t->to_b = nic_side_address(&t->b);
    if (type == IBV_QPT_UC) {
        struct nic_address to_a = nic_side_address(&t->a);
        connect_uc(&t->a, &t->to_b);
        connect_uc(&t->b, &to_a);
    } else {
        ready_ud(&t->a);
        ready_ud(&t->b);
        struct ibv_ah_attr ah = {
            .is_global = 1, .port_num = 1, .grh = {.dgid = t->to_b.gid, .sgid_index = 1}};
        t->ah = softnic_create_ah(t->a.pd, &ah);
        assert_non_null(t->ah);
    }
    for (size_t i = 0; i < BYTES; i++)
        t->a_memory[i] = (uint8_t)((i * 7 + i / 256) % 255 + 1); /* never 0 */
    return t;
}

static struct two *relaxed_open(enum ibv_qp_type type, bool keep_qps, uint64_t seed)
{
    return two_open(
        type, &(struct softnic_order){.relaxed = true, .keep_qps = keep_qps, .seed = seed}, NULL);
}

static void two_close(struct two *t)
{
    if (t->ah != NULL)
        assert_int_equal(softnic_destroy_ah(t->ah), 0);
    if (t->a.qp != NULL)
        nic_side_close(&t->a);
    nic_side_close(&t->b);
    free(t);
}

static void post(struct two *t, enum ibv_wr_opcode opcode, size_t from, size_t at, size_t bytes)
{
    struct ibv_sge sge = {(uint64_t)(uintptr_t)t->a_memory + from, (uint32_t)bytes, t->a.mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = at, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
    if (t->ah != NULL) {
        wr.wr.ud.ah = t->ah;
        wr.wr.ud.remote_qpn = t->to_b.qpn;
        wr.wr.ud.remote_qkey = QKEY;
    } else {
        wr.wr.rdma.remote_addr = t->to_b.memory + at;
        wr.wr.rdma.rkey = t->to_b.rkey;
    }
    assert_int_equal(softnic_post_send(t->a.qp, &wr, &bad), 0);
}

static void post_recv(struct two *t, size_t at, size_t bytes)
{
    struct ibv_sge sge = {(uint64_t)(uintptr_t)t->b_memory + at, (uint32_t)bytes, t->b.mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = at, .sg_list = &sge, .num_sge = bytes > 0};
    assert_int_equal(softnic_post_recv(t->b.qp, &wr, &bad), 0);
}

/* One look; what it found goes to *wc. */
static bool look(struct nic_side *s, struct ibv_wc *wc)
{
    int n = softnic_poll_cq(s->cq, 1, wc);
    if (n > 0)
        assert_int_equal(wc->status, IBV_WC_SUCCESS);
    return n > 0;
}

static struct ibv_wc await_recv(struct two *t)
{
    struct ibv_wc wc, sent;
    for (unsigned i = 0; i < MANY_LOOKS; i++) {
        look(&t->a, &sent);
        if (look(&t->b, &wc))
            return wc;
    }
    fail_msg("nothing came after %d looks", MANY_LOOKS);
    return wc;
}

static size_t landed(const struct two *t, const uint8_t *from, size_t at, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += t->b_memory[at + i] == from[i];
    return n;
}

/* ---- unreliable connections ------------------------------------------------------------------ */

/* The receiver watches the last word of a write: does it once find it without the rest? */
static bool catches_last_word(bool keep_qps, uint64_t seed)
{
    struct two *t = relaxed_open(IBV_QPT_UC, keep_qps, seed);
    const uint8_t *from = t->a_memory + DATA;
    bool caught = false;
    struct ibv_wc wc;
    post(t, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES);
    for (unsigned i = 0; landed(t, from, DATA, DATA_BYTES) < DATA_BYTES; i++) {
        assert_true(i < MANY_LOOKS);
        look(&t->a, &wc);
        caught |= landed(t, from + DATA_BYTES - 8, DATA + DATA_BYTES - 8, 8) == 8 &&
                  landed(t, from, DATA, DATA_BYTES) < DATA_BYTES;
    }
    two_close(t);
    return caught;
}

static void test_pieces(void **state)
{
    unsigned caught = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        caught += catches_last_word(false, seed);
        assert_false(catches_last_word(true, seed));
    }
    assert_true(caught > SEEDS / 4);
}

/* The sender has its memory back before the bytes have landed, and a completion of a receive covers
 * what was sent before it as well. */
static void test_completions(void **state)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM};
    unsigned early = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct two *t = relaxed_open(IBV_QPT_UC, seed % 3 == 0, seed);
        struct ibv_wc wc;
        uint8_t sent[DATA_BYTES];
        memcpy(sent, t->a_memory + DATA, DATA_BYTES);
        post_recv(t, 4 * DATA, DATA_BYTES);
        for (size_t i = 1; i < 4; i++)
            post(t, IBV_WR_RDMA_WRITE, DATA, i * DATA, DATA_BYTES);
        post(t, opcodes[seed % 2], DATA, 4 * DATA, DATA_BYTES);
        for (size_t i = 1; i <= 4; i++) {
            assert_true(look(&t->a, &wc));
            assert_int_equal(wc.wr_id, i * DATA);
        }
        memset(t->a_memory, 0, BYTES);
        for (size_t i = 1; i <= 4; i++)
            early += landed(t, sent, i * DATA, DATA_BYTES) < DATA_BYTES;
        wc = await_recv(t);
        assert_int_equal(wc.byte_len, DATA_BYTES);
        for (size_t i = 1; i <= 4; i++)
            assert_int_equal(landed(t, sent, i * DATA, DATA_BYTES), DATA_BYTES);
        two_close(t);
    }
    assert_true(early > SEEDS);
}

/* As test_softnic_order has it for RC. */
static void test_on_time(void **state)
{
    const struct softnic_wire wire = {.alpha_us = 10, .gap_us = 2, .beta_gbps = 1};
    struct two *t = two_open(IBV_QPT_UC, &(struct softnic_order){.on_time = true}, &wire);
    const uint8_t *from = t->a_memory + DATA;
    uint64_t start = t->clock;
    struct ibv_wc wc;
    (void)state;
    post_recv(t, 0, 0);
    post(t, IBV_WR_RDMA_WRITE, DATA, DATA, 4000);
    post(t, IBV_WR_RDMA_WRITE_WITH_IMM, DATA, 3 * DATA, 4000);
    t->clock = start + 13999;
    look(&t->a, &wc);
    assert_int_equal(landed(t, from, DATA, 4000), 0);
    t->clock = start + 14000;
    look(&t->a, &wc);
    assert_int_equal(landed(t, from, DATA, 4000), 4000);
    assert_int_equal(landed(t, from, 3 * DATA, 4000), 0);
    assert_false(look(&t->b, &wc));
    t->clock = start + 20000;
    look(&t->a, &wc);
    assert_int_equal(landed(t, from, 3 * DATA, 4000), 4000);
    assert_true(look(&t->b, &wc));
    two_close(t);
}

/* Its memory is no longer there: a message is lost, with those behind it that wait for a receive,
 * and the receive is there for the next. */
static void test_lost(void **state)
{
    struct two *t = relaxed_open(IBV_QPT_UC, false, 5);
    struct ibv_wc wc;
    (void)state;
    post_recv(t, 0, 0);
    post_recv(t, 0, 0);
    post(t, IBV_WR_RDMA_WRITE_WITH_IMM, DATA, DATA, DATA_BYTES);
    assert_int_equal(softnic_dereg_mr(t->b.mr), 0);
    for (unsigned i = 0; i < 1000; i++) {
        look(&t->a, &wc);
        assert_false(look(&t->b, &wc));
    }
    assert_int_equal(landed(t, t->a_memory + DATA, DATA, DATA_BYTES), 0);
    t->b.mr = softnic_reg_mr(t->b.pd, t->b_memory, BYTES,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    assert_non_null(t->b.mr);
    t->to_b = nic_side_address(&t->b);
    for (size_t i = 2; i < 4; i++) {
        post(t, IBV_WR_RDMA_WRITE_WITH_IMM, DATA, i * DATA, DATA_BYTES);
        await_recv(t);
        assert_int_equal(landed(t, t->a_memory + DATA, i * DATA, DATA_BYTES), DATA_BYTES);
    }
    two_close(t);
}

/* ---- datagrams ------------------------------------------------------------------------------- */

enum { DATAGRAMS = 8, ROOM = 2048 };

/* Datagram i is the bytes at i * 100. Whether they came in the order in which they were sent. */
static bool come_in_order(bool keep_qps, uint64_t seed, unsigned *late)
{
    struct two *t = relaxed_open(IBV_QPT_UD, keep_qps, seed);
    struct ibv_wc wc;
    bool in_order = true, seen[DATAGRAMS] = {false};
    uint8_t sent[DATAGRAMS][DATA_BYTES];
    for (size_t i = 0; i < DATAGRAMS; i++) {
        memcpy(sent[i], t->a_memory + i * 100, DATA_BYTES);
        post_recv(t, i * ROOM, GRH + DATA_BYTES);
        post(t, IBV_WR_SEND, i * 100, 0, DATA_BYTES);
    }
    for (size_t i = 0; i < DATAGRAMS; i++)
        assert_true(look(&t->a, &wc));
    memset(t->a_memory, 0, BYTES);
    *late += landed(t, sent[0], GRH, DATA_BYTES) < DATA_BYTES;
    for (size_t n = 0; n < DATAGRAMS; n++) {
        size_t which = 0;
        wc = await_recv(t);
        assert_int_equal(wc.byte_len, GRH + DATA_BYTES);
        while (which < DATAGRAMS && landed(t, sent[which], wc.wr_id + GRH, DATA_BYTES) < DATA_BYTES)
            which++;
        assert_true(which < DATAGRAMS);
        assert_false(seen[which]);
        seen[which] = true;
        in_order &= which == n;
    }
    two_close(t);
    return in_order;
}

static void test_datagrams(void **state)
{
    unsigned disordered = 0, late = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        disordered += !come_in_order(false, seed, &late);
        assert_true(come_in_order(true, seed, &late));
    }
    assert_true(disordered > SEEDS / 2);
    assert_true(late > SEEDS / 4);
}

/* What was told to be sent comes, though its queue pair goes. */
static void test_sender_goes(void **state)
{
    static const enum ibv_qp_type types[] = {IBV_QPT_UC, IBV_QPT_UD};
    (void)state;
    for (size_t i = 0; i < 2 * SEEDS; i++) {
        struct two *t = relaxed_open(types[i % 2], false, i);
        bool datagram = types[i % 2] == IBV_QPT_UD;
        uint8_t sent[DATA_BYTES];
        struct ibv_wc wc;
        memcpy(sent, t->a_memory + DATA, DATA_BYTES);
        post_recv(t, 0, ROOM);
        post(t, IBV_WR_SEND, DATA, 0, DATA_BYTES);
        assert_true(look(&t->a, &wc));
        if (datagram)
            assert_int_equal(softnic_destroy_ah(t->ah), 0);
        t->ah = NULL;
        nic_side_close(&t->a);
        t->a.qp = NULL;
        assert_true(look(&t->b, &wc));
        assert_int_equal(landed(t, sent, datagram ? GRH : 0, DATA_BYTES), DATA_BYTES);
        two_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),    cmocka_unit_test(test_completions),
        cmocka_unit_test(test_on_time),   cmocka_unit_test(test_lost),
        cmocka_unit_test(test_datagrams), cmocka_unit_test(test_sender_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
