/* SPDX-License-Identifier: MIT */
/* The order in which bytes land, as it is asked for and as it stands in the meeting file. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int softnic_read_order(const char *text, struct softnic_order *order)
{
    const char *seed_text = strchr(text, ',');
    bool keep_qps = strncmp(text, "relaxed-qps,", 12) == 0;
    bool relaxed = keep_qps || strncmp(text, "relaxed,", 8) == 0;
    uint64_t seed = 0;
    if (relaxed) {
        char *end;
        errno = 0;
        seed = strtoull(++seed_text, &end, 10);
        if (*seed_text < '0' || *seed_text > '9' || *end != '\0' || errno != 0)
            return EINVAL;
    } else if (strcmp(text, "strict") != 0) {
        return EINVAL;
    }
    order->relaxed = relaxed;
    order->keep_qps = keep_qps;
    order->seed = seed;
    return 0;
}

/* From the environment; `given` if any of it is set. */
int nic_order_env(struct softnic_order *order, bool *given)
{
    const char *text = getenv("SOFTNIC_ORDER"), *place = getenv("SOFTNIC_PLACE");
    *given = false;
    if (text != NULL && *text != '\0') {
        if (softnic_read_order(text, order) != 0)
            return EINVAL;
        *given = true;
    }
    if (place != NULL && *place != '\0') {
        order->on_time = strcmp(place, "on-time") == 0;
        if (!order->on_time && strcmp(place, "early") != 0)
            return EINVAL;
        *given = true;
    }
    return 0;
}

void nic_order_store(struct meeting *meeting, const struct softnic_order *order)
{
    atomic_store(&meeting->order_seed, order->seed);
    if (order->relaxed)
        atomic_fetch_or(&meeting->mode, PORT_RELAXED);
    if (order->relaxed && order->keep_qps)
        atomic_fetch_or(&meeting->mode, PORT_KEEP_QPS);
    if (order->on_time)
        atomic_fetch_or(&meeting->mode, PORT_ON_TIME);
}

void nic_order_load(const struct meeting *meeting, struct softnic_order *order)
{
    uint32_t mode = atomic_load(&meeting->mode);
    order->relaxed = (mode & PORT_RELAXED) != 0;
    order->keep_qps = (mode & PORT_KEEP_QPS) != 0;
    order->on_time = (mode & PORT_ON_TIME) != 0;
    order->seed = atomic_load(&meeting->order_seed);
}
