/* SPDX-License-Identifier: MIT */
/* Each operation that moves bytes, at the sizes where devices go wrong, by both interfaces. */
#include "tests/conformance.h"

enum size { ZERO, ONE, BELOW_MTU, AT_MTU, ABOVE_MTU, MEBIBYTE_AND_3 };

static uint32_t bytes_of(const struct trial *t)
{
    uint32_t mtu = mtu_bytes(&t->a);
    const uint32_t bytes[] = {0, 1, mtu - 1, mtu, mtu + 1, (1u << 20) + 3};
    return bytes[t->check->size];
}

static struct options transfer_options(const struct trial *t)
{
    struct options o = default_options();
    o.wr_calls = t->check->way == BY_WR_CALLS;
    o.memory_bytes = t->check->size == MEBIBYTE_AND_3 ? (1 << 20) + 4096 : 16384;
    return o;
}

/* Odd places, so that neither end is aligned and guards lie on both sides. */
enum { FROM = 61, TO = 131 };

static void one_sided(struct trial *t)
{
    struct options o = transfer_options(t);
    trial_connect(t, &o);
    uint32_t bytes = bytes_of(t);
    struct work w;
    if (t->check->parameter == IBV_WR_RDMA_READ) {
        payload(t, &t->b, FROM, bytes);
        work_make(t, &w, IBV_WR_RDMA_READ, &t->a, TO, &t->b.address, FROM, bytes);
        expect_copy(&t->b, FROM, &t->a, TO, bytes);
    } else {
        payload(t, &t->a, FROM, bytes);
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, FROM, &t->b.address, TO, bytes);
        expect_copy(&t->a, FROM, &t->b, TO, bytes);
    }
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
    expect_quiet(t, t->a.send_cq);
    expect_quiet(t, t->b.recv_cq);
}

static void with_receive(struct trial *t)
{
    enum ibv_wr_opcode opcode = (enum ibv_wr_opcode)t->check->parameter;
    bool is_write = opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    struct options o = transfer_options(t);
    trial_connect(t, &o);
    uint32_t bytes = bytes_of(t);
    struct receive r;
    receive_make(t, &r, &t->b, is_write ? 0 : TO, is_write ? 64 : bytes + 7);
    post_receive(t, &t->b, &r);
    payload(t, &t->a, FROM, bytes);
    struct work w;
    work_make(t, &w, opcode, &t->a, FROM, &t->b.address, TO, bytes);
    post(t, &t->a, &w);
    struct ibv_wc wc = expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, FROM, &t->b, TO, bytes);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
    expect_equal(t, wc.opcode, is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, "opcode");
    expect_equal(t, wc.byte_len, bytes, "byte_len");
    if (opcode == IBV_WR_SEND) {
        expect(t, !(wc.wc_flags & IBV_WC_WITH_IMM), "a SEND without immediate shows one");
    } else {
        expect(t, wc.wc_flags & IBV_WC_WITH_IMM, "no immediate is shown");
        expect_equal(t, wc.imm_data, w.wr.imm_data, "imm_data");
    }
}

/* What was written earlier is what is read later, through the same queue pair. */
static void a_read_sees_an_earlier_write(struct trial *t)
{
    trial_connect(t, NULL);
    for (int round = 0; round < 50; round++) {
        struct work write, read;
        payload(t, &t->a, 0, 300);
        work_make(t, &write, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 777, 300);
        work_make(t, &read, IBV_WR_RDMA_READ, &t->a, 4096, &t->b.address, 777, 300);
        write.wr.send_flags = 0;
        write.wr.next = &read.wr;
        post(t, &t->a, &write);
        expect_sent(t, &t->a, &read, IBV_WC_SUCCESS);
        expect_copy(&t->a, 0, &t->b, 777, 300);
        expect_copy(&t->a, 0, &t->a, 4096, 300);
        expect_memory(t, &t->a, "a");
    }
    expect_memory(t, &t->b, "b");
}

static void a_fence_orders_a_write_after_a_read(struct trial *t)
{
    trial_connect(t, NULL);
    for (int round = 0; round < 50; round++) {
        struct work read, write;
        payload(t, &t->b, 0, 500);
        work_make(t, &read, IBV_WR_RDMA_READ, &t->a, 1000, &t->b.address, 0, 500);
        work_make(t, &write, IBV_WR_RDMA_WRITE, &t->a, 1000, &t->b.address, 8192, 500);
        write.wr.send_flags |= IBV_SEND_FENCE;
        read.wr.next = &write.wr;
        post(t, &t->a, &read);
        expect_sent(t, &t->a, &read, IBV_WC_SUCCESS);
        expect_sent(t, &t->a, &write, IBV_WC_SUCCESS);
        expect_copy(&t->b, 0, &t->a, 1000, 500);
        expect_copy(&t->b, 0, &t->b, 8192, 500);
        expect_memory(t, &t->b, "b");
    }
    expect_memory(t, &t->a, "a");
}

/* A receive's completion says that all that was sent before it has landed. */
static void a_send_tells_of_earlier_writes(struct trial *t)
{
    struct options o = default_options();
    o.memory_bytes = 300000;
    trial_connect(t, &o);
    for (int round = 0; round < 20; round++) {
        struct work write, send;
        struct receive r;
        receive_make(t, &r, &t->b, 0, 8);
        post_receive(t, &t->b, &r);
        payload(t, &t->a, 1000, 200000);
        work_make(t, &write, IBV_WR_RDMA_WRITE, &t->a, 1000, &t->b.address, 2000, 200000);
        work_make(t, &send, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 0);
        write.wr.send_flags = 0;
        write.wr.next = &send.wr;
        post(t, &t->a, &write);
        expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
        expect_copy(&t->a, 1000, &t->b, 2000, 200000);
        expect_memory(t, &t->b, "b");
        expect_sent(t, &t->a, &send, IBV_WC_SUCCESS);
    }
}

/* More READs than the responder takes at once: the device holds the others back. */
static void more_reads_than_may_be_outstanding(struct trial *t)
{
    struct options o = default_options();
    o.rd_atomic = 1;
    trial_connect(t, &o);
    struct work reads[16];
    payload(t, &t->b, 0, 16 * 256);
    for (int i = 0; i < 16; i++) {
        work_make(t, &reads[i], IBV_WR_RDMA_READ, &t->a, 4096 + (size_t)i * 256, &t->b.address,
                  (size_t)i * 256, 256);
        post(t, &t->a, &reads[i]);
    }
    for (int i = 0; i < 16; i++)
        expect_sent(t, &t->a, &reads[i], IBV_WC_SUCCESS);
    expect_copy(&t->b, 0, &t->a, 4096, 4096);
    expect_memory(t, &t->a, "a");
}

static void a_queue_pair_can_be_its_own_peer(struct trial *t)
{
    pair_make(t, NULL);
    bring(t, &t->a, &t->a.address, IBV_QPS_RTS);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->a, 2048, 100);
    post_receive(t, &t->a, &r);
    payload(t, &t->a, 0, 100);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->a.address, 0, 100);
    post(t, &t->a, &w);
    expect_received(t, &t->a, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->a, 2048, 100);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->a.address, 4096, 100);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->a, 4096, 100);
    expect_memory(t, &t->a, "a");
}

static void both_directions_at_once(struct trial *t)
{
    struct options o = default_options();
    o.memory_bytes = 65536;
    trial_connect(t, &o);
    struct work from_a[16], from_b[16];
    for (size_t i = 0; i < 16; i++) {
        payload(t, &t->a, i * 1000, 999);
        payload(t, &t->b, i * 1000, 999);
        work_make(t, &from_a[i], IBV_WR_RDMA_WRITE, &t->a, i * 1000, &t->b.address,
                  32768 + i * 1000, 999);
        work_make(t, &from_b[i], IBV_WR_RDMA_WRITE, &t->b, i * 1000, &t->a.address,
                  32768 + i * 1000, 999);
        post(t, &t->a, &from_a[i]);
        post(t, &t->b, &from_b[i]);
        expect_copy(&t->a, i * 1000, &t->b, 32768 + i * 1000, 999);
        expect_copy(&t->b, i * 1000, &t->a, 32768 + i * 1000, 999);
    }
    for (int i = 0; i < 16; i++) {
        expect_sent(t, &t->b, &from_b[i], IBV_WC_SUCCESS);
        expect_sent(t, &t->a, &from_a[i], IBV_WC_SUCCESS);
    }
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

/* A path MTU below the port's changes nothing that can be seen. */
static void a_small_path_mtu_moves_the_same_bytes(struct trial *t)
{
    struct options o = default_options();
    o.mtu = IBV_MTU_256;
    trial_connect(t, &o);
    struct work w;
    payload(t, &t->a, 0, 5000);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 99, 5000);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 99, 5000);
    expect_memory(t, &t->b, "b");
}

#define ONE_SIZE(text, function, opcode, interface, length)                                        \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (opcode), .way = (interface),              \
        .size = (length)                                                                           \
    }
#define ALL_SIZES(text, function, opcode, interface)                                               \
    ONE_SIZE(text " of 0 bytes", function, opcode, interface, ZERO),                               \
        ONE_SIZE(text " of 1 byte", function, opcode, interface, ONE),                             \
        ONE_SIZE(text " of the MTU less 1", function, opcode, interface, BELOW_MTU),               \
        ONE_SIZE(text " of the MTU", function, opcode, interface, AT_MTU),                         \
        ONE_SIZE(text " of the MTU and 1", function, opcode, interface, ABOVE_MTU),                \
        ONE_SIZE(text " of 1 MiB and 3", function, opcode, interface, MEBIBYTE_AND_3)
#define BOTH_WAYS(text, function, opcode)                                                          \
    ALL_SIZES(text, function, opcode, BY_POST_SEND),                                               \
        ALL_SIZES(text " by ibv_wr_*", function, opcode, BY_WR_CALLS)

static const struct check checks[] = {
    BOTH_WAYS("WRITE", one_sided, IBV_WR_RDMA_WRITE),
    BOTH_WAYS("READ", one_sided, IBV_WR_RDMA_READ),
    BOTH_WAYS("WRITE_WITH_IMM", with_receive, IBV_WR_RDMA_WRITE_WITH_IMM),
    BOTH_WAYS("SEND", with_receive, IBV_WR_SEND),
    BOTH_WAYS("SEND_WITH_IMM", with_receive, IBV_WR_SEND_WITH_IMM),
    {.name = "a READ sees an earlier WRITE", .run = a_read_sees_an_earlier_write},
    {.name = "a fence orders a WRITE after a READ", .run = a_fence_orders_a_write_after_a_read},
    {.name = "a SEND tells of earlier WRITEs", .run = a_send_tells_of_earlier_writes},
    {.name = "more READs than may be outstanding", .run = more_reads_than_may_be_outstanding},
    {.name = "a queue pair can be its own peer", .run = a_queue_pair_can_be_its_own_peer},
    {.name = "both directions at once", .run = both_directions_at_once},
    {.name = "a small path MTU moves the same bytes", .run = a_small_path_mtu_moves_the_same_bytes},
};

const struct check_group transfer_checks = GROUP("transfers", checks);
