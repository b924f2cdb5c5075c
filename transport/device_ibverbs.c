/* SPDX-License-Identifier: MIT */
/* Devices of libibverbs: real NICs and SoftRoCE. */
#include "transport/device_private.h"
#include "transport/world.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void hardware_list(char *text, size_t size)
{
    int n = 0;
    struct ibv_device **list = verbs_ibverbs.get_device_list(&n);
    for (int i = 0; list && i < n; i++)
        names_append(text, size, verbs_ibverbs.get_device_name(list[i]));
    if (list)
        verbs_ibverbs.free_device_list(list);
}

/* The first active port, or 0; `tell` says what stood in the way. */
static uint8_t active_port(struct sstar_world *world, struct ibv_context *context, const char *name,
                           bool asked_for)
{
    enum sstar_log_level level = asked_for ? SSTAR_LOG_WARN : SSTAR_LOG_INFO;
    struct ibv_device_attr attr;
    int err = verbs_ibverbs.query_device(context, &attr);
    if (err) {
        log_line(&world->log, level, "device %s cannot be queried: %s", name, strerror(err));
        return 0;
    }
    for (uint8_t port = 1; port <= attr.phys_port_cnt && port != 0; port++) {
        struct ibv_port_attr state;
        err = verbs_ibverbs.query_port(context, port, &state);
        if (err)
            log_line(&world->log, level, "device %s port %u cannot be read: %s", name, port,
                     strerror(err));
        else if (state.state == IBV_PORT_ACTIVE)
            return port;
        else
            log_line(&world->log, level, "device %s port %u is not active", name, port);
    }
    return 0;
}

/* rdma_rxe gives its devices an attribute that no NIC has; their names are up to whoever made them.
 */
static bool is_softroce(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/parent", name);
    return strncmp(name, "rxe", 3) == 0 || access(path, F_OK) == 0;
}

/* A softnic that is preloaded is a device of libibverbs like others, and says what it is in the
 * version of its firmware. */
static const char *class_of(struct ibv_context *context, bool soft)
{
    struct ibv_device_attr attr;
    if (soft)
        return "softroce";
    if (verbs_ibverbs.query_device(context, &attr) != 0)
        return "hardware";
    return strncmp(attr.fw_ver, "softnic-shaped ", 15) == 0 ? "softnic-shaped"
           : strncmp(attr.fw_ver, "softnic ", 8) == 0       ? "softnic"
                                                            : "hardware";
}

static bool hardware_try(struct sstar_world *world, struct ibv_device *candidate,
                         const char *wanted, struct device *device)
{
    const char *name = verbs_ibverbs.get_device_name(candidate);
    struct ibv_context *context = verbs_ibverbs.open_device(candidate);
    if (!context) {
        log_line(&world->log, wanted ? SSTAR_LOG_WARN : SSTAR_LOG_INFO,
                 "device %s cannot be opened: %s", name, strerror(errno));
        return false;
    }
    uint8_t port = active_port(world, context, name, wanted);
    if (!port) {
        verbs_ibverbs.close_device(context);
        return false;
    }
    bool soft = is_softroce(name);
    device->context = context;
    /* rxe before rdma-core 64 takes the first length of a list for all of them. */
    device->has_wr_api = !soft;
    /* rxe counts each NAK of a message against the retry count, not those without progress. So many
     * packets get through with the count that we set though one in twenty is lost. */
    device->part_packets = soft ? 8 : 0;
    device->port = port;
    device->device_class = class_of(context, soft);
    device->ack_timeout = soft ? ACK_TIMEOUT_SOFTROCE : ACK_TIMEOUT;
    /* No NIC promises in which order the bytes of a write land. SoftRoCE copies a packet with the
     * kernel's memcpy, which on some processors begins at the end: seen as a message whose last
     * bytes were there before its first. */
    device->gives = ORDERING_COMPLETIONS;
    device->arrival = ARRIVAL_BY_COMPLETION;
    snprintf(device->name, sizeof device->name, "%s", name);
    snprintf(device->why, sizeof device->why,
             wanted ? "asked for by name" : "the first device with an active port");
    return true;
}

static int hardware_open(struct sstar_world *world, const char *wanted, struct device *device)
{
    int n = 0;
    struct ibv_device **list = verbs_ibverbs.get_device_list(&n);
    if (!list) {
        log_line(&world->log, SSTAR_LOG_INFO, "libibverbs lists no devices: %s", strerror(errno));
        return -ENODEV;
    }
    bool named = false, opened = false;
    for (int i = 0; i < n && !opened; i++) {
        bool match = wanted ? strcmp(wanted, verbs_ibverbs.get_device_name(list[i])) == 0
                            : list[i]->transport_type == IBV_TRANSPORT_IB;
        named |= match;
        opened = match && hardware_try(world, list[i], wanted, device);
    }
    verbs_ibverbs.free_device_list(list);
    if (opened)
        return 0;
    if (wanted && named)
        return report_set(
            &world->report, -ENETDOWN,
            "device %s was asked for and has no active port; see `ibv_devinfo -d %s`, or use "
            "--ib-dev softnic",
            wanted, wanted);
    return -ENODEV;
}

const struct provider provider_ibverbs = {"libibverbs", &verbs_ibverbs, false,
                                          true,         hardware_open,  hardware_list};
