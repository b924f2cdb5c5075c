/* SPDX-License-Identifier: MIT */
/*
 * Halving and doubling on a circulant graph: like recursive halving and doubling, for any number of
 * places, with one partner to send to and another to receive from in each round.
 *
 * J. L. Traff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024; its
 * all-gather is that of J. Bruck et al., "Efficient algorithms for all-to-all communications in
 * multiport message-passing systems", IEEE TPDS 8 (1997).
 *
 *     T = 2 ceil(log2 n) alpha + 2 (n-1)/n S/beta       half of that for ReduceScatter, AllGather
 *
 * The fewest rounds and the fewest bytes at once, for every n. A place answers for the blocks that
 * begin with its own, at first for all n of them. In a round with s = ceil(c/2) of c blocks it
 * sends blocks s .. c-1, counted from its own, to the place s further on, whose first blocks they
 * are. When one is left it is the own one, and the way back hands the results round. Each block is
 * summed at one place along a fixed tree: all places have the same bits.
 */
#include "collectives/schedule.h"

enum { MOST_ROUNDS = 32 };

struct round {
    int kept, all; /* s and c */
    bool last_raw; /* the last of the c blocks is still the contribution alone */
};

static int rounds_of(int n, struct round *rounds)
{
    int k = 0;
    for (int all = n; all > 1; all = rounds[k++].kept)
        rounds[k] = (struct round){(all + 1) / 2, all, k == 1 && n % 2};
    return k;
}

/* Blocks begin .. end-1 counted from place `from`, round the end of the vector. */
static void add_blocks(struct exchange *exchange, const struct schedule_shape *shape,
                       const struct group *group, unsigned what, int from, int begin, int end)
{
    while (begin < end) {
        int block = (from + begin) % group->n, n = end - begin;
        if (!group_blocks_touch(group, shape))
            n = 1;
        if (n > group->n - block)
            n = group->n - block;
        struct range first = group_block(group, shape, block),
                     last = group_block(group, shape, block + n - 1);
        exchange_add(exchange, what,
                     (struct range){first.offset, last.offset + last.count - first.offset});
        begin += n;
    }
}

static void reduce_scatter(struct schedule *schedule, const struct schedule_shape *shape,
                           const struct group *group)
{
    struct round rounds[MOST_ROUNDS];
    int n = group->n, me = group->me, k = rounds_of(n, rounds);
    for (int i = 0; i < k; i++) {
        int s = rounds[i].kept, all = rounds[i].all, whole = all - rounds[i].last_raw;
        unsigned own = i ? STEP_PARTIAL : group->operand;
        unsigned reduce = STEP_RECEIVE | STEP_REDUCE | own | (i == k - 1 ? STEP_STORE : STEP_KEEP);
        struct exchange out = {.peer = group_rank(group, (me + s) % n)},
                        in = {.peer = group_rank(group, (me + n - s) % n)};
        /* Both sides cut where the sender's blocks change from sums to the contribution alone. */
        add_blocks(&out, shape, group, STEP_SEND | own, me, s, whole);
        add_blocks(&out, shape, group, STEP_SEND | group->operand, me, whole, all);
        add_blocks(&in, shape, group, reduce, me, 0, whole - s);
        add_blocks(&in, shape, group, reduce, me, whole - s, all - s);
        schedule_exchange(schedule, shape, &out, &in);
    }
}

static void all_gather(struct schedule *schedule, const struct schedule_shape *shape,
                       const struct group *group)
{
    struct round rounds[MOST_ROUNDS];
    int n = group->n, me = group->me;
    for (int i = rounds_of(n, rounds) - 1; i >= 0; i--) {
        int s = rounds[i].kept, all = rounds[i].all;
        struct exchange out = {.peer = group_rank(group, (me + n - s) % n)},
                        in = {.peer = group_rank(group, (me + s) % n)};
        add_blocks(&out, shape, group, STEP_SEND | STEP_PARTIAL, me, 0, all - s);
        add_blocks(&in, shape, group, STEP_RECEIVE | STEP_STORE, me, s, all);
        schedule_exchange(schedule, shape, &out, &in);
    }
}

void schedule_circulant(struct schedule *schedule, const struct schedule_shape *shape,
                        const struct group *group)
{
    schedule_lane(schedule, group->phase);
    if (shape->operation == SSTAR_ALL_GATHER) {
        struct range own = group_block(group, shape, group->me);
        if (own.count)
            schedule_add(
                schedule,
                (struct step){.what = STEP_STORE, .offset = own.offset, .count = own.count});
    } else {
        reduce_scatter(schedule, shape, group);
    }
    if (shape->operation != SSTAR_REDUCE_SCATTER)
        all_gather(schedule, shape, group);
}
