/* SPDX-License-Identifier: MIT */
/*
 * Choice of the device. A provider is a kind of device with a table of verbs; above this file
 * nobody asks which it was, only what the device can do.
 */
#include "transport/connector.h"
#include "transport/decorators/check.h"
#include "transport/decorators/faults.h"
#include "transport/device_private.h"
#include "transport/links.h"
#include "transport/turn.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { GID_TABLE = 256 };

static const struct provider *const providers[] = {&provider_ibverbs, &provider_softnic};
enum { N_PROVIDERS = sizeof providers / sizeof *providers };

static bool wire_given(const struct sstar_wire *wire)
{
    return wire->alpha_us > 0 || wire->gap_us > 0 || wire->beta_gbps > 0;
}

void names_append(char *text, size_t size, const char *name)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? ", " : "", name);
}

/* ---- choice --------------------------------------------------------------------------------- */

/* The name of this rank's device: entry rank mod n of the n names given, separated by commas.
 * NULL: none was given. */
static int name_for(struct sstar_world *world, char *name, const char **wanted)
{
    const char *list = world->config.ib_dev;
    int n = 1, entry = 0;
    *wanted = NULL;
    if (!list[0])
        return 0;
    for (const char *c = list; *c; c++)
        n += *c == ',';
    for (entry = world->rank % n; entry > 0; entry--)
        list = strchr(list, ',') + 1;
    size_t length = strcspn(list, ",");
    if (length == 0)
        return report_set(&world->report, -EINVAL,
                          "the list of devices %s has an empty entry for rank %d",
                          world->config.ib_dev, world->rank);
    memcpy(name, list, length);
    name[length] = '\0';
    *wanted = name;
    return 0;
}

/* Which way its queue pairs are connected. */
static int connector_choose(struct sstar_world *world, const struct provider *provider,
                            struct device *device)
{
    bool rdmacm = world->config.connect == SSTAR_CONNECT_RDMACM;
    device->connector = rdmacm ? &connector_rdmacm : &connector_exchange;
    if (!rdmacm || provider->rdmacm)
        return 0;
    return report_set(&world->report, -EOPNOTSUPP,
                      "device %s (%s) is built into sstar, and librdmacm does not know it; "
                      "leave out --connect rdmacm, or name a device of libibverbs "
                      "with --ib-dev (see sstar devices)",
                      device->name, device->why);
}

static int provider_open(struct sstar_world *world, struct device *device)
{
    char name[sizeof world->config.ib_dev];
    const char *wanted;
    int unnamed = name_for(world, name, &wanted);
    if (unnamed)
        return unnamed;
    bool shaped =
        wire_given(&world->config.wire) || world->config.order.relaxed || world->config.capture;
    for (int i = 0; i < N_PROVIDERS; i++) {
        if (shaped && !providers[i]->shapeable && !wanted)
            continue;
        int err = providers[i]->open(world, wanted, device);
        if (err == -ENODEV)
            continue;
        if (!err) {
            device->verbs = providers[i]->verbs;
            err = connector_choose(world, providers[i], device);
        }
        if (!err && shaped && !providers[i]->shapeable)
            return report_set(&world->report, -EINVAL,
                              "a wire or an order to imitate, or a capture, was given together "
                              "with device %s, and "
                              "only softnic imitates and captures: leave out one of the two",
                              device->name);
        return err;
    }
    char there_is[256] = "";
    for (int i = 0; i < N_PROVIDERS; i++)
        providers[i]->list(there_is, sizeof there_is);
    return report_set(&world->report, -ENODEV, "there is no device %s here; there is: %s",
                      wanted ? wanted : "to be used", there_is);
}

static void say_fault(void *arg, const char *line)
{
    log_line(arg, SSTAR_LOG_INFO, "%s", line);
}

static void say_misuse(void *arg, const char *line)
{
    log_line(arg, SSTAR_LOG_WARN, "%s", line);
}

/* Lists are posted then: ibv_wr_* would not be seen. */
static int check_put_on(struct sstar_world *world, struct device *device)
{
    if (!world->config.check_verbs)
        return 0;
    struct check_attr attr = {.inner = device->verbs, .say = say_misuse, .arg = &world->log};
    int err = check_attach(device->context, &attr);
    if (err)
        return report_set(&world->report, -err, "device %s cannot be looked at: %s", device->name,
                          strerror(err));
    device->verbs = check_table(device->context);
    device->has_wr_api = false;
    return 0;
}

/* From here on the device is used through the decorator. */
static int faults_put_on(struct sstar_world *world, struct device *device)
{
    struct fault_plan *plan;
    char error[256];
    if (!world->config.faults)
        return 0;
    int err = fault_plan_parse(world->config.faults, world->config.faults_seed, &plan, error,
                               sizeof error);
    if (err)
        return report_set(&world->report, err, "%s", error);
    struct faults_attr attr = {.inner = device->verbs,
                               .plan = plan,
                               .rank = world->rank,
                               .say = say_fault,
                               .arg = &world->log};
    unsigned long long seed = fault_plan_seed(plan);
    err = faults_attach(device->context, &attr);
    fault_plan_free(plan);
    if (err)
        return report_set(&world->report, -err, "device %s cannot be made to fail: %s",
                          device->name, strerror(err));
    device->verbs = &verbs_faults;
    log_line(&world->log, world->rank == 0 ? SSTAR_LOG_WARN : SSTAR_LOG_INFO,
             "device %s misbehaves as the fault plan says, seed %llu replays it", device->name,
             seed);
    return 0;
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
    bool ethernet = device->link_layer == IBV_LINK_LAYER_ETHERNET;
    int wanted = world->config.gid_index;
    int chosen = gid_choose(table, n, ethernet, wanted, why, sizeof why);
    if (chosen < 0)
        return report_set(&world->report, chosen, "device %s port %u: %s", device->name,
                          device->port, why);
    device->gid = table[chosen].gid;
    device->gid_index = table[chosen].index;
    device->n_gids = gid_usable(table, n, ethernet, wanted, device->gids);
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
    device->part_bytes = device->part_packets * (128u << port.active_mtu);
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
        err = check_put_on(world, device);
    if (!err)
        err = device_query(world, device);
    if (!err)
        err = faults_put_on(world, device);
    if (!err)
        err = device_events_watch(world, device);
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
    device_events_unwatch(world, world->device);
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

/* ---- sstar_device_info ---------------------------------------------------------------------- */

int sstar_device_info(struct sstar_world *world, struct sstar_device_info *info)
{
    WORLD_TURN(world);
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
