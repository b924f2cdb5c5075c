/* SPDX-License-Identifier: MIT */
/*
 * The fast barrier. Inside a node each rank counts up in a word of its own memory. Where one node
 * is all, each looks at the words of all. Of two ranks both words are in one line: whoever comes
 * asks for it to write its own, and so has the other's, where with a line each it would first take
 * its line back from the one who looks at it and then fetch the other. Else the first rank of the
 * node waits for all, meets the first ranks of the other nodes in ceil(log2 nodes) rounds of the
 * dissemination barrier (Hensgen, Finkel, Manber 1988), and counts up in its own word to let the
 * node go.
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
enum { LOOKS_BEFORE_WAIT = 600, TURNS = 4 };

struct barrier_words {
    struct {
        alignas(256) _Atomic uint64_t arrived; /* barriers that this rank has come to */
        _Atomic int core;                      /* on which it ran then */
    } turns[TURNS];                            /* one after the other */
    alignas(256) _Atomic uint64_t both[2];     /* `arrived` of each of two ranks; first rank only */
    alignas(256) _Atomic uint64_t passed; /* barriers that the node may leave; first rank only */
};

struct barrier {
    uint64_t count;
    struct barrier_words *mine;
    struct barrier_words **node; /* of the ranks of our node, by place */
    int node_size;
    struct sstar_links *links; /* first ranks have some to each other */
};

static int first_rank(const struct sstar_world *world, int node)
{
    int n = world->node_count;
    return sstar_rank_at(world, (node % n + n) % n, 0);
}

/* ---- opening -------------------------------------------------------------------------------- */

static int words_share(struct sstar_world *world, struct barrier *barrier)
{
    int my_node = sstar_node_of(world, world->rank);
    uint64_t *all = calloc((size_t)world->size, sizeof *all);
    void *memory = NULL;
    int err = all ? sstar_alloc(world, sizeof *barrier->mine, &memory)
                  : report_set(&world->report, -ENOMEM, "barrier: out of memory");
    barrier->mine = memory;
    uint64_t address = (uintptr_t)memory;
    /* The others wait, and those of other nodes do not even look at our words. */
    err = err ? world_fail_as_reported(world, err)
              : sstar_allgather(world, &address, sizeof address, all);
    for (int i = 0; i < barrier->node_size && !err; i++) {
        int rank = sstar_rank_at(world, my_node, i);
        barrier->node[i] = memory_peer(world, rank, all[rank], sizeof *barrier->mine);
        if (!barrier->node[i])
            err = world_fail(world, -EFAULT, "barrier: rank %d has no memory that rank %d can map",
                             rank, world->rank);
    }
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

static _Atomic uint64_t *arrived(const struct barrier *barrier, int i, uint64_t count)
{
    return barrier->node_size == 2 ? &barrier->node[0]->both[i]
                                   : &barrier->node[i]->turns[count % TURNS].arrived;
}

static bool has_come(const struct barrier *barrier, int i, uint64_t count)
{
    return atomic_load_explicit(arrived(barrier, i, count), memory_order_acquire) >= count;
}

static void come(struct barrier *barrier, int me, uint64_t count, bool crowded)
{
    _Atomic uint64_t *word = arrived(barrier, me, count);
    fetch_to_write(word); /* before anybody looks, which would fetch it to read only */
    if (crowded)
        atomic_store_explicit(&barrier->mine->turns[count % TURNS].core, sched_getcpu(),
                              memory_order_relaxed);
    atomic_store_explicit(word, count, memory_order_release);
}

/* None that is missing was last on our core. */
static bool missing_are_elsewhere(const struct barrier *barrier, uint64_t count)
{
    int core =
        atomic_load_explicit(&barrier->mine->turns[count % TURNS].core, memory_order_relaxed);
    for (int i = 0; i < barrier->node_size; i++)
        if (atomic_load_explicit(&barrier->node[i]->turns[count % TURNS].core,
                                 memory_order_relaxed) == core &&
            !has_come(barrier, i, count))
            return false;
    return true;
}

/* Until rank i of the node has come. */
static int wait_for(struct sstar_world *world, const struct barrier *barrier, int i)
{
    uint64_t count = barrier->count;
    const bool crowded = world_crowded(world);
    for (int look = 0; look < LOOKS_BEFORE_WAIT && !crowded; look++)
        if (has_come(barrier, i, count))
            return 0;
    int my_node = sstar_node_of(world, world->rank);
    struct waiter w = wait_begin(world, "the barrier", sstar_rank_at(world, my_node, i), count);
    while (!has_come(barrier, i, count)) {
        int events = links_progress_all(world);
        w.on_other_cores = crowded && missing_are_elsewhere(barrier, count);
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

static int token_send(struct sstar_world *world, struct sstar_link *link, uint64_t count)
{
    struct waiter w = wait_begin(world, "a credit for the barrier", link_peer(link), count);
    void *payload;
    int err;
    while ((err = link_reserve(link, 0, &payload)) == -EAGAIN) {
        int events = links_progress_all(world);
        err = events < 0 ? events : wait_step(&w);
        if (err < 0)
            return err;
    }
    return err ? err : link_commit(link, 0, 0);
}

static int token_receive(struct sstar_world *world, struct sstar_link *link, uint64_t count)
{
    struct waiter w = wait_begin(world, "the barrier", link_peer(link), count);
    struct message message;
    int got;
    while ((got = link_receive(link, &message)) == 0) {
        int events = links_progress_all(world);
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
        err = token_send(world, sstar_links_to(barrier->links, first_rank(world, my_node + step)),
                         barrier->count);
        if (!err)
            err = token_receive(world,
                                sstar_links_to(barrier->links, first_rank(world, my_node - step)),
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
    int me = sstar_local_rank_of(world, world->rank);
    bool first = me == 0;
    come(barrier, me, count, world_crowded(world));
    if (!first && world->node_count > 1)
        return wait_to_pass(world, barrier);
    for (int i = 0; i < barrier->node_size && !err; i++)
        err = wait_for(world, barrier, i);
    /* The line that we write the time after next others have read last: have it back by then. */
    if (barrier->node_size > 2)
        fetch_to_write(&barrier->mine->turns[(count + 2) % TURNS]);
    if (!err && world->node_count > 1) {
        err = nodes_meet(world, barrier);
        if (!err)
            atomic_store_explicit(&barrier->mine->passed, count, memory_order_release);
    }
    return err;
}
