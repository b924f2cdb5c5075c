/* SPDX-License-Identifier: MIT */
/* The common pool of buffers: see aggregator_pool.h. */
#include "collectives/aggregator_pool.h"
#include <stdlib.h>

enum {
    PLACES_MOST = 128,
    PLACES_LEAST = 4,
    POOL_BUDGET_BYTES = 16 << 20, /* of places, and of buffers */
    FIRST_PLACES = 16, /* of who asks, and of everybody at most; one more for each that was read */
    NOTE_PLACES = 20,
    NOTE_SLOTS = 4,
    PROMPT_NS = 2000 * 1000, /* when nothing more was read, what was is told by then */
    POOL_MAGIC = 0x6c70,
};
enum { NOTE_WANT = 1, NOTE_END = 2 };

/* At the beginning of a place. */
struct pool_header {
    uint32_t bytes;
    uint16_t magic, source;
    uint64_t sequence;
};
static_assert(sizeof(struct pool_header) == LINK_TRAILER_BYTES, "counted as a link's trailer is");

struct pool_note {
    uint8_t magic, version, flags, granted;
    uint32_t read;     /* buffers of the receiver of this note, ever */
    uint32_t returned; /* places of the receiver, with this note, from the oldest */
    uint32_t kept;     /* places that the receiver of this note need never give back */
    uint64_t messages; /* with NOTE_END */
    uint16_t place[NOTE_PLACES];
};
static_assert(sizeof(struct pool_note) == 64, "a note is a cache line");

/* A queue of places, or of buffers, of at most `most`. Positions count for ever. */
struct queue {
    uint16_t *at;
    uint32_t begin, end;
};

struct pool_peer {
    struct sstar_link *link; /* for buffers */
    /* Sending to it. */
    struct queue granted; /* places of it that we may fill */
    struct queue flying;  /* our buffers that are on their way, and what they wait for */
    uint64_t *ticket;     /* [most], as `flying` */
    int open;             /* our buffer that is being filled, -1: none */
    uint32_t sent, read;  /* buffers; read by it */
    uint32_t kept;        /* of granted: not given back */
    bool want, told_want;
    bool end_told;
    /* Receiving from it. */
    struct queue given; /* our places that it has or has filled; those up to .. */
    uint32_t told;      /* it knows of, */
    uint32_t next;      /* are handed out, */
    uint32_t came;      /* and so many buffers ever */
    uint32_t told_read; /* of those it knows that they were read */
    uint32_t came_read;
    uint64_t read_ns;
    uint32_t may_hold; /* but no more than its share */
    bool asks;
};
struct pool {
    struct sstar_aggregator *a;
    struct peers *peers;       /* for notes */
    struct sstar_links *links; /* for buffers */
    struct pool_sizes sizes;
    struct pool_peer *peer; /* [peers->n] */
    uint8_t *memory;        /* places, then buffers */
    struct sstar_region *region;
    struct sstar_remote_region *remote; /* [size] */
    uint16_t *numbers;                  /* of all queues */
    uint64_t *tickets;
    uint32_t kept;                      /* of our places, for each peer whether it asks or not */
    uint16_t *free_place, *free_buffer; /* [places] */
    uint32_t free_places, free_buffers;
    uint32_t asking; /* peers that want places of us */
    uint32_t wanted; /* peers that we want places of, */
    uint32_t empty;  /* of these, without a buffer */
    int turn;        /* whom a free place is offered first */
};

/* ---- sizes and opening --------------------------------------------------------------------------
 */

struct pool_sizes pool_sizes(uint32_t buffer_bytes)
{
    size_t stride = align_up(sizeof(struct pool_header) + (uint64_t)buffer_bytes, 64);
    uint32_t places = PLACES_MOST;
    while (places > PLACES_LEAST && places * stride > POOL_BUDGET_BYTES)
        places /= 2;
    return (struct pool_sizes){.places = places, .most = places / 2, .stride = stride};
}

uint64_t pool_bytes(const struct pool_sizes *sizes)
{
    return 2 * sizes->places * sizes->stride;
}

struct sstar_link_attr pool_note_attr(void)
{
    return (struct sstar_link_attr){
        .queue_pairs = 1, .slots = NOTE_SLOTS, .slot_bytes = sizeof(struct pool_note), .puts = 1};
}

struct sstar_link_attr pool_buffer_attr(const struct pool_sizes *sizes)
{
    return (struct sstar_link_attr){.queue_pairs = 1, .puts = sizes->most};
}

static int open_links(struct pool *p)
{
    int *ranks = calloc((size_t)p->peers->n + 1, sizeof *ranks);
    if (!ranks)
        return -ENOMEM;
    for (int i = 0; i < p->peers->n; i++)
        ranks[i] = p->peers->peer[i].rank;
    struct sstar_link_attr attr = pool_buffer_attr(&p->sizes);
    int err = sstar_links_open(p->a->world, ranks, p->peers->n, &attr, &p->links);
    for (int i = 0; !err && i < p->peers->n; i++)
        p->peer[i].link = sstar_links_to(p->links, ranks[i]);
    free(ranks);
    return err;
}

static int make_peers(struct pool *p)
{
    size_t n = (size_t)p->peers->n + 1, most = p->sizes.most;
    p->peer = calloc(n, sizeof *p->peer);
    p->numbers = calloc(n * 3 * most, sizeof *p->numbers);
    p->tickets = calloc(n * most, sizeof *p->tickets);
    p->free_place = calloc(p->sizes.places, sizeof *p->free_place);
    p->free_buffer = calloc(p->sizes.places, sizeof *p->free_buffer);
    p->remote = calloc((size_t)p->a->size, sizeof *p->remote);
    if (!p->peer || !p->numbers || !p->tickets || !p->free_place || !p->free_buffer || !p->remote)
        return -ENOMEM;
    for (size_t i = 0; i + 1 < n; i++) {
        uint16_t *numbers = p->numbers + i * 3 * most;
        p->peer[i] = (struct pool_peer){.granted.at = numbers,
                                        .flying.at = numbers + most,
                                        .given.at = numbers + 2 * most,
                                        .ticket = p->tickets + i * most,
                                        .open = -1};
    }
    for (uint32_t i = 0; i < p->sizes.places; i++)
        p->free_place[p->free_places++] = p->free_buffer[p->free_buffers++] = (uint16_t)i;
    if (p->peers->n)
        p->kept = p->sizes.most / (uint32_t)p->peers->n;
    p->kept = p->kept < FIRST_PLACES ? p->kept : FIRST_PLACES;
    return 0;
}

int pool_open(struct sstar_aggregator *a, struct peers *peers, uint32_t buffer_bytes,
              struct pool **out)
{
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    *p = (struct pool){.a = a, .peers = peers, .sizes = pool_sizes(buffer_bytes)};
    size_t bytes = pool_bytes(&p->sizes);
    int err = make_peers(p);
    if (!err)
        err = sstar_alloc(a->world, bytes, (void **)&p->memory);
    if (!err)
        err = sstar_register(a->world, p->memory, bytes, &p->region);
    struct sstar_remote_region mine = {0};
    if (!err)
        sstar_region_describe(p->region, &mine);
    /* A rank that failed takes part, and says so by a region of nothing. */
    int told = p->remote ? sstar_allgather(a->world, &mine, sizeof mine, p->remote) : err;
    for (int r = 0; !err && !told && r < a->size; r++)
        if (!p->remote[r].size_bytes)
            told = report_set(&a->world->report, -ENOMEM,
                              "aggregator (%s): rank %d could not get its pool of buffers",
                              a->strategy->name, r);
    if (!err && !told)
        err = open_links(p);
    if (err || told) {
        pool_close(p);
        return err ? err : told;
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    if (p->links)
        sstar_links_close(p->links);
    if (p->region)
        sstar_deregister(p->region);
    if (p->memory)
        sstar_free(p->a->world, p->memory);
    free(p->peer);
    free(p->numbers);
    free(p->tickets);
    free(p->free_place);
    free(p->free_buffer);
    free(p->remote);
    free(p);
}

uint64_t pool_bound_bytes(const struct pool *p)
{
    return (uint64_t)p->sizes.most * p->sizes.stride;
}

static uint32_t held(const struct queue *q)
{
    return q->end - q->begin;
}
static uint16_t *slot_of(const struct pool *p, const struct queue *q, uint32_t position)
{
    return &q->at[position % p->sizes.most];
}

/* ---- sending ------------------------------------------------------------------------------------
 */

static uint32_t used(const struct pool_peer *q)
{
    return held(&q->flying) + (q->open >= 0);
}

bool pool_idle(const struct pool *p, int i)
{
    return p->peer[i].read == p->peer[i].sent && p->peer[i].open < 0;
}
bool pool_wanted(const struct pool *p, int i)
{
    return p->peer[i].want;
}
bool pool_granted(const struct pool *p, int i)
{
    return held(&p->peer[i].granted);
}

bool pool_want(struct pool *p, int i, bool want)
{
    struct pool_peer *q = &p->peer[i];
    if (want == q->want || (want && p->wanted >= p->sizes.most))
        return want == q->want;
    q->want = want;
    p->wanted += want ? 1 : -1u;
    if (!used(q))
        p->empty += want ? 1 : -1u;
    return true;
}

/* Buffers that have left are free again. */
static void reap(struct pool *p, int i)
{
    struct pool_peer *q = &p->peer[i];
    bool any = used(q);
    while (held(&q->flying) && sstar_link_done(q->link, q->ticket[q->flying.begin % p->sizes.most]))
        p->free_buffer[p->free_buffers++] = *slot_of(p, &q->flying, q->flying.begin++);
    p->empty += any && !used(q) && q->want;
}

static uint8_t *buffer_at(const struct pool *p, int index)
{
    return p->memory + (p->sizes.places + (size_t)index) * p->sizes.stride;
}

/* One buffer for each who is wanted is left to it; the others are common. */
int pool_reserve(struct pool *p, int i, uint8_t **payload)
{
    struct pool_peer *q = &p->peer[i];
    if (p->a->world->failed)
        return p->a->world->failed;
    reap(p, i);
    if (q->open < 0) {
        uint32_t kept = used(q) ? p->empty : 0;
        if (!held(&q->granted) || used(q) >= p->sizes.most || p->free_buffers <= kept)
            return -EAGAIN;
        p->empty -= !used(q) && q->want;
        q->open = p->free_buffer[--p->free_buffers];
        struct sstar_link_ledger *sent = &p->a->sent[p->peers->peer[i].rank];
        uint64_t bytes = used(q) * p->sizes.stride;
        sent->pool_peak_bytes = bytes > sent->pool_peak_bytes ? bytes : sent->pool_peak_bytes;
    }
    *payload = buffer_at(p, q->open) + sizeof(struct pool_header);
    return 0;
}

bool pool_sending(const struct pool *p)
{
    for (int i = 0; i < p->peers->n; i++) {
        const struct pool_peer *q = &p->peer[i];
        if (held(&q->flying) &&
            !sstar_link_done(q->link, q->ticket[(q->flying.end - 1) % p->sizes.most]))
            return true;
    }
    return false;
}

int pool_commit(struct pool *p, int i, uint32_t bytes)
{
    struct pool_peer *q = &p->peer[i];
    uint64_t ticket;
    uint8_t *buffer = buffer_at(p, q->open);
    uint64_t place = *slot_of(p, &q->granted, q->granted.begin);
    *(struct pool_header *)buffer = (struct pool_header){.bytes = bytes,
                                                         .magic = POOL_MAGIC,
                                                         .source = (uint16_t)p->a->rank,
                                                         .sequence = q->sent + 1};
    int err = sstar_put(q->link, p->region, buffer, &p->remote[p->peers->peer[i].rank],
                        place * p->sizes.stride, sizeof(struct pool_header) + bytes, SSTAR_SIGNAL,
                        &ticket);
    if (err)
        return err;
    q->granted.begin++;
    q->ticket[q->flying.end % p->sizes.most] = ticket;
    *slot_of(p, &q->flying, q->flying.end++) = (uint16_t)q->open;
    q->open = -1;
    q->sent++;
    return 0;
}

/* ---- receiving ----------------------------------------------------------------------------------
 */

static int broken(struct pool *p, int i, const char *what)
{
    return wire_broken(p->a, p->peers->peer[i].rank, what);
}

int pool_receive(struct pool *p, int i, struct message *m)
{
    struct pool_peer *q = &p->peer[i];
    if (p->a->world->failed)
        return p->a->world->failed;
    if ((uint32_t)sstar_signals(q->link) == q->came)
        return 0;
    if (q->next == q->told)
        return broken(p, i, "a buffer for which it had no place");
    const struct pool_header *h =
        (const void *)(p->memory + *slot_of(p, &q->given, q->next) * p->sizes.stride);
    /* It lies in another place if a note that gives this one back has not come yet. */
    if (h->magic != POOL_MAGIC || h->source != p->peers->peer[i].rank ||
        (uint32_t)h->sequence != q->came + 1)
        return 0;
    if (h->bytes > p->sizes.stride - sizeof *h)
        return broken(p, i, "a buffer that cannot be");
    q->next++;
    q->came++;
    *m = (struct message){.data = h + 1, .bytes = h->bytes, .sequence = q->came};
    return 1;
}

static void take_back(struct pool *p, struct pool_peer *q)
{
    p->free_place[p->free_places++] = *slot_of(p, &q->given, q->given.begin++);
}

void pool_release(struct pool *p, int i, uint32_t count)
{
    struct pool_peer *q = &p->peer[i];
    for (uint32_t k = 0; k < count; k++)
        take_back(p, q);
    q->came_read += count;
    q->may_hold += q->may_hold < p->sizes.most ? count : 0;
    q->read_ns = clock_ns();
}

/* How many places a peer may hold now. */
static uint32_t share(const struct pool *p, const struct pool_peer *q)
{
    if (!q->asks)
        return p->kept;
    uint32_t share = p->sizes.places / p->asking;
    share = share < q->may_hold ? share : q->may_hold;
    share = share > p->sizes.most ? p->sizes.most : share < 2 ? 2 : share;
    return share > p->kept ? share : p->kept;
}

/* Give the free places to those who may have them, each in turn. */
static void give(struct pool *p)
{
    for (int looked = 0; p->free_places && looked < p->peers->n; looked++) {
        struct pool_peer *q = &p->peer[p->turn];
        uint32_t most = share(p, q);
        while (p->free_places && held(&q->given) < most)
            *slot_of(p, &q->given, q->given.end++) = p->free_place[--p->free_places];
        if (p->free_places)
            p->turn = (p->turn + 1) % p->peers->n;
    }
}

/* ---- notes --------------------------------------------------------------------------------------
 */

/* Half of what it may hold is owed to it, or it waits for it, or has been for long. */
static bool owes(const struct pool *p, const struct pool_peer *q, uint32_t signals)
{
    uint32_t read = q->came_read - q->told_read, places = q->given.end - q->told;
    uint32_t half = (share(p, q) + 1) / 2;
    if (places && (places >= half || (q->told == q->next && signals == q->came)))
        return true;
    return read && (read >= half || clock_ns() - q->read_ns >= PROMPT_NS);
}

static bool gives_back(const struct pool *p, int i)
{
    const struct pool_peer *q = &p->peer[i];
    return !q->want && held(&q->granted) > q->kept && pool_idle(p, i);
}

static struct pool_note compose(const struct pool *p, int i)
{
    const struct pool_peer *q = &p->peer[i];
    uint32_t places = q->given.end - q->told;
    struct pool_note note = {.magic = WIRE_MAGIC,
                             .version = WIRE_VERSION,
                             .flags = q->want ? NOTE_WANT : 0,
                             .granted = (uint8_t)(places < NOTE_PLACES ? places : NOTE_PLACES),
                             .read = q->came_read,
                             .returned = gives_back(p, i) ? held(&q->granted) - q->kept : 0,
                             .kept = p->kept};
    for (uint32_t k = 0; k < note.granted; k++)
        note.place[k] = *slot_of(p, &q->given, q->told + k);
    return note;
}

/* 0, -EAGAIN, or -errno. */
static int send_note(struct pool *p, int i, const struct pool_note *note, uint64_t *ticket)
{
    struct pool_peer *q = &p->peer[i];
    struct sstar_link *link = p->peers->peer[i].link;
    void *to;
    uint64_t ignored;
    int err = link_reserve(link, sizeof *note, &to);
    if (err)
        return err;
    memcpy(to, note, sizeof *note);
    err = link_commit_ticket(link, sizeof *note, 0, ticket ? ticket : &ignored);
    if (err)
        return err;
    q->told_want = note->flags & NOTE_WANT;
    q->told += note->granted;
    q->told_read = note->read;
    q->granted.begin += note->returned;
    return 0;
}

int pool_end(struct pool *p, int i, uint64_t messages, uint64_t *ticket)
{
    struct pool_note note = compose(p, i);
    note.flags |= NOTE_END;
    note.messages = messages;
    int err = send_note(p, i, &note, ticket);
    if (!err)
        sent_account(p->a, p->peers->peer[i].rank, sizeof note + LINK_TRAILER_BYTES, 0, 0);
    return err;
}

static int take_note(struct pool *p, int i, const struct pool_note *note)
{
    struct pool_peer *q = &p->peer[i];
    if (note->magic != WIRE_MAGIC || note->version != WIRE_VERSION || note->granted > NOTE_PLACES ||
        note->kept > p->sizes.most || note->granted + held(&q->granted) > p->sizes.most ||
        note->returned > q->told - q->next || (note->returned && q->given.begin != q->next) ||
        note->read - q->read > q->sent - q->read)
        return broken(p, i, "a note that cannot be");
    for (uint32_t k = 0; k < note->granted; k++) {
        if (note->place[k] >= p->sizes.places)
            return broken(p, i, "a place that is not there");
        *slot_of(p, &q->granted, q->granted.end++) = note->place[k];
    }
    q->read = note->read;
    q->kept = note->kept;
    for (uint32_t k = 0; k < note->returned; k++, q->next++)
        take_back(p, q);
    bool asks = note->flags & NOTE_WANT;
    p->asking += (uint32_t)asks - (uint32_t)q->asks;
    if (asks && !q->asks)
        q->may_hold = FIRST_PLACES;
    q->asks = asks;
    if (note->flags & NOTE_END)
        p->peers->peer[i].expected = 1 + note->messages;
    return 0;
}

int pool_progress(struct pool *p)
{
    int came = sstar_links_progress(p->links);
    for (int i = 0; came >= 0 && i < p->peers->n; i++) {
        struct pool_peer *q = &p->peer[i];
        struct sstar_link *link = p->peers->peer[i].link;
        uint32_t signals = (uint32_t)sstar_signals(q->link);
        struct message m;
        int got;
        if (held(&q->flying))
            reap(p, i);
        while ((got = link_receive(link, &m)) > 0) {
            int err = m.bytes == sizeof(struct pool_note) ? take_note(p, i, m.data)
                                                          : broken(p, i, "no note");
            link_release(link, 1);
            if (err)
                return err;
            came++;
        }
        if (got < 0)
            return got;
        if (q->want == q->told_want && !gives_back(p, i) && !owes(p, q, signals))
            continue;
        struct pool_note note = compose(p, i);
        int err = send_note(p, i, &note, NULL);
        if (err && err != -EAGAIN)
            return err;
    }
    give(p);
    return came;
}
