/* SPDX-License-Identifier: MIT */
/*
 * softnic's order of landing: what a relaxed port may change and what it must keep, and that it
 * bites: protocols that are wrong on purpose are caught.
 */
#include "tests/seeds.h"
#include "tests/softnic_side.h"
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY_LOOKS = 100000, CAUGHT_WITHIN = 20 };

static uint64_t seeds(void)
{
    return seeds_count(50, 1000);
}

/* Two ports, two connections between them, and a clock that the test moves. No thread runs, so all
 * that happens follows from the seed and the calls. */
struct order_pair {
    uint64_t clock;
    struct nic_side a, b;
    struct nic_side a2, b2; /* the second connection, of the same contexts */
    struct nic_address to_b, to_b2;
    uint8_t a_memory[BYTES], b_memory[BYTES];
};

static struct order_pair *pair_open(const struct softnic_order *order,
                                    const struct softnic_wire *wire)
{
    const struct softnic_wire flat = {0};
    char name[64];
    struct order_pair *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->clock = 1000000;
    struct softnic_attr attr = {.wire = wire != NULL ? wire : &flat,
                                .order = order,
                                .now_ns = nic_hand_ns,
                                .clock = &p->clock};
    attr.port_name = nic_test_port(name, sizeof name, "order-a");
    nic_side_open(&p->a, &attr, p->a_memory);
    attr.port_name = nic_test_port(name, sizeof name, "order-b");
    nic_side_open(&p->b, &attr, p->b_memory);
    p->a2 = p->a;
    p->b2 = p->b;
    p->a2.qp = nic_side_qp(&p->a);
    p->b2.qp = nic_side_qp(&p->b);
    struct nic_address to_a = nic_side_address(&p->a), to_a2 = nic_side_address(&p->a2);
    p->to_b = nic_side_address(&p->b);
    p->to_b2 = nic_side_address(&p->b2);
    nic_side_connect(&p->a, &p->to_b);
    nic_side_connect(&p->b, &to_a);
    nic_side_connect(&p->a2, &p->to_b2);
    nic_side_connect(&p->b2, &to_a2);
    return p;
}

static struct order_pair *relaxed_open(uint64_t seed)
{
    return pair_open(&(struct softnic_order){.relaxed = true, .seed = seed}, NULL);
}

static void pair_close(struct order_pair *p)
{
    assert_int_equal(softnic_destroy_qp(p->a2.qp), 0);
    assert_int_equal(softnic_destroy_qp(p->b2.qp), 0);
    nic_side_close(&p->a);
    nic_side_close(&p->b);
    free(p);
}

/* `bytes` at `from` of ours to `to` of theirs. */
static void post(struct nic_side *s, const struct nic_address *to, enum ibv_wr_opcode opcode,
                 size_t from, size_t at, size_t bytes, unsigned flags)
{
    struct ibv_sge sge = {(uint64_t)(uintptr_t)s->memory + from, (uint32_t)bytes, s->mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = at,
                                   .sg_list = &sge,
                                   .num_sge = bytes > 0,
                                   .opcode = opcode,
                                   .send_flags = flags,
                                   .imm_data = 7,
                                   .wr.rdma = {to->memory + at, to->rkey}};
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = to->memory + at;
        wr.wr.atomic.rkey = to->rkey;
        wr.wr.atomic.compare_add = 1;
    }
    assert_int_equal(softnic_post_send(s->qp, &wr, &bad), 0);
}

static void post_recv(struct nic_side *s, size_t at, size_t bytes)
{
    struct ibv_sge sge = {(uint64_t)(uintptr_t)s->memory + at, (uint32_t)bytes, s->mr->lkey};
    struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = bytes > 0};
    assert_int_equal(softnic_post_recv(s->qp, &wr, &bad), 0);
}

/* One look of the sender's; true if it found a completion. */
static bool look(struct nic_side *s)
{
    struct ibv_wc wc;
    int n = softnic_poll_cq(s->cq, 1, &wc);
    if (n > 0)
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
    return n > 0;
}

static void look_until_done(struct nic_side *s)
{
    for (unsigned i = 0; i < MANY_LOOKS; i++) {
        if (look(s))
            return;
    }
    fail_msg("no completion after %d looks", MANY_LOOKS);
}

/* How many bytes of the range are as the sender has them. */
static size_t landed(const struct order_pair *p, size_t from, size_t at, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += p->b_memory[at + i] == p->a_memory[from + i];
    return n;
}

enum { DATA = 4096, DATA_BYTES = 1024, FLAG = 0, FLAG_BYTES = 8 };

static void fill(struct order_pair *p)
{
    memset(p->a_memory, 0xaa, sizeof p->a_memory);
}

/* A receiver that watches the flag after each look of the sender's. True: it saw the flag before
 * all of the data was there. */
static bool caught(struct order_pair *p, struct nic_side *sender)
{
    for (unsigned i = 0; i < MANY_LOOKS; i++) {
        if (landed(p, FLAG, FLAG, FLAG_BYTES) == FLAG_BYTES)
            return landed(p, DATA, DATA, DATA_BYTES) != DATA_BYTES;
        look(sender);
    }
    fail_msg("no flag after %d looks", MANY_LOOKS);
    return false;
}

/* ---- what it changes ------------------------------------------------------------------------ */

/* Wrong on purpose: the flag goes by another queue pair than the data. */
static bool flag_on_another_qp(uint64_t seed)
{
    struct order_pair *p = relaxed_open(seed);
    fill(p);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, 0);
    post(&p->a2, &p->to_b2, IBV_WR_RDMA_WRITE, FLAG, FLAG, FLAG_BYTES, 0);
    bool wrong = caught(p, &p->a);
    pair_close(p);
    return wrong;
}

/* Wrong on purpose: a second write on the same queue pair, and the receiver looks at memory. */
static bool flag_after_data(uint64_t seed)
{
    struct order_pair *p = relaxed_open(seed);
    fill(p);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, 0);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, FLAG, FLAG, FLAG_BYTES, 0);
    bool wrong = caught(p, &p->a);
    pair_close(p);
    return wrong;
}

/* Wrong on purpose: data and flag in one write, the receiver looks at its last bytes. */
static bool flag_in_the_write(uint64_t seed)
{
    struct order_pair *p = relaxed_open(seed);
    bool wrong = false;
    fill(p);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, 0);
    for (unsigned i = 0; i < MANY_LOOKS; i++) {
        if (landed(p, DATA + DATA_BYTES - 8, DATA + DATA_BYTES - 8, 8) == 8) {
            wrong = landed(p, DATA, DATA, DATA_BYTES) != DATA_BYTES;
            break;
        }
        look(&p->a);
    }
    pair_close(p);
    return wrong;
}

static void expect_caught(bool (*protocol)(uint64_t seed), const char *what)
{
    uint64_t n = seeds(), wrong = 0, first = 0;
    for (uint64_t seed = 1; seed <= n; seed++) {
        if (!protocol(seed))
            continue;
        if (wrong++ == 0)
            first = seed;
    }
    print_message("%s: caught at seed %llu first, by %llu of %llu\n", what,
                  (unsigned long long)first, (unsigned long long)wrong, (unsigned long long)n);
    assert_in_range(first, 1, CAUGHT_WITHIN);
    assert_true(wrong * 10 >= n);
}

static void test_wrong_protocols(void **state)
{
    (void)state;
    expect_caught(flag_on_another_qp, "flag on another queue pair");
    expect_caught(flag_after_data, "flag in a second write");
    expect_caught(flag_in_the_write, "flag in the last bytes of the write");
}

/* Both sides of a connection between two processes. */
struct meet {
    struct nic_address a, b;
    _Atomic int a_there, b_there;
    _Atomic int seen; /* rounds whose flag the reader has seen */
    _Atomic int wrong;
};

static void await(const _Atomic int *word, int value)
{
    for (unsigned ms = 0; atomic_load(word) < value; ms++) {
        if (ms > 20000)
            _exit(3);
        usleep(1000);
    }
}

/* The reader: waits for the flag in its memory, then looks whether the data is there. */
static void watch(struct meet *meet, const struct softnic_attr *attr, int rounds)
{
    static uint8_t memory[BYTES];
    struct nic_side b;
    nic_side_open(&b, attr, memory);
    meet->b = nic_side_address(&b);
    atomic_store(&meet->b_there, 1);
    await(&meet->a_there, 1);
    nic_side_connect(&b, &meet->a);
    atomic_store(&meet->b_there, 2);
    for (int round = 1; round <= rounds; round++) {
        for (unsigned i = 0; *(volatile uint8_t *)(memory + FLAG) != round; i++) {
            if (i % 1024 == 1023)
                usleep(10);
        }
        bool whole = true;
        for (size_t i = 0; i < DATA_BYTES; i++)
            whole &= ((volatile uint8_t *)memory)[DATA + i] == round;
        atomic_fetch_add(&meet->wrong, !whole);
        atomic_store(&meet->seen, round);
    }
    await(&meet->a_there, 2);
    nic_side_close(&b);
    _exit(0);
}

/* A reader in another process sees the flag before the data, while the sender does nothing. */
static void test_reader_in_another_process(void **state)
{
    enum { ROUNDS = 50 };
    char name[64];
    (void)state;
    struct meet *meet =
        mmap(NULL, sizeof *meet, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(meet != MAP_FAILED);
    const struct softnic_order order = {.relaxed = true, .seed = 1};
    struct softnic_attr attr = {.order = &order};
    attr.port_name = nic_test_port(name, sizeof name, "order-read");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        watch(meet, &attr, ROUNDS);
    static uint8_t memory[BYTES];
    struct nic_side a;
    nic_side_open(&a, &attr, memory);
    meet->a = nic_side_address(&a);
    atomic_store(&meet->a_there, 1);
    await(&meet->b_there, 1);
    nic_side_connect(&a, &meet->b);
    await(&meet->b_there, 2);
    for (int round = 1; round <= ROUNDS; round++) {
        memset(memory, round, sizeof memory);
        post(&a, &meet->b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, 0);
        post(&a, &meet->b, IBV_WR_RDMA_WRITE, FLAG, FLAG, FLAG_BYTES, IBV_SEND_SIGNALED);
        await(&meet->seen, round);
        look_until_done(&a);
    }
    atomic_store(&meet->a_there, 2);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    nic_side_close(&a);
    print_message("%d of %d rounds were seen in the wrong order\n", atomic_load(&meet->wrong),
                  ROUNDS);
    assert_true(atomic_load(&meet->wrong) > 0);
    munmap(meet, sizeof *meet);
}

/* Where the same protocols run on a strict port nothing is to be seen. */
static void test_strict(void **state)
{
    (void)state;
    struct order_pair *p = pair_open(&(struct softnic_order){0}, NULL);
    fill(p);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, 0);
    post(&p->a2, &p->to_b2, IBV_WR_RDMA_WRITE, FLAG, FLAG, FLAG_BYTES, 0);
    assert_int_equal(landed(p, DATA, DATA, DATA_BYTES), DATA_BYTES);
    assert_int_equal(landed(p, FLAG, FLAG, FLAG_BYTES), FLAG_BYTES);
    pair_close(p);
}

/* What was there after each look. */
static void history(uint64_t seed, uint32_t *hash)
{
    struct order_pair *p = relaxed_open(seed);
    fill(p);
    *hash = 2166136261u;
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, IBV_SEND_SIGNALED);
    post(&p->a2, &p->to_b2, IBV_WR_RDMA_WRITE, DATA, 2 * DATA, DATA_BYTES, 0);
    for (bool done = false; !done;) {
        done = look(&p->a);
        for (size_t i = 0; i < DATA_BYTES; i++)
            *hash = (*hash ^ p->b_memory[DATA + i] ^ p->b_memory[2 * DATA + i]) * 16777619u;
    }
    pair_close(p);
}

static void test_same_seed_same_order(void **state)
{
    uint32_t one, again, other, differ = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        history(seed, &one);
        history(seed, &again);
        history(seed + 1, &other);
        assert_int_equal(one, again);
        differ += one != other;
    }
    assert_true(differ >= 18);
}

/* ---- what it keeps -------------------------------------------------------------------------- */

/* Everything up to it on its queue pair is there when a completion is seen at its sender. */
static void keeps_sender_completion(struct order_pair *p)
{
    for (unsigned i = 0; i < 4; i++)
        post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA + i * DATA_BYTES, DATA_BYTES,
             i == 3 ? IBV_SEND_SIGNALED : 0);
    look_until_done(&p->a);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(landed(p, DATA, DATA + i * DATA_BYTES, DATA_BYTES), DATA_BYTES);
}

/* And when the receiver sees the completion of a receive. */
static void keeps_receive_completion(struct order_pair *p, enum ibv_wr_opcode opcode)
{
    bool send = opcode == IBV_WR_SEND;
    post_recv(&p->b, 3 * DATA, send ? DATA_BYTES : 0);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, 0);
    post(&p->a, &p->to_b, opcode, DATA, 3 * DATA, DATA_BYTES, 0);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, 2 * DATA, DATA_BYTES, 0);
    for (unsigned i = 0; i < MANY_LOOKS && !look(&p->b); i++)
        look(&p->a);
    assert_int_equal(landed(p, DATA, DATA, DATA_BYTES), DATA_BYTES);
    assert_int_equal(landed(p, DATA, 3 * DATA, DATA_BYTES), DATA_BYTES);
}

/* A READ sees what was written before it on its queue pair. */
static void keeps_read_after_write(struct order_pair *p)
{
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, 0);
    post(&p->a, &p->to_b, IBV_WR_RDMA_READ, 4 * DATA, DATA, DATA_BYTES, IBV_SEND_SIGNALED);
    memset(p->a_memory + 4 * DATA, 0, DATA_BYTES);
    look_until_done(&p->a);
    assert_memory_equal(p->a_memory + 4 * DATA, p->a_memory + DATA, DATA_BYTES);
}

/* An atomic is carried out after the writes before it, and once. */
static void keeps_atomic_after_write(struct order_pair *p)
{
    uint64_t *word = (uint64_t *)(void *)(p->b_memory + 8), before = *word;
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, 0);
    post(&p->a, &p->to_b, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 8, 8, 0);
    for (unsigned i = 0; i < MANY_LOOKS && *word == before; i++) {
        look(&p->a);
        if (*word != before)
            assert_int_equal(landed(p, DATA, DATA, DATA_BYTES), DATA_BYTES);
    }
    assert_int_equal(*word, before + 1);
}

/* A fenced write comes after the READ before it; one without may come first. */
static void keeps_fence(struct order_pair *p)
{
    memset(p->b_memory + 5 * DATA, 0x11, DATA_BYTES);
    post(&p->a, &p->to_b, IBV_WR_RDMA_READ, 5 * DATA, 5 * DATA, DATA_BYTES, 0);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, 5 * DATA, DATA_BYTES,
         IBV_SEND_FENCE | IBV_SEND_SIGNALED);
    look_until_done(&p->a);
    for (size_t i = 0; i < DATA_BYTES; i++)
        assert_int_equal(p->a_memory[5 * DATA + i], 0x11);
}

/* A far side that was stopped while it held its queue pair does not hold the sender for ever. */
static void test_stopped_far_side(void **state)
{
    struct order_pair *p = relaxed_open(1);
    struct shared_qp *far = to_qp(p->b.qp)->shared;
    struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD};
    (void)state;
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, DATA_BYTES, IBV_SEND_SIGNALED);
    nic_inbound_lock(to_qp(p->b.qp)->ctx, far);
    assert_int_equal(softnic_modify_qp(p->a.qp, &drain, IBV_QP_STATE), 0);
    assert_int_equal(nic_side_poll(&p->a).status, IBV_WC_RETRY_EXC_ERR);
    assert_non_null(strstr(softnic_last_error(p->a.context), "was it stopped?"));
    nic_inbound_unlock(far);
    pair_close(p);
}

static void test_promises(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= seeds(); seed++) {
        static void (*const promises[])(struct order_pair *) = {
            keeps_sender_completion, keeps_read_after_write, keeps_atomic_after_write, keeps_fence};
        for (size_t i = 0; i < sizeof promises / sizeof *promises; i++) {
            struct order_pair *p = relaxed_open(seed);
            fill(p);
            promises[i](p);
            pair_close(p);
        }
        for (unsigned send = 0; send < 2; send++) {
            struct order_pair *p = relaxed_open(seed);
            fill(p);
            keeps_receive_completion(p, send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM);
            pair_close(p);
        }
    }
}

/* An unfenced write does pass the READ before it at some seed. */
static void test_no_fence(void **state)
{
    unsigned passed = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= seeds(); seed++) {
        struct order_pair *p = relaxed_open(seed);
        fill(p);
        memset(p->b_memory + 5 * DATA, 0x11, DATA_BYTES);
        post(&p->a, &p->to_b, IBV_WR_RDMA_READ, 6 * DATA, 5 * DATA, DATA_BYTES, 0);
        post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, 5 * DATA, DATA_BYTES, IBV_SEND_SIGNALED);
        look_until_done(&p->a);
        bool mixed = false;
        for (size_t i = 0; i < DATA_BYTES; i++)
            mixed |= p->a_memory[6 * DATA + i] != 0x11;
        passed += mixed;
        pair_close(p);
    }
    assert_true(passed > 0);
}

/* ---- on time -------------------------------------------------------------------------------- */

/* alpha + S/beta after it was posted the bytes are there, and not a nanosecond before. */
static void test_on_time(void **state)
{
    const struct softnic_wire wire = {.alpha_us = 10, .gap_us = 2, .beta_gbps = 1};
    struct order_pair *p = pair_open(&(struct softnic_order){.on_time = true}, &wire);
    (void)state;
    fill(p);
    uint64_t start = p->clock;
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, DATA, 1000, IBV_SEND_SIGNALED);
    p->clock = start + 10999;
    assert_false(look(&p->a));
    assert_int_equal(landed(p, DATA, DATA, 1000), 0);
    p->clock = start + 11000;
    assert_true(look(&p->a));
    assert_int_equal(landed(p, DATA, DATA, 1000), 1000);
    /* A stream, of which the second uses up a receive. */
    start = p->clock += 1000000;
    post_recv(&p->b, 0, 0);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE, DATA, 2 * DATA, 4000, IBV_SEND_SIGNALED);
    post(&p->a, &p->to_b, IBV_WR_RDMA_WRITE_WITH_IMM, DATA, 3 * DATA, 4000, IBV_SEND_SIGNALED);
    p->clock = start + 14000;
    assert_true(look(&p->a));
    assert_int_equal(landed(p, DATA, 2 * DATA, 4000), 4000);
    assert_int_equal(landed(p, DATA, 3 * DATA, 4000), 0);
    assert_false(look(&p->b));
    p->clock = start + 20000;
    assert_true(look(&p->a));
    assert_int_equal(landed(p, DATA, 3 * DATA, 4000), 4000);
    assert_true(look(&p->b));
    pair_close(p);
}

/* ---- opening -------------------------------------------------------------------------------- */

static void test_settings(void **state)
{
    char name[64], error[256] = "";
    (void)state;
    struct softnic_order order = {.relaxed = true, .seed = 5};
    struct softnic_attr attr = {.order = &order, .error = error, .error_size = sizeof error};
    attr.port_name = nic_test_port(name, sizeof name, "order-settings");
    struct ibv_context *context = softnic_open_port(&attr);
    assert_non_null(context);
    order.seed = 6;
    assert_null(softnic_open_port(&attr));
    assert_int_equal(errno, EBUSY);
    assert_non_null(strstr(error, "another order"));
    assert_int_equal(softnic_close_device(context), 0);
    attr.order = NULL;
    static const char *const bad[] = {
        "relaxed", "relaxed-qps", "relaxed-qps,-1", "relaxed,", "relaxed,x", "relaxed,1x", "lax"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("SOFTNIC_ORDER", bad[i], 1);
        assert_null(softnic_open_port(&attr));
        assert_int_equal(errno, EINVAL);
    }
    setenv("SOFTNIC_ORDER", "relaxed,18446744073709551615", 1);
    setenv("SOFTNIC_PLACE", "late", 1);
    assert_null(softnic_open_port(&attr));
    setenv("SOFTNIC_PLACE", "on-time", 1);
    assert_non_null(context = softnic_open_port(&attr));
    assert_int_equal(softnic_close_device(context), 0);
    unsetenv("SOFTNIC_ORDER");
    unsetenv("SOFTNIC_PLACE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_protocols),
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_same_seed_same_order),
        cmocka_unit_test(test_promises),
        cmocka_unit_test(test_stopped_far_side),
        cmocka_unit_test(test_no_fence),
        cmocka_unit_test(test_reader_in_another_process),
        cmocka_unit_test(test_on_time),
        cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
