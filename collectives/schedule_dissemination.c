/* SPDX-License-Identifier: MIT */
/*
 * Dissemination barrier: in round k each place tells the place 2^k further on that it has come, and
 * waits to be told by the one 2^k before it; after ceil(log2 n) rounds it has heard of all.
 *
 * D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", International
 * Journal of Parallel Programming 17 (1988).
 *
 *     T = ceil(log2 n) alpha
 */
#include "collectives/schedule.h"

void schedule_dissemination(struct schedule *schedule, const struct schedule_shape *shape,
                            const struct group *group)
{
    (void)shape;
    int n = group->n, me = group->me;
    schedule_lane(schedule, group->phase);
    for (int far = 1; far < n; far *= 2) {
        schedule_add(schedule, (struct step){.what = STEP_SEND,
                                             .to = {group_rank(group, (me + far) % n), -1}});
        schedule_add(schedule, (struct step){.what = STEP_RECEIVE,
                                             .from = {group_rank(group, (me + n - far) % n), -1}});
    }
}
