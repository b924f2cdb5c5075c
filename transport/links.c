/* SPDX-License-Identifier: MIT */
/* Sets of links: opening, closing, moving on. */
#include "transport/connector.h"
#include "transport/link_carrier.h"
#include "transport/turn.h"
#include "transport/wait.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS_PER_LOOK = 1024 };

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- attributes ----------------------------------------------------------------------------- */

static int attr_settle(struct sstar_world *world, const struct sstar_link_attr *attr,
                       struct sstar_link_attr *out)
{
    struct sstar_link_attr a = *attr;
    if (a.queue_pairs == 0)
        a.queue_pairs = (uint32_t)(world->config.queue_pairs > 0 ? world->config.queue_pairs : 4);
    if (a.slot_bytes == 0)
        a.slots = 0;
    else if (a.slots == 0)
        a.slots = 64;
    if (a.puts == 0)
        a.puts = 64;
    if (a.queue_pairs > LINK_MAX_QPS)
        return report_set(&world->report, -EINVAL,
                          "links: %u queue pairs asked for, at most %d are possible", a.queue_pairs,
                          LINK_MAX_QPS);
    if (a.slots & (a.slots - 1) || a.slots > LINK_MAX_SLOTS)
        return report_set(&world->report, -EINVAL,
                          "links: %u slots asked for; it takes a power of two of at most %d",
                          a.slots, LINK_MAX_SLOTS);
    if (a.puts > LINK_MAX_PUTS)
        return report_set(&world->report, -EINVAL,
                          "links: %u puts under way asked for, at most %d are possible", a.puts,
                          LINK_MAX_PUTS);
    if (a.posts && a.slot_bytes)
        return report_set(&world->report, -EINVAL,
                          "links: for sstar_post alone (posts) and with slots of %u bytes for "
                          "messages; open two sets",
                          a.slot_bytes);
    a.through_nic |= a.posts;
    if (a.slot_bytes > 1u << 30)
        return report_set(&world->report, -EINVAL,
                          "links: slots of %u bytes asked for, at most 1 GiB is possible",
                          a.slot_bytes);
    *out = a;
    return 0;
}

static int peers_check(struct sstar_world *world, const int *peers, int n)
{
    for (int i = 0; i < n; i++) {
        if (peers[i] < 0 || peers[i] >= world->size || peers[i] == world->rank)
            return report_set(&world->report, -EINVAL,
                              "links: rank %d cannot have a link to rank %d in a world of %d",
                              world->rank, peers[i], world->size);
        for (int j = 0; j < i; j++)
            if (peers[i] == peers[j])
                return report_set(&world->report, -EINVAL, "links: rank %d is named twice",
                                  peers[i]);
    }
    return 0;
}

/* ---- making --------------------------------------------------------------------------------- */

static bool peer_is_local(const struct sstar_links *links, int peer)
{
    const struct rank_info *ranks = links->world->ranks;
    return !links->attr.through_nic && ranks[peer].node == ranks[links->world->rank].node;
}

static size_t slot_stride(uint32_t slot_bytes)
{
    return round_up((size_t)slot_bytes + LINK_TRAILER_BYTES, 64);
}

static int link_init(struct sstar_links *links, struct sstar_link *link, int index, int peer)
{
    const struct sstar_link_attr *attr = &links->attr;
    bool local = peer_is_local(links, peer);
    *link = (struct sstar_link){
        .ops = local ? &link_ops_local : &link_ops_nic,
        .links = links,
        .world = links->world,
        .peer = peer,
        .local = local,
        .index = (uint32_t)index,
        .slots = attr->slots,
        .slot_mask = attr->slots - 1,
        .slot_bytes = attr->slot_bytes,
        .stride = slot_stride(attr->slot_bytes),
        .puts = attr->puts,
    };
    links->by_rank[peer] = link;
    if (local)
        return 0;
    uint32_t ring = 1;
    while (ring < attr->puts + attr->slots)
        ring *= 2;
    link->ticket_mask = ring - 1;
    link->ticket_done = calloc(ring, 1);
    link->arrived = calloc(attr->slots ? attr->slots : 1, 1);
    return link->ticket_done && link->arrived ? 0 : -ENOMEM;
}

uint64_t links_bytes(const struct sstar_link_attr *attr, int remote, int local)
{
    uint64_t slots = attr->slot_bytes ? attr->slots * slot_stride(attr->slot_bytes) : 0;
    uint64_t control = round_up(sizeof(struct link_control), 64);
    return (uint64_t)(remote + local) * (control + slots) + (uint64_t)remote * slots;
}

/* One piece of memory for the whole set: fds and memory keys are few. */
static int memory_share_out(struct sstar_links *links)
{
    struct sstar_world *world = links->world;
    size_t control = round_up(sizeof(struct link_control), 64);
    int local = 0;
    for (int i = 0; i < links->n_links; i++)
        local += links->all[i].local;
    size_t total = links_bytes(&links->attr, links->n_links - local, local);
    if (total == 0)
        return 0;
    int err = sstar_alloc(world, total, &links->memory);
    if (err)
        return err;
    char *at = links->memory;
    for (int i = 0; i < links->n_links; i++, at += control)
        links->all[i].control = (struct link_control *)at;
    for (int i = 0; i < links->n_links; i++) {
        struct sstar_link *link = &links->all[i];
        link->recv_slots = at;
        at += link->slots * link->stride;
        if (!link->local) {
            link->staging = at;
            at += link->slots * link->stride;
        }
    }
    return 0;
}

static int device_prepare(struct sstar_links *links)
{
    bool needed = false;
    for (int i = 0; i < links->n_links; i++)
        needed |= !links->all[i].local;
    if (!needed)
        return 0;
    int err = device_get(links->world, &links->device);
    if (err)
        return err;
    links->arrival = links->device->arrival;
    if (links->device->gives < ordering_of_arrival(links->arrival))
        return world_fail(links->world, -EPROTO,
                          "links: device %s lands bytes in no order that memory could be looked at "
                          "for; arrival must be learnt by completion",
                          links->device->name);
    links->region = memory_region(links->world, links->memory, 1, &err);
    if (err)
        return err;
    err = region_bind(links->region);
    return err ? err : rc_open(links);
}

static int links_make(struct sstar_links *links, const int *peers, int n)
{
    struct sstar_world *world = links->world;
    int err = peers_check(world, peers, n);
    if (err)
        return err;
    links->all = aligned_alloc(64, round_up((size_t)(n ? n : 1) * sizeof *links->all, 64));
    links->by_rank = calloc((size_t)world->size, sizeof(struct sstar_link *));
    if (!links->all || !links->by_rank)
        return report_set(&world->report, -ENOMEM, "out of memory");
    for (int i = 0; i < n; i++) {
        err = link_init(links, &links->all[i], i, peers[i]);
        links->n_links = i + 1;
        if (err)
            return report_set(&world->report, err, "out of memory");
    }
    err = memory_share_out(links);
    return err ? err : device_prepare(links);
}

/* ---- meeting the peers ---------------------------------------------------------------------- */

static void introduce(const struct sstar_links *links, int status, struct link_introduction *blocks)
{
    const struct sstar_link_attr *attr = &links->attr;
    for (int rank = 0; rank < links->world->size; rank++) {
        blocks[rank] = (struct link_introduction){.magic = LINK_MAGIC,
                                                  .version = LINK_VERSION,
                                                  .size = sizeof(struct link_introduction),
                                                  .status = status,
                                                  .through_nic = attr->through_nic,
                                                  .posts = attr->posts,
                                                  .queue_pairs = attr->queue_pairs,
                                                  .slots = attr->slots,
                                                  .slot_bytes = attr->slot_bytes,
                                                  .puts = attr->puts};
        const struct sstar_link *link = status ? NULL : links->by_rank[rank];
        if (!link)
            continue;
        blocks[rank].wanted = 1;
        blocks[rank].slots_address = (uintptr_t)link->recv_slots;
        blocks[rank].control_address = (uintptr_t)link->control;
        if (!link->local)
            rc_introduce(link, &blocks[rank]);
    }
}

static int introduction_check(struct sstar_links *links, int rank,
                              const struct link_introduction *it)
{
    struct sstar_world *world = links->world;
    const struct sstar_link_attr *a = &links->attr;
    if (it->magic != LINK_MAGIC || it->version != LINK_VERSION || it->size != sizeof *it)
        return world_fail(world, -EPROTO,
                          "links: rank %d was built from another version of sstar than rank %d",
                          rank, world->rank);
    if (it->status)
        return world_fail(world, it->status, "links: rank %d could not open its side: %s", rank,
                          strerror(-it->status));
    if (it->queue_pairs != a->queue_pairs || it->slots != a->slots ||
        it->slot_bytes != a->slot_bytes || it->puts != a->puts ||
        it->through_nic != a->through_nic || it->posts != a->posts)
        return world_fail(
            world, -EPROTO,
            "links: rank %d asks for %u queue pairs, %u slots of %u bytes, %u puts%s; rank %d "
            "for %u, %u of %u, %u%s: all must ask for the same",
            rank, it->queue_pairs, it->slots, it->slot_bytes, it->puts,
            it->through_nic ? ", through the NIC" : "", world->rank, a->queue_pairs, a->slots,
            a->slot_bytes, a->puts, a->through_nic ? ", through the NIC" : "");
    bool wanted = links->by_rank[rank];
    if ((bool)it->wanted != wanted)
        return world_fail(world, -EPROTO,
                          "links: rank %d %s rank %d, which %s: both or neither must", world->rank,
                          wanted ? "names" : "does not name", rank,
                          wanted ? "does not name it" : "does");
    return 0;
}

static int local_connect(struct sstar_link *link, const struct link_introduction *it)
{
    struct sstar_world *world = link->world;
    link->peer_control =
        memory_peer(world, link->peer, it->control_address, sizeof(struct link_control));
    /* Control blocks and slots are one piece of memory there, so one mapping serves both. */
    if (link->peer_control)
        link->peer_slots =
            memory_peer(world, link->peer, it->slots_address, link->slots * link->stride);
    return link->peer_control && link->peer_slots ? 0
                                                  : memory_peer_missing(world, link->peer, "links");
}

/* All have told what they have. Whoever fails from here on is waited for. */
static int peers_connect(struct sstar_links *links, const struct link_introduction *theirs)
{
    int err = 0;
    for (int rank = 0; rank < links->world->size && !err; rank++)
        if (rank != links->world->rank)
            err = introduction_check(links, rank, &theirs[rank]);
    for (int i = 0; i < links->n_links && !err; i++)
        if (links->all[i].local)
            err = local_connect(&links->all[i], &theirs[links->all[i].peer]);
    if (!err && links->cq)
        err = rc_connect(links, theirs);
    if (!err && links->cq)
        err = link_carrier_open(links);
    return err ? world_fail_as_reported(links->world, err) : 0;
}

static int links_connect(struct sstar_links *links, int status)
{
    struct sstar_world *world = links->world;
    size_t size = (size_t)world->size;
    struct link_introduction *mine = calloc(size, sizeof *mine),
                             *theirs = calloc(size, sizeof *theirs);
    int err = 0;
    if (mine && theirs) {
        introduce(links, status, mine);
        err = sstar_alltoall_blocks(world, mine, sizeof *mine, theirs);
    } else {
        err = world_fail(world, -ENOMEM, "links: rank %d has no memory to meet %zu ranks",
                         world->rank, size);
    }
    if (!err && !status)
        err = peers_connect(links, theirs);
    free(mine);
    free(theirs);
    if (status)
        return status;
    /* Nobody posts before everybody is ready to receive. */
    return err ? err : sstar_barrier(world);
}

/* Tick while there are links through the NIC. */
static void tick_settle(struct sstar_world *world)
{
    world->ticking = false;
    for (const struct sstar_links *links = world->links; links; links = links->next)
        world->ticking |= links->cq != NULL;
}

static void links_free(struct sstar_links *links)
{
    if (link_carrier_close(links) != 0)
        return; /* a proxy may still be at it: better lost than pulled from under it */
    rc_close(links);
    for (int i = 0; i < links->n_links; i++) {
        free(links->all[i].ticket_done);
        free(links->all[i].arrived);
    }
    if (links->memory)
        sstar_free(links->world, links->memory);
    free(links->by_rank);
    free(links->all);
    free(links);
}

int sstar_links_open(struct sstar_world *world, const int *peers, int n_peers,
                     const struct sstar_link_attr *attr, struct sstar_links **links)
{
    WORLD_TURN(world);
    if (world->failed)
        return world->failed;
    struct sstar_links *made = calloc(1, sizeof *made);
    if (!made)
        return report_set(&world->report, -ENOMEM, "out of memory");
    made->world = world;
    /* A rank that fails here still takes part in the exchange, so that the others hear of it. */
    int status = attr_settle(world, attr, &made->attr);
    if (!status)
        status = links_make(made, peers, n_peers);
    struct report why = world->report;
    int err = links_connect(made, status);
    if (status) /* the others' sentence about our failure may have come meanwhile */
        world->report = why;
    if (err) {
        links_free(made);
        return err;
    }
    made->next = world->links;
    world->links = made;
    tick_settle(world);
    *links = made;
    return 0;
}

/* ---- closing -------------------------------------------------------------------------------- */

static void unlist(struct sstar_links *links)
{
    struct sstar_links **at = &links->world->links;
    while (*at && *at != links)
        at = &(*at)->next;
    if (*at)
        *at = links->next;
}

void sstar_links_close(struct sstar_links *links)
{
    if (!links)
        return;
    WORLD_TURN(links->world);
    struct sstar_world *world = links->world;
    /* Peers may wait to learn that all was consumed, and go on sending until they close too. */
    for (int i = 0; i < links->n_links && !world->failed; i++)
        if (!links->all[i].local)
            rc_tell_credit(&links->all[i], true);
    if (!world->failed)
        sstar_barrier(world);
    /* From here on nobody needs to be told anything, and nothing is sent any more: what is still on
     * its way to a queue pair when that goes would find nobody. What was posted must have left, and
     * all must be done with our memory. */
    links->closing = true;
    for (int i = 0; i < links->n_links && !world->failed; i++)
        if (!links->all[i].local)
            rc_drain(&links->all[i]);
    if (links->device)
        links->device->connector->leave(links);
    if (!world->failed)
        sstar_barrier(world);
    unlist(links);
    tick_settle(world);
    links_free(links);
}

void links_abandon_all(struct sstar_world *world)
{
    while (world->links) {
        struct sstar_links *links = world->links;
        unlist(links);
        links_free(links);
    }
}

/* ---- moving on ------------------------------------------------------------------------------ */

struct sstar_link *sstar_links_to(struct sstar_links *links, int rank)
{
    return rank >= 0 && rank < links->world->size ? links->by_rank[rank] : NULL;
}

int sstar_links_progress(struct sstar_links *links)
{
    WORLD_TURN(links->world);
    /* Ranks whose traffic never rests do not come to the slow part of a wait: a death is to be
     * noticed here too. */
    if (++links->calls % CALLS_PER_LOOK == 0)
        control_poll(links->world);
    if (links->world->failed)
        return links->world->failed;
    return links->cq ? rc_progress(links) : 0;
}

int links_next_look(struct sstar_links *links, uint64_t *at_ns)
{
    for (int i = 0; i < links->n_links; i++)
        if (links->all[i].local)
            return -EOPNOTSUPP;
    if (!links->cq || links->carrier)
        return -EOPNOTSUPP;
    return -links->device->verbs->next_poll(links->cq, at_ns);
}

int links_progress_all(struct sstar_world *world)
{
    int events = 0;
    for (struct sstar_links *links = world->links; links; links = links->next) {
        int n = sstar_links_progress(links);
        if (n < 0)
            return n;
        events += n;
    }
    return events;
}

void links_ring_all(struct sstar_world *world)
{
    for (struct sstar_links *links = world->links; links && !world->failed; links = links->next)
        for (int i = 0; links->any_pending && i < links->n_links; i++)
            if (links->all[i].pending)
                rc_ring(&links->all[i]); /* an error is kept in the world */
}

void links_tick(struct sstar_world *world)
{
    for (struct sstar_links *links = world->links; links && !world->failed; links = links->next)
        if (links->cq && !links->moving) {
            links->device->connector->tick(links);
            if (sstar_links_progress(links) == 0)
                rc_quiet(links); /* an error is kept in the world */
        }
}
