/* SPDX-License-Identifier: MIT */
/* Looking into completion queues. */
#include "transport/softnic/nic.h"
#include <sched.h>

static void unmark(struct cq_bits *bits, uint32_t slot)
{
    uint64_t bit = 1ull << slot % 64;
    if ((atomic_fetch_and(&bits->word[slot / 64], ~bit) & ~bit) != 0)
        return;
    atomic_fetch_and(&bits->summary, ~(1ull << slot / 64));
    if (atomic_load(&bits->word[slot / 64]) != 0)
        atomic_fetch_or(&bits->summary, 1ull << slot / 64);
}

/* What one poll knows: the clock is read once, and only where an entry has a time. */
struct poll {
    struct cq *cq;
    struct ibv_wc *wc;
    int room, count;
    uint64_t now, due_ns;
};

static bool is_due(struct poll *poll, uint64_t due_ns)
{
    if (__builtin_expect(due_ns == 0, 1))
        return true;
    if (poll->now == 0)
        poll->now = nic_now(poll->cq->ctx);
    return due_ns <= poll->now || due_ns - poll->now > SPOILT_NS;
}

/* The entry of this number, NULL if it has not come. */
static struct send_cqe *send_entry(const struct qp *qp, uint32_t at)
{
    struct send_cqe *cqe = &qp->cqes[at & qp->cqe_mask];
    uint8_t lap = (at & (qp->cqe_mask + 1)) == 0;
    return atomic_load_explicit(&cqe->owner, memory_order_acquire) == lap ? cqe : NULL;
}

static struct recv_wqe *recv_entry(struct qp *qp, uint32_t at)
{
    struct recv_wqe *wqe = nic_recv_at(qp, at);
    uint8_t lap = (at & (qp->rq_mask + 1)) == 0;
    if (atomic_load_explicit(&wqe->owner, memory_order_acquire) != lap)
        return NULL;
    return qp->srq != NULL || qp->rq_ids[at & qp->rq_mask].number == at + 1 ? wqe : NULL;
}

/* What was posted for it. NULL: nothing was, and whoever wrote that it is complete spoilt it. */
static struct recv_id *recv_id(struct qp *qp, uint32_t at, const struct recv_wqe *wqe)
{
    if (qp->srq == NULL)
        return &qp->rq_ids[at & qp->rq_mask];
    uint32_t number = (uint32_t)nic_once(wqe->wr_id);
    struct recv_id *id = &qp->srq->ids[number & qp->srq->mask];
    return __atomic_load_n(&id->number, __ATOMIC_ACQUIRE) == number + 1 ? id : NULL;
}

static struct send_cqe *send_head(const struct qp *qp)
{
    return send_entry(qp, qp->cqe_head);
}

static struct recv_wqe *recv_head(struct qp *qp)
{
    return recv_entry(qp, atomic_load_explicit(&qp->rq_polled, memory_order_relaxed));
}

static struct ibv_wc *next_wc(struct poll *poll, const struct qp *qp)
{
    struct ibv_wc *wc = &poll->wc[poll->count++];
    wc->vendor_err = 0;
    wc->imm_data = 0;
    wc->qp_num = qp->ex.qp_base.qp_num;
    wc->src_qp = 0;
    wc->wc_flags = 0;
    wc->pkey_index = 0;
    wc->slid = 0;
    wc->sl = 0;
    wc->dlid_path_bits = 0;
    return wc;
}

/* True: nothing is left in the ring. */
static bool drain_sends(struct poll *poll, struct qp *qp)
{
    struct send_cqe *cqe;
    while ((cqe = send_head(qp)) != NULL) {
        if (poll->count == poll->room || !is_due(poll, cqe->due_ns))
            return false;
        struct ibv_wc *wc = next_wc(poll, qp);
        wc->wr_id = cqe->wr_id;
        wc->status = (enum ibv_wc_status)cqe->status;
        wc->opcode = (enum ibv_wc_opcode)cqe->opcode;
        wc->byte_len = cqe->byte_len;
        wc->src_qp = qp->attr.dest_qp_num;
        poll->due_ns = cqe->due_ns;
        qp->cqe_head++;
        atomic_store_explicit(&qp->sq_retired, cqe->sq_count, memory_order_release);
    }
    return true;
}

static bool drain_recvs(struct poll *poll, struct qp *qp)
{
    struct recv_wqe *wqe;
    int before = poll->count;
    bool empty = true;
    while ((wqe = recv_head(qp)) != NULL) {
        if (poll->count == poll->room || !is_due(poll, wqe->due_ns)) {
            empty = false;
            break;
        }
        uint32_t at = atomic_load_explicit(&qp->rq_polled, memory_order_relaxed);
        struct recv_id *id = recv_id(qp, at, wqe);
        if (__builtin_expect(id == NULL, 0)) {
            atomic_store_explicit(&qp->rq_polled, at + 1, memory_order_release);
            continue;
        }
        struct ibv_wc *wc = next_wc(poll, qp);
        wc->wr_id = id->wr_id;
        wc->status = (enum ibv_wc_status)wqe->status;
        wc->opcode = (enum ibv_wc_opcode)(IBV_WC_RECV | wqe->opcode);
        wc->byte_len = nic_once(wqe->byte_len);
        /* Nobody shall read beyond what was posted because somebody else wrote here. */
        if (__builtin_expect(wc->opcode == IBV_WC_RECV && wc->byte_len > id->length, 0)) {
            wc->byte_len = 0;
            wc->status = IBV_WC_LOC_LEN_ERR;
        }
        wc->imm_data = wqe->imm;
        wc->src_qp = wqe->src_qp;
        poll->due_ns = wqe->due_ns;
        wc->wc_flags = wqe->wc_flags;
        wc->slid = wqe->slid;
        wc->sl = wqe->sl;
        /* Its place in an SRQ may be taken again from here on. */
        __atomic_store_n(&id->number, 0, __ATOMIC_RELEASE);
        atomic_store_explicit(&qp->rq_polled, at + 1, memory_order_release);
    }
    if (qp->srq != NULL)
        atomic_fetch_add(&qp->srq->polled, (uint32_t)(poll->count - before));
    return empty;
}

/* Is there a completion that says why the queue pair is in ERR? */
static bool tells_why(struct qp *qp, bool send)
{
    uint32_t head = send ? qp->cqe_head : atomic_load(&qp->rq_polled);
    uint32_t mask = send ? qp->cqe_mask : qp->shared->rq_mask;
    for (uint32_t at = head; at - head <= mask; at++) {
        const struct send_cqe *cqe = send ? send_entry(qp, at) : NULL;
        const struct recv_wqe *wqe = send ? NULL : recv_entry(qp, at);
        if (cqe == NULL && wqe == NULL)
            return false;
        uint8_t status = send ? cqe->status : wqe->status;
        if (status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR)
            return true;
    }
    return false;
}

/* Before a ring of a queue pair in ERR is drained: show what broke it, if that lies in the other
 * ring for this queue. False: it cannot be shown yet. */
static bool show_cause(struct poll *poll, struct qp *qp, bool send)
{
    struct ibv_cq *cq = &poll->cq->base;
    if (qp->ex.qp_base.send_cq != cq || qp->ex.qp_base.recv_cq != cq || !tells_why(qp, !send))
        return true;
    return send ? drain_recvs(poll, qp) : drain_sends(poll, qp);
}

/* One set bit: drain; when the ring is empty take the bit away, and look once more, since an entry
 * may have come before the bit went. */
static void visit(struct poll *poll, struct cq_bits *bits, uint32_t slot, bool send)
{
    struct qp *qp = atomic_load_explicit(&poll->cq->ctx->qps[slot], memory_order_acquire);
    if (qp == NULL || (!send && to_cq(qp->ex.qp_base.recv_cq) != poll->cq)) {
        unmark(bits, slot);
        return;
    }
    bool flushed = true;
    if (__builtin_expect(
            atomic_load_explicit(&qp->shared->state, memory_order_acquire) == IBV_QPS_ERR, 0)) {
        flushed = nic_qp_flush(qp);
        if (!show_cause(poll, qp, send))
            return;
    }
    if (!(send ? drain_sends(poll, qp) : drain_recvs(poll, qp)) || !flushed)
        return;
    unmark(bits, slot);
    if ((send ? (void *)send_head(qp) : (void *)recv_head(qp)) != NULL)
        nic_cq_mark(bits, slot);
}

/* Where to go on next time, so that a busy queue pair does not keep the others out. */
static void scan(struct poll *poll, struct cq_bits *bits, bool send)
{
    uint64_t summary = atomic_load_explicit(&bits->summary, memory_order_acquire);
    unsigned turn = poll->cq->turn;
    unsigned first = turn / 64 % 64, bit = turn % 64;
    /* Rotated so that the word to begin with is the lowest. */
    summary = summary >> first | summary << (-first & 63);
    for (; summary != 0; summary &= summary - 1) {
        unsigned at = ((unsigned)__builtin_ctzll(summary) + first) % 64;
        uint64_t word = atomic_load_explicit(&bits->word[at], memory_order_acquire);
        word = word >> bit | word << (-bit & 63);
        for (; word != 0; word &= word - 1) {
            unsigned slot = at * 64 + ((unsigned)__builtin_ctzll(word) + bit) % 64;
            visit(poll, bits, slot, send);
            if (poll->count == poll->room) {
                poll->cq->turn = slot + 1;
                return;
            }
        }
    }
}

/* A NIC works while its user polls; ours may be waiting for the very core that polls. So after some
 * 10 us in vain the core is offered to others, which costs half a microsecond if nobody wants it.
 */
static int found_nothing(struct cq *cq)
{
    enum { POLLS_BEFORE_YIELD = 2048, POLLS_BETWEEN_YIELDS = 64 };
    uint32_t in_vain = atomic_load_explicit(&cq->in_vain, memory_order_relaxed) + 1;
    atomic_store_explicit(&cq->in_vain, in_vain, memory_order_relaxed);
    if (__builtin_expect(in_vain >= POLLS_BEFORE_YIELD, 0) && in_vain % POLLS_BETWEEN_YIELDS == 0)
        sched_yield();
    return atomic_load_explicit(&cq->shared->overrun, memory_order_relaxed) ? -1 : 0;
}

int nic_poll(struct cq *cq, int num_entries, struct ibv_wc *wc, uint64_t *stamp_ns)
{
    struct ctx *ctx = cq->ctx;
    if (nic_after_fork(ctx)) {
        nic_refuse_child(ctx);
        return -1;
    }
    if (atomic_load_explicit(&ctx->waiting, memory_order_acquire) != 0)
        nic_progress(ctx);
    if (num_entries < 1)
        return num_entries < 0 ? -1 : 0;
    struct cq_bits *recv = &cq->shared->bits;
    if ((atomic_load_explicit(&cq->bits.summary, memory_order_acquire) |
         atomic_load_explicit(&recv->summary, memory_order_acquire)) == 0)
        return found_nothing(cq);
    struct poll poll = {cq, wc, num_entries, 0, 0, 0};
    spin_lock(&cq->lock);
    /* Sends and receives come first by turns. */
    cq->recv_first = !cq->recv_first;
    for (unsigned i = 0; i < 2 && poll.count < poll.room; i++) {
        bool send = cq->recv_first == (i == 1);
        scan(&poll, send ? &cq->bits : recv, send);
    }
    if (poll.count > 0) {
        cq->consumed += (uint32_t)poll.count;
        atomic_store_explicit(&cq->shared->consumed, cq->consumed, memory_order_release);
    }
    spin_unlock(&cq->lock);
    *stamp_ns = poll.due_ns;
    if (poll.count == 0)
        return found_nothing(cq);
    atomic_store_explicit(&cq->in_vain, 0, memory_order_relaxed);
    /* What became due between our look and the scan: without answers the bytes of a message whose
     * completion is shown may still be on their way, and nobody may look again for long. */
    if (__builtin_expect(atomic_load_explicit(&ctx->late.count, memory_order_relaxed) != 0, 0))
        nic_late_progress(ctx);
    return poll.count;
}

int softnic_poll_cq(struct ibv_cq *base, int num_entries, struct ibv_wc *wc)
{
    uint64_t stamp_ns;
    return nic_poll(to_cq(base), num_entries, wc, &stamp_ns);
}

/* A queue pair goes, or is reset: its completions go with it. */
void nic_cq_forget(struct qp *qp)
{
    struct cq *send = to_cq(qp->ex.qp_base.send_cq), *recv = to_cq(qp->ex.qp_base.recv_cq);
    if (qp->srq != NULL)
        nic_srq_forget(qp);
    while (send_head(qp) != NULL) {
        qp->cqe_head++;
        send->consumed++;
    }
    while (recv_head(qp) != NULL) {
        atomic_fetch_add(&qp->rq_polled, 1);
        recv->consumed++;
    }
    atomic_store(&send->shared->consumed, send->consumed);
    atomic_store(&recv->shared->consumed, recv->consumed);
    unmark(&send->bits, qp->slot);
    unmark(&recv->shared->bits, qp->slot);
}

/* Of the first entry that counts: an event for solicited ones only passes the others over. */
static uint64_t ring_due(struct qp *qp, bool send, bool solicited)
{
    if (send) {
        for (uint32_t at = qp->cqe_head; at - qp->cqe_head <= qp->cqe_mask; at++) {
            const struct send_cqe *cqe = send_entry(qp, at);
            if (cqe == NULL)
                break;
            if (!solicited || cqe->status != IBV_WC_SUCCESS)
                return cqe->due_ns;
        }
        return UINT64_MAX;
    }
    uint32_t head = atomic_load(&qp->rq_polled);
    for (uint32_t at = head; at - head <= qp->rq_mask; at++) {
        const struct recv_wqe *wqe = recv_entry(qp, at);
        if (wqe == NULL)
            break;
        if (!solicited || wqe->status != IBV_WC_SUCCESS || wqe->solicited)
            return wqe->due_ns;
    }
    return UINT64_MAX;
}

uint64_t nic_cq_due(struct cq *cq, bool solicited)
{
    uint64_t due = UINT64_MAX;
    spin_lock(&cq->lock);
    for (int send = 0; send < 2; send++) {
        struct cq_bits *bits = send ? &cq->bits : &cq->shared->bits;
        uint64_t summary = atomic_load(&bits->summary);
        for (; summary != 0; summary &= summary - 1) {
            uint32_t at = (uint32_t)__builtin_ctzll(summary);
            uint64_t word = atomic_load(&bits->word[at]);
            for (; word != 0; word &= word - 1) {
                uint32_t slot = at * 64 + (uint32_t)__builtin_ctzll(word);
                struct qp *qp = atomic_load(&cq->ctx->qps[slot]);
                uint64_t d = qp != NULL ? ring_due(qp, send, solicited) : UINT64_MAX;
                if (d < due)
                    due = d;
            }
        }
    }
    spin_unlock(&cq->lock);
    return due;
}
