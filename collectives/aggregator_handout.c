/* SPDX-License-Identifier: MIT */
/* Strategy `node`, receiving: every rank reads its items where the wire message landed. */
#include "collectives/aggregator_node.h"

size_t handout_bytes(int readers, uint32_t slots)
{
    return align_up(sizeof(struct handout_shared) + (size_t)readers * sizeof(struct handout_count) +
                        slots * sizeof(struct handout_entry),
                    64);
}

static int broken(struct sstar_aggregator *a, const struct channel *c, const char *what)
{
    return wire_broken(a, rank_at(a, c->node, 0), what);
}

/* Slots in the order of arrival, as far as the slowest rank has read. */
static void release(struct sstar_aggregator *a, struct channel *c)
{
    struct gateway *g = c->gateway;
    uint64_t least = g->published;
    if (g->released == least)
        return;
    for (int i = 0; i < a->local_size; i++) {
        uint64_t n = atomic_load_explicit(&c->handout->consumed[i].value, memory_order_acquire);
        least = n < least ? n : least;
    }
    if (least > g->released) {
        link_release(g->link, (uint32_t)(least - g->released));
        g->released = least;
    }
}

int handout_publish(struct sstar_aggregator *a, struct channel *c)
{
    struct gateway *g = c->gateway;
    struct message m;
    int got, moved = 0;
    release(a, c);
    while ((got = link_receive(g->link, &m)) > 0) {
        struct handout_entry *e = &c->entries[g->published & (per_node(a)->slots - 1)];
        e->offset = (uint64_t)((const uint8_t *)m.data - c->slots);
        e->bytes = m.bytes;
        g->published++;
        atomic_store_explicit(&c->handout->published.value, g->published, memory_order_release);
        moved++;
    }
    return got < 0 ? got : moved;
}

/* Look at the directory of the wire message that is next. */
static int begin(struct sstar_aggregator *a, struct channel *c)
{
    const struct handout_entry *e = &c->entries[c->consumed & (per_node(a)->slots - 1)];
    const struct node_header *h = (const struct node_header *)(c->slots + e->offset);
    if (e->bytes < sizeof *h || h->buffer.magic != WIRE_MAGIC ||
        h->buffer.version != WIRE_VERSION || h->buffer.kind != WIRE_NODE)
        return broken(a, c, "something that is no wire message of this version");
    bool last = h->buffer.flags & BUFFER_LAST;
    uint32_t bytes = node_directory_bytes(h->pieces, h->readers, last);
    if (h->readers != a->local_size || h->directory_bytes > e->bytes ||
        (h->directory_bytes != bytes && h->directory_bytes != bytes + 4))
        return broken(a, c, "a directory that cannot be");
    if (last) {
        const uint64_t *sent = (const uint64_t *)((const uint8_t *)h + bytes);
        c->expected = 1 + sent[a->local_rank - a->local_size];
    }
    c->message = (const uint8_t *)h;
    c->message_bytes = e->bytes;
    c->piece = c->message + h->directory_bytes;
    c->piece_index = 0;
    c->piece_bytes = 0;
    c->item = NULL;
    c->reading = true;
    return 0;
}

/* Find the next piece that holds something for us. 1, 0: there is none, or -EPROTO. */
static int next_piece(struct sstar_aggregator *a, struct channel *c)
{
    const struct node_header *h = (const struct node_header *)c->message;
    const struct node_piece *pieces = (const struct node_piece *)(h + 1);
    const uint32_t *first = (const uint32_t *)(pieces + h->pieces);
    while (c->piece_index < h->pieces) {
        uint32_t p = c->piece_index++;
        c->piece += c->piece_bytes;
        c->piece_bytes = pieces[p].bytes;
        if (c->piece_bytes > c->message_bytes - (size_t)(c->piece - c->message))
            return broken(a, c, "a piece that is longer than its wire message");
        uint32_t at = first[p * h->readers + (uint32_t)a->local_rank];
        if (at) {
            c->item = c->piece + (size_t)(at - 1) * 4;
            return 1;
        }
    }
    return 0;
}

static int take(struct sstar_aggregator *a, struct channel *c, struct sstar_item *item)
{
    const struct node_header *h = (const struct node_header *)c->message;
    const struct node_piece *pieces = (const struct node_piece *)(h + 1);
    const struct item_format *f = &per_node(a)->format;
    const uint8_t *at = c->item, *end = c->piece + c->piece_bytes;
    size_t left = at < end ? (size_t)(end - at) : 0;
    if (left < (f->stride ? f->stride : f->header) || format_bytes(f, at) > a->max_item_bytes ||
        format_room(f, format_bytes(f, at)) > left)
        return broken(a, c, "a message that cannot be");
    *item = (struct sstar_item){.data = at + f->header,
                                .bytes = format_bytes(f, at),
                                .source = pieces[c->piece_index - 1].source};
    uint32_t next = *format_tag(f, at);
    c->item = next ? at + (size_t)next * 4 : NULL;
    c->received++;
    if (c->item)
        __builtin_prefetch(c->item);
    return 1;
}

int handout_pull(struct sstar_aggregator *a, struct channel *c, struct sstar_item *item)
{
    for (;;) {
        if (c->reading) {
            int found = c->item ? 1 : next_piece(a, c);
            if (found < 0)
                return found;
            if (found)
                return take(a, c, item);
            c->reading = false;
            c->consumed++;
            atomic_store_explicit(&c->handout->consumed[a->local_rank].value, c->consumed,
                                  memory_order_release);
        }
        if (c->consumed == atomic_load_explicit(&c->handout->published.value, memory_order_acquire))
            return 0;
        int err = begin(a, c);
        if (err)
            return err;
    }
}
