/* SPDX-License-Identifier: MIT */
/* The notes by which members of the common pool give each other places: see aggregator_pool.h. */
#include "collectives/aggregator_pool_inside.h"

enum { PROMPT_NS = 2000 * 1000 }; /* when nothing more was read, what was is told by then */
enum { NOTE_WANT = 1, NOTE_END = 2 };

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
        return pool_broken(p, i, "a note that cannot be");
    for (uint32_t k = 0; k < note->granted; k++) {
        if (note->place[k] >= p->sizes.places)
            return pool_broken(p, i, "a place that is not there");
        *slot_of(p, &q->granted, q->granted.end++) = note->place[k];
    }
    q->read = note->read;
    q->kept = note->kept;
    for (uint32_t k = 0; k < note->returned; k++, q->next++)
        pool_take_back(p, q);
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
            pool_reap(p, i);
        while ((got = link_receive(link, &m)) > 0) {
            int err = m.bytes == sizeof(struct pool_note) ? take_note(p, i, m.data)
                                                          : pool_broken(p, i, "no note");
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
