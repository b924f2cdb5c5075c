/* SPDX-License-Identifier: MIT */
/*
 * Values by number: a leaf, or a pair of values. The contributions in a value are kept as intervals
 * of ranks, which are few in any sensible schedule.
 */
#include "collectives/check.h"

#include <stdlib.h>
#include <string.h>

struct interval {
    uint32_t begin, end;
};
struct value {
    uint32_t a, b; /* 0: a leaf */
    size_t first, n;
};

struct check_values {
    uint32_t ranks, used, capacity;
    struct value *values; /* [1 .. used) */
    struct interval *intervals;
    size_t intervals_used, intervals_capacity;
    uint32_t *table, table_size; /* of sums, by hash; a power of two */
    uint32_t last[3];            /* a, b, sum: the one asked for last */
};

static bool grow(void **memory, size_t *capacity, size_t need, size_t bytes)
{
    if (need <= *capacity)
        return true;
    size_t larger = *capacity ? *capacity : 1024;
    while (larger < need)
        larger *= 2;
    void *moved = realloc(*memory, larger * bytes);
    if (!moved)
        return false;
    *memory = moved;
    *capacity = larger;
    return true;
}

static uint32_t add(struct check_values *v, uint32_t a, uint32_t b, size_t first, size_t n)
{
    size_t capacity = v->capacity;
    if (!grow((void **)&v->values, &capacity, (size_t)v->used + 1, sizeof *v->values))
        return 0;
    v->capacity = (uint32_t)capacity;
    v->values[v->used] = (struct value){a, b, first, n};
    return v->used++;
}

struct check_values *check_values_new(int ranks)
{
    struct check_values *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    v->ranks = (uint32_t)ranks;
    v->used = 1;
    v->table_size = 1 << 12;
    v->table = calloc(v->table_size, sizeof *v->table);
    bool ok = v->table && grow((void **)&v->intervals, &v->intervals_capacity, (size_t)ranks,
                               sizeof *v->intervals);
    for (uint32_t r = 0; ok && r < v->ranks; r++) {
        v->intervals[r] = (struct interval){r, r + 1};
        ok = add(v, 0, 0, r, 1) != 0;
    }
    v->intervals_used = (size_t)ranks;
    if (ok)
        return v;
    check_values_free(v);
    return NULL;
}

void check_values_free(struct check_values *v)
{
    if (!v)
        return;
    free(v->values);
    free(v->intervals);
    free(v->table);
    free(v);
}

uint32_t check_leaf(const struct check_values *v, int rank)
{
    (void)v;
    return (uint32_t)rank + 1;
}

static uint32_t *place_of(const struct check_values *v, uint32_t a, uint32_t b)
{
    uint64_t hash = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    uint32_t mask = v->table_size - 1, i = (uint32_t)(hash >> 32) & mask;
    for (; v->table[i]; i = (i + 1) & mask) {
        const struct value *value = &v->values[v->table[i]];
        if (value->a == a && value->b == b)
            break;
    }
    return &v->table[i];
}

static bool rehash(struct check_values *v)
{
    if (v->used * 2 < v->table_size)
        return true;
    uint32_t *table = calloc((size_t)v->table_size * 4, sizeof *table);
    if (!table)
        return false;
    free(v->table);
    v->table = table;
    v->table_size *= 4;
    for (uint32_t i = v->ranks + 1; i < v->used; i++)
        *place_of(v, v->values[i].a, v->values[i].b) = i;
    return true;
}

/* Behind all intervals, those of both values. False: they have a rank in common. */
static bool merge(struct check_values *v, const struct value *a, const struct value *b, size_t *n)
{
    struct interval *out = v->intervals + v->intervals_used;
    size_t i = 0, j = 0;
    *n = 0;
    while (i < a->n || j < b->n) {
        struct interval x =
            i < a->n ? v->intervals[a->first + i] : (struct interval){UINT32_MAX, UINT32_MAX};
        struct interval y =
            j < b->n ? v->intervals[b->first + j] : (struct interval){UINT32_MAX, UINT32_MAX};
        bool mine = x.begin < y.begin;
        struct interval next = mine ? x : y;
        if (next.end > (mine ? y.begin : x.begin))
            return false;
        if (mine)
            i++;
        else
            j++;
        if (*n && out[*n - 1].end == next.begin)
            out[*n - 1].end = next.end;
        else
            out[(*n)++] = next;
    }
    return true;
}

uint32_t check_sum(struct check_values *v, uint32_t a, uint32_t b)
{
    if (a == 0 || b == 0 || !rehash(v))
        return 0;
    if (a == v->last[0] && b == v->last[1])
        return v->last[2];
    uint32_t *place = place_of(v, a, b);
    if (*place == 0) {
        struct value left = v->values[a], right = v->values[b];
        size_t n, need = v->intervals_used + left.n + right.n;
        if (!grow((void **)&v->intervals, &v->intervals_capacity, need, sizeof *v->intervals) ||
            !merge(v, &left, &right, &n))
            return 0;
        *place = add(v, a, b, v->intervals_used, n);
        v->intervals_used += n;
    }
    v->last[0] = a;
    v->last[1] = b;
    return v->last[2] = *place;
}

bool check_is_whole(const struct check_values *v, uint32_t value)
{
    if (value == 0 || v->values[value].n != 1)
        return false;
    const struct interval *all = &v->intervals[v->values[value].first];
    return all->begin == 0 && all->end == v->ranks;
}
