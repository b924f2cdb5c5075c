/* SPDX-License-Identifier: MIT */
/* Moving links through the NIC on: completions, arrivals, credit. */
#include "transport/link_carrier.h"
#include "transport/wait.h"
#include <errno.h>
#include <string.h>

enum {
    QUIET_LOOK = 64,    /* polls without an event between looks at the clock */
    QUIET_NS = 2000000, /* so long nothing came: tell peers what little credit they are owed */
    POLL_BATCHES = 8,   /* at most so many batches in one call */
    CREDIT_BITS = 15,
};

/* ---- credit --------------------------------------------------------------------------------- */

/* `value` is the low `bits` of a count that only grows and is at most `window` ahead of *count.
 * Counts that overtook each other on the way are out of the window and change nothing. */
static void count_advance(uint64_t *count, uint32_t value, uint32_t bits, uint32_t window)
{
    uint32_t mask = bits == 32 ? UINT32_MAX : (1u << bits) - 1;
    uint32_t ahead = (value - (uint32_t)*count) & mask;
    if (ahead <= window)
        *count += ahead;
}

void rc_credited(struct sstar_link *link, uint32_t credit, uint32_t bits)
{
    count_advance(&link->credited, credit, bits, link->slots);
}

void rc_signals_credited(struct sstar_link *link, uint32_t count, uint32_t bits)
{
    count_advance(&link->signals_credited, count, bits, link->puts);
}

int rc_tell_credit(struct sstar_link *link, bool force)
{
    uint64_t messages = link->released - link->credit_told;
    uint64_t signals = link->signals_seen - link->signals_told;
    bool half =
        (messages > 0 && messages * 2 >= link->slots) || (signals > 0 && signals * 2 >= link->puts);
    if (!half && !(force && messages + signals > 0)) {
        link->credit_due = false;
        return 0;
    }
    uint32_t qp = link->data_qps; /* of its own, so that it does not wait behind messages */
    if (!rc_place(&link->qps[qp], 1)) {
        link->credit_due = link->links->any_credit_due = true;
        return 0;
    }
    link->credit_due = false;
    struct rc_op op = {.rkey = link->peer_rkey,
                       .remote_address =
                           link->peer_control_address + offsetof(struct link_control, credit)};
    if (link->links->arrival == ARRIVAL_IN_MEMORY) {
        op.opcode = IBV_WR_RDMA_WRITE;
        op.is_word = true;
        op.word = htole64(link->released);
        op.bytes = sizeof op.word;
    } else {
        uint32_t mask = (1u << CREDIT_BITS) - 1;
        op.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        op.immediate =
            immediate_make(IMM_CREDIT, ((uint32_t)link->signals_seen & mask) << CREDIT_BITS |
                                           ((uint32_t)link->released & mask));
    }
    link->credit_told = link->released;
    link->signals_told = link->signals_seen;
    rc_build(link, qp, &op, RC_LAST);
    link->world->counters.credits++;
    return rc_ring(link);
}

static int tell_all(struct sstar_links *links, bool force)
{
    int err = 0;
    links->any_credit_due = false;
    for (int i = 0; i < links->n_links && !err; i++) {
        struct sstar_link *link = &links->all[i];
        if (!link->local && (force || link->credit_due))
            err = rc_tell_credit(link, force);
    }
    return err;
}

/* Credit below half the slots waits for a message the other way; when nothing moves for a while it
 * is told all the same, so that a sender learns that everything was consumed. */
int rc_quiet(struct sstar_links *links)
{
    if (links->closing)
        return 0;
    uint64_t now = clock_ns();
    if (links->quiet_since_ns == 0)
        links->quiet_since_ns = now;
    if (now - links->quiet_since_ns < QUIET_NS)
        return 0;
    links->quiet_since_ns = now;
    int err = tell_all(links, true);
    return err ? err : rc_probe(links, now);
}

/* ---- completions ---------------------------------------------------------------------------- */

static void arrived(struct sstar_link *link, uint32_t immediate)
{
    uint32_t value = immediate & 0x3fffffff, mask = (1u << CREDIT_BITS) - 1;
    switch (immediate >> 30) {
    case IMM_MESSAGE:
        if (link->slots)
            link->arrived[(value - 1) & link->slot_mask] = 1;
        break;
    case IMM_SIGNAL:
        link->signals_seen++;
        if ((link->signals_seen - link->signals_told) * 2 >= link->puts)
            link->credit_due = link->links->any_credit_due = true;
        break;
    case IMM_CREDIT:
        rc_credited(link, value & mask, CREDIT_BITS);
        rc_signals_credited(link, value >> CREDIT_BITS, CREDIT_BITS);
        break;
    default:
        break;
    }
}

static int receive_done(struct sstar_link *link, struct rc_qp *q, const struct ibv_wc *wc)
{
    /* Posted again before the credit for it can go out, but for a batch that is posted beyond need.
     */
    q->receives_due++;
    arrived(link, be32toh(wc->imm_data));
    if (q->receives_due < q->receive_batch)
        return 0;
    uint32_t n = q->receives_due;
    q->receives_due = 0;
    return rc_post_receives(link, q, n);
}

static int completion(struct sstar_links *links, const struct ibv_wc *wc)
{
    if (wc->status != IBV_WC_SUCCESS)
        return rc_completion_failed(links, wc);
    struct sstar_link *link = &links->all[wr_id_link(wc->wr_id)];
    struct rc_qp *q = &link->qps[wr_id_qp(wc->wr_id)];
    if (wc->wr_id & WR_ID_RECEIVE)
        return receive_done(link, q, wc);
    links->probes_answered += rc_probe_answered(link, q, (uint32_t)wc->wr_id);
    rc_complete(link, q, (uint32_t)wc->wr_id);
    return 0;
}

int rc_poll_failed(struct sstar_links *links)
{
    return world_fail(links->world, -EIO,
                      "rank %d cannot poll its completion queue on device %s port %u (overrun?)",
                      links->world->rank, links->device->name, links->device->port);
}

int rc_poll(struct sstar_links *links, struct ibv_wc *wc, int most)
{
    return links->carrier ? link_carrier_poll(links, wc, most)
                          : links->device->verbs->poll_cq(links->cq, most, wc);
}

static int poll(struct sstar_links *links, struct ibv_wc *wc)
{
    struct sstar_world *world = links->world;
    uint64_t begun = world->timed ? clock_ns() : 0;
    int n = rc_poll(links, wc, LINK_POLL_BATCH);
    if (world->timed)
        world->counters.poll_ns += clock_ns() - begun;
    if (n < 0)
        return world->failed ? world->failed : rc_poll_failed(links);
    world->counters.cqes += (uint64_t)n;
    return n;
}

static int ring_all(struct sstar_links *links)
{
    int err = 0;
    links->any_pending = false;
    for (int i = 0; i < links->n_links && !err; i++)
        if (links->all[i].pending)
            err = rc_ring(&links->all[i]);
    return err;
}

int rc_progress(struct sstar_links *links)
{
    struct ibv_wc wc[LINK_POLL_BATCH];
    int events = 0, n = LINK_POLL_BATCH, err = 0;
    /* Whoever makes progress waits for something; what was built and not rung for may be just that.
     */
    if (links->moving)
        return 0;
    links->moving = true;
    uint64_t probes = links->probes_answered;
    for (struct sstar_links *set = links->world->links; set && !err; set = set->next)
        if (set->any_pending)
            err = ring_all(set);
    for (int batch = 0; batch < POLL_BATCHES && n == LINK_POLL_BATCH && !err; batch++) {
        n = poll(links, wc);
        for (int i = 0; i < n && !err; i++)
            err = completion(links, &wc[i]);
        events += n > 0 ? n : 0;
        err = n < 0 ? n : err;
    }
    if (!err && links->any_credit_due && !links->closing)
        err = tell_all(links, false);
    events -= (int)(links->probes_answered - probes); /* they are no progress */
    if (events > 0)
        links->quiet_since_ns = links->silent_since_ns = links->quiet = 0;
    else if (!err && ++links->quiet % QUIET_LOOK == 0)
        err = rc_quiet(links);
    links->moving = false;
    return err ? err : events;
}

/* ---- before closing ------------------------------------------------------------------------- */

static bool drained(const struct sstar_link *link)
{
    for (uint32_t i = 0; i < link->n_qps; i++)
        if (link->qps[i].completed != link->qps[i].posted)
            return false;
    return true;
}

int rc_drain(struct sstar_link *link)
{
    /* A write without data, signalled, behind what has been posted unsignalled. */
    struct rc_op op = {.opcode = IBV_WR_RDMA_WRITE,
                       .rkey = link->peer_rkey,
                       .remote_address = link->peer_control_address,
                       .signalled = true};
    struct waiter w = wait_begin(link->world, "an empty send queue", link->peer, link->sent);
    uint32_t todo = (1u << link->n_qps) - 1;
    int err = 0;
    while (!err && (todo || !drained(link))) {
        for (uint32_t i = 0; i < link->n_qps; i++) {
            if (!(todo & 1u << i) || !rc_place(&link->qps[i], 1))
                continue;
            todo &= ~(1u << i);
            if (link->qps[i].unsignalled > 0 || link->qps[i].is_held)
                rc_build(link, i, &op, RC_LAST);
        }
        int events = rc_progress(link->links);
        if (events < 0)
            return events;
        if (events > 0)
            wait_progress(&w);
        err = todo || !drained(link) ? wait_step(&w) : 0;
    }
    return err;
}
