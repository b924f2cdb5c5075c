/* SPDX-License-Identifier: MIT */
/*
 * A discrete-event simulation. Three kinds of event: a message is there (at its receiver), a port
 * may let another message enter, and a rank is done with a step that takes time. Between events
 * those ranks are moved on for which something may have changed.
 */
#include "collectives/simulate.h"
#include "transport/link.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct event {
    double time;
    uint64_t order; /* of equals, the older first */
    enum { PORT_MAY_SEND, MESSAGE_IS_THERE, RANK_IS_DONE } what;
    int which;         /* port, link or rank */
    uint64_t sequence; /* of the message */
};

struct sim_port {
    double sender_free, receiver_free, wake; /* wake: time of its event, INFINITY for none */
    int *links, n_links;
    uint64_t waiting;
    uint32_t turn; /* link * queue_pairs + queue pair that is next */
};

/* From one rank to another on a channel; `credit` is what the other gives back without a message.
 */
struct sim_link {
    int from, to, channel, port, to_port, credit;
    bool local;
    uint64_t sent, there, received; /* posted; there in order; taken by the receiver */
    uint64_t owed;                  /* taken since the sender last heard of it */
    uint64_t *next; /* [queue_pairs] of each queue pair the first message that has not entered */
    double *bytes;  /* [window], by sequence */
    bool *has_come; /* [window] */
};

struct sim_rank {
    struct schedule schedule;
    size_t at[SCHEDULE_LANES];
    int phase, lanes_left, turn, busy_lane; /* busy_lane -1: idle */
    uint64_t node_steps;
    int *out, n_out; /* its links to others */
    bool is_awake;   /* it stands in the list */
};

struct simulation {
    const struct node_map *map;
    const struct simulate_attr *attr;
    size_t vector_bytes;
    double now, last;
    uint64_t window; /* slots */
    struct sim_port *ports;
    struct sim_link *links;
    int n_links, links_size;
    struct sim_rank *ranks;
    int *awake, first_awake, n_awake;
    struct event *heap;
    size_t heap_used, heap_size;
    uint64_t events;
    int err;
};

/* ---- events ------------------------------------------------------------------------------------
 */

static bool before(const struct event *a, const struct event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void *grown(struct simulation *s, void *memory, size_t n, size_t bytes)
{
    void *moved = realloc(memory, n * bytes);
    if (!moved)
        s->err = -ENOMEM;
    return moved;
}

static void heap_push(struct simulation *s, struct event event)
{
    if (s->heap_used == s->heap_size) {
        size_t size = s->heap_size ? 2 * s->heap_size : 256;
        struct event *heap = grown(s, s->heap, size, sizeof *heap);
        if (!heap)
            return;
        s->heap = heap;
        s->heap_size = size;
    }
    size_t i = s->heap_used++;
    event.order = s->events++;
    while (i > 0 && before(&event, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = event;
}

static struct event heap_pop(struct simulation *s)
{
    struct event top = s->heap[0], moved = s->heap[--s->heap_used];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < s->heap_used && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (child >= s->heap_used || !before(&s->heap[child], &moved))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = moved;
    return top;
}

static void wake(struct simulation *s, int rank)
{
    if (s->ranks[rank].is_awake)
        return;
    s->ranks[rank].is_awake = true;
    s->awake[(s->first_awake + s->n_awake++) % s->map->size] = rank; /* at most each once */
}

static void wake_node(struct simulation *s, int rank)
{
    int node = s->map->node_of[rank];
    for (int i = s->map->first[node]; i < s->map->first[node + 1]; i++)
        wake(s, s->map->members[i]);
}

/* ---- ports -------------------------------------------------------------------------------------
 */

/* The next queue pair in turn that has something waiting. */
static struct sim_link *next_in_turn(struct simulation *s, struct sim_port *port, uint32_t *pair)
{
    uint32_t pairs = s->attr->queue_pairs, all = (uint32_t)port->n_links * pairs;
    for (uint32_t i = 0; i < all; i++) {
        uint32_t at = (port->turn + i) % all;
        struct sim_link *link = &s->links[port->links[at / pairs]];
        if (link->next[at % pairs] >= link->sent)
            continue;
        port->turn = (at + 1) % all;
        *pair = at % pairs;
        return link;
    }
    return NULL;
}

/* Let enter what may: each start no later than now + alpha. */
static void port_move_on(struct simulation *s, int number)
{
    const struct sstar_cost *cost = &s->attr->cost;
    struct sim_port *port = &s->ports[number];
    while (port->waiting) {
        double start = fmax(s->now, port->sender_free);
        double wake_at = start - cost->alpha_us;
        if (wake_at > s->now) {
            if (port->wake > wake_at) {
                port->wake = wake_at;
                heap_push(s,
                          (struct event){.time = wake_at, .what = PORT_MAY_SEND, .which = number});
            }
            return;
        }
        uint32_t pair = 0;
        struct sim_link *link = next_in_turn(s, port, &pair);
        uint64_t sequence = link->next[pair];
        link->next[pair] += s->attr->queue_pairs;
        port->waiting--;
        double bytes = link->bytes[sequence % s->window];
        double wire = cost->beta_gbps > 0 ? bytes / (cost->beta_gbps * 1e3) : 0;
        struct sim_port *receiver = &s->ports[link->to_port];
        port->sender_free = start + cost->gap_us + wire;
        double done = fmax(start + cost->alpha_us, receiver->receiver_free) + wire;
        receiver->receiver_free = done;
        heap_push(s, (struct event){.time = done,
                                    .what = MESSAGE_IS_THERE,
                                    .which = (int)(link - s->links),
                                    .sequence = sequence});
    }
}

static void post(struct simulation *s, struct sim_link *link, double bytes)
{
    uint64_t sequence = link->sent++;
    link->bytes[sequence % s->window] = bytes;
    link->has_come[sequence % s->window] = false;
    s->ports[link->port].waiting++;
    port_move_on(s, link->port);
}

/* ---- links -------------------------------------------------------------------------------------
 */

static struct sim_link *link_of(struct simulation *s, int from, int to, int channel)
{
    const struct sim_rank *r = &s->ranks[from];
    for (int i = 0; i < r->n_out; i++) {
        struct sim_link *link = &s->links[r->out[i]];
        if (link->to == to && link->channel == channel)
            return link;
    }
    return NULL;
}

static void send(struct simulation *s, int rank, const struct step *step, int to)
{
    struct sim_link *link = link_of(s, rank, to, step->channel);
    if (link->local) { /* memory: it is there at once */
        link->sent++;
        link->there++;
        wake(s, to);
        return;
    }
    struct sim_link *back = link_of(s, to, rank, step->channel);
    if (back)
        back->owed = 0; /* the trailer carries it */
    post(s, link, (double)(step->count * s->attr->element_bytes + LINK_TRAILER_BYTES));
}

/* When half the slots are owed, a message without data gives credit back. */
static void receive(struct simulation *s, int rank, const struct step *step, int from)
{
    struct sim_link *link = link_of(s, from, rank, step->channel);
    link->received++;
    wake(s, from);
    if (link->local)
        return;
    if (++link->owed * 2 >= s->window) {
        link->owed = 0;
        post(s, &s->links[link->credit], 0);
    }
}

/* ---- ranks -------------------------------------------------------------------------------------
 */

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
            const struct sim_link *in = link_of(s, step->from[k], rank, step->channel);
            if (!in || in->there == in->received)
                return false;
        }
        if (step->to[k] >= 0) {
            const struct sim_link *out = link_of(s, rank, step->to[k], step->channel);
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
            receive(s, rank, step, step->from[k]);
    for (int k = 0; k < 2; k++)
        if (step->to[k] >= 0)
            send(s, rank, step, step->to[k]);
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
        heap_push(s, (struct event){.time = s->now + takes, .what = RANK_IS_DONE, .which = rank});
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
        wake(s, event->which);
        return;
    }
    if (event->what == PORT_MAY_SEND) {
        if (s->ports[event->which].wake == event->time)
            s->ports[event->which].wake = INFINITY;
        port_move_on(s, event->which);
        return;
    }
    struct sim_link *link = &s->links[event->which];
    link->has_come[event->sequence % s->window] = true;
    while (link->there < link->sent && link->has_come[link->there % s->window]) {
        link->has_come[link->there % s->window] = false;
        link->there++;
    }
    if (link->credit >= 0)
        wake(s, link->to);
}

/* ---- setting up --------------------------------------------------------------------------------
 */

static void add_to_port(struct simulation *s, struct sim_port *port, int link)
{
    int *links = grown(s, port->links, (size_t)port->n_links + 1, sizeof *links);
    if (!links)
        return;
    port->links = links;
    port->links[port->n_links++] = link;
}

static int add_link(struct simulation *s, int from, int to, int channel, int credit)
{
    uint32_t pairs = s->attr->queue_pairs;
    if (s->n_links == s->links_size) {
        int size = s->links_size ? 2 * s->links_size : 64;
        struct sim_link *links = grown(s, s->links, (size_t)size, sizeof *links);
        if (!links)
            return -1;
        s->links = links;
        s->links_size = size;
    }
    const int *node_of = s->map->node_of;
    bool by_rank = s->attr->port_per_rank;
    struct sim_link *link = &s->links[s->n_links];
    *link = (struct sim_link){.from = from,
                              .to = to,
                              .channel = channel,
                              .port = by_rank ? from : node_of[from],
                              .to_port = by_rank ? to : node_of[to],
                              .credit = credit,
                              .local = node_of[from] == node_of[to]};
    link->next = calloc(pairs + 2 * s->window, sizeof *link->next);
    if (!link->next) {
        s->err = -ENOMEM;
        return -1;
    }
    link->bytes = (double *)(link->next + pairs);
    link->has_come = (bool *)(link->bytes + s->window);
    for (uint32_t q = 0; q < pairs; q++)
        link->next[q] = q;
    if (!link->local)
        add_to_port(s, &s->ports[link->port], s->n_links);
    return s->n_links++;
}

static void add_links_of(struct simulation *s, int rank)
{
    struct sim_rank *r = &s->ranks[rank];
    for (size_t i = 0; i < r->schedule.n_steps && !s->err; i++)
        for (int k = 0; k < 2; k++) {
            const struct step *step = &r->schedule.steps[i];
            if (step->to[k] < 0 || link_of(s, rank, step->to[k], step->channel))
                continue;
            int credit = add_link(s, step->to[k], rank, step->channel, -1);
            int link = credit < 0 ? -1 : add_link(s, rank, step->to[k], step->channel, credit);
            int *out = grown(s, r->out, (size_t)r->n_out + 1, sizeof *out);
            if (link < 0 || !out)
                return;
            r->out = out;
            r->out[r->n_out++] = link;
        }
}

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
            add_links_of(s, rank);
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
        struct event event = heap_pop(&s);
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
