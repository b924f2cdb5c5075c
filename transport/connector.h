/* SPDX-License-Identifier: MIT */
/*
 * How the queue pairs of a set of links are connected: a table of functions for each way. Private
 * to link_*.c and rdmacm*.c.
 *
 * Queue pairs are made by link_queue_pairs.c, up to INIT, and have the same attributes whoever
 * connects them; a connector brings them to RTS. What both ends agreed on before (the GIDs, the
 * path MTU) is in the link.
 */
#ifndef SSTAR_TRANSPORT_CONNECTOR_H
#define SSTAR_TRANSPORT_CONNECTOR_H

#include "transport/links.h"

struct connector {
    const char *name; /* as --connect takes it */
    /* The queue pairs are in INIT; get ready what peers must be told. Local. On failure `close`
     * follows. */
    int (*open)(struct sstar_links *links);
    /* Add to what the peer of this link is told. */
    void (*introduce)(const struct sstar_link *link, struct link_introduction *out);
    /* All queue pairs to RTS; receives are posted. `theirs` by rank. Every rank with links does the
     * same at this time. A failure fails the world. */
    int (*connect)(struct sstar_links *links, const struct link_introduction *theirs);
    /* Now and then, from the event loop. */
    void (*tick)(struct sstar_links *links);
    /* The ranks are about to close their links together: connections may end from now on. */
    void (*leave)(struct sstar_links *links);
    /* End what is connected, before the queue pairs go. Takes what is half open. */
    void (*close)(struct sstar_links *links);
};
extern const struct connector connector_exchange, connector_rdmacm;

/* ---- link_queue_pairs.c --------------------------------------------------------------------- */

/* Receives to be posted on this queue pair of a link. */
uint32_t rc_receive_depth(const struct sstar_links *links, uint32_t qp);

/* ---- link_connect.c ------------------------------------------------------------------------- */

/* The attributes of RTR and RTS that are ours to say; the others are filled in already. */
void rc_attr_rtr(const struct sstar_link *link, struct ibv_qp_attr *attr);
void rc_attr_rts(const struct sstar_link *link, struct ibv_qp_attr *attr);
/* The world fails: queue pair `qp` cannot be connected to `number` there. Returns the code. */
int rc_modify_failed(const struct sstar_link *link, uint32_t qp, uint32_t number, int error);

#endif
