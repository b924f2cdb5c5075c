/* SPDX-License-Identifier: MIT */
/* Queue pairs of a link: made, described to the peer, connected. */
#include "transport/rc.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { HOP_LIMIT = 64, RNR_TIMER_640_US = 12, RNR_RETRIES = 6, MAX_READ_DEPTH = 16 };

static uint32_t share(uint32_t total, uint32_t parts)
{
    return (total + parts - 1) / parts;
}

/* Twice what can be under way: a place comes free only when a signalled request behind it
 * completes, and every fourth part of the queue is signalled. A put with a signal takes two places.
 */
static uint32_t send_depth(const struct sstar_links *links)
{
    const struct sstar_link_attr *a = &links->attr;
    return 2 * (share(a->slots, a->queue_pairs) + 2 * share(a->puts, a->queue_pairs)) + 16;
}

static uint32_t receive_batch(const struct sstar_links *links)
{
    return links->arrival == ARRIVAL_BY_COMPLETION ? 8 : 0;
}

/* Messages and signals under way; on the last queue pair the credits for as many. */
static uint32_t receive_depth(const struct sstar_links *links, uint32_t qp)
{
    const struct sstar_link_attr *a = &links->attr;
    if (links->arrival != ARRIVAL_BY_COMPLETION)
        return 0;
    if (qp == a->queue_pairs)
        return a->slots + a->puts + receive_batch(links);
    return share(a->slots, a->queue_pairs) + a->puts + receive_batch(links);
}

static int make_failed(struct sstar_links *links, int peer, const char *what, int err)
{
    struct device *device = links->device;
    const char *remedy =
        err == ENOMEM ? "; ask for fewer slots or queue pairs, or raise `ulimit -l`" : "";
    return report_set(
        &links->world->report, err ? -err : -EIO,
        "rank %d cannot make %s for rank %d on device %s port %u (%u queue pairs, %u slots, "
        "%u puts): %s%s",
        links->world->rank, what, peer, device->name, device->port, links->attr.queue_pairs,
        links->attr.slots, links->attr.puts, strerror(err ? err : EIO), remedy);
}

/* With ibv_wr_* where the device has it, as ibv_post_send wants it where not. */
static void qp_create(struct sstar_links *links, struct rc_qp *q, struct ibv_qp_cap cap)
{
    const struct verbs *verbs = links->device->verbs;
    struct ibv_qp_init_attr_ex ex = {
        .send_cq = links->cq,
        .recv_cq = links->cq,
        .cap = cap,
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = links->device->pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD};
    if (links->device->has_wr_api)
        q->qp = verbs->create_qp_ex(links->device->context, &ex);
    q->ex = q->qp ? verbs->qp_to_qp_ex(q->qp) : NULL;
    if (q->qp)
        return;
    struct ibv_qp_init_attr plain = {
        .send_cq = links->cq, .recv_cq = links->cq, .cap = cap, .qp_type = IBV_QPT_RC};
    q->qp = verbs->create_qp(links->device->pd, &plain);
}

static int qp_to_init(struct sstar_links *links, struct rc_qp *q)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = links->device->port,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                                  IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};
    return links->device->verbs->modify_qp(
        q->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int qp_open(struct sstar_link *link, uint32_t index)
{
    struct sstar_links *links = link->links;
    struct rc_qp *q = &link->qps[index];
    uint32_t pieces = links->device->attr.max_sge < RC_MAX_SGE
                          ? (uint32_t)links->device->attr.max_sge
                          : RC_MAX_SGE;
    struct ibv_qp_cap cap = {.max_send_wr = send_depth(links),
                             .max_recv_wr = receive_depth(links, index) + 1,
                             .max_send_sge = pieces,
                             .max_recv_sge = 1,
                             .max_inline_data = links->device->max_inline};
    q->index = index;
    q->depth = cap.max_send_wr;
    q->signal_every = q->depth / 4;
    q->receive_batch = receive_batch(links);
    uint32_t ring = 1;
    while (ring < q->depth)
        ring *= 2;
    q->record_mask = ring - 1;
    q->records = calloc(ring, sizeof *q->records);
    if (!q->records)
        return make_failed(links, link->peer, "a queue pair", ENOMEM);
    qp_create(links, q, cap);
    if (!q->qp)
        return make_failed(links, link->peer, "a queue pair", errno);
    if (!q->ex)
        q->chain = calloc(1, sizeof *q->chain);
    if (!q->ex && !q->chain)
        return make_failed(links, link->peer, "a queue pair", ENOMEM);
    if (getrandom(&q->psn, sizeof q->psn, 0) != (ssize_t)sizeof q->psn)
        return make_failed(links, link->peer, "a packet sequence number", errno);
    q->psn &= 0xffffff;
    int err = qp_to_init(links, q);
    return err ? make_failed(links, link->peer, "a queue pair", err) : 0;
}

static int link_qps_open(struct sstar_link *link)
{
    uint32_t k = link->links->attr.queue_pairs + 1;
    link->data_qps = k - 1;
    link->qps = calloc(k, sizeof *link->qps);
    if (!link->qps)
        return make_failed(link->links, link->peer, "queue pairs", ENOMEM);
    int err = 0;
    for (uint32_t i = 0; i < k && !err; i++) {
        link->n_qps = i + 1;
        err = qp_open(link, i);
    }
    return err;
}

static uint64_t completion_entries(const struct sstar_links *links)
{
    uint64_t entries = 16;
    for (int i = 0; i < links->n_links; i++)
        for (uint32_t q = 0; !links->all[i].local && q <= links->attr.queue_pairs; q++)
            entries += send_depth(links) + receive_depth(links, q) + 1;
    return entries;
}

/* Whether the device has room for queues of these depths. */
static int room_check(struct sstar_links *links)
{
    const struct device *device = links->device;
    uint32_t deepest = send_depth(links);
    uint32_t credits = links->attr.queue_pairs;
    if (receive_depth(links, credits) + 1 > deepest)
        deepest = receive_depth(links, credits) + 1;
    if (deepest > (uint32_t)device->attr.max_qp_wr)
        return report_set(
            &links->world->report, -EINVAL,
            "rank %d: links of %u slots and %u puts need queues of %u requests, device "
            "%s has at most %d; ask for fewer slots or puts",
            links->world->rank, links->attr.slots, links->attr.puts, deepest, device->name,
            device->attr.max_qp_wr);
    uint64_t entries = completion_entries(links);
    if (entries > (uint64_t)device->attr.max_cqe)
        return report_set(&links->world->report, -EINVAL,
                          "rank %d: %d links of %u queue pairs need %llu completion entries, "
                          "device %s has %d; ask for fewer slots, puts or queue pairs",
                          links->world->rank, links->n_links, links->attr.queue_pairs,
                          (unsigned long long)entries, device->name, device->attr.max_cqe);
    return 0;
}

int rc_open(struct sstar_links *links)
{
    struct device *device = links->device;
    int err = room_check(links);
    if (err)
        return err;
    int entries = (int)completion_entries(links);
    links->cq = device->verbs->create_cq(device->context, entries, links, NULL, 0);
    if (!links->cq)
        return make_failed(links, -1, "a completion queue", errno);
    for (int i = 0; i < links->n_links && !err; i++)
        if (!links->all[i].local)
            err = link_qps_open(&links->all[i]);
    return err;
}

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
    out->rkey = link->links->region->mr->rkey;
    out->lid = device->lid;
    out->mtu = (uint8_t)device->mtu;
    out->read_depth = read_depth(device);
    memcpy(out->gid, device->gid.raw, sizeof out->gid);
    for (uint32_t i = 0; i < link->n_qps; i++)
        out->qps[i] = (struct qp_introduction){link->qps[i].qp->qp_num, link->qps[i].psn};
}

static int qp_connect(struct sstar_link *link, struct rc_qp *q, const struct link_introduction *it)
{
    const struct device *device = link->links->device;
    uint8_t mine = read_depth(device), depth = it->read_depth < mine ? it->read_depth : mine;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu =
                                   it->mtu < device->mtu ? (enum ibv_mtu)it->mtu : device->mtu,
                               .dest_qp_num = it->qps[q->index].number,
                               .rq_psn = it->qps[q->index].psn,
                               .max_dest_rd_atomic = depth,
                               .min_rnr_timer = RNR_TIMER_640_US,
                               .ah_attr = {.dlid = it->lid, .port_num = device->port}};
    if (device->link_layer == IBV_LINK_LAYER_ETHERNET) {
        attr.ah_attr.is_global = 1;
        memcpy(attr.ah_attr.grh.dgid.raw, it->gid, sizeof it->gid);
        attr.ah_attr.grh.sgid_index = (uint8_t)device->gid_index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
    }
    int err = device->verbs->modify_qp(q->qp, &attr,
                                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                           IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (err)
        return err;
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                               .timeout = RC_ACK_TIMEOUT,
                               .retry_cnt = RC_RETRY_COUNT,
                               .rnr_retry = RNR_RETRIES,
                               .sq_psn = q->psn,
                               .max_rd_atomic = depth};
    return device->verbs->modify_qp(q->qp, &send,
                                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static int fit_check(struct sstar_link *link, const struct link_introduction *it)
{
    const struct device *device = link->links->device;
    if (it->arrival != (uint8_t)device->arrival)
        return world_fail(
            link->world, -EPROTO,
            "links: rank %d's device %s and rank %d's learn of arrivals in different ways; use the "
            "same kind of device and the same wire everywhere",
            link->world->rank, device->name, link->peer);
    if (it->link_layer != device->link_layer)
        return world_fail(
            link->world, -EPROTO, "links: rank %d's device %s is %s and rank %d's is not",
            link->world->rank, device->name,
            device->link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand", link->peer);
    return 0;
}

int rc_connect(struct sstar_link *link, const struct link_introduction *it)
{
    struct sstar_links *links = link->links;
    int err = fit_check(link, it);
    link->peer_slots_address = it->slots_address;
    link->peer_control_address = it->control_address;
    link->peer_rkey = it->rkey;
    for (uint32_t i = 0; i < link->n_qps && !err; i++) {
        struct rc_qp *q = &link->qps[i];
        err = rc_post_receives(link, q, receive_depth(links, i));
        int refused = err ? 0 : qp_connect(link, q, it);
        if (refused)
            err = world_fail(
                link->world, -refused,
                "rank %d cannot connect queue pair 0x%x of device %s port %u, GID %s (index %d), "
                "to queue pair 0x%x of rank %d (%s): %s",
                link->world->rank, q->qp->qp_num, links->device->name, links->device->port,
                links->device->gid_text, links->device->gid_index, it->qps[i].number, link->peer,
                link->world->ranks[link->peer].host, strerror(refused));
    }
    return err;
}

void rc_close(struct sstar_links *links)
{
    for (int i = 0; i < links->n_links; i++) {
        struct sstar_link *link = &links->all[i];
        for (uint32_t j = 0; j < link->n_qps; j++) {
            struct rc_qp *q = &link->qps[j];
            if (q->qp && q->started)
                ibv_wr_abort(q->ex);
            if (q->qp)
                links->device->verbs->destroy_qp(q->qp);
            free(q->chain);
            free(q->records);
        }
        free(link->qps);
    }
    if (links->cq)
        links->device->verbs->destroy_cq(links->cq);
}
