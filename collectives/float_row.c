/* SPDX-License-Identifier: MIT */
#include "collectives/float_row.h"
#include "collectives/short_float.h"
#include <string.h>

/* A row may lie anywhere, as a message that is read in place does. */
typedef uint16_t half_anywhere __attribute__((aligned(1), may_alias));
typedef float float_anywhere __attribute__((aligned(1), may_alias));

static inline float float32_to_float(float x)
{
    return x;
}

#define DEFINE_ROW(NAME, TYPE)                                                                     \
    static void widen_##NAME(float *to, const void *from, size_t count, float weight)              \
    {                                                                                              \
        const TYPE *row = from;                                                                    \
        for (size_t i = 0; i < count; i++)                                                         \
            to[i] = NAME##_to_float(row[i]) * weight;                                              \
    }
#define DEFINE_NARROW(NAME, TYPE)                                                                  \
    static void narrow_##NAME(void *to, const float *from, size_t count)                           \
    {                                                                                              \
        TYPE *row = to;                                                                            \
        for (size_t i = 0; i < count; i++)                                                         \
            row[i] = NAME##_from_float(from[i]);                                                   \
    }

DEFINE_ROW(float32, float_anywhere)
DEFINE_ROW(float16, half_anywhere)
DEFINE_ROW(bfloat16, half_anywhere)
DEFINE_ROW(float8_e4m3, uint8_t)
DEFINE_ROW(float8_e5m2, uint8_t)
DEFINE_NARROW(float16, half_anywhere)
DEFINE_NARROW(bfloat16, half_anywhere)
DEFINE_NARROW(float8_e4m3, uint8_t)
DEFINE_NARROW(float8_e5m2, uint8_t)

static void narrow_float32(void *to, const float *from, size_t count)
{
    memcpy(to, from, count * sizeof *from);
}

static const struct {
    void (*widen)(float *to, const void *from, size_t count, float weight);
    void (*narrow)(void *to, const float *from, size_t count);
} rows[SSTAR_TYPES] = {
    [SSTAR_FLOAT32] = {widen_float32, narrow_float32},
    [SSTAR_FLOAT16] = {widen_float16, narrow_float16},
    [SSTAR_BFLOAT16] = {widen_bfloat16, narrow_bfloat16},
    [SSTAR_FLOAT8_E4M3] = {widen_float8_e4m3, narrow_float8_e4m3},
    [SSTAR_FLOAT8_E5M2] = {widen_float8_e5m2, narrow_float8_e5m2},
};

bool float_row_is(enum sstar_type type)
{
    return (unsigned)type < SSTAR_TYPES && rows[type].widen;
}

void float_row_widen(float *to, const void *from, size_t count, enum sstar_type type, float weight)
{
    rows[type].widen(to, from, count, weight);
}

void float_row_narrow(void *to, const float *from, size_t count, enum sstar_type type)
{
    rows[type].narrow(to, from, count);
}
