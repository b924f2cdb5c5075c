/* SPDX-License-Identifier: MIT */
/* Ports of softnic as librdmacm shows them: opened once, kept open while the library is there. */
#include "transport/softnic/cm/cm.h"
#include "transport/softnic/nic.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* librdmacm's calls carry no handle that could hold these; guarded by cm_lock. */
static struct ibv_device **list_of_devices;
static struct cm_device *devices;
static int device_count;

static int load(void)
{
    if (devices != NULL)
        return 0;
    int count = 0;
    struct ibv_device **list = softnic_get_device_list(&count);
    if (list == NULL)
        return -errno;
    devices = count > 0 ? calloc((size_t)count, sizeof *devices) : NULL;
    if (devices == NULL) {
        softnic_free_device_list(list);
        return count > 0 ? -ENOMEM : -ENODEV;
    }
    for (int i = 0; i < count; i++) {
        devices[i].ip = nic_ip_of_name(list[i]->name);
        nic_gid_of_ip(devices[i].ip, 1, &devices[i].gid);
    }
    list_of_devices = list;
    device_count = count;
    return 0;
}

static int open_device(struct cm_device *device)
{
    struct ibv_device_attr attr;
    if (device->verbs != NULL)
        return 0;
    char error[512] = "";
    struct softnic_attr open = {.port_name = list_of_devices[device - devices]->name,
                                .error = error,
                                .error_size = sizeof error};
    struct ibv_context *verbs = softnic_open_port(&open);
    if (verbs == NULL) {
        int why = errno;
        if (error[0] != '\0')
            fprintf(stderr, "softnic: %s\n", error); /* the program knows errno at best */
        return -why;
    }
    int err = softnic_query_device(verbs, &attr);
    if (err == 0 && (device->pd = softnic_alloc_pd(verbs)) == NULL)
        err = errno;
    if (err != 0) {
        softnic_close_device(verbs);
        return -err;
    }
    device->max_initiator_depth = (uint8_t)attr.max_qp_init_rd_atom;
    device->max_responder_resources = (uint8_t)attr.max_qp_rd_atom;
    device->verbs = verbs;
    return 0;
}

/* A port by its own address, any other address of this host by the first port. */
int cm_device_bind(struct cm_id *id, const struct sockaddr *addr)
{
    int err = load();
    if (err != 0)
        return err;
    uint32_t ip = cm_address_softnic_ip(addr);
    struct cm_device *device = NULL;
    for (int i = 0; i < device_count && device == NULL; i++) {
        if (devices[i].ip == ip)
            device = &devices[i];
    }
    if (device == NULL && !cm_address_is_of_host(addr))
        return -EADDRNOTAVAIL;
    if (device == NULL)
        device = &devices[0];
    err = open_device(device);
    if (err != 0)
        return err;
    id->device = device;
    id->base.verbs = device->verbs;
    id->base.port_num = 1;
    if (id->base.pd == NULL)
        id->base.pd = device->pd;
    return 0;
}

/* Is there a port of ours with that address, or is it this host's? */
bool cm_device_leads_to(const struct sockaddr *addr)
{
    char path[64];
    struct stat st;
    uint32_t ip = cm_address_softnic_ip(addr);
    if (ip != 0) {
        for (int i = 0; i < device_count; i++) {
            if (devices[i].ip == ip)
                return true;
        }
        nic_port_path(ip, path, sizeof path);
        if (stat(path, &st) == 0)
            return true;
    }
    return cm_address_is_of_host(addr);
}

void cm_device_fill_gids(struct cm_id *id)
{
    struct rdma_addr *addr = &id->base.route.addr;
    uint32_t ip = addr->dst_addr.sa_family != 0 ? cm_address_softnic_ip(&addr->dst_addr) : 0;
    addr->addr.ibaddr.sgid = id->device->gid;
    addr->addr.ibaddr.dgid = id->device->gid;
    if (ip != 0)
        nic_gid_of_ip(ip, 1, &addr->addr.ibaddr.dgid);
    addr->addr.ibaddr.pkey = htons(0xffff);
}

int cm_device_fill_path(struct cm_id *id)
{
    struct rdma_route *route = &id->base.route;
    if (route->path_rec == NULL)
        route->path_rec = calloc(1, sizeof *route->path_rec);
    if (route->path_rec == NULL)
        return -ENOMEM;
    enum { EXACTLY = 2 };
    *route->path_rec = (struct ibv_sa_path_rec){
        .dgid = route->addr.addr.ibaddr.dgid,
        .sgid = route->addr.addr.ibaddr.sgid,
        .hop_limit = CM_HOP_LIMIT,
        .traffic_class = id->tos,
        .reversible = 1,
        .numb_path = 1,
        .pkey = htons(0xffff),
        .mtu_selector = EXACTLY,
        .mtu = IBV_MTU_4096,
        .rate_selector = EXACTLY,
        .rate = IBV_RATE_100_GBPS,
        .packet_life_time_selector = EXACTLY,
        .packet_life_time = (uint8_t)(id->ack_timeout - 1),
    };
    route->num_paths = 1;
    return 0;
}

/* Every caller gets a list of the contexts that ids use, too. */
struct ibv_context **rdma_get_devices(int *num_devices)
{
    struct ibv_context **list = NULL;
    int count = 0;
    cm_enter();
    int err = -load();
    if (err == 0) {
        list = calloc((size_t)device_count + 1, sizeof *list);
        err = list == NULL ? ENOMEM : 0;
    }
    for (int i = 0; err == 0 && i < device_count; i++) {
        if (open_device(&devices[i]) == 0)
            list[count++] = devices[i].verbs;
    }
    cm_leave();
    if (num_devices != NULL)
        *num_devices = count;
    if (err != 0)
        errno = err;
    return list;
}

void rdma_free_devices(struct ibv_context **list)
{
    free(list);
}

/* The program may still have threads at work on its ports: they stay mapped, but their files under
 * /dev/shm go now and not when the next process clears up. */
__attribute__((destructor)) static void leave(void)
{
    for (int i = 0; i < device_count; i++) {
        if (devices[i].verbs != NULL && !nic_after_fork(to_ctx(devices[i].verbs)))
            nic_port_unlist(to_ctx(devices[i].verbs));
    }
}
