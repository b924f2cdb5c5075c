/* SPDX-License-Identifier: MIT */
/*
 * The fast barrier. Inside a node each rank counts up in a word of its own memory. Where one node
 * is all, each looks at the words of all. Else the first rank of the node waits for all, meets the
 * first ranks of the other nodes in ceil(log2 nodes) rounds of the dissemination barrier (Hensgen,
 * Finkel, Manber 1988), and counts up in its own word to let the node go.
 *
 * Two ranks, and more of them on two cores, make two groups: rank i is in group i mod 2, which is
 * where ranks that are kept to cores are. The last to come of a group says so for all of it, so one
 * line goes between the cores. In it lie the words of both groups: asked for to write one, it
 * brings the other. With a line for each a rank would first take its own back from whoever looks at
 * it, and then fetch the other.
 *
 * Each also says on which core it came. Whoever waits for none that shares its core spins, even
 * with more ranks than cores: so the last to come on a core goes on at once, and the others of that
 * core each cost one switch, which is the least possible.
 */
#include "transport/barrier.h"
#include "transport/fetch.h"
#include "transport/link.h"
#include "transport/links.h"
#include "transport/memory.h"
#include "transport/turn.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>

/* With a core for each rank a line comes within so many looks. There is no pause between them: it
 * takes as long as half a line on some processors. */
enum { LOOKS_BEFORE_WAIT = 600, TURNS = 4, GROUPS = 2 };
/* Who waits for another node looks at the other sets of links each so many passes only: what he
 * waits for comes over the barrier's, and the sooner it is seen, the less far apart the ranks
 * leave. */
enum { PASSES_PER_ALL = 8 };

struct barrier_words {
    struct {
        alignas(256) _Atomic uint64_t arrived; /* barriers that this rank has come to */
    } turns[TURNS];                            /* one after the other */
    alignas(256) _Atomic int core; /* on which it came: often looked at, seldom written */
    /* Barriers to which all of a group have come; first rank of the node only. */
    alignas(256) _Atomic uint64_t complete[GROUPS];
    alignas(256) _Atomic uint64_t comings; /* of a group, to all barriers; its first rank only */
    alignas(256) _Atomic uint64_t passed;  /* barriers that the node may leave; first rank only */
};

struct barrier {
    uint64_t count;
    struct barrier_words *mine;
    struct barrier_words **node; /* of the ranks of our node, by place */
    int node_size, me;           /* our place */
    bool in_groups;
    struct sstar_links *links; /* first ranks have some to each other */
};

static int first_rank(const struct sstar_world *world, int node)
{
    int n = world->node_count;
    return sstar_rank_at(world, (node % n + n) % n, 0);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* What a rank tells the others. */
struct told {
    uint64_t address; /* of its words */
    int cores;        /* that it shares with others; 0 if it does not */
};

static int words_share(struct sstar_world *world, struct barrier *barrier)
{
    int my_node = sstar_node_of(world, world->rank), cores = 0;
    struct told *all = calloc((size_t)world->size, sizeof *all);
    void *memory = NULL;
    int err = all ? sstar_alloc(world, sizeof *barrier->mine, &memory)
                  : report_set(&world->report, -ENOMEM, "barrier: out of memory");
    barrier->mine = memory;
    struct told mine = {.address = (uintptr_t)memory,
                        .cores = world_crowded(world) ? world->cores : 0};
    /* The others wait, and those of other nodes do not even look at our words. */
    err =
        err ? world_fail_as_reported(world, err) : sstar_allgather(world, &mine, sizeof mine, all);
    for (int i = 0; i < barrier->node_size && !err; i++) {
        int rank = sstar_rank_at(world, my_node, i);
        cores = all[rank].cores > cores ? all[rank].cores : cores;
        barrier->node[i] = memory_peer(world, rank, all[rank].address, sizeof *barrier->mine);
        if (!barrier->node[i])
            err = memory_peer_missing(world, rank, "barrier");
    }
    barrier->in_groups =
        barrier->node_size == GROUPS || (barrier->node_size > GROUPS && cores == GROUPS);
    free(all);
    return err;
}

static void peer_add(int *peers, int *n, int peer)
{
    for (int i = 0; i < *n; i++)
        if (peers[i] == peer)
            return;
    peers[(*n)++] = peer;
}

static int links_make(struct sstar_world *world, struct barrier *barrier)
{
    int peers[64], n = 0, my_node = sstar_node_of(world, world->rank);
    if (world->node_count == 1)
        return 0;
    if (sstar_local_rank_of(world, world->rank) == 0)
        for (int step = 1; step < world->node_count; step *= 2) {
            peer_add(peers, &n, first_rank(world, my_node + step));
            peer_add(peers, &n, first_rank(world, my_node - step));
        }
    struct sstar_link_attr attr = {.queue_pairs = 1, .slots = 16, .slot_bytes = 8, .puts = 1};
    return sstar_links_open(world, peers, n, &attr, &barrier->links);
}

static int barrier_open(struct sstar_world *world)
{
    struct barrier *barrier = calloc(1, sizeof *barrier);
    int node_size = sstar_local_size_of(world, sstar_node_of(world, world->rank));
    struct barrier_words **node = calloc((size_t)node_size, sizeof *node);
    if (!barrier || !node) {
        free(barrier);
        free(node);
        return world_fail(world, -ENOMEM, "barrier: rank %d is out of memory", world->rank);
    }
    barrier->node = node;
    barrier->node_size = node_size;
    barrier->me = sstar_local_rank_of(world, world->rank);
    world->barrier = barrier;
    int err = words_share(world, barrier);
    if (!err)
        err = links_make(world, barrier);
    if (err)
        barrier_close(world);
    return err;
}

void barrier_close(struct sstar_world *world)
{
    struct barrier *barrier = world->barrier;
    if (!barrier)
        return;
    world->barrier = NULL;
    if (barrier->links)
        sstar_links_close(barrier->links);
    else if (barrier->count > 0 && !world->failed)
        sstar_barrier(world); /* all have read our words */
    if (barrier->mine)
        sstar_free(world, barrier->mine);
    free(barrier->node);
    free(barrier);
}

/* ---- meeting -------------------------------------------------------------------------------- */

static bool has_come(const struct barrier *barrier, int i, uint64_t count)
{
    const _Atomic uint64_t *word = barrier->node_size == GROUPS
                                       ? &barrier->node[0]->complete[i]
                                       : &barrier->node[i]->turns[count % TURNS].arrived;
    return atomic_load_explicit(word, memory_order_acquire) >= count;
}

/* Come to a barrier for our group; whether we are the last of it. */
static bool come_last(struct barrier *barrier, uint64_t count)
{
    int group = barrier->me % GROUPS, members = (barrier->node_size - group + 1) / GROUPS;
    return members == 1 ||
           atomic_fetch_add_explicit(&barrier->node[group]->comings, 1, memory_order_acq_rel) + 1 ==
               count * (uint64_t)members;
}

static void come(struct barrier *barrier, uint64_t count, bool crowded)
{
    _Atomic uint64_t *complete = barrier->node[0]->complete;
    if (barrier->node_size == GROUPS)
        fetch_to_write(complete); /* before anybody looks, which would fetch it to read only */
    else
        atomic_store_explicit(&barrier->mine->turns[count % TURNS].arrived, count,
                              memory_order_release);
    int core = crowded ? sched_getcpu() : 0;
    if (crowded && atomic_load_explicit(&barrier->mine->core, memory_order_relaxed) != core)
        atomic_store_explicit(&barrier->mine->core, core, memory_order_relaxed);
    if (barrier->in_groups && come_last(barrier, count))
        atomic_store_explicit(&complete[barrier->me % GROUPS], count, memory_order_release);
}

/* Of ranks `seen` and on; the first that has not come is `seen` then. */
static bool have_come(const struct barrier *barrier, int *seen)
{
    if (barrier->in_groups) {
        const _Atomic uint64_t *complete = barrier->node[0]->complete;
        int own = barrier->me % GROUPS;
        return atomic_load_explicit(&complete[1 - own], memory_order_acquire) >= barrier->count &&
               atomic_load_explicit(&complete[own], memory_order_acquire) >= barrier->count;
    }
    while (*seen < barrier->node_size && has_come(barrier, *seen, barrier->count))
        ++*seen;
    return *seen == barrier->node_size;
}

/* None that is missing was last on our core. */
static bool missing_are_elsewhere(const struct barrier *barrier)
{
    int core = atomic_load_explicit(&barrier->mine->core, memory_order_relaxed);
    for (int i = 0; i < barrier->node_size; i++)
        if (atomic_load_explicit(&barrier->node[i]->core, memory_order_relaxed) == core &&
            !has_come(barrier, i, barrier->count))
            return false;
    return true;
}

/* A rank of the node that has not come; the last, if all have meanwhile. */
static int missing(const struct barrier *barrier)
{
    int i = 0;
    while (i < barrier->node_size - 1 && has_come(barrier, i, barrier->count))
        i++;
    return i;
}

/* Until all of the node have come. */
static int wait_for_all(struct sstar_world *world, const struct barrier *barrier)
{
    const bool crowded = world_crowded(world);
    int seen = 0, my_node = sstar_node_of(world, world->rank);
    bool spins = !crowded || missing_are_elsewhere(barrier);
    for (int look = 0; look < LOOKS_BEFORE_WAIT && spins; look++)
        if (have_come(barrier, &seen))
            return 0;
    struct waiter w = wait_begin(world, "the barrier", -1, barrier->count);
    while (!have_come(barrier, &seen)) {
        int events = links_progress_all(world);
        w.on_other_cores = crowded && missing_are_elsewhere(barrier);
        w.peer = sstar_rank_at(world, my_node, missing(barrier));
        int err = events < 0 ? events : wait_step(&w);
        if (err < 0)
            return err;
    }
    return 0;
}

/* Until the first rank lets the node go. */
static int wait_to_pass(struct sstar_world *world, const struct barrier *barrier)
{
    int first = first_rank(world, sstar_node_of(world, world->rank));
    struct waiter w = wait_begin(world, "the barrier", first, barrier->count);
    while (atomic_load_explicit(&barrier->node[0]->passed, memory_order_acquire) < barrier->count) {
        int events = links_progress_all(world);
        int err = events < 0 ? events : wait_step(&w);
        if (err < 0)
            return err;
    }
    return 0;
}

static int progress(struct sstar_world *world, struct sstar_links *links, uint32_t pass)
{
    return pass % PASSES_PER_ALL ? sstar_links_progress(links) : links_progress_all(world);
}

static int token_send(struct sstar_world *world, struct sstar_links *links, int to, uint64_t count)
{
    struct sstar_link *link = sstar_links_to(links, to);
    struct waiter w = wait_begin(world, "a credit for the barrier", link_peer(link), count);
    void *payload;
    int err;
    for (uint32_t pass = 1; (err = link_reserve(link, 0, &payload)) == -EAGAIN; pass++) {
        int events = progress(world, links, pass);
        err = events < 0 ? events : wait_step(&w);
        if (err < 0)
            return err;
    }
    return err ? err : link_commit(link, 0, 0);
}

static int token_receive(struct sstar_world *world, struct sstar_links *links, int from,
                         uint64_t count)
{
    struct sstar_link *link = sstar_links_to(links, from);
    struct waiter w = wait_begin(world, "the barrier", link_peer(link), count);
    struct message message;
    int got;
    for (uint32_t pass = 1; (got = link_receive(link, &message)) == 0; pass++) {
        int events = progress(world, links, pass);
        int err = events < 0 ? events : wait_step(&w);
        if (err < 0)
            return err;
    }
    if (got > 0)
        link_release(link, 1);
    return got < 0 ? got : 0;
}

static int nodes_meet(struct sstar_world *world, struct barrier *barrier)
{
    int my_node = sstar_node_of(world, world->rank), err = 0;
    for (int step = 1; step < world->node_count && !err; step *= 2) {
        err = token_send(world, barrier->links, first_rank(world, my_node + step), barrier->count);
        if (!err)
            err = token_receive(world, barrier->links, first_rank(world, my_node - step),
                                barrier->count);
    }
    return err;
}

int sstar_fast_barrier(struct sstar_world *world)
{
    WORLD_TURN(world);
    if (world->failed)
        return world->failed;
    int err = world->barrier ? 0 : barrier_open(world);
    if (err)
        return err;
    struct barrier *barrier = world->barrier;
    uint64_t count = ++barrier->count;
    come(barrier, count, world_crowded(world));
    if (barrier->me != 0 && world->node_count > 1)
        return wait_to_pass(world, barrier);
    err = wait_for_all(world, barrier);
    /* The line that we write the time after next others have read last: have it back by then. */
    if (!barrier->in_groups)
        fetch_to_write(&barrier->mine->turns[(count + 2) % TURNS]);
    if (!err && world->node_count > 1) {
        err = nodes_meet(world, barrier);
        if (!err)
            atomic_store_explicit(&barrier->mine->passed, count, memory_order_release);
    }
    return err;
}
