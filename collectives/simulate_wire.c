/* SPDX-License-Identifier: MIT */
/* The simulation's events, ports and links. */
#include "collectives/simulate_inside.h"
#include "transport/link.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* ---- events ------------------------------------------------------------------------------------
 */

static bool before(const struct event *a, const struct event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

void *sim_grown(struct simulation *s, void *memory, size_t n, size_t bytes)
{
    void *moved = realloc(memory, n * bytes);
    if (!moved)
        s->err = -ENOMEM;
    return moved;
}

void sim_push(struct simulation *s, struct event event)
{
    if (s->heap_used == s->heap_size) {
        size_t size = s->heap_size ? 2 * s->heap_size : 256;
        struct event *heap = sim_grown(s, s->heap, size, sizeof *heap);
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

struct event sim_pop(struct simulation *s)
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

void sim_wake(struct simulation *s, int rank)
{
    if (s->ranks[rank].is_awake)
        return;
    s->ranks[rank].is_awake = true;
    s->awake[(s->first_awake + s->n_awake++) % s->map->size] = rank; /* at most each once */
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

void sim_port_move_on(struct simulation *s, int number)
{
    const struct sstar_cost *cost = &s->attr->cost;
    struct sim_port *port = &s->ports[number];
    while (port->waiting) {
        double start = fmax(s->now, port->sender_free);
        double wake_at = start - cost->alpha_us;
        if (wake_at > s->now) {
            if (port->wake > wake_at) {
                port->wake = wake_at;
                sim_push(s,
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
        sim_push(s, (struct event){.time = done,
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
    sim_port_move_on(s, link->port);
}

/* ---- links -------------------------------------------------------------------------------------
 */

struct sim_link *sim_link_of(struct simulation *s, int from, int to, int channel)
{
    const struct sim_rank *r = &s->ranks[from];
    for (int i = 0; i < r->n_out; i++) {
        struct sim_link *link = &s->links[r->out[i]];
        if (link->to == to && link->channel == channel)
            return link;
    }
    return NULL;
}

void sim_send(struct simulation *s, int rank, const struct step *step, int to)
{
    struct sim_link *link = sim_link_of(s, rank, to, step->channel);
    if (link->local) { /* memory: it is there at once */
        link->sent++;
        link->there++;
        sim_wake(s, to);
        return;
    }
    struct sim_link *back = sim_link_of(s, to, rank, step->channel);
    if (back)
        back->owed = 0; /* the trailer carries it */
    size_t bytes =
        s->attr->wire_element_bytes ? s->attr->wire_element_bytes : s->attr->element_bytes;
    post(s, link, (double)(step->count * bytes + LINK_TRAILER_BYTES));
}

/* When half the slots are owed, a message without data gives credit back. */
void sim_receive(struct simulation *s, int rank, const struct step *step, int from)
{
    struct sim_link *link = sim_link_of(s, from, rank, step->channel);
    link->received++;
    sim_wake(s, from);
    if (link->local)
        return;
    if (++link->owed * 2 >= s->window) {
        link->owed = 0;
        post(s, &s->links[link->credit], 0);
    }
}

/* ---- setting up --------------------------------------------------------------------------------
 */

static void add_to_port(struct simulation *s, struct sim_port *port, int link)
{
    int *links = sim_grown(s, port->links, (size_t)port->n_links + 1, sizeof *links);
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
        struct sim_link *links = sim_grown(s, s->links, (size_t)size, sizeof *links);
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

void sim_add_links_of(struct simulation *s, int rank)
{
    struct sim_rank *r = &s->ranks[rank];
    for (size_t i = 0; i < r->schedule.n_steps && !s->err; i++)
        for (int k = 0; k < 2; k++) {
            const struct step *step = &r->schedule.steps[i];
            if (step->to[k] < 0 || sim_link_of(s, rank, step->to[k], step->channel))
                continue;
            int credit = add_link(s, step->to[k], rank, step->channel, -1);
            int link = credit < 0 ? -1 : add_link(s, rank, step->to[k], step->channel, credit);
            int *out = sim_grown(s, r->out, (size_t)r->n_out + 1, sizeof *out);
            if (link < 0 || !out)
                return;
            r->out = out;
            r->out[r->n_out++] = link;
        }
}
