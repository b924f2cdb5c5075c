/* SPDX-License-Identifier: MIT */
/*
 * A discrete-event simulation. Three kinds of event: a message is there (at its receiver), a port
 * may let another message enter, and a rank is done with a step that takes time. Between events
 * those ranks are moved on for which something may have changed.
 */
#include "collectives/simulate_inside.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- ranks -------------------------------------------------------------------------------------
 */

static void wake_node(struct simulation *s, int rank)
{
    int node = s->map->node_of[rank];
    for (int i = s->map->first[node]; i < s->map->first[node + 1]; i++)
        sim_wake(s, s->map->members[i]);
}

static const struct step *step_of(const struct sim_rank *r, int lane)
{
    const struct lane *l = &r->schedule.lanes[lane];
    return l->phase == r->phase && r->at[lane] < l->end ? &r->schedule.steps[r->at[lane]] : NULL;
}

static void come_to_phase(struct simulation *s, int rank)
{
    struct sim_rank *r = &s->ranks[rank];
    int lanes = r->schedule.n_lanes, last = lanes ? r->schedule.lanes[lanes - 1].phase : -1;
    r->lanes_left = 0;
    while (r->lanes_left == 0 && r->phase <= last) {
        r->phase++;
        for (int lane = 0; lane < lanes; lane++) {
            const struct step *step = step_of(r, lane);
            r->lanes_left += step != NULL;
            r->node_steps += step && step->what & STEP_NODE;
        }
    }
    if (r->lanes_left == 0)
        r->node_steps += 1u << 30; /* waits for nobody any more */
    wake_node(s, rank);
}

static bool node_is_here(const struct simulation *s, int rank)
{
    int node = s->map->node_of[rank];
    for (int i = s->map->first[node]; i < s->map->first[node + 1]; i++)
        if (s->ranks[s->map->members[i]].node_steps < s->ranks[rank].node_steps)
            return false;
    return true;
}

static bool may_run(struct simulation *s, int rank, const struct step *step)
{
    for (int k = 0; k < 2; k++) {
        if (step->from[k] >= 0) {
            const struct sim_link *in = sim_link_of(s, step->from[k], rank, step->channel);
            if (!in || in->there == in->received)
                return false;
        }
        if (step->to[k] >= 0) {
            const struct sim_link *out = sim_link_of(s, rank, step->to[k], step->channel);
            if (out->sent - out->received >= s->window)
                return false;
        }
    }
    return !(step->what & STEP_NODE) || node_is_here(s, rank);
}

static double takes_us(const struct simulation *s, const struct step *step)
{
    const struct sstar_cost *cost = &s->attr->cost;
    if (step->what & STEP_NODE_MEET)
        return cost->node_us;
    if (step->what & STEP_NODE)
        return cost->node_us + cost->node_byte_ns * (double)s->vector_bytes / 1e3;
    int received = (step->from[0] >= 0) + (step->from[1] >= 0);
    int touched = received + (step->to[0] >= 0) + (step->to[1] >= 0);
    return received * cost->overhead_us +
           touched * cost->byte_ns * (double)(step->count * s->attr->element_bytes) / 1e3;
}

static void act(struct simulation *s, int rank, int lane)
{
    struct sim_rank *r = &s->ranks[rank];
    const struct step *step = step_of(r, lane);
    for (int k = 0; k < 2; k++)
        if (step->from[k] >= 0)
            sim_receive(s, rank, step, step->from[k]);
    for (int k = 0; k < 2; k++)
        if (step->to[k] >= 0)
            sim_send(s, rank, step, step->to[k]);
    s->last = s->now;
    r->at[lane]++;
    r->turn = lane + 1;
    if (!step_of(r, lane) && --r->lanes_left == 0)
        come_to_phase(s, rank);
}

/* Until the rank waits for something, or is busy. */
static void move_on(struct simulation *s, int rank)
{
    struct sim_rank *r = &s->ranks[rank];
    int lanes = r->schedule.n_lanes, idle = 0;
    while (r->busy_lane < 0 && idle < lanes) {
        int lane = (r->turn + idle) % lanes;
        const struct step *step = step_of(r, lane);
        if (!step || !may_run(s, rank, step)) {
            idle++;
            continue;
        }
        idle = 0;
        double takes = takes_us(s, step);
        if (takes <= 0) {
            act(s, rank, lane);
            continue;
        }
        r->busy_lane = lane;
        sim_push(s, (struct event){.time = s->now + takes, .what = RANK_IS_DONE, .which = rank});
    }
}

static void move_ranks_on(struct simulation *s)
{
    while (s->n_awake) {
        int rank = s->awake[s->first_awake];
        s->first_awake = (s->first_awake + 1) % s->map->size;
        s->n_awake--;
        s->ranks[rank].is_awake = false;
        move_on(s, rank);
    }
}

static void happen(struct simulation *s, const struct event *event)
{
    s->now = event->time;
    if (event->what == RANK_IS_DONE) {
        int lane = s->ranks[event->which].busy_lane;
        s->ranks[event->which].busy_lane = -1;
        act(s, event->which, lane);
        sim_wake(s, event->which);
        return;
    }
    if (event->what == PORT_MAY_SEND) {
        if (s->ports[event->which].wake == event->time)
            s->ports[event->which].wake = INFINITY;
        sim_port_move_on(s, event->which);
        return;
    }
    struct sim_link *link = &s->links[event->which];
    link->has_come[event->sequence % s->window] = true;
    while (link->there < link->sent && link->has_come[link->there % s->window]) {
        link->has_come[link->there % s->window] = false;
        link->there++;
    }
    if (link->credit >= 0)
        sim_wake(s, link->to);
}

/* ---- setting up --------------------------------------------------------------------------------
 */

static int set_up(struct simulation *s, const struct schedule_shape *shape)
{
    size_t size = (size_t)s->map->size, steps = 0;
    s->ports = calloc(size, sizeof *s->ports);
    s->ranks = calloc(size, sizeof *s->ranks);
    s->awake = calloc(size, sizeof *s->awake);
    if (!s->ports || !s->ranks || !s->awake)
        return -ENOMEM;
    for (size_t i = 0; i < size; i++)
        s->ports[i].wake = INFINITY;
    for (int rank = 0; rank < s->map->size && !s->err; rank++) {
        struct sim_rank *r = &s->ranks[rank];
        s->err = schedule_make(&r->schedule, shape, rank);
        steps += r->schedule.n_steps;
        if (!s->err && s->attr->most_steps && steps > s->attr->most_steps)
            s->err = -E2BIG;
        if (!s->err)
            sim_add_links_of(s, rank);
        for (int lane = 0; lane < r->schedule.n_lanes; lane++)
            r->at[lane] = r->schedule.lanes[lane].first;
        r->phase = r->busy_lane = -1;
    }
    for (int rank = 0; rank < s->map->size && !s->err; rank++)
        come_to_phase(s, rank);
    if (s->attr->steps)
        *s->attr->steps = steps;
    return s->err;
}

static void tear_down(struct simulation *s)
{
    for (int i = 0; i < s->n_links; i++)
        free(s->links[i].next);
    for (int i = 0; i < s->map->size; i++) {
        if (s->ports)
            free(s->ports[i].links);
        if (s->ranks) {
            free(s->ranks[i].out);
            schedule_destroy(&s->ranks[i].schedule);
        }
    }
    free(s->links);
    free(s->ports);
    free(s->ranks);
    free(s->awake);
    free(s->heap);
}

int simulate_schedule(const struct schedule_shape *shape, const struct simulate_attr *attr,
                      double *us)
{
    struct simulate_attr own = *attr;
    if (own.queue_pairs == 0)
        own.queue_pairs = 1;
    struct simulation s = {.map = shape->map, .attr = &own, .window = attr->slots};
    s.vector_bytes = shape_total(shape) * attr->element_bytes;
    int err = set_up(&s, shape);
    if (!err)
        move_ranks_on(&s);
    while (!err && s.heap_used) {
        struct event event = sim_pop(&s);
        happen(&s, &event);
        move_ranks_on(&s);
        err = s.err;
    }
    for (int rank = 0; rank < s.map->size && !err; rank++)
        if (s.ranks[rank].lanes_left)
            err = -EDEADLK;
    if (!err)
        *us = s.last;
    tear_down(&s);
    return err;
}

/* x dT/dx of some members of the cost together: the time is linear in a neighbourhood. */
static int part_of(const struct schedule_shape *shape, const struct simulate_attr *attr, double us,
                   double *part)
{
    const double more = 1e-6;
    double changed;
    int err = simulate_schedule(shape, attr, &changed);
    if (!err)
        *part = fmax(0, (changed - us) / more);
    return err;
}

int simulate_parts(const struct schedule_shape *shape, const struct simulate_attr *attr,
                   struct simulate_parts *parts)
{
    struct simulate_parts p = {0};
    int err = simulate_schedule(shape, attr, &p.us);
    struct simulate_attr changed = *attr;
    changed.cost.alpha_us *= 1 + 1e-6;
    if (!err)
        err = part_of(shape, &changed, p.us, &p.alpha_us);
    changed = *attr;
    changed.cost.gap_us *= 1 + 1e-6;
    if (!err)
        err = part_of(shape, &changed, p.us, &p.gap_us);
    changed = *attr;
    changed.cost.beta_gbps /= 1 + 1e-6;
    if (!err)
        err = part_of(shape, &changed, p.us, &p.beta_us);
    p.work_us = fmax(0, p.us - p.alpha_us - p.gap_us - p.beta_us);
    if (!err)
        *parts = p;
    return err;
}
