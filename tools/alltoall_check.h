/* SPDX-License-Identifier: MIT */
/*
 * Messages that can be checked: each carries its source, its destination, its number in their
 * stream and a pattern that follows from these and a seed, so that the receiver can tell exactly
 * which were lost, came twice or came altered. Private to tools/alltoall*.c.
 */
#ifndef SSTAR_TOOLS_ALLTOALL_CHECK_H
#define SSTAR_TOOLS_ALLTOALL_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHECK_BYTES_LEAST = 8 };

struct check {
    int rank, ranks;
    uint32_t bytes; /* of every message, or of the longest */
    bool varied;    /* there are shorter ones */
    uint64_t seed;
    /* What is to come from each source, and a bit for each that has. */
    uint64_t *expected; /* [ranks] */
    uint64_t *seen;
    size_t *seen_begin;                  /* [ranks + 1], in words of `seen` */
    uint64_t distinct, doubled, altered; /* so far */
};

/* With room for `most` expected messages in all. 0 or -ENOMEM; check_close accepts a failed one. */
int check_open(struct check *c, int rank, int ranks, uint32_t bytes, uint64_t seed, uint64_t most);
void check_close(struct check *c);
/* Expect matrix[source][rank] messages from each source, matrix being [ranks][ranks]; of these none
 * has come. What was doubled or altered before stays counted. */
void check_begin(struct check *c, const uint64_t *matrix);
/* How many are expected in all. */
uint64_t check_wanted(const struct check *c);

/* Compose message `number` to `destination`, of so many bytes; `message` has room for a multiple of
 * 8. */
void check_write(const struct check *c, uint64_t *message, int destination, uint32_t number,
                 uint32_t bytes);
/* A message has come; `data` is aligned to 8 bytes. */
void check_read(struct check *c, int source, const void *data, uint32_t bytes);

#endif
