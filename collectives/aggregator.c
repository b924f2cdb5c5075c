/* SPDX-License-Identifier: MIT */
/* The aggregating all-to-all: what is common to all strategies. */
#include "collectives/ledger.h"
#include "collectives/strategy.h"
#include "transport/memory.h"
#include <sched.h>
#include <stdlib.h>

static const struct strategy *const strategies[] = {
    [SSTAR_NONE] = &strategy_none,
    [SSTAR_PER_RANK] = &strategy_rank,
    [SSTAR_PER_NODE] = &strategy_node,
};

enum {
    FLUSH_BYTES_LEAST = 64,
    FLUSH_BYTES_MOST = 64 << 20,
    RING_BYTES_LEAST = 64 << 10,
    RING_BYTES_WISHED = 1 << 20,
    LITTLE_MOVED = 32,          /* pushes and pulls between two advances */
    BYTES_PER_YIELD = 24 << 10, /* pushed and pulled */
    LOOKS_PER_WAIT = 64,
    TURN_ITEMS = 64, /* from inside the node, before other nodes have their turn, and back */
};

/* What the ranks tell each other at open; all but the address must be alike. */
struct introduction {
    uint32_t magic, version, strategy, max_item_bytes, flush_bytes;
    int32_t status; /* 0, or why this rank cannot */
    uint64_t ring_size, max_age_ns;
    uint64_t address, size; /* of its memory */
};

/* ---- opening ------------------------------------------------------------------------------------
 */

static int map_ranks(struct sstar_aggregator *a)
{
    struct sstar_world *w = a->world;
    a->rank = sstar_rank(w);
    a->size = sstar_size(w);
    a->nodes = sstar_node_count(w);
    a->node = sstar_node_of(w, a->rank);
    a->local_rank = sstar_local_rank_of(w, a->rank);
    a->local_size = sstar_local_size_of(w, a->node);
    a->node_of = calloc((size_t)a->size, sizeof *a->node_of);
    a->local_of = calloc((size_t)a->size, sizeof *a->local_of);
    a->shared = calloc((size_t)a->local_size, sizeof *a->shared);
    if (!a->node_of || !a->local_of || !a->shared)
        return -ENOMEM;
    for (int r = 0; r < a->size; r++) {
        a->node_of[r] = sstar_node_of(w, r);
        a->local_of[r] = sstar_local_rank_of(w, r);
    }
    return 0;
}

/* The byte threshold, and S* for the ledger: from the imposed wire, or measured if the threshold
 * is to be chosen. */
static int choose_flush(struct sstar_aggregator *a, const struct sstar_aggregator_attr *attr)
{
    const struct sstar_wire *wire = &a->world->config.wire;
    struct sstar_cost cost = {
        .alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps};
    if (attr->flush_bytes == 0 && cost.beta_gbps <= 0 && a->nodes > 1) {
        int err = sstar_measure_cost(a->world, &cost);
        if (err)
            return err;
    }
    double s_star = sstar_s_star_bytes(&cost), s_star_rate = sstar_s_star_rate_bytes(&cost);
    double flush = attr->flush_bytes ? attr->flush_bytes : s_star > 0 ? 4 * s_star : 64 << 10;
    flush = flush < FLUSH_BYTES_LEAST ? FLUSH_BYTES_LEAST : flush;
    a->flush_bytes = flush > FLUSH_BYTES_MOST ? FLUSH_BYTES_MOST : (uint32_t)flush;
    ledger_reset(&a->ledger, attr->s_star_bytes > 0 ? attr->s_star_bytes : s_star,
                 attr->s_star_rate_bytes > 0 ? attr->s_star_rate_bytes : s_star_rate);
    return 0;
}

/* A ring holds what reaches the threshold, so that one writer alone can, and more if that is cheap,
 * so that the wire has work while its gateway does not run. */
static void choose_ring(struct sstar_aggregator *a, const struct sstar_aggregator_attr *attr)
{
    uint64_t item = item_room(a->max_item_bytes), least = 2 * item;
    least = least < 8 * RING_STAMPS ? 8 * RING_STAMPS : least;
    if (attr->buffer_bytes) {
        a->ring_size = power_of_two(attr->buffer_bytes > least ? attr->buffer_bytes : least);
        return;
    }
    uint64_t size = least < RING_BYTES_WISHED ? 2 * least : least, wished = RING_BYTES_LEAST;
    if (attr->strategy == SSTAR_PER_NODE) {
        size = a->flush_bytes + least > size ? a->flush_bytes + least : size;
        wished =
            4ull * a->flush_bytes < RING_BYTES_WISHED ? 4ull * a->flush_bytes : RING_BYTES_WISHED;
    }
    size = size < RING_BYTES_LEAST ? RING_BYTES_LEAST : size;
    a->ring_size = power_of_two(size > wished ? size : wished);
}

static int refuse(struct sstar_world *world, const char *what)
{
    return report_set(&world->report, -EINVAL, "rank %d: aggregator: %s", sstar_rank(world), what);
}

static int check(struct sstar_world *world, const struct sstar_aggregator_attr *attr)
{
    if ((unsigned)attr->strategy > SSTAR_PER_NODE)
        return refuse(world, "there is no such strategy");
    if (attr->max_item_bytes == 0 || attr->max_item_bytes > ITEM_MAX_BYTES)
        return refuse(world, "max_item_bytes must lie between 1 and 1 GiB");
    if (sstar_size(world) > UINT16_MAX)
        return refuse(world, "more than 65535 ranks are not supported");
    if (!(attr->max_age_us >= 0) || attr->max_age_us > 1e12)
        return refuse(world, "max_age_us must not be negative");
    return 0;
}

static size_t memory_bytes(const struct sstar_aggregator *a, int local)
{
    bool remote = a->nodes > 1 && a->strategy->shared_bytes;
    return a->strategy_offset + (remote ? a->strategy->shared_bytes(a, local) : 0);
}

/* Our own memory, and the others' of the node. Collective: all learn when one cannot. */
static int share_memory(struct sstar_aggregator *a, const struct sstar_aggregator_attr *attr)
{
    a->strategy_offset = align_up(local_shared_bytes(a), 64);
    size_t bytes = memory_bytes(a, a->local_rank);
    struct introduction *all = calloc((size_t)a->size, sizeof *all);
    struct introduction mine = {SEGMENT_MAGIC,
                                WIRE_VERSION,
                                attr->strategy,
                                a->max_item_bytes,
                                a->flush_bytes,
                                0,
                                a->ring_size,
                                a->max_age_ns,
                                0,
                                bytes};
    mine.status = all ? sstar_alloc(a->world, bytes, &a->own_memory) : -ENOMEM;
    mine.address = (uint64_t)(uintptr_t)a->own_memory;
    if (!all)
        return world_fail(a->world, -ENOMEM, "rank %d: aggregator: out of memory", a->rank);
    int err = sstar_allgather(a->world, &mine, sizeof mine, all);
    for (int r = 0; !err && r < a->size; r++) {
        if (all[r].status)
            err = r == a->rank ? mine.status
                               : report_set(&a->world->report, all[r].status,
                                            "aggregator: rank %d could not get its memory", r);
        else if (memcmp(&all[r], &mine, offsetof(struct introduction, status)) ||
                 all[r].ring_size != mine.ring_size || all[r].max_age_ns != mine.max_age_ns)
            err = report_set(&a->world->report, -EINVAL,
                             "aggregator: rank %d and rank %d opened it with other attributes or "
                             "another version",
                             a->rank, r);
    }
    for (int i = 0; !err && i < a->local_size; i++) {
        int r = sstar_rank_at(a->world, a->node, i);
        a->shared[i].size = all[r].size;
        a->shared[i].memory =
            r == a->rank ? a->own_memory : memory_peer(a->world, r, all[r].address, all[r].size);
        if (!a->shared[i].memory) {
            control_await_news(a->world);
            err = world_fail(a->world, -EFAULT,
                             "aggregator: rank %d cannot map the memory of rank %d", a->rank, r);
        }
    }
    free(all);
    return err;
}

int sstar_aggregator_open(struct sstar_world *world, const struct sstar_aggregator_attr *attr,
                          struct sstar_aggregator **aggregator)
{
    int err = world->failed ? world->failed : check(world, attr);
    if (err)
        return err;
    struct sstar_aggregator *a = calloc(1, sizeof *a);
    if (!a)
        return -ENOMEM;
    a->world = world;
    a->strategy = strategies[attr->strategy];
    a->max_item_bytes = attr->max_item_bytes;
    a->queue_pairs = attr->queue_pairs;
    a->max_age_ns = attr->max_age_us > 0 ? (uint64_t)(attr->max_age_us * 1e3) : UINT64_MAX;
    a->waiter = wait_begin(world, "all-to-all messages", -1, 0);
    if ((err = map_ranks(a)) || (err = choose_flush(a, attr)))
        goto close;
    choose_ring(a, attr);
    if ((err = share_memory(a, attr)) || (err = local_open(a)))
        goto close;
    if (a->nodes > 1 && (err = a->strategy->open(a)))
        goto close;
    if ((err = sstar_barrier(world)))
        goto close;
    a->opened = true;
    *aggregator = a;
    return 0;
close:
    sstar_aggregator_close(a);
    return err;
}

void sstar_aggregator_close(struct sstar_aggregator *a)
{
    if (!a)
        return;
    /* Nobody may free what another still reads. */
    if (!a->world->failed && a->opened)
        sstar_barrier(a->world);
    if (a->state)
        a->strategy->close(a);
    local_close(a);
    if (a->own_memory)
        sstar_free(a->world, a->own_memory);
    free(a->shared);
    free(a->node_of);
    free(a->local_of);
    free(a);
}

int sstar_aggregator_reset(struct sstar_aggregator *a)
{
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
    ledger_reset(&a->ledger, a->ledger.past[SSTAR_PAST_S_STAR].bytes,
                 a->ledger.past[SSTAR_PAST_S_STAR_RATE].bytes);
    a->done = a->finished = false;
    a->moved = 0;
    wait_progress(&a->waiter);
    return sstar_fast_barrier(a->world);
}

/* ---- messages -----------------------------------------------------------------------------------
 */

/* Look at the wire. Number of things moved, or -errno. */
static int look(struct sstar_aggregator *a)
{
    if (a->nodes == 1)
        return 0;
    int moved = a->strategy->progress(a);
    if (moved < 0)
        return moved;
    int sent = a->strategy->flush(a);
    return sent < 0 ? sent : moved + sent;
}

static int look_sometimes(struct sstar_aggregator *a)
{
    if (++a->calls % CALLS_PER_PROGRESS)
        return 0;
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
    return report_set(&a->world->report, -EMSGSIZE,
                      "aggregator: a message of %u bytes, opened for at most %u", bytes,
                      a->max_item_bytes);
}

int sstar_push(struct sstar_aggregator *a, int to, const void *data, uint32_t bytes)
{
    if (a->world->failed || a->done || (unsigned)to >= (unsigned)a->size ||
        bytes > a->max_item_bytes)
        return refuse_push(a, to, bytes);
    bool cross = a->node_of[to] != a->node;
    int err = cross ? a->strategy->push(a, to, data, bytes) : local_push(a, to, data, bytes);
    if (err) {
        a->ledger.full += err == -EAGAIN;
        return err;
    }
    a->ledger.messages++;
    a->ledger.message_bytes += bytes;
    if (cross) {
        a->ledger.cross_messages++;
        a->ledger.cross_bytes += bytes;
    }
    a->moved++;
    a->moved_bytes += bytes;
    return look_sometimes(a);
}

static int pull_from(struct sstar_aggregator *a, bool remote, struct sstar_item *item)
{
    if (!remote)
        return local_pull(a, item);
    return a->nodes > 1 ? a->strategy->pull(a, item) : 0;
}

/* The next item, from inside the node and from other nodes in turns. 1, 0 or -errno. */
static int next_item(struct sstar_aggregator *a, struct sstar_item *item)
{
    if (++a->turn > TURN_ITEMS) {
        a->turn = 0;
        a->remote_first = !a->remote_first;
    }
    int got = pull_from(a, a->remote_first, item);
    if (got)
        return got;
    a->turn = 0;
    a->remote_first = !a->remote_first;
    return pull_from(a, a->remote_first, item);
}

int sstar_pull(struct sstar_aggregator *a, struct sstar_item *item)
{
    if (a->world->failed)
        return a->world->failed;
    int got = look_sometimes(a);
    if (got)
        return got;
    if (a->peeked) {
        *item = a->item;
        got = 1;
    } else {
        got = next_item(a, item);
    }
    a->peeked = false;
    if (got > 0) {
        a->moved++;
        a->moved_bytes += item->bytes;
    }
    return got;
}

/* Is all sent, and all pulled that was to come? Looks for the ends of the streams behind the last
 * item, so that a caller that expects nothing need not pull; an item that it finds it keeps. 1, 0
 * or -errno. */
static int is_finished(struct sstar_aggregator *a)
{
    local_finish(a);
    int left = a->nodes > 1 ? a->strategy->finish(a) : 0;
    if (left < 0 || a->peeked)
        return left < 0 ? left : 0;
    int got = next_item(a, &a->item);
    if (got < 0)
        return got;
    a->peeked = got;
    return !got && !left && local_drained(a);
}

/* A rank that has not said that it is done, -1 if all have. */
static int missing(struct sstar_aggregator *a)
{
    int local = local_missing(a);
    if (local >= 0)
        return sstar_rank_at(a->world, a->node, local);
    return a->nodes > 1 ? a->strategy->missing(a) : -1;
}

/* The other ranks of this core hold the other ends, so they have their turn: at once when there is
 * little to do here, else now and then, because each change of turns costs some microseconds. */
static void give_way(struct sstar_aggregator *a)
{
    if (a->world->ranks_on_host <= a->world->cores)
        return;
    if (a->moved >= LITTLE_MOVED && a->moved_bytes < BYTES_PER_YIELD)
        return;
    a->moved_bytes = 0;
    sched_yield();
}

/* Nothing moves. While something of ours is on its way we look often and do not sleep, because
 * there are devices that move on only when polled. */
static int wait(struct sstar_aggregator *a)
{
    if (++a->idle % LOOKS_PER_WAIT && a->nodes > 1 && a->strategy->sending(a)) {
        sched_yield();
        return 1;
    }
    /* For the sentence, should this take long: whose stream has not ended. */
    if (a->done)
        a->waiter.peer = missing(a);
    int err = wait_step(&a->waiter);
    return err < 0 ? err : 1;
}

int sstar_advance(struct sstar_aggregator *a, bool done)
{
    if (a->world->failed)
        return a->world->failed;
    if (a->finished)
        return 0;
    a->done = a->done || done;
    int moved = look(a);
    if (moved < 0)
        return moved;
    if (a->done) {
        int finished = is_finished(a);
        if (finished < 0)
            return finished;
        a->finished = finished;
        if (finished)
            return 0;
    }
    if (moved || a->moved) {
        give_way(a);
        a->moved = 0;
        wait_progress(&a->waiter);
        return 1;
    }
    return wait(a);
}

void sstar_aggregator_ledger(const struct sstar_aggregator *a, struct sstar_ledger *out)
{
    *out = a->ledger;
}
