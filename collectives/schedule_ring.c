/* SPDX-License-Identifier: MIT */
/*
 * Ring: reduce-scatter, then all-gather, around a ring of n places; or one of the two alone.
 *
 * P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", Journal of Parallel and Distributed Computing 69 (2009).
 *
 * The vector is cut into n blocks. At turn t = 0 .. 2n-3 place r sends block r-1-t to its successor
 * and receives block r-2-t from its predecessor (mod n): up to turn n-2 what arrives is reduced
 * with the own contribution, from then on it is the result; so place r has the result of block r
 * first. Block b is summed in the order of places b+1, b+2, .. once, and then copied: all places
 * have the same bits. ReduceScatter is turns 0 .. n-2, AllGather turns n-1 .. 2n-3.
 *
 *     T = 2 (n-1) (alpha + S/(n beta))                        unsliced, every place on its own port
 *     T = (2n-2) (alpha + S/(n P beta)) + (P-1) (g + S/(n P beta))   P slices, while
 *                                                             P (g + S/(n P beta)) <= alpha
 *
 * Each place moves 2 (n-1)/n S bytes, the least that is possible. A block is cut into P slices that
 * follow one another: message k of a place is sent when message k-P has been received, and when
 * those two are the same slice of the same block it is one step, receive-reduce-send, that
 * touches the bytes once. So at most P messages are under way on each edge of the ring, which
 * bounds the slots: credits may come back as late as half the slots, so 2P slots are always enough.
 * Blocks of more than P of the largest slices take several passes, without a gap between them. With
 * several channels each has a part of every block, and its ring begins with another rank of each
 * node, so that it crosses between nodes elsewhere: for nodes with several ports. The order of
 * summation depends on n and the channels, not on slices and passes.
 */
#include "collectives/schedule.h"

struct ring {
    const struct schedule_shape *shape;
    struct group group;
    int channel;
    unsigned first, last; /* turns */
    size_t slices, passes;
};

/* What message `k` of place `sender` carries. */
struct slice {
    struct range range;
    unsigned turn;
};
static struct slice slice_of(const struct ring *ring, size_t k, int sender)
{
    unsigned n = (unsigned)ring->group.n, turns = ring->last - ring->first + 1;
    unsigned turn = ring->first + (unsigned)(k / ring->slices % turns);
    int place = (int)(((unsigned)sender + 2 * n - 1 - turn) % n);
    struct range range = group_block(&ring->group, ring->shape, place);
    range = range_cut(range, ring->shape->channels, (size_t)ring->channel);
    range = range_cut(range, ring->passes, k / ring->slices / turns);
    return (struct slice){range_cut(range, ring->slices, k % ring->slices), turn};
}

static struct step step_of(const struct ring *ring, struct range range)
{
    const struct group *g = &ring->group;
    return (struct step){.channel = (uint8_t)ring->channel,
                         .from = {group_rank(g, (g->me + g->n - 1) % g->n), -1},
                         .to = {group_rank(g, (g->me + 1) % g->n), -1},
                         .offset = range.offset,
                         .count = range.count};
}

/* Receive the slice, and send it on if its way is not at an end. */
static bool receive(struct schedule *schedule, const struct ring *ring, const struct slice *in)
{
    unsigned n = (unsigned)ring->group.n, what = STEP_RECEIVE | ring->group.operand;
    if (in->turn <= n - 2)
        what |= STEP_REDUCE;
    if (in->turn >= n - 2)
        what |= STEP_STORE;
    if (in->turn < ring->last)
        what |= STEP_SEND;
    struct step step = step_of(ring, in->range);
    step.what = (uint16_t)what;
    if (in->range.count)
        schedule_add(schedule, step);
    return what & STEP_SEND;
}

static void send(struct schedule *schedule, const struct ring *ring, const struct slice *out)
{
    struct step step = step_of(ring, out->range);
    step.what = (uint16_t)(STEP_SEND | ring->group.operand);
    if (ring->shape->operation == SSTAR_ALL_GATHER)
        step.what |= STEP_STORE; /* the own block */
    if (out->range.count)
        schedule_add(schedule, step);
}

/* At position i: receive message i - P, send message i. Empty slices are neither sent nor
 * received. */
static void lane(struct schedule *schedule, const struct ring *ring)
{
    int previous = (ring->group.me + ring->group.n - 1) % ring->group.n;
    size_t P = ring->slices, messages = ring->passes * (ring->last - ring->first + 1) * P;
    for (size_t i = 0; i < messages + P; i++) {
        bool forward = false;
        if (i >= P) {
            struct slice in = slice_of(ring, i - P, previous);
            forward = receive(schedule, ring, &in);
        }
        if (i < messages && !forward) {
            struct slice out = slice_of(ring, i, ring->group.me);
            send(schedule, ring, &out);
        }
    }
}

void schedule_ring(struct schedule *schedule, const struct schedule_shape *shape,
                   const struct group *group)
{
    unsigned n = (unsigned)group->n;
    size_t block = range_slices(group_block_most(group, shape), shape->channels);
    size_t slices = range_slices(block, shape->slice_elements);
    for (uint32_t c = 0; c < shape->channels && slices; c++) {
        struct ring ring = {.shape = shape,
                            .group = *group,
                            .channel = (int)c,
                            .first = shape->operation == SSTAR_ALL_GATHER ? n - 1 : 0,
                            .last = shape->operation == SSTAR_REDUCE_SCATTER ? n - 2 : 2 * n - 3,
                            .passes = range_slices(slices, shape->window)};
        ring.slices = range_slices(slices, ring.passes);
        if (group->kind == GROUP_NODE_ORDER)
            ring.group = group_in_node_order(shape, group_rank(group, group->me), (int)c);
        schedule_lane(schedule, group->phase);
        lane(schedule, &ring);
    }
}
