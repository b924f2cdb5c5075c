/* SPDX-License-Identifier: MIT */
/* Queue pairs of a link: made, up to INIT, and destroyed. */
#include "transport/connector.h"
#include "transport/rc.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

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
    uint32_t parts = rc_parts(links->device, (uint64_t)a->slot_bytes + LINK_TRAILER_BYTES);
    uint32_t depth =
        2 * (parts * share(a->slots, a->queue_pairs) + 2 * share(a->puts, a->queue_pairs)) + 16;
    uint32_t of_one_put = a->puts && links->device->part_bytes ? 4 * RC_MOST_PARTS : 0;
    return depth > of_one_put ? depth : of_one_put;
}

static uint32_t receive_batch(const struct sstar_links *links)
{
    return links->arrival == ARRIVAL_BY_COMPLETION ? 8 : 0;
}

/* Messages and signals under way; on the last queue pair the credits for as many. */
uint32_t rc_receive_depth(const struct sstar_links *links, uint32_t qp)
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
static int qp_create(struct sstar_links *links, struct rc_qp *q, struct ibv_qp_cap cap)
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
    if (q->qp)
        return post_open(&q->post, verbs, q->qp, verbs->qp_to_qp_ex(q->qp));
    struct ibv_qp_init_attr plain = {
        .send_cq = links->cq, .recv_cq = links->cq, .cap = cap, .qp_type = IBV_QPT_RC};
    q->qp = verbs->create_qp(links->device->pd, &plain);
    return q->qp ? post_open(&q->post, verbs, q->qp, NULL) : errno ? -errno : -EIO;
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
                             .max_recv_wr = rc_receive_depth(links, index) + 1,
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
    int err = qp_create(links, q, cap);
    if (err)
        return make_failed(links, link->peer, "a queue pair", -err);
    if (getrandom(&q->psn, sizeof q->psn, 0) != (ssize_t)sizeof q->psn)
        return make_failed(links, link->peer, "a packet sequence number", errno);
    q->psn &= 0xffffff;
    err = qp_to_init(links, q);
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
            entries += send_depth(links) + rc_receive_depth(links, q) + 1;
    return entries;
}

/* Whether the device has room for queues of these depths. */
static int room_check(struct sstar_links *links)
{
    const struct device *device = links->device;
    uint32_t deepest = send_depth(links);
    uint32_t credits = links->attr.queue_pairs;
    if (rc_receive_depth(links, credits) + 1 > deepest)
        deepest = rc_receive_depth(links, credits) + 1;
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
    return err ? err : links->device->connector->open(links);
}

void rc_close(struct sstar_links *links)
{
    if (links->device)
        links->device->connector->close(links);
    for (int i = 0; i < links->n_links; i++) {
        struct sstar_link *link = &links->all[i];
        for (uint32_t j = 0; j < link->n_qps; j++) {
            struct rc_qp *q = &link->qps[j];
            post_close(&q->post);
            if (q->qp)
                links->device->verbs->destroy_qp(q->qp);
            free(q->records);
        }
        free(link->qps);
    }
    if (links->cq)
        links->device->verbs->destroy_cq(links->cq);
}
