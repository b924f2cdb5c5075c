/* SPDX-License-Identifier: MIT */
#include "tests/fault_pair.h"
#include "transport/decorators/faults.h"
#include "transport/softnic/softnic.h"
#include "transport/wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void hear(void *arg, const char *line)
{
    struct fault_lines *lines = arg;
    const char *what = strstr(line, ": "), *number = strstr(line, " (0x");
    if (lines->n == PAIR_LINES || !what)
        return;
    int head = number ? (int)(number - what - 2) : (int)strlen(what + 2);
    const char *rest = number ? strchr(number, ')') : NULL;
    snprintf(lines->line[lines->n++], sizeof lines->line[0], "%.*s%s", head, what + 2,
             rest ? rest + 1 : "");
}

void fault_side_open(struct fault_side *s, const char *port, const char *text,
                     struct fault_lines *lines)
{
    struct softnic_wire unshaped = {0};
    s->verbs = &verbs_softnic;
    s->context = softnic_open_port(&(struct softnic_attr){.port_name = port, .wire = &unshaped});
    assert_non_null(s->context);
    if (!text)
        return;
    struct fault_plan *plan;
    char error[256] = "";
    if (fault_plan_parse(text, 1, &plan, error, sizeof error) != 0)
        fail_msg("%s", error);
    struct faults_attr attr = {
        .inner = &verbs_softnic, .plan = plan, .rank = 0, .say = hear, .arg = lines};
    assert_int_equal(faults_attach(s->context, &attr), 0);
    assert_true(faults_attached(s->context));
    fault_plan_free(plan);
    s->verbs = &verbs_faults;
}

static void side_make(struct fault_side *s, bool wr_calls)
{
    const struct verbs *v = s->verbs;
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                       IBV_ACCESS_REMOTE_ATOMIC;
    s->pd = v->alloc_pd(s->context);
    assert_non_null(s->pd);
    s->channel = v->create_comp_channel(s->context);
    assert_non_null(s->channel);
    s->cq = v->create_cq(s->context, 1024, s, s->channel, 0);
    assert_non_null(s->cq);
    s->memory = calloc(1, PAIR_BYTES);
    assert_non_null(s->memory);
    s->mr = v->reg_mr(s->pd, s->memory, PAIR_BYTES, access);
    assert_non_null(s->mr);
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .cap = {.max_send_wr = 256,
                .max_recv_wr = 64,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = 64},
        .qp_type = IBV_QPT_RC,
        .pd = s->pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | (wr_calls ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND};
    s->qp = v->create_qp_ex(s->context, &attr);
    assert_non_null(s->qp);
}

static void side_connect(struct fault_side *s, const struct fault_side *to)
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};
    assert_int_equal(
        s->verbs->modify_qp(s->qp, &init,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        0);
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = to->qp->qp_num,
                              .max_dest_rd_atomic = 16,
                              .min_rnr_timer = 12, /* 640 us */
                              .ah_attr = {.is_global = 1, .port_num = 1, .grh.sgid_index = 1}};
    assert_int_equal(to->verbs->query_gid(to->context, 1, 1, &rtr.ah_attr.grh.dgid), 0);
    assert_int_equal(s->verbs->modify_qp(s->qp, &rtr,
                                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                             IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                     0);
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
                              .timeout = PAIR_TIMEOUT, /* 1.05 ms */
                              .retry_cnt = PAIR_RETRIES,
                              .rnr_retry = PAIR_RETRIES,
                              .max_rd_atomic = 16};
    assert_int_equal(s->verbs->modify_qp(s->qp, &rts,
                                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                             IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                             IBV_QP_MAX_QP_RD_ATOMIC),
                     0);
}

void fault_pair_open(struct fault_pair *p, const char *plan, bool wr_calls)
{
    char port[64];
    memset(p, 0, sizeof *p);
    p->wr_calls = wr_calls;
    snprintf(port, sizeof port, "test-faults-%d-a", (int)getpid());
    fault_side_open(&p->a, port, plan, &p->lines);
    port[strlen(port) - 1] = 'b';
    fault_side_open(&p->b, port, NULL, NULL);
    side_make(&p->a, wr_calls);
    side_make(&p->b, false);
    side_connect(&p->a, &p->b);
    side_connect(&p->b, &p->a);
}

static void side_close(struct fault_side *s)
{
    assert_int_equal(s->verbs->destroy_qp(s->qp), 0);
    assert_int_equal(s->verbs->dereg_mr(s->mr), 0);
    assert_int_equal(s->verbs->destroy_cq(s->cq), 0);
    assert_int_equal(s->verbs->destroy_comp_channel(s->channel), 0);
    assert_int_equal(s->verbs->dealloc_pd(s->pd), 0);
    assert_int_equal(s->verbs->close_device(s->context), 0);
    free(s->memory);
}

void fault_pair_close(struct fault_pair *p)
{
    side_close(&p->a);
    side_close(&p->b);
}

static int post(struct fault_pair *p, uint64_t id, enum ibv_wr_opcode opcode, size_t at,
                uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)p->a.memory + at, bytes, p->a.mr->lkey};
    uint64_t to = (uintptr_t)p->b.memory + at;
    if (p->wr_calls) {
        struct ibv_qp_ex *ex = p->a.verbs->qp_to_qp_ex(p->a.qp);
        ibv_wr_start(ex);
        ex->wr_id = id;
        ex->wr_flags = IBV_SEND_SIGNALED;
        if (opcode == IBV_WR_SEND)
            ibv_wr_send(ex);
        else
            ibv_wr_rdma_write(ex, p->b.mr->rkey, to);
        ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
        return ibv_wr_complete(ex);
    }
    struct ibv_send_wr wr = {.wr_id = id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {to, p->b.mr->rkey}};
    struct ibv_send_wr *bad;
    return p->a.verbs->post_send(p->a.qp, &wr, &bad);
}

int fault_pair_write(struct fault_pair *p, uint64_t id, size_t at, uint32_t bytes)
{
    return post(p, id, IBV_WR_RDMA_WRITE, at, bytes);
}

int fault_pair_send(struct fault_pair *p, uint64_t id, uint32_t bytes)
{
    return post(p, id, IBV_WR_SEND, 0, bytes);
}

void fault_pair_receive(struct fault_pair *p, uint64_t id)
{
    struct ibv_sge sge = {(uintptr_t)p->b.memory, PAIR_BYTES, p->b.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    assert_int_equal(p->b.verbs->post_recv(p->b.qp, &wr, &bad), 0);
}

struct ibv_wc fault_side_poll(struct fault_side *s)
{
    struct ibv_wc wc = {0};
    uint64_t until = clock_ns() + 30000000000ull;
    int n = 0;
    while (n == 0 && clock_ns() < until) {
        n = s->verbs->poll_cq(s->cq, 1, &wc);
        if (n == 0)
            usleep(20);
    }
    assert_int_equal(n, 1);
    return wc;
}

void fault_expect(struct fault_side *s, uint64_t id, enum ibv_wc_status status)
{
    struct ibv_wc wc = fault_side_poll(s);
    assert_int_equal(wc.wr_id, id);
    assert_string_equal(ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
    assert_int_equal(wc.qp_num, s->qp->qp_num);
}
