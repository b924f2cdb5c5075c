/* SPDX-License-Identifier: MIT */
/*
 * Where datagrams go. A queue pair remembers the members it sent to of late, direct-mapped by port
 * and slot, so that sending takes no lock and no system call.
 */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdlib.h>

enum { DESTINATIONS = 256 };

struct destination {
    uint32_t ip, slot;
    struct peer *peer; /* NULL: nobody yet */
};

int nic_destinations_create(struct qp *qp)
{
    qp->destinations = calloc(DESTINATIONS, sizeof *qp->destinations);
    return qp->destinations != NULL ? 0 : ENOMEM;
}

void nic_destinations_destroy(struct qp *qp)
{
    for (unsigned i = 0; qp->destinations != NULL && i < DESTINATIONS; i++)
        if (qp->destinations[i].peer != NULL)
            nic_peer_put(qp->ctx, qp->destinations[i].peer);
    free(qp->destinations);
    qp->destinations = NULL;
}

static struct peer *reach(struct qp *qp, uint32_t ip, uint32_t slot)
{
    struct destination *at = &qp->destinations[(ip * 31 + slot) % DESTINATIONS];
    if (__builtin_expect(at->peer != NULL && at->ip == ip && at->slot == slot &&
                             !nic_peer_dead_maybe(at->peer),
                         1))
        return at->peer;
    if (at->peer != NULL)
        nic_peer_put(qp->ctx, at->peer);
    *at = (struct destination){ip, slot, nic_peer_get(qp->ctx, ip, slot)};
    return at->peer;
}

bool nic_destination_find(struct qp *qp, const struct send_wqe *wqe)
{
    uint32_t ip = nic_route_ip(wqe->raddr), qpn = nic_route_qpn(wqe->raddr);
    qp->peer = ip != 0 ? reach(qp, ip, qpn >> 16) : NULL;
    if (qp->peer == NULL)
        return false;
    qp->remote = &qp->peer->member->qp[qpn % QPS_MAX];
    return true;
}
