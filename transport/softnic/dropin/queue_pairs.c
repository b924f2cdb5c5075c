/* SPDX-License-Identifier: MIT */
/* Queue pairs, shared receive queues, address handles, multicast groups. */
#include "transport/softnic/dropin/dropin.h"

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    return ours(pd->context) ? table(pd->context)->create_qp(pd, attr)
                             : REAL(ibv_create_qp)(pd, attr);
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    return ours(qp->context) ? table(qp->context)->qp_to_qp_ex(qp) : REAL(ibv_qp_to_qp_ex)(qp);
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
{
    return ours(qp->context) ? table(qp->context)->modify_qp(qp, attr, attr_mask)
                             : REAL(ibv_modify_qp)(qp, attr, attr_mask);
}

EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
                        struct ibv_qp_init_attr *init_attr)
{
    return ours(qp->context) ? table(qp->context)->query_qp(qp, attr, attr_mask, init_attr)
                             : REAL(ibv_query_qp)(qp, attr, attr_mask, init_attr);
}

/* Nobody is promised that bytes of one message land in order. */
EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
    return ours(qp->context) ? 0 : REAL(ibv_query_qp_data_in_order)(qp, op, flags);
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
    RETURN_IF_GONE(qp, "ibv_destroy_qp");
    return ours(qp->context) ? table(qp->context)->destroy_qp(qp) : REAL(ibv_destroy_qp)(qp);
}

EXPORT int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    return ours(qp->context) ? EOPNOTSUPP : REAL(ibv_set_ece)(qp, ece);
}

EXPORT int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    return ours(qp->context) ? EOPNOTSUPP : REAL(ibv_query_ece)(qp, ece);
}

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    return ours(pd->context) ? table(pd->context)->create_srq(pd, attr)
                             : REAL(ibv_create_srq)(pd, attr);
}

EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int attr_mask)
{
    return ours(srq->context) ? table(srq->context)->modify_srq(srq, attr, attr_mask)
                              : REAL(ibv_modify_srq)(srq, attr, attr_mask);
}

EXPORT int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
    return ours(srq->context) ? table(srq->context)->query_srq(srq, attr)
                              : REAL(ibv_query_srq)(srq, attr);
}

EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
    RETURN_IF_GONE(srq, "ibv_destroy_srq");
    return ours(srq->context) ? table(srq->context)->destroy_srq(srq) : REAL(ibv_destroy_srq)(srq);
}

EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    return ours(pd->context) ? table(pd->context)->create_ah(pd, attr)
                             : REAL(ibv_create_ah)(pd, attr);
}

EXPORT int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
                               struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
    return ours(context) ? table(context)->init_ah_from_wc(context, port, wc, grh, attr)
                         : REAL(ibv_init_ah_from_wc)(context, port, wc, grh, attr);
}

EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc,
                                            struct ibv_grh *grh, uint8_t port)
{
    return ours(pd->context) ? table(pd->context)->create_ah_from_wc(pd, wc, grh, port)
                             : REAL(ibv_create_ah_from_wc)(pd, wc, grh, port);
}

EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
    return ours(ah->context) ? table(ah->context)->destroy_ah(ah) : REAL(ibv_destroy_ah)(ah);
}

EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    return ours(qp->context) ? EOPNOTSUPP : REAL(ibv_attach_mcast)(qp, gid, lid);
}

EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    return ours(qp->context) ? EOPNOTSUPP : REAL(ibv_detach_mcast)(qp, gid, lid);
}
