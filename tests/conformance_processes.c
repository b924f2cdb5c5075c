/* SPDX-License-Identifier: MIT */
/* Two processes. This one is a; b is another process, and t->b here is what we know of it. */
#include "tests/conformance.h"

static int tell_for_value(struct trial *t, struct peer *peer, enum peer_command command)
{
    int value = -1;
    struct peer_order order = {.command = command};
    peer_tell(t, peer, &order);
    peer_answer(t, peer, &value, sizeof value);
    return value;
}

static void peer_receive(struct trial *t, struct peer *peer, size_t at, uint32_t bytes)
{
    int value;
    struct peer_order order = {.command = PEER_RECEIVE, .at = at, .bytes = bytes};
    peer_tell(t, peer, &order);
    peer_answer(t, peer, &value, sizeof value);
}

static struct ibv_wc peer_poll(struct trial *t, struct peer *peer)
{
    struct ibv_wc wc;
    struct peer_order order = {.command = PEER_POLL};
    peer_tell(t, peer, &order);
    peer_answer(t, peer, &wc, sizeof wc);
    return wc;
}

static const uint32_t sizes[] = {0, 1, 7, 8, 4095, 4097, 100003};

static struct options roomy(void)
{
    struct options o = default_options();
    o.memory_bytes = 1 << 18;
    return o;
}

static void write_to_process(struct trial *t)
{
    struct options o = roomy();
    struct peer *peer = peer_meet(t, &o);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct work w;
        payload(t, &t->a, 11, sizes[i]);
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 11, &t->b.address, 1000 + i, sizes[i]);
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
        expect_copy(&t->a, 11, &t->b, 1000 + i, sizes[i]);
        expect_peer_memory(t, peer);
    }
    peer_quit(t, peer);
}

/* Small ones that lie on one another, so that their order shows where there is one; all before one
 * that is refused are carried out, and none after it. */
static void a_list_to_process(struct trial *t)
{
    enum { LIST = 40, REFUSED = 30 };
    struct options o = roomy();
    o.sends = 2 * LIST;
    o.cqe = 2 * LIST;
    struct peer *peer = peer_meet(t, &o);
    int apart = t->device->order ? 1500 : 61;
    struct work *works = trial_memory(t, LIST * sizeof *works);
    for (int refused = 0; refused < 2; refused++) {
        for (int i = 0; i < LIST; i++) {
            size_t at = (size_t)i * 1500;
            uint32_t bytes = (uint32_t)(1 + i * 263 % 1400), to = (uint32_t)(2000 + i * apart);
            payload(t, &t->a, at, bytes);
            work_make(t, &works[i], IBV_WR_RDMA_WRITE, &t->a, at, &t->b.address, to, bytes);
            works[i].wr.next = i + 1 < LIST ? &works[i + 1].wr : NULL;
            if (refused && i == REFUSED)
                works[i].wr.wr.rdma.rkey ^= 0x5a5a5a;
            if (!refused || i < REFUSED)
                expect_copy(&t->a, at, &t->b, to, bytes);
        }
        post(t, &t->a, works);
        for (int i = 0; i < LIST; i++)
            expect_sent(t, &t->a, &works[i],
                        !refused || i < REFUSED ? IBV_WC_SUCCESS
                        : i == REFUSED          ? IBV_WC_REM_ACCESS_ERR
                                                : IBV_WC_WR_FLUSH_ERR);
    }
    expect_peer_memory(t, peer);
    peer_quit(t, peer);
}

/* Writes something to the peer first, and reads it back. */
static void read_from_process(struct trial *t)
{
    struct options o = roomy();
    struct peer *peer = peer_meet(t, &o);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct work write, read;
        payload(t, &t->a, 11, sizes[i]);
        work_make(t, &write, IBV_WR_RDMA_WRITE, &t->a, 11, &t->b.address, 1000, sizes[i]);
        work_make(t, &read, IBV_WR_RDMA_READ, &t->a, 140000 + i, &t->b.address, 1000, sizes[i]);
        write.wr.next = &read.wr;
        post(t, &t->a, &write);
        expect_sent(t, &t->a, &write, IBV_WC_SUCCESS);
        expect_sent(t, &t->a, &read, IBV_WC_SUCCESS);
        expect_copy(&t->a, 11, &t->b, 1000, sizes[i]);
        expect_copy(&t->a, 11, &t->a, 140000 + i, sizes[i]);
        expect_memory(t, &t->a, "a");
    }
    expect_peer_memory(t, peer);
    peer_quit(t, peer);
}

static void send_to_process(struct trial *t)
{
    struct options o = roomy();
    struct peer *peer = peer_meet(t, &o);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct work w;
        peer_receive(t, peer, 1000 + i, sizes[i] + 5);
        payload(t, &t->a, 11, sizes[i]);
        work_make(t, &w, IBV_WR_SEND_WITH_IMM, &t->a, 11, &t->b.address, 0, sizes[i]);
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
        struct ibv_wc wc = peer_poll(t, peer);
        expect_equal(t, wc.status, IBV_WC_SUCCESS, "status at the peer");
        expect_equal(t, wc.byte_len, sizes[i], "byte_len at the peer");
        expect_equal(t, wc.imm_data, w.wr.imm_data, "imm_data at the peer");
        expect_copy(&t->a, 11, &t->b, 1000 + i, sizes[i]);
        expect_peer_memory(t, peer);
    }
    peer_quit(t, peer);
}

static void receive_from_process(struct trial *t)
{
    struct peer *peer = peer_meet(t, NULL);
    struct receive r;
    struct work w;
    struct ibv_wc wc;
    /* What the peer sends has been written there from here. */
    payload(t, &t->a, 0, 700);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 64, 700);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    receive_make(t, &r, &t->a, 4096, 701);
    post_receive(t, &t->a, &r);
    struct peer_order order = {
        .command = PEER_WORK, .opcode = IBV_WR_SEND, .at = 64, .bytes = 700, .count = 1};
    peer_tell(t, peer, &order);
    wc = expect_received(t, &t->a, &r, IBV_WC_SUCCESS);
    expect_equal(t, wc.byte_len, 700, "byte_len");
    peer_answer(t, peer, &wc, sizeof wc);
    expect_equal(t, wc.status, IBV_WC_SUCCESS, "status at the peer");
    expect_copy(&t->a, 0, &t->a, 4096, 700);
    expect_memory(t, &t->a, "a");
    peer_quit(t, peer);
}

static void atomics_on_process(struct trial *t)
{
    struct peer *peer = peer_meet(t, NULL);
    uint64_t word, before;
    struct work w;
    memcpy(&word, t->b.expected + 512, sizeof word);
    for (uint64_t i = 0; i < 20; i++) {
        bool add = i % 2, matches = i % 4 == 0;
        work_make(t, &w, add ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP, &t->a, 64,
                  &t->b.address, 512, 8);
        w.wr.wr.atomic.compare_add = add ? i : matches ? word : ~word;
        w.wr.wr.atomic.swap = (i + 1) * 0x0101010101010101;
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
        memcpy(&before, t->a.memory + 64, sizeof before);
        expect(t, before == word, "the word was %#llx, should be %#llx", (unsigned long long)before,
               (unsigned long long)word);
        word = add ? word + i : matches ? w.wr.wr.atomic.swap : word;
    }
    memcpy(t->b.expected + 512, &word, sizeof word);
    expect_peer_memory(t, peer);
    peer_quit(t, peer);
}

/* This process and the peer add to one word of this process's memory at the same time. */
static void both_add_to_one_word(struct trial *t)
{
    enum { ROUNDS = 4000 };
    struct peer *peer = peer_meet(t, NULL);
    struct side self = t->a;
    uint64_t word = 0;
    memcpy(t->a.memory + 512, &word, sizeof word);
    self.qp = trial_qp(t, &self, &self.options);
    self.address.qpn = self.qp->qp_num;
    bring(t, &self, &self.address, IBV_QPS_RTS);
    struct peer_order order = {.command = PEER_WORK,
                               .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                               .remote_at = 512,
                               .bytes = 8,
                               .add = UINT64_C(1) << 32,
                               .count = ROUNDS};
    struct ibv_wc wc;
    peer_tell(t, peer, &order);
    for (int i = 0; i < ROUNDS; i++) {
        struct work w;
        work_make(t, &w, IBV_WR_ATOMIC_FETCH_AND_ADD, &self, 64, &t->a.address, 512, 8);
        w.wr.wr.atomic.compare_add = 1;
        post(t, &self, &w);
        expect_sent(t, &self, &w, IBV_WC_SUCCESS);
    }
    peer_answer(t, peer, &wc, sizeof wc);
    expect_equal(t, wc.status, IBV_WC_SUCCESS, "status at the peer");
    memcpy(&word, t->a.memory + 512, sizeof word);
    expect(t, word == ROUNDS * UINT64_C(0x100000001), "the word is %#llx",
           (unsigned long long)word);
    peer_quit(t, peer);
}

static void a_sleeping_process_is_woken(struct trial *t)
{
    struct options o = default_options();
    o.channel = true;
    struct peer *peer = peer_meet(t, &o);
    for (int round = 0; round < 10; round++) {
        int armed = -1;
        struct ibv_wc wc;
        struct work w;
        struct peer_order order = {.command = PEER_EVENT};
        peer_receive(t, peer, 0, 8);
        peer_tell(t, peer, &order);
        peer_answer(t, peer, &armed, sizeof armed);
        expect_equal(t, armed, 0, "req_notify_cq at the peer");
        work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
        peer_answer(t, peer, &wc, sizeof wc);
        expect_equal(t, wc.status, IBV_WC_SUCCESS, "status at the peer");
    }
    peer_quit(t, peer);
}

static void a_late_receive_of_a_process(struct trial *t)
{
    struct peer *peer = peer_meet(t, NULL);
    struct work w;
    payload(t, &t->a, 0, 100);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 100);
    post(t, &t->a, &w);
    expect_quiet(t, t->a.send_cq);
    peer_receive(t, peer, 3000, 100);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_equal(t, peer_poll(t, peer).status, IBV_WC_SUCCESS, "status at the peer");
    expect_copy(&t->a, 0, &t->b, 3000, 100);
    expect_peer_memory(t, peer);
    peer_quit(t, peer);
}

static void a_forbidden_request_to_a_process(struct trial *t)
{
    struct peer *peer = peer_meet(t, NULL);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    w.wr.wr.rdma.rkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    expect_equal(t, tell_for_value(t, peer, PEER_ASYNC), IBV_EVENT_QP_ACCESS_ERR, "event");
    expect_equal(t, tell_for_value(t, peer, PEER_STATE), IBV_QPS_ERR, "state at the peer");
    expect_peer_memory(t, peer);
    peer_quit(t, peer);
}

static void a_region_deregistered_by_a_process(struct trial *t)
{
    struct peer *peer = peer_meet(t, NULL);
    struct work w;
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 0, 64);
    expect_equal(t, tell_for_value(t, peer, PEER_DEREGISTER), 0, "dereg_mr at the peer");
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    expect_peer_memory(t, peer);
    peer_quit(t, peer);
}

static const struct check checks[] = {
    BOTH_KINDS("WRITE to a process", write_to_process),
    BOTH_KINDS("a list of WRITEs to a process", a_list_to_process),
    BOTH_KINDS("READ from a process", read_from_process),
    BOTH_KINDS("SEND to a process", send_to_process),
    BOTH_KINDS("a process SENDs to us", receive_from_process),
    BOTH_KINDS("atomics on a process", atomics_on_process),
    BOTH_KINDS("two processes add to one word", both_add_to_one_word),
    PROCESS("a sleeping process is woken", a_sleeping_process_is_woken, 0, PEER_PRIVATE),
    PROCESS("a late receive of a process", a_late_receive_of_a_process, 0, PEER_PRIVATE),
    PROCESS("a forbidden request to a process", a_forbidden_request_to_a_process, 0, PEER_PRIVATE),
    PROCESS("a region deregistered by a process", a_region_deregistered_by_a_process, 0,
            PEER_PRIVATE),
};

const struct check_group process_checks = GROUP("processes", checks);
