/* SPDX-License-Identifier: MIT */
/* The devices on which the conformance suite runs, each with what it is known not to do. */
#include "tests/conformance.h"
#include "tests/seeds.h"
#include "transport/decorators/faults.h"
#include "transport/softnic/softnic.h"
#include <stdio.h>
#include <unistd.h>

static struct ibv_context *open_softnic(const struct trial *t, int side)
{
    char name[64], error[256] = "";
    struct softnic_wire wire = {.alpha_us = t->device->alpha_us,
                                .gap_us = t->device->alpha_us / 10,
                                .beta_gbps = t->device->alpha_us > 0 ? 1 : 0};
    snprintf(name, sizeof name, "conformance.%d.%c", (int)t->root,
             t->device->one_port ? 'a' : 'a' + side);
    struct softnic_order order = {0};
    struct softnic_attr attr = {
        .port_name = name, .wire = &wire, .error = error, .error_size = sizeof error};
    if (t->device->order && softnic_read_order(t->device->order, &order) == 0)
        attr.order = &order;
    struct ibv_context *context = softnic_open_port(&attr);
    if (!context)
        fprintf(stderr, "softnic port %s: %s\n", name, error);
    return context;
}

static const struct device softnic_two_ports = {
    .name = "softnic", .verbs = &verbs_softnic, .open = open_softnic, .strict = true};
static const struct device softnic_one_port = {.name = "softnic-one-port",
                                               .verbs = &verbs_softnic,
                                               .open = open_softnic,
                                               .one_port = true,
                                               .strict = true};
/* On a shaped wire what is posted waits for its turn, and whoever polls the sender's port moves it
 * on; a completion that is announced early is not shown before it is due. */
static const struct device softnic_shaped = {.name = "softnic-shaped",
                                             .verbs = &verbs_softnic,
                                             .open = open_softnic,
                                             .alpha_us = 20,
                                             .polled = true,
                                             .strict = true};

static const struct device softnic_relaxed = {.name = "softnic-relaxed",
                                              .verbs = &verbs_softnic,
                                              .open = open_softnic,
                                              .order = "relaxed,1",
                                              .strict = true};
static const struct device softnic_relaxed_qps = {.name = "softnic-relaxed-qps",
                                                  .verbs = &verbs_softnic,
                                                  .open = open_softnic,
                                                  .order = "relaxed-qps,1",
                                                  .one_port = true,
                                                  .strict = true};

/* Through the decorator with a plan that never strikes: what it passes on is still verbs. */
static struct ibv_context *open_decorated(const struct trial *t, int side)
{
    struct ibv_context *context = open_softnic(t, side);
    struct fault_plan *plan;
    char error[256] = "";
    if (!context || fault_plan_parse("drop nth=1000000000; late nth=1000000000 by=1s; "
                                     "fatal nth=1000000000; down after=100000s",
                                     1, &plan, error, sizeof error)) {
        fprintf(stderr, "%s\n", error);
        return NULL;
    }
    struct faults_attr attr = {.inner = &verbs_softnic, .plan = plan};
    int err = faults_attach(context, &attr);
    fault_plan_free(plan);
    if (err)
        fprintf(stderr, "faults: %s\n", strerror(err));
    return err ? NULL : context;
}

static const struct exception decorated_exceptions[] = {
    {"the device list can be taken and freed", "get_device_list",
     "the decorator wraps a context that another table has opened", false},
    {0}};
static const struct device softnic_decorated = {.name = "softnic-faults",
                                                .verbs = &verbs_faults,
                                                .open = open_decorated,
                                                .strict = true,
                                                .exceptions = decorated_exceptions};

/* Both sides are contexts of one device. */
static struct ibv_context *open_ibverbs(const struct trial *t, int side)
{
    (void)side;
    int count = 0;
    struct ibv_device **list = t->verbs->get_device_list(&count);
    struct ibv_context *context = NULL;
    errno = ENODEV;
    for (int i = 0; list && i < count && !context; i++)
        if (!strcmp(t->verbs->get_device_name(list[i]), t->device->name))
            context = t->verbs->open_device(list[i]);
    if (list)
        t->verbs->free_device_list(list);
    return context;
}

const struct device *device_enrolled(size_t index)
{
    static const struct device *const enrolled[] = {&softnic_two_ports, &softnic_one_port,
                                                    &softnic_shaped,    &softnic_decorated,
                                                    &softnic_relaxed,   &softnic_relaxed_qps};
    /* What a sanitizer would see on the last it sees on others. */
    size_t n = sizeof enrolled / sizeof *enrolled - (sanitized() ? 1 : 0);
    return index < n ? enrolled[index] : NULL;
}

static bool ibverbs_has(const char *name)
{
    int count = 0;
    bool found = false;
    struct ibv_device **list = verbs_ibverbs.get_device_list(&count);
    for (int i = 0; list && i < count && !found; i++)
        found = !strcmp(verbs_ibverbs.get_device_name(list[i]), name);
    if (list)
        verbs_ibverbs.free_device_list(list);
    return found;
}

/* rdma_rxe gives its devices an attribute that no NIC has. */
static bool is_rxe(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/parent", name);
    return access(path, F_OK) == 0;
}

int device_named(const char *name, struct device *device)
{
    for (size_t i = 0; device_enrolled(i); i++)
        if (!strcmp(device_enrolled(i)->name, name)) {
            *device = *device_enrolled(i);
            return 0;
        }
    if (!ibverbs_has(name))
        return -ENODEV;
    *device = (struct device){.name = name,
                              .verbs = &verbs_ibverbs,
                              .open = open_ibverbs,
                              .one_port = true,
                              .exceptions = is_rxe(name) ? rxe_exceptions : NULL};
    return 0;
}
