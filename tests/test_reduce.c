/* SPDX-License-Identifier: MIT */
/* The kernels of every instruction set that this machine has, against the rules written out. */
#include "collectives/reduce.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 300 };

static uint64_t draw(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static double rule_float(double a, double b, enum sstar_op op)
{
    if (op == SSTAR_SUM)
        return a + b;
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == b)
        return (op == SSTAR_MIN) == (signbit(a) != 0) ? a : b;
    return (op == SSTAR_MIN) == (a < b) ? a : b;
}

static int64_t rule_integer(int64_t a, int64_t b, enum sstar_op op)
{
    if (op == SSTAR_SUM)
        return (int64_t)((uint64_t)a + (uint64_t)b);
    return (op == SSTAR_MIN) == (a < b) ? a : b;
}

/* Values where rules meet: NaN of both signs, zeros of both signs, infinities, equal values. */
static double special(uint64_t random)
{
    const double values[] = {NAN, -NAN, 0.0, -0.0, INFINITY, -INFINITY, 1.0, -1.0, 3e-310, -3e-310};
    uint64_t i = random % 40;
    return i < 10 ? values[i] : (double)(int64_t)(random >> 20) / 1e6;
}

static void fill(void *memory, size_t i, enum sstar_type type, uint64_t random)
{
    double number = special(random);
    float narrow = (float)number;
    int32_t small = (int32_t)(random >> 32);
    int64_t large = (int64_t)random;
    char *at = (char *)memory + i * sstar_type_bytes(type);
    switch (type) {
    case SSTAR_FLOAT32:
        memcpy(at, &narrow, sizeof narrow);
        break;
    case SSTAR_FLOAT64:
        memcpy(at, &number, sizeof number);
        break;
    case SSTAR_INT32:
        memcpy(at, &small, sizeof small);
        break;
    case SSTAR_INT64:
        memcpy(at, &large, sizeof large);
        break;
    }
}

static void same_float(double got, double want)
{
    if (isnan(want)) {
        assert_true(isnan(got));
        return;
    }
    assert_true(got == want && !signbit(got) == !signbit(want));
}

static void judge(const char *got, const char *a, const char *b, enum sstar_type type,
                  enum sstar_op op)
{
    float f[3];
    double d[3];
    int32_t s[3];
    int64_t l[3];
    switch (type) {
    case SSTAR_FLOAT32:
        memcpy(&f[0], a, 4), memcpy(&f[1], b, 4), memcpy(&f[2], got, 4);
        same_float((double)f[2], (double)(float)rule_float((double)f[0], (double)f[1], op));
        break;
    case SSTAR_FLOAT64:
        memcpy(&d[0], a, 8), memcpy(&d[1], b, 8), memcpy(&d[2], got, 8);
        same_float(d[2], rule_float(d[0], d[1], op));
        break;
    case SSTAR_INT32:
        memcpy(&s[0], a, 4), memcpy(&s[1], b, 4), memcpy(&s[2], got, 4);
        assert_int_equal(s[2], (int32_t)rule_integer(s[0], s[1], op));
        break;
    case SSTAR_INT64:
        memcpy(&l[0], a, 8), memcpy(&l[1], b, 8), memcpy(&l[2], got, 8);
        assert_true(l[2] == rule_integer(l[0], l[1], op));
        break;
    }
}

/* place 0: a destination of its own, 1: the first operand, 2: the second. */
static void try_kernel(reduce_kernel *kernel, enum sstar_type type, enum sstar_op op, size_t count,
                       size_t shift, int place, uint64_t *random)
{
    size_t bytes = sstar_type_bytes(type);
    static char memory[3][MOST * 8 + 64], before[2][MOST * 8];
    char *a = memory[0] + shift, *b = memory[1] + shift / 2, *own = memory[2] + (shift ^ 1);
    char *destination = place == 0 ? own : place == 1 ? a : b;
    for (size_t i = 0; i < count; i++) {
        fill(a, i, type, draw(random));
        if (draw(random) % 8)
            fill(b, i, type, draw(random));
        else
            memcpy(b + i * bytes, a + i * bytes, bytes);
    }
    memcpy(before[0], a, count * bytes);
    memcpy(before[1], b, count * bytes);
    memset(destination + count * bytes, 0x5a, 8);
    kernel(destination, a, b, count);
    for (size_t i = 0; i < count; i++)
        judge(destination + i * bytes, before[0] + i * bytes, before[1] + i * bytes, type, op);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(destination[count * bytes + i], 0x5a);
}

static void every_kernel(void **state)
{
    (void)state;
    const size_t counts[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 64, 65, MOST};
    uint64_t random = 0x1234567;
    for (int set = 0; set < reduce_set_count(); set++)
        for (int type = 0; type < REDUCE_TYPES; type++)
            for (int op = 0; op < REDUCE_OPS; op++)
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                    for (size_t shift = 0; shift < 16; shift += 5)
                        for (int place = 0; place < 3; place++)
                            try_kernel(reduce_set(set)->kernels[type][op], (enum sstar_type)type,
                                       (enum sstar_op)op, counts[c], shift, place, &random);
}

static void integer_sums_wrap(void **state)
{
    (void)state;
    int32_t a = INT32_MAX, b = 1, r;
    int64_t c = INT64_MIN, d = -1, q;
    reduce_best()->kernels[SSTAR_INT32][SSTAR_SUM](&r, &a, &b, 1);
    reduce_best()->kernels[SSTAR_INT64][SSTAR_SUM](&q, &c, &d, 1);
    assert_int_equal(r, INT32_MIN);
    assert_true(q == INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel),
        cmocka_unit_test(integer_sums_wrap),
    };
    print_message("instruction set: %s; seed 0x1234567\n", reduce_best()->name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
