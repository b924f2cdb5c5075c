/* SPDX-License-Identifier: MIT */
/* sstar devices: what speaks verbs here, and which of it would be used. */
#include "tools/devices.h"
#include "tools/record.h"
#include "tools/tool.h"
#include <stdio.h>
#include <string.h>

static const struct column device_columns[] = {
    {"device", "device", "%s", -16},  {"class", "class", "%s", -14},
    {"port", "port", "%d", 4},        {"state", "state", "%s", 8},
    {"link_layer", "link", "%s", 10}, {"mtu_bytes", "MTU", "%d", 5},
    {"chosen", "chosen", "%s", 6},
};
static const struct column gid_columns[] = {
    {"device", "device", "%s", -16}, {"index", "index", "%d", 5},      {"type", "type", "%s", 6},
    {"gid", "GID", "%s", 39},        {"chosen", "would use", "%s", 9},
};

static void print_why(const json_t *devices)
{
    size_t i, k;
    json_t *device, *gid;
    json_array_foreach(devices, i, device)
    {
        const char *name = json_string_value(json_object_get(device, "device"));
        const char *why = json_string_value(json_object_get(device, "why"));
        const char *error = json_string_value(json_object_get(device, "error"));
        if (why)
            printf("# %s is chosen: %s\n", name, why);
        json_array_foreach(json_object_get(device, "gids"), k,
                           gid) if ((why = json_string_value(json_object_get(gid, "why"))))
            printf("# GID %d of %s: %s\n", (int)json_integer_value(json_object_get(gid, "index")),
                   name, why);
        if (error)
            printf("# %s cannot be used: %s\n", name, error);
    }
}

static void print_devices(const json_t *devices)
{
    enum { N_DEVICE = sizeof(device_columns) / sizeof(struct column) };
    enum { N_GID = sizeof(gid_columns) / sizeof(struct column) };
    size_t i, k;
    json_t *device, *gid;
    table_head(stdout, device_columns, N_DEVICE);
    json_array_foreach(devices, i, device) table_row(stdout, device_columns, N_DEVICE, device);
    table_head(stdout, gid_columns, N_GID);
    json_array_foreach(devices, i, device)
        json_array_foreach(json_object_get(device, "gids"), k, gid)
            table_row(stdout, gid_columns, N_GID, gid);
    print_why(devices);
}

struct devices_options {
    struct common_options common;
    bool counters;
};

#define A(MEMBER) SETS(struct devices_options, MEMBER)

static const struct setting settings[] = {
    {"json", "FILE", "Write the list as JSON (-: stdout)", .letter = 'j', A(common.json)},
    {"counters", NULL,
     "Instead of the list: counters of ports and queue pairs, while others use them", .letter = 'c',
     A(counters)},
    {0},
};
static const struct command_line line = {
    .settings = settings,
    .doc =
        "List the devices that speak verbs, their GIDs, and which would be used and why.\v"
        "SSTAR_IB_HCA chooses a device, SSTAR_IB_GID_INDEX a GID. softnic, the NIC in user space, "
        "is always there.",
};

static int list(const struct common_options *common)
{
    bool print = !common->json || strcmp(common->json, "-") != 0;
    json_t *record = record_new(NULL, "devices"), *devices = devices_list(&common->config);
    json_object_set_new(record, "devices", devices);
    if (print)
        print_devices(devices);
    int status = record_write_json(record, common->json);
    struct sstar_device_info info;
    char error[512];
    if (devices_chosen(&common->config, &info, error, sizeof(error))) {
        fprintf(stderr, "sstar devices: %s\n", error);
        status = EXIT_FAILURE;
    }
    json_decref(record);
    return status;
}

static int counters(const struct common_options *common)
{
    bool print = !common->json || strcmp(common->json, "-") != 0;
    json_t *record = record_new(NULL, "devices");
    int status = devices_counters(record, print);
    if (!status)
        status = record_write_json(record, common->json);
    json_decref(record);
    return status;
}

static int devices_main(int argc, char **argv)
{
    struct devices_options all = {.counters = false};
    int status = common_init(&all.common);
    if (status)
        return status;
    if (command_line_parse(&line, NULL, &all, argc, argv, 0))
        return EXIT_USAGE;
    return all.counters ? counters(&all.common) : list(&all.common);
}

const struct command command_devices = {"devices", devices_main,
                                        "the devices here, and which would be used and why"};
