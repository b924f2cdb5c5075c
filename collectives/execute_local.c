/* SPDX-License-Identifier: MIT */
/* An operation that is one step of the node alone, without a schedule: small ones take less time
 * than it takes to look one up. */
#include "collectives/collective_plan.h"
#include "transport/world.h"

/* A cache line goes from core to core within so many looks where ranks have cores. There is no
 * pause between them: it takes as long as half a line on some processors. */
enum { LOOKS_BEFORE_WAIT = 200 };

bool execute_is_local(const struct sstar_collective *plan)
{
    return plan->n_channels == 0 && plan->map.nodes == 1 && plan->map.size > 1 &&
           (plan->operation == SSTAR_ALL_REDUCE || plan->operation == SSTAR_BARRIER);
}

static int wait_for_node(struct sstar_collective *plan)
{
    struct node_part *node = &plan->node;
    struct waiter w = wait_begin(plan->world, "its part in the node's collective", -1, 0);
    const bool crowded = world_crowded(plan->world);
    uint32_t looks = 0;
    int done;
    while ((done = node_advance(node)) == 0) {
        if (node->moved) {
            node->moved = false;
            wait_progress(&w);
        }
        if (!crowded && ++looks % LOOKS_BEFORE_WAIT != 0)
            continue;
        w.on_other_cores = crowded && node_waits_for_other_cores(node);
        w.peer = node_awaited(node);
        int err = wait_step(&w);
        if (err < 0)
            return err;
    }
    return done < 0 ? done : 0;
}

int execute_local(struct sstar_collective *plan, const void *send, void *recv, size_t count,
                  enum sstar_type type, enum sstar_op op)
{
    bool barrier = plan->operation == SSTAR_BARRIER;
    struct plan_run *run = &plan->run;
    if (!barrier)
        run->job = execute_job(plan, send, recv, count, type, op);
    node_begin(&plan->node, barrier ? NODE_MEET : NODE_ALL_REDUCE, &run->job);
    int err = wait_for_node(plan);
    if (!err && !barrier && op == SSTAR_AVG)
        plan->kernels->kernels[type].divide(recv, count, (uint32_t)plan->world->size);
    return err;
}
