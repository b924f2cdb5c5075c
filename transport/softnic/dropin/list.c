/* SPDX-License-Identifier: MIT */
/* The device list: softnic's ports first, then what the real library finds. */
#include "transport/softnic/dropin/dropin.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The array that the program gets stands behind this head. */
struct list {
    struct ibv_device **softnic, **real;
    struct ibv_device *devices[];
};

static struct ibv_device **real_list(int *count)
{
    struct ibv_device **(*get)(int *) =
        (struct ibv_device * *(*)(int *)) dropin_find("libibverbs.so.1", "ibv_get_device_list");
    struct ibv_device **devices = get != NULL ? get(count) : NULL;
    if (devices == NULL)
        *count = 0; /* no RDMA in this kernel, as a rule */
    return devices;
}

EXPORT struct ibv_device **ibv_get_device_list(int *num_devices)
{
    int n_softnic, n_real;
    struct ibv_device **softnic = softnic_get_device_list(&n_softnic);
    if (softnic == NULL)
        return NULL;
    struct ibv_device **real = real_list(&n_real);
    size_t n = (size_t)n_softnic + (size_t)n_real;
    struct list *list = calloc(1, sizeof *list + (n + 1) * sizeof *list->devices);
    if (list == NULL) {
        if (real != NULL)
            REAL(ibv_free_device_list)(real);
        softnic_free_device_list(softnic);
        errno = ENOMEM;
        return NULL;
    }
    list->softnic = softnic;
    list->real = real;
    memcpy(list->devices, softnic, (size_t)n_softnic * sizeof *softnic);
    if (n_real > 0)
        memcpy(list->devices + n_softnic, real, (size_t)n_real * sizeof *real);
    if (num_devices != NULL)
        *num_devices = (int)n;
    return list->devices;
}

EXPORT void ibv_free_device_list(struct ibv_device **devices)
{
    if (devices == NULL)
        return;
    struct list *list = (struct list *)((char *)devices - offsetof(struct list, devices));
    if (list->real != NULL)
        REAL(ibv_free_device_list)(list->real);
    softnic_free_device_list(list->softnic);
    free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

EXPORT __be64 ibv_get_device_guid(struct ibv_device *device)
{
    return softnic_is_device(device) ? softnic_get_device_guid(device)
                                     : REAL(ibv_get_device_guid)(device);
}

EXPORT int ibv_get_device_index(struct ibv_device *device)
{
    /* That is the kernel's number of it: it has none. */
    return softnic_is_device(device) ? -1 : REAL(ibv_get_device_index)(device);
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    if (!softnic_is_device(device))
        return REAL(ibv_open_device)(device);
    char error[512] = "";
    struct softnic_attr attr = {
        .port_name = device->name, .error = error, .error_size = sizeof error};
    struct ibv_context *context = softnic_open_port(&attr);
    if (context == NULL && error[0] != '\0')
        fprintf(stderr, "softnic: %s\n", error); /* the program knows errno at best */
    return context != NULL ? dropin_decorate(context) : NULL;
}

EXPORT int ibv_close_device(struct ibv_context *context)
{
    return ours(context) ? table(context)->close_device(context) : REAL(ibv_close_device)(context);
}

EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
    return REAL(ibv_import_device)(cmd_fd); /* ours have no descriptor */
}

/* Attributes that programs read from sysfs, which knows nothing of our ports. */
EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
    static const char *const known[][2] = {{"hca_type", "softnic"},
                                           {"board_id", "softnic"},
                                           {"node_type", "1: CA"},
                                           {"fw_ver", "1.0"}};
    if (!softnic_is_sysfs_path(dir))
        return REAL(ibv_read_sysfs_file)(dir, file, buf, size);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i][0], file) == 0)
            return snprintf(buf, size, "%s", known[i][1]);
    }
    errno = ENOENT;
    return -1;
}
