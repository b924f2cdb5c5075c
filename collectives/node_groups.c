/* SPDX-License-Identifier: MIT */
/*
 * AllReduce of more ranks than cores through copies (two cores: node_last.c). The ranks of a node
 * make groups, one for each core: rank i is in group i mod groups, which is where ranks that are
 * kept to cores are. Within a group a sum stays in that core's caches; only sums of whole groups,
 * and results, go between cores.
 *
 * Every piece is cut into as many parts as there are groups, and every part into as many slices as
 * a group has members. In turn k a rank collects the results of piece k - 3; makes the results of
 * its slice of its group's part of piece k - 2 from the sums of all groups; sums its slice of every
 * part of piece k - 1 over its group; and copies its input of piece k. Then all meet: once for a
 * piece, and three times more. With n ranks, G groups and pieces of P bytes 2 P (G-1)/G go to each
 * core, where without groups it would be P (G-1)/G (n/G + 1).
 *
 * Nothing is overwritten too early, as in node_pieces.c: what is written in a turn is read in the
 * next and written anew in the one after that; the first turn of an operation writes copies, the
 * second sums, which nobody reads in a last turn.
 */
#include "collectives/node_inside.h"

#include <string.h>

enum {
    COPY_BYTES = NODE_STAGING_BYTES / 2,
    SUM_BYTES = NODE_STAGING_BYTES / 4,
    ALL_BYTES = 256 * 1024, /* the copies of one piece, of all ranks */
    LINE_BYTES = 64,
};

static int members_of(const struct node_part *node)
{
    return node->size / node->groups;
}

/* Elements of a piece: slices of whole lines. */
static size_t most_of(const struct node_part *node)
{
    size_t size = (size_t)node->size, slice = ALL_BYTES / (size * size);
    slice = slice < SUM_BYTES / size ? slice : SUM_BYTES / size;
    slice = slice < LINE_BYTES ? LINE_BYTES : slice / LINE_BYTES * LINE_BYTES;
    return slice * size / node->job->element_bytes;
}

struct part {
    size_t at, count; /* elements */
};

static struct part piece_of(const struct node_part *node, size_t k)
{
    size_t most = most_of(node), at = k * most, left = node->job->count - at;
    return (struct part){at, left < most ? left : most};
}

/* Slice t of the part of group g, from the start of the piece. */
static struct part slice_of(const struct node_part *node, size_t k, int g, int t)
{
    struct part part, slice;
    hierarchy_slice(node->groups, piece_of(node, k).count, g, &part.at, &part.count);
    hierarchy_slice(members_of(node), part.count, t, &slice.at, &slice.count);
    slice.at += part.at;
    return slice;
}

static char *copy_of(const struct node_part *node, int i, size_t k)
{
    return node->areas[i]->staging[k & 1];
}

/* Sums and results lie where their elements lie in the piece, so parts keep apart. */
static char *sum_of(const struct node_part *node, int i, size_t k)
{
    return copy_of(node, i, k) + COPY_BYTES;
}

static char *result_of(const struct node_part *node, int i, size_t k)
{
    return sum_of(node, i, k) + SUM_BYTES;
}

static int rank_of(const struct node_part *node, int g, int t)
{
    return t * node->groups + g;
}

static void copy(struct node_part *node, size_t k)
{
    const struct node_job *job = node->job;
    struct part piece = piece_of(node, k);
    node->copy(copy_of(node, node->me, k), (const char *)job->send + piece.at * job->element_bytes,
               piece.count * job->element_bytes);
}

/* a[0] op a[1] .. of a slice, in this order; what is under way stays in the L1 cache. */
static void fold(struct node_part *node, struct part slice, int n, char *to)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes, block = NODE_BLOCK_BYTES / bytes;
    for (size_t done = 0; done < slice.count; done += block) {
        size_t at = (slice.at + done) * bytes;
        size_t count = slice.count - done < block ? slice.count - done : block;
        const char *sum = node->inputs[0] + at;
        for (int i = 1; i < n; i++) {
            job->kernel(to + at, sum, node->inputs[i] + at, count);
            sum = to + at;
        }
    }
}

static void sum_group(struct node_part *node, size_t k)
{
    int group = node->me % node->groups, members = members_of(node);
    for (int t = 0; t < members; t++)
        node->inputs[t] = copy_of(node, rank_of(node, group, t), k);
    for (int g = 0; g < node->groups; g++)
        fold(node, slice_of(node, k, g, node->me / node->groups), members,
             sum_of(node, node->me, k));
}

static void sum_groups(struct node_part *node, size_t k)
{
    int t = node->me / node->groups;
    for (int g = 0; g < node->groups; g++)
        node->inputs[g] = sum_of(node, rank_of(node, g, t), k);
    fold(node, slice_of(node, k, node->me % node->groups, t), node->groups,
         result_of(node, node->me, k));
}

static void collect(struct node_part *node, size_t k)
{
    const struct node_job *job = node->job;
    size_t bytes = job->element_bytes;
    char *recv = (char *)job->recv + piece_of(node, k).at * bytes;
    for (int turn = 0; turn < node->size; turn++) {
        int i = (node->me + turn) % node->size; /* not all from the same rank at once */
        struct part slice = slice_of(node, k, i % node->groups, i / node->groups);
        node_copy_out(node, recv + slice.at * bytes, result_of(node, i, k) + slice.at * bytes,
                      slice.count * bytes);
    }
}

int node_all_by_groups(struct node_part *node)
{
    size_t most = most_of(node), n = (node->job->count + most - 1) / most, k = node->taken++;
    if (k == 1) { /* all have come once */
        int err = node_check_words(node);
        if (err)
            return err;
    }
    node->moved = true;
    if (k >= 3)
        collect(node, k - 3);
    if (k == n + 2)
        return NODE_DONE;
    if (k >= 2 && k - 2 < n)
        sum_groups(node, k - 2);
    if (k >= 1 && k - 1 < n)
        sum_group(node, k - 1);
    if (k < n)
        copy(node, k);
    return node_meet(node);
}
