/* SPDX-License-Identifier: MIT */
/* The life of an id: making, options, moving to another channel, destroying. */
#include "transport/softnic/cm/cm.h"
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static uint32_t first_psn(void)
{
    uint32_t psn = 0;
    if (getrandom(&psn, sizeof psn, 0) != (ssize_t)sizeof psn)
        psn = (uint32_t)cm_now_ns();
    return psn & 0xffffff;
}

struct cm_id *cm_id_new(struct cm_channel *channel, void *context, enum rdma_port_space ps,
                        enum ibv_qp_type qp_type)
{
    struct cm_id *id = calloc(1, sizeof *id);
    if (id == NULL)
        return NULL;
    id->base.context = context;
    id->base.ps = ps;
    id->base.qp_type = qp_type;
    id->fd = -1;
    id->psn = first_psn();
    id->ack_timeout = CM_ACK_TIMEOUT;
    id->retry_count = id->rnr_retry_count = 7;
    cm_channel_add(channel, id);
    return id;
}

void cm_close(struct cm_id *id)
{
    cm_unwatch(id);
    if (id->fd >= 0)
        close(id->fd);
    id->fd = -1;
}

void cm_id_free(struct cm_id *id)
{
    cm_close(id);
    cm_channel_remove(id);
    free(id->base.route.path_rec);
    free(id->connect_data);
    free(id->qp_init);
    free(id);
}

int cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context,
                 enum rdma_port_space ps, enum ibv_qp_type qp_type)
{
    bool sync = channel == NULL;
    if (ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IPOIB && ps != RDMA_PS_IB)
        return cm_fail(EPROTONOSUPPORT);
    if (!cm_patience_is_known())
        return cm_fail(EINVAL);
    if (sync)
        channel = rdma_create_event_channel();
    if (channel == NULL)
        return -1;
    cm_enter();
    struct cm_id *id = cm_id_new(to_channel(channel), context, ps, qp_type);
    if (id != NULL)
        id->sync = sync;
    cm_leave();
    if (id == NULL) {
        if (sync)
            rdma_destroy_event_channel(channel);
        return cm_fail(ENOMEM);
    }
    *out = &id->base;
    return 0;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                   enum rdma_port_space ps)
{
    bool datagram = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB;
    return cm_create_id(channel, id, context, ps, datagram ? IBV_QPT_UD : IBV_QPT_RC);
}

/* What the other side is to hear beyond that the socket closes. */
static void say_goodbye(const struct cm_id *id)
{
    struct cm_message reject = {.type = CM_REJ, .status = CM_REJECT_CONSUMER};
    if (cm_is_datagram(id)) {
        reject.type = CM_SIDR_REP;
        reject.status = CM_SIDR_REJECT;
    }
    if (id->state == CM_REQ_RECEIVED || id->state == CM_REP_RECEIVED)
        cm_message_send(id->fd, &reject); /* if the other has gone already, so be it */
}

/* Peers that have come to a listener, but about whom its user has not been told. */
static void drop_unborn(struct cm_id *listener)
{
    for (struct cm_id *id = to_channel(listener->base.channel)->ids, *next; id != NULL; id = next) {
        next = id->next;
        if (id->listener == listener)
            cm_id_abandon(id);
    }
}

void cm_id_abandon(struct cm_id *id)
{
    cm_events_drop(to_channel(id->base.channel), id);
    say_goodbye(id);
    cm_id_free(id);
}

int rdma_destroy_id(struct rdma_cm_id *base)
{
    struct cm_id *id = to_id(base);
    struct rdma_event_channel *channel = base->channel;
    if (base->event != NULL)
        rdma_ack_cm_event(base->event);
    cm_enter();
    cm_unwatch(id);
    id->deadline_ns = 0;
    drop_unborn(id);
    say_goodbye(id);
    id->state = CM_CLOSED;
    cm_close(id); /* now, not when the last event is acknowledged */
    cm_wait_acked(id);
    cm_events_drop(to_channel(channel), id);
    bool sync = id->sync;
    cm_id_free(id);
    cm_leave();
    if (sync)
        rdma_destroy_event_channel(channel);
    return 0;
}

int cm_complete(struct rdma_cm_id *id)
{
    if (!to_id(id)->sync)
        return 0;
    if (id->event != NULL)
        rdma_ack_cm_event(id->event);
    id->event = NULL;
    if (rdma_get_cm_event(id->channel, &id->event) != 0)
        return -1;
    int status = id->event->status;
    if (status == 0)
        return 0;
    return cm_fail(id->event->event == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED : abs(status));
}

static int set_option(struct cm_id *id, int name, const void *value, size_t size)
{
    bool byte = name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT;
    uint8_t small = 0;
    int flag = 0;
    if (size != (byte ? sizeof small : sizeof flag))
        return -EINVAL;
    memcpy(byte ? (void *)&small : (void *)&flag, value, size);
    switch (name) {
    case RDMA_OPTION_ID_TOS:
        id->tos = small;
        return 0;
    case RDMA_OPTION_ID_ACK_TIMEOUT:
        if (small > 31 || cm_is_datagram(id))
            return -EINVAL;
        id->ack_timeout = small;
        return 0;
    case RDMA_OPTION_ID_REUSEADDR:
        if (id->state != CM_IDLE)
            return -EINVAL;
        id->reuse_address = flag != 0;
        return 0;
    case RDMA_OPTION_ID_AFONLY:
        if (id->state != CM_IDLE && id->state != CM_BOUND)
            return -EINVAL;
        id->family_only = flag != 0;
        return 0;
    default:
        return -EOPNOTSUPP;
    }
}

int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen)
{
    if (level != RDMA_OPTION_ID)
        return cm_fail(EOPNOTSUPP);
    cm_enter();
    int err = set_option(to_id(id), optname, optval, optlen);
    cm_leave();
    return err == 0 ? 0 : cm_fail(-err);
}

/* The id and the events that wait for it. */
static int move_one(struct cm_id *id, struct cm_channel *to)
{
    struct cm_channel *from = to_channel(id->base.channel);
    bool watched = id->watched;
    cm_unwatch(id);
    cm_channel_remove(id);
    cm_channel_add(to, id);
    int err = watched ? cm_watch(id) : 0;
    if (err != 0) {
        cm_channel_remove(id);
        cm_channel_add(from, id);
        cm_watch(id);
        return err;
    }
    cm_events_move(from, to, id);
    return 0;
}

/* And those who have come to it. */
int cm_id_move(struct cm_id *id, struct cm_channel *to)
{
    struct cm_id *other = to_channel(id->base.channel)->ids, *next;
    int err = move_one(id, to);
    for (; err == 0 && other != NULL; other = next) {
        next = other->next;
        if (other->listener == id && move_one(other, to) != 0)
            cm_id_abandon(other);
    }
    return err;
}

int rdma_migrate_id(struct rdma_cm_id *base, struct rdma_event_channel *channel)
{
    struct cm_id *id = to_id(base);
    struct rdma_event_channel *own = NULL, *old = base->channel;
    if (channel == NULL) {
        if (id->sync)
            return cm_fail(EINVAL);
        channel = own = rdma_create_event_channel();
    }
    if (channel == NULL)
        return -1;
    if (id->sync && base->event != NULL) {
        rdma_ack_cm_event(base->event);
        base->event = NULL;
    }
    cm_enter();
    bool was_sync = id->sync;
    int err = old == channel ? 0 : cm_id_move(id, to_channel(channel));
    if (err == 0) {
        id->sync = own != NULL;
        cm_wait_acked(id); /* after this nobody uses an event of the old channel */
    }
    cm_leave();
    if (err != 0 && own != NULL)
        rdma_destroy_event_channel(own);
    if (err == 0 && was_sync && old != channel)
        rdma_destroy_event_channel(old);
    return err == 0 ? 0 : cm_fail(-err);
}
