/* SPDX-License-Identifier: MIT */
/*
 * Links inside a node: load and store, no NIC.
 *
 * A slot is a header of 16 bytes and the payload. The sender composes in the receiver's slot and
 * stores the header last (release); the receiver loads it (acquire) and reads in place. Released
 * slots are counted in one word of the sender's memory, which only the receiver writes.
 */
#include "transport/links.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

struct local_header {
    alignas(
        16) _Atomic uint64_t word; /* bytes << 32 | low half of the sequence, which starts at 1 */
};
_Static_assert(sizeof(struct local_header) == LINK_TRAILER_BYTES,
               "a slot holds payload and header");

static struct local_header *header_of(char *slots, const struct sstar_link *link, uint64_t index)
{
    return (struct local_header *)(slots + (size_t)(index & link->slot_mask) * link->stride);
}

static uint32_t local_credits(const struct sstar_link *link)
{
    uint64_t credited = atomic_load_explicit(&link->control->credit.value, memory_order_acquire);
    return link->slots - (uint32_t)(link->sent - credited);
}

static int local_reserve(struct sstar_link *link, size_t bytes, void **payload)
{
    (void)bytes;
    if (link->sent - link->credited >= link->slots) {
        link->credited = atomic_load_explicit(&link->control->credit.value, memory_order_acquire);
        if (link->sent - link->credited >= link->slots) {
            link->world->counters.stalls++;
            return -EAGAIN;
        }
    }
    *payload = header_of(link->peer_slots, link, link->sent) + 1;
    return 0;
}

static int local_commit(struct sstar_link *link, size_t bytes, int flags, uint64_t *ticket)
{
    (void)flags;
    if (ticket)
        *ticket = link->tickets_done = ++link->tickets;
    struct local_header *header = header_of(link->peer_slots, link, link->sent);
    link->sent++;
    atomic_store_explicit(&header->word, (uint64_t)bytes << 32 | (uint32_t)link->sent,
                          memory_order_release);
    link->world->counters.local_messages++;
    link->world->counters.local_bytes += bytes;
    return 0;
}

static int local_send(struct sstar_link *link, const struct piece *pieces, int n, size_t bytes,
                      int flags, uint64_t *ticket)
{
    void *payload;
    int err = local_reserve(link, bytes, &payload);
    if (err)
        return err;
    char *to = payload;
    for (int i = 0; i < n; i++) {
        memcpy(to, pieces[i].data, pieces[i].bytes);
        to += pieces[i].bytes;
    }
    return local_commit(link, bytes, flags, ticket);
}

static int local_receive(struct sstar_link *link, struct message *message)
{
    struct local_header *header = header_of(link->recv_slots, link, link->received);
    uint64_t word = atomic_load_explicit(&header->word, memory_order_acquire);
    if ((uint32_t)word != (uint32_t)(link->received + 1))
        return 0;
    link->received++;
    *message = (struct message){
        .data = header + 1, .bytes = (uint32_t)(word >> 32), .sequence = link->received};
    return 1;
}

static void local_release(struct sstar_link *link, uint32_t count)
{
    link->released += count;
    atomic_store_explicit(&link->peer_control->credit.value, link->released, memory_order_release);
}

/* ---- one-sided ------------------------------------------------------------------------------ */

static void local_done(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket)
{
    if (op->flags & SSTAR_SIGNAL)
        atomic_store_explicit(&link->peer_control->signals[0].value, ++link->signals_sent,
                              memory_order_release);
    link->world->counters.local_messages++;
    link->world->counters.local_bytes += op->bytes;
    *ticket = link->tickets_done = ++link->tickets;
}

static int foreign_failed(struct sstar_link *link, const struct one_sided *op, bool read, int err)
{
    struct sstar_world *world = link->world;
    int pid = (int)world->ranks[link->peer].pid;
    const char *what = read ? "read" : "write";
    char text[256];
    if (err == ESRCH) {
        snprintf(text, sizeof text, "rank %d cannot %s memory of rank %d: process %d is gone",
                 world->rank, what, link->peer, pid);
        return link_peer_lost(link, text);
    }
    return world_fail(world, -err,
                      "rank %d cannot %s %zu bytes of memory of rank %d (pid %d): %s; %s",
                      world->rank, what, op->bytes, link->peer, pid, strerror(err),
                      err == EPERM ? "use memory from sstar_alloc, or set kernel.yama.ptrace_scope "
                                     "to 0 (--cap-add SYS_PTRACE in a container)"
                                   : "is it registered memory?");
}

/* Memory that the peer registered but did not get from sstar_alloc: the kernel copies. */
static int foreign_copy(struct sstar_link *link, const struct one_sided *op, bool read)
{
    struct sstar_world *world = link->world;
    void *address = (void *)(uintptr_t)op->address;
    if (memory_same_process(world, link->peer)) {
        if (read)
            memcpy(op->local, address, op->bytes);
        else
            memcpy(address, op->local, op->bytes);
        return 0;
    }
    pid_t pid = world->ranks[link->peer].pid;
    size_t done = 0;
    while (done < op->bytes) {
        struct iovec mine = {(char *)op->local + done, op->bytes - done};
        struct iovec theirs = {(char *)address + done, op->bytes - done};
        ssize_t n = read ? process_vm_readv(pid, &mine, 1, &theirs, 1, 0)
                         : process_vm_writev(pid, &mine, 1, &theirs, 1, 0);
        if (n <= 0)
            return foreign_failed(link, op, read, n < 0 ? errno : EIO);
        done += (size_t)n;
    }
    return 0;
}

static int local_put(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket)
{
    if (op->bytes > 0) {
        void *to = memory_peer(link->world, link->peer, op->address, op->bytes);
        if (to) {
            memmove(to, op->local, op->bytes);
        } else {
            int err = foreign_copy(link, op, false);
            if (err)
                return err;
        }
    }
    local_done(link, op, ticket);
    return 0;
}

static int local_get(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket)
{
    if (op->bytes > 0) {
        const void *from = memory_peer(link->world, link->peer, op->address, op->bytes);
        if (from) {
            memmove(op->local, from, op->bytes);
        } else {
            int err = foreign_copy(link, op, true);
            if (err)
                return err;
        }
    }
    local_done(link, op, ticket);
    return 0;
}

/* The CPU adds. Where other ranks add to the same word through a NIC whose atomics the CPU's do not
 * meet, the sum would be wrong: refused. */
static int local_add(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket)
{
    struct sstar_world *world = link->world;
    if (world->device && !world->device->coherent_atomics)
        return report_set(
            &world->report, -EOPNOTSUPP,
            "atomic add of rank %d to rank %d: device %s is not coherent with the CPU's "
            "atomics; open the link with through_nic",
            world->rank, link->peer, world->device->name);
    uint64_t *word = memory_peer(world, link->peer, op->address, op->bytes);
    if (!word && memory_same_process(world, link->peer))
        word = (uint64_t *)(uintptr_t)op->address;
    if (!word)
        return report_set(
            &world->report, -EOPNOTSUPP,
            "atomic add of rank %d to rank %d of its node: the word must lie in memory "
            "from sstar_alloc",
            world->rank, link->peer);
    *(uint64_t *)op->local = __atomic_fetch_add(word, op->add, __ATOMIC_ACQ_REL);
    local_done(link, op, ticket);
    return 0;
}

static int local_ring(struct sstar_link *link)
{
    (void)link;
    return 0;
}

static uint64_t local_signals(const struct sstar_link *link)
{
    return atomic_load_explicit(&link->control->signals[0].value, memory_order_acquire);
}

const struct link_ops link_ops_local = {
    .reserve = local_reserve,
    .commit = local_commit,
    .send = local_send,
    .receive = local_receive,
    .release = local_release,
    .put = local_put,
    .get = local_get,
    .add = local_add,
    .ring = local_ring,
    .signals = local_signals,
    .credits = local_credits,
};
