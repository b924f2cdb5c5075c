/* SPDX-License-Identifier: MIT */
/* What follows from the name of a port: an address 10.a.b.c, its GIDs, and its meeting file. */
#include "transport/softnic/nic.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool nic_port_name_good(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length <= PORT_NAME_MAX &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
               length;
}

uint32_t nic_ip_of_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325ull ^ geteuid();
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    hash ^= hash >> 32;
    hash = (hash ^ hash >> 24) & 0xffffff;
    if (hash == 0 || hash == 0xffffff)
        hash = 1;
    return 10u << 24 | (uint32_t)hash;
}

void nic_port_path(uint32_t ip, char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/softnic-%u-%u.%u.%u.%u", (unsigned)geteuid(), ip >> 24,
             ip >> 16 & 255, ip >> 8 & 255, ip & 255);
}

/* Index 0 is link-local, made as from the MAC address 02:00:10.a.b.c; index 1 is the mapped IPv4.
 */
void nic_gid_of_ip(uint32_t ip, int index, union ibv_gid *gid)
{
    uint8_t octets[4] = {(uint8_t)(ip >> 24), (uint8_t)(ip >> 16), (uint8_t)(ip >> 8), (uint8_t)ip};
    memset(gid, 0, sizeof *gid);
    if (index == 0) {
        const uint8_t head[12] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, octets[0], 0xff};
        memcpy(gid->raw, head, sizeof head);
        gid->raw[12] = 0xfe;
        memcpy(gid->raw + 13, octets + 1, 3);
    } else {
        gid->raw[10] = gid->raw[11] = 0xff;
        memcpy(gid->raw + 12, octets, sizeof octets);
    }
}

int nic_gid_index(const union ibv_gid *gid)
{
    return gid->raw[0] == 0; /* mapped IPv4 begins with zeros */
}

/* Unicast LIDs end at 0xbfff. Two ports of a user fall on one with a chance of 1 to 49150: then
 * GIDs tell them apart. */
uint16_t nic_lid_of_ip(uint32_t ip)
{
    return (uint16_t)(1 + (ip * 2654435761u >> 8) % 0xbffe);
}

uint32_t nic_ip_of_lid(uint16_t lid)
{
    DIR *dir = opendir("/dev/shm");
    uint32_t found = 0;
    if (dir == NULL)
        return 0;
    for (const struct dirent *entry; found == 0 && (entry = readdir(dir)) != NULL;) {
        unsigned user, a, b, c, d;
        if (sscanf(entry->d_name, "softnic-%u-%u.%u.%u.%u", &user, &a, &b, &c, &d) != 5 ||
            user != geteuid())
            continue;
        uint32_t ip = a << 24 | b << 16 | c << 8 | d;
        if (nic_lid_of_ip(ip) == lid)
            found = ip;
    }
    closedir(dir);
    return found;
}

uint32_t nic_ip_of_gid(const union ibv_gid *gid)
{
    uint32_t ip =
        10u << 24 | (uint32_t)gid->raw[13] << 16 | (uint32_t)gid->raw[14] << 8 | gid->raw[15];
    for (int index = 0; index < 2; index++) {
        union ibv_gid ours;
        nic_gid_of_ip(ip, index, &ours);
        if (memcmp(&ours, gid, sizeof ours) == 0)
            return ip;
    }
    return 0;
}

int softnic_mac_of_gid(const union ibv_gid *gid, uint8_t mac[6])
{
    uint32_t ip = nic_ip_of_gid(gid);
    if (ip == 0)
        return EINVAL;
    const uint8_t made[6] = {
        2, 0, (uint8_t)(ip >> 24), (uint8_t)(ip >> 16), (uint8_t)(ip >> 8), (uint8_t)ip};
    memcpy(mac, made, sizeof made);
    return 0;
}
