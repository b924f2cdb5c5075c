/* SPDX-License-Identifier: MIT */
/*
 * What the device says by itself: ports that go down, queue pairs that break, its own end.
 */
#include "transport/control.h"
#include "transport/device_private.h"
#include "transport/world.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* 0: about nothing; 1: worth a line; 2: nothing can go on. */
static int weight(enum ibv_event_type type)
{
    switch (type) {
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
        return 2;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_GID_CHANGE:
        return 1;
    default:
        return 0;
    }
}

static void tell(struct sstar_world *world, const struct device *device,
                 const struct ibv_async_event *event, char *text, size_t size)
{
    enum ibv_event_type type = event->event_type;
    int n = snprintf(text, size, "rank %d, device %s port %u: ", world->rank, device->name,
                     device->port);
    char *rest = text + n;
    size -= (size_t)n;
    if (type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE)
        control_port_down(world, type == IBV_EVENT_PORT_ERR);
    switch (type) {
    case IBV_EVENT_PORT_ERR:
        snprintf(rest, size, "the port is down; what is under way is tried again for a while");
        break;
    case IBV_EVENT_PORT_ACTIVE:
        snprintf(rest, size, "the port is active again");
        break;
    case IBV_EVENT_DEVICE_FATAL:
        snprintf(rest, size, "fatal error: the device broke or was removed");
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
        snprintf(rest, size, "queue pair 0x%x: %s", event->element.qp->qp_num,
                 ibv_event_type_str(type));
        break;
    default:
        snprintf(rest, size, "%s", ibv_event_type_str(type));
        break;
    }
}

static void events_ready(void *arg)
{
    struct sstar_world *world = arg;
    struct device *device = world->device;
    struct ibv_async_event event;
    while (device && device->verbs->get_async_event(device->context, &event) == 0) {
        enum ibv_event_type type = event.event_type;
        char text[200];
        tell(world, device, &event, text, sizeof text);
        device->verbs->ack_async_event(&event);
        if (weight(type) == 2)
            world_fail(world, -EIO, "%s", text);
        else if (weight(type) == 1)
            log_line(&world->log, SSTAR_LOG_WARN, "%s", text);
    }
}

int device_events_watch(struct sstar_world *world, struct device *device)
{
    int fd = device->context->async_fd, flags = fcntl(fd, F_GETFL), err;
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        err = -errno;
    else
        err = control_watch(world, fd, events_ready, world);
    return err ? report_set(&world->report, err, "events of device %s cannot be watched: %s",
                            device->name, strerror(-err))
               : 0;
}

void device_events_unwatch(struct sstar_world *world, struct device *device)
{
    control_unwatch(world, device->context->async_fd);
}
