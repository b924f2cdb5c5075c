/* SPDX-License-Identifier: MIT */
/*
 * Links through the NIC: message i goes by queue pair i mod k into slot i mod slots of the peer,
 * laid so that the write ends where the slot ends.
 *
 * One large message is not striped over the queue pairs: they share one port, whose wire serialises
 * the stripes and adds a gap for each, so with one port striping never pays.
 */
#include "transport/rc.h"
#include <errno.h>
#include <string.h>

static char *staging_slot(const struct sstar_link *link)
{
    return link->staging + (size_t)(link->sent & link->slot_mask) * link->stride;
}

static int stall(struct sstar_link *link)
{
    link->world->counters.stalls++;
    return -EAGAIN;
}

/* With arrival in memory the peer writes the count of what it has released. */
static void credit_look(struct sstar_link *link)
{
    uint64_t credit = atomic_load_explicit(&link->control->credit.value, memory_order_acquire);
    if (credit > link->credited)
        link->credited = credit;
}

static uint32_t nic_credits(const struct sstar_link *link)
{
    uint64_t credit = atomic_load_explicit(&link->control->credit.value, memory_order_acquire);
    if (credit < link->credited)
        credit = link->credited;
    uint32_t credits = link->slots - (uint32_t)(link->sent - credit);
    uint32_t parts = rc_parts(link->links->device, link->stride);
    for (uint32_t i = 0; i < link->data_qps; i++) {
        const struct rc_qp *q = &link->qps[i];
        uint32_t places =
            (q->depth - (q->posted + q->is_held - q->completed)) / parts * link->data_qps;
        if (places < credits)
            credits = places;
    }
    return credits;
}

static int message_place(struct sstar_link *link, size_t bytes)
{
    uint32_t parts = rc_parts(link->links->device, bytes + LINK_TRAILER_BYTES);
    if (link->sent - link->credited >= link->slots) {
        credit_look(link);
        if (link->sent - link->credited >= link->slots)
            return stall(link);
    }
    return rc_place(&link->qps[link->next_message_qp], parts) ? 0 : stall(link);
}

static int nic_reserve(struct sstar_link *link, size_t bytes, void **payload)
{
    int err = message_place(link, bytes);
    if (!err)
        *payload = staging_slot(link);
    return err;
}

static void trailer_write(struct sstar_link *link, void *to, size_t bytes)
{
    struct link_trailer trailer = {.credit = htole32((uint32_t)link->released),
                                   .magic = TRAILER_MAGIC,
                                   .version = TRAILER_VERSION,
                                   .signals = htole16((uint16_t)link->signals_seen),
                                   .word = htole64((link->sent + 1) << 32 | bytes)};
    memcpy(to, &trailer, sizeof trailer);
    /* Behind a long queue it would come too late to count on. */
    if ((link->sent - link->credited) * 4 >= link->slots)
        return;
    link->credit_told = link->released;
    link->signals_told = link->signals_seen;
}

/* The rest of a message: where it goes, and the accounts. `op` holds the data, trailer included. */
static int message_build(struct sstar_link *link, struct rc_op *op, size_t bytes, int flags)
{
    uint32_t qp = link->next_message_qp;
    uint64_t end = link->peer_slots_address + ((link->sent & link->slot_mask) + 1) * link->stride;
    op->bytes = (uint32_t)bytes + LINK_TRAILER_BYTES;
    op->remote_address = end - op->bytes;
    op->rkey = link->peer_rkey;
    op->inline_data = true;
    op->is_word = op->signalled = op->put = op->probe = false;
    op->immediate = 0;
    op->opcode = IBV_WR_RDMA_WRITE;
    if (link->links->arrival == ARRIVAL_BY_COMPLETION) {
        op->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        op->immediate = immediate_make(IMM_MESSAGE, (uint32_t)(link->sent + 1));
    }
    link->sent++;
    link->next_message_qp = qp + 1 == link->data_qps ? 0 : qp + 1;
    rc_build(link, qp, op, flags & SSTAR_MORE ? RC_MORE : RC_LAST);
    link->world->counters.messages++;
    link->world->counters.bytes += bytes;
    return flags & SSTAR_MORE ? 0 : rc_ring(link);
}

static int nic_commit(struct sstar_link *link, size_t bytes, int flags, uint64_t *ticket)
{
    if (ticket && link->tickets - link->tickets_done > link->ticket_mask)
        return stall(link);
    char *payload = staging_slot(link);
    trailer_write(link, payload + bytes, bytes);
    struct rc_op op;
    op.sge[0] = (struct ibv_sge){.addr = (uintptr_t)payload,
                                 .length = (uint32_t)bytes + LINK_TRAILER_BYTES,
                                 .lkey = link->links->region->mr->lkey};
    op.n_sge = 1;
    op.ticket = ticket ? *ticket = ++link->tickets : 0;
    return message_build(link, &op, bytes, flags);
}

static int nic_send(struct sstar_link *link, const struct piece *pieces, int n, size_t bytes,
                    int flags, uint64_t *ticket)
{
    int err = message_place(link, bytes);
    if (err)
        return err;
    if (link->tickets - link->tickets_done > link->ticket_mask)
        return stall(link);
    char *stage = staging_slot(link), *trailer = stage + link->stride - LINK_TRAILER_BYTES;
    struct rc_op op;
    op.n_sge = 0;
    if (n + 1 > link->links->device->attr.max_sge)
        trailer = stage + bytes; /* more pieces than the device gathers: gathered here */
    for (int i = 0, at = 0; i < n; at += (int)pieces[i].bytes, i++) {
        if (pieces[i].bytes == 0)
            continue;
        if (trailer == stage + bytes) {
            memcpy(stage + at, pieces[i].data, pieces[i].bytes);
            continue;
        }
        err = region_bind((struct sstar_region *)pieces[i].region);
        if (err)
            return err;
        op.sge[op.n_sge++] = (struct ibv_sge){.addr = (uintptr_t)pieces[i].data,
                                              .length = pieces[i].bytes,
                                              .lkey = pieces[i].region->mr->lkey};
    }
    bool gathered = trailer == stage + bytes;
    trailer_write(link, trailer, bytes);
    op.sge[op.n_sge++] =
        (struct ibv_sge){.addr = (uintptr_t)(gathered ? stage : trailer),
                         .length = (uint32_t)(gathered ? bytes : 0) + LINK_TRAILER_BYTES,
                         .lkey = link->links->region->mr->lkey};
    *ticket = op.ticket = ++link->tickets;
    return message_build(link, &op, bytes, flags);
}

/* ---- receiving ------------------------------------------------------------------------------ */

static int protocol_broken(struct sstar_link *link, uint64_t word)
{
    return world_fail(
        link->world, -EPROTO,
        "link of rank %d from rank %d: slot %llu should hold message %llu and holds something "
        "else (trailer 0x%llx)",
        link->world->rank, link->peer, (unsigned long long)(link->received & link->slot_mask),
        (unsigned long long)(link->received + 1), (unsigned long long)word);
}

static int nic_receive(struct sstar_link *link, struct message *message)
{
    bool in_memory = link->links->arrival == ARRIVAL_IN_MEMORY;
    char *end = link_recv_slot(link, link->received) + link->stride;
    struct link_trailer *trailer = (struct link_trailer *)(end - LINK_TRAILER_BYTES);
    uint8_t *arrived = &link->arrived[link->received & link->slot_mask];
    if (!in_memory && !*arrived)
        return 0;
    uint64_t word = le64toh(__atomic_load_n(&trailer->word, __ATOMIC_ACQUIRE));
    bool expected = (uint32_t)(word >> 32) == (uint32_t)(link->received + 1);
    if (in_memory && !expected)
        return 0;
    uint32_t bytes = (uint32_t)word;
    if (!expected || bytes > link->slot_bytes || trailer->magic != TRAILER_MAGIC ||
        trailer->version != TRAILER_VERSION)
        return protocol_broken(link, word);
    *arrived = 0;
    link->received++;
    link->links->quiet_since_ns = link->links->silent_since_ns = 0;
    rc_credited(link, le32toh(trailer->credit), 32);
    rc_signals_credited(link, le16toh(trailer->signals), 16);
    *message = (struct message){
        .data = end - LINK_TRAILER_BYTES - bytes, .bytes = bytes, .sequence = link->received};
    return 1;
}

static void nic_release(struct sstar_link *link, uint32_t count)
{
    link->released += count;
    if ((link->released - link->credit_told) * 2 >= link->slots)
        rc_tell_credit(link, false); /* an error is kept in the world */
}

/* ---- one-sided ------------------------------------------------------------------------------ */

/* The signal after what was built before it on the same queue pair: a count written to a word of
 * the peer, or a write without data whose completion the peer sees. */
static void signal_build(struct sstar_link *link, uint32_t qp, uint64_t ticket,
                         enum rc_follow follow)
{
    struct rc_qp *q = &link->qps[qp];
    struct rc_op op = {.rkey = link->peer_rkey, .ticket = ticket, .put = true};
    q->signals++;
    op.remote_address = link->peer_control_address + offsetof(struct link_control, signals) +
                        qp * sizeof(struct link_word);
    if (link->links->arrival == ARRIVAL_IN_MEMORY) {
        op.opcode = IBV_WR_RDMA_WRITE;
        op.is_word = true;
        op.word = htole64(q->signals);
        op.bytes = sizeof op.word;
    } else {
        op.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        op.immediate = immediate_make(IMM_SIGNAL, 0);
    }
    rc_build(link, qp, &op, follow);
}

static int one_sided_place(struct sstar_link *link, const struct one_sided *op)
{
    const struct rc_qp *q = &link->qps[link->next_put_qp];
    if (link->puts_under_way >= link->puts ||
        !rc_place(q, 1 + rc_parts(link->links->device, op->bytes)) ||
        link->tickets - link->tickets_done > link->ticket_mask)
        return stall(link);
    /* A signal takes a receive of the peer, which it must have posted again. */
    if (op->flags & SSTAR_SIGNAL && link->links->arrival == ARRIVAL_BY_COMPLETION &&
        link->signals_sent - link->signals_credited >= link->puts)
        return stall(link);
    if (op->remote->rkey == 0)
        return report_set(
            &link->world->report, -EINVAL,
            "the region of rank %d was described before it was registered with the NIC; "
            "describe it after opening links through the NIC",
            link->peer);
    return op->region ? region_bind((struct sstar_region *)op->region) : 0;
}

static int one_sided_build(struct sstar_link *link, const struct one_sided *op,
                           enum ibv_wr_opcode opcode, uint64_t *ticket)
{
    int err = one_sided_place(link, op);
    if (err)
        return err;
    uint32_t qp = link->next_put_qp;
    link->next_put_qp = qp + 1 == link->data_qps ? 0 : qp + 1;
    bool signal = op->flags & SSTAR_SIGNAL, is_write = opcode == IBV_WR_RDMA_WRITE;
    bool merged = signal && is_write && link->links->arrival == ARRIVAL_BY_COMPLETION;
    struct rc_op wr; /* not cleared as a whole: most of it are pieces */
    wr.opcode = merged ? IBV_WR_RDMA_WRITE_WITH_IMM : opcode;
    wr.immediate = immediate_make(IMM_SIGNAL, 0);
    wr.remote_address = op->address;
    wr.rkey = op->remote->rkey;
    wr.add = op->add;
    wr.inline_data = is_write;
    wr.is_word = wr.signalled = wr.put = wr.probe = false;
    wr.bytes = (uint32_t)op->bytes;
    wr.ticket = 0;
    wr.n_sge = 0;
    if (op->bytes > 0)
        wr.sge[wr.n_sge++] = (struct ibv_sge){.addr = (uintptr_t)op->local,
                                              .length = (uint32_t)op->bytes,
                                              .lkey = op->region->mr->lkey};
    uint64_t given = ++link->tickets;
    link->puts_under_way++;
    link->signals_sent += signal;
    if (!signal || merged) {
        wr.ticket = given;
        wr.put = true;
    }
    enum rc_follow follow = op->flags & SSTAR_MORE ? RC_MORE : RC_LAST;
    bool apart = signal && !merged, is_empty = is_write && op->bytes == 0;
    if (!(apart && is_empty))
        rc_build(link, qp, &wr, apart ? RC_FOLLOWED : follow);
    if (apart)
        signal_build(link, qp, given, follow);
    link->world->counters.messages++;
    link->world->counters.bytes += op->bytes;
    *ticket = given;
    return op->flags & SSTAR_MORE ? 0 : rc_ring(link);
}

static int nic_put(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket)
{
    return one_sided_build(link, op, IBV_WR_RDMA_WRITE, ticket);
}

static int nic_get(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket)
{
    return one_sided_build(link, op, IBV_WR_RDMA_READ, ticket);
}

static int nic_add(struct sstar_link *link, const struct one_sided *op, uint64_t *ticket)
{
    return one_sided_build(link, op, IBV_WR_ATOMIC_FETCH_AND_ADD, ticket);
}

static uint64_t nic_signals(const struct sstar_link *link)
{
    if (link->links->arrival == ARRIVAL_BY_COMPLETION)
        return link->signals_seen;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < link->data_qps; i++)
        sum +=
            le64toh(atomic_load_explicit(&link->control->signals[i].value, memory_order_acquire));
    return sum;
}

const struct link_ops link_ops_nic = {
    .reserve = nic_reserve,
    .commit = nic_commit,
    .send = nic_send,
    .receive = nic_receive,
    .release = nic_release,
    .put = nic_put,
    .get = nic_get,
    .add = nic_add,
    .ring = rc_ring,
    .signals = nic_signals,
    .credits = nic_credits,
};
