/* SPDX-License-Identifier: MIT */
/*
 * Small writes on an unshaped wire, most of what there is: one piece each, so that nothing of the
 * general way is needed. Into memory that is mapped here they are a copy; what goes into private
 * memory is gathered, as many requests as one batch has, since a system call costs as much as
 * several of its pieces. The kernel copies these one after the other, so order stays.
 */
#include "transport/softnic/nic.h"
#include <sys/uio.h>

enum { SMALL_BYTES = 1024, GATHER_MAX = 64 };

/* The bytes of a request, if they are few and in one piece that its key grants; else NULL. */
static uint8_t *small_piece(struct qp *qp, struct send_wqe *wqe, uint32_t *length)
{
    if ((wqe->flags & IBV_SEND_INLINE) != 0) {
        *length = wqe->length;
        return (uint8_t *)wqe + offsetof(struct send_wqe, data);
    }
    const struct shared_sge *sge = wqe->sge;
    if (wqe->num_sge != 1 || sge->length > SMALL_BYTES)
        return NULL;
    const struct shared_mr *smr =
        nic_mr_find(qp->ctx->own->mr, sge->lkey, sge->addr, sge->length, 0, qp->shared->pd);
    *length = sge->length;
    return smr != NULL ? (uint8_t *)(uintptr_t)(sge->addr + smr->shift) : NULL;
}

/* From where and to where; false: this is not a small write. */
static bool is_small(struct qp *qp, struct send_wqe *wqe, uint8_t **from, struct target *target)
{
    uint32_t length;
    if (wqe->opcode != IBV_WR_RDMA_WRITE || !nic_plain(qp->peer->meeting) || qp->last_due_ns != 0 ||
        (qp->remote->access & IBV_ACCESS_REMOTE_WRITE) == 0)
        return false;
    *from = small_piece(qp, wqe, &length);
    return *from != NULL && length != 0 &&
           nic_remote_resolve(qp, wqe->rkey, wqe->raddr, length, IBV_ACCESS_REMOTE_WRITE, target);
}

/* Requests that go over in one call. */
struct gathering {
    unsigned requests, n_remote;
    uint64_t end[GATHER_MAX]; /* of the bytes of the first one, two, ... */
    struct iovec local[GATHER_MAX], remote[2 * GATHER_MAX];
};

static void gather(struct gathering *g, uint8_t *from, const struct target *target)
{
    uint64_t before = g->requests > 0 ? g->end[g->requests - 1] : 0;
    g->local[g->requests] = (struct iovec){from, target->length};
    g->end[g->requests++] = before + target->length;
    g->n_remote += nic_remote_pieces(target, true, g->remote + g->n_remote);
}

/* How many of the next requests were carried out together. What did not go over whole is left to be
 * done again by itself, and fails there if it must. */
static unsigned run_gathered(struct qp *qp, struct send_wqe *wqe, uint32_t limit, uint8_t *from,
                             struct target *target)
{
    struct gathering g;
    g.requests = g.n_remote = 0;
    if (limit > GATHER_MAX)
        limit = GATHER_MAX;
    uint32_t head = qp->sq_head;
    while (g.requests < limit) {
        gather(&g, from, target);
        head = nic_sq_after(qp, head, wqe);
        if (qp->sq_executed + g.requests == qp->sq_posted)
            break;
        wqe = nic_sq_at(qp, head);
        if (!is_small(qp, wqe, &from, target) || target->direct != NULL)
            break;
    }
    if (g.requests < 2)
        return 0;
    ssize_t moved = process_vm_writev(qp->peer->pid, g.local, g.requests, g.remote, g.n_remote, 0);
    unsigned done = 0;
    for (; done < g.requests && moved >= (ssize_t)g.end[done]; done++) {
        uint64_t bytes = g.local[done].iov_len;
        nic_count_bytes(qp, bytes);
        nic_request_done(qp, nic_sq_next(qp), bytes, 0);
    }
    return done;
}

unsigned nic_run_small(struct qp *qp, uint32_t limit)
{
    struct send_wqe *wqe = nic_sq_next(qp);
    struct target target;
    uint8_t *from;
    if (!is_small(qp, wqe, &from, &target))
        return 0;
    if (__builtin_expect(target.direct == NULL, 0))
        return run_gathered(qp, wqe, limit, from, &target);
    nic_copy_ordered(target.direct, from, target.length);
    nic_count_bytes(qp, target.length);
    nic_request_done(qp, wqe, target.length, 0);
    return 1;
}
