/* SPDX-License-Identifier: MIT */
/* The checking decorator: each misuse is found and said, and right use is not. */
#include "tests/softnic_side.h"
#include "transport/decorators/check.h"
#include "transport/verbs.h"
#include <errno.h>
#include <string.h>

enum { REGION = 4096, CQE = 4, SEND_WRS = 8 };

struct fixture {
    char said[4096];
    unsigned lines;
    struct ibv_context *context;
    const struct verbs *v;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr, *left;
    struct ibv_qp *qp;
    uint32_t flip; /* bits of the keys that are named */
    uint8_t memory[REGION];
};

static void hear(void *arg, const char *line)
{
    struct fixture *f = arg;
    strncat(f->said, line, sizeof f->said - strlen(f->said) - 2);
    strcat(f->said, "\n");
    f->lines++;
}

static struct ibv_qp *make_qp(struct fixture *f, uint32_t send_wrs)
{
    struct ibv_qp_init_attr init = {
        .send_cq = f->cq,
        .recv_cq = f->cq,
        .cap = {.max_send_wr = send_wrs, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2},
        .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = f->v->create_qp(f->pd, &init);
    assert_non_null(qp);
    return qp;
}

/* To itself. */
static void to_rts(struct fixture *f, struct ibv_qp *qp)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
                            .port_num = 1,
                            .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    assert_int_equal(
        f->v->modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        0);
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                             .path_mtu = IBV_MTU_1024,
                             .dest_qp_num = qp->qp_num,
                             .max_dest_rd_atomic = 4,
                             .ah_attr = {.is_global = 1, .port_num = 1, .grh.sgid_index = 1}};
    assert_int_equal(f->v->query_gid(f->context, 1, 1, &a.ah_attr.grh.dgid), 0);
    assert_int_equal(f->v->modify_qp(qp, &a,
                                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                         IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                         IBV_QP_MIN_RNR_TIMER),
                     0);
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 8, .max_rd_atomic = 4};
    assert_int_equal(f->v->modify_qp(qp, &a,
                                     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                                         IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                         IBV_QP_MAX_QP_RD_ATOMIC),
                     0);
}

static int open_checked(void **state)
{
    static struct fixture f;
    char name[64];
    struct softnic_attr attr = {.port_name = nic_test_port(name, sizeof name, "check")};
    struct check_attr check = {.inner = &verbs_softnic, .say = hear, .arg = &f};
    memset(&f, 0, sizeof f);
    f.context = softnic_open_port(&attr);
    assert_non_null(f.context);
    assert_int_equal(check_attach(f.context, &check), 0);
    f.v = check_table(f.context);
    f.pd = f.v->alloc_pd(f.context);
    f.cq = f.v->create_cq(f.context, CQE, NULL, NULL, 0);
    f.mr = f.v->reg_mr(f.pd, f.memory, REGION,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    f.qp = make_qp(&f, SEND_WRS);
    *state = &f;
    return 0;
}

static int close_checked(void **state)
{
    struct fixture *f = *state;
    unsigned before = f->lines;
    assert_int_equal(f->v->destroy_qp(f->qp), 0);
    assert_int_equal(f->v->dereg_mr(f->mr), 0);
    assert_int_equal(f->v->destroy_cq(f->cq), 0);
    assert_int_equal(f->v->dealloc_pd(f->pd), 0);
    assert_int_equal(f->v->close_device(f->context), 0);
    assert_int_equal(f->lines, before); /* nothing is left */
    return 0;
}

static int post(struct fixture *f, enum ibv_wr_opcode opcode, size_t from, size_t to,
                uint32_t bytes, unsigned flags)
{
    struct ibv_sge sge = {(uintptr_t)f->memory + from, bytes, f->mr->lkey ^ f->flip};
    struct ibv_send_wr *bad = NULL, wr = {.wr_id = from,
                                          .sg_list = &sge,
                                          .num_sge = 1,
                                          .opcode = opcode,
                                          .send_flags = flags,
                                          .wr.rdma = {(uintptr_t)f->memory + to, f->mr->rkey}};
    int err = ibv_post_send(f->qp, &wr, &bad); /* the inline call */
    assert_true(err == 0 || bad == &wr);
    return err;
}

static int receive(struct fixture *f, size_t at, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)f->memory + at, bytes, f->mr->lkey};
    struct ibv_recv_wr *bad = NULL, wr = {.wr_id = at, .sg_list = &sge, .num_sge = 1};
    return ibv_post_recv(f->qp, &wr, &bad);
}

static void poll_one(struct fixture *f)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(f->cq, 1, &wc)) == 0)
        ;
    assert_int_equal(n, 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
}

/* Exactly one finding more, with these words. */
static void expect_said(struct fixture *f, unsigned before, const char *words)
{
    if (f->lines != before + 1 || strstr(f->said, words) == NULL)
        fail_msg("%u findings more, \"%s\" not among: %s", f->lines - before, words, f->said);
}

static void test_right_use(void **state)
{
    struct fixture *f = *state;
    to_rts(f, f->qp);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(receive(f, 0, 64), 0);
        assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 128, 256, 64, 0), 0);
        assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 128, 256, 64, 0), 0); /* read twice at once */
        assert_int_equal(post(f, IBV_WR_SEND, 512, 0, 64, IBV_SEND_SIGNALED), 0);
        poll_one(f);
        poll_one(f);
        assert_int_equal(post(f, IBV_WR_RDMA_READ, 128, 256, 64, IBV_SEND_SIGNALED), 0);
        poll_one(f);
    }
    assert_int_equal(f->lines, 0);
}

static void test_state(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 0, 64, 8, IBV_SEND_SIGNALED), EINVAL);
    expect_said(f, 0, "is in RESET, sends are posted from RTS on");
    assert_int_equal(receive(f, 0, 8), EINVAL);
    expect_said(f, 1, "is in RESET, receives are posted from INIT on");
}

static void test_bounds_and_rights(void **state)
{
    struct fixture *f = *state;
    to_rts(f, f->qp);
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, REGION - 8, 0, 9, IBV_SEND_SIGNALED), EINVAL);
    expect_said(f, 0, "is not within its region of 4096 bytes");
    assert_int_equal(receive(f, REGION, 1), EINVAL);
    expect_said(f, 1, "ibv_post_recv, wr_id 0x1000");
    f->flip = 0x100000;
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 0, 64, 8, IBV_SEND_SIGNALED), EINVAL);
    f->flip = 0;
    expect_said(f, 2, "which is of no region");
    struct ibv_mr *whole = f->mr;
    f->mr = f->v->reg_mr(f->pd, f->memory, REGION, 0);
    assert_int_equal(post(f, IBV_WR_RDMA_READ, 0, 64, 8, IBV_SEND_SIGNALED), EINVAL);
    expect_said(f, 3, "registered without IBV_ACCESS_LOCAL_WRITE");
    assert_int_equal(f->v->dereg_mr(f->mr), 0);
    f->mr = whole;
}

/* What pingpongs and benchmarks do. */
static void test_shared_buffers(void **state)
{
    struct fixture *f = *state;
    to_rts(f, f->qp);
    assert_int_equal(receive(f, 0, 64), 0);
    assert_int_equal(receive(f, 0, 64), 0);
    assert_int_equal(post(f, IBV_WR_SEND, 0, 0, 64, 0), 0);
    assert_int_equal(post(f, IBV_WR_RDMA_READ, 128, 512, 64, 0), 0);
    assert_int_equal(post(f, IBV_WR_RDMA_READ, 128, 512, 64, 0), 0);
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 128, 256, 64, IBV_SEND_FENCE), 0);
    assert_int_equal(f->lines, 0);
}

static void test_reuse(void **state)
{
    struct fixture *f = *state;
    to_rts(f, f->qp);
    assert_int_equal(post(f, IBV_WR_RDMA_READ, 64, 512, 64, 0), 0);
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 0, 256, 64, 0), 0);
    assert_int_equal(f->lines, 0);
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 127, 256, 64, 0), 0); /* said, and let through */
    expect_said(
        f, 0,
        "wr_id 0x7f: its buffer, which is sent from, overlaps that of the request with wr_id 0x40");
}

static void test_reuse_of_a_source(void **state)
{
    struct fixture *f = *state;
    to_rts(f, f->qp);
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 64, 256, 64, 0), 0);
    assert_int_equal(post(f, IBV_WR_RDMA_READ, 0, 512, 65, IBV_SEND_FENCE), 0);
    expect_said(f, 0,
                "its buffer, which the device fills, overlaps that of the request with wr_id 0x40");
}

static void test_overrun_ahead(void **state)
{
    struct fixture *f = *state;
    to_rts(f, f->qp);
    for (int i = 0; i < CQE; i++)
        assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 0, 64, 8, IBV_SEND_SIGNALED), 0);
    assert_int_equal(f->lines, 0);
    post(f, IBV_WR_RDMA_WRITE, 0, 64, 8, IBV_SEND_SIGNALED);
    expect_said(f, 0,
                "5 requests that ask for a completion are under way for a completion queue of 4");
}

static void test_never_freed(void **state)
{
    struct fixture *f = *state;
    to_rts(f, f->qp);
    for (int i = 0; i + 1 < SEND_WRS; i++)
        assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 0, 64, 8, 0), 0);
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 0, 64, 8, 0), EINVAL);
    expect_said(f, 0, "none of them asks for a completion");
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 0, 64, 8, IBV_SEND_SIGNALED), 0);
    poll_one(f);
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 0, 64, 8, 0), 0);
    assert_int_equal(f->lines, 1);
}

/* Requests that share a wr_id: one completion ends all before it too. */
static void test_one_wr_id(void **state)
{
    struct fixture *f = *state;
    to_rts(f, f->qp);
    for (int round = 0; round < 3 * CQE; round++) {
        for (int i = 0; i < 3; i++)
            assert_int_equal(post(f, IBV_WR_RDMA_READ, 0, 64, 8, i == 2 ? IBV_SEND_SIGNALED : 0),
                             0);
        poll_one(f);
    }
    assert_int_equal(post(f, IBV_WR_RDMA_WRITE, 0, 64, 8, 0), 0); /* no READ is left there */
    assert_int_equal(f->lines, 0);
}

static void test_destroyed_twice(void **state)
{
    struct fixture *f = *state;
    struct ibv_qp *qp = make_qp(f, SEND_WRS);
    unsigned before = check_findings();
    assert_false(check_is_gone(qp));
    assert_int_equal(f->v->destroy_qp(qp), 0);
    assert_true(check_is_gone(qp));
    assert_int_equal(f->v->destroy_qp(qp), EINVAL);
    assert_int_equal(check_findings(), before + 1);
}

static void test_left(void **state)
{
    struct fixture *f = *state;
    unsigned before = f->lines;
    f->left = f->v->reg_mr(f->pd, f->memory, 64, 0);
    assert_non_null(f->left);
    assert_int_equal(f->v->close_device(f->context), 0);
    assert_int_equal(f->lines, before + 4); /* domain, regions, queue, queue pair */
    assert_non_null(strstr(f->said, "ibv_close_device: 2 regions were not destroyed"));
    assert_non_null(strstr(f->said, "1 queue pair was not destroyed"));
}

int main(void)
{
#define CHECKED(test) cmocka_unit_test_setup_teardown(test, open_checked, close_checked)
    const struct CMUnitTest tests[] = {
        CHECKED(test_right_use),
        CHECKED(test_state),
        CHECKED(test_bounds_and_rights),
        CHECKED(test_reuse),
        CHECKED(test_shared_buffers),
        CHECKED(test_reuse_of_a_source),
        CHECKED(test_overrun_ahead),
        CHECKED(test_never_freed),
        CHECKED(test_destroyed_twice),
        CHECKED(test_one_wr_id),
        cmocka_unit_test_setup(test_left, open_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
