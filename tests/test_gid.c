/* SPDX-License-Identifier: MIT */
/* The choice of a GID over made-up tables. */
#include "transport/gid.h"
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

static struct gid_entry entry(int index, const char *address, uint32_t type)
{
    struct gid_entry e = {.index = index, .type = type};
    assert_int_equal(inet_pton(AF_INET6, address, e.gid.raw), 1);
    return e;
}

static int choose(const struct gid_entry *entries, int n, bool ethernet, int wanted, char *why)
{
    int chosen = gid_choose(entries, n, ethernet, wanted, why, 200);
    return chosen < 0 ? chosen : entries[chosen].index;
}

static void test_order(void **state)
{
    (void)state;
    char why[200];
    /* As mlx5 lays it out: each address as v1 and as v2. */
    struct gid_entry table[] = {
        entry(0, "fe80::1", IBV_GID_TYPE_ROCE_V1),
        entry(1, "fe80::1", IBV_GID_TYPE_ROCE_V2),
        entry(2, "2001:db8::5", IBV_GID_TYPE_ROCE_V1),
        entry(3, "2001:db8::5", IBV_GID_TYPE_ROCE_V2),
        entry(4, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V1),
        entry(5, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V2),
        entry(7, "::ffff:10.1.2.4", IBV_GID_TYPE_ROCE_V2),
    };
    assert_int_equal(choose(table, 7, true, -1, why), 5);
    assert_non_null(strstr(why, "IPv4"));
    assert_int_equal(choose(table, 5, true, -1, why), 3);
    assert_non_null(strstr(why, "global"));
    assert_int_equal(choose(table, 3, true, -1, why), 1);
    assert_non_null(strstr(why, "link-local"));
    assert_int_equal(choose(table, 1, true, -1, why), 0);
    assert_non_null(strstr(why, "RoCEv1"));
}

static void test_table_in_any_order(void **state)
{
    (void)state;
    char why[200];
    struct gid_entry table[] = {
        entry(9, "::ffff:10.1.2.4", IBV_GID_TYPE_ROCE_V2),
        entry(2, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V2),
        entry(0, "fe80::1", IBV_GID_TYPE_ROCE_V2),
    };
    assert_int_equal(choose(table, 3, true, -1, why), 2);
}

static void test_wanted(void **state)
{
    (void)state;
    char why[200];
    struct gid_entry table[] = {
        entry(0, "fe80::1", IBV_GID_TYPE_ROCE_V1),
        entry(3, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V2),
        entry(4, "::", IBV_GID_TYPE_ROCE_V2),
    };
    assert_int_equal(choose(table, 3, true, 0, why), 0);
    assert_non_null(strstr(why, "asked for"));
    assert_int_equal(choose(table, 3, true, 2, why), -ENOENT);
    assert_non_null(strstr(why, "index 2"));
    assert_non_null(strstr(why, "0 3"));
    assert_int_equal(choose(table, 3, true, 4, why), -ENOENT);
}

static void test_none(void **state)
{
    (void)state;
    char why[200];
    struct gid_entry zero[] = {entry(0, "::", IBV_GID_TYPE_ROCE_V2)};
    assert_int_equal(choose(zero, 1, true, -1, why), -ENOENT);
    assert_int_equal(choose(zero, 0, true, -1, why), -ENOENT);
    assert_non_null(strstr(why, "address"));
}

static void test_infiniband(void **state)
{
    (void)state;
    char why[200];
    struct gid_entry table[] = {entry(0, "fe80::2:c903:0:1", IBV_GID_TYPE_IB),
                                entry(1, "fe80::2:c903:0:2", IBV_GID_TYPE_IB)};
    assert_int_equal(choose(table, 2, false, -1, why), 0);
    assert_non_null(strstr(why, "LID"));
}

static void test_short_buffer(void **state)
{
    (void)state;
    struct gid_entry table[64];
    for (int i = 0; i < 64; i++)
        table[i] = entry(i, "fe80::1", IBV_GID_TYPE_ROCE_V2);
    char why[70];
    memset(why, 'x', sizeof why);
    assert_int_equal(gid_choose(table, 64, true, 100, why, 64), -ENOENT);
    assert_true(memchr(why, 0, 64) != NULL);
    assert_true(why[64] == 'x');
}

static void test_text(void **state)
{
    (void)state;
    char text[64];
    struct gid_entry four = entry(0, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V2);
    struct gid_entry six = entry(0, "fe80::1", IBV_GID_TYPE_ROCE_V1);
    gid_text(&four, text, sizeof text);
    assert_string_equal(text, "10.1.2.3 (RoCEv2)");
    gid_text(&six, text, sizeof text);
    assert_string_equal(text, "fe80::1 (RoCEv1)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),      cmocka_unit_test(test_table_in_any_order),
        cmocka_unit_test(test_wanted),     cmocka_unit_test(test_none),
        cmocka_unit_test(test_infiniband), cmocka_unit_test(test_short_buffer),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
