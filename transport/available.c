/* SPDX-License-Identifier: MIT */
/*
 * How much memory there is to be had. A memfd has no limit of its own: the kernel would give it all
 * the memory of the machine and then kill somebody, so we ask first.
 */
#include "transport/available.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t machine_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    uint64_t kib, available = UINT64_MAX;
    char line[128];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            available = kib * 1024;
    if (file)
        fclose(file);
    return available;
}

/* The first number in a file of our group; UINT64_MAX where there is none ("max"). */
static uint64_t group_number(const char *group, const char *name)
{
    char path[512];
    uint64_t value = UINT64_MAX;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", strcmp(group, "/") ? group : "", name);
    FILE *file = fopen(path, "re");
    if (!file)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    fclose(file);
    return value;
}

/* What the memory cgroup (version 2) allows altogether. What it uses is mostly page cache, which
 * the kernel takes back, so it is not subtracted. */
static uint64_t group_limit(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[300], group[256] = "";
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "0::%255s", group) == 1)
            break;
    if (file)
        fclose(file);
    if (!group[0])
        return UINT64_MAX;
    return group_number(group, "memory.max");
}

uint64_t memory_available(void)
{
    uint64_t machine = machine_available(), group = group_limit();
    return machine < group ? machine : group;
}
