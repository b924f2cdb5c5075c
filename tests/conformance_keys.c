/* SPDX-License-Identifier: MIT */
/* Memory keys: validity, bounds, rights and protection domains. */
#include "tests/conformance.h"

static const int all_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/* One request of this opcode, 8 bytes from a at 0 to b at 4096; contents prepared. */
static void prepare(struct trial *t, struct work *w, enum ibv_wr_opcode opcode)
{
    payload(t, &t->a, 0, 8);
    payload(t, &t->b, 4096, 8);
    work_make(t, w, opcode, &t->a, 0, &t->b.address, 4096, 8);
}

/* It fails with this status, no byte has changed on either side, and a has fallen into ERR. */
static void fails(struct trial *t, struct work *w, enum ibv_wc_status status)
{
    post(t, &t->a, w);
    expect_sent(t, &t->a, w, status);
    expect_state(t, &t->a, IBV_QPS_ERR);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

static enum ibv_wr_opcode opcode_of(const struct trial *t)
{
    return (enum ibv_wr_opcode)t->check->parameter;
}

static void bad_lkey(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    prepare(t, &w, opcode_of(t));
    w.sge[0].lkey ^= 0x5a5a5a;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_LOC_PROT_ERR);
    expect_state(t, &t->a, IBV_QPS_ERR);
    expect_memory(t, &t->a, "a");
    if (opcode_of(t) != IBV_WR_ATOMIC_FETCH_AND_ADD) /* may be done before its reply is stored */
        expect_memory(t, &t->b, "b");
}

/* The key field lies at one place for RDMA and at another for atomics. */
static void set_remote(struct work *w, uint64_t address, uint32_t rkey)
{
    if (w->wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || w->wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        w->wr.wr.atomic.remote_addr = address;
        w->wr.wr.atomic.rkey = rkey;
    } else {
        w->wr.wr.rdma.remote_addr = address;
        w->wr.wr.rdma.rkey = rkey;
    }
}

static void bad_rkey(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    prepare(t, &w, opcode_of(t));
    set_remote(&w, t->b.address.memory + 4096, t->b.address.rkey ^ 0x5a5a5a);
    fails(t, &w, IBV_WC_REM_ACCESS_ERR);
    expect_state(t, &t->b, IBV_QPS_ERR);
}

static void deregistered_lkey(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    prepare(t, &w, opcode_of(t));
    deregister(t, t->a.mr);
    fails(t, &w, IBV_WC_LOC_PROT_ERR);
}

static void deregistered_rkey(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    prepare(t, &w, opcode_of(t));
    deregister(t, t->b.mr);
    fails(t, &w, IBV_WC_REM_ACCESS_ERR);
}

/* A key that is registered anew must not be the old one at once. */
static void an_old_key_stays_dead(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    prepare(t, &w, IBV_WR_RDMA_WRITE);
    uint32_t old = t->b.mr->rkey;
    deregister(t, t->b.mr);
    t->b.mr = trial_mr(t, t->b.pd, t->b.memory, t->b.bytes, all_access);
    expect(t, t->b.mr->rkey != old, "the next registration has the same rkey %#x", old);
    fails(t, &w, IBV_WC_REM_ACCESS_ERR);
}

static void lkey_of_another_pd(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_pd *other = trial_pd(t, t->a.context);
    struct ibv_mr *mr = trial_mr(t, other, t->a.memory, t->a.bytes, all_access);
    struct work w;
    prepare(t, &w, IBV_WR_RDMA_WRITE);
    w.sge[0].lkey = mr->lkey;
    fails(t, &w, IBV_WC_LOC_PROT_ERR);
}

static void rkey_of_another_pd(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_pd *other = trial_pd(t, t->b.context);
    struct ibv_mr *mr = trial_mr(t, other, t->b.memory, t->b.bytes, all_access);
    struct work w;
    prepare(t, &w, opcode_of(t));
    set_remote(&w, t->b.address.memory + 4096, mr->rkey);
    fails(t, &w, IBV_WC_REM_ACCESS_ERR);
}

/* --- bounds: the region is the middle of b's memory, or of a's ------------------------------- */

enum place { AT_START, AT_END, BEFORE, PAST, FAR_AWAY, WRAPPING };

static void remote_bounds(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_mr *mr = trial_mr(t, t->b.pd, t->b.memory + 1000, 1000, all_access);
    uint64_t first = (uintptr_t)t->b.memory + 1000;
    const uint64_t addresses[] = {first,       first + 1000 - 24,  first - 1,
                                  first + 977, first + (1u << 30), UINT64_MAX - 10};
    enum place place = (enum place)t->check->size;
    struct work w;
    payload(t, &t->a, 0, 24);
    payload(t, &t->b, 900, 1200);
    work_make(t, &w, opcode_of(t), &t->a, 0, &t->b.address, 0, 24);
    set_remote(&w, addresses[place], mr->rkey);
    if (place > AT_END) {
        fails(t, &w, IBV_WC_REM_ACCESS_ERR);
        return;
    }
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    size_t at = (size_t)(addresses[place] - (uintptr_t)t->b.memory);
    if (opcode_of(t) == IBV_WR_RDMA_READ)
        expect_copy(&t->b, at, &t->a, 0, 24);
    else
        expect_copy(&t->a, 0, &t->b, at, 24);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

static void local_bounds(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_mr *mr = trial_mr(t, t->a.pd, t->a.memory + 1000, 1000, all_access);
    uint64_t first = (uintptr_t)t->a.memory + 1000;
    const uint64_t addresses[] = {first,       first + 1000 - 24,  first - 1,
                                  first + 977, first + (1u << 30), UINT64_MAX - 10};
    struct work w;
    payload(t, &t->a, 900, 1200);
    payload(t, &t->b, 0, 24);
    work_make(t, &w, opcode_of(t), &t->a, 0, &t->b.address, 0, 24);
    w.sge[0] = (struct ibv_sge){addresses[t->check->size], 24, mr->lkey};
    fails(t, &w, IBV_WC_LOC_PROT_ERR);
}

static void a_bad_second_piece_is_found(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    prepare(t, &w, IBV_WR_RDMA_WRITE);
    w.sge[1] = w.sge[0];
    w.sge[1].lkey ^= 0x5a5a5a;
    w.wr.num_sge = 2;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_LOC_PROT_ERR);
    expect_state(t, &t->a, IBV_QPS_ERR);
    /* The first piece may have left; what lies behind it is untouched. */
    memcpy(t->b.expected + 4096, t->b.memory + 4096, 8);
    expect_memory(t, &t->b, "b");
}

/* --- rights --------------------------------------------------------------------------------- */

static int needed_right(enum ibv_wr_opcode opcode)
{
    if (opcode == IBV_WR_RDMA_READ)
        return IBV_ACCESS_REMOTE_READ;
    if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        return IBV_ACCESS_REMOTE_WRITE;
    return IBV_ACCESS_REMOTE_ATOMIC;
}

static void region_without_right(struct trial *t)
{
    struct options o = default_options();
    o.access = all_access & ~needed_right(opcode_of(t));
    trial_connect(t, &o);
    struct work w;
    prepare(t, &w, opcode_of(t));
    fails(t, &w, IBV_WC_REM_ACCESS_ERR);
}

static void region_with_only_its_right(struct trial *t)
{
    struct options o = default_options();
    o.access = needed_right(opcode_of(t));
    if (o.access != IBV_ACCESS_REMOTE_READ)
        o.access |= IBV_ACCESS_LOCAL_WRITE;
    pair_make(t, &o);
    deregister(t, t->a.mr);
    t->a.mr = trial_mr(t, t->a.pd, t->a.memory, t->a.bytes, IBV_ACCESS_LOCAL_WRITE);
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    struct work w;
    prepare(t, &w, opcode_of(t));
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
}

/* InfiniBand calls it an invalid request; some devices call it an access error. */
static void queue_pair_without_right(struct trial *t)
{
    struct options o = default_options();
    o.qp_access = all_access & ~IBV_ACCESS_LOCAL_WRITE & ~needed_right(opcode_of(t));
    trial_connect(t, &o);
    struct work w;
    prepare(t, &w, opcode_of(t));
    post(t, &t->a, &w);
    struct ibv_wc wc = next_wc(t, t->a.send_cq);
    expect(t, wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_ACCESS_ERR,
           "status '%s'", ibv_wc_status_str(wc.status));
    expect_state(t, &t->a, IBV_QPS_ERR);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

/* What comes in by READ or atomic is written locally, and that needs the right to. */
/* The remote word of an atomic may have changed before its reply found no place. */
static void no_local_write(struct trial *t)
{
    struct options o = default_options();
    trial_connect(t, &o);
    struct ibv_mr *mr = trial_mr(t, t->a.pd, t->a.memory, t->a.bytes, IBV_ACCESS_REMOTE_READ);
    struct work w;
    prepare(t, &w, opcode_of(t));
    w.sge[0].lkey = mr->lkey;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_LOC_PROT_ERR);
    expect_state(t, &t->a, IBV_QPS_ERR);
    expect_memory(t, &t->a, "a");
}

static void local_read_needs_no_right(struct trial *t)
{
    struct options o = default_options();
    trial_connect(t, &o);
    struct ibv_mr *mr = trial_mr(t, t->a.pd, t->a.memory, t->a.bytes, 0);
    struct work w;
    prepare(t, &w, IBV_WR_RDMA_WRITE);
    w.sge[0].lkey = mr->lkey;
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 4096, 8);
    expect_memory(t, &t->b, "b");
}

/* --- zero length: no key is looked at (InfiniBand C9-88) -------------------------------------- */

static void zero_length_needs_no_key(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    for (int pieces = 0; pieces < 2; pieces++) {
        work_make(t, &w, opcode_of(t), &t->a, 0, &t->b.address, 0, 0);
        set_remote(&w, 0xdead0000, 0x12345678);
        w.wr.num_sge = pieces;
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

/* --- registration --------------------------------------------------------------------------- */

static void refuse_region(struct trial *t, void *at, size_t bytes, int access, const char *why)
{
    struct ibv_mr *mr = t->verbs->reg_mr(t->a.pd, at, bytes, access);
    int err = errno;
    if (mr)
        t->verbs->dereg_mr(mr);
    expect(t, !mr, "reg_mr %s succeeds", why);
    expect(t, err == EINVAL || err == EFAULT || err == ENOMEM, "reg_mr %s: %s", why, strerror(err));
}

static void remote_write_needs_local_write(struct trial *t)
{
    void *memory = trial_memory(t, 4096);
    refuse_region(t, memory, 4096, IBV_ACCESS_REMOTE_WRITE, "remote write without local write");
    refuse_region(t, memory, 4096, IBV_ACCESS_REMOTE_ATOMIC, "remote atomic without local write");
}

static void regions_that_cannot_be_are_refused(struct trial *t)
{
    void *memory = trial_memory(t, 4096);
    refuse_region(t, memory, SIZE_MAX - 4096, IBV_ACCESS_LOCAL_WRITE, "that wraps around");
    refuse_region(t, (void *)0x10000, 4096, IBV_ACCESS_LOCAL_WRITE, "of unmapped memory");
}

static void regions_may_overlap(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_mr *reader = trial_mr(t, t->b.pd, t->b.memory, t->b.bytes, IBV_ACCESS_REMOTE_READ);
    struct work w;
    prepare(t, &w, IBV_WR_RDMA_WRITE);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 4096, 8);
    work_make(t, &w, IBV_WR_RDMA_READ, &t->a, 64, &t->b.address, 4096, 8);
    set_remote(&w, t->b.address.memory + 4096, reader->rkey);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->b, 4096, &t->a, 64, 8);
    prepare(t, &w, IBV_WR_RDMA_WRITE);
    set_remote(&w, t->b.address.memory + 4096, reader->rkey);
    fails(t, &w, IBV_WC_REM_ACCESS_ERR);
}

#define EACH(text, function)                                                                       \
    {.name = text ": WRITE", .run = (function), .parameter = IBV_WR_RDMA_WRITE},                   \
    {                                                                                              \
        .name = text ": READ", .run = (function), .parameter = IBV_WR_RDMA_READ                    \
    }
#define EACH_AND_ATOMIC(text, function)                                                            \
    EACH(text, function),                                                                          \
    {                                                                                              \
        .name = text ": FETCH_AND_ADD", .run = (function),                                         \
        .parameter = IBV_WR_ATOMIC_FETCH_AND_ADD                                                   \
    }
#define BOUND(text, function, operation, where)                                                    \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (operation), .size = (where)               \
    }

static const struct check checks[] = {
    EACH_AND_ATOMIC("a bad lkey", bad_lkey),
    {.name = "a bad lkey: SEND", .run = bad_lkey, .parameter = IBV_WR_SEND},
    EACH_AND_ATOMIC("a bad rkey", bad_rkey),
    EACH("the lkey of a deregistered region", deregistered_lkey),
    EACH_AND_ATOMIC("the rkey of a deregistered region", deregistered_rkey),
    {.name = "an old key stays dead", .run = an_old_key_stays_dead},
    {.name = "the lkey of another PD", .run = lkey_of_another_pd},
    EACH_AND_ATOMIC("the rkey of another PD", rkey_of_another_pd),
    BOUND("the first bytes of a region: WRITE", remote_bounds, IBV_WR_RDMA_WRITE, AT_START),
    BOUND("the last bytes of a region: WRITE", remote_bounds, IBV_WR_RDMA_WRITE, AT_END),
    BOUND("1 byte before a region: WRITE", remote_bounds, IBV_WR_RDMA_WRITE, BEFORE),
    BOUND("1 byte past a region: WRITE", remote_bounds, IBV_WR_RDMA_WRITE, PAST),
    BOUND("far away from a region: WRITE", remote_bounds, IBV_WR_RDMA_WRITE, FAR_AWAY),
    BOUND("around the end of addresses: WRITE", remote_bounds, IBV_WR_RDMA_WRITE, WRAPPING),
    BOUND("the last bytes of a region: READ", remote_bounds, IBV_WR_RDMA_READ, AT_END),
    BOUND("1 byte before a region: READ", remote_bounds, IBV_WR_RDMA_READ, BEFORE),
    BOUND("1 byte past a region: READ", remote_bounds, IBV_WR_RDMA_READ, PAST),
    BOUND("around the end of addresses: READ", remote_bounds, IBV_WR_RDMA_READ, WRAPPING),
    BOUND("1 byte before a local region: WRITE", local_bounds, IBV_WR_RDMA_WRITE, BEFORE),
    BOUND("1 byte past a local region: WRITE", local_bounds, IBV_WR_RDMA_WRITE, PAST),
    BOUND("around the end of local addresses: WRITE", local_bounds, IBV_WR_RDMA_WRITE, WRAPPING),
    BOUND("1 byte past a local region: READ", local_bounds, IBV_WR_RDMA_READ, PAST),
    {.name = "a bad second piece is found", .run = a_bad_second_piece_is_found},
    EACH_AND_ATOMIC("a region without the right", region_without_right),
    EACH_AND_ATOMIC("a region with only its right", region_with_only_its_right),
    EACH_AND_ATOMIC("a queue pair without the right", queue_pair_without_right),
    {.name = "no local write: READ", .run = no_local_write, .parameter = IBV_WR_RDMA_READ},
    {.name = "no local write: FETCH_AND_ADD",
     .run = no_local_write,
     .parameter = IBV_WR_ATOMIC_FETCH_AND_ADD},
    {.name = "sending needs no right", .run = local_read_needs_no_right},
    EACH("zero length needs no key", zero_length_needs_no_key),
    {.name = "remote write needs local write", .run = remote_write_needs_local_write},
    {.name = "regions that cannot be are refused", .run = regions_that_cannot_be_are_refused},
    {.name = "regions may overlap", .run = regions_may_overlap},
};

const struct check_group keys_checks = GROUP("keys, bounds and rights", checks);
