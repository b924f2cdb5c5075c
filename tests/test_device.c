/* SPDX-License-Identifier: MIT */
/* The choice of the device and what is said about it. */
#include "tests/ranks.h"
#include "transport/device.h"
#include "transport/world.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

static int body_softnic(struct sstar_world *world, void *arg)
{
    const struct sstar_wire *wire = arg;
    struct sstar_device_info info, all[8];
    CHECK(sstar_device_info(world, &info) == 0);
    CHECK(strcmp(info.name, "softnic") == 0);
    CHECK(strcmp(info.device_class, wire->alpha_us > 0 ? "softnic-shaped" : "softnic") == 0);
    CHECK(info.arrival_in_memory == !(wire->alpha_us > 0));
    CHECK(memcmp(&info.wire, wire, sizeof *wire) == 0);
    CHECK(info.gid_index == 1 && strstr(info.gid, "RoCEv2") && strstr(info.gid_why, "IPv4"));
    CHECK(strstr(info.why, "asked for by name"));
    CHECK(info.active_mtu_bytes >= 256 && info.max_inline_bytes >= 8);
    CHECK(sstar_allgather(world, &info, sizeof info, all) == 0);
    /* Ranks of a node share a port, unless each was to have one. */
    for (int peer = 0; peer < sstar_size(world); peer++) {
        bool same = peer == sstar_rank(world) ||
                    (!world->config.port_per_rank &&
                     sstar_node_of(world, peer) == sstar_node_of(world, sstar_rank(world)));
        CHECK((strcmp(all[peer].gid, info.gid) == 0) == same);
    }
    return 0;
}

static void test_softnic(void **state)
{
    (void)state;
    struct sstar_wire plain = {0}, shaped = {5, 1, 2};
    for (int per_rank = 0; per_rank < 2; per_rank++) {
        struct ranks ranks = {.size = 4,
                              .ranks_per_node = 2,
                              .port_per_rank = per_rank,
                              .body = body_softnic,
                              .arg = &plain};
        assert_int_equal(ranks_run(&ranks), 0);
        ranks.wire = shaped;
        ranks.arg = &shaped;
        ranks.processes = true;
        assert_int_equal(ranks_run(&ranks), 0);
    }
}

static int body_unknown(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct sstar_device_info info;
    struct device *device;
    CHECK(sstar_device_info(world, &info) == -ENODEV);
    CHECK(strstr(sstar_last_error(world), "no device nosuch0"));
    CHECK(strstr(sstar_last_error(world), "softnic"));
    CHECK(device_get(world, &device) == -ENODEV);
    return 0;
}

static void test_unknown(void **state)
{
    (void)state;
    assert_int_equal(
        ranks_run(&(struct ranks){.size = 1, .ib_dev = "nosuch0", .body = body_unknown}), 0);
}

/* Links that cannot be opened for want of a device fail on all ranks with the same words. */
static int body_links_unknown(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    struct sstar_link_attr attr = {.slot_bytes = 64};
    CHECK(sstar_links_open(world, &peer, 1, &attr, &links) == -ENODEV);
    CHECK(strstr(sstar_last_error(world), "no device nosuch0"));
    return 0;
}

static void test_links_unknown(void **state)
{
    (void)state;
    assert_int_equal(
        ranks_run(&(struct ranks){
            .size = 2, .ranks_per_node = 1, .ib_dev = "nosuch0", .body = body_links_unknown}),
        0);
}

/* Of a list each rank takes its own entry, and begins again when the list ends. */
static int body_list(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct sstar_device_info info;
    int err = sstar_device_info(world, &info);
    if (sstar_rank(world) % 2 == 0) {
        CHECK(err == 0);
        CHECK(strncmp(info.name, "softnic", 7) == 0);
        return 0;
    }
    CHECK(err == -ENODEV);
    CHECK(strstr(sstar_last_error(world), "no device nosuch0 here"));
    return 0;
}

static int body_list_gap(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct sstar_device_info info;
    CHECK(sstar_device_info(world, &info) == -EINVAL);
    CHECK(strstr(sstar_last_error(world), "empty entry for rank 0"));
    return 0;
}

static void test_list(void **state)
{
    (void)state;
    assert_int_equal(
        ranks_run(&(struct ranks){
            .size = 4, .ranks_per_node = 1, .ib_dev = "softnic,nosuch0", .body = body_list}),
        0);
    assert_int_equal(
        ranks_run(&(struct ranks){.size = 1, .ib_dev = ",softnic", .body = body_list_gap}), 0);
}

static int body_memory(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct sstar_device_info info;
    CHECK(sstar_device_info(world, &info) == 0);
    CHECK(strcmp(info.device_class, "memory") == 0);
    CHECK(world->device == NULL);
    return 0;
}

static void test_memory_only(void **state)
{
    (void)state;
    assert_int_equal(
        ranks_run(&(struct ranks){.size = 2, .ib_dev = "nosuch0", .body = body_memory}), 0);
}

static int body_gid(struct sstar_world *world, void *arg)
{
    struct sstar_device_info info;
    int expected = *(int *)arg;
    CHECK(sstar_device_info(world, &info) == expected);
    CHECK(expected == 0 || strstr(sstar_last_error(world), "GID index 77"));
    CHECK(expected < 0 || (info.gid_index == 0 && strstr(info.gid_why, "asked for")));
    return 0;
}

static void test_gid_index(void **state)
{
    (void)state;
    int expected = -ENOENT;
    struct ranks ranks = {.size = 1, .body = body_gid, .arg = &expected};
    setenv("SSTAR_IB_GID_INDEX", "77", 1);
    assert_int_equal(ranks_run(&ranks), 0);
    expected = 0;
    setenv("SSTAR_IB_GID_INDEX", "0", 1);
    assert_int_equal(ranks_run(&ranks), 0);
    unsetenv("SSTAR_IB_GID_INDEX");
}

/* Whatever this machine has, something is found. */
static int body_automatic(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct sstar_device_info info;
    CHECK(sstar_device_info(world, &info) == 0);
    CHECK(info.name[0] && info.why[0] && info.gid_why[0]);
    return 0;
}

static void test_automatic(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(&(struct ranks){.size = 1, .ib_dev = "", .body = body_automatic}),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softnic),     cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_list),        cmocka_unit_test(test_links_unknown),
        cmocka_unit_test(test_memory_only), cmocka_unit_test(test_gid_index),
        cmocka_unit_test(test_automatic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
