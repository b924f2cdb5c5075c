/* SPDX-License-Identifier: MIT */
/* FETCH_AND_ADD and COMPARE_AND_SWAP. The word lies in b's memory at WORD. */
#include "tests/conformance.h"

enum { WORD = 512, RESULT = 64 };

static void need_atomics(struct trial *t)
{
    struct ibv_device_attr attr;
    expect_equal(t, t->verbs->query_device(t->a.context, &attr), 0, "query_device");
    if (attr.atomic_cap == IBV_ATOMIC_NONE)
        trial_skip(t, "the device has no atomics");
}

static void put_word(struct side *side, size_t at, uint64_t value)
{
    memcpy(side->memory + at, &value, sizeof value);
    memcpy(side->expected + at, &value, sizeof value);
}

static void expect_word(struct side *side, size_t at, uint64_t value)
{
    memcpy(side->expected + at, &value, sizeof value);
}

static void fetch_and_add(struct trial *t)
{
    static const uint64_t words[] = {0, 1, UINT64_MAX, 0x00000000ffffffff, 0x8000000000000000};
    static const uint64_t adds[] = {0, 1, UINT64_MAX, 0x0123456789abcdef};
    need_atomics(t);
    trial_connect(t, NULL);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (size_t j = 0; j < sizeof adds / sizeof *adds; j++) {
            struct work w;
            put_word(&t->b, WORD, words[i]);
            work_make(t, &w, IBV_WR_ATOMIC_FETCH_AND_ADD, &t->a, RESULT, &t->b.address, WORD, 8);
            w.wr.wr.atomic.compare_add = adds[j];
            post(t, &t->a, &w);
            expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
            expect_word(&t->a, RESULT, words[i]);
            expect_word(&t->b, WORD, words[i] + adds[j]);
            expect_memory(t, &t->a, "a");
            expect_memory(t, &t->b, "b");
        }
}

static void compare_and_swap(struct trial *t)
{
    static const uint64_t words[] = {0, 1, UINT64_MAX, 0x00000001ffffffff, 0x8000000000000000};
    enum { COUNT = sizeof words / sizeof *words };
    need_atomics(t);
    trial_connect(t, NULL);
    for (size_t i = 0; i < COUNT; i++)
        for (size_t j = 0; j < COUNT; j++) {
            struct work w;
            uint64_t swap = 0xfedcba9876543210u + j;
            put_word(&t->b, WORD, words[i]);
            work_make(t, &w, IBV_WR_ATOMIC_CMP_AND_SWP, &t->a, RESULT, &t->b.address, WORD, 8);
            w.wr.wr.atomic.compare_add = words[j];
            w.wr.wr.atomic.swap = swap;
            post(t, &t->a, &w);
            expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
            expect_word(&t->a, RESULT, words[i]);
            expect_word(&t->b, WORD, i == j ? swap : words[i]);
            expect_memory(t, &t->a, "a");
            expect_memory(t, &t->b, "b");
        }
}

/* Many in a row: each sees what the one before it left. */
static void adds_follow_one_another(struct trial *t)
{
    need_atomics(t);
    trial_connect(t, NULL);
    put_word(&t->b, WORD, 1000);
    struct work w[24];
    for (uint64_t i = 0; i < 24; i++) {
        work_make(t, &w[i], IBV_WR_ATOMIC_FETCH_AND_ADD, &t->a, RESULT + 8 * i, &t->b.address, WORD,
                  8);
        w[i].wr.wr.atomic.compare_add = i + 1;
        post(t, &t->a, &w[i]);
    }
    uint64_t value = 1000;
    for (uint64_t i = 0; i < 24; value += ++i) {
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
        expect_word(&t->a, RESULT + 8 * i, value);
    }
    expect_word(&t->b, WORD, value);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

/* InfiniBand 9.7.4.1: the address of an atomic is a multiple of 8. Whether the poster's device
 * finds that or the responder is theirs to settle. */
static void an_address_out_of_line_is_refused(struct trial *t)
{
    need_atomics(t);
    trial_connect(t, NULL);
    struct work w;
    payload(t, &t->b, WORD, 16);
    work_make(t, &w, (enum ibv_wr_opcode)t->check->parameter, &t->a, RESULT, &t->b.address,
              WORD + 4, 8);
    w.wr.wr.atomic.compare_add = 1;
    int err = post_any(&t->a, t->verbs, &w.wr, BY_POST_SEND);
    if (!err) {
        struct ibv_wc wc = next_wc(t, t->a.send_cq);
        expect(t, wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_ACCESS_ERR,
               "status '%s'", ibv_wc_status_str(wc.status));
        expect_state(t, &t->a, IBV_QPS_ERR);
    } else {
        expect_equal(t, err, EINVAL, "post_send");
        expect_quiet(t, t->a.send_cq);
    }
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

/* The reply has 8 bytes and no more or less room is right. */
static void a_reply_needs_8_bytes(struct trial *t)
{
    need_atomics(t);
    trial_connect(t, NULL);
    struct work w;
    struct ibv_send_wr *bad;
    put_word(&t->b, WORD, 5);
    work_make(t, &w, IBV_WR_ATOMIC_FETCH_AND_ADD, &t->a, RESULT, &t->b.address, WORD, 4);
    w.wr.wr.atomic.compare_add = 0;
    if (!t->verbs->post_send(t->a.qp, &w.wr, &bad)) {
        struct ibv_wc wc = next_wc(t, t->a.send_cq);
        expect(t,
               wc.status == IBV_WC_LOC_LEN_ERR || wc.status == IBV_WC_LOC_PROT_ERR ||
                   wc.status == IBV_WC_LOC_QP_OP_ERR,
               "status '%s'", ibv_wc_status_str(wc.status));
    }
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

static void two_queue_pairs_add_to_one_word(struct trial *t)
{
    enum { ROUNDS = 400 };
    need_atomics(t);
    trial_connect(t, NULL);
    /* b adds to its own word too, through a queue pair that is its own peer. */
    struct side self = t->b;
    self.qp = trial_qp(t, &self, &self.options);
    self.address.qpn = self.qp->qp_num;
    bring(t, &self, &self.address, IBV_QPS_RTS);
    put_word(&t->b, WORD, 0);
    for (int i = 0; i < ROUNDS; i++) {
        struct work mine, other;
        work_make(t, &mine, IBV_WR_ATOMIC_FETCH_AND_ADD, &t->a, RESULT, &t->b.address, WORD, 8);
        work_make(t, &other, IBV_WR_ATOMIC_FETCH_AND_ADD, &self, RESULT, &t->b.address, WORD, 8);
        mine.wr.wr.atomic.compare_add = 1;
        other.wr.wr.atomic.compare_add = 1u << 16;
        post(t, &t->a, &mine);
        post(t, &self, &other);
        expect_sent(t, &t->a, &mine, IBV_WC_SUCCESS);
        expect_sent(t, &self, &other, IBV_WC_SUCCESS);
    }
    uint64_t value;
    memcpy(&value, t->b.memory + WORD, sizeof value);
    expect(t, value == ROUNDS * UINT64_C(0x10001), "the word is %#llx", (unsigned long long)value);
}

static const struct check checks[] = {
    {.name = "FETCH_AND_ADD", .run = fetch_and_add},
    {.name = "FETCH_AND_ADD by ibv_wr_*", .run = fetch_and_add, .way = BY_WR_CALLS},
    {.name = "COMPARE_AND_SWAP", .run = compare_and_swap},
    {.name = "COMPARE_AND_SWAP by ibv_wr_*", .run = compare_and_swap, .way = BY_WR_CALLS},
    {.name = "adds follow one another", .run = adds_follow_one_another},
    {.name = "FETCH_AND_ADD out of line is refused",
     .run = an_address_out_of_line_is_refused,
     .parameter = IBV_WR_ATOMIC_FETCH_AND_ADD},
    {.name = "COMPARE_AND_SWAP out of line is refused",
     .run = an_address_out_of_line_is_refused,
     .parameter = IBV_WR_ATOMIC_CMP_AND_SWP},
    {.name = "an atomic's reply needs 8 bytes", .run = a_reply_needs_8_bytes},
    {.name = "two queue pairs add to one word", .run = two_queue_pairs_add_to_one_word},
};

const struct check_group atomics_checks = GROUP("atomics", checks);
