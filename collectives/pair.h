/* SPDX-License-Identifier: MIT */
/*
 * Two ranks of a world and the link between them, to be timed. Private.
 *
 * The pair is the first rank of each of the first two nodes; of a world of one node its first two
 * ranks, through memory. One of the two asks, the other serves it; the rest looks on:
 *
 *     pair_open(&pair, world, max_bytes);              all ranks
 *     if (pair.role == PAIR_ASKS)
 *         pair_lone(&pair, ...), pair_stream(&pair, ...), pair_finish(&pair, false);
 *     else
 *         pair_serve(&pair);                           until the other has finished
 *     pair_close(&pair);                               all ranks
 */
#ifndef SSTAR_COLLECTIVES_PAIR_H
#define SSTAR_COLLECTIVES_PAIR_H

#include "transport/transport.h"
#include <sched.h>

enum pair_role { PAIR_ASKS, PAIR_ANSWERS, PAIR_LOOKS_ON };

struct pair {
    struct sstar_world *world;
    enum pair_role role;
    int asks, answers; /* ranks */
    bool across_nodes;
    size_t max_bytes;
    struct sstar_links *links;
    struct sstar_link *link;
    char *memory; /* what we send, what arrives, and a word each for reports */
    struct sstar_region *region;
    struct sstar_remote_region remote;
    uint64_t arrived; /* the peer's signals that we have waited for */
    uint32_t polls;
    bool spins;        /* each of the two has a core of its own: poll and do not yield */
    bool moved;        /* to another core than we were free to run on before */
    cpu_set_t allowed; /* before */
    /* Whether the last lone messages or stream were disturbed: the kernel gave one of the two cores
     * to somebody else meanwhile. For the asking rank. */
    bool disturbed;
};

/* Collective; worlds of one rank have no pair (-EINVAL). `pair` is zeroed or was closed. Until the
 * close the calling threads of the two stay on a core each, if they may run on different ones: two
 * that poll on one core would time the scheduler. */
int pair_open(struct pair *pair, struct sstar_world *world, size_t max_bytes);
void pair_close(struct pair *pair);

/* For the asking rank. Lone messages: `warm` round trips, then `count` that are timed, of puts of
 * `bytes` with a signal. us[0 .. count - 1] are half a round trip each. */
int pair_lone(struct pair *pair, size_t bytes, int warm, int count, double *us);
/* A stream: as many puts with a signal under way as the link takes, `messages` in all. *us is the
 * time from arrival to arrival as the other rank saw it, without the first fifth; 0 if that rank
 * was kept from looking (try again). */
int pair_stream(struct pair *pair, size_t bytes, int messages, double *us);
/* Let the other rank return from pair_serve. */
int pair_finish(struct pair *pair, bool more);

/* For the other ranks: serve until pair_finish; 1 if that said that there will be more, else 0.
 * Returns 0 at once on a rank that looks on. */
int pair_serve(struct pair *pair);

/* ---- a core for each (pair_core.c) ---------------------------------------------------- */

/* The core that we would take; -1: unknown. */
int pair_core_offer(struct pair *pair);
/* Take it, if the other's is another one or in another machine. */
void pair_core_take(struct pair *pair, int ours, int theirs);
void pair_core_return(struct pair *pair);

#endif
