/* SPDX-License-Identifier: MIT */
/*
 * The inside of softnic. Objects: nic_objects.h; processes, ports and memory: nic_ports.h; queues
 * and requests: nic_queues.h; here what wakes, moves on, and comes late.
 */
#ifndef SOFTNIC_NIC_H
#define SOFTNIC_NIC_H

#include "transport/softnic/nic_queues.h"

/* channel.c */
/* 0 or an errno; ctx->lock held, as for the next. */
int nic_channel_add_cq(struct channel *ch, struct cq *cq);
void nic_channel_remove_cq(struct channel *ch, struct cq *cq);
void nic_channel_rearm(struct ctx *ctx);

/* wake.c */
/* A completion that is due then, or at once (0), is in its ring. `peer`: whose queue it is, NULL if
 * ours. */
void nic_cq_wake(struct ctx *ctx, struct peer *peer, struct shared_cq *scq, bool solicited,
                 uint64_t due_ns);
/* Set a timer; 0: never. */
bool nic_timer_at(int fd, uint64_t at_ns);

/* async.c */
int nic_async_create(struct ctx *ctx);
void nic_async_raise(struct ctx *ctx, struct peer *peer, enum ibv_event_type type, uint32_t number);

/* progress.c */
void nic_wait_add(struct qp *qp); /* sq_lock held */
void nic_wait_remove(struct qp *qp);
void nic_progress(struct ctx *ctx);
uint64_t nic_next_wake(struct ctx *ctx);
static inline uint64_t nic_now(struct ctx *ctx)
{
    return ctx->now_ns(ctx->clock);
}

/* The time of a completion that comes now, on a queue that keeps it. */
static inline uint64_t nic_stamp(struct ctx *ctx, uint64_t due_ns)
{
    uint64_t now = nic_now(ctx);
    return due_ns > now ? due_ns : now;
}

/* late.c */
void nic_late_init(struct ctx *ctx);
void nic_late_close(struct ctx *ctx);
/* Let the message's bytes land later; sq_lock and `inbound` held. False: it must be done now. */
bool nic_late_launch(struct qp *qp, const struct work *work);
void nic_late_progress(struct ctx *ctx);
uint64_t nic_late_next(struct ctx *ctx);
/* sq_lock held in all of these: everything lands now; everything is flushed; is forgotten. */
void nic_late_force(struct qp *qp, bool inbound_held);
void nic_late_flush(struct qp *qp);
void nic_late_finish(struct qp *qp); /* before a queue pair goes: what was sent without answers */
void nic_late_drop(struct qp *qp);

/* order.c */
int nic_order_env(struct softnic_order *order, bool *given);
void nic_order_store(struct meeting *meeting, const struct softnic_order *order);
void nic_order_load(const struct meeting *meeting, struct softnic_order *order);

/* wire.c */
int nic_wire_check(const struct softnic_wire *wire);
int nic_wire_env(struct softnic_wire *wire, bool *given);
void nic_wire_store(struct meeting *meeting, const struct softnic_wire *wire);
void nic_wire_load(const struct meeting *meeting, struct softnic_wire *wire);
static inline bool nic_shaped(const struct meeting *meeting)
{
    return (atomic_load_explicit(&meeting->mode, memory_order_relaxed) & PORT_SHAPED) != 0;
}
/* As fast as memory, and in order. */
static inline bool nic_plain(const struct meeting *meeting)
{
    return atomic_load_explicit(&meeting->mode, memory_order_relaxed) == 0;
}
/* When a request may enter again; in the past: now. */
uint64_t nic_wire_opens(struct ctx *ctx);
/* Take the wire for a request of `bytes`. True: *due_ns is set. False: look again at *wake_ns. */
bool nic_wire_enter(struct qp *qp, bool round_trip, uint64_t bytes, uint64_t *due_ns,
                    uint64_t *wake_ns);

/* qp_state.c */
/* sq_lock held, `inbound` of no side */
void nic_qp_to_error(struct qp *qp);
/* A request of a transport without answers failed: only the send queue stops. */
void nic_qp_to_sqe(struct qp *qp);
/* False: another thread is at its send queue, come again. */
bool nic_qp_flush(struct qp *qp);

#endif
