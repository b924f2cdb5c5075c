/* SPDX-License-Identifier: MIT */
/*
 * Recursive doubling: in round k each place exchanges all it has summed with the place that differs
 * in bit k.
 *
 * R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
 * MPICH", IJHPCA 19 (2005).
 *
 *     T = log2 n (alpha + S/beta)           n a power of two
 *     T = (floor(log2 n) + 2) (alpha + S/beta)      else: the places beyond the largest power of
 *                                                   two first add theirs to a neighbour's, and get
 *                                                   the result from it in the end
 *
 * The least number of rounds, so it is best for short vectors. Of an exchange both compute the
 * same sum, the lower place's part first: all places have the same bits.
 */
#include "collectives/schedule.h"

static void pass_on(struct schedule *schedule, const struct schedule_shape *shape,
                    const struct group *group, int to, unsigned what)
{
    struct exchange out = {.peer = group_rank(group, to)}, none = {0};
    exchange_add(&out, STEP_SEND | what, group->range);
    schedule_exchange(schedule, shape, &out, &none);
}

static void take(struct schedule *schedule, const struct schedule_shape *shape,
                 const struct group *group, int from, unsigned what)
{
    struct exchange in = {.peer = group_rank(group, from)}, none = {0};
    exchange_add(&in, STEP_RECEIVE | what, group->range);
    schedule_exchange(schedule, shape, &none, &in);
}

void schedule_doubling(struct schedule *schedule, const struct schedule_shape *shape,
                       const struct group *group)
{
    int power = 1, me = group->me;
    while (power * 2 <= group->n)
        power *= 2;
    int paired = 2 * (group->n - power); /* places below this stand in pairs, the odd one plays */
    unsigned operand = group->operand;
    schedule_lane(schedule, group->phase);
    if (me < paired && me % 2 == 0) {
        pass_on(schedule, shape, group, me + 1, operand);
        take(schedule, shape, group, me + 1, STEP_STORE);
        return;
    }
    if (me < paired) {
        take(schedule, shape, group, me - 1,
             STEP_REDUCE | operand | (power > 1 ? STEP_KEEP : STEP_STORE));
        operand = STEP_PARTIAL;
    }
    int player = me < paired ? me / 2 : me - paired / 2;
    for (int bit = 1; bit < power; bit *= 2) {
        int other = player ^ bit;
        int peer = group_rank(group, other < paired / 2 ? 2 * other + 1 : other + paired / 2);
        struct exchange out = {.peer = peer}, in = {.peer = peer};
        exchange_add(&out, STEP_SEND | operand, group->range);
        exchange_add(&in,
                     STEP_RECEIVE | STEP_REDUCE | operand | (player < other ? STEP_SWAPPED : 0) |
                         (bit * 2 < power ? STEP_KEEP : STEP_STORE),
                     group->range);
        schedule_exchange(schedule, shape, &out, &in);
        operand = STEP_PARTIAL;
    }
    if (me < paired)
        pass_on(schedule, shape, group, me - 1, STEP_PARTIAL);
}
