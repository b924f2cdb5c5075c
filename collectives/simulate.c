/* SPDX-License-Identifier: MIT */
/*
 * A discrete-event simulation. Three kinds of event: a message is there (at its receiver), a port
 * may let another message enter, and a rank is done with a step that takes time. Between events
 * every rank is moved on until it waits. In the schedules of schedule.h a rank sends to one rank
 * and receives from one, so a link is named by its sender.
 */
#include "collectives/simulate.h"
#include "transport/link.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct event {
    double time;
    uint64_t order; /* of equals, the older first */
    enum { PORT_MAY_SEND, MESSAGE_IS_THERE, RANK_IS_DONE } what;
    int which;         /* port, link or rank */
    uint64_t sequence; /* of the message */
};

struct sim_port {
    double sender_free, receiver_free, wake; /* wake: time of its event, INFINITY for none */
    int *links;                              /* the senders behind it */
    int n_links;
    uint32_t turn; /* link * queue_pairs + queue pair that is next */
};

struct sim_link {
    int port, to_port;
    uint64_t sent, there, received; /* posted; there in order; taken by the receiver */
    uint64_t waiting;
    uint64_t owed;  /* taken since the sender last heard of it */
    uint64_t *next; /* [queue_pairs] of each queue pair the first message that has not entered */
    double *bytes;  /* [window], by sequence */
    bool *has_come; /* [window] */
};

struct sim_rank {
    struct schedule schedule;
    struct step step;
    bool running, busy; /* busy: the step takes until `done` */
    double done;
    uint64_t node_steps;
};

struct simulation {
    const struct node_map *map;
    const struct simulate_attr *attr;
    double now, last;
    uint64_t window; /* slots */
    struct sim_port *ports;
    struct sim_link *links; /* [2 size], by sender; then credit, by who gives it */
    struct sim_rank *ranks;
    struct event *heap;
    size_t heap_used, heap_size;
    uint64_t events;
    void *block;
};

enum { NODE_STEPS = STEP_NODE_REDUCE_SCATTER | STEP_NODE_ALL_GATHER | STEP_NODE_ALL_REDUCE };

static bool before(const struct event *a, const struct event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void heap_push(struct simulation *s, struct event event)
{
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

/* The next queue pair in turn that has something waiting: its link, or NULL. */
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

static bool something_waits(const struct simulation *s, const struct sim_port *port)
{
    for (int i = 0; i < port->n_links; i++)
        if (s->links[port->links[i]].waiting)
            return true;
    return false;
}

/* Let enter what may: each start no later than now + alpha. */
static void port_move_on(struct simulation *s, int number)
{
    const struct sstar_cost *cost = &s->attr->cost;
    struct sim_port *port = &s->ports[number];
    while (something_waits(s, port)) {
        double start = fmax(s->now, port->sender_free);
        double wake = start - cost->alpha_us;
        if (wake > s->now) {
            if (port->wake > wake) {
                port->wake = wake;
                heap_push(s, (struct event){.time = wake, .what = PORT_MAY_SEND, .which = number});
            }
            return;
        }
        uint32_t pair = 0;
        struct sim_link *link = next_in_turn(s, port, &pair);
        uint64_t sequence = link->next[pair];
        link->next[pair] += s->attr->queue_pairs;
        link->waiting--;
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

static void post(struct simulation *s, struct sim_link *link, int to, double bytes)
{
    uint64_t sequence = link->sent++;
    link->to_port = s->links[to].port;
    link->bytes[sequence % s->window] = bytes;
    link->has_come[sequence % s->window] = false;
    link->waiting++;
    port_move_on(s, link->port);
}

static void send(struct simulation *s, int rank, const struct step *step)
{
    struct sim_link *link = &s->links[rank];
    if (s->map->node_of[rank] == s->map->node_of[step->to]) {
        /* Memory: it is there at once. Its queue pairs are passed over. */
        link->next[link->sent++ % s->attr->queue_pairs] += s->attr->queue_pairs;
        link->there++;
        return;
    }
    if (step->to == step->from)
        s->links[step->from].owed = 0; /* the trailer carries it */
    post(s, link, step->to, (double)(step->count * s->attr->element_bytes + LINK_TRAILER_BYTES));
}

/* When half the slots are owed, a message without data gives credit back. */
static void receive(struct simulation *s, int rank, const struct step *step)
{
    struct sim_link *link = &s->links[step->from];
    link->received++;
    if (s->map->node_of[rank] == s->map->node_of[step->from])
        return;
    if (++link->owed * 2 >= s->window) {
        link->owed = 0;
        post(s, &s->links[s->map->size + rank], step->from, 0);
    }
}

static bool node_is_here(const struct simulation *s, int rank)
{
    int node = s->map->node_of[rank];
    for (int i = s->map->first[node]; i < s->map->first[node + 1]; i++)
        if (s->ranks[s->map->members[i]].node_steps < s->ranks[rank].node_steps)
            return false;
    return true;
}

static void come_to_next(struct simulation *s, struct sim_rank *rank)
{
    rank->running = schedule_next(&rank->schedule, &rank->step);
    if (!rank->running)
        rank->node_steps = UINT64_MAX;
    else if (rank->step.what & NODE_STEPS)
        rank->node_steps++;
    s->last = s->now;
}

static bool may_run(const struct simulation *s, int rank)
{
    const struct step *step = &s->ranks[rank].step;
    const struct sim_link *in = &s->links[step->from], *out = &s->links[rank];
    if (step->what & STEP_RECEIVE && in->there == in->received)
        return false;
    if (step->what & STEP_SEND && out->sent - out->received >= s->window)
        return false;
    return !(step->what & NODE_STEPS) || node_is_here(s, rank);
}

/* Whether a rank that may run has done so: begin what takes time. */
static bool has_acted(struct simulation *s, int rank)
{
    const struct sstar_cost *cost = &s->attr->cost;
    struct sim_rank *r = &s->ranks[rank];
    if (r->busy) {
        r->busy = s->now < r->done;
        return !r->busy;
    }
    double takes = r->step.what & NODE_STEPS     ? cost->node_us
                   : r->step.what & STEP_RECEIVE ? cost->overhead_us
                                                 : 0;
    if (takes <= 0)
        return true;
    r->busy = true;
    r->done = s->now + takes;
    heap_push(s, (struct event){.time = r->done, .what = RANK_IS_DONE, .which = rank});
    return false;
}

/* A rank, then those that it may have set free: its neighbours and the ranks of its node. */
static void move_ranks_on(struct simulation *s)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < s->map->size; rank++) {
            struct sim_rank *r = &s->ranks[rank];
            while (r->running && may_run(s, rank) && has_acted(s, rank)) {
                if (r->step.what & STEP_RECEIVE)
                    receive(s, rank, &r->step);
                if (r->step.what & STEP_SEND)
                    send(s, rank, &r->step);
                come_to_next(s, r);
                moved = true;
            }
        }
    }
}

static void happen(struct simulation *s, const struct event *event)
{
    s->now = event->time;
    if (event->what == RANK_IS_DONE)
        return; /* it moves on with all others */
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
}

static void *take(char **at, size_t n, size_t bytes)
{
    void *taken = *at;
    *at += (n * bytes + 15) / 16 * 16;
    return taken;
}

/* Everything in one block. */
static int allocate(struct simulation *s)
{
    size_t size = (size_t)s->map->size, pairs = s->attr->queue_pairs, window = s->window;
    s->heap_size = size * (window + 2) * 4;
    size_t total = size * (sizeof *s->ports + 2 * sizeof *s->links + sizeof *s->ranks +
                           2 * (sizeof(int) + pairs * 8 + window * 9 + 64)) +
                   s->heap_size * sizeof *s->heap + 1024;
    char *at = s->block = calloc(1, total);
    if (!at)
        return -ENOMEM;
    s->ports = take(&at, size, sizeof *s->ports);
    s->links = take(&at, 2 * size, sizeof *s->links);
    s->ranks = take(&at, size, sizeof *s->ranks);
    s->heap = take(&at, s->heap_size, sizeof *s->heap);
    for (size_t r = 0; r < 2 * size; r++) {
        s->links[r].next = take(&at, pairs, 8);
        s->links[r].bytes = take(&at, window, 8);
        s->links[r].has_come = take(&at, window, 1);
        for (size_t q = 0; q < pairs; q++)
            s->links[r].next[q] = q;
    }
    int *members = take(&at, 2 * size, sizeof(int));
    for (int i = 0; i < s->map->size; i++) {
        int rank = members[2 * i] = s->map->members[i];
        int credit = members[2 * i + 1] = s->map->size + rank;
        int port = s->attr->port_per_rank ? rank : s->map->node_of[rank];
        if (s->ports[port].n_links == 0)
            s->ports[port].links = members + 2 * i;
        s->ports[port].n_links += 2;
        s->ports[port].wake = INFINITY;
        s->links[rank].port = s->links[credit].port = port;
    }
    return 0;
}

int simulate_schedule(const struct schedule_shape *shape, const struct simulate_attr *attr,
                      double *us)
{
    struct simulate_attr own = *attr;
    if (own.queue_pairs == 0)
        own.queue_pairs = 1;
    struct simulation s = {.map = shape->map, .attr = &own, .window = attr->slots};
    int err = allocate(&s);
    if (err)
        return err;
    for (int rank = 0; rank < s.map->size; rank++) {
        schedule_begin(&s.ranks[rank].schedule, shape, rank);
        come_to_next(&s, &s.ranks[rank]);
    }
    move_ranks_on(&s);
    while (s.heap_used) {
        struct event event = heap_pop(&s);
        happen(&s, &event);
        move_ranks_on(&s);
    }
    for (int rank = 0; rank < s.map->size; rank++)
        if (s.ranks[rank].running)
            err = -EDEADLK;
    if (!err)
        *us = s.last;
    free(s.block);
    return err;
}

uint64_t simulate_messages(const struct schedule_shape *shape)
{
    struct schedule schedule;
    schedule_begin(&schedule, shape, shape->map->members[0]);
    return schedule.positions;
}
