/* SPDX-License-Identifier: MIT */
/*
 * Links through the NIC, from introduction to connection: what both ends agree on. How the queue
 * pairs then come to know each other is the connector's business.
 */
#include "transport/connector.h"
#include "transport/rc.h"
#include <errno.h>
#include <string.h>

enum { RNR_TIMER_640_US = 12, MAX_READ_DEPTH = 16 };

/* ---- introduction --------------------------------------------------------------------------- */

static uint8_t read_depth(const struct device *device)
{
    int depth = device->attr.max_qp_rd_atom < device->attr.max_qp_init_rd_atom
                    ? device->attr.max_qp_rd_atom
                    : device->attr.max_qp_init_rd_atom;
    return (uint8_t)(depth < 1 ? 1 : depth > MAX_READ_DEPTH ? MAX_READ_DEPTH : depth);
}

void rc_introduce(const struct sstar_link *link, struct link_introduction *out)
{
    const struct device *device = link->links->device;
    out->arrival = (uint8_t)link->links->arrival;
    out->link_layer = device->link_layer;
    out->connect = (uint32_t)link->world->config.connect;
    out->rkey = link->links->region->mr->rkey;
    out->lid = device->lid;
    out->mtu = (uint8_t)device->mtu;
    out->read_depth = read_depth(device);
    out->n_gids = (uint32_t)device->n_gids;
    for (int i = 0; i < device->n_gids; i++) {
        const struct gid_entry *entry = &device->gids[i];
        out->gids[i].type = entry->type;
        out->gids[i].index = (uint16_t)entry->index;
        memcpy(out->gids[i].gid, entry->gid.raw, sizeof entry->gid.raw);
    }
    for (uint32_t i = 0; i < link->n_qps; i++)
        out->qps[i] = (struct qp_introduction){link->qps[i].qp->qp_num, link->qps[i].psn};
    device->connector->introduce(link, out);
}

/* ---- agreement ------------------------------------------------------------------------------ */

static int fit_check(struct sstar_link *link, const struct link_introduction *it)
{
    const struct device *device = link->links->device;
    int rank = link->world->rank;
    if (it->arrival != (uint8_t)device->arrival)
        return world_fail(
            link->world, -EPROTO,
            "links: rank %d's device %s and rank %d's learn of arrivals in different ways; use the "
            "same kind of device and the same wire everywhere",
            rank, device->name, link->peer);
    if (it->link_layer != device->link_layer)
        return world_fail(
            link->world, -EPROTO, "links: rank %d's device %s is %s and rank %d's is not", rank,
            device->name, device->link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand",
            link->peer);
    if (it->connect != (uint32_t)link->world->config.connect)
        return world_fail(link->world, -EPROTO,
                          "links: rank %d connects by %s and rank %d in another way; give all the "
                          "same --connect",
                          rank, device->connector->name, link->peer);
    return 0;
}

static int gid_settle(struct sstar_link *link, const struct link_introduction *it)
{
    const struct device *device = link->links->device;
    struct gid_entry theirs[GID_USABLE];
    int n = it->n_gids < GID_USABLE ? (int)it->n_gids : GID_USABLE, ours = 0, their = 0;
    for (int i = 0; i < n; i++) {
        theirs[i] = (struct gid_entry){.index = it->gids[i].index, .type = it->gids[i].type};
        memcpy(theirs[i].gid.raw, it->gids[i].gid, sizeof theirs[i].gid.raw);
    }
    char why[280];
    int rank = link->world->rank;
    int err =
        gid_agree((struct gid_table){device->gids, device->n_gids}, (struct gid_table){theirs, n},
                  device->link_layer == IBV_LINK_LAYER_ETHERNET, rank < link->peer, &ours, &their,
                  why, sizeof why);
    if (err)
        return world_fail(link->world, err,
                          "link of rank %d, device %s port %u, to rank %d (%s): their GID tables "
                          "share no type and family of address: %s; give both interfaces IPv4 "
                          "addresses, and see sstar devices on both hosts",
                          rank, device->name, device->port, link->peer,
                          link->world->ranks[link->peer].host, why);
    link->gid = device->gids[ours];
    link->peer_gid = theirs[their];
    return 0;
}

static int link_settle(struct sstar_link *link, const struct link_introduction *it)
{
    const struct device *device = link->links->device;
    int err = fit_check(link, it);
    if (!err)
        err = gid_settle(link, it);
    if (err)
        return err;
    uint8_t mine = read_depth(device);
    link->read_depth = it->read_depth < mine ? it->read_depth : mine;
    link->mtu = it->mtu < device->mtu ? (enum ibv_mtu)it->mtu : device->mtu;
    link->peer_slots_address = it->slots_address;
    link->peer_control_address = it->control_address;
    link->peer_rkey = it->rkey;
    for (uint32_t i = 0; i < link->n_qps && !err; i++)
        err = rc_post_receives(link, &link->qps[i], rc_receive_depth(link->links, i));
    return err;
}

/* ---- attributes that are ours, whoever connects --------------------------------------------- */

void rc_attr_rtr(const struct sstar_link *link, struct ibv_qp_attr *attr)
{
    const struct sstar_config *config = &link->world->config;
    if (attr->path_mtu > link->mtu)
        attr->path_mtu = link->mtu;
    attr->max_dest_rd_atomic = link->read_depth;
    attr->min_rnr_timer = RNR_TIMER_640_US;
    if (config->traffic_class >= 0)
        attr->ah_attr.grh.traffic_class = (uint8_t)config->traffic_class;
    if (config->service_level >= 0)
        attr->ah_attr.sl = (uint8_t)config->service_level;
}

void rc_attr_rts(const struct sstar_link *link, struct ibv_qp_attr *attr)
{
    attr->max_rd_atomic = link->read_depth;
    attr->timeout = link->links->device->ack_timeout;
    attr->retry_cnt = RC_RETRY_COUNT;
    attr->rnr_retry = RC_RNR_RETRIES;
}

int rc_modify_failed(const struct sstar_link *link, uint32_t qp, uint32_t number, int error)
{
    const struct device *device = link->links->device;
    char gid[64];
    gid_text(&link->gid, gid, sizeof gid);
    return world_fail(
        link->world, -error,
        "rank %d cannot connect queue pair 0x%x of device %s port %u, GID %s (index %d), to queue "
        "pair 0x%x of rank %d (%s): %s",
        link->world->rank, link->qps[qp].qp->qp_num, device->name, device->port, gid,
        link->gid.index, number, link->peer, link->world->ranks[link->peer].host, strerror(error));
}

/* ---- connection ----------------------------------------------------------------------------- */

double rc_detection_s(const struct sstar_link *link)
{
    return 4.096e-6 * (double)(1u << link->ack_timeout) * (link->retry_count + 1);
}

/* What the queue pairs have in the end, by their own word: devices and connection managers round
 * and replace. */
static int link_read_back(struct sstar_link *link)
{
    const struct device *device = link->links->device;
    struct ibv_qp *qp = link->qps[0].qp;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    int err = device->verbs->query_qp(
        qp, &attr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT, &init);
    if (err)
        return rc_modify_failed(link, 0, 0, err);
    link->ack_timeout = attr.timeout;
    link->retry_count = attr.retry_cnt;
    for (int i = 0; attr.ah_attr.is_global && i < device->n_gids; i++)
        if (device->gids[i].index == attr.ah_attr.grh.sgid_index)
            link->gid = device->gids[i];
    char gid[64], peer_gid[64];
    gid_text(&link->gid, gid, sizeof gid);
    gid_text(&link->peer_gid, peer_gid, sizeof peer_gid);
    log_line(&link->world->log, SSTAR_LOG_INFO,
             "link to rank %d connected by %s: %u queue pairs of device %s port %u, GID %s index "
             "%d to %s, MTU %d, traffic class %u, service level %u; a dead peer is noticed after "
             "about %.1f s (timeout %u, retries %u)",
             link->peer, device->connector->name, link->n_qps, device->name, device->port, gid,
             link->gid.index, peer_gid, 128 << attr.path_mtu, attr.ah_attr.grh.traffic_class,
             attr.ah_attr.sl, rc_detection_s(link), attr.timeout, attr.retry_cnt);
    return 0;
}

int rc_connect(struct sstar_links *links, const struct link_introduction *theirs)
{
    int err = 0;
    for (int i = 0; i < links->n_links && !err; i++)
        if (!links->all[i].local)
            err = link_settle(&links->all[i], &theirs[links->all[i].peer]);
    if (!err)
        err = links->device->connector->connect(links, theirs);
    for (int i = 0; i < links->n_links && !err; i++)
        if (!links->all[i].local)
            err = link_read_back(&links->all[i]);
    return err;
}
