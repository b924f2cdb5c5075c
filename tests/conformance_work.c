/* SPDX-License-Identifier: MIT */
/* Work requests, completions and contents. */
#include "tests/conformance.h"
#include <poll.h>
#include <sched.h>
#include <time.h>

void work_make(struct trial *t, struct work *w, enum ibv_wr_opcode opcode, const struct side *local,
               size_t at, const struct address *remote, size_t remote_at, uint32_t bytes)
{
    bool atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    *w = (struct work){.wr = {.wr_id = t->next_id++,
                              .opcode = opcode,
                              .send_flags = IBV_SEND_SIGNALED,
                              .num_sge = 1},
                       .sge[0] = {(uintptr_t)local->memory + at, bytes, local->mr->lkey}};
    w->wr.sg_list = w->sge;
    if (opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        w->wr.imm_data = (uint32_t)(0x01020304u * w->wr.wr_id + 0x89);
    if (atomic) {
        w->wr.wr.atomic.remote_addr = remote->memory + remote_at;
        w->wr.wr.atomic.rkey = remote->rkey;
    } else {
        w->wr.wr.rdma.remote_addr = remote->memory + remote_at;
        w->wr.wr.rdma.rkey = remote->rkey;
    }
}

void receive_make(struct trial *t, struct receive *r, const struct side *side, size_t at,
                  uint32_t bytes)
{
    *r = (struct receive){.wr = {.wr_id = t->next_id++, .num_sge = 1},
                          .sge[0] = {(uintptr_t)side->memory + at, bytes, side->mr->lkey}};
    r->wr.sg_list = r->sge;
}

static void set_by_calls(struct ibv_qp_ex *qpx, const struct ibv_send_wr *wr)
{
    struct ibv_data_buf buffers[MAX_SGE];
    size_t count = (size_t)wr->num_sge;
    if (wr->send_flags & IBV_SEND_INLINE) {
        for (size_t i = 0; i < count && i < MAX_SGE; i++)
            buffers[i] = (struct ibv_data_buf){(void *)(uintptr_t)wr->sg_list[i].addr,
                                               wr->sg_list[i].length};
        if (count == 1)
            ibv_wr_set_inline_data(qpx, buffers[0].addr, buffers[0].length);
        else
            ibv_wr_set_inline_data_list(qpx, count, buffers);
    } else if (count == 1) {
        ibv_wr_set_sge(qpx, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
    } else {
        ibv_wr_set_sge_list(qpx, count, wr->sg_list);
    }
}

static void build_by_calls(struct ibv_qp_ex *qpx, const struct ibv_send_wr *wr)
{
    qpx->wr_id = wr->wr_id;
    qpx->wr_flags = wr->send_flags & ~(unsigned)IBV_SEND_INLINE;
    switch (wr->opcode) {
    case IBV_WR_RDMA_WRITE:
        ibv_wr_rdma_write(qpx, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        ibv_wr_rdma_write_imm(qpx, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
        break;
    case IBV_WR_RDMA_READ:
        ibv_wr_rdma_read(qpx, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        break;
    case IBV_WR_SEND:
        ibv_wr_send(qpx);
        break;
    case IBV_WR_SEND_WITH_IMM:
        ibv_wr_send_imm(qpx, wr->imm_data);
        break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        ibv_wr_atomic_fetch_add(qpx, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
                                wr->wr.atomic.compare_add);
        break;
    default:
        ibv_wr_atomic_cmp_swp(qpx, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
                              wr->wr.atomic.compare_add, wr->wr.atomic.swap);
    }
    if (qpx->qp_base.qp_type == IBV_QPT_UD)
        ibv_wr_set_ud_addr(qpx, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
    set_by_calls(qpx, wr);
}

int post_any(struct side *side, const struct verbs *verbs, struct ibv_send_wr *wr, enum way way)
{
    if (way == BY_POST_SEND) {
        struct ibv_send_wr *bad = NULL;
        return verbs->post_send(side->qp, wr, &bad);
    }
    ibv_wr_start(side->qpx);
    for (; wr; wr = wr->next)
        build_by_calls(side->qpx, wr);
    return ibv_wr_complete(side->qpx);
}

void post(struct trial *t, struct side *side, struct work *w)
{
    int err = post_any(side, t->verbs, &w->wr, side->qpx ? BY_WR_CALLS : BY_POST_SEND);
    expect(t, !err, "posting opcode %d: %s", w->wr.opcode, strerror(err));
}

void post_receive(struct trial *t, struct side *side, struct receive *r)
{
    struct ibv_recv_wr *bad = NULL;
    int err = side->srq ? t->verbs->post_srq_recv(side->srq, &r->wr, &bad)
                        : t->verbs->post_recv(side->qp, &r->wr, &bad);
    expect(t, !err, "%s: %s", side->srq ? "post_srq_recv" : "post_recv", strerror(err));
}

void give_receive(struct trial *t, struct receive *r, size_t at, uint32_t bytes)
{
    receive_make(t, r, &t->b, at, bytes);
    post_receive(t, &t->b, r);
}

void aim(struct work *w, const struct side *from, const struct side *to)
{
    w->wr.wr.ud.ah = from->ah;
    w->wr.wr.ud.remote_qpn = to->address.qpn;
    w->wr.wr.ud.remote_qkey = to->options.qkey;
}

enum ibv_wc_opcode completion_opcode(enum ibv_wr_opcode opcode)
{
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    default:
        return IBV_WC_SEND;
    }
}

/* Called in loops: gives way too, since the cores may be fewer than those who wait. */
bool deadline_passed(const struct trial *t, uint64_t *started_ns)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    if (!*started_ns)
        *started_ns = ns;
    sched_yield();
    return ns - *started_ns > (uint64_t)t->deadline_ms * 1000000u;
}

/* Polls both sides without taking anything, for devices on which that is what moves work on. */
static void stir(struct trial *t)
{
    struct ibv_wc wc;
    struct ibv_cq *cqs[] = {t->a.send_cq, t->b.send_cq};
    for (int i = 0; t->device->polled && i < 2; i++)
        if (cqs[i])
            t->verbs->poll_cq(cqs[i], 0, &wc);
}

struct ibv_wc next_wc(struct trial *t, struct ibv_cq *cq)
{
    struct ibv_wc wc;
    uint64_t started = 0;
    for (;;) {
        int got = t->verbs->poll_cq(cq, 1, &wc);
        expect(t, got >= 0 && got <= 1, "poll_cq answers %d", got);
        if (got)
            return wc;
        stir(t);
        expect(t, !deadline_passed(t, &started), "no completion came before the deadline");
    }
}

struct ibv_wc expect_wc(struct trial *t, struct ibv_cq *cq, uint64_t wr_id,
                        enum ibv_wc_status status)
{
    struct ibv_wc wc = next_wc(t, cq);
    expect(t, wc.wr_id == wr_id, "completion of wr_id %llu (%s), should be of %llu",
           (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status), (unsigned long long)wr_id);
    expect(t, wc.status == status, "completion status '%s', should be '%s'",
           ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
    return wc;
}

void expect_sent(struct trial *t, struct side *side, const struct work *w,
                 enum ibv_wc_status status)
{
    struct ibv_wc wc = expect_wc(t, side->send_cq, w->wr.wr_id, status);
    expect_equal(t, wc.qp_num, side->qp->qp_num, "qp_num of the completion");
    if (status != IBV_WC_SUCCESS)
        return;
    expect_equal(t, wc.opcode, completion_opcode(w->wr.opcode), "opcode of the completion");
    if (wc.opcode == IBV_WC_RDMA_READ || wc.opcode == IBV_WC_COMP_SWAP ||
        wc.opcode == IBV_WC_FETCH_ADD) {
        uint32_t bytes = 0;
        for (int i = 0; i < w->wr.num_sge; i++)
            bytes += w->wr.sg_list[i].length;
        expect_equal(t, wc.byte_len, bytes, "byte_len of the completion");
    }
}

struct ibv_wc expect_received(struct trial *t, struct side *side, const struct receive *r,
                              enum ibv_wc_status status)
{
    struct ibv_wc wc = expect_wc(t, side->recv_cq, r->wr.wr_id, status);
    expect_equal(t, wc.qp_num, side->qp->qp_num, "qp_num of the receive completion");
    if (status == IBV_WC_SUCCESS)
        expect(t, wc.opcode & IBV_WC_RECV, "opcode %d of a receive completion", wc.opcode);
    return wc;
}

void expect_quiet(struct trial *t, struct ibv_cq *cq)
{
    struct ibv_wc wc;
    for (int i = 0; i < 200; i++) {
        int got = t->verbs->poll_cq(cq, 1, &wc);
        expect(t, got == 0, "poll_cq answers %d (wr_id %llu, %s), should find nothing", got,
               got > 0 ? (unsigned long long)wc.wr_id : 0,
               got > 0 ? ibv_wc_status_str(wc.status) : "");
        sched_yield();
    }
}

bool poll_readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int got;
    do {
        got = poll(&p, 1, timeout_ms);
    } while (got < 0 && errno == EINTR);
    return got > 0;
}

enum ibv_event_type expect_async(struct trial *t, struct side *side, enum ibv_event_type wanted,
                                 const void *element)
{
    set_nonblocking(t, side->context->async_fd);
    uint64_t started = 0;
    for (;;) {
        struct ibv_async_event event = {0};
        if (t->verbs->get_async_event(side->context, &event)) {
            expect(t, errno == EAGAIN, "get_async_event: %s", strerror(errno));
            expect(t, !deadline_passed(t, &started), "no asynchronous event '%s'",
                   ibv_event_type_str(wanted));
            continue;
        }
        const void *found = event.element.qp; /* whatever it is: the elements are one pointer */
        t->verbs->ack_async_event(&event);
        if (event.event_type == wanted && (!element || found == element))
            return event.event_type;
    }
}

static uint8_t next_byte(struct trial *t)
{
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(t->random >> 56);
}

void payload(struct trial *t, struct side *side, size_t at, size_t bytes)
{
    for (size_t i = at; i < at + bytes; i++)
        side->memory[i] = side->expected[i] = next_byte(t);
}

void expect_copy(const struct side *from, size_t from_at, struct side *to, size_t to_at,
                 size_t bytes)
{
    memcpy(to->expected + to_at, from->expected + from_at, bytes);
}

void expect_memory(struct trial *t, const struct side *side, const char *whose)
{
    for (size_t i = 0; i < side->bytes; i++)
        expect(t, side->memory[i] == side->expected[i],
               "byte %zu of %s's memory is %#x, should be %#x", i, whose, side->memory[i],
               side->expected[i]);
}
