/* SPDX-License-Identifier: MIT */
/*
 * Executes the steps of a schedule on links and on the memory of the node. Nothing here waits but
 * execute_wait: a step is taken when all is there that it needs, so an operation can be started and
 * moved on later. What a lane has received of a step stays in its slot until the step is taken.
 */
#include "collectives/collective_plan.h"
#include "transport/link.h"
#include "transport/wait.h"
#include "transport/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- beginning ---------------------------------------------------------------------------------
 */

static bool same_shape(const struct schedule_shape *a, const struct schedule_shape *b)
{
    return a->algorithm == b->algorithm && a->count == b->count &&
           a->slice_elements == b->slice_elements && a->window == b->window &&
           a->channels == b->channels && b->map;
}

/* Which channels carry something of this schedule for us; polling another costs as much. */
static uint32_t find_channels(const struct schedule *schedule)
{
    uint32_t used = 0;
    for (size_t i = 0; i < schedule->n_steps; i++)
        if (schedule->steps[i].from[0] >= 0 || schedule->steps[i].to[0] >= 0)
            used |= 1u << schedule->steps[i].channel;
    return used;
}

static int make_schedule(struct sstar_collective *plan, const struct schedule_shape *shape)
{
    if (same_shape(shape, &plan->shape))
        return 0;
    plan->shape.map = NULL;
    int err = schedule_make(&plan->schedule, shape, plan->world->rank);
    if (err)
        return world_fail(plan->world, err, "%s: rank %d has no memory for %zu steps",
                          sstar_operation_name(plan->operation), plan->world->rank,
                          plan->schedule.n_steps);
    plan->shape = *shape;
    plan->channels_used = find_channels(&plan->schedule);
    return 0;
}

/* Work memory is the result where that holds the whole vector, else our own. */
static int find_work(struct sstar_collective *plan, size_t bytes)
{
    struct plan_run *run = &plan->run;
    bool own = plan->operation == SSTAR_REDUCE_SCATTER ||
               (plan->operation == SSTAR_REDUCE && plan->world->rank != plan->root);
    run->work = run->result;
    if (!own || !plan->schedule.uses_work)
        return 0;
    if (plan->work_bytes < bytes) {
        free(plan->work);
        plan->work = malloc(bytes);
        plan->work_bytes = plan->work ? bytes : 0;
        if (!plan->work)
            return world_fail(plan->world, -ENOMEM,
                              "%s: rank %d has no memory for %zu bytes of sums under way",
                              sstar_operation_name(plan->operation), plan->world->rank, bytes);
    }
    run->work = plan->work;
    return 0;
}

/* Whether messages can be left waiting for a shaped wire when we are done: not if all that can be
 * under way from a port passes it within alpha (softnic.h). Twice, for what was there before and
 * for credit. */
static bool leaves_waiting(const struct sstar_collective *plan, const struct schedule_shape *shape,
                           size_t element_bytes)
{
    const struct sstar_wire *wire = &plan->world->config.wire;
    if (!plan->shaped || plan->n_channels == 0)
        return false;
    size_t most = shape_total(shape);
    if (most > shape->slice_elements)
        most = shape->slice_elements;
    double bytes = (double)(most * element_bytes + LINK_TRAILER_BYTES);
    double each_us = wire->gap_us + (wire->beta_gbps > 0 ? bytes / (wire->beta_gbps * 1e3) : 0);
    int sharing = plan->world->config.port_per_rank ? 1 : plan->node.size;
    size_t ahead = range_slices(shape_total(shape), most ? most : 1);
    if (ahead > PLAN_SLOTS)
        ahead = PLAN_SLOTS;
    return 2 * each_us * (double)ahead * sharing > wire->alpha_us;
}

/* The next phase that has something to do for us. */
static void come_to_phase(struct sstar_collective *plan)
{
    const struct schedule *schedule = &plan->schedule;
    struct plan_run *run = &plan->run;
    int last = schedule->n_lanes ? schedule->lanes[schedule->n_lanes - 1].phase : -1;
    run->lanes_left = 0;
    while (run->lanes_left == 0 && run->phase <= last) {
        run->phase++;
        for (int i = 0; i < schedule->n_lanes; i++)
            run->lanes_left += schedule->lanes[i].phase == run->phase &&
                               schedule->lanes[i].first < schedule->lanes[i].end;
    }
}

struct node_job execute_job(const struct sstar_collective *plan, const void *send, void *recv,
                            size_t count, enum sstar_type type, enum sstar_op op)
{
    return (struct node_job){
        .send = send,
        .recv = recv,
        .count = count,
        .element_bytes = sstar_type_bytes(type),
        .kernel = plan->kernels->kernels[type].op[op],
        .signature = (uint32_t)(count * 0x9e3779b1u ^ count >> 32) * 128 + (uint32_t)type * 8 + op,
    };
}

/* What the caller asked for, and what the node's steps do of it. */
static void begin_jobs(struct sstar_collective *plan, const struct schedule_shape *shape,
                       const void *send, void *recv, enum sstar_type type, enum sstar_op op)
{
    struct plan_run *run = &plan->run;
    bool reduces = plan->operation != SSTAR_ALL_GATHER && plan->operation != SSTAR_BROADCAST;
    run->job = execute_job(plan, send, recv, shape->count, type, reduces ? op : SSTAR_SUM);
    run->node_job = run->job;
    run->node_job.count = shape_total(shape);
    run->node_job.sharing = sharing_of(shape, plan->map.node_of[plan->world->rank]);
    run->node_job.ends = plan->operation != SSTAR_ALL_REDUCE;
    plan->node.learned = false;
}

int execute_begin(struct sstar_collective *plan, const struct schedule_shape *shape,
                  const void *send, void *recv, enum sstar_type type, enum sstar_op op)
{
    struct plan_run *run = &plan->run;
    size_t bytes = sstar_type_bytes(type), own = (size_t)plan->world->rank * shape->count * bytes;
    int err = make_schedule(plan, shape);
    if (err)
        return err;
    begin_jobs(plan, shape, send, recv, type, op);
    bool reduces = plan->operation != SSTAR_ALL_GATHER && plan->operation != SSTAR_BROADCAST;
    bool has_result = plan->operation != SSTAR_REDUCE || plan->world->rank == plan->root;
    run->divide =
        reduces && has_result && op == SSTAR_AVG ? plan->kernels->kernels[type].divide : NULL;
    run->shorten = execute_shortens(plan, type) ? &plan->kernels->shorts[plan->wire_type] : NULL;
    run->input = (const char *)send - (plan->operation == SSTAR_ALL_GATHER ? own : 0);
    run->result = (char *)recv - (plan->operation == SSTAR_REDUCE_SCATTER ? own : 0);
    err = find_work(plan, shape_total(shape) * bytes);
    if (err)
        return err;
    run->see_off = leaves_waiting(plan, shape, bytes);
    plan->n_sent = 0;
    for (int i = 0; i < plan->schedule.n_lanes; i++) {
        run->lanes[i].at = plan->schedule.lanes[i].first;
        run->lanes[i].has[0] = run->lanes[i].has[1] = false;
    }
    run->phase = -1;
    run->in_node_step = false;
    run->active = true;
    run->err = 0;
    atomic_store_explicit(&run->done, false, memory_order_relaxed);
    come_to_phase(plan);
    return 0;
}

/* ---- steps -------------------------------------------------------------------------------------
 */

static int waits_for(struct sstar_collective *plan, const char *what, int rank)
{
    plan->run.what = what;
    plan->run.awaited = rank;
    return 0;
}

/* 1: the messages are here. */
static int have_messages(struct sstar_collective *plan, struct plan_lane *lane,
                         const struct step *step)
{
    for (int k = 0; k < 2 && step->from[k] >= 0; k++) {
        if (lane->has[k])
            continue;
        size_t bytes = execute_message_bytes(plan, step->count, step->from[k]);
        struct sstar_link *link = sstar_links_to(plan->channels[step->channel], step->from[k]);
        int got = link_receive(link, &lane->messages[k]);
        if (got < 0)
            return got;
        if (got == 0)
            return waits_for(plan, "a message of a collective", step->from[k]);
        lane->has[k] = true;
        if (lane->messages[k].bytes != bytes)
            return world_fail(plan->world, -EPROTO,
                              "%s: rank %d got %u bytes from rank %d where %zu are due: do all "
                              "ranks give the same count and type?",
                              sstar_operation_name(plan->operation), plan->world->rank,
                              lane->messages[k].bytes, step->from[k], bytes);
    }
    return 1;
}

/* 1: there are slots to send from. */
static int have_slots(struct sstar_collective *plan, const struct step *step, void **slots)
{
    for (int k = 0; k < 2 && step->to[k] >= 0; k++) {
        struct sstar_link *link = sstar_links_to(plan->channels[step->channel], step->to[k]);
        size_t bytes = execute_message_bytes(plan, step->count, step->to[k]);
        int err = link_reserve(link, bytes, &slots[k]);
        if (err == -EAGAIN)
            return waits_for(plan, "a free slot for a collective", step->to[k]);
        if (err)
            return err;
    }
    return 1;
}

/* The bytes are touched once where that is possible: the sum is made where it is to be. */
static void compute(const struct sstar_collective *plan, const struct plan_lane *lane,
                    const struct step *step, void **slots)
{
    const struct plan_run *run = &plan->run;
    size_t bytes = step->count * run->job.element_bytes;
    size_t at = step->offset * run->job.element_bytes;
    const char *operand = (step->what & STEP_PARTIAL ? run->work : run->input) + at;
    char *stored = step->what & STEP_STORE  ? run->result + at
                   : step->what & STEP_KEEP ? run->work + at
                                            : NULL;
    char *sum = stored ? stored : slots[0];
    const char *value = step->what & STEP_RECEIVE ? lane->messages[0].data : operand;
    if (step->what & STEP_REDUCE) {
        bool swapped = step->what & STEP_SWAPPED;
        run->job.kernel(sum, swapped ? operand : value, swapped ? value : operand, step->count);
        value = sum;
    }
    if (step->what & STEP_RECEIVE_2) {
        run->job.kernel(sum, value, lane->messages[1].data, step->count);
        value = sum;
    }
    if (stored && value != stored)
        plan->copy(stored, value, bytes);
    for (int k = 0; k < 2 && step->to[k] >= 0; k++)
        if (slots[k] != value)
            plan->copy(slots[k], value, bytes);
}

static void note_sent(struct sstar_collective *plan, struct sstar_link *link, uint64_t ticket)
{
    int i = 0;
    while (i < plan->n_sent && plan->sent[i].link != link)
        i++;
    plan->sent[i] = (struct plan_sent){link, ticket}; /* there is room for every link */
    plan->n_sent += i == plan->n_sent;
}

static int commit(struct sstar_collective *plan, struct sstar_link *link, size_t bytes)
{
    if (!plan->run.see_off)
        return link_commit(link, bytes, 0);
    struct waiter w =
        wait_begin(plan->world, "earlier messages of a collective to leave", link_peer(link), 0);
    uint64_t ticket;
    int err;
    while ((err = link_commit_ticket(link, bytes, 0, &ticket)) == -EAGAIN)
        for (int c = 0; c < plan->n_channels; c++) {
            int events = sstar_links_progress(plan->channels[c]);
            err = events < 0 ? events : wait_step(&w);
            if (err < 0)
                return err;
        }
    if (!err)
        note_sent(plan, link, ticket);
    return err;
}

/* 1: taken; 0: it waits. */
static int wire_step(struct sstar_collective *plan, struct plan_lane *lane, const struct step *step)
{
    void *slots[2] = {NULL, NULL};
    int ready = have_messages(plan, lane, step);
    if (ready == 1)
        ready = have_slots(plan, step, slots);
    if (ready != 1)
        return ready;
    if (step->count && plan->run.shorten)
        execute_compute_short(plan, lane, step, slots);
    else if (step->count)
        compute(plan, lane, step, slots);
    /* The slots of what arrived go back first, so that their credit can travel with what we send.
     */
    for (int k = 0; k < 2 && step->from[k] >= 0; k++) {
        link_release(sstar_links_to(plan->channels[step->channel], step->from[k]), 1);
        lane->has[k] = false;
    }
    int err = 0;
    for (int k = 0; k < 2 && step->to[k] >= 0 && !err; k++)
        err = commit(plan, sstar_links_to(plan->channels[step->channel], step->to[k]),
                     execute_message_bytes(plan, step->count, step->to[k]));
    return err ? err : 1;
}

static void begin_node_step(struct sstar_collective *plan, const struct step *step)
{
    struct plan_run *run = &plan->run;
    run->node_job.send = run->input;
    run->node_job.recv = step->what & STEP_KEEP ? run->work : run->result;
    node_begin(&plan->node,
               step->what & STEP_NODE_REDUCE_SCATTER ? NODE_REDUCE_SCATTER
               : step->what & STEP_NODE_ALL_GATHER   ? NODE_ALL_GATHER
               : step->what & STEP_NODE_ALL_REDUCE   ? NODE_ALL_REDUCE
                                                     : NODE_MEET,
               &run->node_job);
}

static int node_step(struct sstar_collective *plan, const struct step *step)
{
    struct plan_run *run = &plan->run;
    if (!run->in_node_step)
        begin_node_step(plan, step);
    run->in_node_step = true;
    int done = node_advance(&plan->node);
    run->moved |= plan->node.moved;
    plan->node.moved = false;
    if (done == 0)
        return waits_for(plan, "its part in the node's collective", node_awaited(&plan->node));
    run->in_node_step = false;
    return done;
}

/* ---- moving on ---------------------------------------------------------------------------------
 */

/* As many steps of the lane as can be taken now. */
static int advance_lane(struct sstar_collective *plan, int i)
{
    struct plan_run *run = &plan->run;
    const struct lane *lane = &plan->schedule.lanes[i];
    struct plan_lane *mine = &run->lanes[i];
    while (mine->at < lane->end) {
        const struct step *step = &plan->schedule.steps[mine->at];
        int done = step->what & STEP_NODE ? node_step(plan, step) : wire_step(plan, mine, step);
        if (done <= 0)
            return done;
        run->moved = true;
        if (++mine->at == lane->end)
            run->lanes_left--;
    }
    return 0;
}

/* Whoever called us may go and compute; what we sent must not wait for him to come back. */
static int seen_off(struct sstar_collective *plan)
{
    for (int i = 0; i < plan->n_sent; i++)
        if (!sstar_link_done(plan->sent[i].link, plan->sent[i].ticket))
            return waits_for(plan, "the last messages of a collective to leave",
                             link_peer(plan->sent[i].link));
    return 1;
}

int execute_advance(struct sstar_collective *plan)
{
    struct plan_run *run = &plan->run;
    run->moved = false;
    while (run->lanes_left) {
        int left = run->lanes_left, err = 0;
        for (int i = 0; i < plan->schedule.n_lanes && !err; i++)
            if (plan->schedule.lanes[i].phase == run->phase)
                err = advance_lane(plan, i);
        if (err < 0)
            return err;
        if (run->lanes_left == 0)
            come_to_phase(plan);
        else if (run->lanes_left == left)
            return 0;
    }
    if (seen_off(plan) == 0)
        return 0;
    execute_round(plan);
    if (run->divide)
        run->divide(run->job.recv, run->job.count, (uint32_t)plan->world->size);
    return 1;
}

int execute_progress(const struct sstar_collective *plan)
{
    int events = 0;
    for (uint32_t rest = plan->channels_used; rest && events >= 0; rest &= rest - 1) {
        int n = sstar_links_progress(plan->channels[__builtin_ctz(rest)]);
        events = n < 0 ? n : events + n;
    }
    return events;
}

/* Who waits has just begun or tested: what has come since is looked for first. */
static int wait_until_done(struct sstar_collective *plan)
{
    struct plan_run *run = &plan->run;
    struct waiter w = wait_begin(plan->world, "a collective", -1, 0);
    for (;;) {
        int events = execute_progress(plan), err;
        int done = events < 0 ? events : execute_advance(plan);
        if (done)
            return done < 0 ? done : 0;
        if (run->moved)
            wait_progress(&w);
        w.what = run->what;
        w.peer = run->awaited;
        w.on_other_cores = run->in_node_step && node_waits_for_other_cores(&plan->node);
        /* What moves may be just what we wait for, so the core is given away only when nothing
         * does. */
        err = events ? 0 : wait_step(&w);
        if (err < 0)
            return err;
    }
}

int execute_wait(struct sstar_collective *plan)
{
    started_remove(plan); /* what is waited for has its own deadline */
    int err = wait_until_done(plan);
    started_finish(plan, err);
    return err;
}
