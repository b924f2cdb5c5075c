/* SPDX-License-Identifier: MIT */
/* The check of sstar alltoall finds what is lost, doubled, altered or not ours, and only that. */
#include "tools/alltoall_check.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, BYTES_MOST = 100 };
/* From 0: 70 to rank 1; from 1: 3 to itself; from 2: none to rank 1. */
static const uint64_t matrix[RANKS * RANKS] = {5, 70, 9, 1, 3, 200, 8, 0, 4};
static const uint64_t seed = 99;

struct pair {
    struct check sender, receiver; /* ranks 0 and 1 */
    uint64_t message[BYTES_MOST / 8 + 1];
};

static void open_pair(struct pair *p, uint32_t bytes)
{
    memset(p->message, 0, sizeof p->message);
    assert_int_equal(check_open(&p->sender, 0, RANKS, bytes, seed, 10), 0);
    assert_int_equal(check_open(&p->receiver, 1, RANKS, bytes, seed, 73), 0);
    check_begin(&p->receiver, matrix);
    assert_int_equal(check_wanted(&p->receiver), 73);
}

static void close_pair(struct pair *p)
{
    check_close(&p->sender);
    check_close(&p->receiver);
}

static void counts(const struct pair *p, uint64_t distinct, uint64_t doubled, uint64_t altered)
{
    assert_int_equal(p->receiver.distinct, distinct);
    assert_int_equal(p->receiver.doubled, doubled);
    assert_int_equal(p->receiver.altered, altered);
}

static void whole_messages_are_counted_once(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {8, 9, 15, 16, 64, 99};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct pair p;
        open_pair(&p, sizes[i]);
        for (uint32_t n = 70; n-- > 0;) {
            check_write(&p.sender, p.message, 1, n, sizes[i]);
            check_read(&p.receiver, 0, p.message, sizes[i]);
        }
        counts(&p, 70, 0, 0);
        check_read(&p.receiver, 0, p.message, sizes[i]); /* number 0 again */
        counts(&p, 70, 1, 0);
        check_begin(&p.receiver, matrix); /* a new stretch: all may come again */
        check_read(&p.receiver, 0, p.message, sizes[i]);
        counts(&p, 1, 1, 0);
        close_pair(&p);
    }
}

static void every_bit_counts(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, 27);
    check_write(&p.sender, p.message, 1, 7, p.sender.bytes);
    for (uint32_t bit = 0; bit < 27 * 8; bit++) {
        uint64_t altered = p.receiver.altered;
        ((uint8_t *)p.message)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        check_read(&p.receiver, 0, p.message, 27);
        ((uint8_t *)p.message)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(p.receiver.altered, altered + 1);
    }
    close_pair(&p);
}

static void what_is_not_ours_is_altered(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, 16);
    check_write(&p.sender, p.message, 2, 0, p.sender.bytes); /* for another rank */
    check_read(&p.receiver, 0, p.message, 16);
    counts(&p, 0, 0, 1);
    check_write(&p.sender, p.message, 1, 70, p.sender.bytes); /* one more than there are */
    check_read(&p.receiver, 0, p.message, 16);
    counts(&p, 0, 0, 2);
    check_write(&p.sender, p.message, 1, 0, p.sender.bytes);
    check_read(&p.receiver, 2, p.message, 16); /* from another source than it says */
    check_read(&p.receiver, 0, p.message, 15); /* shorter, longer */
    check_read(&p.receiver, 0, p.message, 17);
    check_read(&p.receiver, -1, p.message, 16);
    check_read(&p.receiver, RANKS, p.message, 16);
    counts(&p, 0, 0, 7);
    check_read(&p.receiver, 0, p.message, 16);
    counts(&p, 1, 0, 7);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_messages_are_counted_once),
        cmocka_unit_test(every_bit_counts),
        cmocka_unit_test(what_is_not_ours_is_altered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
