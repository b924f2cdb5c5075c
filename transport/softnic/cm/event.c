/* SPDX-License-Identifier: MIT */
/* Events: making, queueing and acknowledging them. */
#include "transport/softnic/cm/cm.h"
#include <stdlib.h>
#include <string.h>

/* Signalled whenever an event is acknowledged. */
static pthread_cond_t acked = PTHREAD_COND_INITIALIZER;

struct cm_event *cm_event_new(struct cm_id *id, enum rdma_cm_event_type type, int status)
{
    struct cm_event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return NULL;
    event->base.id = &id->base;
    event->base.event = type;
    event->base.status = status;
    event->counted_on = id;
    return event;
}

void cm_event_post(struct cm_channel *channel, struct cm_event *event)
{
    event->next = NULL;
    if (channel->first == NULL)
        channel->first = event;
    else
        channel->last->next = event;
    channel->last = event;
    cm_channel_arm(channel);
}

int cm_tell(struct cm_id *id, enum rdma_cm_event_type type, int status)
{
    struct cm_event *event = cm_event_new(id, type, status);
    if (event == NULL)
        return -ENOMEM;
    cm_event_post(to_channel(id->base.channel), event);
    return 0;
}

/* The whole field of the message, as hardware delivers it: its length says nothing about what the
 * sender filled. */
void cm_event_private(struct cm_event *event, const struct cm_message *message)
{
    unsigned length = cm_private_limit((enum cm_message_type)message->type);
    const void *data = length != 0 ? event->private_data : NULL;
    memcpy(event->private_data, message->private_data, length);
    if (message->type == CM_SIDR_REQ || message->type == CM_SIDR_REP) {
        event->base.param.ud.private_data = data;
        event->base.param.ud.private_data_len = (uint8_t)length;
    } else {
        event->base.param.conn.private_data = data;
        event->base.param.conn.private_data_len = (uint8_t)length;
    }
}

/* Take the events of `id` (NULL: all) out of the channel and hand each to `then`. */
static void each(struct cm_channel *channel, const struct cm_id *id,
                 void (*then)(struct cm_channel *to, struct cm_event *event), struct cm_channel *to)
{
    struct cm_event *event = channel->first, *next;
    channel->first = channel->last = NULL;
    for (; event != NULL; event = next) {
        next = event->next;
        if (id == NULL || event->counted_on == id || event->base.id == &id->base)
            then(to, event);
        else
            cm_event_post(channel, event);
    }
    cm_channel_arm(channel);
}

static void discard(struct cm_channel *to, struct cm_event *event)
{
    (void)to;
    free(event);
}

void cm_events_drop(struct cm_channel *channel, struct cm_id *id)
{
    each(channel, id, discard, NULL);
}

void cm_events_move(struct cm_channel *from, struct cm_channel *to, struct cm_id *id)
{
    each(from, id, cm_event_post, to);
}

int rdma_ack_cm_event(struct rdma_cm_event *base)
{
    if (base == NULL)
        return cm_fail(EINVAL);
    struct cm_event *event = (struct cm_event *)base;
    cm_enter();
    event->counted_on->events_acked++;
    pthread_cond_broadcast(&acked);
    cm_leave();
    free(event);
    return 0;
}

void cm_wait_acked(struct cm_id *id)
{
    while (id->events_acked != id->events_given)
        pthread_cond_wait(&acked, &cm_lock);
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
#define NAME(event) [event] = #event
    static const char *const names[] = {
        NAME(RDMA_CM_EVENT_ADDR_RESOLVED),   NAME(RDMA_CM_EVENT_ADDR_ERROR),
        NAME(RDMA_CM_EVENT_ROUTE_RESOLVED),  NAME(RDMA_CM_EVENT_ROUTE_ERROR),
        NAME(RDMA_CM_EVENT_CONNECT_REQUEST), NAME(RDMA_CM_EVENT_CONNECT_RESPONSE),
        NAME(RDMA_CM_EVENT_CONNECT_ERROR),   NAME(RDMA_CM_EVENT_UNREACHABLE),
        NAME(RDMA_CM_EVENT_REJECTED),        NAME(RDMA_CM_EVENT_ESTABLISHED),
        NAME(RDMA_CM_EVENT_DISCONNECTED),    NAME(RDMA_CM_EVENT_DEVICE_REMOVAL),
        NAME(RDMA_CM_EVENT_MULTICAST_JOIN),  NAME(RDMA_CM_EVENT_MULTICAST_ERROR),
        NAME(RDMA_CM_EVENT_ADDR_CHANGE),     NAME(RDMA_CM_EVENT_TIMEWAIT_EXIT),
    };
#undef NAME
    return (unsigned)event < sizeof names / sizeof *names ? names[event] : "UNKNOWN EVENT";
}
