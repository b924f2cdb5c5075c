/* SPDX-License-Identifier: MIT */
/* Completion channels and queues. */
#include "transport/softnic/dropin/dropin.h"

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    return ours(context) ? table(context)->create_comp_channel(context)
                         : REAL(ibv_create_comp_channel)(context);
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    RETURN_IF_GONE(channel, "ibv_destroy_comp_channel");
    return ours(channel->context) ? table(channel->context)->destroy_comp_channel(channel)
                                  : REAL(ibv_destroy_comp_channel)(channel);
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int comp_vector)
{
    return ours(context) ? table(context)->create_cq(context, cqe, cq_context, channel, comp_vector)
                         : REAL(ibv_create_cq)(context, cqe, cq_context, channel, comp_vector);
}

EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
    return ours(cq->context) ? table(cq->context)->resize_cq(cq, cqe)
                             : REAL(ibv_resize_cq)(cq, cqe);
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    RETURN_IF_GONE(cq, "ibv_destroy_cq");
    return ours(cq->context) ? table(cq->context)->destroy_cq(cq) : REAL(ibv_destroy_cq)(cq);
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    return ours(channel->context) ? table(channel->context)->get_cq_event(channel, cq, cq_context)
                                  : REAL(ibv_get_cq_event)(channel, cq, cq_context);
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
    if (ours(cq->context))
        table(cq->context)->ack_cq_events(cq, nevents);
    else
        REAL(ibv_ack_cq_events)(cq, nevents);
}
