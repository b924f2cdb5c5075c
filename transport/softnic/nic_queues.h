/* SPDX-License-Identifier: MIT */
/* Queues and the requests in them: what these files of softnic offer to the others. */
#ifndef SOFTNIC_NIC_QUEUES_H
#define SOFTNIC_NIC_QUEUES_H

#include "transport/softnic/nic_ports.h"

/* send_ring.c; sq_lock held in all of them */
struct send_wqe *nic_sq_begin(struct qp *qp);
void nic_sq_end(struct qp *qp, struct send_wqe *wqe, uint32_t payload);
/* The one at a place of the ring, and the place after it. */
static inline struct send_wqe *nic_sq_at(const struct qp *qp, uint32_t place)
{
    uint32_t block = place + qp->sq_stride > qp->sq_blocks ? 0 : place;
    return (struct send_wqe *)(qp->sq + (size_t)block * WQE_BLOCK);
}
static inline uint32_t nic_sq_after(const struct qp *qp, uint32_t place, const struct send_wqe *wqe)
{
    return (place + qp->sq_stride > qp->sq_blocks ? 0 : place) + wqe->blocks;
}
static inline struct send_wqe *nic_sq_next(struct qp *qp) /* the one to execute */
{
    return nic_sq_at(qp, qp->sq_head);
}
static inline void nic_sq_done(struct qp *qp, const struct send_wqe *wqe)
{
    qp->sq_head = nic_sq_after(qp, qp->sq_head, wqe);
    qp->sq_executed++;
}
void nic_doorbell(struct qp *qp); /* releases sq_lock */
static inline bool nic_may_send(const struct qp *qp)
{
    uint32_t state = atomic_load_explicit(&qp->shared->state, memory_order_relaxed);
    return state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE ||
           state == IBV_QPS_ERR;
}
/* wr_api.c */
/* Does this very thread hold sq_lock, since it builds a list of requests? */
static inline bool nic_builds_here(const struct qp *qp)
{
    return atomic_load_explicit(&qp->builder, memory_order_relaxed) == (uintptr_t)pthread_self();
}
void nic_wr_api(struct qp *qp);

/* execute.c: reliable connections */
/* Work the send queue off, at most `limit` requests; sq_lock held. True: something waits. */
bool nic_execute(struct qp *qp, uint32_t limit);
void nic_flush_send(struct qp *qp);
/* unreliable.c: unreliable connections and datagrams, in the same way */
bool nic_execute_unreliable(struct qp *qp, uint32_t limit);
static inline bool nic_is_unanswered(const struct qp *qp)
{
    return qp->execute == nic_execute_unreliable;
}
/* datagram.c */
int nic_destinations_create(struct qp *qp);
void nic_destinations_destroy(struct qp *qp); /* sq_lock not held */
/* To whom the request goes; false: to nobody. */
bool nic_destination_find(struct qp *qp, const struct send_wqe *wqe);

/* How a datagram's work request says where it goes, in `raddr`; `rkey` is the Q_Key. */
enum { ROUTE_GRH = 1, ROUTE_IPV4 = 2, ROUTE_SL_SHIFT = 4 };
static inline uint64_t nic_route(uint32_t ip, uint32_t flags, uint32_t qpn)
{
    return (uint64_t)ip << 32 | flags << 24 | (qpn & 0xffffff);
}
static inline uint32_t nic_route_ip(uint64_t route)
{
    return (uint32_t)(route >> 32);
}
static inline uint32_t nic_route_flags(uint64_t route)
{
    return (uint32_t)route >> 24;
}
static inline uint32_t nic_route_qpn(uint64_t route)
{
    return (uint32_t)route & 0xffffff;
}

/* One work request, taken apart. */
struct work {
    struct send_wqe *wqe;
    struct recv_wqe *recv; /* the receive that it uses up */
    uint64_t length, due_ns;
    unsigned n_local, n_target;
    bool broken; /* the receiving side goes to ERR, with `event` */
    enum ibv_event_type event;
    struct iovec local[MAX_SGE];
    struct target target[MAX_SGE];
};
/* unreliable.c: a datagram comes late: take it to its destination; sq_lock held. False: that is
 * busy. */
bool nic_datagram_arrive(struct qp *qp, struct work *work);
/* request.c: what must hold before a byte moves. */
enum ibv_wc_status nic_request_check(struct qp *qp, struct work *work, bool *rnr);
/* Its parts, for transports without answers. */
enum ibv_wc_status nic_gather_local(struct qp *qp, struct work *work);
struct recv_wqe *nic_next_recv(struct qp *qp);
void nic_fill_recv(const struct qp *qp, struct work *work, bool write);
enum ibv_wc_status nic_scatter(struct qp *qp, struct work *work);
/* small.c: carry out the next requests, at most `limit`, if they are small writes. How many were.
 */
unsigned nic_run_small(struct qp *qp, uint32_t limit);
/* transfer.c */
/* Into how many pieces a target falls for the kernel; `ordered`: the last word comes last. */
unsigned nic_remote_pieces(const struct target *target, bool ordered, struct iovec *pieces);
/* 0 or the errno of process_vm_*. */
int nic_put(struct qp *qp, struct work *work);
int nic_get(struct qp *qp, struct work *work);
int nic_atomic(struct qp *qp, struct work *work);
void nic_copy_ordered(uint8_t *to, const uint8_t *from, size_t bytes);
/* remote.c */
bool nic_remote_find(struct qp *qp);
bool nic_remote_ready(struct qp *qp);
bool nic_remote_resolve(struct qp *qp, uint32_t key, uint64_t addr, uint64_t length, uint32_t want,
                        struct target *target);
/* The peer's queue pair goes to ERR; `inbound` held. */
void nic_remote_break(struct qp *qp, enum ibv_event_type event);

/* receive.c */
static inline struct recv_wqe *nic_recv_at(const struct qp *qp, uint32_t index)
{
    return (struct recv_wqe *)(qp->rq + (size_t)(index & qp->rq_mask) * qp->rq_stride);
}
/* A completion for the next receive of `sqp`, whose fields up to `owner` are filled; `inbound`
 * held. `peer`: whose it is, NULL if ours. */
void nic_recv_complete(struct ctx *ctx, struct peer *peer, struct member *member,
                       struct shared_qp *sqp, struct recv_wqe *wqe);
struct recv_id nic_recv_id(const struct ibv_recv_wr *wr, uint32_t count);
void nic_flush_recv(struct qp *qp); /* rq_lock held */

/* srq.c */
/* Move the next receive of the far side's shared queue into its ring; NULL: there is none. */
struct recv_wqe *nic_srq_take(struct qp *qp);
/* The queue pair goes or is reset, and takes with it what it took. Both CQs locked. */
void nic_srq_forget(struct qp *qp);

/* cq.c */
enum { CQE_WITHOUT_END = INT32_MAX }; /* its user said that it cannot overrun */
void nic_cq_mark(struct cq_bits *bits, uint32_t slot);
/* `sq_count`: this request's number, as sq_executed is after it. */
void nic_send_complete_at(struct qp *qp, const struct send_wqe *wqe, enum ibv_wc_status status,
                          uint32_t byte_len, uint64_t due_ns, uint32_t sq_count);
static inline void nic_send_complete(struct qp *qp, const struct send_wqe *wqe,
                                     enum ibv_wc_status status, uint32_t byte_len, uint64_t due_ns)
{
    nic_send_complete_at(qp, wqe, status, byte_len, due_ns, qp->sq_executed + 1);
}
/* Count a completion; true if the queue is overrun. */
bool nic_cq_count(struct shared_cq *scq);
/* Locks of the queue pair's completion queues, in order. */
void nic_cq_lock_both(struct qp *qp);
void nic_cq_unlock_both(struct qp *qp);
void nic_cq_forget(struct qp *qp); /* both locked */
/* Due time of the earliest completion not shown yet, 0 if one is to be seen, UINT64_MAX if none. */
uint64_t nic_cq_due(struct cq *cq, bool solicited);

/* poll.c: softnic_poll_cq; *stamp_ns: when the last of them was completed, where the CQ knows */
int nic_poll(struct cq *cq, int num_entries, struct ibv_wc *wc, uint64_t *stamp_ns);

/* counters.c */
static inline void nic_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}
/* What goes over; `inbound` held. */
static inline void nic_count_bytes(struct qp *qp, uint64_t bytes)
{
    nic_count(&qp->shared->sent.bytes, bytes);
    nic_count(&qp->remote->came.bytes, bytes);
}
/* The request is carried out. */
static inline void nic_request_done(struct qp *qp, const struct send_wqe *wqe, uint64_t length,
                                    uint64_t due_ns)
{
    if ((wqe->flags & IBV_SEND_SIGNALED) != 0 || qp->sig_all)
        nic_send_complete(qp, wqe, IBV_WC_SUCCESS, (uint32_t)length, due_ns);
    nic_sq_done(qp, wqe);
    qp->reason = WAIT_NONE;
}
/* The queue pair goes, its counts stay with the member; ctx->lock and `inbound` held. */
void nic_counters_keep_qp(struct member *member, struct shared_qp *sqp);
/* The member goes; flock held. */
void nic_counters_keep_member(struct meeting *meeting, struct member *member);

#endif
