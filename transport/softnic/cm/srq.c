/* SPDX-License-Identifier: MIT */
/* The shared receive queue of an id. */
#include "transport/softnic/cm/cm.h"

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    if (pd == NULL)
        pd = id->pd;
    if (pd == NULL || pd->context != id->verbs || id->srq != NULL)
        return cm_fail(EINVAL);
    struct ibv_srq *srq = softnic_create_srq(pd, attr);
    if (srq == NULL)
        return -1;
    id->srq = srq;
    return 0;
}

int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
    const uint32_t served = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    struct ibv_srq_init_attr plain = {.srq_context = attr->srq_context, .attr = attr->attr};
    if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0)
        return cm_fail(EINVAL);
    if (attr->srq_type != IBV_SRQT_BASIC || (attr->comp_mask & ~served) != 0)
        return cm_fail(EOPNOTSUPP);
    int err = rdma_create_srq(id, (attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) != 0 ? attr->pd : NULL,
                              &plain);
    attr->attr = plain.attr;
    return err;
}

void rdma_destroy_srq(struct rdma_cm_id *id)
{
    if (id->srq != NULL)
        softnic_destroy_srq(id->srq);
    id->srq = NULL;
    /* Of a queue pair that never came. */
    if (id->qp == NULL)
        cm_destroy_queues(id);
}
