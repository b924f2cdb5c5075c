/* SPDX-License-Identifier: MIT */
/* The aggregating all-to-all: what is common to all strategies. */
#include "collectives/ledger.h"
#include "collectives/strategy.h"
#include "transport/control.h"
#include "transport/turn.h"
#include <sched.h>

enum {
    LITTLE_MOVED = 32,          /* pushes and pulls between two advances */
    BYTES_PER_YIELD = 24 << 10, /* pushed and pulled */
    CALLS_PER_LANE = 8,
    LOOKS_PER_WAIT = 64,
    LOOKS_FOR_ARRIVAL = 16,
    TURN_ITEMS = 64, /* from inside the node, before other nodes have their turn, and back */
};

static int refuse(struct sstar_world *world, const char *what)
{
    return report_set(&world->report, -EINVAL, "rank %d: aggregator: %s", sstar_rank(world), what);
}

int sstar_aggregator_reset(struct sstar_aggregator *a)
{
    WORLD_TURN(a->world);
    if (a->world->failed)
        return a->world->failed;
    if (!a->finished)
        return refuse(a->world, "reset before advance said that all are done");
    int err = sstar_fast_barrier(a->world);
    if (err)
        return err;
    local_reset(a);
    if (a->nodes > 1 && (err = a->strategy->reset(a)))
        return err;
    uint64_t memory_bytes = a->ledger.memory_bytes, bound_bytes = a->ledger.pool_bound_bytes;
    ledger_reset(&a->ledger, a->ledger.past[SSTAR_PAST_S_STAR].bytes,
                 a->ledger.past[SSTAR_PAST_S_STAR_RATE].bytes);
    a->ledger.memory_bytes = memory_bytes;
    a->ledger.pool_bound_bytes = bound_bytes;
    memset(a->sent, 0, (size_t)a->size * sizeof *a->sent);
    memset(a->refused_since_ns, 0, (size_t)a->size * sizeof *a->refused_since_ns);
    a->refusing = 0;
    a->done = a->finished = false;
    a->front.ranks = (uint32_t)a->size;
    a->moved = 0;
    wait_progress(&a->waiter);
    return sstar_fast_barrier(a->world);
}

/* ---- messages -----------------------------------------------------------------------------------
 */

/* Let out what was pushed, and look at the wire. Number of things moved, or -errno. */
static int look(struct sstar_aggregator *a)
{
    local_publish(a);
    if (a->nodes == 1)
        return 0;
    uint64_t begun = clock_ns();
    int moved = a->strategy->progress(a);
    int sent = moved < 0 ? 0 : a->strategy->flush(a);
    a->ledger.moving_ns += clock_ns() - begun;
    return moved < 0 ? moved : sent < 0 ? sent : moved + sent;
}

static int look_sometimes(struct sstar_aggregator *a, uint32_t weight)
{
    if ((a->calls += weight) < CALLS_PER_PROGRESS)
        return 0;
    a->calls = 0;
    int moved = look(a);
    if (moved > 0)
        a->moved++;
    return moved < 0 ? moved : 0;
}

static int refuse_push(struct sstar_aggregator *a, int to, uint32_t bytes)
{
    if (a->world->failed)
        return a->world->failed;
    if (a->done)
        return refuse(a->world, "push after advance was told that this rank is done");
    if (to < 0 || to >= a->size)
        return report_set(&a->world->report, -EINVAL, "aggregator: there is no rank %d (0 to %d)",
                          to, a->size - 1);
    if (a->item_bytes)
        return report_set(&a->world->report, -EMSGSIZE,
                          "aggregator: a message of %u bytes, opened for messages of %u", bytes,
                          a->item_bytes);
    return report_set(&a->world->report, -EMSGSIZE,
                      "aggregator: a message of %u bytes, opened for at most %u", bytes,
                      a->max_item_bytes);
}

/* Let the strategy, or the node's memory, have a message; one of some is timed. */
static int hand_over(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    bool cross = a->node_of[to] != a->node, timed = !(a->sampled.pushes++ % PUSHES_PER_SAMPLE);
    uint64_t begun = timed ? clock_ns() : 0;
    int err = cross ? a->strategy->push(a, to, data, bytes) : local_push(a, to, data, bytes);
    if (!timed && err != -EAGAIN && !a->refusing)
        return err;
    uint64_t now = clock_ns();
    int link = cross && a->strategy->link_to ? a->strategy->link_to(a, to) : to;
    struct sstar_link_ledger *sent = &a->sent[link];
    if (timed && now - begun < PUSHES_PER_SAMPLE * INTERRUPTED_NS) {
        uint64_t took = now - begun, copying = copying_ns(a, 1);
        took = PUSHES_PER_SAMPLE * (took > copying ? took - copying : 0);
        a->ledger.pushing_ns += took;
        sent->pushing_ns += took;
    }
    uint64_t *since = &a->refused_since_ns[link];
    if (err == -EAGAIN && !*since) {
        *since = now;
        a->refusing++;
    } else if (err != -EAGAIN && *since) {
        sent->refused_ns += now - *since;
        *since = 0;
        a->refusing--;
    }
    return err;
}

int sstar_push_slow(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    WORLD_TURN(a->world);
    if (a->world->failed || a->done || (unsigned)to >= (unsigned)a->size ||
        bytes > a->max_item_bytes || (a->item_bytes && bytes != a->item_bytes))
        return refuse_push(a, to, bytes);
    int err = hand_over(a, to, data, bytes);
    if (err) {
        a->ledger.full += err == -EAGAIN;
        return err;
    }
    a->moved++;
    /* A lane is full now and then; without one every message comes here. */
    return look_sometimes(a, a->lanes[to] == &a->shut ? 1 : CALLS_PER_LANE);
}

static int pull_from(struct sstar_aggregator *a, bool remote, struct sstar_item *item)
{
    if (!remote)
        return local_pull(a, item);
    return a->nodes > 1 ? a->strategy->pull(a, item) : 0;
}

/* The next item, from inside the node and from other nodes in turns, and those behind it in the
 * window. 1, 0 or -errno. */
static int next_item(struct sstar_aggregator *a, struct sstar_item *item)
{
    if (a->turn >= TURN_ITEMS) {
        a->turn = 0;
        a->remote_first = !a->remote_first;
    }
    int got = pull_from(a, a->remote_first, item);
    if (!got) {
        a->turn = 0;
        a->remote_first = !a->remote_first;
        got = pull_from(a, a->remote_first, item);
    }
    if (got <= 0)
        return got;
    const struct sstar_window *w = &a->front.window;
    uint32_t bytes = (uint32_t)(w->end - w->at), more = bytes ? bytes / w->stride : 0;
    a->turn += 1 + more;
    a->moved += 1 + more;
    a->moved_bytes += item->bytes + more * w->bytes;
    return 1;
}

int sstar_pull_slow(struct sstar_aggregator *a, struct sstar_item *item)
{
    WORLD_TURN(a->world);
    if (a->world->failed)
        return a->world->failed;
    int got = look_sometimes(a, 1);
    if (got || (got = next_item(a, item)) <= 0)
        return got;
    if (!window_is_empty(a))
        a->calls += CALLS_PER_LANE - 1;
    return 1;
}

/* Give an item back: it is pulled next. */
static void put_back(struct sstar_aggregator *a, const struct sstar_item *item)
{
    struct sstar_window *w = &a->front.window;
    if (w->at != w->end)
        w->at -= w->stride;
    else
        *w = (struct sstar_window){.at = item->data,
                                   .end = (const unsigned char *)item->data + 1,
                                   .bytes = item->bytes,
                                   .stride = 1,
                                   .source = item->source};
}

/* Send the rest and the ends of our streams. Is all sent, and all pulled that was to come? 1, 0 or
 * -errno. */
static int is_finished(struct sstar_aggregator *a)
{
    local_finish(a);
    int left = a->nodes > 1 ? a->strategy->finish(a) : 0;
    if (left < 0)
        return left;
    return !left && window_is_empty(a) && local_drained(a);
}

/* The end of a stream stands behind its last item, and only who pulls comes to it: for a caller
 * that expects nothing, and does not pull. An item that is found so is kept. 0 or -errno. */
static int look_for_ends(struct sstar_aggregator *a)
{
    struct sstar_item item;
    int got = window_is_empty(a) ? next_item(a, &item) : 0;
    if (got > 0)
        put_back(a, &item);
    return got < 0 ? got : 0;
}

/* This rank is done. The ends leave before the look, so that an answer that is there already is
 * seen by it, and where something has moved the caller is sent to pull first. As advance_step. */
static int finish_step(struct sstar_aggregator *a)
{
    int finished = is_finished(a), moved;
    if (!finished && (moved = look(a)) != 0) {
        a->moved += moved > 0 ? (uint32_t)moved : 0;
        return moved < 0 ? moved : 1;
    }
    if (!finished && !a->moved) {
        int err = look_for_ends(a);
        finished = err ? err : is_finished(a);
    }
    a->finished = finished > 0;
    return finished < 0 ? finished : !finished;
}

/* A rank that has not said that it is done, -1 if all have. */
static int missing(struct sstar_aggregator *a)
{
    int local = local_missing(a);
    if (local >= 0)
        return rank_at(a, a->node, local);
    return a->nodes > 1 ? a->strategy->missing(a) : -1;
}

/* The other ranks of this core hold the other ends, so they have their turn: at once when there is
 * little to do here, else now and then, because each change of turns costs some microseconds. */
static void give_way(const struct sstar_world *world, uint32_t moved, uint64_t *moved_bytes)
{
    if (!world_crowded(world))
        return;
    if (moved >= LITTLE_MOVED && *moved_bytes < BYTES_PER_YIELD)
        return;
    *moved_bytes = 0;
    sched_yield();
}

/* Where a rank has a core to itself and arrivals show as completions, the next one is seen soonest
 * by looking for that alone. Number of things moved, or -errno. */
static int look_for_arrival(struct sstar_aggregator *a)
{
    int moved = 0;
    if (a->nodes == 1 || !a->arrives_by_completion || world_crowded(a->world))
        return 0;
    for (int i = 0; i < LOOKS_FOR_ARRIVAL && !moved; i++)
        moved = a->strategy->progress(a);
    return moved;
}

/* Nothing moves. While something of ours is on its way we look often and do not sleep, because
 * there are devices that move on only when polled. */
static int wait(struct sstar_aggregator *a, bool sending)
{
    int moved = look_for_arrival(a);
    if (moved) {
        a->moved += moved > 0 ? (uint32_t)moved : 0;
        return moved < 0 ? moved : 1;
    }
    if (++a->idle % LOOKS_PER_WAIT && sending) {
        sched_yield();
        return 1;
    }
    /* For the sentence, should this take long: whose stream has not ended. */
    if (a->done)
        a->waiter.peer = missing(a);
    int err = wait_step(&a->waiter);
    return err < 0 ? err : 1;
}

int advance_step(struct sstar_aggregator *a, bool done)
{
    if (a->world->failed)
        return a->world->failed;
    if (a->finished)
        return 0;
    if (done) {
        a->done = true;
        a->front.ranks = 0; /* what comes now is refused */
    }
    a->calls = 0;
    if (a->done)
        return finish_step(a);
    int moved = look(a);
    a->moved += moved > 0 ? (uint32_t)moved : 0;
    return moved < 0 ? moved : 1;
}

static bool is_sending(struct sstar_aggregator *a)
{
    return a->nodes > 1 && a->strategy->sending(a);
}

int advance_rest(struct sstar_aggregator *a, struct sstar_aggregator *with)
{
    uint32_t moved = a->moved + (with ? with->moved : 0);
    if (!moved) {
        uint64_t begun = clock_ns();
        int err = wait(a, is_sending(a) || (with && is_sending(with)));
        a->ledger.waiting_ns += clock_ns() - begun;
        return err;
    }
    if (with) {
        a->moved_bytes += with->moved_bytes;
        with->moved = 0;
        with->moved_bytes = 0;
    }
    a->moved = 0;
    give_way(a->world, moved, &a->moved_bytes);
    wait_progress(&a->waiter);
    return 1;
}

int sstar_advance(struct sstar_aggregator *a, bool done)
{
    WORLD_TURN(a->world);
    if (control_is_inherited(a->world))
        return control_check_owner(a->world);
    int left = advance_step(a, done);
    return left == 1 ? advance_rest(a, NULL) : left;
}

void sstar_aggregator_ledger(const struct sstar_aggregator *a, struct sstar_ledger *out)
{
    *out = a->ledger;
}

void sstar_aggregator_links(const struct sstar_aggregator *a, struct sstar_link_ledger *links)
{
    memcpy(links, a->sent, (size_t)a->size * sizeof *links);
}
