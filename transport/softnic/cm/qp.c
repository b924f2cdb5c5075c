/* SPDX-License-Identifier: MIT */
/* The queue pair of an id, its completion queues, and its way through the states. */
#include "transport/softnic/cm/cm.h"
#include <string.h>

static void fill_rtr(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
    *attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = id->peer.qpn,
        .rq_psn = id->peer.psn,
        .max_dest_rd_atomic = id->responder_resources,
        .ah_attr = {.grh = {.dgid = id->peer.gid,
                            .sgid_index = 1,
                            .hop_limit = CM_HOP_LIMIT,
                            .traffic_class = id->tos},
                    .is_global = 1,
                    .port_num = 1},
    };
    *mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (id->base.qp_type == IBV_QPT_RC)
        *mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

static void fill_rts(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
    *attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .sq_psn = id->psn,
        .max_rd_atomic = id->initiator_depth,
        .timeout = id->ack_timeout,
        .retry_cnt = id->retry_count,
        .rnr_retry = id->rnr_retry_count,
    };
    *mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (id->base.qp_type == IBV_QPT_RC)
        *mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
}

/* Before anything is known of the other side it may do nothing to our memory. */
static void fill_init(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
    bool known = id->peer.qpn != 0;
    *attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
    *mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (cm_is_datagram(id)) {
        attr->qkey = RDMA_UDP_QKEY;
        *mask |= IBV_QP_QKEY;
        return;
    }
    if (known)
        attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (known && id->base.qp_type == IBV_QPT_RC && id->responder_resources != 0)
        attr->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    *mask |= IBV_QP_ACCESS_FLAGS;
}

static int fill_attr(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
    if (id->device == NULL)
        return -EINVAL;
    if (attr->qp_state == IBV_QPS_INIT) {
        fill_init(id, attr, mask);
        return 0;
    }
    if (cm_is_datagram(id) || id->peer.qpn == 0)
        return -EINVAL;
    if (attr->qp_state == IBV_QPS_RTR)
        fill_rtr(id, attr, mask);
    else if (attr->qp_state == IBV_QPS_RTS)
        fill_rts(id, attr, mask);
    else
        return -EINVAL;
    return 0;
}

int rdma_init_qp_attr(struct rdma_cm_id *base, struct ibv_qp_attr *attr, int *mask)
{
    cm_enter();
    int err = fill_attr(to_id(base), attr, mask);
    cm_leave();
    return err == 0 ? 0 : cm_fail(-err);
}

static int change_to(const struct cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask;
    int err = fill_attr(id, &attr, &mask);
    return err != 0 ? err : -softnic_modify_qp(qp, &attr, mask);
}

/* From INIT, once more for what the other side may do. */
int cm_qp_to_rts(struct cm_id *id)
{
    static const enum ibv_qp_state way[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
    int err = 0;
    for (unsigned i = 0; id->base.qp != NULL && err == 0 && i < sizeof way / sizeof *way; i++)
        err = change_to(id, id->base.qp, way[i]);
    return err;
}

void cm_qp_to_error(struct cm_id *id)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    if (id->base.qp != NULL)
        softnic_modify_qp(id->base.qp, &attr, IBV_QP_STATE);
}

/* A new queue pair can receive; that of a datagram service can send, too. */
static int start(const struct cm_id *id, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int err = change_to(id, qp, IBV_QPS_INIT);
    if (err != 0 || !cm_is_datagram(id))
        return err;
    err = -softnic_modify_qp(qp, &attr, IBV_QP_STATE);
    attr.qp_state = IBV_QPS_RTS;
    return err != 0 ? err : -softnic_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static void destroy_queue(struct ibv_cq **cq, struct ibv_comp_channel **channel)
{
    if (*cq != NULL)
        softnic_destroy_cq(*cq);
    if (*channel != NULL)
        softnic_destroy_comp_channel(*channel);
    *cq = NULL;
    *channel = NULL;
}

void cm_destroy_queues(struct rdma_cm_id *id)
{
    destroy_queue(&id->recv_cq, &id->recv_cq_channel);
    destroy_queue(&id->send_cq, &id->send_cq_channel);
}

static int create_queue(struct rdma_cm_id *id, uint32_t entries, struct ibv_cq **cq,
                        struct ibv_comp_channel **channel)
{
    *channel = softnic_create_comp_channel(id->verbs);
    if (*channel == NULL)
        return -errno;
    *cq = softnic_create_cq(id->verbs, (int)entries, id, *channel, 0);
    return *cq == NULL ? -errno : 0;
}

/* The queues that the caller did not bring. */
static int create_queues(struct rdma_cm_id *id, const struct ibv_qp_init_attr_ex *attr)
{
    int err = 0;
    if (attr->recv_cq == NULL && id->recv_cq == NULL && attr->cap.max_recv_wr != 0)
        err = create_queue(id, attr->cap.max_recv_wr, &id->recv_cq, &id->recv_cq_channel);
    if (err == 0 && attr->send_cq == NULL && id->send_cq == NULL && attr->cap.max_send_wr != 0)
        err = create_queue(id, attr->cap.max_send_wr, &id->send_cq, &id->send_cq_channel);
    return err;
}

static int check_attr(const struct rdma_cm_id *id, const struct ibv_qp_init_attr_ex *attr)
{
    if (id->verbs == NULL || id->qp != NULL)
        return -EINVAL;
    if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) != 0 && attr->pd != NULL &&
        attr->pd->context != id->verbs)
        return -EINVAL;
    bool other_recv = id->recv_cq != NULL && attr->recv_cq != NULL && id->recv_cq != attr->recv_cq;
    bool other_send = id->send_cq != NULL && attr->send_cq != NULL && id->send_cq != attr->send_cq;
    return other_recv || other_send ? -EINVAL : 0;
}

static int create_qp(struct cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
    struct rdma_cm_id *base = &id->base;
    int err = check_attr(base, attr);
    if (err != 0)
        return err;
    if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr->pd == NULL)
        attr->pd = base->pd;
    attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
    err = create_queues(base, attr);
    if (err != 0)
        goto destroy_queues;
    if (attr->send_cq == NULL)
        attr->send_cq = base->send_cq != NULL ? base->send_cq : base->recv_cq;
    if (attr->recv_cq == NULL)
        attr->recv_cq = base->recv_cq != NULL ? base->recv_cq : base->send_cq;
    if (attr->srq == NULL)
        attr->srq = base->srq;
    struct ibv_qp *qp = softnic_create_qp_ex(base->verbs, attr);
    if (qp == NULL) {
        err = -errno;
        goto destroy_queues;
    }
    err = start(id, qp);
    if (err != 0)
        goto destroy_qp;
    base->pd = qp->pd;
    base->qp = qp;
    return 0;
destroy_qp:
    softnic_destroy_qp(qp);
destroy_queues:
    cm_destroy_queues(base);
    return err;
}

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
    cm_enter();
    int err = create_qp(to_id(id), attr);
    cm_leave();
    return err == 0 ? 0 : cm_fail(-err);
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp_init_attr_ex more = {
        .qp_context = attr->qp_context,
        .send_cq = attr->send_cq,
        .recv_cq = attr->recv_cq,
        .srq = attr->srq,
        .cap = attr->cap,
        .qp_type = attr->qp_type,
        .sq_sig_all = attr->sq_sig_all,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = pd,
    };
    int err = rdma_create_qp_ex(id, &more);
    attr->send_cq = more.send_cq;
    attr->recv_cq = more.recv_cq;
    attr->srq = more.srq;
    attr->cap = more.cap;
    return err;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
    cm_enter();
    struct ibv_qp *qp = id->qp;
    id->qp = NULL;
    cm_leave();
    /* This waits for asynchronous events to be acknowledged. */
    if (qp != NULL)
        softnic_destroy_qp(qp);
    cm_destroy_queues(id);
}
