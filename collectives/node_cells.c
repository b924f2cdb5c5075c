/* SPDX-License-Identifier: MIT */
/*
 * AllReduce of two ranks of a node through cells. Each gives the other its whole vector, cell by
 * cell, and reduces what it gets with its own: one way through the caches, no second phase.
 *
 * Cells change hands. Of two cells of the same number one belongs to each rank; a rank fills its
 * own and reads the other's, and the one that it has read is the one that it fills next time round.
 * It fetches lines with the intent to write, some cells ahead, so that a line goes from core to
 * core once for each line of data, and nobody asks whether a cell is free: who has read it owns it.
 *
 * Cells are full when a word says so; the words are fetched some cells ahead too, for each would
 * be one more line to wait for. (One word for all, counting, goes to and fro instead.)
 */
#include "collectives/node_inside.h"
#include "transport/fetch.h"

#include <string.h>

enum {
    LINE_BYTES = 64,
    SHORT_BYTES = 2048,
    LONG_BYTES = NODE_FEW_CELLS * NODE_CELL_BYTES,
    FETCH_AHEAD = 3, /* cells */
    WORDS_AHEAD = 3, /* words */
    OURS_AHEAD = 2,  /* cells of our own vectors: their lines and pages may not be in our caches */
};

/* The cells that take turns. Short vectors have few of their own, which stay in the L1 cache. */
struct ring {
    uint64_t first, cells;
};
static struct ring ring_of(const struct node_part *node)
{
    return node->long_ring ? (struct ring){NODE_FEW_CELLS, NODE_CELLS}
                           : (struct ring){0, NODE_FEW_CELLS};
}

/* Where the cell with this number lies that rank `of` fills. */
struct place {
    char *data;
    _Atomic uint64_t *word;
};
static struct place place_of(const struct node_part *node, int of, uint64_t number)
{
    struct ring ring = ring_of(node);
    struct node_area *area = node->areas[(of ^ (int)(number / ring.cells)) & 1];
    uint64_t at = ring.first + number % ring.cells;
    return (struct place){area->cells[at], &area->words[at].word};
}

static uint64_t full(const struct node_part *node, uint64_t number)
{
    return (uint64_t)node->job->signature << 32 | (uint32_t)(number + 1);
}

static size_t bytes_of(size_t total, size_t i)
{
    size_t left = total - i * NODE_CELL_BYTES;
    return left < NODE_CELL_BYTES ? left : NODE_CELL_BYTES;
}

/* All cells of a short vector have one word, that of the last of them; else each has its own. */
static size_t end_of_group(size_t total, size_t n, size_t i)
{
    return total <= SHORT_BYTES ? n : i + 1;
}

static void fill(struct node_part *node, size_t total, size_t n)
{
    size_t i = node->filled++;
    uint64_t number = node->cells[node->long_ring] + i;
    const char *send = (const char *)node->job->send + i * NODE_CELL_BYTES;
    if (node->long_ring && i + OURS_AHEAD < n)
        for (size_t at = 0; at < NODE_CELL_BYTES; at += LINE_BYTES)
            __builtin_prefetch(send + OURS_AHEAD * NODE_CELL_BYTES + at);
    node->copy(place_of(node, node->me, number).data, send, bytes_of(total, i));
    if (end_of_group(total, n, i) == i + 1)
        atomic_store_explicit(place_of(node, node->me, number).word, full(node, number),
                              memory_order_release);
}

static void fetch_cell(const struct node_part *node, uint64_t number, size_t bytes)
{
    const char *cell = place_of(node, 1 - node->me, number).data;
    for (size_t at = 0; at < bytes; at += LINE_BYTES)
        fetch_to_write(cell + at);
}

/* The words after this one; when we had to wait, of all that will soon be asked for.
 */
static void fetch_words(const struct node_part *node, size_t total, size_t n, size_t last)
{
    bool waited = node->known == node->taken;
    for (int i = 1; i <= WORDS_AHEAD && last + 1 < n; i++) {
        last = end_of_group(total, n, last + 1) - 1;
        if (waited || i == WORDS_AHEAD)
            fetch_to_write(place_of(node, 1 - node->me, node->cells[node->long_ring] + last).word);
    }
}

/* Fetch what the other has filled, some cells ahead. */
static int look(struct node_part *node, size_t total, size_t n)
{
    int other = 1 - node->me;
    while (node->known < n && node->known <= node->taken + FETCH_AHEAD) {
        size_t end = end_of_group(total, n, node->known);
        uint64_t number = node->cells[node->long_ring] + end - 1, due = full(node, number);
        uint64_t word =
            atomic_load_explicit(place_of(node, other, number).word, memory_order_acquire);
        if (word != due)
            return (uint32_t)word == (uint32_t)due ? node_differ(node, other) : 0;
        fetch_to_write(place_of(node, other, number).word); /* it is ours to write next */
        fetch_words(node, total, n, end - 1);
        for (; node->known < end; node->known++)
            fetch_cell(node, node->cells[node->long_ring] + node->known,
                       bytes_of(total, node->known));
    }
    return 0;
}

static void take(struct node_part *node, size_t total, size_t n)
{
    const struct node_job *job = node->job;
    size_t i = node->taken++, bytes = bytes_of(total, i), count = bytes / job->element_bytes;
    const char *theirs = place_of(node, 1 - node->me, node->cells[node->long_ring] + i).data;
    const char *ours = (const char *)job->send + i * NODE_CELL_BYTES;
    char *result = (char *)job->recv + i * NODE_CELL_BYTES;
    char *to = node_streams(node) ? node->block : result;
    if (to == result && node->long_ring && i + OURS_AHEAD < n)
        for (size_t at = 0; at < NODE_CELL_BYTES; at += LINE_BYTES)
            fetch_to_write(result + OURS_AHEAD * NODE_CELL_BYTES + at);
    if (node->me == 0)
        job->kernel(to, ours, theirs, count);
    else
        job->kernel(to, theirs, ours, count);
    if (to != result)
        node_copy_out(node, result, to, bytes);
}

int node_all_by_cells(struct node_part *node)
{
    size_t total = node->job->count * node->job->element_bytes;
    size_t n = (total + NODE_CELL_BYTES - 1) / NODE_CELL_BYTES;
    node->long_ring = total > LONG_BYTES;
    while (node->filled < n && node->filled < node->taken + ring_of(node).cells)
        fill(node, total, n);
    for (int err; node->taken < n;) {
        if ((err = look(node, total, n)))
            return err;
        if (node->taken == node->known) {
            node->seen = 1 - node->me;
            return NODE_STALLS;
        }
        take(node, total, n);
        node->moved = true;
        if (node->filled < n)
            fill(node, total, n);
    }
    node->seen = 0;
    node->cells[node->long_ring] += n;
    return NODE_DONE;
}
