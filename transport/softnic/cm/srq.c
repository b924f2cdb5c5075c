/* SPDX-License-Identifier: MIT */
/* The shared receive queue of an id. */
#include "transport/softnic/cm/cm.h"

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    (void)id, (void)pd, (void)attr;
    return cm_fail(EOPNOTSUPP);
}

int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
    (void)id, (void)attr;
    return cm_fail(EOPNOTSUPP);
}

void rdma_destroy_srq(struct rdma_cm_id *id)
{
    (void)id;
}
