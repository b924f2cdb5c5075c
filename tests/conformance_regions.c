/* SPDX-License-Identifier: MIT */
/* Regions whose addresses begin elsewhere than their memory, and regions that are changed. */
#include "tests/conformance.h"

/* Another address for it, at the same place of a page, as devices that translate by pages need. */
static uint64_t iova_of(const uint8_t *memory)
{
    return 0x700000001000ull + (uintptr_t)memory % 4096;
}

/* b's memory under a key of its own, which names it elsewhere. */
static struct address elsewhere(struct trial *t)
{
    struct ibv_mr *mr = t->verbs->reg_mr_iova(t->b.pd, t->b.memory, t->b.bytes,
                                              iova_of(t->b.memory), t->b.options.access);
    if (!mr && (errno == EOPNOTSUPP || errno == ENOSYS))
        trial_skip(t, "the device does not register memory at another address");
    expect(t, mr, "reg_mr_iova: %s", strerror(errno));
    trial_track(t, MR, mr, 0);
    struct address address = t->b.address;
    address.memory = iova_of(t->b.memory);
    address.rkey = mr->rkey;
    return address;
}

static void by_another_address(struct trial *t)
{
    enum ibv_wr_opcode opcode = (enum ibv_wr_opcode)t->check->parameter;
    trial_connect(t, NULL);
    struct address there = elsewhere(t);
    struct work w;
    if (opcode == IBV_WR_RDMA_WRITE) {
        payload(t, &t->a, 0, 300);
        expect_copy(&t->a, 0, &t->b, 77, 300);
    } else {
        payload(t, &t->b, 77, 300);
        expect_copy(&t->b, 77, &t->a, 0, 300);
    }
    work_make(t, &w, opcode, &t->a, 0, &there, 77, 300);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

static void an_atomic_by_another_address(struct trial *t)
{
    trial_connect(t, NULL);
    struct address there = elsewhere(t);
    uint64_t start = 40, found;
    memcpy(t->b.memory + 64, &start, sizeof start);
    struct work w;
    work_make(t, &w, IBV_WR_ATOMIC_FETCH_AND_ADD, &t->a, 0, &there, 64, 8);
    w.wr.wr.atomic.compare_add = 2;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    memcpy(&found, t->b.memory + 64, sizeof found);
    expect_equal(t, found, 42, "the sum");
    memcpy(&found, t->a.memory, sizeof found);
    expect_equal(t, found, 40, "what was there before");
}

static void pieces_by_another_address(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_mr *mr = t->verbs->reg_mr_iova(t->a.pd, t->a.memory, t->a.bytes,
                                              iova_of(t->a.memory), t->a.options.access);
    struct address there = elsewhere(t); /* or skips */
    expect(t, mr, "reg_mr_iova: %s", strerror(errno));
    trial_track(t, MR, mr, 0);
    struct receive r;
    struct work w;
    give_receive(t, &r, 0, 0);
    (void)there;
    payload(t, &t->a, 0, 200);
    work_make(t, &w, IBV_WR_RDMA_WRITE_WITH_IMM, &t->a, 0, &t->b.address, 512, 120);
    w.sge[0] = (struct ibv_sge){iova_of(t->a.memory), 120, mr->lkey};
    w.sge[1] = (struct ibv_sge){iova_of(t->a.memory) + 120, 80, mr->lkey};
    w.wr.num_sge = 2;
    post(t, &t->a, &w);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 512, 200);
    expect_memory(t, &t->b, "b");
}

/* The memory's own address means nothing under such a key. */
static void its_own_address_is_no_more(struct trial *t)
{
    trial_connect(t, NULL);
    struct address there = elsewhere(t);
    struct work w;
    there.memory = (uintptr_t)t->b.memory;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &there, 0, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_REM_ACCESS_ERR);
    expect_memory(t, &t->b, "b");
}

/* --- ibv_rereg_mr ---------------------------------------------------------------------------- */

static void change(struct trial *t, int flags, struct ibv_pd *pd, void *addr, size_t length,
                   int access)
{
    errno = 0;
    int err = t->verbs->rereg_mr(t->b.mr, flags, pd, addr, length, access);
    if (err && (errno == EOPNOTSUPP || errno == ENOSYS))
        trial_skip(t, "the device does not change regions");
    expect(t, !err, "rereg_mr: %d, %s", err, strerror(errno));
    t->b.address.rkey = t->b.mr->rkey;
}

static void write_and_expect(struct trial *t, size_t at, enum ibv_wc_status status)
{
    struct work w;
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, at, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, status);
    if (status == IBV_WC_SUCCESS)
        expect_copy(&t->a, 0, &t->b, at, 64);
    expect_memory(t, &t->b, "b");
}

static void a_right_is_granted_later(struct trial *t)
{
    struct options o = default_options();
    o.access = IBV_ACCESS_LOCAL_WRITE;
    trial_connect(t, &o);
    change(t, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    write_and_expect(t, 100, IBV_WC_SUCCESS);
}

static void a_right_is_withdrawn(struct trial *t)
{
    trial_connect(t, NULL);
    write_and_expect(t, 100, IBV_WC_SUCCESS);
    change(t, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE);
    write_and_expect(t, 300, IBV_WC_REM_ACCESS_ERR);
}

static void it_moves_to_another_pd(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_pd *pd = trial_pd(t, t->b.context);
    change(t, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0);
    expect(t, t->b.mr->pd == pd, "the region's PD");
    write_and_expect(t, 100, IBV_WC_REM_ACCESS_ERR);
}

static void it_holds_its_new_pd(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_pd *pd = trial_pd(t, t->b.context);
    change(t, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0);
    expect_equal(t, t->verbs->dealloc_pd(pd), EBUSY, "dealloc_pd of the new PD");
    change(t, IBV_REREG_MR_CHANGE_PD, t->b.pd, NULL, 0, 0);
    trial_forget(t, pd);
    expect_equal(t, t->verbs->dealloc_pd(pd), 0, "dealloc_pd after it was left");
    write_and_expect(t, 100, IBV_WC_SUCCESS);
}

static void it_moves_to_other_memory(struct trial *t)
{
    trial_connect(t, NULL);
    write_and_expect(t, 100, IBV_WC_SUCCESS);
    uint8_t *other = trial_memory(t, 4096);
    change(t, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 4096, 0);
    expect(t, t->b.mr->addr == other && t->b.mr->length == 4096, "the region's place");
    t->b.address.memory = (uintptr_t)other;
    struct work w;
    payload(t, &t->a, 1024, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 1024, &t->b.address, 8, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect(t, !memcmp(other + 8, t->a.memory + 1024, 64), "the contents differ");
    expect_memory(t, &t->b, "b");
}

static void what_it_left_is_out_of_reach(struct trial *t)
{
    trial_connect(t, NULL);
    uint8_t *other = trial_memory(t, 4096);
    change(t, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 4096, 0);
    write_and_expect(t, 0, IBV_WC_REM_ACCESS_ERR); /* at the old address */
}

static void a_change_of_nothing_is_refused(struct trial *t)
{
    trial_connect(t, NULL);
    errno = 0;
    int err = t->verbs->rereg_mr(t->b.mr, 0, NULL, NULL, 0, 0);
    if (err && (errno == EOPNOTSUPP || errno == ENOSYS))
        trial_skip(t, "the device does not change regions");
    expect_equal(t, err, IBV_REREG_MR_ERR_INPUT, "rereg_mr without flags");
    expect_equal(t, t->verbs->rereg_mr(t->b.mr, 1 << 20, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT,
                 "rereg_mr with an unknown flag");
    write_and_expect(t, 100, IBV_WC_SUCCESS);
}

/* A remote right without the local one: refused, and the region is as it was. */
static void an_impossible_change_changes_nothing(struct trial *t)
{
    trial_connect(t, NULL);
    errno = 0;
    int err = t->verbs->rereg_mr(t->b.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                                 IBV_ACCESS_REMOTE_WRITE);
    if (err && (errno == EOPNOTSUPP || errno == ENOSYS))
        trial_skip(t, "the device does not change regions");
    expect(t, err != 0, "remote write without local write is granted");
    write_and_expect(t, 100, IBV_WC_SUCCESS);
}

#define WITH(text, function, value)                                                                \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (value)                                    \
    }

static const struct check checks[] = {
    WITH("a WRITE by another address", by_another_address, IBV_WR_RDMA_WRITE),
    WITH("a READ by another address", by_another_address, IBV_WR_RDMA_READ),
    {.name = "an atomic by another address", .run = an_atomic_by_another_address},
    {.name = "pieces by another address", .run = pieces_by_another_address},
    {.name = "its own address is no more", .run = its_own_address_is_no_more},
    {.name = "a region is granted a right later", .run = a_right_is_granted_later},
    {.name = "a region's right is withdrawn", .run = a_right_is_withdrawn},
    {.name = "a region moves to another PD", .run = it_moves_to_another_pd},
    {.name = "a region holds its new PD", .run = it_holds_its_new_pd},
    {.name = "a region moves to other memory", .run = it_moves_to_other_memory},
    {.name = "what a region left is out of reach", .run = what_it_left_is_out_of_reach},
    {.name = "a change of nothing is refused", .run = a_change_of_nothing_is_refused},
    {.name = "an impossible change changes nothing", .run = an_impossible_change_changes_nothing},
};

const struct check_group regions_checks = GROUP("regions that change", checks);
