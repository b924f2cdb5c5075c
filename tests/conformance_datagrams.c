/* SPDX-License-Identifier: MIT */
/* Unreliable datagrams: what arrives, where, and behind which header; what does not. */
#include "tests/conformance.h"

enum size { ZERO, ONE, BELOW_MTU, AT_MTU };
enum { GRH = 40, FROM = 61, TO = 131 };

static void connect_datagrams(struct trial *t)
{
    struct options o = transport_options(t, IBV_QPT_UD);
    trial_connect(t, &o);
}

static void make(struct trial *t, struct work *w, size_t at, uint32_t bytes)
{
    work_make(t, w, IBV_WR_SEND, &t->a, at, &t->b.address, 0, bytes);
    aim(w, &t->a, &t->b);
}

/* The header that came, whatever it is, is what is expected; then `bytes` of a's. */
static void expect_datagram(struct trial *t, size_t from, size_t at, size_t bytes)
{
    memcpy(t->b.expected + at, t->b.memory + at, GRH);
    expect_copy(&t->a, from, &t->b, at + GRH, bytes);
    expect_memory(t, &t->b, "b");
}

static struct ibv_wc deliver(struct trial *t, struct work *w, struct receive *r)
{
    post(t, &t->a, w);
    struct ibv_wc wc = expect_received(t, &t->b, r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, w, IBV_WC_SUCCESS);
    return wc;
}

/* A datagram that gets through, with a number to know it by. */
static void expect_alive(struct trial *t, struct receive *r)
{
    struct work w;
    payload(t, &t->a, 0, 16);
    make(t, &w, 0, 16);
    w.wr.opcode = IBV_WR_SEND_WITH_IMM;
    w.wr.imm_data = 0x12345678;
    struct ibv_wc wc = deliver(t, &w, r);
    expect_equal(t, wc.imm_data, 0x12345678, "imm_data of the datagram that got through");
    expect_datagram(t, 0, r->sge[0].addr - (uintptr_t)t->b.memory, 16);
}

static void a_datagram(struct trial *t)
{
    enum ibv_wr_opcode opcode = (enum ibv_wr_opcode)t->check->parameter;
    connect_datagrams(t);
    uint32_t mtu = mtu_bytes(&t->a);
    const uint32_t sizes[] = {0, 1, mtu - 1, mtu};
    uint32_t bytes = sizes[t->check->size];
    struct receive r;
    struct work w;
    give_receive(t, &r, TO, GRH + bytes + 7);
    payload(t, &t->a, FROM, bytes);
    make(t, &w, FROM, bytes);
    w.wr.opcode = opcode;
    w.wr.imm_data = 0x89abcdef;
    struct ibv_wc wc = deliver(t, &w, &r);
    expect_equal(t, wc.opcode, IBV_WC_RECV, "opcode");
    expect_equal(t, wc.byte_len, GRH + bytes, "byte_len");
    expect_equal(t, wc.src_qp, t->a.address.qpn, "src_qp");
    expect(t, wc.wc_flags & IBV_WC_GRH, "IBV_WC_GRH is not set");
    expect_equal(t, (wc.wc_flags & IBV_WC_WITH_IMM) != 0, opcode != IBV_WR_SEND, "IBV_WC_WITH_IMM");
    if (opcode != IBV_WR_SEND)
        expect_equal(t, wc.imm_data, 0x89abcdef, "imm_data");
    expect_datagram(t, FROM, TO, bytes);
}

/* The header may be cut anywhere by the pieces of a receive. */
static void a_receive_in_pieces(struct trial *t)
{
    uint32_t first = (uint32_t)t->check->parameter;
    connect_datagrams(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 1000, first);
    r.sge[1] = (struct ibv_sge){(uintptr_t)t->b.memory + 3000, 200, t->b.mr->lkey};
    r.wr.num_sge = 2;
    post_receive(t, &t->b, &r);
    payload(t, &t->a, 0, 100);
    make(t, &w, 0, 100);
    deliver(t, &w, &r);
    uint32_t header = first < GRH ? first : GRH;
    memcpy(t->b.expected + 1000, t->b.memory + 1000, header);
    memcpy(t->b.expected + 3000, t->b.memory + 3000, GRH - header);
    expect_copy(&t->a, 0, &t->b, 1000 + header, first - header);
    expect_copy(&t->a, first - header, &t->b, 3000 + GRH - header, 100 - (first - header));
    expect_memory(t, &t->b, "b");
}

static void a_datagram_gathers(struct trial *t)
{
    struct options o = transport_options(t, IBV_QPT_UD);
    o.inline_bytes = 64;
    trial_connect(t, &o);
    struct receive r;
    struct work w;
    give_receive(t, &r, 2000, GRH + 64);
    payload(t, &t->a, 0, 64);
    make(t, &w, 0, 20);
    w.sge[1] = (struct ibv_sge){(uintptr_t)t->a.memory + 20, 44, t->a.mr->lkey};
    w.wr.num_sge = 2;
    if (t->check->parameter)
        w.wr.send_flags |= IBV_SEND_INLINE;
    deliver(t, &w, &r);
    expect_datagram(t, 0, 2000, 64);
}

static void many_datagrams(struct trial *t)
{
    connect_datagrams(t);
    for (uint32_t i = 0; i < 500; i++) {
        struct receive r;
        struct work w;
        give_receive(t, &r, i % 8 * 256, 256);
        payload(t, &t->a, i % 8 * 64, 64);
        make(t, &w, i % 8 * 64, 64);
        w.wr.opcode = IBV_WR_SEND_WITH_IMM;
        w.wr.imm_data = i;
        struct ibv_wc wc = deliver(t, &w, &r);
        expect_equal(t, wc.imm_data, i, "the datagram's number");
        expect(t, !memcmp(t->b.memory + i % 8 * 256 + GRH, t->a.memory + i % 8 * 64, 64),
               "datagram %u differs", i);
    }
}

/* One queue pair speaks to several, and is spoken to by them, with one address handle. */
static void one_to_many_and_back(struct trial *t)
{
    connect_datagrams(t);
    struct side others[3];
    for (size_t i = 0; i < 3; i++) {
        others[i] = t->b;
        others[i].qp = trial_qp(t, &others[i], &others[i].options);
        others[i].address.qpn = others[i].qp->qp_num;
        bring(t, &others[i], NULL, IBV_QPS_RTS);
    }
    for (size_t i = 0; i < 3; i++) {
        struct receive there, here;
        struct work w;
        receive_make(t, &there, &others[i], i * 256, 256);
        post_receive(t, &others[i], &there);
        receive_make(t, &here, &t->a, 4096, 256);
        post_receive(t, &t->a, &here);
        payload(t, &t->a, 0, 50);
        make(t, &w, 0, 50);
        aim(&w, &t->a, &others[i]);
        post(t, &t->a, &w);
        expect_received(t, &others[i], &there, IBV_WC_SUCCESS);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
        expect_datagram(t, 0, i * 256, 50);
        work_make(t, &w, IBV_WR_SEND, &others[i], 0, &t->a.address, 0, 50);
        aim(&w, &others[i], &t->a);
        post(t, &others[i], &w);
        struct ibv_wc wc = expect_received(t, &t->a, &here, IBV_WC_SUCCESS);
        expect_equal(t, wc.src_qp, others[i].qp->qp_num, "src_qp");
        expect_sent(t, &others[i], &w, IBV_WC_SUCCESS);
    }
}

static void to_oneself(struct trial *t)
{
    connect_datagrams(t);
    struct ibv_ah *ah = trial_ah(t, &t->a, &t->a.address, t->a.gid_index);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->a, 2048, 200);
    post_receive(t, &t->a, &r);
    payload(t, &t->a, 0, 100);
    make(t, &w, 0, 100);
    aim(&w, &t->a, &t->a);
    w.wr.wr.ud.ah = ah;
    post(t, &t->a, &w);
    expect_received(t, &t->a, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    memcpy(t->a.expected + 2048, t->a.memory + 2048, GRH);
    expect_copy(&t->a, 0, &t->a, 2048 + GRH, 100);
    expect_memory(t, &t->a, "a");
}

/* --- what is lost ---------------------------------------------------------------------------- */

enum loss { NO_RECEIVE, TOO_SMALL, FOREIGN_QKEY, FOREIGN_QPN, NO_ROOM_FOR_GRH };

/* InfiniBand 9.8.3: it is dropped, and takes no receive. */
static void a_datagram_is_lost(struct trial *t)
{
    enum loss loss = (enum loss)t->check->parameter;
    connect_datagrams(t);
    struct receive r;
    struct work w;
    uint32_t room = loss == TOO_SMALL ? GRH + 19 : loss == NO_ROOM_FOR_GRH ? 20 : GRH + 20;
    if (loss != NO_RECEIVE)
        give_receive(t, &r, 1024, room);
    payload(t, &t->a, 0, 20);
    make(t, &w, 0, loss == NO_ROOM_FOR_GRH ? 0 : 20);
    if (loss == FOREIGN_QKEY)
        w.wr.wr.ud.remote_qkey ^= 0x100;
    if (loss == FOREIGN_QPN)
        w.wr.wr.ud.remote_qpn ^= 0x4000; /* nobody has it */
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_quiet(t, t->a.send_cq); /* it may land late: not before it was looked at */
    expect_quiet(t, t->b.recv_cq);
    expect_state(t, &t->a, IBV_QPS_RTS);
    expect_state(t, &t->b, IBV_QPS_RTS);
    if (loss == NO_ROOM_FOR_GRH)
        return;                                             /* nothing fits behind it */
    memcpy(t->b.expected + 1024, t->b.memory + 1024, room); /* may hold a part */
    if (loss == NO_RECEIVE)
        give_receive(t, &r, 1024, room);
    expect_alive(t, &r);
}

/* InfiniBand 10.2.5: with the highest bit set the sender's own Q_Key is meant. */
static void a_controlled_qkey_is_ones_own(struct trial *t)
{
    connect_datagrams(t);
    struct receive r;
    struct work w;
    give_receive(t, &r, 1024, GRH + 20);
    payload(t, &t->a, 0, 20);
    make(t, &w, 0, 20);
    w.wr.wr.ud.remote_qkey = 0x80000000u | 0x77;
    deliver(t, &w, &r);
    expect_datagram(t, 0, 1024, 20);
}

static void the_qkey_can_be_changed(struct trial *t)
{
    connect_datagrams(t);
    struct ibv_qp_attr attr = {.qkey = 0x22222222};
    struct ibv_qp_init_attr init;
    expect_equal(t, t->verbs->modify_qp(t->b.qp, &attr, IBV_QP_QKEY), 0, "modify_qp of the Q_Key");
    struct receive r;
    struct work w;
    give_receive(t, &r, 1024, GRH + 20);
    make(t, &w, 0, 20);
    post(t, &t->a, &w); /* with the old one */
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_quiet(t, t->b.recv_cq);
    t->b.options.qkey = 0x22222222;
    expect_alive(t, &r);
    memset(&attr, 0, sizeof attr);
    expect_equal(t, t->verbs->query_qp(t->b.qp, &attr, IBV_QP_QKEY, &init), 0, "query_qp");
    expect_equal(t, attr.qkey, 0x22222222, "the Q_Key that query_qp gives");
}

static void a_receiver_that_is_gone(struct trial *t)
{
    connect_datagrams(t);
    destroy_qp(t, t->b.qp);
    for (int i = 0; i < 5; i++) {
        struct work w;
        make(t, &w, 0, 16);
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
    expect_state(t, &t->a, IBV_QPS_RTS);
}

static void a_receiver_in_init_hears_nothing(struct trial *t)
{
    connect_datagrams(t);
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
    bring(t, &t->b, NULL, IBV_QPS_INIT);
    struct receive r;
    struct work w;
    give_receive(t, &r, 1024, GRH + 20);
    make(t, &w, 0, 16);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_quiet(t, t->b.recv_cq);
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_RTR), 0, "modify_qp to RTR");
    expect_alive(t, &r);
}

#define ONE_SIZE(text, opcode, interface, length)                                                  \
    {                                                                                              \
        .name = (text), .run = a_datagram, .parameter = (opcode), .way = (interface),              \
        .size = (length)                                                                           \
    }
#define ALL_SIZES(text, opcode, interface)                                                         \
    ONE_SIZE(text " of 0 bytes", opcode, interface, ZERO),                                         \
        ONE_SIZE(text " of 1 byte", opcode, interface, ONE),                                       \
        ONE_SIZE(text " of the MTU less 1", opcode, interface, BELOW_MTU),                         \
        ONE_SIZE(text " of the MTU", opcode, interface, AT_MTU)
#define BOTH_WAYS(text, opcode)                                                                    \
    ALL_SIZES(text, opcode, BY_POST_SEND), ALL_SIZES(text " by ibv_wr_*", opcode, BY_WR_CALLS)
#define WITH(text, function, value)                                                                \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (value)                                    \
    }

static const struct check checks[] = {
    BOTH_WAYS("UD SEND", IBV_WR_SEND),
    BOTH_WAYS("UD SEND_WITH_IMM", IBV_WR_SEND_WITH_IMM),
    WITH("UD: a receive cut before the header's end", a_receive_in_pieces, 13),
    WITH("UD: a receive cut at the header's end", a_receive_in_pieces, GRH),
    WITH("UD: a receive cut behind the header", a_receive_in_pieces, GRH + 27),
    WITH("UD: a SEND gathers", a_datagram_gathers, 0),
    WITH("UD: an inline SEND gathers", a_datagram_gathers, 1),
    {.name = "UD: an inline SEND by ibv_wr_* gathers",
     .run = a_datagram_gathers,
     .parameter = 1,
     .way = BY_WR_CALLS},
    {.name = "UD: many datagrams", .run = many_datagrams},
    {.name = "UD: one to many, and back", .run = one_to_many_and_back},
    {.name = "UD: to oneself", .run = to_oneself},
    WITH("UD: without a receive it is lost", a_datagram_is_lost, NO_RECEIVE),
    WITH("UD: longer than its receive it is lost", a_datagram_is_lost, TOO_SMALL),
    WITH("UD: without room for the header it is lost", a_datagram_is_lost, NO_ROOM_FOR_GRH),
    WITH("UD: with a foreign Q_Key it is lost", a_datagram_is_lost, FOREIGN_QKEY),
    WITH("UD: to a foreign number it is lost", a_datagram_is_lost, FOREIGN_QPN),
    {.name = "UD: a controlled Q_Key is one's own", .run = a_controlled_qkey_is_ones_own},
    {.name = "UD: the Q_Key can be changed", .run = the_qkey_can_be_changed},
    {.name = "UD: a receiver that is gone", .run = a_receiver_that_is_gone},
    {.name = "UD: a receiver in INIT hears nothing", .run = a_receiver_in_init_hears_nothing},
};

const struct check_group datagram_checks = GROUP("datagrams", checks);
