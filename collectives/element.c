/* SPDX-License-Identifier: MIT */
#include "collectives/element.h"
#include "collectives/short_float.h"

#include <string.h>

#define ELEMENT_TYPES(FLOAT, SHORT, INTEGER)                                                       \
    FLOAT(SSTAR_FLOAT32, float)                                                                    \
    FLOAT(SSTAR_FLOAT64, double)                                                                   \
    SHORT(SSTAR_FLOAT16, uint16_t, float16)                                                        \
    SHORT(SSTAR_BFLOAT16, uint16_t, bfloat16)                                                      \
    SHORT(SSTAR_FLOAT8_E4M3, uint8_t, float8_e4m3)                                                 \
    SHORT(SSTAR_FLOAT8_E5M2, uint8_t, float8_e5m2)                                                 \
    INTEGER(SSTAR_INT8, int8_t)                                                                    \
    INTEGER(SSTAR_INT16, int16_t)                                                                  \
    INTEGER(SSTAR_INT32, int32_t)                                                                  \
    INTEGER(SSTAR_INT64, int64_t)                                                                  \
    INTEGER(SSTAR_UINT8, uint8_t)                                                                  \
    INTEGER(SSTAR_UINT32, uint32_t)                                                                \
    INTEGER(SSTAR_UINT64, uint64_t)

#define GET(TYPE, C)                                                                               \
    case TYPE: {                                                                                   \
        C x;                                                                                       \
        memcpy(&x, at, sizeof x);                                                                  \
        return (double)x;                                                                          \
    }
#define GET_SHORT(TYPE, C, NAME)                                                                   \
    case TYPE: {                                                                                   \
        C x;                                                                                       \
        memcpy(&x, at, sizeof x);                                                                  \
        return (double)NAME##_to_float(x);                                                         \
    }
#define SET(TYPE, C)                                                                               \
    case TYPE: {                                                                                   \
        C x = (C)number;                                                                           \
        memcpy(at, &x, sizeof x);                                                                  \
        return;                                                                                    \
    }
#define SET_SHORT(TYPE, C, NAME)                                                                   \
    case TYPE: {                                                                                   \
        C x = NAME##_from_float((float)number);                                                    \
        memcpy(at, &x, sizeof x);                                                                  \
        return;                                                                                    \
    }

double element_get(const void *vector, size_t i, enum sstar_type type)
{
    const char *at = (const char *)vector + i * sstar_type_bytes(type);
    switch (type) {
        ELEMENT_TYPES(GET, GET_SHORT, GET)
    }
    return 0;
}

void element_set(void *vector, size_t i, enum sstar_type type, double number)
{
    char *at = (char *)vector + i * sstar_type_bytes(type);
    switch (type) {
        ELEMENT_TYPES(SET, SET_SHORT, SET)
    }
}

/* ---- numbers for checking -----------------------------------------------------------------------
 */

/* Whole numbers up to 8 are exact in every type. So in the short ones at most so many ranks put
 * something else than the neutral element at one place. */
enum { MOST_TERMS = 8, MOST_FACTORS = 3 };

static bool is_integer(enum sstar_type type)
{
    switch (type) {
    case SSTAR_FLOAT32:
    case SSTAR_FLOAT64:
    case SSTAR_FLOAT16:
    case SSTAR_BFLOAT16:
    case SSTAR_FLOAT8_E4M3:
    case SSTAR_FLOAT8_E5M2:
        return false;
    default:
        return true;
    }
}

static bool is_unsigned(enum sstar_type type)
{
    return type == SSTAR_UINT8 || type == SSTAR_UINT32 || type == SSTAR_UINT64;
}

static bool takes_part(int rank, int size, size_t i, int most)
{
    size_t every = (size_t)(size + most - 1) / (size_t)most;
    return ((size_t)rank + i) % every == 0;
}

int element_of_rank(int rank, int size, size_t i, uint64_t salt, enum sstar_type type,
                    enum sstar_op op)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u ^ ((uint64_t)rank + salt) * 0xd1342543de82ef95u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u >> 33;
    bool positive = is_unsigned(type);
    switch (op) {
    case SSTAR_SUM:
    case SSTAR_AVG:
        if (sstar_type_bytes(type) >= 4) /* a sum over a million ranks is exact */
            return positive ? (int)(x % 31) : (int)(x % 31) - 15;
        if (!takes_part(rank, size, i, MOST_TERMS))
            return 0;
        return positive ? (int)(x % 2) : (int)(x % 3) - 1;
    case SSTAR_PROD:
        return (takes_part(rank, size, i, MOST_FACTORS) ? 2 : 1) * (!positive && x % 2 ? -1 : 1);
    default:
        return positive ? (int)(x % 16) : (int)(x % 16) - 8;
    }
}

static double average(double sum, int size, enum sstar_type type)
{
    if (is_integer(type))
        return (double)((int64_t)sum / size);
    if (type == SSTAR_FLOAT64)
        return sum / size;
    uint64_t rounded;
    element_set(&rounded, 0, type, (double)((float)sum / (float)size));
    return element_get(&rounded, 0, type);
}

double element_reduced(int size, size_t i, uint64_t salt, enum sstar_type type, enum sstar_op op)
{
    double right = element_of_rank(0, size, i, salt, type, op);
    for (int rank = 1; rank < size; rank++) {
        double value = element_of_rank(rank, size, i, salt, type, op);
        if (op == SSTAR_SUM || op == SSTAR_AVG)
            right += value;
        else if (op == SSTAR_PROD)
            right *= value;
        else if ((op == SSTAR_MIN) == (value < right))
            right = value;
    }
    return op == SSTAR_AVG ? average(right, size, type) : right;
}

struct element_layout element_layout(const struct element_case *it, int rank)
{
    size_t n = (size_t)it->size, count = it->count;
    size_t own = it->in_place ? (size_t)rank * count : 0;
    struct element_layout all = {0, count, 0, count};
    switch (it->operation) {
    case SSTAR_REDUCE_SCATTER:
        return (struct element_layout){0, n * count, own, count};
    case SSTAR_ALL_GATHER:
        return (struct element_layout){own, count, 0, n * count};
    case SSTAR_BROADCAST:
        all.send_count = rank == it->root ? count : 0;
        return all;
    case SSTAR_REDUCE:
        all.recv_count = rank == it->root ? count : 0;
        return all;
    case SSTAR_BARRIER:
        return (struct element_layout){0};
    default:
        return all;
    }
}

double element_expected(const struct element_case *it, int rank, size_t i)
{
    switch (it->operation) {
    case SSTAR_BROADCAST:
        return element_of_rank(it->root, it->size, i, it->salt, it->type, it->op);
    case SSTAR_ALL_GATHER:
        return element_of_rank((int)(i / it->count), it->size, i % it->count, it->salt, it->type,
                               it->op);
    case SSTAR_REDUCE_SCATTER:
        i += (size_t)rank * it->count;
        break;
    default:
        break;
    }
    return element_reduced(it->size, i, it->salt, it->type, it->op);
}
