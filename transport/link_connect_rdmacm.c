/* SPDX-License-Identifier: MIT */
/* Queue pairs that are connected through librdmacm: listening, asking, leaving (see rdmacm.h). */
#include "transport/connector.h"
#include "transport/hash.h"
#include "transport/rc.h"
#include "transport/rdmacm.h"
#include "transport/wait.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { BACKLOG = 1024 };

/* ---- listening ------------------------------------------------------------------------------ */

/* librdmacm binds to addresses of IP. */
static bool can_bind(const struct gid_entry *entry)
{
    return entry->type == IBV_GID_TYPE_ROCE_V2 && gid_is_ipv4(&entry->gid);
}

static int listen_failed(const struct sstar_links *links, const struct gid_entry *entry,
                         const char *call, int error)
{
    const struct device *device = links->device;
    char gid[64];
    gid_text(entry, gid, sizeof gid);
    const char *remedy = error == ENODEV || error == ENOENT ? "; load the kernel's module rdma_ucm"
                         : error == EACCES ? "; /dev/infiniband/rdma_cm must be readable"
                                           : "";
    return report_set(
        &links->world->report, error ? -error : -EIO,
        "rank %d cannot listen at %s of device %s port %u through librdmacm: %s: %s%s",
        links->world->rank, gid, device->name, device->port, call, strerror(error ? error : EIO),
        remedy);
}

static int listen_at(struct rdmacm *cm, int place)
{
    const struct gid_entry *entry = &cm->links->device->gids[place];
    struct sockaddr_in address = {.sin_family = AF_INET};
    memcpy(&address.sin_addr, entry->gid.raw + 12, sizeof address.sin_addr);
    struct rdma_cm_id **id = &cm->listeners[place];
    if (rdma_create_id(cm->channel, id, NULL, RDMA_PS_TCP) != 0) {
        *id = NULL;
        return listen_failed(cm->links, entry, "rdma_create_id", errno);
    }
    if (rdma_bind_addr(*id, (struct sockaddr *)&address) != 0)
        return listen_failed(cm->links, entry, "rdma_bind_addr", errno);
    if (rdma_listen(*id, BACKLOG) != 0)
        return listen_failed(cm->links, entry, "rdma_listen", errno);
    return 0;
}

static int listen_everywhere(struct rdmacm *cm)
{
    const struct device *device = cm->links->device;
    bool any = false;
    for (int i = 0; i < device->n_gids; i++) {
        if (!can_bind(&device->gids[i]))
            continue;
        any = true;
        int err = listen_at(cm, i);
        if (err)
            return err;
    }
    if (any)
        return 0;
    return report_set(&cm->links->world->report, -EADDRNOTAVAIL,
                      "rank %d: --connect rdmacm needs a RoCEv2 GID with an IPv4 address, and "
                      "device %s port %u has none; give its interface an address (ip addr add), or "
                      "leave out --connect rdmacm",
                      cm->links->world->rank, device->name, device->port);
}

static void listen_no_more(struct rdmacm *cm)
{
    for (int i = 0; i < GID_USABLE; i++) {
        if (cm->listeners[i])
            rdma_destroy_id(cm->listeners[i]);
        cm->listeners[i] = NULL;
    }
}

/* ---- opening -------------------------------------------------------------------------------- */

static int channel_open(struct rdmacm *cm)
{
    struct sstar_links *links = cm->links;
    cm->channel = rdma_create_event_channel();
    if (!cm->channel)
        return listen_failed(links, &links->device->gids[0], "rdma_create_event_channel", errno);
    int flags = fcntl(cm->channel->fd, F_GETFL);
    if (flags < 0 || fcntl(cm->channel->fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return listen_failed(links, &links->device->gids[0], "fcntl", errno);
    return 0;
}

static int rdmacm_open(struct sstar_links *links)
{
    struct rdmacm *cm = links->cm = calloc(1, sizeof *cm);
    if (!cm)
        return report_set(&links->world->report, -ENOMEM, "out of memory");
    cm->links = links;
    cm->token = hash_text(links->world->config.token);
    cm->qps_per_link = links->attr.queue_pairs + 1;
    if (getrandom(&cm->key, sizeof cm->key, 0) != (ssize_t)sizeof cm->key)
        return report_set(&links->world->report, -EIO, "no random numbers: %s", strerror(errno));
    cm->connections = calloc((size_t)links->n_links * cm->qps_per_link, sizeof *cm->connections);
    if (!cm->connections)
        return report_set(&links->world->report, -ENOMEM, "out of memory");
    for (int i = 0; i < links->n_links; i++)
        for (uint32_t q = 0; q < cm->qps_per_link; q++)
            *cm_connection_of(cm, &links->all[i], q) =
                (struct cm_connection){.cm = cm, .link = &links->all[i], .qp = q};
    int err = channel_open(cm);
    return err ? err : listen_everywhere(cm);
}

static void rdmacm_introduce(const struct sstar_link *link, struct link_introduction *out)
{
    const struct rdmacm *cm = link->links->cm;
    out->cm_key = cm->key;
    for (uint32_t i = 0; i < out->n_gids; i++)
        if (cm->listeners[i])
            out->gids[i].port = ntohs(rdma_get_src_port(cm->listeners[i]));
}

/* ---- connecting ----------------------------------------------------------------------------- */

static int ask_link(struct sstar_link *link)
{
    struct rdmacm *cm = link->links->cm;
    int err = 0;
    if (!can_bind(&link->gid))
        return world_fail(link->world, -EADDRNOTAVAIL,
                          "rank %d: --connect rdmacm needs RoCEv2 GIDs with IPv4 addresses at both "
                          "ends of the link to rank %d, and they share none; leave it out",
                          link->world->rank, link->peer);
    cm->left += link->n_qps;
    for (uint32_t q = 0; q < link->n_qps && link->world->rank < link->peer && !err; q++)
        err = cm_ask(cm_connection_of(cm, link, q));
    return err;
}

/* Ask again where it is time; and whom we wait for. */
static int look_after(struct rdmacm *cm, int *waited_for)
{
    const struct sstar_links *links = cm->links;
    for (int i = 0; i < links->n_links; i++) {
        const struct sstar_link *link = &links->all[i];
        for (uint32_t q = 0; q < link->n_qps; q++) {
            struct cm_connection *c = cm_connection_of(cm, link, q);
            if (c->state != CM_CONNECTED)
                *waited_for = link->peer;
            int err = c->again_ns && clock_ns() >= c->again_ns ? cm_ask(c) : 0;
            if (err)
                return err;
        }
    }
    return 0;
}

static int await_connections(struct rdmacm *cm)
{
    struct waiter w = wait_begin(cm->links->world, "connections through librdmacm", -1, 0);
    uint32_t left = cm->left;
    int err = 0;
    while (cm->left && !err) {
        err = look_after(cm, &w.peer);
        if (!err)
            err = wait_sleep(&w);
        if (cm->left != left)
            wait_progress(&w);
        left = cm->left;
    }
    return err;
}

static int rdmacm_connect(struct sstar_links *links, const struct link_introduction *theirs)
{
    struct rdmacm *cm = links->cm;
    cm->theirs = theirs; /* only now can requests be judged: they wait in the channel so far */
    int err = control_watch(links->world, cm->channel->fd, cm_events_ready, cm);
    cm->watched = !err;
    if (err)
        err = world_fail(links->world, err, "rank %d: events of librdmacm cannot be watched: %s",
                         links->world->rank, strerror(-err));
    for (int i = 0; i < links->n_links && !err; i++)
        if (!links->all[i].local)
            err = ask_link(&links->all[i]);
    if (!err)
        err = await_connections(cm);
    listen_no_more(cm);
    cm->theirs = NULL;
    return err;
}

/* ---- afterwards ----------------------------------------------------------------------------- */

/* A connection that ended unasked, and no news of a death has come since. */
static void rdmacm_tick(struct sstar_links *links)
{
    const struct rdmacm *cm = links->cm;
    if (cm->lost && !cm->leaving && clock_ns() - cm->lost_ns >= control_news_ns(links->world))
        cm_event_failed(cm->lost, RDMA_CM_EVENT_DISCONNECTED, 0, CM_WELCOME);
}

static void rdmacm_leave(struct sstar_links *links)
{
    if (links->cm)
        links->cm->leaving = true;
}

static void rdmacm_close(struct sstar_links *links)
{
    struct rdmacm *cm = links->cm;
    if (!cm)
        return;
    if (cm->watched)
        control_unwatch(links->world, cm->channel->fd);
    listen_no_more(cm);
    size_t n = cm->connections ? (size_t)links->n_links * cm->qps_per_link : 0;
    for (size_t i = 0; i < n; i++) /* all say goodbye before the first is torn down */
        if (cm->connections[i].state == CM_CONNECTED)
            rdma_disconnect(cm->connections[i].id);
    for (size_t i = 0; i < n; i++)
        if (cm->connections[i].id)
            rdma_destroy_id(cm->connections[i].id);
    if (cm->channel)
        rdma_destroy_event_channel(cm->channel);
    free(cm->connections);
    free(cm);
    links->cm = NULL;
}

const struct connector connector_rdmacm = {
    .name = "rdmacm",
    .open = rdmacm_open,
    .introduce = rdmacm_introduce,
    .connect = rdmacm_connect,
    .tick = rdmacm_tick,
    .leave = rdmacm_leave,
    .close = rdmacm_close,
};
