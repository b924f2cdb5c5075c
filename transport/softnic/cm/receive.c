/* SPDX-License-Identifier: MIT */
/* What a message from the other side does, its end, and its silence. */
#include "transport/softnic/cm/cm.h"
#include <stdlib.h>
#include <string.h>

/* Until packets of this connection must have died, as the acknowledgement timeout has it. */
void cm_enter_timewait(struct cm_id *id)
{
    cm_close(id);
    id->state = CM_TIMEWAIT;
    cm_set_deadline(id, 4096ull << (id->ack_timeout + 1));
}

static void finish(struct cm_id *id, enum rdma_cm_event_type type, int status)
{
    cm_close(id);
    id->state = CM_CLOSED;
    cm_set_deadline(id, 0);
    cm_tell(id, type, status);
}

static void fill_conn(struct cm_event *event, const struct cm_message *m)
{
    struct rdma_conn_param *conn = &event->base.param.conn;
    /* What the other may start is what we must answer, and the other way round. */
    conn->responder_resources = m->initiator_depth;
    conn->initiator_depth = m->responder_resources;
    conn->flow_control = m->flow_control;
    conn->retry_count = m->retry_count;
    conn->rnr_retry_count = m->rnr_retry_count;
    conn->srq = m->srq;
    conn->qp_num = m->qpn;
    cm_event_private(event, m);
}

static void keep_peer(struct cm_id *id, const struct cm_message *m)
{
    memcpy(id->peer.gid.raw, m->gid, sizeof m->gid);
    id->peer.qpn = m->qpn & 0xffffff;
    id->peer.psn = m->psn & 0xffffff;
    id->rnr_retry_count = m->rnr_retry_count & 7;
    id->base.route.addr.addr.ibaddr.dgid = id->peer.gid;
}

/* Does the listener take what comes to this address? */
static bool listens_at(const struct cm_id *listener, const struct sockaddr *to)
{
    const struct sockaddr *own = &listener->base.route.addr.src_addr;
    if (own->sa_family == AF_INET6 && to->sa_family == AF_INET && listener->family_only)
        return false;
    if (cm_address_is_any(own))
        return own->sa_family == AF_INET6 || to->sa_family == AF_INET;
    return cm_address_same_host(own, to);
}

static bool take_addresses(struct cm_id *id, const struct cm_message *m)
{
    struct rdma_addr *addr = &id->base.route.addr;
    if (!cm_address_unpack(&addr->src_storage, &m->to) ||
        !cm_address_unpack(&addr->dst_storage, &m->from) ||
        !listens_at(id->listener, &addr->src_addr))
        return false;
    if (cm_device_bind(id, &addr->src_addr) != 0)
        return false;
    cm_device_fill_gids(id);
    return cm_device_fill_path(id) == 0;
}

/* False: the id is to go. */
static bool on_request(struct cm_id *id, const struct cm_message *m)
{
    struct cm_message no = {.type = CM_REJ, .status = CM_REJECT_INVALID_SERVICE};
    bool datagram = m->type == CM_SIDR_REQ;
    if (datagram) {
        no.type = CM_SIDR_REP;
        no.status = CM_SIDR_UNSUPPORTED;
    }
    if (datagram != cm_is_datagram(id) || !take_addresses(id, m)) {
        cm_message_send(id->fd, &no);
        return false;
    }
    struct cm_event *event = cm_event_new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    if (event == NULL)
        return false;
    event->counted_on = id->listener;
    event->base.listen_id = &id->listener->base;
    if (datagram) {
        cm_event_private(event, m);
    } else {
        fill_conn(event, m);
        id->responder_resources = m->initiator_depth;
        id->initiator_depth = m->responder_resources;
        id->retry_count = m->retry_count & 7;
        id->ack_timeout = m->ack_timeout & 31;
    }
    keep_peer(id, m);
    id->state = CM_REQ_RECEIVED;
    cm_set_deadline(id, 0);
    cm_event_post(to_channel(id->base.channel), event);
    return true;
}

static void on_reply(struct cm_id *id, const struct cm_message *m)
{
    const struct cm_message ready = {.type = CM_RTU},
                            no = {.type = CM_REJ, .status = CM_REJECT_CONSUMER};
    struct cm_event *event = cm_event_new(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    keep_peer(id, m);
    id->responder_resources = m->initiator_depth;
    id->initiator_depth = m->responder_resources;
    if (event != NULL)
        fill_conn(event, m);
    id->state = CM_REP_RECEIVED;
    cm_set_deadline(id, 0);
    if (event != NULL && id->base.qp == NULL) {
        cm_event_post(to_channel(id->base.channel), event);
        return;
    }
    int err = event == NULL ? -ENOMEM : cm_qp_to_rts(id);
    if (err == 0)
        err = cm_message_send(id->fd, &ready);
    if (err != 0) {
        free(event);
        cm_message_send(id->fd, &no);
        cm_qp_to_error(id);
        finish(id, RDMA_CM_EVENT_CONNECT_ERROR, err);
        return;
    }
    event->base.event = RDMA_CM_EVENT_ESTABLISHED;
    id->state = CM_ESTABLISHED;
    cm_event_post(to_channel(id->base.channel), event);
}

static void on_reject(struct cm_id *id, const struct cm_message *m)
{
    struct cm_event *event = cm_event_new(id, RDMA_CM_EVENT_REJECTED, (int)m->status);
    cm_close(id);
    cm_qp_to_error(id);
    id->state = CM_CLOSED;
    cm_set_deadline(id, 0);
    if (event == NULL)
        return;
    cm_event_private(event, m);
    cm_event_post(to_channel(id->base.channel), event);
}

static void on_datagram_reply(struct cm_id *id, const struct cm_message *m)
{
    struct cm_event *event = cm_event_new(id, RDMA_CM_EVENT_ESTABLISHED, 0);
    cm_close(id);
    id->state = CM_CLOSED;
    cm_set_deadline(id, 0);
    if (event == NULL)
        return;
    if (m->status != 0) {
        event->base.event = RDMA_CM_EVENT_UNREACHABLE;
        event->base.status = (int)m->status;
    }
    keep_peer(id, m);
    struct rdma_ud_param *ud = &event->base.param.ud;
    ud->qp_num = m->qpn;
    ud->qkey = m->qkey;
    ud->ah_attr = (struct ibv_ah_attr){
        .grh = {.dgid = id->peer.gid,
                .sgid_index = 1,
                .hop_limit = CM_HOP_LIMIT,
                .traffic_class = id->tos},
        .is_global = 1,
        .port_num = 1,
    };
    cm_event_private(event, m);
    cm_event_post(to_channel(id->base.channel), event);
}

/* The other side has left, or has answered that we leave. */
static void on_disconnected(struct cm_id *id, int status)
{
    if (id->state == CM_DREQ_SENT)
        cm_enter_timewait(id);
    else
        id->state = CM_DREQ_RECEIVED;
    cm_tell(id, RDMA_CM_EVENT_DISCONNECTED, status);
}

/* The socket's end: the other has destroyed its id, or its process is dead. What the kernel would
 * have said for it depends on how far the two had come. */
void cm_on_end(struct cm_id *id)
{
    struct cm_message rejected = {.type = CM_REJ, .status = CM_REJECT_CONSUMER};
    cm_unwatch(id);
    switch (id->state) {
    case CM_REQ_RECEIVED:
        rejected.status = CM_REJECT_TIMEOUT;
        on_reject(id, &rejected);
        break;
    case CM_REQ_SENT:
        if (cm_is_datagram(id))
            finish(id, RDMA_CM_EVENT_UNREACHABLE, CM_SIDR_REJECT);
        else
            on_reject(id, &rejected);
        break;
    case CM_REP_RECEIVED:
    case CM_REP_SENT:
        on_reject(id, &rejected);
        break;
    case CM_ESTABLISHED:
    case CM_DREQ_SENT:
        on_disconnected(id, 0);
        break;
    default:
        break;
    }
}

bool cm_on_message(struct cm_id *id, const struct cm_message *m)
{
    switch (m->type) {
    case CM_REQ:
    case CM_SIDR_REQ:
        return on_request(id, m);
    case CM_REP:
        on_reply(id, m);
        break;
    case CM_SIDR_REP:
        on_datagram_reply(id, m);
        break;
    case CM_RTU:
        if (id->state == CM_REP_SENT) {
            id->state = CM_ESTABLISHED;
            cm_set_deadline(id, 0);
            cm_tell(id, RDMA_CM_EVENT_ESTABLISHED, 0);
        }
        break;
    case CM_REJ:
        on_reject(id, m);
        break;
    default:
        on_disconnected(id, 0);
        break;
    }
    return true;
}

void cm_expired(struct cm_id *id)
{
    switch (id->state) {
    case CM_NASCENT:
        cm_id_free(id);
        break;
    case CM_REQ_SENT:
    case CM_REP_SENT:
        cm_qp_to_error(id);
        finish(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
        break;
    case CM_DREQ_SENT:
        on_disconnected(id, -ETIMEDOUT);
        break;
    case CM_TIMEWAIT:
        id->state = CM_CLOSED;
        cm_tell(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
        break;
    default:
        break;
    }
}
