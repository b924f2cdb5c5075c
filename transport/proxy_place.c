/* SPDX-License-Identifier: MIT */
#include "transport/proxy_place.h"
#include "transport/launcher.h"

enum { MOST_CPUS = 1024 };

bool proxy_place(struct sstar_world *world, uint32_t i, cpu_set_t *cpus)
{
    int named[MOST_CPUS], n = config_cpus(world->config.proxy_cpus, named, MOST_CPUS);
    CPU_ZERO(cpus);
    if (n > 0) {
        CPU_SET(named[i % (uint32_t)n], cpus);
        return true;
    }
    *cpus = world->allowed;
    return CPU_COUNT(cpus) > 0;
}
