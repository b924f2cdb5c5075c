/* SPDX-License-Identifier: MIT */
/* What the files of the node's part share: node_reduce.c, node_shares.c, node_all.c,
 * node_cells.c, node_pieces.c, node_groups.c, node_last.c. */
#ifndef SSTAR_COLLECTIVES_NODE_INSIDE_H
#define SSTAR_COLLECTIVES_NODE_INSIDE_H

#include "collectives/node_reduce.h"

/* An act is a function that is called again and again: it goes on from node->stage, and says that
 * it waits (the next call comes when all ranks of the node have come), that it stalls (something
 * of its own is missing; it is called whenever somebody looks) or is done; or a negative errno. */
enum { NODE_WAITS, NODE_STALLS, NODE_DONE };

/* Say that we have come, and wait for the others. */
int node_meet(struct node_part *node);
/* Put `bytes` of ours into our slot and wait until all have. */
int node_exchange(struct node_part *node, const void *mine, size_t bytes);
/* What rank i has put into its slot in this round. */
const char *node_slot_of(const struct node_part *node, int i, size_t bytes);
/* The failure that another rank gives other arguments; and whether it does, after a meeting. */
int node_differ(struct node_part *node, int peer);
int node_check_words(struct node_part *node);

/* Tell where our vectors lie; and learn which of the others' we can reach. */
int node_publish(struct node_part *node);
int node_learn(struct node_part *node);

/* Which blocks of the world each member has (struct sharing). 0 or a negative errno. */
int node_shares_open(struct node_part *node, const struct node_map *map);
/* Elements that a member has in the job under way. */
size_t node_share(const struct node_part *node, int member);

/* Part [at, at + count) of all inputs, each from its own start, into `to`, which may be one of
 * them. */
void node_reduce_inputs(struct node_part *node, const struct node_job *job,
                        const char *const *inputs, size_t at, size_t count, char *to);

/* The acts of what is shared out, in node_shares.c. */
int node_reduce_scatter(struct node_part *node);
int node_all_gather(struct node_part *node);

/* The act of AllReduce where one node is all, in node_all.c; and its ways through copies: */
int node_all_reduce(struct node_part *node);
int node_all_by_cells(struct node_part *node);
int node_all_by_pieces(struct node_part *node);
int node_all_by_groups(struct node_part *node);
int node_all_by_last(struct node_part *node);
/* Whether the vectors go that way, if they are copied; and node_waits_for_other_cores then. */
static inline bool node_has_last(const struct node_part *node)
{
    return node->groups == 2 && node->size > 2;
}
bool node_last_waits_elsewhere(const struct node_part *node);

/* Whether the vectors are so long that the results would only drive out of the caches what is
 * needed sooner; then node_copy_out, else memcpy, goes past them. */
static inline bool node_streams(const struct node_part *node)
{
    return node->job->count * node->job->element_bytes > node->cached_bytes;
}
void node_copy_out(const struct node_part *node, void *to, const void *from, size_t bytes);
/* The same; where it goes past the caches `ahead`, as much, is fetched by and by. */
void node_copy_ahead(const struct node_part *node, void *to, const void *from, size_t bytes,
                     const char *ahead);

#endif
