/* SPDX-License-Identifier: MIT */
/*
 * float32 whose messages across nodes are of a shorter type (attr.wire_type). Sums are made in
 * float32; what crosses nodes is rounded when it is sent.
 *
 * Same bits everywhere. Where a part of the result is computed on one rank and told to the others,
 * all round it at the end (execute_round): for those that were told it changes nothing, so the one
 * that computed it comes to the same. In recursive doubling two ranks compute the same from each
 * other's value and their own: so they round their own too, and without a hierarchy inside nodes
 * as well, since the partners of a round may be near for some ranks and far for others.
 */
#include "collectives/collective_plan.h"

#include <string.h>

bool execute_shortens(const struct sstar_collective *plan, enum sstar_type type)
{
    return plan->wire_type != SSTAR_FLOAT32 && type == SSTAR_FLOAT32;
}

static bool both_compute(const struct sstar_collective *plan)
{
    enum sstar_algorithm algorithm = plan->shape.algorithm;
    if (algorithm_is_hierarchical(algorithm))
        algorithm = algorithm_across(algorithm);
    return plan->operation == SSTAR_ALL_REDUCE && algorithm == SSTAR_DOUBLING;
}

static bool crosses(const struct sstar_collective *plan, int rank)
{
    if (plan->map.nodes > 1 && both_compute(plan) &&
        !algorithm_is_hierarchical(plan->shape.algorithm))
        return true;
    return plan->map.node_of[rank] != plan->map.node_of[plan->world->rank];
}

size_t execute_message_bytes(const struct sstar_collective *plan, size_t count, int rank)
{
    bool is_short = plan->run.shorten && crosses(plan, rank);
    return count * (is_short ? sstar_type_bytes(plan->wire_type) : plan->run.job.element_bytes);
}

/* What a message says, as float32. */
static const void *widened(const struct sstar_collective *plan, const struct plan_lane *lane, int k,
                           int from, size_t count)
{
    if (!crosses(plan, from))
        return lane->messages[k].data;
    plan->run.shorten->widen(plan->wide[k], lane->messages[k].data, count);
    return plan->wide[k];
}

/* Ours as the other side sees it. */
static const void *rounded(const struct sstar_collective *plan, const void *operand, size_t count)
{
    const struct reduce_short *shorten = plan->run.shorten;
    plan->copy(plan->wide[1], operand, count * sizeof(float));
    shorten->round(plan->wide[1], count);
    return plan->wide[1];
}

void execute_compute_short(struct sstar_collective *plan, const struct plan_lane *lane,
                           const struct step *step, void **slots)
{
    const struct plan_run *run = &plan->run;
    size_t n = step->count, bytes = n * sizeof(float), at = step->offset * sizeof(float);
    const void *operand = (step->what & STEP_PARTIAL ? run->work : run->input) + at;
    char *stored = step->what & STEP_STORE  ? run->result + at
                   : step->what & STEP_KEEP ? run->work + at
                                            : NULL;
    void *sum = stored ? stored : plan->wide[0];
    const void *value =
        step->what & STEP_RECEIVE ? widened(plan, lane, 0, step->from[0], n) : operand;
    if (step->what & STEP_REDUCE) {
        bool swapped = step->what & STEP_SWAPPED;
        if (step->what & STEP_RECEIVE && crosses(plan, step->from[0]) && both_compute(plan))
            operand = rounded(plan, operand, n);
        run->job.kernel(sum, swapped ? operand : value, swapped ? value : operand, n);
        value = sum;
    }
    if (step->what & STEP_RECEIVE_2) {
        run->job.kernel(sum, value, widened(plan, lane, 1, step->from[1], n), n);
        value = sum;
    }
    if (stored && value != stored)
        plan->copy(stored, value, bytes);
    for (int k = 0; k < 2 && step->to[k] >= 0; k++)
        if (crosses(plan, step->to[k]))
            run->shorten->narrow(slots[k], value, n);
        else
            plan->copy(slots[k], value, bytes);
}

void execute_round(struct sstar_collective *plan)
{
    bool told = plan->operation == SSTAR_ALL_REDUCE || plan->operation == SSTAR_ALL_GATHER ||
                plan->operation == SSTAR_BROADCAST;
    if (plan->run.shorten && told && plan->map.nodes > 1)
        plan->run.shorten->round(plan->run.result, shape_total(&plan->shape));
}
