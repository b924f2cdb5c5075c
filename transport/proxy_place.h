/* SPDX-License-Identifier: MIT */
/* Where a proxy runs: near its NIC, by hwloc where it was there to build with. Private. */
#ifndef SSTAR_TRANSPORT_PROXY_PLACE_H
#define SSTAR_TRANSPORT_PROXY_PLACE_H

#include "transport/world.h"

/* The CPUs for proxy i of this rank; false: wherever the system puts it. Warns on the log where
 * that is on another socket than the device. */
bool proxy_place(struct sstar_world *world, uint32_t i, cpu_set_t *cpus);

/* The CPUs nearest to a device of this name, and those of its socket. Of the machine, or of the
 * topology that HWLOC_XMLFILE names. 0; -ENODEV: it is not in the topology; -EOPNOTSUPP without
 * hwloc; another negative errno. */
int place_near(const char *device, cpu_set_t *near, cpu_set_t *socket);
/* Whether some of `cpus` lie on another socket. */
bool place_apart(const cpu_set_t *cpus, const cpu_set_t *socket);

#endif
