/* SPDX-License-Identifier: MIT */
/* Queue pairs that are connected by what the ranks told each other in the exchange. */
#include "transport/connector.h"
#include "transport/rc.h"

enum { HOP_LIMIT = 64 };

static int exchange_open(struct sstar_links *links)
{
    (void)links;
    return 0;
}

static void exchange_introduce(const struct sstar_link *link, struct link_introduction *out)
{
    (void)link; /* numbers and PSNs are told in any case */
    (void)out;
}

static int qp_connect(struct sstar_link *link, struct rc_qp *q, const struct link_introduction *it)
{
    const struct device *device = link->links->device;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = link->mtu,
                               .dest_qp_num = it->qps[q->index].number,
                               .rq_psn = it->qps[q->index].psn,
                               .ah_attr = {.dlid = it->lid, .port_num = device->port}};
    if (device->link_layer == IBV_LINK_LAYER_ETHERNET) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = link->peer_gid.gid;
        attr.ah_attr.grh.sgid_index = (uint8_t)link->gid.index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
    }
    rc_attr_rtr(link, &attr);
    int err = device->verbs->modify_qp(q->qp, &attr,
                                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                           IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (err)
        return err;
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .sq_psn = q->psn};
    rc_attr_rts(link, &send);
    return device->verbs->modify_qp(q->qp, &send,
                                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static int exchange_connect(struct sstar_links *links, const struct link_introduction *theirs)
{
    for (int i = 0; i < links->n_links; i++) {
        struct sstar_link *link = &links->all[i];
        const struct link_introduction *it = &theirs[link->peer];
        for (uint32_t q = 0; q < link->n_qps; q++) {
            int refused = qp_connect(link, &link->qps[q], it);
            if (refused)
                return rc_modify_failed(link, q, it->qps[q].number, refused);
        }
    }
    return 0;
}

/* The queue pairs are all there is. */
static void nothing(struct sstar_links *links)
{
    (void)links;
}

const struct connector connector_exchange = {
    .name = "exchange",
    .open = exchange_open,
    .introduce = exchange_introduce,
    .connect = exchange_connect,
    .tick = nothing,
    .leave = nothing,
    .close = nothing,
};
