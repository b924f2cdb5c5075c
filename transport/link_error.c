/* SPDX-License-Identifier: MIT */
/* A completion with an error, in words. Of such a completion only wr_id, status, qp_num and
 * vendor_err are defined; the rest is known from what was posted. */
#include "transport/rc.h"
#include "transport/wait.h"
#include <errno.h>
#include <stdio.h>

enum { GRACE_NS = 200000000, CAUSE_BATCHES = 64 };

struct explanation {
    enum ibv_wc_status status;
    const char *text, *look_at;
};
static const struct explanation explanations[] = {
    {IBV_WC_LOC_LEN_ERR, "local length error",
     "the message is longer than the peer's receive or the port allows"},
    {IBV_WC_LOC_QP_OP_ERR, "local queue pair operation error",
     "the request does not suit the queue pair"},
    {IBV_WC_LOC_PROT_ERR, "local protection error",
     "the local memory was deregistered or is not within its region"},
    {IBV_WC_WR_FLUSH_ERR, "flushed", "an earlier request on this queue pair failed"},
    {IBV_WC_BAD_RESP_ERR, "bad response", "the peer's NIC answered with something unexpected"},
    {IBV_WC_LOC_ACCESS_ERR, "local access error", "the local memory may not be written by the NIC"},
    {IBV_WC_REM_INV_REQ_ERR, "remote invalid request",
     "the peer's NIC does not take this operation"},
    {IBV_WC_REM_ACCESS_ERR, "remote access error",
     "the peer's memory was deregistered or is not within its region"},
    {IBV_WC_REM_OP_ERR, "remote operation error", "the peer's NIC could not carry it out"},
    {IBV_WC_RETRY_EXC_ERR, "no answer after all retries",
     "the peer is gone, its port is down, or the fabric loses packets"},
    {IBV_WC_RNR_RETRY_EXC_ERR, "receiver not ready after all retries",
     "the peer has no receive posted"},
    {IBV_WC_REM_ABORT_ERR, "aborted by the peer", "the peer closed its queue pair"},
    {IBV_WC_FATAL_ERR, "fatal device error", "the device; see the kernel's log"},
    {IBV_WC_RESP_TIMEOUT_ERR, "response timeout", "the peer or the fabric"},
};

static const struct explanation *explain(enum ibv_wc_status status)
{
    static const struct explanation other = {IBV_WC_GENERAL_ERR, "unknown error",
                                             "the device; see the kernel's log"};
    for (size_t i = 0; i < sizeof explanations / sizeof *explanations; i++)
        if (explanations[i].status == status)
            return &explanations[i];
    return &other;
}

static const char *operation_name(uint8_t opcode)
{
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
        return "RDMA write";
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return "RDMA write with immediate";
    case IBV_WR_RDMA_READ:
        return "RDMA read";
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return "atomic fetch and add";
    default:
        return "request";
    }
}

/* Errors of ours and of what the peer was asked, which no death explains. */
static bool is_ours(enum ibv_wc_status status)
{
    return status == IBV_WC_LOC_LEN_ERR || status == IBV_WC_LOC_QP_OP_ERR ||
           status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_ACCESS_ERR;
}

/* When a process dies its queue pairs and memory go with it, and the NIC may notice before the
 * control plane does: that sentence names the rank, so it gets a moment to be said. */
int link_peer_lost(const struct sstar_link *link, const char *text)
{
    struct sstar_world *world = link->world;
    uint64_t until = clock_ns() + GRACE_NS;
    int err = 0;
    while (!err && !world->failed && clock_ns() < until) {
        err = control_sleep(world, 2000);
        if (!err)
            err = control_poll(world);
    }
    return world_fail(world, -ECONNRESET, "%s", text); /* the first failure stays */
}

/* The queue pair that broke flushes what stood behind the cause, and others of the same peer may be
 * polled first: look for the cause among what has come. */
static struct ibv_wc find_cause(struct sstar_links *links, struct ibv_wc wc)
{
    struct ibv_wc more[LINK_POLL_BATCH];
    for (int batch = 0; batch < CAUSE_BATCHES && wc.status == IBV_WC_WR_FLUSH_ERR; batch++) {
        int n = rc_poll(links, more, LINK_POLL_BATCH);
        for (int i = 0; i < n; i++)
            if (more[i].status != IBV_WC_SUCCESS && more[i].status != IBV_WC_WR_FLUSH_ERR)
                return more[i];
    }
    return wc;
}

static bool port_is_down(const struct device *device)
{
    struct ibv_port_attr port;
    return device->verbs->query_port(device->context, device->port, &port) == 0 &&
           port.state != IBV_PORT_ACTIVE;
}

void links_describe(const struct sstar_world *world, int rank, char *text, size_t size)
{
    text[0] = '\0';
    for (const struct sstar_links *links = world->links; links; links = links->next) {
        const struct sstar_link *link = links->by_rank[rank];
        if (!link || link->local)
            continue;
        char ours[64], theirs[64];
        gid_text(&link->gid, ours, sizeof ours);
        gid_text(&link->peer_gid, theirs, sizeof theirs);
        snprintf(text, size, "the link to rank %d (%s), device %s port %u%s, GID %s to %s", rank,
                 world->ranks[rank].host, links->device->name, links->device->port,
                 port_is_down(links->device) ? " (which is down)" : "", ours, theirs);
        return;
    }
    if (world->device)
        snprintf(text, size, "this rank's device %s port %u%s, GID %s", world->device->name,
                 world->device->port, port_is_down(world->device) ? " (which is down)" : "",
                 world->device->gid_text);
}

/* A port that is down explains more than the status, which differs between devices. */
static const char *look_at(const struct device *device, const struct explanation *why)
{
    if (port_is_down(device))
        return "the port of this rank, which is down";
    return why->look_at;
}

int rc_completion_failed(struct sstar_links *links, const struct ibv_wc *first)
{
    struct sstar_world *world = links->world;
    struct ibv_wc found = find_cause(links, *first), *wc = &found;
    const struct sstar_link *link = &links->all[wr_id_link(wc->wr_id)];
    const struct rc_qp *q = &link->qps[wr_id_qp(wc->wr_id)];
    if (world->failed)
        return world->failed;
    const struct explanation *why = explain(wc->status);
    bool receive = wc->wr_id & WR_ID_RECEIVE;
    /* Of what goes by sstar_post the lane keeps the record. */
    bool posted = links->attr.posts && q->index < link->data_qps;
    struct rc_record record = q->records[(uint32_t)wc->wr_id & q->record_mask];
    if (posted)
        record = (struct rc_record){.bytes = wc->byte_len, .opcode = (uint8_t)wc->opcode};
    char waited[64] = "", gid[64], text[448];
    gid_text(&link->gid, gid, sizeof gid);
    if (wc->status == IBV_WC_RETRY_EXC_ERR)
        snprintf(waited, sizeof waited, " (about %.1f s at timeout %d, retries %d)",
                 rc_detection_s(link), link->ack_timeout, link->retry_count);
    snprintf(
        text, sizeof text,
        "rank %d, link to rank %d (%s), device %s port %u, GID %s, queue pair 0x%x: %s of %u bytes "
        "failed: %s%s (status %d, vendor 0x%x); look at: %s",
        world->rank, link->peer, world->ranks[link->peer].host, links->device->name,
        links->device->port, gid, q->qp->qp_num,
        receive ? "receive" : operation_name(record.opcode), receive ? 0 : record.bytes, why->text,
        waited, (int)wc->status, wc->vendor_err, look_at(links->device, why));
    return is_ours(wc->status) ? world_fail(world, -EIO, "%s", text) : link_peer_lost(link, text);
}
