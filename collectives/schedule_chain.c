/* SPDX-License-Identifier: MIT */
/*
 * Chain: Broadcast from place to place along a ring that begins at the root, Reduce the other way,
 * in slices that follow one another. The pipelined chain is folklore; see for instance J. L. Traff
 * and A. Ripke, "Optimal broadcast for fully connected processor-node networks", JPDC 68 (2008).
 *
 *     T = (n-1) (alpha + S/(P beta)) + (P-1) (g + S/(P beta))          P slices
 *
 * For long vectors: S/beta plus the way of the first slice. Reduce: place q adds its contribution
 * to what comes from place q+1, so the order of summation is that of the places.
 */
#include "collectives/schedule.h"

static void broadcast_slice(struct schedule *schedule, const struct group *group, int q,
                            struct step step)
{
    if (q == 0)
        step.what = STEP_STORE | STEP_SEND;
    else
        step.what = STEP_RECEIVE | STEP_STORE | (q < group->n - 1 ? STEP_SEND : 0);
    schedule_add(schedule, step);
}

static void reduce_slice(struct schedule *schedule, const struct group *group, int q,
                         struct step step)
{
    step.what = (uint16_t)group->operand;
    step.what |= q < group->n - 1 ? STEP_RECEIVE | STEP_REDUCE : 0;
    step.what |= q == 0 ? STEP_STORE : STEP_SEND;
    schedule_add(schedule, step);
}

void schedule_chain(struct schedule *schedule, const struct schedule_shape *shape,
                    const struct group *group)
{
    int n = group->n;
    int q = (group->me - group->root + n) % n; /* how far from the root */
    int nearer = group_rank(group, (group->me + n - 1) % n);
    int farther = group_rank(group, (group->me + 1) % n);
    bool broadcast = shape->operation == SSTAR_BROADCAST;
    size_t slices = range_slices(group->range.count, shape->slice_elements);
    schedule_lane(schedule, group->phase);
    for (size_t i = 0; i < slices; i++) {
        struct range range = range_cut(group->range, slices, i);
        struct step step = {.from = {broadcast ? nearer : farther, -1},
                            .to = {broadcast ? farther : nearer, -1},
                            .offset = range.offset,
                            .count = range.count};
        (broadcast ? broadcast_slice : reduce_slice)(schedule, group, q, step);
    }
}
