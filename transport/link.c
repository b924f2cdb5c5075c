/* SPDX-License-Identifier: MIT */
/* What is the same for every link: checks of arguments, tickets, waiting. */
#include "transport/link.h"
#include "transport/links.h"
#include "transport/turn.h"
#include "transport/wait.h"
#include <errno.h>

static int too_large(struct sstar_link *link, size_t bytes)
{
    return report_set(&link->world->report, -EMSGSIZE,
                      "a message of %zu bytes to rank %d: slots of this link hold %u (%u slots)",
                      bytes, link->peer, link->slot_bytes, link->slots);
}

int link_reserve(struct sstar_link *link, size_t bytes, void **payload)
{
    if (link->world->failed)
        return link->world->failed;
    if (bytes > link->slot_bytes || link->slots == 0)
        return too_large(link, bytes);
    return link->ops->reserve(link, bytes, payload);
}

int link_commit(struct sstar_link *link, size_t bytes, int flags)
{
    if (bytes > link->slot_bytes || link->slots == 0)
        return too_large(link, bytes);
    return link->ops->commit(link, bytes, flags, NULL);
}

int link_commit_ticket(struct sstar_link *link, size_t bytes, int flags, uint64_t *ticket)
{
    if (bytes > link->slot_bytes || link->slots == 0)
        return too_large(link, bytes);
    return link->ops->commit(link, bytes, flags, ticket);
}

int link_send(struct sstar_link *link, const struct piece *pieces, int n, int flags,
              uint64_t *ticket)
{
    struct sstar_world *world = link->world;
    if (world->failed)
        return world->failed;
    if (n < 0 || n > LINK_MAX_PIECES)
        return report_set(&world->report, -EINVAL,
                          "a message of %d pieces; at most %d are possible", n, LINK_MAX_PIECES);
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        bytes += pieces[i].bytes;
        if (pieces[i].bytes && !region_holds(pieces[i].region, pieces[i].data, pieces[i].bytes))
            return report_set(&world->report, -EINVAL,
                              "piece %d of a message to rank %d does not lie in its region", i,
                              link->peer);
    }
    if (bytes > link->slot_bytes || link->slots == 0)
        return too_large(link, bytes);
    return link->ops->send(link, pieces, n, bytes, flags, ticket);
}

int link_receive(struct sstar_link *link, struct message *message)
{
    if (link->world->failed)
        return link->world->failed;
    return link->slots ? link->ops->receive(link, message) : 0;
}

void link_release(struct sstar_link *link, uint32_t count)
{
    link->ops->release(link, count);
}

uint32_t link_credits(const struct sstar_link *link)
{
    return link->slots ? link->ops->credits(link) : 0;
}

int link_peer(const struct sstar_link *link)
{
    return link->peer;
}

bool link_is_local(const struct sstar_link *link)
{
    return link->local;
}

bool link_idle(const struct sstar_link *link)
{
    bool consumed =
        link->slots == 0 ||
        atomic_load_explicit(&link->control->credit.value, memory_order_acquire) == link->sent ||
        link->credited == link->sent;
    return consumed && link->tickets_done == link->tickets;
}

bool links_arrive_by_completion(const struct sstar_world *world)
{
    return world->device && world->device->arrival == ARRIVAL_BY_COMPLETION;
}

const void *link_slots_base(const struct sstar_link *link, size_t *bytes)
{
    *bytes = link->slots * link->stride;
    return link->recv_slots;
}

/* ---- one-sided ------------------------------------------------------------------------------ */

static int one_sided_check(struct sstar_link *link, const char *what, struct one_sided *op,
                           uint64_t offset)
{
    struct sstar_world *world = link->world;
    const struct sstar_remote_region *remote = op->remote;
    if (world->failed)
        return world->failed;
    if (remote->magic != REGION_MAGIC || remote->version != REGION_VERSION ||
        remote->rank != link->peer)
        return report_set(
            &world->report, -EINVAL,
            "%s: the remote region does not describe memory of rank %d (it says rank %d, "
            "version %u)",
            what, link->peer, remote->rank, remote->version);
    if (offset > remote->size_bytes || op->bytes > remote->size_bytes - offset)
        return report_set(
            &world->report, -EINVAL,
            "%s: %zu bytes at offset %llu do not lie in the %llu bytes that rank %d registered",
            what, op->bytes, (unsigned long long)offset, (unsigned long long)remote->size_bytes,
            link->peer);
    if (op->bytes && (!op->region || !region_holds(op->region, op->local, op->bytes)))
        return report_set(&world->report, -EINVAL,
                          "%s: the local %zu bytes do not lie in the region given", what,
                          op->bytes);
    if (op->bytes > 1u << 30)
        return report_set(&world->report, -EMSGSIZE,
                          "%s: %zu bytes; one operation moves at most 1 GiB", what, op->bytes);
    op->address = remote->address + offset;
    return 0;
}

int sstar_put(struct sstar_link *link, const struct sstar_region *region, const void *source,
              const struct sstar_remote_region *remote, uint64_t offset, size_t bytes, int flags,
              uint64_t *ticket)
{
    WORLD_TURN(link->world);
    struct one_sided op = {region, (void *)source, remote, 0, bytes, 0, flags};
    int err = one_sided_check(link, "put", &op, offset);
    return err ? err : link->ops->put(link, &op, ticket);
}

int sstar_get(struct sstar_link *link, const struct sstar_region *region, void *destination,
              const struct sstar_remote_region *remote, uint64_t offset, size_t bytes, int flags,
              uint64_t *ticket)
{
    WORLD_TURN(link->world);
    struct one_sided op = {region, destination, remote, 0, bytes, 0, flags};
    int err = one_sided_check(link, "get", &op, offset);
    if (!err && flags & SSTAR_SIGNAL)
        err = report_set(&link->world->report, -EINVAL,
                         "get: a signal can follow a put or an add only");
    return err ? err : link->ops->get(link, &op, ticket);
}

int sstar_fetch_add(struct sstar_link *link, const struct sstar_region *region, uint64_t *before,
                    const struct sstar_remote_region *remote, uint64_t offset, uint64_t add,
                    int flags, uint64_t *ticket)
{
    WORLD_TURN(link->world);
    struct one_sided op = {region, before, remote, 0, sizeof *before, add, flags};
    int err = one_sided_check(link, "atomic add", &op, offset);
    if (!err && (op.address % sizeof *before || (uintptr_t)before % sizeof *before))
        err = report_set(&link->world->report, -EINVAL,
                         "atomic add: both words must lie at a multiple of 8");
    return err ? err : link->ops->add(link, &op, ticket);
}

int sstar_link_ring(struct sstar_link *link)
{
    WORLD_TURN(link->world);
    if (link->world->failed)
        return link->world->failed;
    return link->ops->ring(link);
}

bool sstar_link_done(const struct sstar_link *link, uint64_t ticket)
{
    WORLD_TURN(link->world);
    return link->tickets_done >= ticket;
}

int sstar_link_wait(struct sstar_link *link, uint64_t ticket)
{
    WORLD_TURN(link->world);
    struct waiter w =
        wait_begin(link->world, "completion of a put, get or add", link->peer, ticket);
    int err = sstar_link_ring(link);
    while (!err && !sstar_link_done(link, ticket)) {
        int events = sstar_links_progress(link->links);
        if (events < 0)
            return events;
        if (events > 0)
            wait_progress(&w);
        else
            err = wait_step(&w);
    }
    return err;
}

uint64_t sstar_signals(const struct sstar_link *link)
{
    WORLD_TURN(link->world);
    return link->ops->signals(link);
}

int sstar_signal_wait(struct sstar_link *link, uint64_t count)
{
    WORLD_TURN(link->world);
    struct waiter w = wait_begin(link->world, "signal of a put", link->peer, count);
    uint64_t before = sstar_signals(link);
    int err = link->world->failed;
    while (!err && sstar_signals(link) < count) {
        int events = sstar_links_progress(link->links);
        if (events < 0)
            return events;
        uint64_t now = sstar_signals(link);
        if (now != before)
            wait_progress(&w);
        else
            err = wait_step(&w);
        before = now;
    }
    return err;
}
