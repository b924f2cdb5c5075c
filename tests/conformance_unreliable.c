/* SPDX-License-Identifier: MIT */
/* Unreliable connections: what arrives is whole and in order. */
#include "tests/conformance.h"

enum size { ZERO, ONE, AT_MTU, ABOVE_MTU, SOME_MTUS };
/* Odd places, so that neither end is aligned and guards lie on both sides. */
enum { FROM = 61, TO = 131 };

static uint32_t bytes_of(const struct trial *t)
{
    uint32_t mtu = mtu_bytes(&t->a);
    const uint32_t bytes[] = {0, 1, mtu, mtu + 1, 5 * mtu + 3};
    return bytes[t->check->size];
}

static struct options unreliable_options(const struct trial *t)
{
    struct options o = transport_options(t, IBV_QPT_UC);
    o.memory_bytes = 65536;
    return o;
}

static void connect_unreliable(struct trial *t)
{
    struct options o = unreliable_options(t);
    trial_connect(t, &o);
}

static void with_receive(struct trial *t)
{
    enum ibv_wr_opcode opcode = (enum ibv_wr_opcode)t->check->parameter;
    bool is_write = opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    connect_unreliable(t);
    uint32_t bytes = bytes_of(t);
    struct receive r;
    struct work w;
    give_receive(t, &r, is_write ? 0 : TO, is_write ? 64 : bytes + 7);
    payload(t, &t->a, FROM, bytes);
    work_make(t, &w, opcode, &t->a, FROM, &t->b.address, TO, bytes);
    post(t, &t->a, &w);
    struct ibv_wc wc = expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, FROM, &t->b, TO, bytes);
    expect_memory(t, &t->b, "b");
    expect_equal(t, wc.opcode, is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, "opcode");
    expect_equal(t, wc.byte_len, bytes, "byte_len");
    expect_equal(t, (wc.wc_flags & IBV_WC_WITH_IMM) != 0, opcode != IBV_WR_SEND, "IBV_WC_WITH_IMM");
    if (opcode != IBV_WR_SEND)
        expect_equal(t, wc.imm_data, w.wr.imm_data, "imm_data");
}

/* A WRITE tells nobody; the SEND behind it says that it has landed. */
static void a_write(struct trial *t)
{
    connect_unreliable(t);
    uint32_t bytes = bytes_of(t);
    struct receive r;
    struct work write, send;
    give_receive(t, &r, 40000, 16);
    payload(t, &t->a, FROM, bytes);
    work_make(t, &write, IBV_WR_RDMA_WRITE, &t->a, FROM, &t->b.address, TO, bytes);
    work_make(t, &send, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 0);
    write.wr.next = &send.wr;
    post(t, &t->a, &write);
    expect_sent(t, &t->a, &write, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &send, IBV_WC_SUCCESS);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_copy(&t->a, FROM, &t->b, TO, bytes);
    expect_memory(t, &t->b, "b");
}

static void messages_arrive_in_order(struct trial *t)
{
    connect_unreliable(t);
    for (uint32_t i = 0; i < 500; i++) {
        struct receive r;
        struct work w;
        give_receive(t, &r, i % 16 * 64, 64);
        payload(t, &t->a, i % 16 * 64, 64);
        work_make(t, &w, IBV_WR_SEND_WITH_IMM, &t->a, i % 16 * 64, &t->b.address, 0, 64);
        w.wr.imm_data = i;
        post(t, &t->a, &w);
        expect_copy(&t->a, i % 16 * 64, &t->b, i % 16 * 64, 64);
        struct ibv_wc wc = expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
        expect_equal(t, wc.imm_data, i, "the message's number");
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
    expect_memory(t, &t->b, "b");
}

static void both_directions(struct trial *t)
{
    connect_unreliable(t);
    struct receive at_a, at_b;
    struct work from_a, from_b;
    give_receive(t, &at_b, 2048, 100);
    receive_make(t, &at_a, &t->a, 2048, 100);
    post_receive(t, &t->a, &at_a);
    payload(t, &t->a, 0, 100);
    payload(t, &t->b, 0, 100);
    work_make(t, &from_a, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 100);
    work_make(t, &from_b, IBV_WR_SEND, &t->b, 0, &t->a.address, 0, 100);
    post(t, &t->a, &from_a);
    post(t, &t->b, &from_b);
    expect_received(t, &t->b, &at_b, IBV_WC_SUCCESS);
    expect_received(t, &t->a, &at_a, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &from_a, IBV_WC_SUCCESS);
    expect_sent(t, &t->b, &from_b, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 2048, 100);
    expect_copy(&t->b, 0, &t->a, 2048, 100);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

static void inline_and_pieces(struct trial *t)
{
    struct options o = unreliable_options(t);
    o.inline_bytes = 64;
    trial_connect(t, &o);
    struct receive r;
    struct work w;
    give_receive(t, &r, 2000, 64);
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 20);
    w.sge[1] = (struct ibv_sge){(uintptr_t)t->a.memory + 20, 44, t->a.mr->lkey};
    w.wr.num_sge = 2;
    if (t->check->parameter)
        w.wr.send_flags |= IBV_SEND_INLINE;
    post(t, &t->a, &w);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 2000, 64);
    expect_memory(t, &t->b, "b");
}

static void a_receive_in_pieces(struct trial *t)
{
    connect_unreliable(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 1000, 10);
    r.sge[1] = (struct ibv_sge){(uintptr_t)t->b.memory + 3000, 90, t->b.mr->lkey};
    r.wr.num_sge = 2;
    post_receive(t, &t->b, &r);
    payload(t, &t->a, 0, 77);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 77);
    post(t, &t->a, &w);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 1000, 10);
    expect_copy(&t->a, 10, &t->b, 3000, 67);
    expect_memory(t, &t->b, "b");
}

static void a_solicited_message_wakes(struct trial *t)
{
    struct options o = unreliable_options(t);
    o.channel = true;
    trial_connect(t, &o);
    struct receive r;
    struct work w;
    struct ibv_cq *found = NULL;
    void *cq_context = NULL;
    give_receive(t, &r, 0, 16);
    expect_equal(t, t->verbs->req_notify_cq(t->b.recv_cq, 1), 0, "req_notify_cq");
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
    w.wr.send_flags |= IBV_SEND_SOLICITED;
    post(t, &t->a, &w);
    expect(t, poll_readable(t->b.channel->fd, t->deadline_ms), "the channel is not readable");
    expect_equal(t, t->verbs->get_cq_event(t->b.channel, &found, &cq_context), 0, "get_cq_event");
    t->verbs->ack_cq_events(found, 1);
    expect(t, found == t->b.recv_cq, "the event is of another CQ");
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
}

#define ONE_SIZE(text, function, opcode, interface, length)                                        \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (opcode), .way = (interface),              \
        .size = (length)                                                                           \
    }
#define ALL_SIZES(text, function, opcode, interface)                                               \
    ONE_SIZE(text " of 0 bytes", function, opcode, interface, ZERO),                               \
        ONE_SIZE(text " of 1 byte", function, opcode, interface, ONE),                             \
        ONE_SIZE(text " of the MTU", function, opcode, interface, AT_MTU),                         \
        ONE_SIZE(text " of the MTU and 1", function, opcode, interface, ABOVE_MTU),                \
        ONE_SIZE(text " of five MTUs and 3", function, opcode, interface, SOME_MTUS)
#define BOTH_WAYS(text, function, opcode)                                                          \
    ALL_SIZES(text, function, opcode, BY_POST_SEND),                                               \
        ALL_SIZES(text " by ibv_wr_*", function, opcode, BY_WR_CALLS)
#define WITH(text, function, value)                                                                \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (value)                                    \
    }

static const struct check checks[] = {
    BOTH_WAYS("UC WRITE", a_write, IBV_WR_RDMA_WRITE),
    BOTH_WAYS("UC WRITE_WITH_IMM", with_receive, IBV_WR_RDMA_WRITE_WITH_IMM),
    BOTH_WAYS("UC SEND", with_receive, IBV_WR_SEND),
    BOTH_WAYS("UC SEND_WITH_IMM", with_receive, IBV_WR_SEND_WITH_IMM),
    {.name = "UC: messages arrive in order", .run = messages_arrive_in_order},
    {.name = "UC: both directions", .run = both_directions},
    WITH("UC: a SEND gathers", inline_and_pieces, 0),
    WITH("UC: an inline SEND gathers", inline_and_pieces, 1),
    {.name = "UC: an inline SEND by ibv_wr_* gathers",
     .run = inline_and_pieces,
     .parameter = 1,
     .way = BY_WR_CALLS},
    {.name = "UC: a receive in pieces", .run = a_receive_in_pieces},
    {.name = "UC: a solicited message wakes", .run = a_solicited_message_wakes},
};

const struct check_group unreliable_checks = GROUP("unreliable connections", checks);
