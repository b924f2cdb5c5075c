/* SPDX-License-Identifier: MIT */
/*
 * The aggregator inside, and the table that a strategy is. Private.
 *
 * Messages to ranks of the same node, oneself included, go through rings in node-local memory
 * whatever the strategy (aggregator_local.c). A strategy carries those to other nodes.
 */
#ifndef SSTAR_COLLECTIVES_STRATEGY_H
#define SSTAR_COLLECTIVES_STRATEGY_H

#include "collectives/aggregator_ring.h"
#include "collectives/collectives.h"
#include "collectives/ledger.h"
#include "collectives/schedule.h"
#include "transport/link.h"
#include "transport/wait.h"
#include "transport/world.h"

struct strategy {
    const char *name;
    /* Bytes of node-local memory that rank `local` of this node must give, for all of its node; may
     * be NULL: none. */
    size_t (*shared_bytes)(const struct sstar_aggregator *a, int local);
    /* Fills a->state; a->shared[] is there. Collective. */
    int (*open)(struct sstar_aggregator *a);
    /* Bytes of all links that this rank would open; from the shape alone, there may be no world. */
    uint64_t (*link_bytes)(const struct sstar_aggregator *a);
    /* A message for a rank of another node whose lane has no room for it: 0, -EAGAIN (nothing was
     * done), or an error. What is put into a lane behind our back is as good as pushed. */
    int (*push)(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes);
    /* Send what has waited too long and what was built but not rung. Called by progress's callers
     * every few messages, so cheap when there is nothing to do. Number of things moved, or -errno.
     */
    int (*flush)(struct sstar_aggregator *a);
    /* Move arrivals and departures on. Number of things moved, or -errno. */
    int (*progress)(struct sstar_aggregator *a);
    /* The next message that came from another node: 1, 0, or -errno. The item given before it may
     * be overwritten from here on. More that lie behind it in a row may be left in the aggregator's
     * window, by window_open. */
    int (*pull)(struct sstar_aggregator *a, struct sstar_item *item);
    /* This rank pushes no more: send the rest and the ends of the streams. 1: call again; 0: all
     * that we sent is complete here and all that we were to receive was pulled; -errno. */
    int (*finish)(struct sstar_aggregator *a);
    /* Something that we sent is not complete on our side. */
    bool (*sending)(struct sstar_aggregator *a);
    /* A rank whose stream to us has not ended, -1: all have. */
    int (*missing)(struct sstar_aggregator *a);
    /* The rank at the other end of the link that a message for `to` takes from here. NULL: `to`. */
    int (*link_to)(const struct sstar_aggregator *a, int to);
    /* What was pushed for a rank must not wait for more. May be NULL. */
    void (*urge)(struct sstar_aggregator *a, int to);
    /* Between two barriers, after all have finished. */
    int (*reset)(struct sstar_aggregator *a);
    /* Accepts what is half open. Collective unless the world failed. */
    void (*close)(struct sstar_aggregator *a);
};
extern const struct strategy strategy_none, strategy_rank, strategy_node, strategy_mesh,
    strategy_adaptive;

/* What we map of a rank of our node. */
struct segment {
    uint8_t *memory; /* as we see it */
    size_t size;
};

struct local; /* aggregator_local.c */

/* What copying a message takes: of those copies that were timed. */
struct sampled {
    uint32_t pushes, copies; /* all, to time some */
    uint64_t clock_ns;       /* what looking at the clock takes */
    uint64_t timed, timed_ns;
};

struct sstar_aggregator {
    struct sstar_aggregator_front front; /* first: what sstar_push looks at */
    struct sstar_lane **lanes;           /* [size]: where messages for a rank are put */
    struct sstar_lane shut;              /* one that never has room */
    struct sstar_world *world;           /* NULL: only the shape is wanted */
    const struct strategy *strategy;
    void *state; /* the strategy's */
    struct local *local;
    int rank, size, node, nodes, local_rank, local_size;
    struct node_map map;
    const int *node_of, *local_of; /* [size], of the map */
    uint32_t item_bytes, max_item_bytes, flush_bytes, queue_pairs, hops;
    const struct flush_rule *flush;
    struct sstar_cost cost; /* of the wire; 0: not known */
    uint64_t ring_size;     /* of data, for every ring in node-local memory */
    uint64_t max_age_ns;    /* UINT64_MAX: no bound */
    struct segment *shared; /* [local_size] */
    void *own_memory;       /* ours of these, as sstar_alloc gave it */
    size_t strategy_offset; /* where the strategy's part of each begins */
    struct sstar_ledger ledger;
    struct sstar_link_ledger *sent; /* [size] */
    struct sampled sampled;
    uint64_t *refused_since_ns; /* [size], by link; 0: the last push found room */
    uint32_t refusing;          /* links whose last push did not */
    bool opened;
    bool arrives_by_completion; /* what comes from other nodes */
    bool sees_off;        /* the wire is one that we shaped and moves only while we post or poll: we
                             stay until what we sent has left */
    bool done, finished;  /* the caller said so; advance returned 0 */
    bool remote_first;    /* whose turn it is in pull */
    uint32_t turn;        /* items pulled in this turn */
    uint32_t calls;       /* pushes and pulls, to look at the wire every few of them */
    uint64_t moved_bytes; /* since this rank last gave way to others */
    uint32_t idle;        /* advances that found nothing to do */
    uint32_t moved;       /* pushes and pulls since the last advance */
    struct waiter waiter;
};

/* How often pushes and pulls look at the wire. */
enum { CALLS_PER_PROGRESS = 32 };
/* How often they are timed, and what cannot be a copy alone. */
enum { PUSHES_PER_SAMPLE = 8, COPIES_PER_SAMPLE = 16, INTERRUPTED_NS = 5000 };

static inline uint8_t *strategy_memory(const struct sstar_aggregator *a, int local)
{
    return a->shared[local].memory + a->strategy_offset;
}

static inline uint64_t align_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}
static inline uint64_t power_of_two(uint64_t at_least)
{
    uint64_t p = 1;
    while (p < at_least)
        p *= 2;
    return p;
}

static inline int local_size_of(const struct sstar_aggregator *a, int node)
{
    return node_map_local_size(&a->map, node);
}
static inline int rank_at(const struct sstar_aggregator *a, int node, int local)
{
    return a->map.members[a->map.first[node] + local];
}

/* An aggregator for messages inside nodes only: nothing may be pushed for another node.
 * attr->flush_bytes must be given. Collective. */
int aggregator_open_inside(struct sstar_world *world, const struct sstar_aggregator_attr *attr,
                           struct sstar_aggregator **aggregator);

/* ---- lanes --------------------------------------------------------------------------------------
 */

/* A wire message to rank `to` of another node has left. */
static inline void sent_account(struct sstar_aggregator *a, int to, uint64_t wire_bytes,
                                uint64_t messages, uint64_t message_bytes)
{
    struct sstar_link_ledger *sent = &a->sent[to];
    double s_star = a->ledger.past[SSTAR_PAST_S_STAR].bytes;
    ledger_wire(&a->ledger, wire_bytes, messages, message_bytes);
    sent->wire_messages++;
    sent->wire_bytes += wire_bytes;
    sent->messages += messages;
    sent->message_bytes += message_bytes;
    if (s_star > 0 && (double)wire_bytes >= s_star)
        sent->past_bytes += message_bytes;
}

/* A message into a lane that has room, timed now and then. */
static inline void lane_put(struct sstar_aggregator *a, struct sstar_lane *lane, uint32_t source,
                            uint32_t destination, const void *data, uint32_t bytes)
{
    struct sampled *s = &a->sampled;
    if (s->copies++ % COPIES_PER_SAMPLE) {
        sstar_lane_put(lane, source, destination, data, bytes);
        return;
    }
    uint64_t begun = clock_ns();
    sstar_lane_put(lane, source, destination, data, bytes);
    uint64_t took = clock_ns() - begun;
    if (took > INTERRUPTED_NS + bytes)
        return;
    s->timed_ns += took > s->clock_ns ? took - s->clock_ns : 0;
    s->timed++;
}

/* What the copies of so many messages take, as far as was timed. */
static inline uint64_t copying_ns(const struct sstar_aggregator *a, uint64_t messages)
{
    return a->sampled.timed ? messages * a->sampled.timed_ns / a->sampled.timed : 0;
}

/* So many messages were copied for the link to a rank. */
static inline void copy_account(struct sstar_aggregator *a, int link, uint64_t messages)
{
    uint64_t ns = copying_ns(a, messages);
    a->ledger.copying_ns += ns;
    a->sent[link].copying_ns += ns;
}

/* Messages that were put there, for the link to a rank, are from here on the ledger's. */
static inline void lane_account(struct sstar_aggregator *a, struct sstar_lane *lane, int link,
                                bool cross)
{
    copy_account(a, link, lane->count);
    a->ledger.messages += lane->count;
    if (lane->count)
        a->ledger.message_class[ledger_class(lane->bytes / lane->count, LEDGER_WIRE_CLASSES)] +=
            lane->count;
    a->ledger.message_bytes += lane->bytes;
    a->ledger.copied_bytes += lane->bytes;
    if (cross) {
        a->ledger.cross_messages += lane->count;
        a->ledger.cross_bytes += lane->bytes;
    }
    a->moved += lane->count;
    a->moved_bytes += lane->bytes;
    lane->count = lane->bytes = 0;
}

/* ---- windows ------------------------------------------------------------------------------------
 */

enum { WINDOW_BYTES = 4096 }; /* at most: then there is a look at the wire */

/* `n` items lie in a row: the first is *item, the others are pulled by themselves. */
static inline void window_open(struct sstar_aggregator *a, const struct item_format *f,
                               const uint8_t *first, uint64_t n, int source,
                               struct sstar_item *item)
{
    struct sstar_window *w = &a->front.window;
    *w = (struct sstar_window){.at = first,
                               .end = first + n * f->stride,
                               .header_bytes = f->header,
                               .bytes = f->fixed,
                               .stride = f->stride,
                               .source = source};
    sstar_window_take(w, item);
}
static inline bool window_is_empty(const struct sstar_aggregator *a)
{
    return a->front.window.at == a->front.window.end;
}

/* ---- when to send: flush.c ----------------------------------------------------------------------
 */

/* What is held for one link, and what that link did last. */
struct flush_view {
    uint64_t fill_bytes;
    uint64_t age_ns;       /* of the first message */
    uint64_t since_ns;     /* since the last wire message */
    uint64_t before_bytes; /* of that */
};
struct flush_rule {
    const char *name;
    bool needs_clock; /* else only asked with fill_bytes */
    /* Whether to send before the buffer is full; the age bound holds besides. */
    bool (*due)(const struct sstar_aggregator *a, const struct flush_view *view);
};
extern const struct flush_rule *const flush_rules[SSTAR_FLUSH_RULES];
/* The rule, or the age bound, or there are flush_bytes. */
bool flush_due(const struct sstar_aggregator *a, const struct flush_view *view);
static inline bool flush_needs_clock(const struct sstar_aggregator *a)
{
    return a->flush->needs_clock || a->max_age_ns != UINT64_MAX;
}

/* ---- aggregator.c: sstar_advance in two parts ---------------------------------------------------
 */

/* All but waiting: 1, 0 or -errno, as sstar_advance. */
int advance_step(struct sstar_aggregator *a, bool done);
/* After a 1: give way to other ranks if something moved, here or in `with` (which may be NULL),
 * else wait a little. 1 or -errno. */
int advance_rest(struct sstar_aggregator *a, struct sstar_aggregator *with);

/* ---- aggregator_local.c: messages inside the node ----------------------------------------------
 */

size_t local_shared_bytes(const struct sstar_aggregator *a);
int local_open(struct sstar_aggregator *a);
void local_close(struct sstar_aggregator *a);
int local_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes);
/* Let the others see what was pushed. */
void local_publish(struct sstar_aggregator *a);
int local_pull(struct sstar_aggregator *a, struct sstar_item *item);
/* Say that no more comes from us. */
void local_finish(struct sstar_aggregator *a);
bool local_drained(struct sstar_aggregator *a);
int local_missing(struct sstar_aggregator *a); /* local rank that has not ended, -1: all have */
void local_reset(struct sstar_aggregator *a);

/* ---- aggregator_peers.c: a link to each of some ranks -------------------------------------------
 */

struct peer {
    struct sstar_link *link;
    int rank;
    uint64_t sent;     /* messages */
    uint64_t received; /* messages handed out */
    uint64_t expected; /* 1 + messages that the peer sent, once it has said so */
    uint32_t taken;    /* wire messages received and not yet released */
    uint64_t ticket;   /* of the last wire message; 0: it need not be waited for */
    bool last_sent;    /* the end of our stream has been sent */
    uint64_t opened_ns;
    uint32_t count; /* of `none`: messages that are built and not rung */
};
struct peers {
    struct sstar_links *links;
    struct peer *peer; /* [n] */
    int *index_of;     /* [size], -1: not a peer */
    int n;
    int turn; /* whose messages are being handed out */
    int open; /* how many have a buffer open or messages not rung */
};
/* All ranks of other nodes: how many, and which, if `ranks` is not NULL. */
int peers_remote(const struct sstar_aggregator *a, int *ranks);
/* Links to n ranks, with slots for wire messages of slot_bytes: as many as the budget allows, of
 * which there is one for each link and one for all together. */
int peers_open(struct sstar_aggregator *a, const int *ranks, int n,
               const struct sstar_link_attr *attr, struct peers **peers);
struct sstar_link_attr peers_attr(const struct sstar_aggregator *a, int n, uint32_t slot_bytes,
                                  uint32_t slots_most, uint64_t budget_bytes);
void peers_close(struct peers *peers);
void peers_reset(struct peers *peers);
int peers_missing(const struct peers *peers);
bool peers_sending(const struct peers *peers);
/* All that the peers sent was handed out, and what we sent is complete on our side. */
bool peers_drained(const struct peers *peers);
bool peers_sent(const struct peers *peers);
/* Something that cannot be: say what and from whom. Returns the code. */
int wire_broken(struct sstar_aggregator *a, int from, const char *what);

#endif
