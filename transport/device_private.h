/* SPDX-License-Identifier: MIT */
/* What the files of the device share. */
#ifndef SSTAR_TRANSPORT_DEVICE_PRIVATE_H
#define SSTAR_TRANSPORT_DEVICE_PRIVATE_H

#include "transport/device.h"

/* Half a second to notice a dead peer. SoftRoCE answers when the peer's kernel gets a core, which
 * on a busy machine was seen to take longer: four seconds. */
enum { ACK_TIMEOUT = 14, ACK_TIMEOUT_SOFTROCE = 17 };

/* A kind of device with its table of verbs. */
struct provider {
    const char *name;
    const struct verbs *verbs;
    bool shapeable; /* takes config.wire */
    bool rdmacm;    /* librdmacm knows its devices */
    /* Open `wanted`, or the best there is if it is NULL. 0; -ENODEV: there is none, nothing said;
     * other negative errno with a sentence. Sets context, port, name, class,
     * acknowledgement timeout, arrival and why. */
    int (*open)(struct sstar_world *world, const char *wanted, struct device *device);
    /* Append the names of what there is. */
    void (*list)(char *text, size_t size);
};
extern const struct provider provider_ibverbs, provider_softnic;

/* Append to a list of names. */
void names_append(char *text, size_t size, const char *name);

int device_events_watch(struct sstar_world *world, struct device *device);
void device_events_unwatch(struct sstar_world *world, struct device *device);

#endif
