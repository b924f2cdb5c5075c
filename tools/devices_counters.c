/* SPDX-License-Identifier: MIT */
/* Counters of ports, while others use them: of softnic from the shared memory of its ports, of
 * kernel devices from sysfs. */
#include "tools/devices.h"
#include "tools/record.h"
#include "transport/softnic/softnic.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNTER_COLUMNS                                                                            \
    {"wqes", "WQEs", "%d", 10}, {"doorbells", "doorbells", "%d", 10},                              \
        {"bytes", "bytes", "%d", 14}, {"cqes", "CQEs", "%d", 10},                                  \
        {"received_cqes", "recv CQEs", "%d", 10}, {"received_bytes", "recv bytes", "%d", 14},      \
        {"rnr", "RNR", "%d", 6}, {"retries", "retries", "%d", 8}, {"drops", "drops", "%d", 6},     \
    {                                                                                              \
        "errors", "errors", "%d", 6                                                                \
    }

static const struct column port_columns[] = {
    {"port", "port", "%s", -30},
    {"processes", "procs", "%d", 5},
    {"queue_pairs", "QPs", "%d", 5},
    COUNTER_COLUMNS,
};
static const struct column qp_columns[] = {
    {"port", "port", "%s", -30},
    {"pid", "pid", "%d", 8},
    {"qp", "QP", "%s", 9},
    {"dest_qp", "to", "%s", 9},
    {"type", "type", "%s", 4},
    {"state", "state", "%s", 6},
    COUNTER_COLUMNS,
};
static const struct column kernel_columns[] = {
    {"port", "port", "%s", -20}, {"counter", "counter", "%s", -32}, {"value", "value", "%d", 16}};

static void set_counters(json_t *row, const struct softnic_counters *c)
{
    json_object_set_new(row, "wqes", json_integer((json_int_t)c->wqes));
    json_object_set_new(row, "doorbells", json_integer((json_int_t)c->doorbells));
    json_object_set_new(row, "bytes", json_integer((json_int_t)c->bytes));
    json_object_set_new(row, "cqes", json_integer((json_int_t)c->cqes));
    json_object_set_new(row, "received_cqes", json_integer((json_int_t)c->received_cqes));
    json_object_set_new(row, "received_bytes", json_integer((json_int_t)c->received_bytes));
    json_object_set_new(row, "rnr", json_integer((json_int_t)c->rnr));
    json_object_set_new(row, "retries", json_integer((json_int_t)c->retries));
    json_object_set_new(row, "drops", json_integer((json_int_t)c->drops));
    json_object_set_new(row, "errors", json_integer((json_int_t)c->errors));
}

static json_t *hex(uint32_t number)
{
    char text[16];
    snprintf(text, sizeof(text), "0x%06x", number);
    return json_string(text);
}

static const char *type_name(enum ibv_qp_type type)
{
    return type == IBV_QPT_RC ? "RC" : type == IBV_QPT_UC ? "UC" : type == IBV_QPT_UD ? "UD" : "?";
}

static const char *state_name(enum ibv_qp_state state)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return (unsigned)state < sizeof(names) / sizeof(*names) ? names[state] : "?";
}

struct lists {
    json_t *ports, *qps;
};

static void see_qp(void *arg, const struct softnic_port_counters *port,
                   const struct softnic_qp_counters *qp)
{
    const struct lists *lists = arg;
    json_t *row = json_object();
    json_object_set_new(row, "port", json_string(port->name));
    json_object_set_new(row, "pid", json_integer(qp->pid));
    json_object_set_new(row, "qp", hex(qp->qp_num));
    if (qp->dest_qp_num)
        json_object_set_new(row, "dest_qp", hex(qp->dest_qp_num));
    json_object_set_new(row, "type", json_string(type_name(qp->type)));
    json_object_set_new(row, "state", json_string(state_name(qp->state)));
    set_counters(row, &qp->counters);
    json_array_append_new(lists->qps, row);
}

static void see_port(void *arg, const struct softnic_port_counters *port)
{
    const struct lists *lists = arg;
    char gid[INET6_ADDRSTRLEN];
    json_t *row = json_object();
    json_object_set_new(row, "port", json_string(port->name));
    inet_ntop(AF_INET6, port->gid.raw, gid, sizeof(gid));
    json_object_set_new(row, "gid", json_string(gid));
    json_object_set_new(row, "processes", json_integer(port->processes));
    json_object_set_new(row, "queue_pairs", json_integer(port->queue_pairs));
    set_counters(row, &port->counters);
    json_array_append_new(lists->ports, row);
}

/* /sys/class/infiniband/DEVICE/ports/N/counters/NAME, and hw_counters */
static void add_file(json_t *list, const char *path)
{
    char device[64], port[8], kind[16], name[64];
    unsigned long long value;
    if (sscanf(path, "/sys/class/infiniband/%63[^/]/ports/%7[^/]/%15[^/]/%63s", device, port, kind,
               name) != 4)
        return;
    FILE *file = fopen(path, "re");
    bool is_number = file && fscanf(file, "%llu", &value) == 1;
    if (file)
        fclose(file);
    if (!is_number)
        return;
    char where[80];
    snprintf(where, sizeof(where), "%s/%s", device, port);
    json_t *row = json_object();
    json_object_set_new(row, "port", json_string(where));
    json_object_set_new(row, "counter", json_string(name));
    json_object_set_new(row, "value", json_integer((json_int_t)value));
    json_array_append_new(list, row);
}

static json_t *kernel_counters(void)
{
    json_t *list = json_array();
    glob_t found;
    if (glob("/sys/class/infiniband/*/ports/*/*counters/*", 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            add_file(list, found.gl_pathv[i]);
        globfree(&found);
    }
    return list;
}

static void print_list(const json_t *list, const struct column *columns, int n)
{
    size_t i;
    json_t *row;
    table_head(stdout, columns, n);
    json_array_foreach(list, i, row) table_row(stdout, columns, n, row);
}

int devices_counters(json_t *record, bool print)
{
    struct lists lists = {json_array(), json_array()};
    const struct softnic_counters_visitor visitor = {see_qp, see_port, &lists};
    int err = softnic_visit_counters(&visitor);
    json_t *kernel = kernel_counters();
    json_object_set_new(record, "softnic_ports", lists.ports);
    json_object_set_new(record, "softnic_queue_pairs", lists.qps);
    json_object_set_new(record, "kernel_counters", kernel);
    if (err) {
        fprintf(stderr, "sstar devices: the counters of softnic cannot be read: %s\n",
                strerror(err));
        return 1;
    }
    if (!print)
        return 0;
    if (json_array_size(lists.ports) == 0)
        printf("# no process of this user has a port of softnic open\n");
    else
        print_list(lists.ports, port_columns, sizeof(port_columns) / sizeof(*port_columns));
    if (json_array_size(lists.qps))
        print_list(lists.qps, qp_columns, sizeof(qp_columns) / sizeof(*qp_columns));
    if (json_array_size(kernel))
        print_list(kernel, kernel_columns, sizeof(kernel_columns) / sizeof(*kernel_columns));
    return 0;
}
