/* SPDX-License-Identifier: MIT */
/* Executes the steps of a schedule on links and on the memory of the node. */
#include "collectives/allreduce_plan.h"
#include "transport/link.h"
#include "transport/wait.h"
#include "transport/world.h"

#include <errno.h>
#include <string.h>

/* What moves may be just what the caller waits for, so the core is given away only when nothing
 * does. */
int plan_turn(struct sstar_allreduce *plan, struct waiter *w)
{
    int events = sstar_links_progress(plan->links);
    return events == 0 ? wait_step(w) : events;
}

static int await_message(struct sstar_allreduce *plan, struct sstar_link *link, size_t bytes,
                         struct message *message)
{
    struct waiter w = wait_begin(plan->world, "a slice of AllReduce", link_peer(link), 0);
    int got;
    while ((got = link_receive(link, message)) == 0) {
        int err = plan_turn(plan, &w);
        if (err < 0)
            return err;
    }
    if (got < 0)
        return got;
    if (message->bytes != bytes)
        return world_fail(plan->world, -EPROTO,
                          "allreduce: rank %d got %u bytes from rank %d where %zu are due: do all "
                          "ranks give the same count and type?",
                          plan->world->rank, message->bytes, link_peer(link), bytes);
    return 0;
}

static int await_slot(struct sstar_allreduce *plan, struct sstar_link *link, size_t bytes,
                      void **payload)
{
    struct waiter w = wait_begin(plan->world, "a free slot for AllReduce", link_peer(link), 0);
    int err;
    while ((err = link_reserve(link, bytes, payload)) == -EAGAIN) {
        err = plan_turn(plan, &w);
        if (err < 0)
            return err;
    }
    return err;
}

static int commit(struct sstar_allreduce *plan, size_t bytes)
{
    if (!plan->see_off)
        return link_commit(plan->next, bytes, 0);
    struct waiter w =
        wait_begin(plan->world, "earlier slices of AllReduce to leave", link_peer(plan->next), 0);
    int err;
    while ((err = link_commit_ticket(plan->next, bytes, 0, &plan->ticket)) == -EAGAIN) {
        err = plan_turn(plan, &w);
        if (err < 0)
            return err;
    }
    return err;
}

/* Whoever called us may go and compute; what we sent must not wait for him to come back. */
static int see_off(struct sstar_allreduce *plan)
{
    if (!plan->see_off || !plan->next)
        return 0;
    struct waiter w =
        wait_begin(plan->world, "the last slices of AllReduce to leave", link_peer(plan->next), 0);
    while (!sstar_link_done(plan->next, plan->ticket)) {
        int err = plan_turn(plan, &w);
        if (err < 0)
            return err;
    }
    return 0;
}

/* What arrived or the operand is made the value, in the slot if it goes on, else in the result. */
static int wire_step(struct sstar_allreduce *plan, const struct node_job *job,
                     const struct step *step)
{
    size_t bytes = step->count * job->element_bytes, at = step->offset * job->element_bytes;
    const char *operand = (step->what & STEP_PARTIAL ? job->recv : job->send);
    char *result = (char *)job->recv + at, *value = result;
    operand += at;
    struct message message = {.data = operand};
    int err = 0;
    if (step->what & STEP_RECEIVE)
        err = await_message(plan, plan->previous, bytes, &message);
    if (!err && step->what & STEP_SEND) {
        void *payload;
        err = await_slot(plan, plan->next, bytes, &payload);
        if (!err)
            value = payload;
    }
    if (err)
        return err;

    if (step->what & STEP_REDUCE)
        job->kernel(value, message.data, operand, step->count);
    else if (value != message.data)
        memmove(value, message.data, bytes);
    if (step->what & STEP_STORE && value != result)
        memcpy(result, value, bytes);
    /* The slot of what arrived goes back first, so that its credit can travel with what we send. */
    if (step->what & STEP_RECEIVE)
        link_release(plan->previous, 1);
    if (step->what & STEP_SEND)
        err = commit(plan, bytes);
    return err;
}

int execute_schedule(struct sstar_allreduce *plan, const struct node_job *job)
{
    struct schedule_shape shape = plan_shape(plan, job->count, job->element_bytes);
    struct schedule schedule;
    struct step step;
    int err = 0;
    plan->see_off = plan_leaves_waiting(plan, &shape, job->element_bytes);
    schedule_begin(&schedule, &shape, plan->world->rank);
    while (!err && schedule_next(&schedule, &step)) {
        if (step.what & STEP_NODE_ALL_REDUCE)
            err = node_all_reduce(&plan->node, job);
        else if (step.what & STEP_NODE_REDUCE_SCATTER)
            err = node_reduce_scatter(&plan->node, job);
        else if (step.what & STEP_NODE_ALL_GATHER)
            err = node_all_gather(&plan->node, job);
        else
            err = wire_step(plan, job, &step);
    }
    return err ? err : see_off(plan);
}
