/* SPDX-License-Identifier: MIT */
#include "transport/proxy_place.h"
#include "transport/device.h"
#include "transport/launcher.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef SSTAR_HAVE_HWLOC
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#endif

enum { MOST_CPUS = 1024 };

#ifdef SSTAR_HAVE_HWLOC
static int device_cpus(hwloc_topology_t topology, const char *device, cpu_set_t *near,
                       cpu_set_t *socket)
{
    hwloc_obj_t at = NULL;
    while ((at = hwloc_get_next_osdev(topology, at)) != NULL)
        if (at->name && strcmp(at->name, device) == 0)
            break;
    if (!at)
        return -ENODEV;
    hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology, at);
    hwloc_obj_t package = place;
    while (package && package->type != HWLOC_OBJ_PACKAGE)
        package = package->parent;
    if (!package) /* near several sockets alike */
        package = place;
    if (hwloc_cpuset_to_glibc_sched_affinity(topology, place->cpuset, near, sizeof *near) ||
        hwloc_cpuset_to_glibc_sched_affinity(topology, package->cpuset, socket, sizeof *socket))
        return -EIO;
    return 0;
}

int place_near(const char *device, cpu_set_t *near, cpu_set_t *socket)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return -ENOMEM;
    int err = 0;
    CPU_ZERO(near);
    CPU_ZERO(socket);
    if (hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) != 0 ||
        hwloc_topology_load(topology) != 0)
        err = -EIO;
    if (!err)
        err = device_cpus(topology, device, near, socket);
    hwloc_topology_destroy(topology);
    return err;
}
#else
int place_near(const char *device, cpu_set_t *near, cpu_set_t *socket)
{
    (void)device;
    (void)near;
    (void)socket;
    return -EOPNOTSUPP;
}
#endif

bool place_apart(const cpu_set_t *cpus, const cpu_set_t *socket)
{
    cpu_set_t both;
    CPU_AND(&both, cpus, socket);
    return !CPU_EQUAL(&both, cpus);
}

static void warn_apart(struct sstar_world *world, uint32_t i, const cpu_set_t *cpus)
{
    int cpu = 0;
    while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, cpus))
        cpu++;
    log_line(&world->log, SSTAR_LOG_WARN,
             "proxy %u may run on another socket than device %s (CPU %d and others that it may "
             "use): every doorbell and completion then crosses sockets; name CPUs near the device "
             "with --proxy-cpu (lstopo shows them)",
             i, world->device->name, cpu);
}

/* Whether the kernel knows the device; else no topology has it, and need not be looked at. */
static bool kernel_knows(const struct device *device)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s", device->name);
    return access(path, F_OK) == 0;
}

bool proxy_place(struct sstar_world *world, uint32_t i, cpu_set_t *cpus)
{
    int named[MOST_CPUS], n = config_cpus(world->config.proxy_cpus, named, MOST_CPUS);
    cpu_set_t near, socket, common;
    int unknown = world->device && kernel_knows(world->device)
                      ? place_near(world->device->name, &near, &socket)
                      : -ENODEV;
    *cpus = world->allowed;
    if (n > 0) {
        CPU_ZERO(cpus);
        CPU_SET(named[i % (uint32_t)n], cpus);
    } else if (!unknown) {
        CPU_AND(&common, &near, &world->allowed);
        if (CPU_COUNT(&common) > 0)
            *cpus = common;
    }
    if (!unknown && place_apart(cpus, &socket))
        warn_apart(world, i, cpus);
    return CPU_COUNT(cpus) > 0;
}
