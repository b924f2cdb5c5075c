/* SPDX-License-Identifier: MIT */
/*
 * In which order the bytes that a device writes become visible, and which protocol needs how much
 * of that. A device says what it gives (device.h); a protocol is used only on one that gives what
 * it needs, and tests/test_order.c runs each on one that gives no more. Private.
 */
#ifndef SSTAR_TRANSPORT_ORDERING_H
#define SSTAR_TRANSPORT_ORDERING_H

#include <stddef.h>

/* Each gives all that stands before it. */
enum ordering {
    /* No device: the loads and stores of ranks that share memory, with release and acquire. */
    ORDERING_NONE,
    /* What verbs promise of a reliable connection, and nothing more. When a completion is seen, by
     * the sender or by the receive that a message used up, every byte of that message and of all
     * before it on its queue pair is there. A READ or an atomic comes after all messages before it
     * on its queue pair; a fenced message after all READs and atomics before it. Adaptive routing
     * and relaxed PCIe ordering give this. */
    ORDERING_COMPLETIONS,
    /* The messages of one queue pair become visible in their order, and the last word of each after
     * the rest of it. InfiniBand does not promise it; one path, in-order placement and strongly
     * ordered writes give it. Different queue pairs are not ordered at all. */
    ORDERING_QUEUE_PAIR,
};

/* How a receiver learns that something has arrived. */
enum arrival { ARRIVAL_IN_MEMORY, ARRIVAL_BY_COMPLETION };

struct protocol {
    const char *name;
    enum ordering needs;
    const char *why;
};
extern const struct protocol protocols[];
extern const size_t n_protocols;

/* What links need of a device to learn of arrivals in this way. */
enum ordering ordering_of_arrival(enum arrival arrival);

#endif
