/* SPDX-License-Identifier: MIT */
#include "tests/softnic_side.h"
#include <stdio.h>
#include <unistd.h>

uint64_t nic_hand_ns(void *clock)
{
    return *(uint64_t *)clock;
}

const char *nic_test_port(char *name, size_t size, const char *what)
{
    snprintf(name, size, "test-%s-%d", what, (int)getpid());
    return name;
}

void nic_side_open(struct nic_side *s, const struct softnic_attr *attr, uint8_t *memory)
{
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                       IBV_ACCESS_REMOTE_ATOMIC;
    s->context = softnic_open_port(attr);
    assert_non_null(s->context);
    s->pd = softnic_alloc_pd(s->context);
    assert_non_null(s->pd);
    s->cq = softnic_create_cq(s->context, 256, NULL, NULL, 0);
    assert_non_null(s->cq);
    s->memory = memory;
    s->mr = softnic_reg_mr(s->pd, memory, BYTES, access);
    assert_non_null(s->mr);
    s->qp = nic_side_qp(s);
}

struct ibv_qp *nic_side_qp(const struct nic_side *s)
{
    struct ibv_qp_init_attr init = {.send_cq = s->cq,
                                    .recv_cq = s->cq,
                                    .cap = {.max_send_wr = 64,
                                            .max_recv_wr = 64,
                                            .max_send_sge = 2,
                                            .max_recv_sge = 2,
                                            .max_inline_data = 64},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = softnic_create_qp(s->pd, &init);
    assert_non_null(qp);
    return qp;
}

void nic_side_close(struct nic_side *s)
{
    assert_int_equal(softnic_destroy_qp(s->qp), 0);
    assert_int_equal(softnic_dereg_mr(s->mr), 0);
    assert_int_equal(softnic_destroy_cq(s->cq), 0);
    assert_int_equal(softnic_dealloc_pd(s->pd), 0);
    assert_int_equal(softnic_close_device(s->context), 0);
}

struct nic_address nic_side_address(const struct nic_side *s)
{
    struct nic_address a = {
        .qpn = s->qp->qp_num, .rkey = s->mr->rkey, .memory = (uint64_t)(uintptr_t)s->memory};
    assert_int_equal(softnic_query_gid(s->context, 1, 1, &a.gid), 0);
    return a;
}

void nic_side_connect(struct nic_side *s, const struct nic_address *to)
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};
    assert_int_equal(
        softnic_modify_qp(s->qp, &init,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        0);
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = to->qpn,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .sgid_index = 1}}};
    assert_int_equal(softnic_modify_qp(s->qp, &rtr,
                                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                           IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                     0);
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 7, .rnr_retry = 3, .max_rd_atomic = 16};
    assert_int_equal(softnic_modify_qp(s->qp, &rts,
                                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                           IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                           IBV_QP_MAX_QP_RD_ATOMIC),
                     0);
}

int nic_side_write(struct nic_side *s, const struct nic_address *to, uint64_t wr_id, size_t bytes)
{
    struct ibv_sge sge = {(uint64_t)(uintptr_t)s->memory, (uint32_t)bytes, s->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {to->memory, to->rkey}};
    struct ibv_send_wr *bad;
    return softnic_post_send(s->qp, &wr, &bad);
}

struct ibv_wc nic_side_poll(struct nic_side *s)
{
    struct ibv_wc wc;
    int n;
    while ((n = softnic_poll_cq(s->cq, 1, &wc)) == 0)
        usleep(10);
    assert_int_equal(n, 1);
    return wc;
}

/* The meeting file of an open port. */
void nic_test_file(struct ibv_context *context, char *path, size_t size)
{
    union ibv_gid gid;
    assert_int_equal(softnic_query_gid(context, 1, 1, &gid), 0);
    snprintf(path, size, "/dev/shm/softnic-%u-%u.%u.%u.%u", (unsigned)geteuid(), gid.raw[12],
             gid.raw[13], gid.raw[14], gid.raw[15]);
    assert_int_equal(access(path, F_OK), 0);
}
