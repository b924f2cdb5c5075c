/* SPDX-License-Identifier: MIT */
/*
 * AllReduce of the ranks of a node through copies, piece by piece. In turn k a rank collects the
 * results of piece k - 2, reduces its slice of piece k - 1 from everybody's copy, and copies its
 * input of piece k for the others; then all meet. So there is one meeting for a piece, and two
 * more.
 *
 * A piece of all ranks together is to stay in the cores' L2 caches. Why nothing is overwritten too
 * early: a copy of piece k is read in turn k + 1 and filled anew in turn k + 2, results of piece k
 * are written in turn k + 1, read in turn k + 2 and written anew in turn k + 3; a meeting stands
 * between any two turns, and the first turn of the next operation writes only copies, which nobody
 * reads in a last turn.
 */
#include "collectives/node_inside.h"

#include <string.h>

enum {
    ALL_BYTES = 512 * 1024, /* the copies of one piece, of all ranks */
    COPY_BYTES = NODE_STAGING_BYTES / 2,
    LINE_BYTES = 64,
};

/* Elements of a piece: slices of whole lines. */
static size_t most_of(const struct node_part *node)
{
    size_t slice = ALL_BYTES / ((size_t)node->size * (size_t)node->size) / LINE_BYTES * LINE_BYTES;
    slice = slice < LINE_BYTES ? LINE_BYTES : slice;
    size_t all = slice * (size_t)node->size;
    return (all < COPY_BYTES ? all : COPY_BYTES) / node->job->element_bytes;
}

static char *copy_of(const struct node_part *node, int i, size_t piece)
{
    return node->areas[i]->staging[piece & 1];
}

static char *result_of(const struct node_part *node, int i, size_t piece)
{
    return copy_of(node, i, piece) + COPY_BYTES;
}

struct piece {
    size_t at, count; /* elements of the vector */
};
static struct piece piece_of(const struct node_part *node, size_t k)
{
    size_t most = most_of(node), at = k * most, left = node->job->count - at;
    return (struct piece){at, left < most ? left : most};
}

static void copy(struct node_part *node, size_t k)
{
    const struct node_job *job = node->job;
    struct piece piece = piece_of(node, k);
    node->copy(copy_of(node, node->me, k), (const char *)job->send + piece.at * job->element_bytes,
               piece.count * job->element_bytes);
}

static void reduce(struct node_part *node, size_t k)
{
    struct piece piece = piece_of(node, k);
    size_t at, count;
    hierarchy_slice(node->size, piece.count, node->me, &at, &count);
    for (int i = 0; i < node->size; i++)
        node->inputs[i] = copy_of(node, i, k);
    size_t bytes = node->job->element_bytes, block = NODE_BLOCK_BYTES / bytes;
    char *to = result_of(node, node->me, k);
    for (size_t done = 0; done < count; done += block)
        node_reduce_inputs(node, node->job, node->inputs, at + done,
                           count - done < block ? count - done : block, to + done * bytes);
}

static void collect(struct node_part *node, size_t k)
{
    const struct node_job *job = node->job;
    struct piece piece = piece_of(node, k);
    size_t at, count;
    for (int turn = 0; turn < node->size; turn++) {
        int j = (node->me + turn) % node->size; /* not all from the same rank at once */
        hierarchy_slice(node->size, piece.count, j, &at, &count);
        node_copy_out(node, (char *)job->recv + (piece.at + at) * job->element_bytes,
                      result_of(node, j, k), count * job->element_bytes);
    }
}

int node_all_by_pieces(struct node_part *node)
{
    size_t most = most_of(node), n = (node->job->count + most - 1) / most, k = node->taken++;
    if (k == 1) { /* all have come once */
        int err = node_check_words(node);
        if (err)
            return err;
    }
    node->moved = true;
    if (k >= 2)
        collect(node, k - 2);
    if (k == n + 1)
        return NODE_DONE;
    if (k >= 1 && k - 1 < n)
        reduce(node, k - 1);
    if (k < n)
        copy(node, k);
    return node_meet(node);
}
