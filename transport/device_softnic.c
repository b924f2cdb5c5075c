/* SPDX-License-Identifier: MIT */
/* The device of softnic, which is everywhere. */
#include "transport/device_private.h"
#include "transport/hash.h"
#include "transport/softnic/softnic.h"
#include "transport/world.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void softnic_list(char *text, size_t size)
{
    names_append(text, size, "softnic");
}

/* Ranks of one job and one node meet at one port; other jobs have other tokens. */
static void softnic_port_name(const struct sstar_world *world, char *name, size_t size)
{
    uint64_t hash = hash_text(world->config.token);
    bool own = world->config.port_per_rank;
    snprintf(name, size, "sstar-%016llx-%s%d", (unsigned long long)hash, own ? "r" : "n",
             own ? world->rank : world->ranks[world->rank].node);
}

static int softnic_open(struct sstar_world *world, const char *wanted, struct device *device)
{
    /* The second is what the device list calls it. */
    if (wanted && strcmp(wanted, "softnic") != 0 && strcmp(wanted, "softnic0") != 0)
        return -ENODEV;
    char name[64], error[256] = "";
    softnic_port_name(world, name, sizeof name);
    const struct sstar_wire *given = &world->config.wire;
    struct softnic_wire wire = {given->alpha_us, given->gap_us, given->beta_gbps};
    const struct softnic_order order = {.relaxed = world->config.order.relaxed,
                                        .keep_qps = world->config.order.keep_qps,
                                        .seed = world->config.order.seed};
    struct softnic_attr attr = {.port_name = name,
                                .wire = &wire,
                                .order = &order,
                                .capture = world->config.capture,
                                .capture_snap = world->config.capture_snap,
                                .error = error,
                                .error_size = sizeof error};
    device->context = softnic_open_port(&attr);
    if (!device->context)
        return report_set(&world->report, errno ? -errno : -EIO,
                          "rank %d cannot open softnic port %s: %s", world->rank, name,
                          error[0] ? error : strerror(errno));
    device->port = 1;
    device->wire = *given;
    device->ack_timeout = ACK_TIMEOUT;
    bool shaped = given->alpha_us > 0 || given->gap_us > 0 || given->beta_gbps > 0;
    device->device_class = shaped ? "softnic-shaped" : "softnic";
    device->gives = order.relaxed && !order.keep_qps ? ORDERING_COMPLETIONS : ORDERING_QUEUE_PAIR;
    /* On a shaped wire memory shows what is not due yet. */
    bool by_completion = shaped || device->gives < ordering_of_arrival(ARRIVAL_IN_MEMORY);
    device->arrival = by_completion ? ARRIVAL_BY_COMPLETION : ARRIVAL_IN_MEMORY;
    device->coherent_atomics = device->has_wr_api = true;
    snprintf(device->name, sizeof device->name, "softnic");
    snprintf(device->why, sizeof device->why, "%s",
             wanted                  ? "asked for by name"
             : shaped                ? "a shaped wire was asked for, which softnic alone has"
             : world->config.capture ? "a capture was asked for, which softnic alone writes"
             : order.relaxed         ? "a relaxed order was asked for, which softnic alone has"
                                     : "no NIC with an active port was found");
    return 0;
}

const struct provider provider_softnic = {"softnic", &verbs_softnic, true,
                                          false,     softnic_open,   softnic_list};
