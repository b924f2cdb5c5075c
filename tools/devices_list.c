/* SPDX-License-Identifier: MIT */
/*
 * The list of devices, from both tables of verbs. Which device and which GID would be taken is not
 * decided here: a world of one rank is opened and asked, so that the list cannot say anything else
 * than what the transport does.
 */
#include "tools/devices.h"
#include "tools/tool.h"
#include "transport/verbs.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct sstar_config lone(const struct sstar_config *config)
{
    struct sstar_config c = *config;
    c.rank = 0;
    c.size = 1;
    c.ranks_per_node = 0;
    strcpy(c.launcher, "none");
    strcpy(c.root_host, "127.0.0.1");
    launch_token(c.token, sizeof(c.token)); /* not the port of a job that runs here */
    return c;
}

int devices_chosen(const struct sstar_config *config, struct sstar_device_info *info, char *error,
                   size_t error_size)
{
    struct sstar_config c = lone(config);
    struct sstar_world *world;
    int err = sstar_world_open(&world, &c, error, error_size);
    if (err)
        return err;
    err = sstar_device_info(world, info);
    if (err)
        snprintf(error, error_size, "%s", sstar_last_error(world));
    sstar_world_close(world);
    return err;
}

static const char *state_name(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_NOP:
        return "none";
    case IBV_PORT_DOWN:
        return "down";
    case IBV_PORT_INIT:
        return "init";
    case IBV_PORT_ARMED:
        return "armed";
    case IBV_PORT_ACTIVE:
        return "active";
    case IBV_PORT_ACTIVE_DEFER:
        return "active-defer";
    default:
        return "unknown";
    }
}

static const char *link_layer_name(uint8_t link_layer)
{
    return link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "Ethernet";
}

static const char *gid_type_name(uint32_t type)
{
    switch (type) {
    case IBV_GID_TYPE_IB:
        return "IB";
    case IBV_GID_TYPE_ROCE_V1:
        return "RoCEv1";
    case IBV_GID_TYPE_ROCE_V2:
        return "RoCEv2";
    default:
        return "unknown";
    }
}

static void add_gids(json_t *device, const struct verbs *verbs, struct ibv_context *context,
                     uint8_t port, int n, const struct sstar_device_info *chosen)
{
    json_t *gids = json_object_get(device, "gids");
    for (int i = 0; i < n; i++) {
        struct ibv_gid_entry entry;
        char text[INET6_ADDRSTRLEN];
        if (verbs->query_gid_ex(context, port, (uint32_t)i, &entry, 0))
            continue; /* an empty place of the table */
        inet_ntop(AF_INET6, entry.gid.raw, text, sizeof(text));
        bool taken = chosen && chosen->gid_index == i;
        json_t *gid = json_object();
        json_object_set(gid, "device", json_object_get(device, "device"));
        json_object_set_new(gid, "index", json_integer(i));
        json_object_set_new(gid, "type", json_string(gid_type_name(entry.gid_type)));
        json_object_set_new(gid, "gid", json_string(text));
        json_object_set_new(gid, "chosen", json_boolean(taken));
        if (taken)
            json_object_set_new(gid, "why", json_string(chosen->gid_why));
        json_array_append_new(gids, gid);
    }
}

static void add_port(json_t *device, const struct verbs *verbs, struct ibv_context *context,
                     uint8_t port, const struct sstar_device_info *chosen)
{
    struct ibv_port_attr attr;
    if (verbs->query_port(context, port, &attr))
        return;
    json_object_set_new(device, "port", json_integer(port));
    json_object_set_new(device, "state", json_string(state_name(attr.state)));
    json_object_set_new(device, "link_layer", json_string(link_layer_name(attr.link_layer)));
    json_object_set_new(device, "mtu_bytes", json_integer(128 << attr.active_mtu));
    add_gids(device, verbs, context, port, attr.gid_tbl_len, chosen);
}

static void add_device(json_t *list, const struct verbs *verbs, struct ibv_device *handle,
                       const struct sstar_config *config)
{
    const char *name = verbs->get_device_name(handle);
    struct sstar_config named = *config;
    struct sstar_device_info info, *usable = NULL;
    char error[512] = "";
    snprintf(named.ib_dev, sizeof(named.ib_dev), "%s", verbs == &verbs_softnic ? "softnic" : name);
    if (!devices_chosen(&named, &info, error, sizeof(error)))
        usable = &info;
    json_t *device = json_object();
    json_object_set_new(device, "device", json_string(name));
    json_object_set_new(device, "class",
                        usable ? json_string(info.device_class) : json_string("unusable"));
    json_object_set_new(device, "gids", json_array());
    struct ibv_context *context = verbs->open_device(handle);
    if (context) {
        add_port(device, verbs, context, 1, usable);
        verbs->close_device(context);
    } else if (!error[0]) {
        snprintf(error, sizeof(error), "cannot be opened: %s", strerror(errno));
    }
    if (error[0])
        json_object_set_new(device, "error", json_string(error));
    json_array_append_new(list, device);
}

static void add_devices(json_t *list, const struct verbs *verbs, const struct sstar_config *config)
{
    int n = 0;
    struct ibv_device **devices = verbs->get_device_list(&n);
    for (int i = 0; devices && i < n; i++)
        add_device(list, verbs, devices[i], config);
    if (devices)
        verbs->free_device_list(devices);
}

static void mark_chosen(json_t *list, const struct sstar_device_info *chosen)
{
    bool softnic = !strncmp(chosen->device_class, "softnic", 7);
    size_t i;
    json_t *device;
    json_array_foreach(list, i, device)
    {
        const char *name = json_string_value(json_object_get(device, "device"));
        const char *class = json_string_value(json_object_get(device, "class"));
        bool same = softnic ? !strncmp(class, "softnic", 7) : !strcmp(name, chosen->name);
        json_object_set_new(device, "chosen", json_boolean(same));
        if (same)
            json_object_set_new(device, "why", json_string(chosen->why));
    }
}

json_t *devices_list(const struct sstar_config *config)
{
    json_t *list = json_array();
    struct sstar_device_info chosen;
    char error[512];
    add_devices(list, &verbs_ibverbs, config);
    add_devices(list, &verbs_softnic, config);
    if (!devices_chosen(config, &chosen, error, sizeof(error)))
        mark_chosen(list, &chosen);
    return list;
}
