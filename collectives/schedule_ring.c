/* SPDX-License-Identifier: MIT */
/*
 * Ring AllReduce: reduce-scatter, then all-gather, around a ring of n places.
 *
 * P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", Journal of Parallel and Distributed Computing 69 (2009).
 *
 * The vector is cut into n blocks. In step s = 0 .. 2n-3 place r sends block r-s to its successor
 * and receives block r-s-1 from its predecessor (mod n): up to step n-2 what arrives is reduced
 * with the own input, from then on it is the result. So block b is summed in the order of places b,
 * b+1, .. once, and then copied: all places have the same bits.
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
 * A vector of more than n P of the largest slices takes several passes, without a gap between them.
 */
#include "collectives/schedule.h"

/* Part i of n of `length` elements; parts differ by at most one element. */
static void cut(size_t length, size_t n, size_t i, size_t *offset, size_t *count)
{
    size_t each = length / n, extra = length % n;
    *offset = each * i + (i < extra ? i : extra);
    *count = each + (i < extra);
}

void ring_init(struct ring *ring, size_t slice_elements)
{
    size_t pass = (size_t)ring->n * ring->slices * slice_elements;
    ring->passes = ring->count ? (ring->count - 1) / pass + 1 : 0;
}

uint64_t ring_positions(const struct ring *ring)
{
    uint64_t messages = (uint64_t)ring->passes * (2 * (uint64_t)ring->n - 2) * ring->slices;
    return messages ? messages + ring->slices : 0;
}

/* What message `k` of place `sender` carries. */
struct slice {
    size_t offset, count;
    unsigned turn; /* step of the ring, 0 .. 2n-3 */
};
static struct slice slice_of(const struct ring *ring, uint64_t k, int sender)
{
    unsigned n = (unsigned)ring->n, turns = 2 * n - 2;
    size_t p = k % ring->slices, pass = k / ring->slices / turns;
    unsigned turn = (unsigned)(k / ring->slices % turns);
    unsigned block = ((unsigned)sender + 2 * n - turn) % n;

    size_t pass_offset, pass_count, block_offset, block_count, offset, count;
    cut(ring->count, ring->passes, pass, &pass_offset, &pass_count);
    cut(pass_count, n, block, &block_offset, &block_count);
    cut(block_count, ring->slices, p, &offset, &count);
    return (struct slice){ring->offset + pass_offset + block_offset + offset, count, turn};
}

/* At position i: receive message i - P, send message i. Empty slices are neither sent nor
 * received. */
int ring_steps(const struct ring *ring, uint64_t position, struct step steps[2])
{
    unsigned n = (unsigned)ring->n;
    uint64_t messages = ring_positions(ring) - ring->slices;
    int made = 0;
    bool forward = false;

    if (position >= ring->slices) {
        struct slice in =
            slice_of(ring, position - ring->slices, (ring->place + ring->n - 1) % ring->n);
        forward = in.turn < 2 * n - 3;
        unsigned what = STEP_RECEIVE | ring->operand;
        if (in.turn <= n - 2)
            what |= STEP_REDUCE;
        if (in.turn >= n - 2)
            what |= STEP_STORE;
        if (forward)
            what |= STEP_SEND;
        if (in.count)
            steps[made++] = (struct step){what, ring->previous, ring->next, in.offset, in.count};
    }
    if (position < messages && !forward) {
        struct slice out = slice_of(ring, position, ring->place);
        if (out.count)
            steps[made++] = (struct step){STEP_SEND | ring->operand, ring->previous, ring->next,
                                          out.offset, out.count};
    }
    return made;
}

void schedule_ring(struct schedule *schedule, const struct schedule_shape *shape, int rank)
{
    const struct node_map *map = shape->map;
    if (map->size == 1) {
        schedule->before = (struct step){STEP_STORE, 0, 0, 0, shape->count};
        return;
    }
    /* Places in the order of the nodes, so that neighbours share a node where they can. */
    int place = map->first[map->node_of[rank]] + map->local_of[rank];
    schedule->ring = (struct ring){.n = map->size,
                                   .place = place,
                                   .previous = map->members[(place + map->size - 1) % map->size],
                                   .next = map->members[(place + 1) % map->size],
                                   .count = shape->count,
                                   .slices = shape->slices};
    ring_init(&schedule->ring, shape->slice_elements);
}
