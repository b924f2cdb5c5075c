/* SPDX-License-Identifier: MIT */
/* Kinds of memory, each at both ends of every operation. */
#include "tests/conformance.h"
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 16384 };

static void add_one(struct trial *t, struct side *from, struct side *to)
{
    struct work w;
    uint64_t word;
    work_make(t, &w, IBV_WR_ATOMIC_FETCH_AND_ADD, from, 9000, &to->address, 9008, 8);
    w.wr.wr.atomic.compare_add = 1;
    post(t, from, &w);
    expect_sent(t, from, &w, IBV_WC_SUCCESS);
    expect_copy(to, 9008, from, 9000, 8);
    memcpy(&word, to->expected + 9008, sizeof word);
    word++;
    memcpy(to->expected + 9008, &word, sizeof word);
}

static void move_bytes(struct trial *t, struct side *from, struct side *to)
{
    struct work w;
    struct receive r;
    payload(t, from, 0, 3000);
    work_make(t, &w, IBV_WR_RDMA_WRITE, from, 3, &to->address, 3001, 999);
    post(t, from, &w);
    expect_sent(t, from, &w, IBV_WC_SUCCESS);
    expect_copy(from, 3, to, 3001, 999);
    work_make(t, &w, IBV_WR_RDMA_READ, to, 5001, &from->address, 7, 999);
    post(t, to, &w);
    expect_sent(t, to, &w, IBV_WC_SUCCESS);
    expect_copy(from, 7, to, 5001, 999);
    receive_make(t, &r, to, 7001, 999);
    post_receive(t, to, &r);
    work_make(t, &w, IBV_WR_SEND, from, 11, &to->address, 0, 999);
    post(t, from, &w);
    expect_received(t, to, &r, IBV_WC_SUCCESS);
    expect_sent(t, from, &w, IBV_WC_SUCCESS);
    expect_copy(from, 11, to, 7001, 999);
}

static void every_operation(struct trial *t, void *memory)
{
    struct options o = default_options();
    o.memory = memory;
    o.memory_bytes = BYTES;
    trial_connect(t, &o);
    struct side *sides[] = {&t->a, &t->b};
    for (size_t i = 0; i < 2; i++) {
        move_bytes(t, sides[i], sides[1 - i]);
        add_one(t, sides[i], sides[1 - i]);
        expect_memory(t, &t->a, "a");
        expect_memory(t, &t->b, "b");
    }
}

static void heap(struct trial *t)
{
    every_operation(t, trial_memory(t, BYTES));
}

static void *mapping(struct trial *t, int flags)
{
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    expect(t, memory != MAP_FAILED, "mmap: %s", strerror(errno));
    trial_track(t, MAPPING, memory, BYTES);
    return memory;
}

static void private_mapping(struct trial *t)
{
    every_operation(t, mapping(t, MAP_PRIVATE));
}

static void shared_anonymous_mapping(struct trial *t)
{
    every_operation(t, mapping(t, MAP_SHARED));
}

static void memfd(struct trial *t)
{
    every_operation(t, memfd_memory(t, BYTES));
}

/* The region is undone here, while the memory still is. */
static void stack(struct trial *t)
{
    _Alignas(64) uint8_t memory[BYTES];
    every_operation(t, memory);
    destroy_qp(t, t->a.qp);
    destroy_qp(t, t->b.qp);
    deregister(t, t->a.mr);
}

static void static_memory(struct trial *t)
{
    static _Alignas(64) uint8_t memory[BYTES];
    every_operation(t, memory);
}

/* A region over two kinds of pages: a part in its middle is a memfd. */
static void mixed_pages(struct trial *t)
{
    uint8_t *memory = mapping(t, MAP_PRIVATE);
    int fd = memfd_create("conformance", MFD_CLOEXEC);
    expect(t, fd >= 0 && !ftruncate(fd, 4096), "memfd: %s", strerror(errno));
    void *middle = mmap(memory + 4096, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    close(fd);
    expect(t, middle != MAP_FAILED, "mmap: %s", strerror(errno));
    every_operation(t, memory);
}

/* What cannot be written can be sent from, and be read by a peer. */
static void read_only_memory(struct trial *t)
{
    trial_connect(t, NULL);
    uint8_t *memory = mapping(t, MAP_PRIVATE);
    memset(memory, 0x3c, BYTES);
    expect(t, !mprotect(memory, BYTES, PROT_READ), "mprotect: %s", strerror(errno));
    struct ibv_mr *mr = trial_mr(t, t->a.pd, memory, BYTES, IBV_ACCESS_REMOTE_READ);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 100, 500);
    w.sge[0] = (struct ibv_sge){(uintptr_t)memory, 500, mr->lkey};
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    struct address there = t->a.address;
    there.memory = (uintptr_t)memory;
    there.rkey = mr->rkey;
    work_make(t, &w, IBV_WR_RDMA_READ, &t->b, 1000, &there, 0, 500);
    post(t, &t->b, &w);
    expect_sent(t, &t->b, &w, IBV_WC_SUCCESS);
    memset(t->b.expected + 100, 0x3c, 500);
    memset(t->b.expected + 1000, 0x3c, 500);
    expect_memory(t, &t->b, "b");
}

/* Source and target within one region. */
static void one_region_at_both_ends(struct trial *t)
{
    pair_make(t, NULL);
    bring(t, &t->a, &t->a.address, IBV_QPS_RTS);
    struct work w;
    for (size_t i = 0; i < 8; i++) {
        payload(t, &t->a, 0, 1000);
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->a.address, 1000 + i * 1000, 1000);
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
        expect_copy(&t->a, 0, &t->a, 1000 + i * 1000, 1000);
    }
    expect_memory(t, &t->a, "a");
}

static void a_region_of_64_mebibytes(struct trial *t)
{
    struct options o = default_options();
    o.memory_bytes = 64u << 20;
    trial_connect(t, &o);
    struct work w;
    size_t last = o.memory_bytes - 5000;
    payload(t, &t->a, last, 5000);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, last, &t->b.address, last, 5000);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, last, &t->b, last, 5000);
    expect(t, !memcmp(t->b.memory, t->b.expected, o.memory_bytes), "the contents differ");
}

static const struct check checks[] = {
    {.name = "the heap", .run = heap},
    {.name = "a private mapping", .run = private_mapping},
    {.name = "a shared anonymous mapping", .run = shared_anonymous_mapping},
    {.name = "a memfd", .run = memfd},
    {.name = "the stack", .run = stack},
    {.name = "static memory", .run = static_memory},
    {.name = "mixed pages", .run = mixed_pages},
    {.name = "read-only memory", .run = read_only_memory},
    {.name = "one region at both ends", .run = one_region_at_both_ends},
    {.name = "a region of 64 MiB", .run = a_region_of_64_mebibytes},
};

const struct check_group memory_checks = GROUP("memory", checks);
