/* SPDX-License-Identifier: MIT */
#include "tools/alltoall_bare.h"
#include <errno.h>
#include <string.h>

static inline uint64_t first_word(const void *data, uint32_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, data, bytes < sizeof word ? bytes : sizeof word);
    return word;
}

/* `bytes` is a constant where it matters, so that a message is a store or two. */
static inline __attribute__((always_inline)) int push_all(struct sstar_aggregator *a,
                                                          const uint16_t *to, size_t n,
                                                          uint32_t bytes, void *message,
                                                          size_t *done, struct bare *bare)
{
    size_t i = *done;
    uint64_t sum = 0;
    int err = 0;
    for (; i < n; i++) {
        uint64_t word = i;
        memcpy(message, &word, bytes < sizeof word ? bytes : sizeof word);
        err = sstar_push(a, to[i], message, bytes);
        if (err)
            break;
        sum += first_word(message, bytes);
    }
    *done = i;
    bare->sum_sent += sum;
    return err == -EAGAIN ? 0 : err;
}

static inline __attribute__((always_inline)) int pull_all(struct sstar_aggregator *a,
                                                          uint32_t bytes, struct bare *bare)
{
    struct sstar_item item;
    uint64_t n = 0, sum = 0;
    int got;
    while ((got = sstar_pull(a, &item)) > 0) {
        sum += first_word(item.data, bytes);
        n++;
    }
    bare->pulled += n;
    bare->sum_pulled += sum;
    return got;
}

static inline __attribute__((always_inline)) int exchange(struct sstar_aggregator *a,
                                                          const uint16_t *to, size_t n,
                                                          uint32_t bytes, void *message,
                                                          struct bare *bare)
{
    size_t done = 0;
    int left;
    do {
        int err = push_all(a, to, n, bytes, message, &done, bare);
        if (err || (err = pull_all(a, bytes, bare)))
            return err;
        left = sstar_advance(a, done == n);
    } while (left > 0);
    return left;
}

int bare_exchange(struct sstar_aggregator *a, const uint16_t *to, size_t n, uint32_t bytes,
                  void *message, struct bare *bare)
{
    switch (bytes) {
    case 8: {
        uint64_t word[1];
        return exchange(a, to, n, sizeof word, word, bare);
    }
    case 16: {
        uint64_t words[2] = {0};
        return exchange(a, to, n, sizeof words, words, bare);
    }
    case 64: {
        uint64_t words[8] = {0};
        return exchange(a, to, n, sizeof words, words, bare);
    }
    default:
        return exchange(a, to, n, bytes, message, bare);
    }
}
