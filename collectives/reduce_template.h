/* SPDX-License-Identifier: MIT */
/*
 * All kernels of one instruction set. Included once by each file that is compiled for one, with
 * REDUCE_SET defined to its name; every kernel is one plain loop that the compiler vectorises.
 *
 * Minimum and maximum of floating point are taken on the bits: with the magnitude of negative
 * numbers turned round, bit patterns compare like the numbers they stand for and -0 comes before
 * +0. There is no floating-point comparison to trap, so the loop stays without branches.
 */
#include "collectives/reduce.h"
#include "collectives/short_float.h"

#include <math.h>

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)
#define NAMED(name)  PASTE(name, REDUCE_SET)
#define TEXT_(a)     #a
#define TEXT(a)      TEXT_(a)

/* Elements as they may lie in a caller's memory: anywhere, and of any effective type. */
#define ANYWHERE __attribute__((aligned(1), may_alias))
typedef float float32_any ANYWHERE;
typedef double float64_any ANYWHERE;
typedef int8_t int8_any ANYWHERE;
typedef int16_t int16_any ANYWHERE;
typedef int32_t int32_any ANYWHERE;
typedef int64_t int64_any ANYWHERE;
typedef uint8_t uint8_any ANYWHERE;
typedef uint16_t uint16_any ANYWHERE;
typedef uint32_t uint32_any ANYWHERE;
typedef uint64_t uint64_any ANYWHERE;

/* The destination is a or b itself or apart from both, so no turn of the loop waits for another. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* ---- what is done to two elements ---------------------------------------------------------------
 */

#define DEFINE_PICK(NAME, BITS, HIGH, INFINITY_BITS)                                               \
    SHORT_FLOAT_INLINE int##BITS##_t order_##NAME(int##BITS##_t x)                                 \
    {                                                                                              \
        return (int##BITS##_t)(x ^ ((x >> (BITS - 1)) & HIGH));                                    \
    }                                                                                              \
    SHORT_FLOAT_INLINE int##BITS##_t pick_##NAME(int##BITS##_t a, int##BITS##_t b, bool first)     \
    {                                                                                              \
        int##BITS##_t r = first ? a : b;                                                           \
        r = (b & HIGH) > INFINITY_BITS ? b : r;                                                    \
        return (a & HIGH) > INFINITY_BITS ? a : r;                                                 \
    }

DEFINE_PICK(float32, 32, INT32_MAX, 0x7f800000)
DEFINE_PICK(float64, 64, INT64_MAX, 0x7ff0000000000000)
DEFINE_PICK(float16, 16, INT16_MAX, 0x7c00)
DEFINE_PICK(bfloat16, 16, INT16_MAX, 0x7f80)
DEFINE_PICK(float8_e4m3, 8, INT8_MAX, 0x7e)
DEFINE_PICK(float8_e5m2, 8, INT8_MAX, 0x7c)

#define SUM(NAME, a, b)        ((a) + (b))
#define PROD(NAME, a, b)       ((a) * (b))
/* Not as int, which is what two uint16_t would be multiplied as. */
#define PROD_WRAP(NAME, a, b)  ((a)*1u * (b))
#define MIN(NAME, a, b)        ((a) < (b) ? (a) : (b))
#define MAX(NAME, a, b)        ((a) > (b) ? (a) : (b))
#define MIN_BITS(NAME, a, b)   pick_##NAME(a, b, order_##NAME(a) < order_##NAME(b))
#define MAX_BITS(NAME, a, b)   pick_##NAME(a, b, order_##NAME(a) > order_##NAME(b))
#define SUM_SHORT(NAME, a, b)  NAME##_from_float(NAME##_to_float(a) + NAME##_to_float(b))
#define PROD_SHORT(NAME, a, b) NAME##_from_float(NAME##_to_float(a) * NAME##_to_float(b))
#define OVER(NAME, a, n)       ((a) / (n))
#define OVER_SHORT(NAME, a, n) NAME##_from_float(NAME##_to_float(a) / (n))

/* ---- the loops
 * ----------------------------------------------------------------------------------- */

#define DEFINE_KERNEL(NAME, ACTION, TYPE, OP)                                                      \
    static void NAME##_##ACTION(void *destination, const void *first, const void *second,          \
                                size_t count)                                                      \
    {                                                                                              \
        TYPE *d = destination;                                                                     \
        const TYPE *a = first, *b = second;                                                        \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++)                                                         \
            d[i] = (TYPE)OP(NAME, a[i], b[i]);                                                     \
    }

/* DIVISOR is the type in which the element is divided. */
#define DEFINE_DIVIDE(NAME, TYPE, DIVISOR, OP)                                                     \
    static void NAME##_divide(void *memory, size_t count, uint32_t by)                             \
    {                                                                                              \
        TYPE *d = memory;                                                                          \
        const DIVISOR n = (DIVISOR)by;                                                             \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++)                                                         \
            d[i] = (TYPE)OP(NAME, d[i], n);                                                        \
    }

/* Sums and products of integers wrap, so they are computed without a sign. */
#define DEFINE_INTEGER(NAME, TYPE, UNSIGNED, DIVISOR)                                              \
    DEFINE_KERNEL(NAME, sum, UNSIGNED, SUM)                                                        \
    DEFINE_KERNEL(NAME, prod, UNSIGNED, PROD_WRAP)                                                 \
    DEFINE_KERNEL(NAME, min, TYPE, MIN)                                                            \
    DEFINE_KERNEL(NAME, max, TYPE, MAX)                                                            \
    DEFINE_DIVIDE(NAME, TYPE, DIVISOR, OVER)

#define DEFINE_FLOAT(NAME, TYPE, BITS, NUMBER)                                                     \
    DEFINE_KERNEL(NAME, sum, TYPE, SUM)                                                            \
    DEFINE_KERNEL(NAME, prod, TYPE, PROD)                                                          \
    DEFINE_KERNEL(NAME, min, BITS, MIN_BITS)                                                       \
    DEFINE_KERNEL(NAME, max, BITS, MAX_BITS)                                                       \
    DEFINE_DIVIDE(NAME, TYPE, NUMBER, OVER)

#define DEFINE_SHORT(NAME, UNSIGNED, BITS)                                                         \
    DEFINE_KERNEL(NAME, sum, UNSIGNED, SUM_SHORT)                                                  \
    DEFINE_KERNEL(NAME, prod, UNSIGNED, PROD_SHORT)                                                \
    DEFINE_KERNEL(NAME, min, BITS, MIN_BITS)                                                       \
    DEFINE_KERNEL(NAME, max, BITS, MAX_BITS)                                                       \
    DEFINE_DIVIDE(NAME, UNSIGNED, float, OVER_SHORT)

/* ---- float16 where the processor converts it
 * ------------------------------------------------------ */

#ifdef __F16C__
#include <immintrin.h>

#ifdef __AVX512F__
enum { HALF_LANES = 16 };
typedef __m512 half_lanes;
#define HALF_OP(OP) _mm512_##OP##_ps
#define HALF_ALL(x) _mm512_set1_ps(x)
SHORT_FLOAT_INLINE half_lanes half_load(const uint16_any *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
SHORT_FLOAT_INLINE void half_store(uint16_any *to, half_lanes x)
{
    x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_ps(NAN));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#else
enum { HALF_LANES = 8 };
typedef __m256 half_lanes;
#define HALF_OP(OP) _mm256_##OP##_ps
#define HALF_ALL(x) _mm256_set1_ps(x)
SHORT_FLOAT_INLINE half_lanes half_load(const uint16_any *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
SHORT_FLOAT_INLINE void half_store(uint16_any *to, half_lanes x)
{
    x = _mm256_blendv_ps(x, _mm256_set1_ps(NAN), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#endif

#define DEFINE_HALF(ACTION, LANES_OP, OP)                                                          \
    static void float16_##ACTION(void *destination, const void *first, const void *second,         \
                                 size_t count)                                                     \
    {                                                                                              \
        uint16_any *d = destination;                                                               \
        const uint16_any *a = first, *b = second;                                                  \
        size_t i = 0;                                                                              \
        for (; i + HALF_LANES <= count; i += HALF_LANES)                                           \
            half_store(d + i, HALF_OP(LANES_OP)(half_load(a + i), half_load(b + i)));              \
        for (; i < count; i++)                                                                     \
            d[i] = OP(float16, a[i], b[i]);                                                        \
    }

DEFINE_HALF(sum, add, SUM_SHORT)
DEFINE_HALF(prod, mul, PROD_SHORT)

static void float16_divide(void *memory, size_t count, uint32_t by)
{
    uint16_any *d = memory;
    size_t i = 0;
    for (; i + HALF_LANES <= count; i += HALF_LANES)
        half_store(d + i, HALF_OP(div)(half_load(d + i), HALF_ALL((float)by)));
    for (; i < count; i++)
        d[i] = OVER_SHORT(float16, d[i], (float)by);
}

DEFINE_KERNEL(float16, min, int16_any, MIN_BITS)
DEFINE_KERNEL(float16, max, int16_any, MAX_BITS)
#else
DEFINE_SHORT(float16, uint16_any, int16_any)
#endif

/* ---- the others
 * ----------------------------------------------------------------------------------- */

DEFINE_FLOAT(float32, float32_any, int32_any, float)
DEFINE_FLOAT(float64, float64_any, int64_any, double)
DEFINE_SHORT(bfloat16, uint16_any, int16_any)
DEFINE_SHORT(float8_e4m3, uint8_any, int8_any)
DEFINE_SHORT(float8_e5m2, uint8_any, int8_any)
DEFINE_INTEGER(int8, int8_any, uint8_any, int32_t)
DEFINE_INTEGER(int16, int16_any, uint16_any, int32_t)
DEFINE_INTEGER(int32, int32_any, uint32_any, int64_t)
DEFINE_INTEGER(int64, int64_any, uint64_any, int64_t)
DEFINE_INTEGER(uint8, uint8_any, uint8_any, uint32_t)
DEFINE_INTEGER(uint32, uint32_any, uint32_any, uint32_t)
DEFINE_INTEGER(uint64, uint64_any, uint64_any, uint64_t)

/* ---- shorter, and back
 * -------------------------------------------------------------------------------------- */

#define DEFINE_SHORTENING(NAME, TYPE)                                                              \
    static void NAME##_widen(void *to, const void *from, size_t count)                             \
    {                                                                                              \
        float32_any *d = to;                                                                       \
        const TYPE *a = from;                                                                      \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++)                                                         \
            d[i] = NAME##_to_float(a[i]);                                                          \
    }                                                                                              \
    static void NAME##_narrow(void *to, const void *from, size_t count)                            \
    {                                                                                              \
        TYPE *d = to;                                                                              \
        const float32_any *a = from;                                                               \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++)                                                         \
            d[i] = NAME##_from_float(a[i]);                                                        \
    }                                                                                              \
    static void NAME##_round(void *memory, size_t count)                                           \
    {                                                                                              \
        float32_any *d = memory;                                                                   \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++)                                                         \
            d[i] = NAME##_to_float(NAME##_from_float(d[i]));                                       \
    }

DEFINE_SHORTENING(float16, uint16_any)
DEFINE_SHORTENING(bfloat16, uint16_any)
DEFINE_SHORTENING(float8_e4m3, uint8_any)
DEFINE_SHORTENING(float8_e5m2, uint8_any)

/* ---- the set
 * -------------------------------------------------------------------------------------- */

#define ROW(NAME)                                                                                  \
    {                                                                                              \
        .op = {[SSTAR_SUM] = NAME##_sum,                                                           \
               [SSTAR_MIN] = NAME##_min,                                                           \
               [SSTAR_MAX] = NAME##_max,                                                           \
               [SSTAR_PROD] = NAME##_prod,                                                         \
               [SSTAR_AVG] = NAME##_sum},                                                          \
        .divide = NAME##_divide                                                                    \
    }

#define SHORT(NAME)                                                                                \
    {                                                                                              \
        NAME##_widen, NAME##_narrow, NAME##_round                                                  \
    }

const struct reduce_set NAMED(reduce_set) = {
    .name = TEXT(REDUCE_SET),
    .kernels = {[SSTAR_FLOAT32] = ROW(float32),
                [SSTAR_FLOAT64] = ROW(float64),
                [SSTAR_INT32] = ROW(int32),
                [SSTAR_INT64] = ROW(int64),
                [SSTAR_FLOAT16] = ROW(float16),
                [SSTAR_BFLOAT16] = ROW(bfloat16),
                [SSTAR_FLOAT8_E4M3] = ROW(float8_e4m3),
                [SSTAR_FLOAT8_E5M2] = ROW(float8_e5m2),
                [SSTAR_INT8] = ROW(int8),
                [SSTAR_INT16] = ROW(int16),
                [SSTAR_UINT8] = ROW(uint8),
                [SSTAR_UINT32] = ROW(uint32),
                [SSTAR_UINT64] = ROW(uint64)},
    .shorts = {[SSTAR_FLOAT16] = SHORT(float16),
               [SSTAR_BFLOAT16] = SHORT(bfloat16),
               [SSTAR_FLOAT8_E4M3] = SHORT(float8_e4m3),
               [SSTAR_FLOAT8_E5M2] = SHORT(float8_e5m2)},
};
