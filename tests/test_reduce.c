/* SPDX-License-Identifier: MIT */
/*
 * The kernels of every instruction set that this machine has: against the rules written out in
 * double precision, and each set against the plainest, bit for bit.
 */
#include "collectives/element.h"
#include "collectives/reduce.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 300, SEED = 0x1234567 };

static const bool is_float[SSTAR_TYPES] = {
    [SSTAR_FLOAT32] = true,  [SSTAR_FLOAT64] = true,     [SSTAR_FLOAT16] = true,
    [SSTAR_BFLOAT16] = true, [SSTAR_FLOAT8_E4M3] = true, [SSTAR_FLOAT8_E5M2] = true};
static const bool is_unsigned[SSTAR_TYPES] = {
    [SSTAR_UINT8] = true, [SSTAR_UINT32] = true, [SSTAR_UINT64] = true};

static uint64_t draw(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* ---- the rules
 * ----------------------------------------------------------------------------------- */

static double rule_float(double a, double b, enum sstar_op op)
{
    if (op == SSTAR_SUM || op == SSTAR_AVG)
        return a + b;
    if (op == SSTAR_PROD)
        return a * b;
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == b)
        return (op == SSTAR_MIN) == (signbit(a) != 0) ? a : b;
    return (op == SSTAR_MIN) == (a < b) ? a : b;
}

static uint64_t rule_integer(uint64_t a, uint64_t b, enum sstar_op op, bool no_sign)
{
    if (op == SSTAR_SUM || op == SSTAR_AVG)
        return a + b;
    if (op == SSTAR_PROD)
        return a * b;
    bool less = no_sign ? a < b : (int64_t)a < (int64_t)b;
    return (op == SSTAR_MIN) == less ? a : b;
}

/* An integer, its sign extended if the type has one. */
static uint64_t integer_at(const char *at, enum sstar_type type)
{
    uint64_t x = 0;
    size_t bits = sstar_type_bytes(type) * 8;
    memcpy(&x, at, bits / 8); /* little-endian, as all that runs these kernels */
    return is_unsigned[type] || bits == 64 ? x
                                           : (uint64_t)((int64_t)(x << (64 - bits)) >> (64 - bits));
}

static void same_float(double got, double want)
{
    if (isnan(want))
        assert_true(isnan(got));
    else
        assert_true(got == want && !signbit(got) == !signbit(want));
}

/* The short floats are computed in float32 and rounded once, so that rounding twice is right here.
 */
static double rounded(double exact, enum sstar_type type)
{
    uint64_t memory = 0;
    if (type == SSTAR_FLOAT64)
        return exact;
    element_set(&memory, 0, type, exact);
    return element_get(&memory, 0, type);
}

static void judge(const char *got, const char *a, const char *b, enum sstar_type type,
                  enum sstar_op op)
{
    if (is_float[type]) {
        double exact = rule_float(element_get(a, 0, type), element_get(b, 0, type), op);
        same_float(element_get(got, 0, type), rounded(exact, type));
        return;
    }
    uint64_t want = rule_integer(integer_at(a, type), integer_at(b, type), op, is_unsigned[type]);
    assert_memory_equal(got, &want, sstar_type_bytes(type));
}

/* ---- each kernel
 * --------------------------------------------------------------------------------- */

/* Values where rules meet: NaN of both signs, zeros of both signs, infinities, equal values,
 * numbers without a leading one. */
static void fill(char *memory, size_t i, enum sstar_type type, uint64_t random)
{
    const double values[] = {NAN, -NAN, 0.0, -0.0, INFINITY, -INFINITY, 1.0, -1.0, 3e-310, -3e-310};
    uint64_t which = random % 40;
    if (!is_float[type])
        memcpy(memory + i * sstar_type_bytes(type), &random, sstar_type_bytes(type));
    else if (which < 10)
        element_set(memory, i, type, values[which]);
    else
        element_set(memory, i, type, (double)(int64_t)(random >> 20) / 1e6);
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
    uint64_t random = SEED;
    for (int set = 0; set < reduce_set_count(); set++)
        for (int type = 0; type < SSTAR_TYPES; type++)
            for (int op = 0; op < SSTAR_OPS; op++)
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                    for (size_t shift = 0; shift < 16; shift += 5)
                        for (int place = 0; place < 3; place++)
                            try_kernel(reduce_set(set)->kernels[type].op[op], (enum sstar_type)type,
                                       (enum sstar_op)op, counts[c], shift, place, &random);
}

static void integers_wrap(void **state)
{
    (void)state;
    int32_t a = INT32_MAX, b = 1, r;
    int64_t c = INT64_MIN, d = -1, q;
    uint8_t e = 200, f = 100, s;
    reduce_best()->kernels[SSTAR_INT32].op[SSTAR_SUM](&r, &a, &b, 1);
    reduce_best()->kernels[SSTAR_INT64].op[SSTAR_SUM](&q, &c, &d, 1);
    reduce_best()->kernels[SSTAR_UINT8].op[SSTAR_SUM](&s, &e, &f, 1);
    assert_int_equal(r, INT32_MIN);
    assert_true(q == INT64_MAX);
    assert_int_equal(s, 44);
}

static void averages(void **state)
{
    (void)state;
    for (int set = 0; set < reduce_set_count(); set++)
        for (int t = 0; t < SSTAR_TYPES; t++) {
            enum sstar_type type = (enum sstar_type)t;
            char memory[8 * 40];
            for (size_t i = 0; i < 40; i++)
                element_set(memory, i, type, is_unsigned[t] ? (double)i : (double)i - 20);
            reduce_set(set)->kernels[t].divide(memory, 40, 3);
            for (size_t i = 0; i < 40; i++) {
                uint64_t put = 0;
                element_set(&put, 0, type, is_unsigned[t] ? (double)i : (double)i - 20);
                double whole = element_get(&put, 0, type), third = whole / 3;
                double want = !is_float[t]            ? trunc(third)
                              : type == SSTAR_FLOAT64 ? third
                                                      : rounded((double)(float)third, type);
                assert_true(element_get(memory, i, type) == want);
            }
        }
}

/* ---- the short floats
 * ---------------------------------------------------------------------------- */

struct format {
    enum sstar_type type;
    int exponent, mantissa, bias;
    bool has_infinity;
};
static const struct format formats[] = {{SSTAR_FLOAT16, 5, 10, 15, true},
                                        {SSTAR_BFLOAT16, 8, 7, 127, true},
                                        {SSTAR_FLOAT8_E4M3, 4, 3, 7, false},
                                        {SSTAR_FLOAT8_E5M2, 5, 2, 15, true}};
enum { FORMATS = sizeof formats / sizeof *formats };

/* What a code stands for, by the text of the format. */
static double meaning(const struct format *f, uint32_t code)
{
    uint32_t exponent = code >> f->mantissa & ((1u << f->exponent) - 1);
    uint32_t mantissa = code & ((1u << f->mantissa) - 1);
    double sign = code >> (f->exponent + f->mantissa) ? -1 : 1;
    if (exponent == (1u << f->exponent) - 1) {
        if (f->has_infinity)
            return mantissa ? NAN : sign * INFINITY;
        if (mantissa == (1u << f->mantissa) - 1)
            return NAN;
    }
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - f->bias - f->mantissa);
    return sign *
           ldexp((double)(mantissa + (1u << f->mantissa)), (int)exponent - f->bias - f->mantissa);
}

static uint32_t codes_of(const struct format *f)
{
    return 1u << (1 + f->exponent + f->mantissa);
}

static uint32_t code_at(const void *memory, enum sstar_type type)
{
    uint32_t code = 0;
    memcpy(&code, memory, sstar_type_bytes(type));
    return code;
}

static void every_code(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++)
        for (uint32_t code = 0; code < codes_of(&formats[i]); code++) {
            enum sstar_type type = formats[i].type;
            uint32_t back = 0;
            double want = meaning(&formats[i], code), got = element_get(&code, 0, type);
            same_float(got, want);
            element_set(&back, 0, type, got);
            if (!isnan(want))
                assert_int_equal(code_at(&back, type), code);
            else
                assert_true(isnan(meaning(&formats[i], code_at(&back, type))));
        }
}

/* Half-way between two neighbours the even code wins, a little more or less does not reach it; past
 * half a step over the largest comes infinity, or NaN where there is none. */
static void rounds_to_even(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const struct format *f = &formats[i];
        for (uint32_t code = 0; code < codes_of(f) / 2; code++) {
            double low = meaning(f, code), high = meaning(f, code + 1);
            if (isnan(low) || isinf(low))
                break;
            bool last = isnan(high) || isinf(high);
            if (last)
                high = low + (low - meaning(f, code - 1));
            double half = (low + high) / 2;
            uint32_t at = 0, below = 0, above = 0;
            element_set(&at, 0, f->type, half);
            element_set(&below, 0, f->type, (double)nextafterf((float)half, 0));
            element_set(&above, 0, f->type, (double)nextafterf((float)half, INFINITY));
            assert_int_equal(code_at(&at, f->type), code % 2 ? code + 1 : code);
            assert_int_equal(code_at(&below, f->type), code);
            assert_int_equal(code_at(&above, f->type), code + 1);
        }
    }
}

/* All codes with some others, and every instruction set gives the same bits. */
static void sets_agree(void **state)
{
    (void)state;
    static uint16_t a[65536], b[65536], plain[65536], other[65536];
    uint64_t random = SEED;
    for (uint32_t i = 0; i < 65536; i++)
        a[i] = (uint16_t)i;
    for (int t = 0; t < SSTAR_TYPES; t++) {
        size_t bytes = sstar_type_bytes((enum sstar_type)t);
        if (bytes > 2)
            continue;
        for (uint32_t i = 0; i < 65536; i++)
            b[i] = (uint16_t)draw(&random);
        for (int op = 0; op < SSTAR_OPS; op++)
            for (int set = 0; set < reduce_set_count(); set++) {
                const struct reduce_row *row = &reduce_set(set)->kernels[t];
                row->op[op](set ? other : plain, a, b, sizeof a / bytes);
                row->divide(set ? other : plain, sizeof a / bytes, 7);
                if (set)
                    assert_memory_equal(plain, other, sizeof a);
            }
    }
}

/* Two NaNs of different bits give the same bits whichever comes first. */
static void nan_has_one_form(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        enum sstar_type type = formats[i].type;
        uint32_t a = codes_of(&formats[i]) - 1, b = a >> 1, x = 0, y = 0;
        reduce_best()->kernels[type].op[SSTAR_SUM](&x, &a, &b, 1);
        reduce_best()->kernels[type].op[SSTAR_SUM](&y, &b, &a, 1);
        assert_true(isnan(element_get(&x, 0, type)));
        assert_int_equal(x, y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel),     cmocka_unit_test(integers_wrap),
        cmocka_unit_test(averages),         cmocka_unit_test(every_code),
        cmocka_unit_test(rounds_to_even),   cmocka_unit_test(sets_agree),
        cmocka_unit_test(nan_has_one_form),
    };
    print_message("instruction set: %s; seed %#x\n", reduce_best()->name, SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
