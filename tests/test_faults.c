/* SPDX-License-Identifier: MIT */
/* Every kind of fault, at the verbs seam over softnic: what a program sees of it. */
#include "tests/fault_pair.h"
#include "transport/wait.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A wait has a least length, and no greatest one on a busy machine. */
static const uint64_t interval_ns = 4096ull << PAIR_TIMEOUT;

static void fill(struct fault_pair *p)
{
    for (size_t i = 0; i < PAIR_BYTES; i++)
        p->a.memory[i] = (uint8_t)(i * 7 + i / 256 + 1);
}

/* `n` writes of 64 B each; all arrive, in order. */
static void expect_all_arrive(struct fault_pair *p, int n)
{
    fill(p);
    for (int i = 0; i < n; i++)
        assert_int_equal(fault_pair_write(p, (uint64_t)i, (size_t)i * 64, 64), 0);
    for (int i = 0; i < n; i++)
        fault_expect(&p->a, (uint64_t)i, IBV_WC_SUCCESS);
    assert_memory_equal(p->a.memory, p->b.memory, (size_t)n * 64);
}

static void each_way(void (*body)(bool wr_calls))
{
    body(false);
    body(true);
}

/* ---- lost ------------------------------------------------------------------------------------ */

static void drop_recovers(bool wr_calls)
{
    struct fault_pair p;
    fault_pair_open(&p, "drop nth=3 tries=2", wr_calls);
    uint64_t start = clock_ns();
    expect_all_arrive(&p, 10);
    assert_true(clock_ns() - start >= 2 * interval_ns);
    assert_int_equal(p.lines.n, 1);
    assert_string_equal(p.lines.line[0], "drop, queue pair 0, operation 3");
    fault_pair_close(&p);
}

static void test_drop_recovers(void **state)
{
    (void)state;
    each_way(drop_recovers);
}

static void expect_error_state(struct fault_pair *p)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    assert_int_equal(p->a.verbs->query_qp(p->a.qp, &attr, IBV_QP_STATE, &init), 0);
    assert_int_equal(attr.qp_state, IBV_QPS_ERR);
}

/* The third of five fails as a device would fail it: after the two before it, with the time that
 * timeout and retries make, and what is behind it is flushed, unsignalled ones too. */
static void drop_fails(bool wr_calls)
{
    struct fault_pair p;
    fault_pair_open(&p, "drop nth=3 tries=all", wr_calls);
    uint64_t start = clock_ns();
    for (uint64_t i = 1; i <= 5; i++)
        assert_int_equal(fault_pair_write(&p, i, 0, 64), 0);
    fault_expect(&p.a, 1, IBV_WC_SUCCESS);
    fault_expect(&p.a, 2, IBV_WC_SUCCESS);
    fault_expect(&p.a, 3, IBV_WC_RETRY_EXC_ERR);
    assert_true(clock_ns() - start >= (PAIR_RETRIES + 1) * interval_ns);
    fault_expect(&p.a, 4, IBV_WC_WR_FLUSH_ERR);
    fault_expect(&p.a, 5, IBV_WC_WR_FLUSH_ERR);
    expect_error_state(&p);
    fault_pair_close(&p);
}

static void test_drop_fails(void **state)
{
    (void)state;
    each_way(drop_fails);
}

static void test_rnr(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, "rnr op=send nth=1 tries=3; rnr op=send nth=2 tries=all", false);
    fault_pair_receive(&p, 50);
    fault_pair_receive(&p, 51);
    uint64_t start = clock_ns();
    assert_int_equal(fault_pair_send(&p, 1, 100), 0);
    fault_expect(&p.a, 1, IBV_WC_SUCCESS);
    assert_true(clock_ns() - start >= 3 * 640000);
    fault_expect(&p.b, 50, IBV_WC_SUCCESS);
    assert_int_equal(fault_pair_send(&p, 2, 100), 0);
    fault_expect(&p.a, 2, IBV_WC_RNR_RETRY_EXC_ERR);
    expect_error_state(&p);
    fault_pair_close(&p);
}

/* ---- delayed --------------------------------------------------------------------------------- */

static void test_delay(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, "delay nth=2 by=5ms", false);
    fill(&p);
    uint64_t start = clock_ns();
    assert_int_equal(fault_pair_write(&p, 1, 0, 64), 0);
    assert_int_equal(fault_pair_write(&p, 2, 64, 64), 0);
    assert_int_equal(fault_pair_write(&p, 3, 128, 64), 0);
    fault_expect(&p.a, 1, IBV_WC_SUCCESS);
    fault_expect(&p.a, 2, IBV_WC_SUCCESS);
    assert_true(clock_ns() - start >= 5000000);
    fault_expect(&p.a, 3, IBV_WC_SUCCESS);
    assert_memory_equal(p.a.memory, p.b.memory, 192);
    fault_pair_close(&p);
}

/* The data is there, the completion is not yet; and whoever sleeps is woken for it. */
static void test_late(void **state)
{
    (void)state;
    struct fault_pair p;
    struct ibv_wc wc[4];
    fault_pair_open(&p, "late nth=1 by=20ms", false);
    fill(&p);
    assert_int_equal(p.a.verbs->req_notify_cq(p.a.cq, 0), 0);
    uint64_t start = clock_ns();
    assert_int_equal(fault_pair_write(&p, 1, 0, 64), 0);
    assert_int_equal(fault_pair_write(&p, 2, 64, 64), 0);
    assert_memory_equal(p.a.memory, p.b.memory, 128);
    for (int shown = 0, events = 0; shown < 2; events++) {
        struct ibv_cq *cq;
        void *context;
        assert_int_equal(p.a.verbs->get_cq_event(p.a.channel, &cq, &context), 0);
        assert_true(cq == p.a.cq && context == &p.a && events < 5);
        p.a.verbs->ack_cq_events(cq, 1);
        assert_int_equal(p.a.verbs->req_notify_cq(p.a.cq, 0), 0);
        int n = p.a.verbs->poll_cq(cq, 4, wc);
        if (n > 0)
            assert_true(clock_ns() - start >= 20000000);
        for (int i = 0; i < n; i++, shown++)
            assert_int_equal(wc[i].wr_id, shown + 1);
    }
    fault_pair_close(&p);
}

/* Whoever sleeps on a channel while a request is held back is woken too. */
static void test_delay_wakes(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, "delay by=3ms", false);
    assert_int_equal(p.a.verbs->req_notify_cq(p.a.cq, 0), 0);
    assert_int_equal(fault_pair_write(&p, 9, 0, 64), 0);
    struct ibv_cq *cq;
    void *context;
    assert_int_equal(p.a.verbs->get_cq_event(p.a.channel, &cq, &context), 0);
    p.a.verbs->ack_cq_events(cq, 1);
    fault_expect(&p.a, 9, IBV_WC_SUCCESS);
    fault_pair_close(&p);
}

static void test_slow(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, "slow gap=100us gbps=0.064", false); /* 1.1 ms for 64 KB */
    uint64_t start = clock_ns();
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(fault_pair_write(&p, i, 0, 64000), 0);
    for (uint64_t i = 0; i < 5; i++)
        fault_expect(&p.a, i, IBV_WC_SUCCESS);
    assert_true(clock_ns() - start >= 5 * 1100000);
    fault_pair_close(&p);
}

/* ---- broken ---------------------------------------------------------------------------------- */

static void test_error(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, "error nth=2 status=REM_ACCESS_ERR", false);
    assert_int_equal(fault_pair_write(&p, 1, 0, 64), 0);
    assert_int_equal(fault_pair_write(&p, 2, 0, 64), 0);
    assert_int_equal(fault_pair_write(&p, 3, 0, 64), 0);
    fault_expect(&p.a, 1, IBV_WC_SUCCESS);
    fault_expect(&p.a, 2, IBV_WC_REM_ACCESS_ERR);
    fault_expect(&p.a, 3, IBV_WC_WR_FLUSH_ERR);
    fault_pair_close(&p);
}

static void expect_event(struct fault_pair *p, enum ibv_event_type type)
{
    struct ibv_async_event event;
    assert_int_equal(p->a.verbs->get_async_event(p->a.context, &event), 0);
    assert_string_equal(ibv_event_type_str(event.event_type), ibv_event_type_str(type));
    if (type == IBV_EVENT_QP_FATAL)
        assert_ptr_equal(event.element.qp, p->a.qp);
    p->a.verbs->ack_async_event(&event);
}

static void test_fatal(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, "fatal nth=2", false);
    assert_int_equal(fault_pair_write(&p, 1, 0, 64), 0);
    fault_expect(&p.a, 1, IBV_WC_SUCCESS);
    assert_int_equal(fault_pair_write(&p, 2, 0, 64), 0);
    expect_event(&p, IBV_EVENT_QP_FATAL);
    fault_expect(&p.a, 2, IBV_WC_WR_FLUSH_ERR);
    expect_error_state(&p);
    /* Nothing more: whoever does not block is told so. */
    struct ibv_async_event event;
    assert_int_equal(fcntl(p.a.context->async_fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(p.a.verbs->get_async_event(p.a.context, &event), -1);
    assert_int_equal(errno, EAGAIN);
    fault_pair_close(&p);
}

static enum ibv_port_state port_state(struct fault_pair *p)
{
    struct ibv_port_attr attr;
    assert_int_equal(p->a.verbs->query_port(p->a.context, 1, &attr), 0);
    return attr.state;
}

/* Down within what the retries cover (4.2 ms): all goes on afterwards. */
static void test_down_and_up(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, "down nth=3 for=3ms", false);
    assert_int_equal(port_state(&p), IBV_PORT_ACTIVE);
    uint64_t start = clock_ns();
    expect_all_arrive(&p, 6);
    assert_true(clock_ns() - start >= 3000000);
    expect_event(&p, IBV_EVENT_PORT_ERR);
    expect_event(&p, IBV_EVENT_PORT_ACTIVE);
    assert_int_equal(port_state(&p), IBV_PORT_ACTIVE);
    fault_pair_close(&p);
}

static void test_down_for_good(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, "down", false);
    expect_event(&p, IBV_EVENT_PORT_ERR);
    assert_int_equal(port_state(&p), IBV_PORT_DOWN);
    uint64_t start = clock_ns();
    assert_int_equal(fault_pair_write(&p, 1, 0, 64), 0);
    fault_expect(&p.a, 1, IBV_WC_RETRY_EXC_ERR);
    assert_true(clock_ns() - start >= (PAIR_RETRIES + 1) * interval_ns);
    fault_pair_close(&p);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void test_calls(void **state)
{
    (void)state;
    struct fault_lines lines = {0};
    struct fault_side s = {0};
    uint8_t memory[64];
    fault_side_open(&s, "test-faults-calls",
                    "fail call=alloc_pd nth=1 errno=EMFILE; fail call=reg_mr nth=2 errno=ENOSPC;"
                    "fail call=create_cq nth=1 errno=EINVAL; fail call=create_qp nth=1;"
                    "fail call=create_comp_channel nth=1 errno=ENFILE; fail call=modify_qp nth=1 "
                    "errno=EIO",
                    &lines);
    const struct verbs *v = s.verbs;
    assert_true(!v->alloc_pd(s.context) && errno == EMFILE);
    assert_non_null(s.pd = v->alloc_pd(s.context));
    assert_non_null(s.mr = v->reg_mr(s.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
    assert_true(!v->reg_mr(s.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE) && errno == ENOSPC);
    assert_true(!v->create_cq(s.context, 4, NULL, NULL, 0) && errno == EINVAL);
    assert_non_null(s.cq = v->create_cq(s.context, 4, NULL, NULL, 0));
    assert_true(!v->create_comp_channel(s.context) && errno == ENFILE);
    struct ibv_qp_init_attr attr = {.send_cq = s.cq, .recv_cq = s.cq, .qp_type = IBV_QPT_RC};
    assert_true(!v->create_qp(s.pd, &attr) && errno == ENOMEM);
    assert_non_null(s.qp = v->create_qp(s.pd, &attr));
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_ERR};
    assert_int_equal(v->modify_qp(s.qp, &to, IBV_QP_STATE), EIO);
    assert_int_equal(v->modify_qp(s.qp, &to, IBV_QP_STATE), 0);
    assert_int_equal(lines.n, 6);
    assert_string_equal(lines.line[1], "reg_mr number 2 fails with ENOSPC");
    assert_int_equal(v->destroy_qp(s.qp), 0);
    assert_int_equal(v->destroy_cq(s.cq), 0);
    assert_int_equal(v->dereg_mr(s.mr), 0);
    assert_int_equal(v->dealloc_pd(s.pd), 0);
    assert_int_equal(v->close_device(s.context), 0);
}

static void post_fails(bool wr_calls)
{
    struct fault_pair p;
    fault_pair_open(&p, "fail call=post_send nth=2 errno=ENOMEM; fail call=post_recv errno=EAGAIN",
                    wr_calls);
    fill(&p);
    assert_int_equal(fault_pair_write(&p, 1, 0, 64), 0);
    assert_int_equal(fault_pair_write(&p, 2, 64, 64), ENOMEM);
    assert_int_equal(fault_pair_write(&p, 3, 128, 64), 0);
    fault_expect(&p.a, 1, IBV_WC_SUCCESS);
    fault_expect(&p.a, 3, IBV_WC_SUCCESS);
    assert_int_equal(p.b.memory[64], 0);
    struct ibv_recv_wr wr = {.wr_id = 4}, *bad = NULL;
    assert_int_equal(p.a.verbs->post_recv(p.a.qp, &wr, &bad), EAGAIN);
    assert_ptr_equal(bad, &wr);
    fault_pair_close(&p);
}

static void test_post_fails(void **state)
{
    (void)state;
    each_way(post_fails);
}

/* ---- selectors and replay -------------------------------------------------------------------- */

static void test_selectors(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p,
                    "drop rank=1 tries=all; drop qp=1 tries=all; drop port=mlx5_* tries=all;"
                    "drop op=read+atomic+send tries=all; drop after=1000s tries=all",
                    false);
    expect_all_arrive(&p, 8);
    assert_int_equal(p.lines.n, 0);
    fault_pair_close(&p);
}

static void run_with(struct fault_lines *lines, const char *plan)
{
    struct fault_pair p;
    fault_pair_open(&p, plan, false);
    expect_all_arrive(&p, 200);
    *lines = p.lines;
    fault_pair_close(&p);
}

static void test_replay(void **state)
{
    (void)state;
    static struct fault_lines first, again, other;
    const char *plan = "seed=31; delay p=0.3 by=10us; late p=0.1 by=10us";
    run_with(&first, plan);
    run_with(&again, plan);
    run_with(&other, "seed=32; delay p=0.3 by=10us; late p=0.1 by=10us");
    assert_true(first.n > 40);
    assert_int_equal(first.n, again.n);
    assert_memory_equal(first.line, again.line, sizeof first.line);
    assert_memory_not_equal(first.line, other.line, sizeof first.line);
}

/* What is held back when its queue pair or its context goes leaves nothing behind. */
static void test_ends(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, "delay by=1000s; late by=1000s op=recv", false);
    for (uint64_t i = 0; i < 256; i++)
        assert_int_equal(fault_pair_write(&p, i, 0, 64), 0);
    assert_int_equal(fault_pair_write(&p, 256, 0, 64), ENOMEM);
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    assert_int_equal(p.a.verbs->modify_qp(p.a.qp, &error, IBV_QP_STATE), 0);
    for (uint64_t i = 0; i < 256; i++)
        fault_expect(&p.a, i, IBV_WC_WR_FLUSH_ERR);
    fault_pair_close(&p);
    fault_pair_open(&p, "delay by=1000s", false);
    assert_int_equal(fault_pair_write(&p, 1, 0, 64), 0);
    fault_pair_close(&p);
    fault_pair_open(&p, "error status=GENERAL_ERR", false);
    assert_int_equal(fault_pair_write(&p, 1, 0, 64), 0);
    fault_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drop_recovers), cmocka_unit_test(test_drop_fails),
        cmocka_unit_test(test_rnr),           cmocka_unit_test(test_delay),
        cmocka_unit_test(test_late),          cmocka_unit_test(test_delay_wakes),
        cmocka_unit_test(test_slow),          cmocka_unit_test(test_error),
        cmocka_unit_test(test_fatal),         cmocka_unit_test(test_down_and_up),
        cmocka_unit_test(test_down_for_good), cmocka_unit_test(test_calls),
        cmocka_unit_test(test_post_fails),    cmocka_unit_test(test_selectors),
        cmocka_unit_test(test_replay),        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
