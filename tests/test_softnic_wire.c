/* SPDX-License-Identifier: MIT */
/* softnic's shaped wire and its timers, on a clock that the test moves. */
#include "tests/softnic_side.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The formula at the head of softnic.h, on a clock that only the test moves. */
static void test_wire(void **state)
{
    static uint8_t a_memory[BYTES], b_memory[BYTES];
    char name_a[64], name_b[64];
    uint64_t clock = 1000000;
    struct softnic_wire wire = {.alpha_us = 10, .gap_us = 2, .beta_gbps = 1};
    struct softnic_attr attr = {.wire = &wire, .now_ns = nic_hand_ns, .clock = &clock};
    struct nic_side a, b;
    struct ibv_wc wc;
    (void)state;
    attr.port_name = nic_test_port(name_a, sizeof name_a, "wire-a");
    nic_side_open(&a, &attr, a_memory);
    attr.port_name = nic_test_port(name_b, sizeof name_b, "wire-b");
    nic_side_open(&b, &attr, b_memory);
    struct nic_address to_a = nic_side_address(&a), to_b = nic_side_address(&b);
    nic_side_connect(&a, &to_b);
    nic_side_connect(&b, &to_a);
    /* Alone: alpha + S/beta. */
    assert_int_equal(nic_side_write(&a, &to_b, 1, 1000), 0);
    clock += 10999;
    assert_int_equal(softnic_poll_cq(a.cq, 1, &wc), 0);
    clock += 1;
    assert_int_equal(softnic_poll_cq(a.cq, 1, &wc), 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    /* A stream: gap + S/beta apart, entering when there is room before alpha. */
    clock += 1000000;
    uint64_t start = clock;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(nic_side_write(&a, &to_b, i, 4000), 0);
    for (unsigned i = 0; i < 10; i++) {
        uint64_t due = start + i * 6000 + 10000 + 4000;
        while (clock < due) {
            assert_int_equal(softnic_poll_cq(a.cq, 1, &wc), 0);
            clock += 500;
        }
        clock = due;
        assert_int_equal(softnic_poll_cq(a.cq, 1, &wc), 1);
        assert_int_equal(wc.wr_id, i);
    }
    nic_side_close(&a);
    nic_side_close(&b);
}

/* A pair on ports of one shape, and the clock that the test moves. */
struct shaped {
    uint64_t clock;
    struct softnic_wire wire;
    struct nic_side a, b;
    struct nic_address to_a, to_b;
    uint8_t a_memory[BYTES], b_memory[BYTES];
};

static struct shaped *shaped_open(const char *what, bool one_port)
{
    char name[64];
    struct shaped *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->clock = 5000000;
    s->wire = (struct softnic_wire){.alpha_us = 10, .gap_us = 2, .beta_gbps = 1};
    struct softnic_attr attr = {.wire = &s->wire, .now_ns = nic_hand_ns, .clock = &s->clock};
    attr.port_name = nic_test_port(name, sizeof name, what);
    nic_side_open(&s->a, &attr, s->a_memory);
    if (!one_port)
        strcat(name, "-b");
    nic_side_open(&s->b, &attr, s->b_memory);
    s->to_a = nic_side_address(&s->a);
    s->to_b = nic_side_address(&s->b);
    nic_side_connect(&s->a, &s->to_b);
    nic_side_connect(&s->b, &s->to_a);
    return s;
}

static void shaped_close(struct shaped *s)
{
    nic_side_close(&s->a);
    nic_side_close(&s->b);
    free(s);
}

/* Nothing at due - 1, one at due. */
static struct ibv_wc due_at(struct shaped *s, struct nic_side *side, uint64_t due)
{
    struct ibv_wc wc;
    assert_true(s->clock < due);
    s->clock = due - 1;
    assert_int_equal(softnic_poll_cq(side->cq, 1, &wc), 0);
    s->clock = due;
    assert_int_equal(softnic_poll_cq(side->cq, 1, &wc), 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    return wc;
}

/* A READ goes there and back, and its bytes come in at the reader's own port. */
static void test_wire_read(void **state)
{
    struct shaped *s = shaped_open("read", false);
    (void)state;
    memset(s->b_memory, 0x33, BYTES);
    struct ibv_sge sge = {(uint64_t)(uintptr_t)s->a_memory, 5000, s->a.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 3,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {s->to_b.memory, s->to_b.rkey}};
    struct ibv_send_wr *bad;
    uint64_t start = s->clock;
    assert_int_equal(softnic_post_send(s->a.qp, &wr, &bad), 0);
    assert_int_equal(nic_side_write(&s->a, &s->to_b, 4, 1000), 0);
    assert_int_equal(due_at(s, &s->a, start + 25000).wr_id, 3);
    /* The write, after the gap alone, was done at 2 + 10 + 1, but follows in order. */
    struct ibv_wc wc;
    assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 1);
    assert_int_equal(wc.wr_id, 4);
    assert_memory_equal(s->a_memory, s->b_memory, 1000);
    shaped_close(s);
}

/* Four senders into one receiver: their bytes go one after the other through its port, whose beta
 * they share. Each sends 1000 B at the same moment: arrive is start + alpha for all, and what is
 * done is alpha + 1, 2, 3 and 4 times S/beta later; then a stream of each, 2000 B long. */
static void test_incast(void **state)
{
    enum { SENDERS = 4, EACH = 5, S = 2000 };
    static uint8_t memory[SENDERS][BYTES], to_memory[BYTES];
    struct nic_side from[SENDERS], into[SENDERS];
    uint64_t clock = 1000000;
    const struct softnic_wire wire = {.alpha_us = 10, .gap_us = 1, .beta_gbps = 1};
    struct softnic_attr attr = {.wire = &wire, .now_ns = nic_hand_ns, .clock = &clock};
    struct ibv_wc wc;
    struct nic_address to[SENDERS];
    char name[64];
    (void)state;
    attr.port_name = nic_test_port(name, sizeof name, "incast");
    for (unsigned i = 0; i < SENDERS; i++)
        nic_side_open(&into[i], &attr, to_memory); /* all on one port */
    for (unsigned i = 0; i < SENDERS; i++) {
        char own[80];
        snprintf(own, sizeof own, "%.50s-%u", name, i);
        attr.port_name = own;
        nic_side_open(&from[i], &attr, memory[i]);
        struct nic_address back = nic_side_address(&from[i]);
        to[i] = nic_side_address(&into[i]);
        nic_side_connect(&from[i], &to[i]);
        nic_side_connect(&into[i], &back);
    }
    uint64_t start = clock;
    for (unsigned i = 0; i < SENDERS; i++)
        assert_int_equal(nic_side_write(&from[i], &to[i], i, 1000), 0);
    for (unsigned i = 0; i < SENDERS; i++) {
        clock = start + 10000 + (i + 1) * 1000 - 1;
        assert_int_equal(softnic_poll_cq(from[i].cq, 1, &wc), 0);
        clock++;
        assert_int_equal(softnic_poll_cq(from[i].cq, 1, &wc), 1);
    }
    /* A sender alone is spaced gap + S/beta = 3 us; together they wait for the receiver's port,
     * which is never idle: the n-th to come is done n * S/beta after the first byte. */
    start = clock += 1000000;
    for (unsigned round = 0; round < EACH; round++) {
        for (unsigned i = 0; i < SENDERS; i++)
            assert_int_equal(nic_side_write(&from[i], &to[i], round, S), 0);
    }
    unsigned done = 0, came[SENDERS] = {0};
    for (; done < SENDERS * EACH; clock += 500) {
        assert_true(clock < start + 10000 + (SENDERS * EACH + 1) * S);
        for (unsigned i = 0; i < SENDERS; i++) {
            while (softnic_poll_cq(from[i].cq, 1, &wc) == 1) {
                assert_int_equal(wc.wr_id, came[i]++);
                done++;
            }
        }
        /* Nothing more than went through by now, and nothing less. */
        uint64_t through = clock < start + 10000 ? 0 : (clock - start - 10000) / S;
        assert_int_equal(done, through < SENDERS * EACH ? through : SENDERS * EACH);
    }
    for (unsigned i = 0; i < SENDERS; i++) {
        assert_int_equal(came[i], EACH);
        nic_side_close(&from[i]);
        nic_side_close(&into[i]);
    }
}

/* Two that write to each other through one port share its sending and its receiving side. */
static void test_wire_shared_port(void **state)
{
    struct shaped *s = shaped_open("shared", true);
    (void)state;
    uint64_t start = s->clock;
    assert_int_equal(nic_side_write(&s->a, &s->to_b, 1, 3000), 0);
    assert_int_equal(nic_side_write(&s->b, &s->to_a, 2, 3000), 0);
    assert_int_equal(due_at(s, &s->a, start + 13000).wr_id, 1);
    /* It started when the first had gone, 2 + 3 later. */
    assert_int_equal(due_at(s, &s->b, start + 18000).wr_id, 2);
    shaped_close(s);
}

/* A receiver sees the arrival when it is due, not before. */
static void test_wire_arrival(void **state)
{
    struct shaped *s = shaped_open("arrival", false);
    struct ibv_sge sge = {(uint64_t)(uintptr_t)s->a_memory, 100, s->a.mr->lkey};
    struct ibv_recv_wr recv = {.wr_id = 9}, *bad_recv;
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                             .imm_data = 77,
                             .wr.rdma = {s->to_b.memory, s->to_b.rkey}};
    struct ibv_send_wr *bad;
    (void)state;
    assert_int_equal(softnic_post_recv(s->b.qp, &recv, &bad_recv), 0);
    uint64_t start = s->clock;
    assert_int_equal(softnic_post_send(s->a.qp, &wr, &bad), 0);
    struct ibv_wc wc = due_at(s, &s->b, start + 10100);
    assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_int_equal(wc.wr_id, 9);
    assert_int_equal(wc.imm_data, 77);
    assert_int_equal(wc.byte_len, 100);
    shaped_close(s);
}

/* A lone message does not wait behind a deep queue of another queue pair: they take turns. */
static void test_wire_turns(void **state)
{
    struct shaped *s = shaped_open("turns", false);
    struct ibv_qp *deep = s->a.qp, *far = s->b.qp;
    struct ibv_qp_init_attr init = {.send_cq = s->a.cq,
                                    .recv_cq = s->a.cq,
                                    .cap = {.max_send_wr = 4, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    (void)state;
    uint64_t start = s->clock;
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(nic_side_write(&s->a, &s->to_b, i, 4000), 0);
    s->a.qp = softnic_create_qp(s->a.pd, &init);
    init.send_cq = init.recv_cq = s->b.cq;
    s->b.qp = softnic_create_qp(s->b.pd, &init);
    assert_non_null(s->a.qp);
    assert_non_null(s->b.qp);
    struct nic_address lone_b = nic_side_address(&s->b), lone_a = nic_side_address(&s->a);
    nic_side_connect(&s->a, &lone_b);
    nic_side_connect(&s->b, &lone_a);
    assert_int_equal(nic_side_write(&s->a, &lone_b, 1000, 4000), 0);
    /* At start 0 and 6 us two of the deep queue were let in (12 > alpha); then turns begin. */
    unsigned place = 0;
    for (bool seen = false; !seen; place++) {
        struct ibv_wc wc;
        while (softnic_poll_cq(s->a.cq, 1, &wc) == 0)
            s->clock += 100;
        seen = wc.wr_id == 1000;
        assert_true(place < 5);
    }
    assert_true(s->clock < start + 5 * 6000 + 14000);
    assert_int_equal(softnic_destroy_qp(s->a.qp), 0);
    assert_int_equal(softnic_destroy_qp(s->b.qp), 0);
    s->a.qp = deep;
    s->b.qp = far;
    shaped_close(s);
}

/* Who sleeps between looks is told until when: a queue that waits for the wire moves on in the
 * middle of alpha before it is idle; else the next completion counts, on either side. */
static void test_next_poll(void **state)
{
    struct shaped *s = shaped_open("next", false);
    struct ibv_wc wc;
    uint64_t at, start = s->clock;
    (void)state;
    assert_int_equal(softnic_next_poll(s->a.cq, &at), 0);
    assert_int_equal(at, UINT64_MAX);
    /* 2 + 4 us each: at start + 12 the third may begin, and so enter from start + 2 on. */
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(nic_side_write(&s->a, &s->to_b, i, 4000), 0);
    assert_int_equal(softnic_next_poll(s->a.cq, &at), 0);
    assert_int_equal(at, start + 2000 + 5000);
    s->clock = at;
    assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(softnic_next_poll(s->a.cq, &at), 0);
        assert_int_equal(at, start + i * 6000 + 14000);
        assert_int_equal(due_at(s, &s->a, at).wr_id, i);
    }
    assert_int_equal(softnic_next_poll(s->a.cq, &at), 0);
    assert_int_equal(at, UINT64_MAX);
    const struct softnic_wire none = {0};
    assert_int_equal(softnic_set_wire(s->a.context, &none), 0);
    assert_int_equal(softnic_next_poll(s->a.cq, &at), EOPNOTSUPP);
    shaped_close(s);
}

enum { ABSENT_INTERVAL_NS = 4096 << 8, ABSENT_RETRIES = 7 };

/* A peer that is not there ends in RETRY_EXC_ERR at 4.096 us * 2^timeout * (retries + 1). */
static void test_absent_peer(void **state)
{
    struct shaped *s = shaped_open("absent", false);
    struct ibv_wc wc;
    (void)state;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    assert_int_equal(softnic_modify_qp(s->b.qp, &reset, IBV_QP_STATE), 0);
    uint64_t start = s->clock, limit = ABSENT_INTERVAL_NS * (ABSENT_RETRIES + 1);
    assert_int_equal(nic_side_write(&s->a, &s->to_b, 5, 8), 0);
    for (uint64_t i = 1; i <= ABSENT_RETRIES; i++) {
        s->clock = start + i * ABSENT_INTERVAL_NS;
        assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 0);
    }
    s->clock = start + limit - 1;
    assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 0);
    s->clock = start + limit;
    assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 1);
    assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(wc.wr_id, 5);
    shaped_close(s);
}

/* Who got no processor for longer than that has not tried often enough to give up. */
static void test_seldom_polled(void **state)
{
    struct shaped *s = shaped_open("seldom", false);
    struct ibv_wc wc;
    (void)state;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    assert_int_equal(softnic_modify_qp(s->b.qp, &reset, IBV_QP_STATE), 0);
    assert_int_equal(nic_side_write(&s->a, &s->to_b, 5, 8), 0);
    for (int i = 0; i < ABSENT_RETRIES - 1; i++) {
        s->clock += 1000000000;
        assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 0);
    }
    s->clock += 1000000000;
    assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 1);
    assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
    shaped_close(s);
}

/* A work request waits for a peer whose port is not even open yet. */
static void test_late_peer(void **state)
{
    static uint8_t a_memory[BYTES], b_memory[BYTES];
    char name_a[64], name_b[64];
    uint64_t clock = 1000000;
    struct softnic_attr attr_a = {.now_ns = nic_hand_ns, .clock = &clock}, attr_b = attr_a;
    struct nic_side a, b;
    struct ibv_wc wc;
    (void)state;
    attr_a.port_name = nic_test_port(name_a, sizeof name_a, "early");
    attr_b.port_name = nic_test_port(name_b, sizeof name_b, "late");
    nic_side_open(&a, &attr_a, a_memory);
    nic_side_open(&b, &attr_b, b_memory);
    struct nic_address to_a = nic_side_address(&a), to_b = nic_side_address(&b);
    nic_side_close(&b);
    nic_side_connect(&a, &to_b);
    assert_int_equal(nic_side_write(&a, &to_b, 6, 8), 0);
    for (unsigned i = 0; i < 2000; i++) {
        assert_int_equal(softnic_poll_cq(a.cq, 1, &wc), 0);
        clock += 1000;
    }
    /* A port that is made anew gives the same numbers. */
    nic_side_open(&b, &attr_b, b_memory);
    assert_int_equal(b.qp->qp_num, to_b.qpn);
    assert_int_equal(b.mr->rkey, to_b.rkey);
    nic_side_connect(&b, &to_a);
    /* Looks for the peer are 1 ms apart. */
    unsigned polls = 0;
    while (softnic_poll_cq(a.cq, 1, &wc) == 0) {
        assert_true(++polls <= 1000);
        clock += 1000;
    }
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    nic_side_close(&a);
    nic_side_close(&b);
}

static void test_wire_of_others(void **state)
{
    static uint8_t memory[BYTES];
    char name[64], error[256] = "";
    struct softnic_wire wire = {.alpha_us = 3}, other = {.alpha_us = 4}, got;
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "busy"),
                                .wire = &wire,
                                .error = error,
                                .error_size = sizeof error};
    struct nic_side s;
    (void)state;
    nic_side_open(&s, &attr, memory);
    attr.wire = &other;
    errno = 0;
    assert_null(softnic_open_port(&attr));
    assert_int_equal(errno, EBUSY);
    assert_true(strlen(error) > 0);
    assert_int_equal(softnic_set_wire(s.context, &other), 0);
    assert_int_equal(softnic_get_wire(s.context, &got), 0);
    assert_true(got.alpha_us == 4 && got.gap_us == 0 && got.beta_gbps == 0);
    other.beta_gbps = -1;
    assert_int_equal(softnic_set_wire(s.context, &other), EINVAL);
    nic_side_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_wire_read),
        cmocka_unit_test(test_wire_shared_port),
        cmocka_unit_test(test_incast),
        cmocka_unit_test(test_wire_arrival),
        cmocka_unit_test(test_wire_turns),
        cmocka_unit_test(test_next_poll),
        cmocka_unit_test(test_wire_of_others),
        cmocka_unit_test(test_absent_peer),
        cmocka_unit_test(test_seldom_polled),
        cmocka_unit_test(test_late_peer),
    };
    return cmocka_run_group_tests_name("softnic wire", tests, NULL, NULL);
}
