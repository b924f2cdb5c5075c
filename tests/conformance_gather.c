/* SPDX-License-Identifier: MIT */
/* Scatter/gather lists and inline data. */
#include "tests/conformance.h"

enum { MAX = -1, STRIDE = 211 };

static int list_length(const struct trial *t)
{
    uint32_t most = t->a.cap.max_send_sge < MAX_SGE ? t->a.cap.max_send_sge : MAX_SGE;
    return t->check->parameter == MAX ? (int)most : t->check->parameter;
}

/* Pieces of uneven length, out of order in memory, one of them empty where there are three. */
static uint32_t make_list(struct ibv_sge *sge, int count, const struct side *side, size_t at)
{
    uint32_t total = 0;
    for (int i = 0; i < count; i++) {
        uint32_t length = i == 1 && count > 2 ? 0 : 17 + 31 * (uint32_t)i % 100;
        sge[i] = (struct ibv_sge){(uintptr_t)side->memory + at + (size_t)((count - 1 - i) * STRIDE),
                                  length, side->mr->lkey};
        total += length;
    }
    return total;
}

static void gather(const struct side *side, const struct ibv_sge *sge, int count, uint8_t *out)
{
    for (int i = 0; i < count; out += sge[i++].length)
        memcpy(out, side->expected + (sge[i].addr - (uintptr_t)side->memory), sge[i].length);
}

static void scatter(struct side *side, const struct ibv_sge *sge, int count, const uint8_t *in)
{
    for (int i = 0; i < count; in += sge[i++].length)
        memcpy(side->expected + (sge[i].addr - (uintptr_t)side->memory), in, sge[i].length);
}

static void open_with_lists(struct trial *t)
{
    struct ibv_device_attr attr;
    expect_equal(t, t->verbs->query_device(t->a.context, &attr), 0, "query_device");
    struct options o = default_options();
    o.sge = attr.max_sge < 8 ? (uint32_t)attr.max_sge : 8;
    o.wr_calls = t->check->way == BY_WR_CALLS;
    trial_connect(t, &o);
}

static void gathered_write(struct trial *t)
{
    open_with_lists(t);
    int count = list_length(t);
    struct work w;
    payload(t, &t->a, 0, 4096);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 333, 0);
    make_list(w.sge, count, &t->a, 5);
    w.wr.num_sge = count;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    gather(&t->a, w.sge, count, t->b.expected + 333);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

static void scattered_read(struct trial *t)
{
    open_with_lists(t);
    int count = list_length(t);
    struct work w;
    payload(t, &t->b, 0, 4096);
    work_make(t, &w, IBV_WR_RDMA_READ, &t->a, 0, &t->b.address, 333, 0);
    make_list(w.sge, count, &t->a, 5);
    w.wr.num_sge = count;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    scatter(&t->a, w.sge, count, t->b.expected + 333);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

/* The pieces of both sides differ: bytes run on over their bounds. */
static void scattered_send(struct trial *t)
{
    open_with_lists(t);
    int count = list_length(t);
    struct work w;
    struct receive r;
    uint8_t wire[4096];
    payload(t, &t->a, 0, 4096);
    receive_make(t, &r, &t->b, 0, 0);
    uint32_t room = make_list(r.sge, count, &t->b, 1500);
    r.wr.num_sge = count;
    post_receive(t, &t->b, &r);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, room - 3);
    post(t, &t->a, &w);
    struct ibv_wc wc = expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_equal(t, wc.byte_len, room - 3, "byte_len");
    memset(wire, GUARD, sizeof wire);
    memcpy(wire, t->a.expected, room - 3);
    scatter(&t->b, r.sge, count, wire);
    expect_memory(t, &t->b, "b");
}

static void a_list_too_long_is_refused(struct trial *t)
{
    struct options o = default_options();
    o.sge = 2;
    trial_connect(t, &o);
    struct work w;
    struct receive r;
    struct ibv_send_wr *bad_send = NULL;
    struct ibv_recv_wr *bad_receive = NULL;
    if (t->a.cap.max_send_sge >= MAX_SGE || t->a.cap.max_recv_sge >= MAX_SGE)
        trial_skip(t, "longer lists are granted than the check can make");
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 4);
    receive_make(t, &r, &t->a, 0, 4);
    for (int i = 1; i < MAX_SGE; i++)
        w.sge[i] = r.sge[i] = w.sge[0];
    w.wr.num_sge = (int)t->a.cap.max_send_sge + 1;
    r.wr.num_sge = (int)t->a.cap.max_recv_sge + 1;
    int err = t->verbs->post_send(t->a.qp, &w.wr, &bad_send);
    expect(t, err == EINVAL || err == ENOMEM, "post_send: %s", strerror(err));
    expect(t, bad_send == &w.wr, "bad_wr does not point to the send request");
    err = t->verbs->post_recv(t->a.qp, &r.wr, &bad_receive);
    expect(t, err == EINVAL || err == ENOMEM, "post_recv: %s", strerror(err));
    expect(t, bad_receive == &r.wr, "bad_wr does not point to the receive request");
}

/* --- inline --------------------------------------------------------------------------------- */

enum { WANTED_INLINE = 64 };

static void open_inline(struct trial *t)
{
    struct options o = default_options();
    o.inline_bytes = WANTED_INLINE;
    o.wr_calls = t->check->way == BY_WR_CALLS;
    trial_connect(t, &o);
}

static void inline_post(struct trial *t, enum ibv_wr_opcode opcode, uint32_t bytes, size_t to)
{
    struct work w;
    struct receive r;
    if (opcode == IBV_WR_SEND) {
        receive_make(t, &r, &t->b, to, bytes);
        post_receive(t, &t->b, &r);
    }
    /* The key is never looked at, and the buffer is ours again once the call returns. */
    uint8_t buffer[4096];
    payload(t, &t->a, 0, bytes);
    memcpy(buffer, t->a.memory, bytes);
    work_make(t, &w, opcode, &t->a, 0, &t->b.address, to, bytes);
    w.sge[0] = (struct ibv_sge){(uintptr_t)buffer, bytes, 0xdeadbeef};
    w.wr.send_flags |= IBV_SEND_INLINE;
    post(t, &t->a, &w);
    memset(buffer, 0x77, sizeof buffer);
    if (opcode == IBV_WR_SEND)
        expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, to, bytes);
    expect_memory(t, &t->b, "b");
}

static void inline_of_every_size(struct trial *t)
{
    open_inline(t);
    uint32_t most = t->a.cap.max_inline_data < 4096 ? t->a.cap.max_inline_data : 4096;
    for (uint32_t bytes = 0; bytes <= most; bytes++)
        inline_post(t, (enum ibv_wr_opcode)t->check->parameter, bytes, 1000 + bytes % 9);
}

static void inline_list(struct trial *t)
{
    open_inline(t);
    struct work w;
    payload(t, &t->a, 0, 1024);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 50, 0);
    for (int i = 0; i < 4; i++)
        w.sge[i] = (struct ibv_sge){(uintptr_t)t->a.memory + 200 * (size_t)(3 - i),
                                    (uint32_t)(10 + i), 0xdeadbeef};
    w.wr.num_sge = 4;
    w.wr.send_flags |= IBV_SEND_INLINE;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    gather(&t->a, w.sge, 4, t->b.expected + 50);
    expect_memory(t, &t->b, "b");
}

static void inline_buffers_are_free_at_once(struct trial *t)
{
    open_inline(t);
    uint8_t buffer[32];
    struct work w;
    for (size_t i = 0; i < t->a.cap.max_send_wr; i++) {
        memset(buffer, (int)i + 1, sizeof buffer);
        memset(t->b.expected + 32 * (i % 32), (int)i + 1, sizeof buffer);
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 32 * (i % 32), sizeof buffer);
        w.sge[0] = (struct ibv_sge){(uintptr_t)buffer, sizeof buffer, 0};
        w.wr.send_flags |= IBV_SEND_INLINE;
        post(t, &t->a, &w);
    }
    memset(buffer, 0, sizeof buffer);
    for (size_t i = 0; i < t->a.cap.max_send_wr; i++)
        expect_equal(t, next_wc(t, t->a.send_cq).status, IBV_WC_SUCCESS, "status");
    expect_memory(t, &t->b, "b");
}

static void inline_beyond_the_limit_is_refused(struct trial *t)
{
    open_inline(t);
    struct work w;
    if (t->a.cap.max_inline_data >= t->a.bytes)
        trial_skip(t, "more is granted than the check has memory");
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, t->a.cap.max_inline_data + 1);
    w.wr.send_flags |= IBV_SEND_INLINE;
    int err = post_any(&t->a, t->verbs, &w.wr, t->check->way);
    /* Which errno it is neither ibv_post_send(3) says for this case nor ibv_wr_post(3). */
    expect(t, err > 0, "posting answers %d", err);
    expect_quiet(t, t->a.send_cq);
    inline_post(t, IBV_WR_RDMA_WRITE, 8, 64);
}

/* A READ has no outgoing data to inline: refused, or the flag is ignored; never a wrong byte. */
static void inline_read_does_no_harm(struct trial *t)
{
    open_inline(t);
    struct work w;
    struct ibv_send_wr *bad;
    payload(t, &t->b, 0, 16);
    work_make(t, &w, IBV_WR_RDMA_READ, &t->a, 512, &t->b.address, 0, 16);
    w.wr.send_flags |= IBV_SEND_INLINE;
    if (!t->verbs->post_send(t->a.qp, &w.wr, &bad)) {
        struct ibv_wc wc = next_wc(t, t->a.send_cq);
        if (wc.status == IBV_WC_SUCCESS)
            expect_copy(&t->b, 0, &t->a, 512, 16);
    }
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

static const struct check checks[] = {
    {.name = "a WRITE gathers from 1 piece", .run = gathered_write, .parameter = 1},
    {.name = "a WRITE gathers from 2 pieces", .run = gathered_write, .parameter = 2},
    {.name = "a WRITE gathers from 3 pieces", .run = gathered_write, .parameter = 3},
    {.name = "a WRITE gathers from max_sge pieces", .run = gathered_write, .parameter = MAX},
    {.name = "a WRITE by ibv_wr_* gathers from max_sge pieces",
     .run = gathered_write,
     .parameter = MAX,
     .way = BY_WR_CALLS},
    {.name = "a READ scatters to 1 piece", .run = scattered_read, .parameter = 1},
    {.name = "a READ scatters to 2 pieces", .run = scattered_read, .parameter = 2},
    {.name = "a READ scatters to 3 pieces", .run = scattered_read, .parameter = 3},
    {.name = "a READ scatters to max_sge pieces", .run = scattered_read, .parameter = MAX},
    {.name = "a receive scatters to 1 piece", .run = scattered_send, .parameter = 1},
    {.name = "a receive scatters to 2 pieces", .run = scattered_send, .parameter = 2},
    {.name = "a receive scatters to 3 pieces", .run = scattered_send, .parameter = 3},
    {.name = "a receive scatters to max_sge pieces", .run = scattered_send, .parameter = MAX},
    {.name = "a list that is too long is refused", .run = a_list_too_long_is_refused},
    {.name = "inline WRITE of every size",
     .run = inline_of_every_size,
     .parameter = IBV_WR_RDMA_WRITE},
    {.name = "inline SEND of every size", .run = inline_of_every_size, .parameter = IBV_WR_SEND},
    {.name = "inline WRITE of every size by ibv_wr_*",
     .run = inline_of_every_size,
     .parameter = IBV_WR_RDMA_WRITE,
     .way = BY_WR_CALLS},
    {.name = "an inline WRITE gathers", .run = inline_list},
    {.name = "an inline WRITE by ibv_wr_* gathers", .run = inline_list, .way = BY_WR_CALLS},
    {.name = "inline buffers are free at once", .run = inline_buffers_are_free_at_once},
    {.name = "inline beyond the limit is refused", .run = inline_beyond_the_limit_is_refused},
    {.name = "inline beyond the limit by ibv_wr_* is refused",
     .run = inline_beyond_the_limit_is_refused,
     .way = BY_WR_CALLS},
    {.name = "an inline READ does no harm", .run = inline_read_does_no_harm},
};

const struct check_group gather_checks = GROUP("lists and inline data", checks);
