/* SPDX-License-Identifier: MIT */
/*
 * Recursive halving and doubling: a reduce-scatter in which each place exchanges half of what it
 * still answers for with the place that differs in one bit, then an all-gather the same way back.
 *
 * R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
 *
 *     T = 2 log2 n alpha + 2 (n-1)/n S/beta             n a power of two
 *     and 2 (alpha + S/beta) more else: the places beyond the largest power of two first add
 *     theirs to a neighbour's, and get the result from it in the end
 *
 * As few bytes as the ring, in as many rounds as two times recursive doubling. The first exchanges
 * move most; they are those between neighbours, which share a node where they can. Each part is
 * summed at one place along a fixed tree and then copied: all places have the same bits.
 */
#include "collectives/schedule.h"

enum { MOST_ROUNDS = 32 };

/* What is kept of the vector in each round, and what goes to the other. */
struct round {
    int peer; /* rank */
    struct range kept, other;
};

static int rounds_of(const struct group *group, int power, struct round *rounds)
{
    int paired = 2 * (group->n - power), me = group->me, n = 0;
    int player = me < paired ? me / 2 : me - paired / 2;
    struct range range = group->range;
    for (int bit = 1; bit < power; bit *= 2, n++) {
        int other = player ^ bit, upper = (player & bit) != 0;
        rounds[n].peer = group_rank(group, other < paired / 2 ? 2 * other + 1 : other + paired / 2);
        rounds[n].kept = range_cut(range, 2, (size_t)upper);
        rounds[n].other = range_cut(range, 2, (size_t)!upper);
        range = rounds[n].kept;
    }
    return n;
}

static void swap(struct schedule *schedule, const struct schedule_shape *shape, int peer,
                 unsigned send, struct range out_range, unsigned receive, struct range in_range)
{
    struct exchange out = {.peer = peer}, in = {.peer = peer};
    if (send)
        exchange_add(&out, STEP_SEND | send, out_range);
    if (receive)
        exchange_add(&in, STEP_RECEIVE | receive, in_range);
    schedule_exchange(schedule, shape, &out, &in);
}

void schedule_halving(struct schedule *schedule, const struct schedule_shape *shape,
                      const struct group *group)
{
    int power = 1, me = group->me;
    while (power * 2 <= group->n)
        power *= 2;
    int paired = 2 * (group->n - power);
    unsigned operand = group->operand;
    schedule_lane(schedule, group->phase);
    if (me < paired && me % 2 == 0) {
        int peer = group_rank(group, me + 1);
        swap(schedule, shape, peer, STEP_SEND | operand, group->range, 0, group->range);
        swap(schedule, shape, peer, 0, group->range, STEP_STORE, group->range);
        return;
    }
    if (me < paired) {
        swap(schedule, shape, group_rank(group, me - 1), 0, group->range,
             STEP_REDUCE | operand | STEP_KEEP, group->range);
        operand = STEP_PARTIAL;
    }
    struct round rounds[MOST_ROUNDS];
    int n = rounds_of(group, power, rounds);
    for (int i = 0; i < n; i++) {
        swap(schedule, shape, rounds[i].peer, STEP_SEND | operand, rounds[i].other,
             STEP_REDUCE | operand | STEP_KEEP, rounds[i].kept);
        operand = STEP_PARTIAL;
    }
    for (int i = n - 1; i >= 0; i--)
        swap(schedule, shape, rounds[i].peer, STEP_SEND | STEP_PARTIAL, rounds[i].kept, STEP_STORE,
             rounds[i].other);
    if (me < paired)
        swap(schedule, shape, group_rank(group, me - 1), STEP_SEND | STEP_PARTIAL, group->range, 0,
             group->range);
}
