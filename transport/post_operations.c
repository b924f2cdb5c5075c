/* SPDX-License-Identifier: MIT */
/* sstar_post: operations as descriptors, from any thread. Says no sentences, which are the world's
 * thread's to say. */
#include "transport/link_carrier.h"
#include "transport/wait.h"
#include <errno.h>
#include <sched.h>
#include <string.h>

static int check(const struct sstar_link *link, const struct sstar_one_sided *op)
{
    const struct sstar_remote_region *remote = op->remote;
    if (remote->magic != REGION_MAGIC || remote->rank != link->peer || remote->rkey == 0 ||
        op->offset > remote->size_bytes || op->bytes > remote->size_bytes - op->offset ||
        op->queue_pair >= link->data_qps || op->bytes > 1u << 30)
        return -EINVAL;
    if (op->flags & SSTAR_INLINE)
        return op->kind == SSTAR_PUT && op->bytes <= DESCRIPTOR_WORD_BYTES ? 0 : -EINVAL;
    if (op->bytes > 0 &&
        (!op->region || !op->region->mr || !region_holds(op->region, op->local, op->bytes)))
        return -EINVAL;
    bool aligned = (remote->address + op->offset) % 8 == 0 && (uintptr_t)op->local % 8 == 0;
    return op->kind != SSTAR_ADD || (op->bytes == 8 && aligned) ? 0 : -EINVAL;
}

static const uint8_t opcodes[] = {[SSTAR_PUT] = IBV_WR_RDMA_WRITE,
                                  [SSTAR_GET] = IBV_WR_RDMA_READ,
                                  [SSTAR_ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD};

static void fill(const struct sstar_link *link, const struct sstar_one_sided *op,
                 struct descriptor *d)
{
    const struct carrier *c = link->links->carrier;
    uint8_t flags = (uint8_t)((op->flags & SSTAR_MORE ? DESCRIPTOR_MORE : 0) |
                              (op->flags & SSTAR_TELL ? DESCRIPTOR_SIGNALLED : 0));
    d->remote_address = op->remote->address + op->offset;
    d->rkey = op->remote->rkey;
    d->immediate = 0;
    d->token = (uintptr_t)op->completion;
    d->operand = op->add;
    d->opcode = opcodes[op->kind];
    d->carrier = c->index;
    d->lane = (uint16_t)(link->index * c->lanes_per_link + op->queue_pair);
    d->n_sge = 0;
    if (op->flags & SSTAR_INLINE) {
        memcpy(d->word, op->local, op->bytes);
        d->word_bytes = (uint8_t)op->bytes;
        flags |= DESCRIPTOR_WORD;
    } else if (op->bytes > 0) {
        d->sge = (struct ibv_sge){
            .addr = (uintptr_t)op->local, .length = op->bytes, .lkey = op->region->mr->lkey};
        d->n_sge = 1;
        if (op->kind == SSTAR_PUT && op->bytes <= link->links->device->max_inline &&
            !(op->flags & POST_NOT_INLINE))
            flags |= DESCRIPTOR_INLINE;
    }
    if (__builtin_expect(op->flags & POST_STAMPED, 0)) {
        const struct stamped *stamped = (const void *)(uintptr_t)op->add;
        flags |= DESCRIPTOR_STAMPED;
        d->immediate = stamped->wanted;
        d->operand = (uintptr_t)stamped->stamps;
    }
    d->flags = flags;
}

/* Whether each queue has a place for what is meant for it. */
static int places_check(const struct sstar_link *link, const struct sstar_one_sided *operations,
                        int n)
{
    uint32_t wanted[LINK_MAX_QPS] = {0};
    const struct carrier *c = link->links->carrier;
    for (int i = 0; i < n; i++) {
        uint32_t qp = operations[i].queue_pair;
        const struct lane *lane = &c->lanes[link->index * c->lanes_per_link + qp];
        if (lane->posted - lane->completed + ++wanted[qp] > lane->depth)
            return -EAGAIN;
    }
    return 0;
}

static int post_here(struct sstar_link *link, const struct sstar_one_sided *operations, int n)
{
    struct carrier *c = link->links->carrier;
    struct descriptor d;
    int err = places_check(link, operations, n);
    if (err) {
        carrier_ring(c);
        carrier_poll(c); /* it is completions that make places */
        return err;
    }
    for (int i = 0; i < n; i++) {
        fill(link, &operations[i], &d);
        carrier_take(c, &d, &d.sge);
    }
    if (!(operations[n - 1].flags & SSTAR_MORE))
        carrier_ring(c);
    return 0;
}

int sstar_post(struct sstar_link *link, const struct sstar_one_sided *operations, int n)
{
    const struct sstar_links *links = link->links;
    if (!links->attr.posts || n < 0 || n > SSTAR_POST_MOST)
        return -EINVAL;
    for (int i = 0; i < n; i++)
        if (check(link, &operations[i]) != 0)
            return -EINVAL;
    int err = atomic_load_explicit(&links->carrier->error, memory_order_relaxed);
    if (err || n == 0)
        return err;
    if (!links->proxy)
        return post_here(link, operations, n);
    struct descriptor_ring *ring = proxy_ring(links->proxy);
    uint64_t place;
    if (descriptor_claim(ring, (uint32_t)n, &place) != 0) {
        descriptor_wake_if_asleep(ring);
        return -EAGAIN;
    }
    /* The first is published last: a reader that came upon them one by one would take each line
     * from us just when we write the next. */
    for (int i = n - 1; i >= 0; i--) {
        struct descriptor *d = descriptor_at(ring, place + (uint64_t)i);
        fill(link, &operations[i], d);
        descriptor_publish(d, place + (uint64_t)i);
    }
    descriptor_wake_if_asleep(ring);
    return 0;
}

int sstar_post_wait(struct sstar_link *link, const struct sstar_completion *completion,
                    uint64_t count, double timeout_s)
{
    enum { LOOK = 64 };
    const bool crowded = world_crowded(link->world);
    uint64_t until = 0;
    for (uint32_t steps = 1; sstar_completed(completion) < count; steps++) {
        if (!link->links->proxy) {
            int events = sstar_links_progress(link->links);
            if (events < 0)
                return events;
        }
        if (!crowded && steps % LOOK != 0)
            continue;
        uint64_t now = clock_ns();
        if (until == 0)
            until = now + timeout_ns(timeout_s);
        if (now > until)
            return -ETIMEDOUT;
        if (crowded || steps > LOOK * LOOK)
            sched_yield();
    }
    return __atomic_load_n(&completion->error, __ATOMIC_RELAXED);
}
