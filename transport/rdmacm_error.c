/* SPDX-License-Identifier: MIT */
/* What librdmacm says, in words: who, from where to where, what it means and what to look at. */
#include "transport/rc.h"
#include "transport/rdmacm.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Reasons of the connection manager to reject (InfiniBand Architecture, volume 1, 12.6.7.2). */
enum { REJECT_TIMEOUT = 4, REJECT_NO_LISTENER = 8, REJECT_STALE = 10, REJECT_BY_PROGRAM = 28 };

struct explanation {
    enum rdma_cm_event_type type;
    const char *text, *look_at;
};
static const struct explanation explanations[] = {
    {RDMA_CM_EVENT_ADDR_ERROR, "the peer's address cannot be resolved",
     "`ip route get` and `ping -I` between these addresses; are both interfaces up?"},
    {RDMA_CM_EVENT_ROUTE_ERROR, "no route to the peer's address",
     "`ip route get` between these addresses, and the subnet manager on InfiniBand"},
    {RDMA_CM_EVENT_UNREACHABLE, "the peer does not answer",
     "whether that rank still runs, and firewalls in between (RoCEv2 is UDP port 4791)"},
    {RDMA_CM_EVENT_CONNECT_ERROR, "the connection could not be completed",
     "the kernel's log on both hosts"},
    {RDMA_CM_EVENT_DISCONNECTED, "the peer ended the connection without leaving",
     "what that rank said last; was it killed?"},
    {RDMA_CM_EVENT_DEVICE_REMOVAL, "the device was removed", "the kernel's log"},
};

static struct explanation explain(enum rdma_cm_event_type type, int status)
{
    if (type == RDMA_CM_EVENT_REJECTED && status == REJECT_NO_LISTENER)
        return (struct explanation){type, "nobody listens there", "whether that rank still runs"};
    if (type == RDMA_CM_EVENT_REJECTED && status == REJECT_STALE)
        return (struct explanation){type,
                                    "the peer remembers an older connection of this queue pair",
                                    "try again in a minute"};
    if (type == RDMA_CM_EVENT_REJECTED && status != REJECT_BY_PROGRAM)
        return (struct explanation){type, "the peer's connection manager refuses",
                                    "the kernel's log on both hosts"};
    for (size_t i = 0; i < sizeof explanations / sizeof *explanations; i++)
        if (explanations[i].type == type)
            return explanations[i];
    return (struct explanation){type, "unexpected", "the kernel's log on both hosts"};
}

static void address_of(const union ibv_gid *gid, uint16_t port, struct sockaddr_in *address)
{
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    memcpy(&address->sin_addr, gid->raw + 12, sizeof address->sin_addr);
}

void cm_addresses(const struct cm_connection *c, struct sockaddr_in *ours,
                  struct sockaddr_in *theirs)
{
    const struct sstar_link *link = c->link;
    const struct link_introduction *it = c->cm->theirs ? &c->cm->theirs[link->peer] : NULL;
    uint16_t port = 0;
    for (uint32_t i = 0; it && i < it->n_gids && i < GID_USABLE; i++)
        if (it->gids[i].index == link->peer_gid.index)
            port = it->gids[i].port;
    address_of(&link->gid.gid, 0, ours);
    address_of(&link->peer_gid.gid, port, theirs);
}

/* "rank 0, queue pair 0x11 (index 2) of the link to rank 1 (node7), device rxe0 port 1, 10.9.0.1 to
 * 10.9.0.2" */
static void describe(const struct cm_connection *c, char *text, size_t size)
{
    const struct sstar_link *link = c->link;
    const struct device *device = c->cm->links->device;
    struct sockaddr_in ours, theirs;
    char here[INET_ADDRSTRLEN], there[INET_ADDRSTRLEN];
    cm_addresses(c, &ours, &theirs);
    inet_ntop(AF_INET, &ours.sin_addr, here, sizeof here);
    inet_ntop(AF_INET, &theirs.sin_addr, there, sizeof there);
    snprintf(text, size,
             "rank %d, queue pair 0x%x (index %u) of the link to rank %d (%s), device %s port %u, "
             "librdmacm from %s to %s",
             link->world->rank, link->qps[c->qp].qp->qp_num, c->qp, link->peer,
             link->world->ranks[link->peer].host, device->name, device->port, here, there);
}

int cm_call_failed(const struct cm_connection *c, const char *call, int error)
{
    char who[300];
    describe(c, who, sizeof who);
    return world_fail(c->link->world, error ? -error : -EIO, "%s: %s failed: %s", who, call,
                      strerror(error ? error : EIO));
}

int cm_event_failed(const struct cm_connection *c, enum rdma_cm_event_type type, int status,
                    enum cm_refusal refusal)
{
    char who[300];
    struct explanation why = explain(type, status);
    describe(c, who, sizeof who);
    if (type == RDMA_CM_EVENT_REJECTED && status == REJECT_BY_PROGRAM)
        return world_fail(c->link->world, -ECONNREFUSED, "%s: rank %d refused it: %s", who,
                          c->link->peer, cm_refusal_text(refusal));
    char cause[80] = "";
    if (status < 0)
        snprintf(cause, sizeof cause, ": %s", strerror(-status));
    return world_fail(c->link->world, status < 0 ? status : -ECONNRESET,
                      "%s: %s (%s, status %d%s); look at: %s", who, why.text, rdma_event_str(type),
                      status, cause, why.look_at);
}
