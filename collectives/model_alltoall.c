/* SPDX-License-Identifier: MIT */
/* The port model of softnic.h applied to the wire messages that each strategy makes. */
#include "collectives/model_alltoall.h"
#include "collectives/aggregator_wire.h"
#include "collectives/mesh_route.h"
#include "transport/link.h"
#include <errno.h>
#include <stdlib.h>

/* What a port does, in wire messages and bytes. */
struct port {
    uint64_t sent, sent_bytes, received_bytes;
};

struct model {
    const struct alltoall_traffic *traffic;
    struct port *port; /* [ranks] or [nodes] */
    int *members;      /* [nodes]: ranks of each */
    struct item_format plain, routed;
    uint32_t flush_bytes;
    uint64_t wire_messages, wire_bytes;
};

static int port_of(const struct model *m, int rank)
{
    return m->traffic->port_per_rank ? rank : m->traffic->node_of[rank];
}

/* `count` wire messages of `bytes` without trailer. */
static void wire(struct model *m, int from, int to, uint64_t count, uint64_t bytes)
{
    uint64_t all = count * (bytes + LINK_TRAILER_BYTES);
    m->port[from].sent += count;
    m->port[from].sent_bytes += all;
    m->port[to].received_bytes += all;
    m->wire_messages += count;
    m->wire_bytes += all;
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

static void pair_none(struct model *m, int from, int to, uint64_t messages, uint32_t each)
{
    wire(m, from, to, messages, none_bytes(&m->plain, each));
    wire(m, from, to, 1, none_last_bytes(&m->plain));
}

static void pair_rank(struct model *m, int from, int to, uint64_t messages, uint32_t room)
{
    uint32_t header = sizeof(struct buffer_header);
    uint64_t items = m->flush_bytes > header ? (m->flush_bytes - header + room - 1) / room : 1;
    uint64_t full = messages / items, rest = messages % items;
    wire(m, from, to, full, padded(header + items * room));
    wire(m, from, to, 1, padded(header + rest * room) + sizeof(uint64_t));
}

static void pair_node(struct model *m, int from, int to, int writers, int readers,
                      uint64_t messages, uint32_t room)
{
    uint64_t items = (m->flush_bytes + room - 1) / room;
    uint64_t full = messages / items, rest = messages % items;
    uint32_t pieces = (uint32_t)writers;
    wire(m, from, to, full,
         padded(node_directory_bytes(pieces, (uint32_t)readers, 0) + items * room));
    wire(m, from, to, 1, padded(node_directory_bytes(pieces, (uint32_t)readers, 1) + rest * room));
}

/* What ranks of one or two nodes send each other; node -1: any. */
struct flow {
    uint64_t messages, bytes;
};
static void add_pair(struct flow *flow, const struct alltoall_traffic *t, int from, int to)
{
    size_t at = (size_t)from * (size_t)t->ranks + (size_t)to;
    flow->messages += t->messages[at];
    flow->bytes += t->bytes ? t->bytes[at] : t->messages[at] * t->message_bytes;
}

static struct flow flow_between(const struct alltoall_traffic *t, int from_node, int to_node)
{
    struct flow flow = {0};
    for (int from = 0; from < t->ranks; from++)
        for (int to = 0; to < t->ranks; to++)
            if ((from_node < 0 || t->node_of[from] == from_node) &&
                (to_node < 0 || t->node_of[to] == to_node) && t->node_of[from] != t->node_of[to])
                add_pair(&flow, t, from, to);
    return flow;
}

/* Payload of a message of the flow. */
static uint32_t each_of(const struct flow *flow)
{
    return flow->messages ? (uint32_t)((flow->bytes + flow->messages - 1) / flow->messages) : 0;
}

/* The rank at place `local` of a node. */
static int member(const struct alltoall_traffic *t, int node, int local)
{
    for (int r = 0; r < t->ranks; r++)
        if (t->node_of[r] == node && local-- == 0)
            return r;
    return 0;
}

static void all_ranks(struct model *m, enum sstar_strategy strategy)
{
    const struct alltoall_traffic *t = m->traffic;
    for (int from = 0; from < t->ranks; from++) {
        for (int to = 0; to < t->ranks; to++) {
            if (t->node_of[from] == t->node_of[to])
                continue;
            struct flow flow = {0};
            add_pair(&flow, t, from, to);
            if (strategy == SSTAR_NONE)
                pair_none(m, port_of(m, from), port_of(m, to), flow.messages, each_of(&flow));
            else
                pair_rank(m, port_of(m, from), port_of(m, to), flow.messages,
                          format_room(&m->plain, each_of(&flow)));
        }
    }
}

static void all_nodes(struct model *m)
{
    const struct alltoall_traffic *t = m->traffic;
    for (int from = 0; from < t->nodes; from++) {
        for (int to = 0; to < t->nodes; to++) {
            if (from == to)
                continue;
            int sender = member(t, from, to % m->members[from]);
            int receiver = member(t, to, from % m->members[to]);
            struct flow flow = flow_between(t, from, to);
            pair_node(m, port_of(m, sender), port_of(m, receiver), m->members[from], m->members[to],
                      flow.messages, format_room(&m->routed, each_of(&flow)));
        }
    }
}

/* Every message by its hops; then the streams of each hop as those of `rank`. */
static int all_mesh(struct model *m)
{
    const struct alltoall_traffic *t = m->traffic;
    size_t n = (size_t)t->ranks;
    struct mesh_shape shape = mesh_shape_of(t->ranks, m->members[t->node_of[0]], (int)t->hops);
    uint64_t *flow = calloc((size_t)shape.hops * n * n, sizeof *flow);
    if (!flow)
        return -ENOMEM;
    for (int from = 0; from < t->ranks; from++)
        for (int to = 0; to < t->ranks; to++)
            for (int h = 0, at = from; t->node_of[from] != t->node_of[to] && h < shape.hops; h++) {
                int next = mesh_next(&shape, h, at, to);
                flow[((size_t)h * n + (size_t)at) * n + (size_t)next] +=
                    t->messages[(size_t)from * n + (size_t)to];
                at = next;
            }
    struct flow all = flow_between(t, -1, -1);
    for (int h = 0; h < shape.hops; h++)
        for (int a = 0; a < t->ranks; a++)
            for (int b = 0; b < t->ranks; b++)
                if (t->node_of[a] != t->node_of[b] && mesh_linked(&shape, h, a, b))
                    pair_rank(m, port_of(m, a), port_of(m, b),
                              flow[((size_t)h * n + (size_t)a) * n + (size_t)b],
                              format_room(&m->routed, each_of(&all)));
    free(flow);
    return 0;
}

static double seconds_of(const struct model *m, int ports, const struct sstar_cost *cost)
{
    double worst_us = 0, byte_us = cost->beta_gbps > 0 ? 1e-3 / cost->beta_gbps : 0;
    for (int p = 0; p < ports; p++) {
        const struct port *port = &m->port[p];
        double sending = port->sent ? (double)(port->sent - 1) * cost->gap_us +
                                          (double)port->sent_bytes * byte_us
                                    : 0;
        double receiving = (double)port->received_bytes * byte_us;
        worst_us = sending > worst_us ? sending : worst_us;
        worst_us = receiving > worst_us ? receiving : worst_us;
    }
    return m->wire_messages ? (worst_us + cost->alpha_us) * 1e-6 : 0;
}

static int one_strategy(const struct alltoall_traffic *t, enum sstar_strategy strategy,
                        uint32_t flush_bytes, const struct sstar_cost *cost,
                        struct alltoall_prediction *out)
{
    int ports = t->port_per_rank ? t->ranks : t->nodes, err = -ENOMEM;
    uint32_t fixed = t->fixed ? t->message_bytes : 0;
    struct model m = {.traffic = t,
                      .plain = format_plain(fixed),
                      .routed = format_routed(fixed),
                      .flush_bytes = flush_bytes};
    m.port = calloc((size_t)ports, sizeof *m.port);
    m.members = calloc((size_t)t->nodes, sizeof *m.members);
    if (!m.port || !m.members)
        goto free_all;
    for (int r = 0; r < t->ranks; r++)
        m.members[t->node_of[r]]++;
    err = 0;
    if (strategy == SSTAR_PER_NODE)
        all_nodes(&m);
    else if (strategy == SSTAR_MESH)
        err = all_mesh(&m);
    else
        all_ranks(&m, strategy);
    if (!err)
        *out = (struct alltoall_prediction){.seconds = seconds_of(&m, ports, cost),
                                            .wire_messages = m.wire_messages,
                                            .wire_bytes = m.wire_bytes};
free_all:
    free(m.port);
    free(m.members);
    return err;
}

int model_alltoall(const struct alltoall_traffic *t, enum sstar_strategy strategy,
                   uint32_t flush_bytes, const struct sstar_cost *cost,
                   struct alltoall_prediction *out)
{
    if (t->ranks < 1 || t->nodes < 1 || (unsigned)strategy >= SSTAR_STRATEGIES ||
        (strategy != SSTAR_NONE && flush_bytes == 0))
        return -EINVAL;
    if (strategy != SSTAR_ADAPTIVE)
        return one_strategy(t, strategy, flush_bytes, cost, out);
    struct alltoall_prediction straight, base;
    int err = one_strategy(t, SSTAR_PER_RANK, flush_bytes, cost, &straight);
    if (!err)
        err = one_strategy(t, t->hops ? SSTAR_MESH : SSTAR_PER_NODE, flush_bytes, cost, &base);
    if (!err)
        *out = straight.seconds < base.seconds ? straight : base;
    return err;
}
