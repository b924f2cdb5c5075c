/* SPDX-License-Identifier: MIT */
#include "tools/alltoall_check.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static inline uint64_t first_word(int source, int destination, uint32_t number)
{
    return (uint64_t)source << 48 | (uint64_t)destination << 32 | number;
}

static inline uint64_t pattern_base(uint64_t seed, uint64_t first)
{
    uint64_t z = (first ^ seed) + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t pattern_word(uint64_t base, size_t i)
{
    uint64_t z = base + i * 0xd1342543de82ef95u;
    return z ^ (z >> 29);
}

int check_open(struct check *c, int rank, int ranks, uint32_t bytes, uint64_t seed, uint64_t most)
{
    size_t n = (unsigned)ranks;
    *c = (struct check){.rank = rank, .ranks = ranks, .bytes = bytes, .seed = seed};
    c->expected = calloc(n, sizeof *c->expected);
    c->seen = calloc(most / 64 + n, sizeof *c->seen);
    c->seen_begin = calloc(n + 1, sizeof *c->seen_begin);
    return c->expected && c->seen && c->seen_begin ? 0 : -ENOMEM;
}

void check_close(struct check *c)
{
    free(c->expected);
    free(c->seen);
    free(c->seen_begin);
    *c = (struct check){0};
}

void check_begin(struct check *c, const uint64_t *matrix)
{
    size_t ranks = (size_t)c->ranks;
    for (size_t s = 0; s < ranks; s++) {
        c->expected[s] = matrix[s * ranks + (size_t)c->rank];
        c->seen_begin[s + 1] = c->seen_begin[s] + (c->expected[s] + 63) / 64;
    }
    memset(c->seen, 0, c->seen_begin[ranks] * sizeof *c->seen);
    c->distinct = 0;
}

uint64_t check_wanted(const struct check *c)
{
    uint64_t sum = 0;
    for (int s = 0; s < c->ranks; s++)
        sum += c->expected[s];
    return sum;
}

void check_write(const struct check *c, uint64_t *message, int destination, uint32_t number,
                 uint32_t bytes)
{
    uint64_t first = first_word(c->rank, destination, number);
    uint64_t base = pattern_base(c->seed + bytes, first);
    size_t words = (bytes + 7) / 8;
    message[0] = first;
    for (size_t i = 1; i < words; i++)
        message[i] = pattern_word(base, i);
}

/* A message is pulled in place: it lies anywhere. */
typedef uint64_t word_anywhere __attribute__((aligned(1), may_alias));

static bool same_pattern(const struct check *c, const word_anywhere *words, uint32_t bytes)
{
    uint64_t base = pattern_base(c->seed + bytes, words[0]), wrong = 0;
    size_t n = bytes / 8, rest = bytes % 8;
    for (size_t i = 1; i < n; i++)
        wrong |= words[i] ^ pattern_word(base, i);
    uint64_t last = pattern_word(base, n);
    return !wrong && (!rest || !memcmp(words + n, &last, rest));
}

void check_read(struct check *c, int source, const void *data, uint32_t bytes)
{
    const word_anywhere *words = data;
    bool good = c->varied ? bytes <= c->bytes : bytes == c->bytes;
    if (!good || bytes < CHECK_BYTES_LEAST || (unsigned)source >= (unsigned)c->ranks) {
        c->altered++;
        return;
    }
    uint32_t number = (uint32_t)words[0];
    if (words[0] != first_word(source, c->rank, number) || number >= c->expected[source]) {
        c->altered++; /* whose it is cannot be told, so one is missing too */
        return;
    }
    c->altered += !same_pattern(c, words, bytes);
    uint64_t *word = &c->seen[c->seen_begin[source] + number / 64];
    uint64_t bit = 1ull << (number % 64);
    c->doubled += (*word & bit) != 0;
    c->distinct += (*word & bit) == 0;
    *word |= bit;
}
