/* SPDX-License-Identifier: MIT */
#ifndef SSTAR_DECORATORS_EVENT_H
#define SSTAR_DECORATORS_EVENT_H

#include <infiniband/verbs.h>

/* Whose object an asynchronous event names; NULL: none, it is of a port or the device, and nothing
 * is counted for those. */
struct ibv_context *event_context(const struct ibv_async_event *event);

#endif
