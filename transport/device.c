/* SPDX-License-Identifier: MIT */
/*
 * Choice of the device. A provider is a kind of device with a table of verbs; above this file
 * nobody asks which it was, only what the device can do.
 */
#include "transport/device.h"
#include "transport/gid.h"
#include "transport/links.h"
#include "transport/region.h"
#include "transport/softnic/softnic.h"
#include "transport/world.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { GID_TABLE = 256 };

struct provider {
    const char *name;
    const struct verbs *verbs;
    bool shapeable; /* takes config.wire */
    /* Open `wanted`, or the best there is if it is NULL. 0; -ENODEV: there is none, nothing said;
     * other negative errno with a sentence. Sets context, port, name, class and why. */
    int (*open)(struct sstar_world *world, const char *wanted, struct device *device);
    /* Append the names of what there is. */
    void (*list)(char *text, size_t size);
};

static bool wire_given(const struct sstar_wire *wire)
{
    return wire->alpha_us > 0 || wire->gap_us > 0 || wire->beta_gbps > 0;
}

static void append(char *text, size_t size, const char *name)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? ", " : "", name);
}

/* ---- libibverbs ---------------------------------------------------------------------------------
 */

static void hardware_list(char *text, size_t size)
{
    int n = 0;
    struct ibv_device **list = verbs_ibverbs.get_device_list(&n);
    for (int i = 0; list && i < n; i++)
        append(text, size, verbs_ibverbs.get_device_name(list[i]));
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
    bool soft = strncmp(name, "rxe", 3) == 0;
    device->context = context;
    device->port = port;
    device->device_class = soft ? "softroce" : "hardware";
    device->arrival = soft ? ARRIVAL_IN_MEMORY : ARRIVAL_BY_COMPLETION;
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
        bool match = !wanted || strcmp(wanted, verbs_ibverbs.get_device_name(list[i])) == 0;
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

/* ---- softnic ------------------------------------------------------------------------------------
 */

static void softnic_list(char *text, size_t size)
{
    append(text, size, "softnic");
}

/* Ranks of one job and one node meet at one port; other jobs have other tokens. */
static void softnic_port_name(const struct sstar_world *world, char *name, size_t size)
{
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (const char *c = world->config.token; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 0x100000001b3;
    bool own = world->config.port_per_rank;
    snprintf(name, size, "sstar-%016llx-%s%d", (unsigned long long)hash, own ? "r" : "n",
             own ? world->rank : world->ranks[world->rank].node);
}

static int softnic_open(struct sstar_world *world, const char *wanted, struct device *device)
{
    if (wanted && strcmp(wanted, "softnic") != 0)
        return -ENODEV;
    char name[64], error[256] = "";
    softnic_port_name(world, name, sizeof name);
    const struct sstar_wire *given = &world->config.wire;
    struct softnic_wire wire = {given->alpha_us, given->gap_us, given->beta_gbps};
    struct softnic_attr attr = {
        .port_name = name, .wire = &wire, .error = error, .error_size = sizeof error};
    device->context = softnic_open_port(&attr);
    if (!device->context)
        return report_set(&world->report, errno ? -errno : -EIO,
                          "rank %d cannot open softnic port %s: %s", world->rank, name,
                          error[0] ? error : strerror(errno));
    device->port = 1;
    device->wire = *given;
    bool shaped = wire_given(given);
    device->device_class = shaped ? "softnic-shaped" : "softnic";
    device->arrival = shaped ? ARRIVAL_BY_COMPLETION : ARRIVAL_IN_MEMORY;
    device->coherent_atomics = true;
    snprintf(device->name, sizeof device->name, "softnic");
    snprintf(device->why, sizeof device->why, "%s",
             wanted   ? "asked for by name"
             : shaped ? "a shaped wire was asked for, which softnic alone has"
                      : "no NIC with an active port was found");
    return 0;
}

static const struct provider providers[] = {
    {"libibverbs", &verbs_ibverbs, false, hardware_open, hardware_list},
    {"softnic", &verbs_softnic, true, softnic_open, softnic_list},
};
enum { N_PROVIDERS = sizeof providers / sizeof *providers };

/* ---- choice -------------------------------------------------------------------------------------
 */

static int provider_open(struct sstar_world *world, struct device *device)
{
    const char *wanted = world->config.ib_dev[0] ? world->config.ib_dev : NULL;
    bool shaped = wire_given(&world->config.wire);
    for (int i = 0; i < N_PROVIDERS; i++) {
        if (shaped && !providers[i].shapeable && !wanted)
            continue;
        int err = providers[i].open(world, wanted, device);
        if (err == -ENODEV)
            continue;
        if (!err)
            device->verbs = providers[i].verbs;
        if (!err && shaped && !providers[i].shapeable)
            return report_set(
                &world->report, -EINVAL,
                "a wire to imitate was given together with device %s; only softnic can be "
                "shaped: leave out one of the two",
                device->name);
        return err;
    }
    char there_is[256] = "";
    for (int i = 0; i < N_PROVIDERS; i++)
        providers[i].list(there_is, sizeof there_is);
    return report_set(&world->report, -ENODEV, "there is no device %s here; there is: %s",
                      wanted ? wanted : "to be used", there_is);
}

static int gid_pick(struct sstar_world *world, struct device *device, int table_length)
{
    struct gid_entry table[GID_TABLE];
    int n = 0;
    for (int i = 0; i < table_length && n < GID_TABLE; i++) {
        struct ibv_gid_entry entry;
        if (device->verbs->query_gid_ex(device->context, device->port, (uint32_t)i, &entry, 0) != 0)
            continue;
        table[n++] = (struct gid_entry){.gid = entry.gid, .index = i, .type = entry.gid_type};
    }
    char why[256];
    int chosen = gid_choose(table, n, device->link_layer == IBV_LINK_LAYER_ETHERNET,
                            world->config.gid_index, why, sizeof why);
    if (chosen < 0)
        return report_set(&world->report, chosen, "device %s port %u: %s", device->name,
                          device->port, why);
    device->gid = table[chosen].gid;
    device->gid_index = table[chosen].index;
    gid_text(&table[chosen], device->gid_text, sizeof device->gid_text);
    snprintf(device->gid_why, sizeof device->gid_why, "%.*s", (int)sizeof device->gid_why - 1, why);
    return 0;
}

static struct ibv_qp *trial_qp(struct device *device, struct ibv_cq *cq, uint32_t bytes,
                               struct ibv_qp_init_attr *attr)
{
    *attr = (struct ibv_qp_init_attr){.send_cq = cq,
                                      .recv_cq = cq,
                                      .qp_type = IBV_QPT_RC,
                                      .cap = {.max_send_wr = 16,
                                              .max_recv_wr = 1,
                                              .max_send_sge = 1,
                                              .max_recv_sge = 1,
                                              .max_inline_data = bytes}};
    return device->verbs->create_qp(device->pd, attr);
}

/* Verbs tell the inline limit of a queue pair only when one is made. */
static int inline_limit(struct sstar_world *world, struct device *device)
{
    static const uint32_t sizes[] = {220, 188, 124, 64, 32, 16, 8};
    struct ibv_cq *cq = device->verbs->create_cq(device->context, 16, NULL, NULL, 0);
    struct ibv_qp *qp = NULL;
    struct ibv_qp_init_attr attr;
    int err = cq ? 0 : errno;
    for (size_t i = 0; cq && !qp && i < sizeof sizes / sizeof *sizes; i++) {
        qp = trial_qp(device, cq, sizes[i], &attr);
        err = qp ? 0 : errno;
        device->max_inline = sizes[i];
    }
    if (qp)
        device->verbs->destroy_qp(qp);
    if (cq)
        device->verbs->destroy_cq(cq);
    return err ? report_set(&world->report, -err,
                            "device %s port %u makes no queue pair that sends 8 bytes inline: %s%s",
                            device->name, device->port, strerror(err),
                            err == ENOMEM ? "; raise `ulimit -l`" : "")
               : 0;
}

static int device_query(struct sstar_world *world, struct device *device)
{
    struct ibv_port_attr port;
    int err = device->verbs->query_device(device->context, &device->attr);
    if (!err)
        err = device->verbs->query_port(device->context, device->port, &port);
    if (err)
        return report_set(&world->report, -err, "device %s port %u cannot be queried: %s",
                          device->name, device->port, strerror(err));
    device->link_layer = port.link_layer == IBV_LINK_LAYER_ETHERNET ? IBV_LINK_LAYER_ETHERNET
                                                                    : IBV_LINK_LAYER_INFINIBAND;
    device->mtu = port.active_mtu;
    device->lid = port.lid;
    device->coherent_atomics |= device->attr.atomic_cap == IBV_ATOMIC_GLOB;
    err = gid_pick(world, device, port.gid_tbl_len);
    if (err)
        return err;
    device->pd = device->verbs->alloc_pd(device->context);
    if (!device->pd)
        return report_set(&world->report, -errno, "device %s: no protection domain: %s",
                          device->name, strerror(errno));
    return inline_limit(world, device);
}

static void device_free(struct device *device)
{
    if (device->pd)
        device->verbs->dealloc_pd(device->pd);
    if (device->context)
        device->verbs->close_device(device->context);
    free(device);
}

int device_get(struct sstar_world *world, struct device **out)
{
    if (world->device) {
        *out = world->device;
        return 0;
    }
    struct device *device = calloc(1, sizeof *device);
    if (!device)
        return report_set(&world->report, -ENOMEM, "out of memory");
    int err = provider_open(world, device);
    if (!err)
        err = device_query(world, device);
    if (err) {
        device_free(device);
        return err;
    }
    log_line(&world->log, SSTAR_LOG_INFO,
             "device %s port %u (%s): %s; GID %s index %d: %s; inline up to %u B", device->name,
             device->port, device->device_class, device->why, device->gid_text, device->gid_index,
             device->gid_why, device->max_inline);
    *out = world->device = device;
    return 0;
}

void device_close(struct sstar_world *world)
{
    if (!world->device)
        return;
    links_abandon_all(world);
    memory_unbind(world);
    device_free(world->device);
    world->device = NULL;
}

int device_register(struct sstar_world *world, struct device *device, void *memory,
                    size_t size_bytes, struct ibv_mr **mr)
{
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                 IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_mr *made = device->verbs->reg_mr(device->pd, memory, size_bytes, access);
    if (made) {
        *mr = made;
        return 0;
    }
    int err = errno ? errno : EIO;
    char limit_text[96] = "";
    struct rlimit limit;
    if ((err == ENOMEM || err == EAGAIN || err == EPERM) &&
        getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        if (limit.rlim_cur == RLIM_INFINITY)
            snprintf(limit_text, sizeof limit_text, " (`ulimit -l` is unlimited)");
        else
            snprintf(limit_text, sizeof limit_text,
                     "; `ulimit -l` allows %llu KiB of locked memory: raise it",
                     (unsigned long long)limit.rlim_cur / 1024);
    }
    return report_set(&world->report, -err,
                      "rank %d cannot register %zu bytes with device %s port %u: %s%s", world->rank,
                      size_bytes, device->name, device->port, strerror(err), limit_text);
}

/* ---- sstar_device_info --------------------------------------------------------------------------
 */

int sstar_device_info(struct sstar_world *world, struct sstar_device_info *info)
{
    struct sstar_device_info out = {.gid_index = -1, .arrival_in_memory = true};
    if (!world->device && world->size > 1 && world->node_count == 1) {
        snprintf(out.name, sizeof out.name, "memory");
        snprintf(out.device_class, sizeof out.device_class, "memory");
        snprintf(out.why, sizeof out.why, "all ranks share one node; no link needs a NIC");
        *info = out;
        return 0;
    }
    struct device *device;
    int err = device_get(world, &device);
    if (err)
        return err;
    snprintf(out.name, sizeof out.name, "%s", device->name);
    snprintf(out.device_class, sizeof out.device_class, "%s", device->device_class);
    snprintf(out.gid, sizeof out.gid, "%s", device->gid_text);
    snprintf(out.gid_why, sizeof out.gid_why, "%s", device->gid_why);
    snprintf(out.why, sizeof out.why, "%s", device->why);
    out.gid_index = device->gid_index;
    out.active_mtu_bytes = 128 << device->mtu;
    out.max_inline_bytes = device->max_inline;
    out.arrival_in_memory = device->arrival == ARRIVAL_IN_MEMORY;
    out.wire = device->wire;
    *info = out;
    return 0;
}
