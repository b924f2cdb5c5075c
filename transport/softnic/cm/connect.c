/* SPDX-License-Identifier: MIT */
/* What a program does to a connection: connect, accept, reject, establish, disconnect. */
#include "transport/softnic/cm/cm.h"
#include <string.h>

static uint8_t least(uint8_t a, uint8_t b)
{
    return a < b ? a : b;
}

/* 0 or -EINVAL: more private data than the message has room for. */
static int add_private(struct cm_message *message, const void *data, size_t length)
{
    if (length == 0 || data == NULL)
        return 0;
    if (length > cm_private_limit((enum cm_message_type)message->type) - message->private_len)
        return -EINVAL;
    memcpy(message->private_data + message->private_len, data, length);
    message->private_len = (uint16_t)(message->private_len + length);
    return 0;
}

static int check_param(const struct cm_id *id, const struct rdma_conn_param *param)
{
    if (param == NULL)
        return id->base.qp != NULL ? 0 : -EINVAL;
    if (cm_is_datagram(id))
        return 0;
    bool deep = param->initiator_depth != RDMA_MAX_INIT_DEPTH &&
                param->initiator_depth > id->device->max_initiator_depth;
    bool wide = param->responder_resources != RDMA_MAX_RESP_RES &&
                param->responder_resources > id->device->max_responder_resources;
    return deep || wide ? -EINVAL : 0;
}

/* What both sides say of their queue pair. */
static int fill(struct cm_id *id, struct cm_message *message, const struct rdma_conn_param *param)
{
    const struct ibv_qp *qp = id->base.qp;
    message->qpn = qp != NULL ? qp->qp_num : param->qp_num & 0xffffff;
    message->srq = qp != NULL ? qp->srq != NULL : param->srq;
    message->psn = id->psn;
    memcpy(message->gid, id->device->gid.raw, sizeof message->gid);
    message->responder_resources = id->responder_resources;
    message->initiator_depth = id->initiator_depth;
    message->flow_control = param != NULL ? param->flow_control : 0;
    message->retry_count = param != NULL ? least(param->retry_count, 7) : 7;
    message->rnr_retry_count = param != NULL ? least(param->rnr_retry_count, 7) : 7;
    message->ack_timeout = id->ack_timeout;
    return param != NULL ? add_private(message, param->private_data, param->private_data_len) : 0;
}

static int compose_request(struct cm_id *id, struct cm_message *request,
                           const struct rdma_conn_param *param)
{
    const struct rdma_addr *addr = &id->base.route.addr;
    if (id->state != CM_ROUTE_RESOLVED)
        return -EINVAL;
    int err = check_param(id, param);
    if (err != 0)
        return err;
    id->initiator_depth = param != NULL && param->initiator_depth != RDMA_MAX_INIT_DEPTH
                              ? param->initiator_depth
                              : id->device->max_initiator_depth;
    id->responder_resources = param != NULL && param->responder_resources != RDMA_MAX_RESP_RES
                                  ? param->responder_resources
                                  : id->device->max_responder_resources;
    request->type = cm_is_datagram(id) ? CM_SIDR_REQ : CM_REQ;
    cm_address_pack(&request->from, &addr->src_addr);
    cm_address_pack(&request->to, &addr->dst_addr);
    err = add_private(request, id->connect_data, id->connect_len);
    if (err == 0)
        err = fill(id, request, param);
    id->retry_count = request->retry_count;
    return err;
}

/* There is nobody at that number, or too many are waiting there. */
static int refused(struct cm_id *id, int err)
{
    id->state = CM_CLOSED;
    if (cm_is_datagram(id))
        return cm_tell(id, RDMA_CM_EVENT_UNREACHABLE, CM_SIDR_UNSUPPORTED);
    return cm_tell(id, RDMA_CM_EVENT_REJECTED,
                   err == -EAGAIN ? CM_REJECT_CONSUMER : CM_REJECT_INVALID_SERVICE);
}

static int request(struct cm_id *id, const struct rdma_conn_param *param)
{
    struct cm_message message = {0};
    int err = compose_request(id, &message, param);
    if (err != 0)
        return err;
    err = cm_name_take(id);
    if (err != 0 && !(err == -EADDRINUSE && id->reuse_address))
        return err;
    err = cm_name_connect(id);
    if (err == -ECONNREFUSED || err == -EAGAIN)
        return refused(id, err);
    if (err == 0)
        err = cm_message_send(id->fd, &message);
    if (err == -EPIPE || err == -ECONNRESET)
        return refused(id, -ECONNREFUSED);
    if (err == 0)
        err = cm_watch(id);
    if (err != 0)
        return err;
    id->state = CM_REQ_SENT;
    cm_set_deadline(id, cm_patience_ns());
    return 0;
}

int rdma_connect(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
    cm_enter();
    int err = request(to_id(base), param);
    cm_leave();
    return err == 0 ? cm_complete(base) : cm_fail(-err);
}

static int accept_datagram(struct cm_id *id, const struct rdma_conn_param *param)
{
    struct cm_message reply = {.type = CM_SIDR_REP, .qkey = RDMA_UDP_QKEY};
    int err = fill(id, &reply, param);
    if (err == 0)
        err = cm_message_send(id->fd, &reply);
    if (err != 0)
        return err;
    cm_close(id);
    id->state = CM_CLOSED;
    return 0;
}

static int accept_connection(struct cm_id *id, const struct rdma_conn_param *param)
{
    struct cm_message reply = {.type = CM_REP};
    id->initiator_depth = param != NULL && param->initiator_depth != RDMA_MAX_INIT_DEPTH
                              ? param->initiator_depth
                              : least(id->initiator_depth, id->device->max_initiator_depth);
    id->responder_resources =
        param != NULL && param->responder_resources != RDMA_MAX_RESP_RES
            ? param->responder_resources
            : least(id->responder_resources, id->device->max_responder_resources);
    int err = fill(id, &reply, param);
    if (err == 0)
        err = cm_qp_to_rts(id);
    if (err == 0)
        err = cm_message_send(id->fd, &reply);
    if (err != 0) {
        cm_qp_to_error(id);
        return err;
    }
    id->state = CM_REP_SENT;
    cm_set_deadline(id, cm_patience_ns());
    return 0;
}

int rdma_accept(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
    struct cm_id *id = to_id(base);
    cm_enter();
    if (id->state == CM_REQ_RECEIVED)
        cm_pump(id); /* the other side may have gone meanwhile */
    int err = id->state == CM_REQ_RECEIVED ? check_param(id, param) : -EINVAL;
    bool datagram = cm_is_datagram(id);
    if (err == 0)
        err = datagram ? accept_datagram(id, param) : accept_connection(id, param);
    cm_leave();
    if (err != 0)
        return cm_fail(-err);
    if (!datagram)
        return cm_complete(base);
    if (id->sync && base->event != NULL) {
        rdma_ack_cm_event(base->event);
        base->event = NULL;
    }
    return 0;
}

static int refuse(struct cm_id *id, const void *data, uint8_t length, uint32_t reason)
{
    struct cm_message reject = {.type = CM_REJ, .status = reason};
    if (cm_is_datagram(id)) {
        reject.type = CM_SIDR_REP;
        reject.status = CM_SIDR_REJECT;
    }
    if (id->state != CM_REQ_RECEIVED && id->state != CM_REP_SENT && id->state != CM_REP_RECEIVED)
        return -EINVAL;
    int err = add_private(&reject, data, length);
    if (err != 0)
        return err;
    cm_message_send(id->fd, &reject); /* to one that has gone it need not be said */
    cm_close(id);
    id->state = CM_CLOSED;
    cm_set_deadline(id, 0);
    return 0;
}

static int reject(struct rdma_cm_id *base, const void *data, uint8_t length, uint32_t reason)
{
    cm_enter();
    int err = refuse(to_id(base), data, length, reason);
    cm_leave();
    return err == 0 ? 0 : cm_fail(-err);
}

int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
    return reject(id, private_data, private_data_len, CM_REJECT_CONSUMER);
}

int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
    return reject(id, private_data, private_data_len, CM_REJECT_OPTION);
}

int rdma_establish(struct rdma_cm_id *base)
{
    struct cm_id *id = to_id(base);
    const struct cm_message ready = {.type = CM_RTU};
    cm_enter();
    int err = base->qp == NULL && id->state == CM_REP_RECEIVED ? cm_message_send(id->fd, &ready)
                                                               : -EINVAL;
    if (err == 0) {
        id->state = CM_ESTABLISHED;
        cm_set_deadline(id, 0);
    }
    cm_leave();
    return err == 0 ? 0 : cm_fail(-err);
}

/* Data came before the other side's last message of the handshake. */
int rdma_notify(struct rdma_cm_id *base, enum ibv_event_type event)
{
    struct cm_id *id = to_id(base);
    int err = 0;
    if (event != IBV_EVENT_COMM_EST)
        return cm_fail(EOPNOTSUPP);
    cm_enter();
    if (id->state == CM_REP_SENT) {
        id->state = CM_ESTABLISHED;
        cm_set_deadline(id, 0);
        err = cm_tell(id, RDMA_CM_EVENT_ESTABLISHED, 0);
    } else if (id->state != CM_ESTABLISHED) {
        err = -EINVAL;
    }
    cm_leave();
    return err == 0 ? 0 : cm_fail(-err);
}

static int disconnect(struct cm_id *id)
{
    const struct cm_message leave = {.type = CM_DREQ}, left = {.type = CM_DREP};
    if (id->state == CM_REP_SENT)
        cm_pump(id); /* its end of the handshake may be there */
    cm_qp_to_error(id);
    switch (id->state) {
    case CM_ESTABLISHED:
        id->state = CM_DREQ_SENT;
        cm_message_send(id->fd, &leave); /* one that has gone is noticed by its socket's end */
        cm_set_deadline(id, cm_patience_ns());
        return 0;
    case CM_DREQ_RECEIVED:
        if (id->fd >= 0)
            cm_message_send(id->fd, &left);
        cm_enter_timewait(id);
        return 0;
    case CM_DREQ_SENT:
    case CM_TIMEWAIT:
    default:
        return -EINVAL;
    }
}

int rdma_disconnect(struct rdma_cm_id *base)
{
    cm_enter();
    int err = base->verbs != NULL ? disconnect(to_id(base)) : -EINVAL;
    cm_leave();
    return err == 0 ? cm_complete(base) : cm_fail(-err);
}
