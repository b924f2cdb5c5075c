/* SPDX-License-Identifier: MIT */
/*
 * Strategy `node`, sending: the gateway gathers what the ranks of its node have written into their
 * rings into one wire message for the other node, and sends it from there without a copy.
 *
 * While gathering it chains the items of each receiving rank, so that none of these need look at
 * the items of another. It stops at the item that makes the wire message reach flush_bytes.
 */
#include "collectives/aggregator_node.h"
#include "collectives/ledger.h"
#include "transport/memory.h"
#include <stdlib.h>

int gateway_open(struct sstar_aggregator *a, struct channel *c, uint8_t *rings,
                 uint8_t *directories)
{
    const struct per_node *n = per_node(a);
    struct gateway *g = calloc(1, sizeof *g);
    if (!g)
        return -ENOMEM;
    c->gateway = g;
    g->directories = directories;
    g->readers = local_size_of(a, c->node);
    size_t writers = (size_t)a->local_size, readers = (size_t)g->readers;
    g->from = calloc(writers, sizeof *g->from);
    g->piece = calloc(n->pieces_most, sizeof *g->piece);
    g->first = calloc(n->pieces_most * readers, sizeof *g->first);
    g->tail = calloc(readers, sizeof *g->tail);
    g->sent = calloc(readers, sizeof *g->sent);
    g->ticket = calloc(n->slots, sizeof *g->ticket);
    g->position = calloc(n->slots * writers, sizeof *g->position);
    if (!g->from || !g->piece || !g->first || !g->tail || !g->sent || !g->ticket || !g->position)
        return -ENOMEM;
    for (size_t w = 0; w < writers; w++) {
        struct ring_shared *shared = (void *)(rings + w * ring_bytes(a->ring_size));
        g->from[w] = (struct ring_reader){.shared = shared,
                                          .data = (uint8_t *)(shared + 1),
                                          .size = a->ring_size,
                                          .format = n->format};
    }
    return 0;
}

void gateway_close(struct gateway *g)
{
    if (!g)
        return;
    free(g->from);
    free(g->piece);
    free(g->first);
    free(g->tail);
    free(g->sent);
    free(g->ticket);
    free(g->position);
    free(g);
}

void gateway_complete(struct sstar_aggregator *a, struct gateway *g)
{
    const struct per_node *n = per_node(a);
    bool any = false;
    uint64_t slot = 0;
    while (g->first_under_way != g->after_under_way) {
        uint64_t oldest = g->first_under_way & (n->slots - 1);
        if (!sstar_link_done(g->link, g->ticket[oldest]))
            break;
        slot = oldest;
        any = true;
        g->first_under_way++;
    }
    for (int w = 0; any && w < a->local_size; w++)
        atomic_store_explicit(&g->from[w].shared->released,
                              g->position[slot * (uint64_t)a->local_size + (uint64_t)w],
                              memory_order_release);
}

/* ---- is it time? --------------------------------------------------------------------------------
 */

/* When the item at `position`, which has been written, or the one behind the skip there, was. */
static uint64_t stamp_of(const struct ring_reader *r, uint64_t position)
{
    uint64_t at = position & (r->size - 1);
    if (ring_skips(r, at))
        at = 0;
    return atomic_load_explicit(&r->shared->stamp_ns[ring_stamp_index(r->size, at)],
                                memory_order_relaxed);
}

/* Enough is held, or a writer cannot go on and nothing is under way that would make room, or the
 * oldest has waited long enough, or no more will come. */
static bool due(struct sstar_aggregator *a, struct gateway *g, bool *all_ended)
{
    uint64_t held = 0, oldest_ns = UINT64_MAX;
    bool full = false, ended = true;
    for (int w = 0; w < a->local_size; w++) {
        struct ring_reader *r = &g->from[w];
        if (!r->expected)
            r->expected = atomic_load_explicit(&r->shared->closed, memory_order_acquire);
        r->head = atomic_load_explicit(&r->shared->head, memory_order_acquire);
        ended = ended && r->expected;
        if (r->head == r->taken)
            continue;
        held += r->head - r->taken;
        full = full || atomic_load_explicit(&r->shared->full, memory_order_relaxed) > r->taken + 1;
        if (flush_needs_clock(a)) {
            uint64_t stamp = stamp_of(r, r->taken);
            oldest_ns = stamp < oldest_ns ? stamp : oldest_ns;
        }
    }
    *all_ended = ended;
    if (ended || (held && full && g->first_under_way == g->after_under_way))
        return true;
    struct flush_view view = {.fill_bytes = held, .before_bytes = g->last_bytes};
    if (held && oldest_ns != UINT64_MAX) {
        uint64_t now = clock_ns();
        view.age_ns = now > oldest_ns ? now - oldest_ns : 0;
        view.since_ns = now - g->last_ns;
    }
    return held && flush_due(a, &view);
}

/* ---- gathering ----------------------------------------------------------------------------------
 */

static struct gathered *open_piece(struct gateway *g, uint8_t *data, int source)
{
    struct gathered *piece = &g->piece[g->out.pieces];
    *piece = (struct gathered){.data = data, .source = (uint16_t)source};
    memset(g->first + (size_t)g->out.pieces * (size_t)g->readers, 0,
           (size_t)g->readers * sizeof *g->first);
    memset(g->tail, 0, (size_t)g->readers * sizeof *g->tail);
    g->out.pieces++;
    return piece;
}

/* Append an item of so many bytes, header included, to the piece and to its reader's chain. */
static void chain(const struct sstar_aggregator *a, struct gateway *g, struct gathered *piece,
                  const uint8_t *item, uint32_t room)
{
    const struct item_format *f = &per_node(a)->format;
    uint32_t *tag = format_tag(f, item);
    int reader = a->local_of[*tag >> 16];
    if (g->tail[reader])
        *format_tag(f, g->tail[reader]) = (uint32_t)(item - g->tail[reader]) / 4;
    else
        g->first[(size_t)(piece - g->piece) * (size_t)g->readers + (size_t)reader] =
            1 + piece->bytes / 4;
    g->tail[reader] = item;
    *tag = 0;
    g->sent[reader]++;
    piece->bytes += room;
}

/* Take what writer w has, up to flush_bytes in all. */
static void gather(struct sstar_aggregator *a, struct gateway *g, int w)
{
    struct ring_reader *r = &g->from[w];
    struct outgoing *out = &g->out;
    struct gathered *piece = NULL;
    int source = rank_at(a, a->node, w);
    while (r->taken != r->head && out->item_bytes < a->flush_bytes) {
        uint64_t at = r->taken & (r->size - 1);
        uint8_t *item = r->data + at;
        if (ring_skips(r, at)) {
            r->taken += r->size - at;
            continue;
        }
        if (!piece || piece->data + piece->bytes != item) {
            uint64_t stamp = stamp_of(r, r->taken);
            if (!piece && stamp < out->oldest_ns)
                out->oldest_ns = stamp;
            piece = open_piece(g, item, source);
        }
        uint32_t bytes = format_bytes(&r->format, item), room = format_room(&r->format, bytes);
        chain(a, g, piece, item, room);
        r->taken += room;
        r->messages++;
        out->item_bytes += room;
        out->payload_bytes += bytes;
        out->count++;
    }
}

static uint8_t *directory_of(const struct sstar_aggregator *a, const struct gateway *g)
{
    const struct per_node *n = per_node(a);
    return g->directories + (g->after_under_way & (n->slots - 1)) * n->directory_most;
}

static void write_directory(struct sstar_aggregator *a, struct gateway *g)
{
    struct outgoing *out = &g->out;
    uint32_t readers = (uint32_t)g->readers;
    struct node_header *h = (struct node_header *)directory_of(a, g);
    uint32_t bytes = node_directory_bytes(out->pieces, readers, out->last);
    out->directory_bytes = bytes + out->item_bytes % 8;
    memset(h, 0, out->directory_bytes);
    *h = (struct node_header){.buffer = {.magic = WIRE_MAGIC,
                                         .version = WIRE_VERSION,
                                         .kind = WIRE_NODE,
                                         .flags = out->last ? BUFFER_LAST : 0,
                                         .count = out->count},
                              .pieces = (uint16_t)out->pieces,
                              .readers = (uint16_t)readers,
                              .directory_bytes = out->directory_bytes};
    struct node_piece *pieces = (struct node_piece *)(h + 1);
    for (uint32_t p = 0; p < out->pieces; p++)
        pieces[p] = (struct node_piece){.bytes = g->piece[p].bytes, .source = g->piece[p].source};
    memcpy(pieces + out->pieces, g->first, (size_t)out->pieces * readers * sizeof *g->first);
    if (out->last)
        memcpy((uint8_t *)h + bytes - readers * sizeof *g->sent, g->sent,
               readers * sizeof *g->sent);
}

/* Gather one wire message, with the end of the stream if there is no more. */
static void compose(struct sstar_aggregator *a, struct gateway *g, bool all_ended)
{
    struct outgoing *out = &g->out;
    *out = (struct outgoing){.ready = true, .oldest_ns = UINT64_MAX};
    for (int i = 0; i < a->local_size && out->item_bytes < a->flush_bytes; i++) {
        gather(a, g, g->next_writer);
        g->next_writer = (g->next_writer + 1) % a->local_size;
    }
    out->last = all_ended;
    for (int w = 0; out->last && w < a->local_size; w++)
        out->last = ring_drained(&g->from[w]);
    write_directory(a, g);
}

/* ---- sending ------------------------------------------------------------------------------------
 */

/* More pieces than a work request takes: copy them into the link's slot. */
static int send_copied(struct sstar_aggregator *a, struct gateway *g, uint64_t *ticket)
{
    struct outgoing *out = &g->out;
    uint8_t *to;
    int err = link_reserve(g->link, out->directory_bytes + out->item_bytes, (void **)&to);
    if (err)
        return err;
    uint64_t begun = clock_ns();
    memcpy(to, directory_of(a, g), out->directory_bytes);
    to += out->directory_bytes;
    for (uint32_t p = 0; p < out->pieces; p++) {
        memcpy(to, g->piece[p].data, g->piece[p].bytes);
        to += g->piece[p].bytes;
    }
    a->ledger.copying_ns += clock_ns() - begun;
    err = link_commit_ticket(g->link, out->directory_bytes + out->item_bytes, 0, ticket);
    if (!err)
        a->ledger.copied_bytes += out->payload_bytes;
    return err;
}

static int send_gathered(struct sstar_aggregator *a, struct gateway *g, uint64_t *ticket)
{
    struct outgoing *out = &g->out;
    struct piece pieces[LINK_MAX_PIECES];
    uint8_t *directory = directory_of(a, g);
    int err = 0, n = 0;
    pieces[n++] = (struct piece){.data = directory, .bytes = out->directory_bytes};
    for (uint32_t p = 0; p < out->pieces; p++)
        pieces[n++] = (struct piece){.data = g->piece[p].data, .bytes = g->piece[p].bytes};
    const struct sstar_region *region =
        memory_region(a->world, directory, out->directory_bytes, &err);
    if (!region)
        return err ? err : -EFAULT;
    for (int i = 0; i < n; i++)
        pieces[i].region = region; /* all of it is one piece of our memory */
    return link_send(g->link, pieces, n, 0, ticket);
}

/* Hand the gathered wire message to the link: 0, -EAGAIN (it stays ready), or -errno. */
static int send_ready(struct sstar_aggregator *a, const struct channel *c)
{
    struct gateway *g = c->gateway;
    const struct per_node *n = per_node(a);
    struct outgoing *out = &g->out;
    if (g->after_under_way - g->first_under_way == n->slots)
        return -EAGAIN;
    uint64_t slot = g->after_under_way & (n->slots - 1), ticket = 0;
    bool gathered = out->pieces < LINK_MAX_PIECES;
    int err = gathered ? send_gathered(a, g, &ticket) : send_copied(a, g, &ticket);
    if (err)
        return err;
    for (int w = 0; w < a->local_size; w++) {
        struct ring_reader *r = &g->from[w];
        g->position[slot * (uint64_t)a->local_size + (uint64_t)w] = r->taken;
        atomic_store_explicit(&r->shared->taken, r->taken, memory_order_relaxed);
    }
    /* A copied one stands in line behind the ticket before it, and needs no completion of its own.
     */
    g->ticket[slot] = gathered ? ticket : g->last_ticket;
    g->last_ticket = g->ticket[slot];
    g->after_under_way++;
    g->last_sent = out->last;
    out->ready = false;
    g->last_ns = clock_ns();
    g->last_bytes = out->directory_bytes + out->item_bytes + LINK_TRAILER_BYTES;
    sent_account(a, gateway_rank(a, c->node), g->last_bytes, out->count, out->payload_bytes);
    if (out->count)
        ledger_age(&a->ledger, g->last_ns - out->oldest_ns, 1);
    return 0;
}

int gateway_send(struct sstar_aggregator *a, struct channel *c)
{
    struct gateway *g = c->gateway;
    int moved = 0;
    gateway_complete(a, g);
    while (!g->last_sent) {
        bool all_ended = false;
        if (!g->out.ready) {
            if (g->after_under_way - g->first_under_way == per_node(a)->slots ||
                !due(a, g, &all_ended))
                break;
            compose(a, g, all_ended);
        }
        int err = send_ready(a, c);
        if (err == -EAGAIN)
            break;
        if (err)
            return err;
        moved++;
    }
    return moved;
}

bool gateway_ended(const struct gateway *g)
{
    return g->last_sent && sstar_link_done(g->link, g->last_ticket);
}
