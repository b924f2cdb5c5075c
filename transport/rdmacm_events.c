/* SPDX-License-Identifier: MIT */
/* From event to event: how a connection through librdmacm comes to be, and how it ends. */
#include "transport/connector.h"
#include "transport/rc.h"
#include "transport/rdmacm.h"
#include "transport/wait.h"
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

enum {
    RESOLVE_MS = 4000,
    EVENTS_PER_LOOK = 64,
    REJECT_STALE = 10,
    AGAIN_NS = 200000000,
};

/* ---- asking --------------------------------------------------------------------------------- */

int cm_ask(struct cm_connection *c)
{
    struct sockaddr_in ours, theirs;
    cm_addresses(c, &ours, &theirs);
    c->again_ns = 0;
    if (rdma_create_id(c->cm->channel, &c->id, c, RDMA_PS_TCP) != 0) {
        c->id = NULL;
        return cm_call_failed(c, "rdma_create_id", errno);
    }
    int class = c->link->world->config.traffic_class;
    uint8_t tos = (uint8_t) class;
    if (class >= 0 &&
        rdma_set_option(c->id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) != 0)
        return cm_call_failed(c, "rdma_set_option (traffic class)", errno);
    c->state = CM_ADDRESS;
    if (rdma_resolve_addr(c->id, (struct sockaddr *)&ours, (struct sockaddr *)&theirs,
                          RESOLVE_MS) != 0)
        return cm_call_failed(c, "rdma_resolve_addr", errno);
    return 0;
}

/* The address must lead to the device whose queue pairs these are. */
static int device_check(const struct cm_connection *c)
{
    const struct device *device = c->cm->links->device;
    const char *name = device->verbs->get_device_name(c->id->verbs->device);
    if (strcmp(name, device->name) == 0 && c->id->port_num == device->port)
        return 0;
    return world_fail(c->link->world, -EHOSTUNREACH,
                      "rank %d: the way to rank %d (%s) leads through device %s port %u, the links "
                      "are on device %s port %u; look at `ip route`, or choose with --ib-dev",
                      c->link->world->rank, c->link->peer,
                      c->link->world->ranks[c->link->peer].host, name, c->id->port_num,
                      device->name, device->port);
}

static int resolve_route(struct cm_connection *c)
{
    int err = device_check(c);
    if (err)
        return err;
    c->state = CM_ROUTE;
    return rdma_resolve_route(c->id, RESOLVE_MS) == 0
               ? 0
               : cm_call_failed(c, "rdma_resolve_route", errno);
}

static struct rdma_conn_param parameters(const struct cm_connection *c)
{
    return (struct rdma_conn_param){.responder_resources = c->link->read_depth,
                                    .initiator_depth = c->link->read_depth,
                                    .retry_count = RC_RETRY_COUNT,
                                    .rnr_retry_count = RC_RNR_RETRIES,
                                    .qp_num = c->link->qps[c->qp].qp->qp_num};
}

static int connect_to(struct cm_connection *c)
{
    struct cm_hello hello;
    struct rdma_conn_param param = parameters(c);
    cm_hello_fill(c, &hello);
    param.private_data = &hello;
    param.private_data_len = sizeof hello;
    c->state = CM_ASKING;
    return rdma_connect(c->id, &param) == 0 ? 0 : cm_call_failed(c, "rdma_connect", errno);
}

/* ---- the queue pair ------------------------------------------------------------------------- */

/* To RTR and RTS with what the connection manager has agreed on, and what is ours to say. It would
 * have a timeout made from the life time of packets on the path (about 2 s on RoCE, 14 s until the
 * last retry), and receivers that are not ready would be asked again after 655 ms. */
static int to_rts(struct cm_connection *c)
{
    const struct verbs *verbs = c->cm->links->device->verbs;
    static const enum ibv_qp_state states[] = {IBV_QPS_RTR, IBV_QPS_RTS};
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr attr = {.qp_state = states[i]};
        int mask = 0;
        if (rdma_init_qp_attr(c->id, &attr, &mask) != 0)
            return cm_call_failed(c, "rdma_init_qp_attr", errno);
        if (states[i] == IBV_QPS_RTR)
            rc_attr_rtr(c->link, &attr);
        else
            rc_attr_rts(c->link, &attr);
        int refused = verbs->modify_qp(c->link->qps[c->qp].qp, &attr, mask);
        if (refused)
            return rc_modify_failed(c->link, c->qp, c->cm->theirs[c->link->peer].qps[c->qp].number,
                                    refused);
    }
    return 0;
}

static void connected(struct cm_connection *c)
{
    c->state = CM_CONNECTED;
    c->cm->left--;
}

static int establish(struct cm_connection *c)
{
    int err = to_rts(c);
    if (err)
        return err;
    if (rdma_establish(c->id) != 0)
        return cm_call_failed(c, "rdma_establish", errno);
    connected(c);
    return 0;
}

/* ---- answering ------------------------------------------------------------------------------ */

static int accept_from(struct cm_connection *c, struct rdma_cm_id *id)
{
    c->id = id;
    id->context = c;
    c->state = CM_ANSWERING;
    int err = device_check(c);
    if (!err)
        err = to_rts(c);
    if (err)
        return err;
    struct rdma_conn_param param = parameters(c);
    return rdma_accept(id, &param) == 0 ? 0 : cm_call_failed(c, "rdma_accept", errno);
}

static void reject(struct rdmacm *cm, struct rdma_cm_id *id, enum cm_refusal refusal)
{
    struct sstar_world *world = cm->links->world;
    struct cm_farewell farewell;
    char from[INET_ADDRSTRLEN] = "?";
    const struct sockaddr *peer = rdma_get_peer_addr(id);
    if (peer->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)peer)->sin_addr, from,
                  sizeof from);
    log_line(&world->log, SSTAR_LOG_WARN,
             "rank %d refused a connection through librdmacm from %s on device %s: %s", world->rank,
             from, cm->links->device->name, cm_refusal_text(refusal));
    cm_farewell_fill(refusal, &farewell);
    rdma_reject(id, &farewell, sizeof farewell); /* it finds out in any case */
}

/* Returns an id to destroy, or NULL. */
static struct rdma_cm_id *request(struct rdmacm *cm, const struct rdma_cm_event *event)
{
    struct cm_connection *c = NULL;
    enum cm_refusal refusal =
        cm_hello_check(cm, event->param.conn.private_data, event->param.conn.private_data_len, &c);
    if (refusal != CM_WELCOME) {
        reject(cm, event->id, refusal);
        return event->id;
    }
    accept_from(c, event->id); /* an error is kept in the world */
    return NULL;
}

/* ---- events --------------------------------------------------------------------------------- */

/* The peer's connection manager may still hold an older connection of a queue pair with our number:
 * its time of waiting is over soon. Returns an id to destroy, or NULL. */
static struct rdma_cm_id *rejected(struct cm_connection *c, const struct rdma_cm_event *event)
{
    struct rdma_cm_id *id = c->id;
    if (event->status != REJECT_STALE || c->state != CM_ASKING) {
        cm_event_failed(
            c, event->event, event->status,
            cm_farewell_read(event->param.conn.private_data, event->param.conn.private_data_len));
        return NULL;
    }
    c->id = NULL;
    c->state = CM_IDLE;
    c->again_ns = clock_ns() + AGAIN_NS;
    return id;
}

/* In order when all are leaving; else the news of a death may be on its way (cm tick). */
static void disconnected(struct cm_connection *c)
{
    struct rdmacm *cm = c->cm;
    bool was = c->state == CM_CONNECTED;
    c->state = CM_ENDED;
    if (!was || cm->leaving || cm->lost)
        return;
    cm->lost = c;
    cm->lost_ns = clock_ns();
}

/* Returns an id to destroy once the event is acknowledged, or NULL. Errors are kept in the world.
 */
static struct rdma_cm_id *handle(struct rdmacm *cm, const struct rdma_cm_event *event)
{
    struct cm_connection *c = event->id->context;
    switch (event->event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        return request(cm, event);
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        resolve_route(c);
        return NULL;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        connect_to(c);
        return NULL;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        establish(c);
        return NULL;
    case RDMA_CM_EVENT_ESTABLISHED:
        if (c->state == CM_ANSWERING)
            connected(c);
        return NULL;
    case RDMA_CM_EVENT_REJECTED:
        return rejected(c, event);
    case RDMA_CM_EVENT_DISCONNECTED:
        disconnected(c);
        return NULL;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return NULL;
    case RDMA_CM_EVENT_ADDR_CHANGE:
        log_line(&cm->links->world->log, SSTAR_LOG_WARN,
                 "device %s port %u: an address that links are connected through has changed",
                 cm->links->device->name, cm->links->device->port);
        return NULL;
    default:
        if (c)
            cm_event_failed(c, event->event, event->status, CM_WELCOME);
        else
            world_fail(cm->links->world, -EIO, "rank %d cannot be connected to on device %s: %s",
                       cm->links->world->rank, cm->links->device->name,
                       rdma_event_str(event->event));
        return NULL;
    }
}

void cm_events_ready(void *arg)
{
    struct rdmacm *cm = arg;
    struct sstar_world *world = cm->links->world;
    struct rdma_cm_event *event;
    for (int i = 0; i < EVENTS_PER_LOOK && !world->failed; i++) {
        if (rdma_get_cm_event(cm->channel, &event) != 0) {
            if (errno != EAGAIN && errno != EINTR)
                world_fail(world, -errno, "rank %d: events of librdmacm cannot be read: %s",
                           world->rank, strerror(errno));
            return;
        }
        struct rdma_cm_id *id = handle(cm, event);
        rdma_ack_cm_event(event); /* before its id goes: that waits for it */
        if (id)
            rdma_destroy_id(id);
    }
}
