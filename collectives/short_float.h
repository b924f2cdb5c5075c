/* SPDX-License-Identifier: MIT */
/*
 * The short floats as numbers: to float32, exactly, and back, rounded to nearest even. Without
 * branches, so that loops over them are vectorised.
 *
 *   float16, bfloat16      IEEE 754 binary16; the upper half of binary32
 *   float8_e5m2, _e4m3     OCP 8-bit Floating Point Specification 1.0; e4m3 has no infinity
 *
 * What does not fit becomes infinity, in e4m3 NaN (it must not pass for a number). Every NaN
 * becomes the one positive quiet NaN below: the same bits in whichever order two NaNs meet.
 * Subnormal numbers are kept.
 */
#ifndef SSTAR_COLLECTIVES_SHORT_FLOAT_H
#define SSTAR_COLLECTIVES_SHORT_FLOAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHORT_FLOAT_INLINE static inline __attribute__((always_inline))

enum { FLOAT32_BIAS = 127, FLOAT32_MANTISSA = 23, FLOAT32_INFINITY = 0x7f800000 };

SHORT_FLOAT_INLINE float float_of_bits(uint32_t bits)
{
    union {
        uint32_t bits;
        float number;
    } u = {.bits = bits};
    return u.number;
}

SHORT_FLOAT_INLINE uint32_t bits_of_float(float number)
{
    union {
        float number;
        uint32_t bits;
    } u = {.number = number};
    return u.bits;
}

/* `x` has no sign; its greatest finite code is `largest`. */
SHORT_FLOAT_INLINE uint32_t widen(uint32_t x, uint32_t mantissa, uint32_t bias, uint32_t largest,
                                  bool has_infinity)
{
    const uint32_t shift = FLOAT32_MANTISSA - mantissa;
    const uint32_t rebias = (FLOAT32_BIAS - bias) << FLOAT32_MANTISSA;
    const uint32_t least_normal = rebias + (1u << FLOAT32_MANTISSA);
    uint32_t normal = (x << shift) + rebias;
    /* A subnormal number is the mantissa that the addition of a power of two left behind. */
    uint32_t subnormal =
        bits_of_float(float_of_bits((x << shift) + least_normal) - float_of_bits(least_normal));
    uint32_t r = x >> mantissa ? normal : subnormal;
    uint32_t special = has_infinity && x == largest + 1 ? FLOAT32_INFINITY : 0x7fc00000;
    return x > largest ? special : r;
}

SHORT_FLOAT_INLINE uint32_t narrow(uint32_t a, uint32_t mantissa, uint32_t bias, uint32_t largest,
                                   uint32_t nan)
{
    const uint32_t shift = FLOAT32_MANTISSA - mantissa;
    const uint32_t rebias = (FLOAT32_BIAS - bias) << FLOAT32_MANTISSA;
    const uint32_t least_normal = rebias + (1u << FLOAT32_MANTISSA);
    /* Added to a smaller number, this leaves it rounded in the lowest bits. */
    const uint32_t magic = rebias + ((shift + 1) << FLOAT32_MANTISSA);
    uint32_t rounded = a - rebias + (1u << (shift - 1)) - 1 + ((a >> shift) & 1);
    uint32_t normal = rounded >> shift;
    uint32_t subnormal = bits_of_float(float_of_bits(a) + float_of_bits(magic)) - magic;
    uint32_t r = a < least_normal ? subnormal : normal;
    r = a >= least_normal && normal > largest ? largest + 1 : r;
    return a > FLOAT32_INFINITY ? nan : r;
}

#define DEFINE_SHORT_FLOAT(NAME, TYPE, BITS, MANTISSA, BIAS, LARGEST, HAS_INFINITY, NAN)           \
    SHORT_FLOAT_INLINE float NAME##_to_float(TYPE x)                                               \
    {                                                                                              \
        uint32_t magnitude = x & ((1u << (BITS - 1)) - 1);                                         \
        uint32_t sign = (uint32_t)(x >> (BITS - 1)) << 31;                                         \
        return float_of_bits(sign | widen(magnitude, MANTISSA, BIAS, LARGEST, HAS_INFINITY));      \
    }                                                                                              \
    SHORT_FLOAT_INLINE TYPE NAME##_from_float(float number)                                        \
    {                                                                                              \
        uint32_t bits = bits_of_float(number), magnitude = bits & 0x7fffffff;                      \
        uint32_t sign = magnitude > FLOAT32_INFINITY ? 0 : (bits >> 31) << (BITS - 1);             \
        return (TYPE)(sign | narrow(magnitude, MANTISSA, BIAS, LARGEST, NAN));                     \
    }

DEFINE_SHORT_FLOAT(float16, uint16_t, 16, 10, 15, 0x7bff, true, 0x7e00)
DEFINE_SHORT_FLOAT(float8_e5m2, uint8_t, 8, 2, 15, 0x7b, true, 0x7e)
DEFINE_SHORT_FLOAT(float8_e4m3, uint8_t, 8, 3, 7, 0x7e, false, 0x7f)

/* bfloat16 shares its exponent with float32: only the rounding is left. */
SHORT_FLOAT_INLINE float bfloat16_to_float(uint16_t x)
{
    return float_of_bits((uint32_t)x << 16);
}

SHORT_FLOAT_INLINE uint16_t bfloat16_from_float(float number)
{
    uint32_t bits = bits_of_float(number);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > FLOAT32_INFINITY ? 0x7fc0 : rounded);
}

#endif
