/* SPDX-License-Identifier: MIT */
/*
 * Messages that land late. A message that a send queue has carried out becomes a late_op: what is
 * to be copied, in pieces, and which completions come of it. Pieces land one by one; a message
 * whose pieces have all landed retires, after all before it on its queue pair, and with that its
 * completions are seen. Everything here is under ctx->late.lock, and under the sq_lock too where a
 * message retires.
 *
 * Without answers (UC, UD) the sender is done when its data are read: they are copied, and what
 * lands later is the far side's affair alone. A datagram finds its destination and its receive only
 * when it arrives, and lands whole.
 */
#ifndef SOFTNIC_LATE_H
#define SOFTNIC_LATE_H

#include "transport/softnic/nic.h"

enum { LATE_PIECES = 8 };

struct late_op {
    struct late_op *next, *prev; /* of the port, as they were posted */
    struct late_op *next_of_qp;
    struct qp *qp;
    struct send_wqe wqe; /* its head, and the operands of an atomic */
    struct recv_wqe *recv;
    uint32_t sq_count, recv_index;
    uint32_t order;  /* PORT_ORDER: of both ports, what either leaves open is open */
    bool unanswered; /* UC, UD: no completion at the sender comes of it */
    enum ibv_wc_status status;
    uint64_t length, due_ns;
    uint32_t pieces, left; /* how many; which have not landed, a bit each */
    uint64_t end[LATE_PIECES];
    unsigned n_local, n_target;
    struct shared_sge *local; /* lkey 0: a copy behind this */
    struct late_target {
        uint64_t addr, length;
        uint32_t key;
    } * target;
};

static inline bool late_is_put(const struct late_op *op)
{
    return op->wqe.opcode < IBV_WR_RDMA_READ;
}

/* Nothing holds back a sender that waits for no answer: where the order is relaxed and much is
 * under way, all of this queue pair lands now. sq_lock held. */
void late_relieve(struct qp *qp);
/* From a splitmix64 stream. */
uint64_t late_random(uint64_t *state);
/* In how many pieces it lands follows from `random`; NULL: all at once. NULL: no memory. */
struct late_op *late_make(struct qp *qp, const struct work *work, uint64_t *random);
void late_free(struct late_op *op);
/* A datagram; sq_lock held. False: the far side is busy. */
bool late_arrive(struct late_op *op);
/* Land a piece. False: the far side is busy. `inbound_held`: by us. */
bool late_land(struct late_op *op, unsigned piece, bool inbound_held);
/* Show the completions of a message that has landed, the first of its queue pair; sq_lock held.
 * False: the far side is busy. */
bool late_complete(struct late_op *op, bool inbound_held);

#endif
