/* SPDX-License-Identifier: MIT */
/* Building work requests, ringing for them, and accounting for what has completed. */
#include "transport/link_carrier.h"
#include "transport/wait.h"
#include <errno.h>
#include <string.h>

static uint64_t stage_begin(const struct sstar_world *world)
{
    return world->timed ? clock_ns() : 0;
}

static void stage_end(struct sstar_world *world, uint64_t *total_ns, uint64_t begun)
{
    if (world->timed)
        *total_ns += clock_ns() - begun;
}

/* Where a queue pair has broken, the completion that broke it says more than the refusal to post.
 */
static bool completion_explains(struct sstar_links *links)
{
    struct ibv_wc wc[LINK_POLL_BATCH];
    int n;
    while ((n = rc_poll(links, wc, LINK_POLL_BATCH)) > 0)
        for (int i = 0; i < n; i++)
            if (wc[i].status != IBV_WC_SUCCESS)
                return rc_completion_failed(links, &wc[i]) != 0;
    return false;
}

static int ring_failed(struct sstar_link *link, const struct rc_qp *q, int err)
{
    struct sstar_world *world = link->world;
    struct device *device = link->links->device;
    if (world->failed || completion_explains(link->links))
        return world->failed;
    return world_fail(
        world, -err,
        "rank %d cannot post to rank %d: device %s port %u, queue pair 0x%x with %u of %u "
        "requests under way: %s",
        world->rank, link->peer, device->name, device->port, q->qp->qp_num,
        q->posted - q->completed, q->depth, strerror(err));
}

static int ring_one(struct sstar_link *link, struct rc_qp *q)
{
    if (link->links->proxy) /* which rings for what was said to be the last */
        return 0;
    uint64_t before = q->post.doorbells;
    int err = post_ring(&q->post);
    link->world->counters.doorbells += q->post.doorbells - before;
    return err ? ring_failed(link, q, -err) : 0;
}

static int request_build(struct sstar_link *link, struct rc_qp *q,
                         const struct post_request *request, bool last)
{
    if (link->links->proxy)
        return link_hand_over(link, q, request, last);
    uint64_t before = q->post.doorbells; /* a long chain is posted in between */
    int err = post_build(&q->post, request);
    link->world->counters.doorbells += q->post.doorbells - before;
    return err ? ring_failed(link, q, -err) : 0;
}

static void build(struct sstar_link *link, struct rc_qp *q, const struct rc_op *op, bool last)
{
    struct sstar_world *world = link->world;
    uint64_t begun = stage_begin(world);
    uint32_t position = q->posted++;
    q->records[position & q->record_mask] = (struct rc_record){.ticket = op->ticket,
                                                               .bytes = op->bytes,
                                                               .opcode = (uint8_t)op->opcode,
                                                               .put = op->put,
                                                               .probe = op->probe};
    q->ticket_unsignalled |= op->ticket != 0;
    unsigned int flags = 0;
    if (++q->unsignalled >= q->signal_every || op->signalled || (last && q->ticket_unsignalled)) {
        flags = IBV_SEND_SIGNALED;
        q->unsignalled = 0;
        q->ticket_unsignalled = false;
    }
    if (op->is_word ||
        (op->inline_data && op->n_sge > 0 && op->bytes <= link->links->device->max_inline))
        flags |= IBV_SEND_INLINE;
    const struct ibv_sge word = {.addr = (uintptr_t)&op->word, .length = sizeof op->word};
    const struct post_request request = {.opcode = op->opcode,
                                         .flags = flags,
                                         .wr_id = wr_id_of(link, q->index, position),
                                         .remote_address = op->remote_address,
                                         .add = op->add,
                                         .rkey = op->rkey,
                                         .immediate = op->immediate,
                                         .n_sge = op->is_word ? 1 : op->n_sge,
                                         .sge = op->is_word ? &word : op->sge,
                                         .is_word = op->is_word};
    request_build(link, q, &request, last); /* an error is kept in the world */
    world->counters.wqes++;
    stage_end(world, &world->counters.build_ns, begun);
}

static void build_held(struct sstar_link *link, struct rc_qp *q, bool last)
{
    if (!q->is_held)
        return;
    q->is_held = false;
    build(link, q, &q->held, last);
}

static void build_one(struct sstar_link *link, uint32_t qp, const struct rc_op *op,
                      enum rc_follow follow)
{
    struct rc_qp *q = &link->qps[qp];
    build_held(link, q, false);
    if (follow == RC_MORE) {
        size_t unused = sizeof op->sge[0] * (size_t)(RC_MAX_SGE - op->n_sge);
        memcpy(&q->held, op, sizeof *op - unused); /* the pieces stand last */
        q->is_held = true;
    } else {
        build(link, q, op, follow == RC_LAST);
    }
    link->pending |= 1u << qp;
    link->links->any_pending = true;
}

/* Bytes offset .. offset + bytes of what `op` gathers. */
static void take_pieces(struct rc_op *part, const struct rc_op *op, uint32_t offset, uint32_t bytes)
{
    part->n_sge = 0;
    for (int i = 0; bytes > 0;
         offset = offset > op->sge[i].length ? offset - op->sge[i].length : 0, i++) {
        const struct ibv_sge *whole = &op->sge[i];
        if (offset >= whole->length)
            continue;
        uint32_t some = whole->length - offset < bytes ? whole->length - offset : bytes;
        part->sge[part->n_sge++] = (struct ibv_sge){whole->addr + offset, some, whole->lkey};
        bytes -= some;
    }
}

/* Data first; the last part is what was asked for, with its immediate and its ticket. The odd part
 * is the first one, so that the last holds the trailer of a message whole: by it the receiver
 * learns that all is there. */
static void build_parts(struct sstar_link *link, uint32_t qp, const struct rc_op *op,
                        enum rc_follow follow)
{
    uint32_t part = rc_part_bytes(link->links->device, op->bytes), offset = 0;
    struct rc_op one = *op;
    one.opcode = op->opcode == IBV_WR_RDMA_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    one.ticket = 0;
    one.put = one.signalled = one.inline_data = false;
    uint32_t odd = op->bytes % part;
    for (; op->bytes - offset > part; offset += one.bytes) {
        one.remote_address = op->remote_address + offset;
        one.bytes = offset == 0 && odd > 0 ? odd : part;
        take_pieces(&one, op, offset, one.bytes);
        build_one(link, qp, &one, RC_FOLLOWED);
    }
    struct rc_op last = *op;
    last.remote_address = op->remote_address + offset;
    last.bytes = op->bytes - offset;
    take_pieces(&last, op, offset, last.bytes);
    build_one(link, qp, &last, follow);
}

void rc_build(struct sstar_link *link, uint32_t qp, const struct rc_op *op, enum rc_follow follow)
{
    if (rc_parts(link->links->device, op->bytes) > 1)
        build_parts(link, qp, op, follow);
    else
        build_one(link, qp, op, follow);
}

int rc_ring(struct sstar_link *link)
{
    uint32_t pending = link->pending;
    if (!pending)
        return 0;
    struct sstar_world *world = link->world;
    int err = 0;
    link->pending = 0;
    for (uint32_t rest = pending; rest; rest &= rest - 1)
        build_held(link, &link->qps[__builtin_ctz(rest)], true);
    uint64_t begun = stage_begin(world);
    for (; pending && !err; pending &= pending - 1)
        err = ring_one(link, &link->qps[__builtin_ctz(pending)]);
    stage_end(world, &world->counters.ring_ns, begun);
    return err;
}

void rc_complete(struct sstar_link *link, struct rc_qp *q, uint32_t position)
{
    for (; q->completed != position + 1; q->completed++) {
        const struct rc_record *record = &q->records[q->completed & q->record_mask];
        if (!record->ticket)
            continue;
        link->puts_under_way -= record->put;
        link->ticket_done[record->ticket & link->ticket_mask] = 1;
    }
    while (link->tickets_done < link->tickets) {
        uint8_t *done = &link->ticket_done[(link->tickets_done + 1) & link->ticket_mask];
        if (!*done)
            break;
        *done = 0;
        link->tickets_done++;
    }
}

int rc_post_receives(struct sstar_link *link, struct rc_qp *q, uint32_t n)
{
    uint64_t wr_id = WR_ID_RECEIVE | wr_id_of(link, q->index, 0);
    if (link->links->proxy)
        return link_hand_over_receives(link, q, n, wr_id);
    int err = post_receives(&q->post, n, wr_id);
    return err ? world_fail(
                     link->world, err,
                     "rank %d cannot post receives for rank %d on queue pair 0x%x of device %s: %s",
                     link->world->rank, link->peer, q->qp->qp_num, link->links->device->name,
                     strerror(-err))
               : 0;
}
