/* SPDX-License-Identifier: MIT */
/*
 * Links whose control path is not the world's thread: requests become descriptors for a proxy, and
 * completions come back through its carrier. Above rc_build and rc_poll nothing knows of it.
 */
#include "transport/link_carrier.h"
#include "transport/wait.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening and closing -------------------------------------------------------------------- */

static int lanes_fill(struct sstar_links *links, struct carrier *c)
{
    for (int i = 0; i < links->n_links; i++) {
        struct sstar_link *link = &links->all[i];
        for (uint32_t q = 0; q < link->n_qps; q++) {
            struct lane *lane = &c->lanes[(uint32_t)i * c->lanes_per_link + q];
            lane->post = &link->qps[q].post;
            lane->wr_id = wr_id_of(link, q, 0);
            if (links->attr.posts && q < link->data_qps) {
                int err = carrier_lane_tells(lane, link->qps[q].depth);
                if (err)
                    return err;
            }
        }
    }
    return 0;
}

int link_carrier_open(struct sstar_links *links)
{
    struct sstar_world *world = links->world;
    bool by_proxy = world->config.control == SSTAR_CONTROL_PROXY;
    if (!by_proxy && !links->attr.posts)
        return 0;
    struct carrier *c = aligned_alloc(alignof(struct carrier), sizeof *c);
    if (!c)
        return report_set(&world->report, -ENOMEM, "out of memory");
    memset(c, 0, sizeof *c);
    links->carrier = c;
    c->verbs = links->device->verbs;
    c->cq = links->cq;
    c->lanes_per_link = links->attr.queue_pairs + 1;
    c->links_wait = !links->attr.posts;
    uint64_t lanes = (uint64_t)links->n_links * c->lanes_per_link;
    if (lanes > UINT16_MAX)
        return report_set(&world->report, -EINVAL,
                          "rank %d: %llu queue pairs in one set of links are more than a proxy "
                          "takes (%d); ask for fewer, or for direct control",
                          world->rank, (unsigned long long)lanes, UINT16_MAX);
    int err = carrier_open(c, (uint32_t)lanes, (uint32_t)links->cq->cqe + 1);
    if (!err)
        err = lanes_fill(links, c);
    if (err)
        return report_set(&world->report, err, "out of memory");
    return by_proxy ? proxy_take_charge(world, c, &links->proxy) : 0;
}

int link_carrier_close(struct sstar_links *links)
{
    struct carrier *c = links->carrier;
    if (!c)
        return 0;
    if (links->proxy) {
        int err = proxy_release(links->world, links->proxy, c);
        if (err)
            return err;
    }
    for (int i = 0; links->proxy && i < links->n_links; i++)
        for (uint32_t q = 0; q < links->all[i].n_qps; q++)
            links->world->counters.doorbells += links->all[i].qps[q].post.doorbells;
    links->proxy = NULL;
    links->carrier = NULL;
    carrier_close(c);
    free(c);
    return 0;
}

/* ---- handing over --------------------------------------------------------------------------- */

/* Places in the ring. It is emptied by a thread of ours, which never waits for us. */
static int claim(struct sstar_link *link, struct descriptor_ring *ring, uint32_t n, uint64_t *place)
{
    struct sstar_world *world = link->world;
    if (__builtin_expect(descriptor_claim(ring, n, place) == 0, 1))
        return 0;
    world->counters.stalls++;
    uint64_t until = clock_ns() + timeout_ns(world->config.timeout_s);
    while (descriptor_claim(ring, n, place) != 0) {
        descriptor_wake_if_asleep(ring);
        sched_yield();
        if (clock_ns() > until)
            return world_fail(world, -ETIMEDOUT,
                              "rank %d: the ring of its proxy has been full for %g s "
                              "(SSTAR_TIMEOUT); is a driver's call stuck?",
                              world->rank, world->config.timeout_s);
    }
    return 0;
}

static uint16_t lane_of(const struct sstar_link *link, const struct rc_qp *q)
{
    return (uint16_t)(link->index * link->links->carrier->lanes_per_link + q->index);
}

int link_hand_over(struct sstar_link *link, const struct rc_qp *q, const struct post_request *r,
                   bool last)
{
    struct descriptor_ring *ring = proxy_ring(link->links->proxy);
    uint32_t further = r->n_sge > 1 ? ((uint32_t)r->n_sge + 1) / DESCRIPTOR_SGE : 0;
    uint64_t place;
    int err = claim(link, ring, 1 + further, &place);
    if (err)
        return err;
    for (uint32_t i = 0; i < further; i++) {
        struct descriptor *d = descriptor_at(ring, place + 1 + i);
        uint32_t at = 1 + i * DESCRIPTOR_SGE, left = (uint32_t)r->n_sge - at;
        memcpy(d->more, &r->sge[at],
               sizeof r->sge[0] * (left < DESCRIPTOR_SGE ? left : DESCRIPTOR_SGE));
        descriptor_publish(d, place + 1 + i);
    }
    struct descriptor *d = descriptor_at(ring, place);
    d->remote_address = r->remote_address;
    d->rkey = r->rkey;
    d->immediate = r->immediate;
    d->token = r->wr_id;
    d->operand = r->add;
    d->opcode = (uint8_t)r->opcode;
    d->flags = (uint8_t)((last ? 0 : DESCRIPTOR_MORE) |
                         (r->flags & IBV_SEND_SIGNALED ? DESCRIPTOR_SIGNALLED : 0));
    d->n_sge = (uint8_t)r->n_sge;
    d->carrier = link->links->carrier->index;
    d->lane = lane_of(link, q);
    if (r->is_word) {
        memcpy(d->word, (const void *)(uintptr_t)r->sge->addr, r->sge->length);
        d->word_bytes = (uint8_t)r->sge->length;
        d->flags |= DESCRIPTOR_WORD;
    } else if (r->n_sge > 0) {
        d->sge = r->sge[0];
        d->flags |= r->flags & IBV_SEND_INLINE ? DESCRIPTOR_INLINE : 0;
    }
    descriptor_publish(d, place);
    descriptor_wake_if_asleep(ring);
    return 0;
}

int link_hand_over_receives(struct sstar_link *link, const struct rc_qp *q, uint32_t n,
                            uint64_t wr_id)
{
    struct descriptor_ring *ring = proxy_ring(link->links->proxy);
    uint64_t place;
    int err = claim(link, ring, 1, &place);
    if (err)
        return err;
    struct descriptor *d = descriptor_at(ring, place);
    d->opcode = DESCRIPTOR_RECEIVES;
    d->flags = 0;
    d->n_sge = 0;
    d->immediate = n;
    d->token = wr_id;
    d->carrier = link->links->carrier->index;
    d->lane = lane_of(link, q);
    descriptor_publish(d, place);
    descriptor_wake_if_asleep(ring);
    return 0;
}

/* ---- completions ---------------------------------------------------------------------------- */

static int failed(struct sstar_links *links, struct carrier *c)
{
    int err = atomic_load(&c->error);
    uint32_t lane = atomic_load(&c->error_lane);
    if (lane == CARRIER_NO_LANE)
        return rc_poll_failed(links);
    const struct sstar_link *link = &links->all[lane / c->lanes_per_link];
    return world_fail(links->world, err,
                      "rank %d cannot post to rank %d: device %s port %u, queue pair %u: %s",
                      links->world->rank, link->peer, links->device->name, links->device->port,
                      lane % c->lanes_per_link, strerror(-err));
}

int link_carrier_poll(struct sstar_links *links, struct ibv_wc *wc, int most)
{
    struct carrier *c = links->carrier;
    int told = 0;
    if (!links->proxy) {
        carrier_ring(c);
        told = carrier_poll(c);
    }
    int n = carrier_read(c, wc, most);
    if (n > 0)
        return n;
    if (__builtin_expect(atomic_load_explicit(&c->error, memory_order_acquire) != 0, 0))
        return failed(links, c);
    if (links->proxy)
        proxy_nudge(links->proxy);
    return told < 0 ? told : 0;
}
