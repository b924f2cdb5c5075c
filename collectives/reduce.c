/* SPDX-License-Identifier: MIT */
/*
 * Each kernel is one plain loop that the compiler vectorises, compiled once for each instruction
 * set. The set is chosen at run time by the caller and not through an ifunc resolver, which
 * sanitizers and older compilers do not get on with.
 *
 * Minimum and maximum of floating point are taken on the bits: with the magnitude of negative
 * numbers turned round, bit patterns compare like the numbers they stand for and -0 comes before
 * +0. There is no floating-point comparison to trap, so the loop stays without branches.
 */
#include "collectives/reduce.h"

#include <stdint.h>

/* Elements as they may lie in a caller's memory: anywhere, and of any effective type. */
typedef float float32_any __attribute__((aligned(1), may_alias));
typedef double float64_any __attribute__((aligned(1), may_alias));
typedef int32_t int32_any __attribute__((aligned(1), may_alias));
typedef int64_t int64_any __attribute__((aligned(1), may_alias));
typedef uint32_t uint32_any __attribute__((aligned(1), may_alias));
typedef uint64_t uint64_any __attribute__((aligned(1), may_alias));

#define INLINE static inline __attribute__((always_inline))

#define DEFINE_ORDER(BITS, HIGH, INFINITY_BITS)                                                    \
    INLINE int##BITS##_t order##BITS(int##BITS##_t x)                                              \
    {                                                                                              \
        return x ^ ((x >> (BITS - 1)) & HIGH);                                                     \
    }                                                                                              \
    INLINE int##BITS##_t pick##BITS(int##BITS##_t a, int##BITS##_t b, int##BITS##_t first)         \
    {                                                                                              \
        int##BITS##_t r = first ? a : b;                                                           \
        r = (b & HIGH) > INFINITY_BITS ? b : r;                                                    \
        return (a & HIGH) > INFINITY_BITS ? a : r;                                                 \
    }

DEFINE_ORDER(32, INT32_MAX, 0x7f800000)
DEFINE_ORDER(64, INT64_MAX, 0x7ff0000000000000)

#define SUM(a, b)         ((a) + (b))
#define MIN(a, b)         ((a) < (b) ? (a) : (b))
#define MAX(a, b)         ((a) > (b) ? (a) : (b))
#define MIN_FLOAT32(a, b) pick32(a, b, order32(a) < order32(b))
#define MAX_FLOAT32(a, b) pick32(a, b, order32(a) > order32(b))
#define MIN_FLOAT64(a, b) pick64(a, b, order64(a) < order64(b))
#define MAX_FLOAT64(a, b) pick64(a, b, order64(a) > order64(b))

/* The destination is a or b itself or apart from both, so no turn of the loop waits for another. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define DEFINE_KERNEL(SET, TARGET, NAME, TYPE, OP)                                                 \
    TARGET static void NAME##_##SET(void *destination, const void *first, const void *second,      \
                                    size_t count)                                                  \
    {                                                                                              \
        TYPE *d = destination;                                                                     \
        const TYPE *a = first, *b = second;                                                        \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++)                                                         \
            d[i] = OP(a[i], b[i]);                                                                 \
    }

#define DEFINE_SET(SET, TARGET)                                                                    \
    DEFINE_KERNEL(SET, TARGET, float32_sum, float32_any, SUM)                                      \
    DEFINE_KERNEL(SET, TARGET, float32_min, int32_any, MIN_FLOAT32)                                \
    DEFINE_KERNEL(SET, TARGET, float32_max, int32_any, MAX_FLOAT32)                                \
    DEFINE_KERNEL(SET, TARGET, float64_sum, float64_any, SUM)                                      \
    DEFINE_KERNEL(SET, TARGET, float64_min, int64_any, MIN_FLOAT64)                                \
    DEFINE_KERNEL(SET, TARGET, float64_max, int64_any, MAX_FLOAT64)                                \
    DEFINE_KERNEL(SET, TARGET, int32_sum, uint32_any, SUM)                                         \
    DEFINE_KERNEL(SET, TARGET, int32_min, int32_any, MIN)                                          \
    DEFINE_KERNEL(SET, TARGET, int32_max, int32_any, MAX)                                          \
    DEFINE_KERNEL(SET, TARGET, int64_sum, uint64_any, SUM)                                         \
    DEFINE_KERNEL(SET, TARGET, int64_min, int64_any, MIN)                                          \
    DEFINE_KERNEL(SET, TARGET, int64_max, int64_any, MAX)                                          \
    static const struct reduce_set set_##SET = {                                                   \
        #SET,                                                                                      \
        {[SSTAR_FLOAT32] = {float32_sum_##SET, float32_min_##SET, float32_max_##SET},              \
         [SSTAR_FLOAT64] = {float64_sum_##SET, float64_min_##SET, float64_max_##SET},              \
         [SSTAR_INT32] = {int32_sum_##SET, int32_min_##SET, int32_max_##SET},                      \
         [SSTAR_INT64] = {int64_sum_##SET, int64_min_##SET, int64_max_##SET}},                     \
    };

DEFINE_SET(plain, )
#ifdef __x86_64__
DEFINE_SET(avx2, __attribute__((target("avx2"))))
DEFINE_SET(avx512, __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq"))))
#endif

int reduce_set_count(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2"))
        return 1;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
               ? 3
               : 2;
#else
    return 1;
#endif
}

const struct reduce_set *reduce_set(int i)
{
#ifdef __x86_64__
    static const struct reduce_set *const sets[] = {&set_plain, &set_avx2, &set_avx512};
#else
    static const struct reduce_set *const sets[] = {&set_plain};
#endif
    return sets[i];
}

const struct reduce_set *reduce_best(void)
{
    return reduce_set(reduce_set_count() - 1);
}
