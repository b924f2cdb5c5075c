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

/* ---- what two tables share ------------------------------------------------------------------ */

/* Both ends must come to the same pair: its indices, or -ENOENT for both. */
static int agree(const struct gid_entry *a, int n_a, const struct gid_entry *b, int n_b,
                 int *index_b, char *why)
{
    int a_first = -1, b_first = -1, a_second = -1, b_second = -1;
    struct gid_table one = {a, n_a}, other = {b, n_b};
    char why_there[200];
    int err = gid_agree(one, other, true, true, &a_first, &b_first, why, 200);
    assert_int_equal(gid_agree(other, one, true, false, &b_second, &a_second, why_there, 200), err);
    assert_int_equal(a_first, a_second);
    assert_int_equal(b_first, b_second);
    if (err)
        return err;
    *index_b = b[b_first].index;
    return a[a_first].index;
}

static void test_agree_on_the_best_they_share(void **state)
{
    (void)state;
    char why[200];
    int there;
    struct gid_entry a[] = {
        entry(0, "fe80::1", IBV_GID_TYPE_ROCE_V1),
        entry(1, "fe80::1", IBV_GID_TYPE_ROCE_V2),
        entry(2, "2001:db8::5", IBV_GID_TYPE_ROCE_V2),
        entry(3, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V2),
    };
    struct gid_entry b[] = {
        entry(4, "::ffff:10.1.2.9", IBV_GID_TYPE_ROCE_V2),
        entry(5, "2001:db8::6", IBV_GID_TYPE_ROCE_V2),
        entry(6, "fe80::9", IBV_GID_TYPE_ROCE_V2),
        entry(7, "fe80::9", IBV_GID_TYPE_ROCE_V1),
    };
    assert_int_equal(agree(a, 4, b, 4, &there, why), 3);
    assert_int_equal(there, 4);
    assert_int_equal(agree(a, 4, b + 1, 3, &there, why), 2); /* no IPv4 there */
    assert_int_equal(there, 5);
    assert_int_equal(agree(a, 2, b, 4, &there, why), 1); /* link-local only here */
    assert_int_equal(there, 6);
    assert_int_equal(agree(a, 4, b + 3, 1, &there, why), 0); /* an old port there */
    assert_int_equal(there, 7);
}

static void test_agree_on_one_subnet(void **state)
{
    (void)state;
    char why[200];
    int there;
    struct gid_entry a[] = {
        entry(1, "::ffff:192.168.0.1", IBV_GID_TYPE_ROCE_V2),
        entry(3, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V2),
        entry(5, "::ffff:10.1.2.4", IBV_GID_TYPE_ROCE_V2),
    };
    struct gid_entry b[] = {
        entry(0, "::ffff:172.16.0.1", IBV_GID_TYPE_ROCE_V2),
        entry(2, "::ffff:10.1.9.9", IBV_GID_TYPE_ROCE_V2),
        entry(8, "::ffff:192.168.0.200", IBV_GID_TYPE_ROCE_V2),
        entry(9, "::ffff:192.168.0.201", IBV_GID_TYPE_ROCE_V2),
    };
    assert_int_equal(agree(a, 3, b, 4, &there, why), 1); /* 24 bits against 20 */
    assert_int_equal(there, 8);
    assert_int_equal(agree(a + 1, 2, b, 4, &there, why), 3); /* as good as 5, and lower */
    assert_int_equal(there, 2);
}

static void test_agree_on_nothing(void **state)
{
    (void)state;
    char why[200];
    int there;
    struct gid_entry a[] = {entry(1, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V2)};
    struct gid_entry b[] = {entry(0, "fe80::9", IBV_GID_TYPE_ROCE_V2),
                            entry(4, "fe80::9", IBV_GID_TYPE_ROCE_V1)};
    assert_int_equal(agree(a, 1, b, 2, &there, why), -ENOENT);
    assert_string_equal(why, "here RoCEv2 IPv4 (index 1); there RoCEv2 link-local (index 0), "
                             "RoCEv1 (index 4)");
    assert_int_equal(agree(a, 1, b, 0, &there, why), -ENOENT);
    assert_non_null(strstr(why, "there nothing usable"));
}

static void test_usable(void **state)
{
    (void)state;
    struct gid_entry table[40], usable[GID_USABLE];
    table[0] = entry(0, "::", IBV_GID_TYPE_ROCE_V2);
    table[1] = entry(1, "fe80::1", IBV_GID_TYPE_ROCE_V1);
    table[2] = entry(2, "fe80::1", IBV_GID_TYPE_ROCE_V2);
    table[3] = entry(3, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V2);
    assert_int_equal(gid_usable(table, 4, true, -1, usable), 3);
    assert_int_equal(usable[0].index, 3);
    assert_int_equal(usable[1].index, 2);
    assert_int_equal(usable[2].index, 1);
    assert_int_equal(gid_usable(table, 4, true, 2, usable), 1); /* asked for: that one alone */
    assert_int_equal(usable[0].index, 2);
    assert_int_equal(gid_usable(table, 4, true, 0, usable), 0);
    for (int i = 4; i < 40; i++)
        table[i] = entry(i, "::ffff:10.1.2.3", IBV_GID_TYPE_ROCE_V2);
    assert_int_equal(gid_usable(table, 40, true, -1, usable), GID_USABLE);
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
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_table_in_any_order),
        cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_infiniband),
        cmocka_unit_test(test_short_buffer),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_agree_on_the_best_they_share),
        cmocka_unit_test(test_usable),
        cmocka_unit_test(test_agree_on_one_subnet),
        cmocka_unit_test(test_agree_on_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
