/* SPDX-License-Identifier: MIT */
/* Where a proxy goes, on topologies of machines that are not here. */
#include "transport/proxy_place.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

static const char head[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n";

static void sets(FILE *out, unsigned cpus, unsigned nodes)
{
    fprintf(out,
            " cpuset=\"0x%08x\" complete_cpuset=\"0x%08x\" nodeset=\"0x%08x\" "
            "complete_nodeset=\"0x%08x\"",
            cpus, cpus, nodes, nodes);
}

/* A NIC behind a bridge. */
static void nic(FILE *out, int number, const char *name)
{
    fprintf(out,
            "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" "
            "bridge_pci=\"0000:[%02x-%02x]\">\n"
            "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:00.0\" "
            "pci_type=\"0207 [15b3:1017] [15b3:0007] 00\" pci_link_speed=\"15.753846\">\n"
            "<object type=\"OSDev\" gp_index=\"%d\" name=\"%s\" osdev_type=\"3\"/>\n"
            "</object></object>\n",
            number, number, number + 1, number + 1, number + 1, number + 2, name);
}

/* `sockets` of two CPUs, each with a NIC mlx5_SOCKET; with one more, mlx5_9, near none. */
static void save_topology(const char *path, int sockets)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    unsigned all = (1u << 2 * sockets) - 1, nodes = (1u << sockets) - 1;
    fprintf(out, "%s<object type=\"Machine\" os_index=\"0\" gp_index=\"1\"", head);
    sets(out, all, nodes);
    fprintf(out, " allowed_cpuset=\"0x%08x\" allowed_nodeset=\"0x%08x\">\n", all, nodes);
    for (int s = 0; s < sockets; s++) {
        char name[16];
        fprintf(out, "<object type=\"Package\" os_index=\"%d\" gp_index=\"%d\"", s, 10 + s);
        sets(out, 3u << 2 * s, 1u << s);
        fprintf(out, ">\n<object type=\"NUMANode\" os_index=\"%d\" gp_index=\"%d\"", s, 20 + s);
        sets(out, 3u << 2 * s, 1u << s);
        fprintf(out, " local_memory=\"1073741824\"/>\n");
        for (int cpu = 2 * s; cpu < 2 * s + 2; cpu++) {
            fprintf(out, "<object type=\"PU\" os_index=\"%d\" gp_index=\"%d\"", cpu, 30 + cpu);
            sets(out, 1u << cpu, 1u << s);
            fprintf(out, "/>\n");
        }
        snprintf(name, sizeof(name), "mlx5_%d", s);
        nic(out, 64 + 8 * s, name);
        fprintf(out, "</object>\n");
    }
    nic(out, 128, "mlx5_9");
    fprintf(out, "</object>\n</topology>\n");
    assert_int_equal(fclose(out), 0);
}

static cpu_set_t cpus_of(unsigned bits)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu = 0; cpu < 32; cpu++)
        if (bits >> cpu & 1)
            CPU_SET(cpu, &set);
    return set;
}

static void expect(const char *device, unsigned near_bits, unsigned socket_bits)
{
    cpu_set_t near, socket, near_wanted = cpus_of(near_bits), socket_wanted = cpus_of(socket_bits);
    assert_int_equal(place_near(device, &near, &socket), 0);
    assert_true(CPU_EQUAL(&near, &near_wanted));
    assert_true(CPU_EQUAL(&socket, &socket_wanted));
}

static void test_places(void **state)
{
    (void)state;
    char path[] = "/tmp/test_proxy_place.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    setenv("HWLOC_XMLFILE", path, 1);
    save_topology(path, 1);
    expect("mlx5_0", 3, 3);
    save_topology(path, 2);
    expect("mlx5_0", 3, 3);
    expect("mlx5_1", 12, 12);
    expect("mlx5_9", 15, 15);
    cpu_set_t near, socket;
    assert_int_equal(place_near("softnic", &near, &socket), -ENODEV);
    unsetenv("HWLOC_XMLFILE");
    unlink(path);
}

static void test_apart(void **state)
{
    (void)state;
    cpu_set_t socket = cpus_of(12), there = cpus_of(4), across = cpus_of(6), away = cpus_of(1);
    assert_false(place_apart(&there, &socket));
    assert_true(place_apart(&across, &socket));
    assert_true(place_apart(&away, &socket));
}

int main(void)
{
    /* What they read of this machine is not asked for here, and one leaves it behind. */
    setenv("HWLOC_PLUGINS_PATH", "/dev/null", 1);
    cpu_set_t near, socket;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_apart),
    };
    setenv("HWLOC_XMLFILE", "/dev/null", 1); /* not this machine */
    if (place_near("", &near, &socket) == -EOPNOTSUPP) {
        print_message("built without hwloc\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
