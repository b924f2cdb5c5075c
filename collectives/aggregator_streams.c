/* SPDX-License-Identifier: MIT */
#include "collectives/aggregator_streams.h"
#include "collectives/ledger.h"
#include <stdlib.h>

enum { STREAM_SLOTS = 64, STREAM_BUDGET_BYTES = 2 << 20, LANE_BYTES = 4096 };

/* Header and fence, less than flush_bytes of items, one more item, padding, the count that ends a
 * stream. */
static uint32_t slot_bytes_of(const struct sstar_aggregator *a, const struct item_format *format)
{
    uint64_t most = 2 * sizeof(struct buffer_header) + (uint64_t)a->flush_bytes +
                    format_room(format, a->max_item_bytes) + 2 * sizeof(uint64_t);
    return (uint32_t)align_up(most, 64);
}

struct sstar_link_attr streams_attr(const struct sstar_aggregator *a, int most,
                                    const struct item_format *format)
{
    return peers_attr(a, most, slot_bytes_of(a, format), STREAM_SLOTS, STREAM_BUDGET_BYTES);
}

uint64_t streams_pooled_bytes(const struct sstar_aggregator *a, int n,
                              const struct item_format *format)
{
    struct pool_sizes sizes = pool_sizes(slot_bytes_of(a, format));
    struct sstar_link_attr notes = pool_note_attr(), buffers = pool_buffer_attr(&sizes);
    return pool_bytes(&sizes) + links_bytes(&notes, n, 0) + links_bytes(&buffers, n, 0);
}

int streams_open(struct sstar_aggregator *a, const int *ranks, int n, int most,
                 const struct item_format *format, bool pooled, struct streams **out)
{
    struct streams *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    *s = (struct streams){.a = a, .format = *format, .header_bytes = sizeof(struct buffer_header)};
    s->header_bytes += pooled ? sizeof(uint64_t) : 0;
    s->slot_bytes = slot_bytes_of(a, format);
    struct sstar_link_attr attr = pooled ? pool_note_attr() : streams_attr(a, most, format);
    int err = peers_open(a, ranks, n, &attr, &s->peers);
    if (!err && pooled)
        err = pool_open(a, s->peers, s->slot_bytes, &s->pool);
    if (!err && !(s->stream = calloc((size_t)n + 1, sizeof *s->stream)))
        err = -ENOMEM;
    if (err) {
        streams_close(s);
        return err;
    }
    streams_reset(s);
    *out = s;
    return 0;
}

void streams_close(struct streams *s)
{
    if (!s)
        return;
    peers_close(s->peers);
    pool_close(s->pool);
    free(s->stream);
    free(s);
}

/* ---- buffers: of the link, or of the pool -------------------------------------------------------
 */

static int buffer_reserve(struct streams *s, int i, uint8_t **payload)
{
    return s->pool ? pool_reserve(s->pool, i, payload)
                   : link_reserve(s->peers->peer[i].link, s->slot_bytes, (void **)payload);
}

static int buffer_commit(struct streams *s, int i, uint32_t bytes)
{
    struct peer *p = &s->peers->peer[i];
    if (s->pool)
        return pool_commit(s->pool, i, bytes);
    return s->a->sees_off ? link_commit_ticket(p->link, bytes, 0, &p->ticket)
                          : link_commit(p->link, bytes, 0);
}

static int buffer_receive(struct streams *s, int i, struct message *m)
{
    return s->pool ? pool_receive(s->pool, i, m) : link_receive(s->peers->peer[i].link, m);
}

static void buffer_release(struct streams *s, int i)
{
    struct peer *p = &s->peers->peer[i];
    if (p->taken && s->pool)
        pool_release(s->pool, i, p->taken);
    else if (p->taken)
        link_release(p->link, p->taken);
    p->taken = 0;
}

void streams_reset(struct streams *s)
{
    for (int i = 0; i < s->peers->n; i++)
        buffer_release(s, i);
    peers_reset(s->peers);
    for (int i = 0; i < s->peers->n; i++)
        s->stream[i] = (struct stream){.lane = lane_of_format(&s->format)};
}

/* ---- sending ------------------------------------------------------------------------------------
 */

static uint32_t fill_of(const struct stream *t)
{
    return (uint32_t)(t->lane.at - t->buffer);
}

/* The lane ends before the message that makes the buffer full, so that it comes to streams_put; and
 * soon, so that there is a look at the wire now and then. */
static void set_lane_end(struct streams *s, struct stream *t)
{
    uint32_t fill = fill_of(t), most = s->a->flush_bytes - 1, room = fill < most ? most - fill : 0;
    t->lane.end = t->lane.at + (room < LANE_BYTES ? room : LANE_BYTES);
}

static int open_buffer(struct streams *s, int i)
{
    struct stream *t = &s->stream[i];
    int err = buffer_reserve(s, i, &t->buffer);
    if (err) {
        t->buffer = NULL;
        return err;
    }
    lane_open(&t->lane, t->buffer + s->header_bytes, t->buffer + s->header_bytes);
    s->peers->peer[i].opened_ns = clock_ns();
    s->peers->open++;
    return 0;
}

/* What the buffer held is on its way. */
static void account(struct streams *s, int i, uint32_t bytes)
{
    struct sstar_aggregator *a = s->a;
    struct stream *t = &s->stream[i];
    struct sstar_lane *lane = &t->lane;
    uint64_t now = clock_ns();
    if (s->format.stride)
        t->passed_bytes = t->passed * s->format.fixed;
    t->thin = bytes < s->thin_bytes ? t->thin + 1 : 0;
    if (!link_is_local(s->peers->peer[i].link)) {
        sent_account(a, s->peers->peer[i].rank, bytes + LINK_TRAILER_BYTES, lane->count,
                     lane->bytes);
        if (lane->count)
            ledger_age(&a->ledger, now - s->peers->peer[i].opened_ns, 1);
    }
    lane->count -= t->passed;
    lane->bytes -= t->passed_bytes;
    a->ledger.copied_bytes += t->passed_bytes;
    copy_account(a, s->peers->peer[i].rank, t->passed);
    lane_account(a, lane, s->peers->peer[i].rank, true);
    t->last_ns = now;
    t->last_bytes = bytes;
    t->passed = t->passed_bytes = t->seen = 0;
    t->urgent = false;
    t->buffer = NULL;
    lane_shut(lane);
}

/* Send the open buffer; with BUFFER_LAST the end of the stream in it. */
static int send_buffer(struct streams *s, int i, uint8_t flags)
{
    struct stream *t = &s->stream[i];
    struct peer *p = &s->peers->peer[i];
    uint32_t fill = fill_of(t), bytes = (fill + 7u) & ~7u, count = lane_settle(&t->lane);
    if (bytes != fill)
        memset(t->buffer + fill, 0, bytes - fill);
    flags |= t->urgent ? BUFFER_URGENT : 0;
    *(struct buffer_header *)t->buffer = (struct buffer_header){.magic = WIRE_MAGIC,
                                                                .version = WIRE_VERSION,
                                                                .kind = WIRE_BUFFER,
                                                                .flags = flags,
                                                                .count = count};
    if (s->header_bytes > sizeof(struct buffer_header))
        *(uint64_t *)(t->buffer + sizeof(struct buffer_header)) = t->fence;
    if (flags & BUFFER_LAST) {
        *(uint64_t *)(t->buffer + bytes) = p->sent + count;
        bytes += (uint32_t)sizeof(uint64_t);
    }
    int err = buffer_commit(s, i, bytes);
    if (err)
        return err;
    p->sent += count;
    s->peers->open--;
    account(s, i, bytes);
    return 0;
}

int streams_put(struct streams *s, int i, int source, int destination, const void *data,
                uint32_t bytes, bool passed)
{
    struct stream *t = &s->stream[i];
    int err = 0;
    if (t->buffer && fill_of(t) >= s->a->flush_bytes)
        err = send_buffer(s, i, 0); /* there was no place in the queue before */
    if (!err && !t->buffer)
        err = open_buffer(s, i);
    if (err)
        return err;
    lane_put(s->a, &t->lane, (uint32_t)source, (uint32_t)destination, data, bytes);
    t->passed += passed;
    t->passed_bytes += passed ? bytes : 0;
    set_lane_end(s, t);
    if (fill_of(t) >= s->a->flush_bytes)
        err = send_buffer(s, i, 0);
    return err == -EAGAIN ? 0 : err;
}

void streams_urge(struct streams *s, int i)
{
    s->stream[i].urgent = s->urged = true;
}

/* Nothing is open for a peer that must be urged: a buffer of nothing tells it. 0, or -errno. */
static int open_urgent(struct streams *s, int i)
{
    struct stream *t = &s->stream[i];
    if (s->peers->peer[i].last_sent)
        t->urgent = false;
    int err = t->urgent ? open_buffer(s, i) : 0;
    return err == -EAGAIN ? 0 : err;
}

int streams_flush(struct streams *s)
{
    struct sstar_aggregator *a = s->a;
    int moved = 0;
    if (!s->peers->open && !s->urged)
        return 0;
    s->urged = false;
    uint64_t now = flush_needs_clock(a) ? clock_ns() : 0;
    for (int i = 0; i < s->peers->n; i++) {
        struct stream *t = &s->stream[i];
        int err = t->buffer ? 0 : open_urgent(s, i);
        if (err)
            return err;
        s->urged |= t->urgent && !t->buffer;
        if (!t->buffer)
            continue;
        moved += lane_settle(&t->lane) != t->seen; /* somebody pushed */
        t->seen = t->lane.count;
        struct flush_view view = {.fill_bytes = fill_of(t), .before_bytes = t->last_bytes};
        if (now) {
            view.age_ns = now - s->peers->peer[i].opened_ns;
            view.since_ns = now - t->last_ns;
        }
        err = t->urgent || flush_due(a, &view) ? send_buffer(s, i, 0) : -EAGAIN;
        if (err && err != -EAGAIN)
            return err;
        moved += !err;
        s->urged |= t->urgent;
    }
    return moved;
}

int streams_progress(struct streams *s)
{
    int moved = sstar_links_progress(s->peers->links);
    int notes = moved < 0 || !s->pool ? 0 : pool_progress(s->pool);
    return moved < 0 ? moved : notes < 0 ? notes : moved + notes;
}

/* Send the end of the stream: in its last buffer, or behind it as a note. */
static int send_end(struct streams *s, int i)
{
    struct peer *p = &s->peers->peer[i];
    int err = 0;
    if (!s->pool) {
        err = s->stream[i].buffer ? 0 : open_buffer(s, i);
        return err ? err : send_buffer(s, i, BUFFER_LAST);
    }
    if (s->stream[i].buffer)
        err = send_buffer(s, i, 0);
    return err ? err : pool_end(s->pool, i, p->sent, &p->ticket);
}

int streams_end(struct streams *s)
{
    bool waiting = false;
    for (int i = 0; i < s->peers->n; i++) {
        struct peer *p = &s->peers->peer[i];
        int err = p->last_sent ? 0 : send_end(s, i);
        p->last_sent |= !err;
        if (err && err != -EAGAIN)
            return err;
        waiting = waiting || err;
    }
    if (waiting || (!s->pool && !s->a->sees_off)) /* then there are no tickets */
        return waiting;
    return peers_sending(s->peers) || (s->pool && pool_sending(s->pool));
}

/* ---- receiving ----------------------------------------------------------------------------------
 */

/* A buffer has come: look at its header. */
static int begin(struct streams *s, int i, const struct message *m)
{
    const struct buffer_header *header = m->data;
    struct stream *t = &s->stream[i];
    struct peer *p = &s->peers->peer[i];
    uint32_t bytes = m->bytes;
    if (bytes < s->header_bytes || header->magic != WIRE_MAGIC || header->version != WIRE_VERSION ||
        header->kind != WIRE_BUFFER)
        return wire_broken(s->a, p->rank, "something that is no buffer of this version");
    if (header->flags & BUFFER_LAST) {
        bytes -= (uint32_t)sizeof(uint64_t);
        if (bytes < s->header_bytes || bytes > m->bytes)
            return wire_broken(s->a, p->rank, "a broken end of stream");
        p->expected = 1 + *(const uint64_t *)((const uint8_t *)m->data + bytes);
    }
    t->came_urgent |= (header->flags & BUFFER_URGENT) != 0;
    t->came_fence = s->header_bytes > sizeof *header ? *(const uint64_t *)(header + 1) : 0;
    t->at = (const uint8_t *)header + s->header_bytes;
    t->end = (const uint8_t *)header + bytes;
    t->left = header->count;
    if ((uint64_t)(t->end - t->at) < (uint64_t)t->left * s->format.stride)
        return wire_broken(s->a, p->rank, "fewer messages than it counts");
    return 0;
}

/* Where sizes vary. If they do not, the count of the buffer was enough to look at. */
static int check_item(struct streams *s, int i)
{
    const struct stream *t = &s->stream[i];
    const struct item_format *f = &s->format;
    size_t left = (size_t)(t->end - t->at);
    if (left < f->header || format_bytes(f, t->at) > s->a->max_item_bytes ||
        format_room(f, format_bytes(f, t->at)) > left)
        return wire_broken(s->a, s->peers->peer[i].rank, "a message that cannot be");
    return 1;
}

int stream_peek(struct streams *s, int i, const uint8_t **item)
{
    struct stream *t = &s->stream[i];
    struct peer *p = &s->peers->peer[i];
    while (!t->left) {
        buffer_release(s, i);
        struct message m;
        int got = buffer_receive(s, i, &m);
        if (got <= 0)
            return got;
        p->taken++;
        if ((got = begin(s, i, &m)) < 0)
            return got;
    }
    *item = t->at;
    return s->format.stride ? 1 : check_item(s, i);
}

void stream_take(struct streams *s, int i, uint32_t n)
{
    struct stream *t = &s->stream[i];
    t->at += s->format.stride ? n * s->format.stride : item_room(format_bytes(&s->format, t->at));
    t->left -= n;
    s->peers->peer[i].received += n;
}

void stream_hand_out(struct streams *s, int i, struct sstar_item *item)
{
    struct stream *t = &s->stream[i];
    const struct item_format *f = &s->format;
    const struct peer *p = &s->peers->peer[i];
    const uint8_t *at = t->at;
    uint32_t n = 1;
    if (f->stride) {
        n = WINDOW_BYTES / f->stride;
        n = n < 1 ? 1 : n > t->left ? t->left : n;
        window_open(s->a, f, at, n, p->rank, item);
    } else {
        *item = (struct sstar_item){
            .data = at + f->header, .bytes = format_bytes(f, at), .source = p->rank};
    }
    stream_take(s, i, n);
}
