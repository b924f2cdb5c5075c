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
 * A cell is full when its word says so; the words are fetched some cells ahead too, for each would
 * be one more line to wait for. (One word for all, counting, goes to and fro instead.)
 */
#include "collectives/node_inside.h"
#include "transport/fetch.h"

#include <string.h>

enum { LINE_BYTES = 64, FETCH_AHEAD = 2, WORDS_AHEAD = 4 /* cells */ };

/* In whose area the cell with this number lies that rank `of` fills. */
static struct node_area *area_of(const struct node_part *node, int of, uint64_t number)
{
    return node->areas[(of ^ (int)(number / NODE_CELLS)) & 1];
}

static char *cell_of(const struct node_part *node, int of, uint64_t number)
{
    return area_of(node, of, number)->cells[number % NODE_CELLS];
}

static _Atomic uint64_t *word_of(const struct node_part *node, int of, uint64_t number)
{
    return &area_of(node, of, number)->words[number % NODE_CELLS].word;
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

static void fill(struct node_part *node, size_t total)
{
    size_t i = node->filled++;
    uint64_t number = node->cells + i;
    node->copy(cell_of(node, node->me, number), (const char *)node->job->send + i * NODE_CELL_BYTES,
               bytes_of(total, i));
    atomic_store_explicit(word_of(node, node->me, number), full(node, number),
                          memory_order_release);
}

/* Fetch what the other has filled, some cells ahead. */
static int look(struct node_part *node, size_t total, size_t n)
{
    int other = 1 - node->me;
    while (node->known < n && node->known <= node->taken + FETCH_AHEAD) {
        uint64_t number = node->cells + node->known, due = full(node, number);
        uint64_t word = atomic_load_explicit(word_of(node, other, number), memory_order_acquire);
        if (word != due)
            return (uint32_t)word == (uint32_t)due ? node_differ(node, other) : 0;
        const char *cell = cell_of(node, other, number);
        if (node->known + WORDS_AHEAD < n)
            fetch_to_write(word_of(node, other, number + WORDS_AHEAD));
        for (size_t at = 0, bytes = bytes_of(total, node->known); at < bytes; at += LINE_BYTES)
            fetch_to_write(cell + at);
        node->known++;
    }
    return 0;
}

static void take(struct node_part *node, size_t total)
{
    const struct node_job *job = node->job;
    size_t i = node->taken++, bytes = bytes_of(total, i), count = bytes / job->element_bytes;
    const char *theirs = cell_of(node, 1 - node->me, node->cells + i);
    const char *ours = (const char *)job->send + i * NODE_CELL_BYTES;
    char *result = (char *)job->recv + i * NODE_CELL_BYTES;
    char *to = node_streams(job) ? node->block : result;
    if (node->me == 0)
        job->kernel(to, ours, theirs, count);
    else
        job->kernel(to, theirs, ours, count);
    if (to != result)
        node_copy_out(job, result, to, bytes);
}

int node_all_by_cells(struct node_part *node)
{
    size_t total = node->job->count * node->job->element_bytes;
    size_t n = (total + NODE_CELL_BYTES - 1) / NODE_CELL_BYTES;
    while (node->filled < n && node->filled < node->taken + NODE_CELLS)
        fill(node, total);
    for (int err; node->taken < n;) {
        if ((err = look(node, total, n)))
            return err;
        if (node->taken == node->known) {
            node->seen = 1 - node->me;
            return NODE_STALLS;
        }
        take(node, total);
        node->moved = true;
        if (node->filled < n)
            fill(node, total);
    }
    node->seen = 0;
    node->cells += n;
    return NODE_DONE;
}
