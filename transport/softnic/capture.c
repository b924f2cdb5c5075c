/* SPDX-License-Identifier: MIT */
/*
 * From work requests to packets: BTH and its extended headers, and payload (InfiniBand
 * specification, chapter 9).
 */
#include "transport/softnic/capture_frame.h"
#include <arpa/inet.h>

enum { PSN_MASK = 0xffffff };

enum opcode {
    SEND_FIRST = 0,
    WRITE_FIRST = 6,
    READ_REQUEST = 12,
    READ_RESPONSE_FIRST = 13,
    ACKNOWLEDGE = 17,
    ATOMIC_ACKNOWLEDGE = 18,
    COMPARE_SWAP = 19,
    FETCH_ADD = 20,
    UNRELIABLE = 0x20, /* an unreliable connection's are those of a reliable one and this */
    DATAGRAM = 0x64,   /* with immediate data: the next */
    SYNDROME_ACK = 0x1f,
};

static void begin(struct headers *h, uint32_t opcode, uint32_t qpn, uint32_t psn, bool ask,
                  bool solicited)
{
    h->used = 0;
    frame_add(h, opcode, 1);
    frame_add(h, 0x40u | (solicited ? 0x80u : 0), 1); /* migrated; the pad count comes later */
    frame_add(h, 0xffff, 2);                          /* the default partition */
    frame_add(h, qpn & PSN_MASK, 4);
    frame_add(h, (ask ? 0x80000000u : 0) | (psn & PSN_MASK), 4);
}

/* ---- a message ------------------------------------------------------------------------------- */

/* Of which opcodes the packets of a message are, from that of the first. */
struct message {
    uint32_t first;
    bool has_imm, is_write, is_response, reliable, solicited;
    uint32_t imm, rkey, psn, msn;
    uint64_t address;
    uint32_t length, mtu;
};

static uint32_t packets_of(uint64_t length, uint32_t mtu)
{
    return length == 0 ? 1 : (uint32_t)((length + mtu - 1) / mtu);
}

static uint32_t opcode_of(const struct message *m, bool first, bool last)
{
    if (m->is_response)
        return m->first + (first && last ? 3 : first ? 0 : last ? 2 : 1);
    return m->first + (first && last ? (m->has_imm ? 5 : 4)
                       : first       ? 0
                       : last        ? (m->has_imm ? 3 : 2)
                                     : 1);
}

static void emit_message(const struct way *w, const struct message *m, struct cursor *data)
{
    uint32_t n = packets_of(m->length, m->mtu), left = m->length;
    for (uint32_t i = 0; i < n; i++) {
        struct headers h;
        bool first = i == 0, last = i + 1 == n;
        uint32_t bytes = last ? left : m->mtu;
        begin(&h, opcode_of(m, first, last), w->to_qpn, m->psn + i,
              last && m->reliable && !m->is_response, last && m->solicited);
        if (m->is_write && first) {
            frame_add(&h, m->address, 8);
            frame_add(&h, m->rkey, 4);
            frame_add(&h, m->length, 4);
        }
        if (m->is_response && (first || last))
            frame_add(&h, (uint32_t)SYNDROME_ACK << 24 | (m->msn & PSN_MASK), 4);
        if (m->has_imm && last)
            frame_add(&h, ntohl(m->imm), 4);
        frame_emit(w, &h, data, bytes);
        left -= bytes;
    }
}

static void emit_answer(const struct way *w, uint32_t psn, uint32_t msn, uint8_t syndrome)
{
    struct headers h;
    struct cursor none = {0};
    begin(&h, ACKNOWLEDGE, w->to_qpn, psn, false, false);
    frame_add(&h, (uint32_t)syndrome << 24 | (msn & PSN_MASK), 4);
    frame_emit(w, &h, &none, 0);
}

static void emit_atomic(const struct way *w, const struct send_wqe *wqe, uint32_t psn)
{
    struct headers h;
    struct cursor none = {0};
    bool add_to = wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    begin(&h, add_to ? FETCH_ADD : COMPARE_SWAP, w->to_qpn, psn, true, false);
    frame_add(&h, wqe->raddr, 8);
    frame_add(&h, wqe->rkey, 4);
    frame_add(&h, add_to ? wqe->operand[0] : wqe->operand[1], 8);
    frame_add(&h, add_to ? 0 : wqe->operand[0], 8);
    frame_emit(w, &h, &none, 0);
}

static void emit_atomic_answer(const struct way *w, struct cursor *data, uint32_t psn, uint32_t msn)
{
    struct headers h;
    struct cursor none = {0};
    uint64_t old;
    begin(&h, ATOMIC_ACKNOWLEDGE, w->to_qpn, psn, false, false);
    frame_add(&h, (uint32_t)SYNDROME_ACK << 24 | (msn & PSN_MASK), 4);
    frame_take(data, (uint8_t *)&old, sizeof old);
    frame_add(&h, old, 8);
    frame_emit(w, &h, &none, 0);
}

static void emit_read_request(const struct way *w, const struct work *work, uint32_t psn)
{
    struct headers h;
    struct cursor none = {0};
    begin(&h, READ_REQUEST, w->to_qpn, psn, true, false);
    frame_add(&h, work->wqe->raddr, 8);
    frame_add(&h, work->wqe->rkey, 4);
    frame_add(&h, work->length, 4);
    frame_emit(w, &h, &none, 0);
}

/* ---- a request ------------------------------------------------------------------------------- */

/* Flows of a pair of queue pairs go one way through the fabric. */
static uint16_t udp_port_of(uint32_t a, uint32_t b)
{
    uint32_t mixed = a * 0x9e3779b1u ^ b * 0x85ebca6bu;
    return (uint16_t)(0xc000u | mixed >> 18);
}

static struct way way_to(struct qp *qp)
{
    const struct shared_qp *sqp = qp->shared;
    return (struct way){.c = qp->ctx->capture,
                        .from_ip = qp->ctx->ip,
                        .to_ip = sqp->dest_ip,
                        .to_qpn = sqp->dest_qpn,
                        .flags = qp->attr.ah_attr.grh.sgid_index == 1 ? ROUTE_IPV4 : 0,
                        .udp_port = udp_port_of(qp->ex.qp_base.qp_num, sqp->dest_qpn),
                        .time_ns = nic_now(qp->ctx)};
}

static struct way way_back(const struct qp *qp, const struct way *way, uint64_t due_ns)
{
    struct way back = *way;
    back.from_ip = way->to_ip;
    back.to_ip = way->from_ip;
    back.to_qpn = qp->ex.qp_base.qp_num;
    if (due_ns > back.time_ns)
        back.time_ns = due_ns;
    return back;
}

static struct message message_of(const struct qp *qp, const struct work *work, uint32_t psn)
{
    const struct send_wqe *wqe = work->wqe;
    bool is_write = wqe->opcode == IBV_WR_RDMA_WRITE || wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    bool has_imm = wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wqe->opcode == IBV_WR_SEND_WITH_IMM;
    bool reliable = qp->ex.qp_base.qp_type == IBV_QPT_RC;
    return (struct message){
        .first = (is_write ? WRITE_FIRST : SEND_FIRST) + (reliable ? 0u : (uint32_t)UNRELIABLE),
        .has_imm = has_imm,
        .is_write = is_write,
        .reliable = reliable,
        .solicited = (wqe->flags & IBV_SEND_SOLICITED) != 0 && (!is_write || has_imm),
        .imm = wqe->imm,
        .rkey = wqe->rkey,
        .psn = psn,
        .address = wqe->raddr,
        .length = (uint32_t)work->length,
        .mtu = 128u << qp->attr.path_mtu};
}

static void datagram(struct qp *qp, const struct work *work, struct cursor *data)
{
    const struct send_wqe *wqe = work->wqe;
    struct headers h;
    bool has_imm = wqe->opcode == IBV_WR_SEND_WITH_IMM;
    struct way way = way_to(qp);
    way.to_ip = nic_route_ip(wqe->raddr);
    way.to_qpn = nic_route_qpn(wqe->raddr);
    way.udp_port = udp_port_of(qp->ex.qp_base.qp_num, way.to_qpn);
    way.flags = nic_route_flags(wqe->raddr);
    if ((way.flags & ROUTE_GRH) == 0)
        way.flags = ROUTE_IPV4; /* RoCE knows no LID: a frame has an address */
    begin(&h, DATAGRAM + has_imm, way.to_qpn, qp->attr.sq_psn + qp->wire_psn++, false,
          (wqe->flags & IBV_SEND_SOLICITED) != 0);
    frame_add(&h, (wqe->rkey & 0x80000000u) != 0 ? qp->shared->qkey : wqe->rkey, 4);
    frame_add(&h, qp->ex.qp_base.qp_num, 4);
    if (has_imm)
        frame_add(&h, ntohl(wqe->imm), 4);
    frame_emit(&way, &h, data, (uint32_t)work->length);
}

/* READ: the answer takes as many numbers as it has packets. */
static void read_or_atomic(struct qp *qp, const struct work *work, struct cursor *data)
{
    struct way way = way_to(qp), back = way_back(qp, &way, work->due_ns);
    uint32_t psn = qp->attr.sq_psn + qp->wire_psn, mtu = 128u << qp->attr.path_mtu;
    qp->wire_msn++;
    if (work->wqe->opcode != IBV_WR_RDMA_READ) {
        emit_atomic(&way, work->wqe, psn);
        emit_atomic_answer(&back, data, psn, qp->wire_msn);
        qp->wire_psn++;
        return;
    }
    struct message answer = {.first = READ_RESPONSE_FIRST,
                             .is_response = true,
                             .psn = psn,
                             .msn = qp->wire_msn,
                             .length = (uint32_t)work->length,
                             .mtu = mtu};
    emit_read_request(&way, work, psn);
    emit_message(&back, &answer, data);
    qp->wire_psn += packets_of(work->length, mtu);
}

static void send_or_write(struct qp *qp, const struct work *work, struct cursor *data)
{
    struct way way = way_to(qp), back = way_back(qp, &way, work->due_ns);
    struct message m = message_of(qp, work, qp->attr.sq_psn + qp->wire_psn);
    emit_message(&way, &m, data);
    qp->wire_psn += packets_of(m.length, m.mtu);
    if (m.reliable)
        emit_answer(&back, qp->attr.sq_psn + qp->wire_psn - 1, ++qp->wire_msn, SYNDROME_ACK);
}

void nic_capture_request(struct qp *qp, const struct work *work, bool late)
{
    const struct target *target = &work->target[0];
    struct iovec there = {late && work->n_target > 0 ? target->direct : NULL, work->length};
    struct cursor data = {work->local, work->n_local, 0};
    if (late && work->wqe->opcode >= IBV_WR_RDMA_READ)
        data = (struct cursor){&there, there.iov_base != NULL, 0};
    pthread_mutex_lock(&qp->ctx->capture->lock);
    if (qp->datagram)
        datagram(qp, work, &data);
    else if (work->wqe->opcode >= IBV_WR_RDMA_READ)
        read_or_atomic(qp, work, &data);
    else
        send_or_write(qp, work, &data);
    pthread_mutex_unlock(&qp->ctx->capture->lock);
}

void nic_capture_refusal(struct qp *qp, const struct work *work, uint8_t syndrome)
{
    struct cursor data = {work->local, work->n_local, 0};
    struct way way = way_to(qp), back = way_back(qp, &way, 0);
    uint32_t psn = qp->attr.sq_psn + qp->wire_psn;
    pthread_mutex_lock(&qp->ctx->capture->lock);
    if (work->wqe->opcode == IBV_WR_RDMA_READ) {
        emit_read_request(&way, work, psn);
    } else if (work->wqe->opcode > IBV_WR_RDMA_READ) {
        emit_atomic(&way, work->wqe, psn);
    } else {
        struct message m = message_of(qp, work, psn);
        emit_message(&way, &m, &data);
    }
    emit_answer(&back, psn, qp->wire_msn, syndrome);
    pthread_mutex_unlock(&qp->ctx->capture->lock);
}
