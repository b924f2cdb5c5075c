/* SPDX-License-Identifier: MIT */
/* Endpoints: an id with its addresses and its queue pair in one call, used synchronously. */
#include "transport/softnic/cm/cm.h"
#include <stdlib.h>
#include <string.h>

enum { RESOLVE_MS = 2000 };

static int passive(struct rdma_cm_id *base, const struct rdma_addrinfo *res, struct ibv_pd *pd,
                   const struct ibv_qp_init_attr *attr)
{
    struct cm_id *id = to_id(base);
    if (rdma_bind_addr(base, res->ai_src_addr) != 0)
        return -1;
    if (pd != NULL)
        base->pd = pd;
    if (attr == NULL)
        return 0;
    id->qp_init = malloc(sizeof *id->qp_init);
    if (id->qp_init == NULL)
        return cm_fail(ENOMEM);
    *id->qp_init = *attr;
    id->qp_init->qp_type = (enum ibv_qp_type)res->ai_qp_type;
    return 0;
}

static int active(struct rdma_cm_id *base, const struct rdma_addrinfo *res, struct ibv_pd *pd,
                  struct ibv_qp_init_attr *attr)
{
    struct cm_id *id = to_id(base);
    if (rdma_resolve_addr(base, res->ai_src_addr, res->ai_dst_addr, RESOLVE_MS) != 0 ||
        rdma_resolve_route(base, RESOLVE_MS) != 0)
        return -1;
    if (attr != NULL) {
        attr->qp_type = (enum ibv_qp_type)res->ai_qp_type;
        if (rdma_create_qp(base, pd, attr) != 0)
            return -1;
    }
    if (res->ai_connect_len == 0)
        return 0;
    id->connect_data = malloc(res->ai_connect_len);
    if (id->connect_data == NULL)
        return cm_fail(ENOMEM);
    memcpy(id->connect_data, res->ai_connect, res->ai_connect_len);
    id->connect_len = res->ai_connect_len;
    return 0;
}

int rdma_create_ep(struct rdma_cm_id **out, struct rdma_addrinfo *res, struct ibv_pd *pd,
                   struct ibv_qp_init_attr *attr)
{
    struct rdma_cm_id *id;
    if (cm_create_id(NULL, &id, NULL, (enum rdma_port_space)res->ai_port_space,
                     (enum ibv_qp_type)res->ai_qp_type) != 0)
        return -1;
    int err =
        (res->ai_flags & RAI_PASSIVE) != 0 ? passive(id, res, pd, attr) : active(id, res, pd, attr);
    if (err != 0) {
        int why = errno;
        rdma_destroy_ep(id);
        return cm_fail(why);
    }
    *out = id;
    return 0;
}

void rdma_destroy_ep(struct rdma_cm_id *id)
{
    if (id->qp != NULL)
        rdma_destroy_qp(id);
    if (id->srq != NULL)
        rdma_destroy_srq(id);
    rdma_destroy_id(id);
}

/* 0, or what the listener's user is told. */
static int judge(struct rdma_cm_id *listen, const struct rdma_cm_event *event)
{
    if (event->event == RDMA_CM_EVENT_REJECTED)
        return ECONNREFUSED;
    if (event->status != 0)
        return abs(event->status);
    if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
        return EINVAL;
    if (to_id(listen)->qp_init == NULL)
        return 0;
    struct ibv_qp_init_attr attr = *to_id(listen)->qp_init;
    return rdma_create_qp(event->id, listen->pd, &attr) != 0 ? errno : 0;
}

int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
    struct rdma_cm_event *event;
    if (!to_id(listen)->sync)
        return cm_fail(EINVAL);
    if (listen->event != NULL)
        rdma_ack_cm_event(listen->event);
    listen->event = NULL;
    if (rdma_get_cm_event(listen->channel, &event) != 0)
        return -1;
    int err = judge(listen, event);
    if (err != 0) {
        listen->event = event;
        return cm_fail(err);
    }
    *id = event->id;
    (*id)->event = event;
    return 0;
}
