/* SPDX-License-Identifier: MIT */
/* softnic's own tests: what belongs to this NIC alone. The rest is in the conformance suite. */
#include "transport/softnic/softnic.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
/* CMocka needs the ones above first. */
#include <cmocka.h>

enum { BYTES = 1 << 16 };

/* One side of a connection. */
struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *memory;
};

/* What the other side must know. */
struct address {
    union ibv_gid gid;
    uint32_t qpn, rkey;
    uint64_t memory;
};

static uint64_t hand_ns(void *clock)
{
    return *(uint64_t *)clock;
}

static const char *port_name(char *name, size_t size, const char *what)
{
    snprintf(name, size, "test-%s-%d", what, (int)getpid());
    return name;
}

static void side_open(struct side *s, const struct softnic_attr *attr, uint8_t *memory)
{
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                       IBV_ACCESS_REMOTE_ATOMIC;
    s->context = softnic_open_port(attr);
    assert_non_null(s->context);
    s->pd = softnic_alloc_pd(s->context);
    assert_non_null(s->pd);
    s->cq = softnic_create_cq(s->context, 256, NULL, NULL, 0);
    assert_non_null(s->cq);
    s->memory = memory;
    s->mr = softnic_reg_mr(s->pd, memory, BYTES, access);
    assert_non_null(s->mr);
    struct ibv_qp_init_attr init = {.send_cq = s->cq,
                                    .recv_cq = s->cq,
                                    .cap = {.max_send_wr = 64,
                                            .max_recv_wr = 64,
                                            .max_send_sge = 2,
                                            .max_recv_sge = 2,
                                            .max_inline_data = 64},
                                    .qp_type = IBV_QPT_RC};
    s->qp = softnic_create_qp(s->pd, &init);
    assert_non_null(s->qp);
}

static void side_close(struct side *s)
{
    assert_int_equal(softnic_destroy_qp(s->qp), 0);
    assert_int_equal(softnic_dereg_mr(s->mr), 0);
    assert_int_equal(softnic_destroy_cq(s->cq), 0);
    assert_int_equal(softnic_dealloc_pd(s->pd), 0);
    assert_int_equal(softnic_close_device(s->context), 0);
}

static struct address side_address(const struct side *s)
{
    struct address a = {
        .qpn = s->qp->qp_num, .rkey = s->mr->rkey, .memory = (uint64_t)(uintptr_t)s->memory};
    assert_int_equal(softnic_query_gid(s->context, 1, 1, &a.gid), 0);
    return a;
}

static void side_connect(struct side *s, const struct address *to)
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};
    assert_int_equal(
        softnic_modify_qp(s->qp, &init,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        0);
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = to->qpn,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .sgid_index = 1}}};
    assert_int_equal(softnic_modify_qp(s->qp, &rtr,
                                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                           IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                     0);
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 7, .rnr_retry = 3, .max_rd_atomic = 16};
    assert_int_equal(softnic_modify_qp(s->qp, &rts,
                                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                           IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                           IBV_QP_MAX_QP_RD_ATOMIC),
                     0);
}

static int side_write(struct side *s, const struct address *to, uint64_t wr_id, size_t bytes)
{
    struct ibv_sge sge = {(uint64_t)(uintptr_t)s->memory, (uint32_t)bytes, s->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {to->memory, to->rkey}};
    struct ibv_send_wr *bad;
    return softnic_post_send(s->qp, &wr, &bad);
}

static struct ibv_wc poll_one(struct side *s)
{
    struct ibv_wc wc;
    int n;
    while ((n = softnic_poll_cq(s->cq, 1, &wc)) == 0)
        usleep(10);
    assert_int_equal(n, 1);
    return wc;
}

static uint8_t *shared_memory(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(memory != MAP_FAILED);
    return memory; /* fd stays open: peers map the region through it */
}

static void file_of(struct ibv_context *context, char *path, size_t size)
{
    union ibv_gid gid;
    assert_int_equal(softnic_query_gid(context, 1, 1, &gid), 0);
    snprintf(path, size, "/dev/shm/softnic-%u-%u.%u.%u.%u", (unsigned)geteuid(), gid.raw[12],
             gid.raw[13], gid.raw[14], gid.raw[15]);
    assert_int_equal(access(path, F_OK), 0);
}

static void test_two_in_one_process(void **state)
{
    static uint8_t a_memory[BYTES], b_memory[BYTES];
    char name[64], path[96];
    struct softnic_attr attr = {.port_name = port_name(name, sizeof name, "one")};
    struct side a, b;
    (void)state;
    side_open(&a, &attr, a_memory);
    side_open(&b, &attr, b_memory);
    struct address to_a = side_address(&a), to_b = side_address(&b);
    side_connect(&a, &to_b);
    side_connect(&b, &to_a);
    for (unsigned i = 0; i < BYTES; i++)
        a_memory[i] = (uint8_t)(i * 7 + 1);
    assert_int_equal(side_write(&a, &to_b, 42, BYTES), 0);
    struct ibv_wc wc = poll_one(&a);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_int_equal(wc.wr_id, 42);
    assert_int_equal(wc.opcode, IBV_WC_RDMA_WRITE);
    assert_memory_equal(a_memory, b_memory, BYTES);
    file_of(a.context, path, sizeof path);
    side_close(&a);
    assert_int_equal(access(path, F_OK), 0);
    side_close(&b);
    assert_int_equal(access(path, F_OK), -1);
}

/* The child writes into us, tells us, and is killed; what we then send fails. */
static void child_main(const char *name, int in, int out, bool shared)
{
    struct softnic_attr attr = {.port_name = name};
    struct side s;
    struct address to, own;
    uint8_t *memory = shared ? shared_memory() : malloc(BYTES);
    side_open(&s, &attr, memory);
    own = side_address(&s);
    if (write(out, &own, sizeof own) != sizeof own || read(in, &to, sizeof to) != sizeof to)
        _exit(1);
    side_connect(&s, &to);
    memset(memory, 0x5a, BYTES);
    if (side_write(&s, &to, 1, BYTES) != 0 || poll_one(&s).status != IBV_WC_SUCCESS)
        _exit(2);
    if (write(out, "k", 1) != 1)
        _exit(3);
    for (;;)
        pause();
}

static void with_child(bool shared)
{
    char name[64], byte;
    int down[2], up[2];
    struct side s;
    struct address to, own;
    port_name(name, sizeof name, shared ? "mapped" : "private");
    assert_int_equal(pipe(down) | pipe(up), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        child_main(name, down[0], up[1], shared);
    struct softnic_attr attr = {.port_name = name};
    uint8_t *memory = shared ? shared_memory() : calloc(1, BYTES);
    side_open(&s, &attr, memory);
    own = side_address(&s);
    assert_int_equal(read(up[0], &to, sizeof to), sizeof to);
    side_connect(&s, &to);
    assert_int_equal(write(down[1], &own, sizeof own), sizeof own);
    assert_int_equal(read(up[0], &byte, 1), 1);
    for (unsigned i = 0; i < BYTES; i++)
        assert_int_equal(memory[i], 0x5a);
    assert_int_equal(side_write(&s, &to, 7, BYTES), 0);
    assert_int_equal(poll_one(&s).status, IBV_WC_SUCCESS);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(side_write(&s, &to, 8, 8), 0);
    struct ibv_wc wc = poll_one(&s);
    assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(wc.wr_id, 8);
    char path[96];
    file_of(s.context, path, sizeof path);
    side_close(&s);
    assert_int_equal(access(path, F_OK), -1);
    if (shared)
        munmap(memory, BYTES);
    else
        free(memory);
}

static void test_processes_mapped(void **state)
{
    (void)state;
    with_child(true);
}

static void test_processes_private(void **state)
{
    (void)state;
    with_child(false);
}

/* The formula at the head of softnic.h, on a clock that only the test moves. */
static void test_wire(void **state)
{
    static uint8_t a_memory[BYTES], b_memory[BYTES];
    char name_a[64], name_b[64];
    uint64_t clock = 1000000;
    struct softnic_wire wire = {.alpha_us = 10, .gap_us = 2, .beta_gbps = 1};
    struct softnic_attr attr = {.wire = &wire, .now_ns = hand_ns, .clock = &clock};
    struct side a, b;
    struct ibv_wc wc;
    (void)state;
    attr.port_name = port_name(name_a, sizeof name_a, "wire-a");
    side_open(&a, &attr, a_memory);
    attr.port_name = port_name(name_b, sizeof name_b, "wire-b");
    side_open(&b, &attr, b_memory);
    struct address to_a = side_address(&a), to_b = side_address(&b);
    side_connect(&a, &to_b);
    side_connect(&b, &to_a);
    /* Alone: alpha + S/beta. */
    assert_int_equal(side_write(&a, &to_b, 1, 1000), 0);
    clock += 10999;
    assert_int_equal(softnic_poll_cq(a.cq, 1, &wc), 0);
    clock += 1;
    assert_int_equal(softnic_poll_cq(a.cq, 1, &wc), 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    /* A stream: gap + S/beta apart, entering when there is room before alpha. */
    clock += 1000000;
    uint64_t start = clock;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(side_write(&a, &to_b, i, 4000), 0);
    for (unsigned i = 0; i < 10; i++) {
        uint64_t due = start + i * 6000 + 10000 + 4000;
        while (clock < due) {
            assert_int_equal(softnic_poll_cq(a.cq, 1, &wc), 0);
            clock += 500;
        }
        clock = due;
        assert_int_equal(softnic_poll_cq(a.cq, 1, &wc), 1);
        assert_int_equal(wc.wr_id, i);
    }
    side_close(&a);
    side_close(&b);
}

/* A pair on ports of one shape, and the clock that the test moves. */
struct shaped {
    uint64_t clock;
    struct softnic_wire wire;
    struct side a, b;
    struct address to_a, to_b;
    uint8_t a_memory[BYTES], b_memory[BYTES];
};

static struct shaped *shaped_open(const char *what, bool one_port)
{
    char name[64];
    struct shaped *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->clock = 5000000;
    s->wire = (struct softnic_wire){.alpha_us = 10, .gap_us = 2, .beta_gbps = 1};
    struct softnic_attr attr = {.wire = &s->wire, .now_ns = hand_ns, .clock = &s->clock};
    attr.port_name = port_name(name, sizeof name, what);
    side_open(&s->a, &attr, s->a_memory);
    if (!one_port)
        strcat(name, "-b");
    side_open(&s->b, &attr, s->b_memory);
    s->to_a = side_address(&s->a);
    s->to_b = side_address(&s->b);
    side_connect(&s->a, &s->to_b);
    side_connect(&s->b, &s->to_a);
    return s;
}

static void shaped_close(struct shaped *s)
{
    side_close(&s->a);
    side_close(&s->b);
    free(s);
}

/* Nothing at due - 1, one at due. */
static struct ibv_wc due_at(struct shaped *s, struct side *side, uint64_t due)
{
    struct ibv_wc wc;
    assert_true(s->clock < due);
    s->clock = due - 1;
    assert_int_equal(softnic_poll_cq(side->cq, 1, &wc), 0);
    s->clock = due;
    assert_int_equal(softnic_poll_cq(side->cq, 1, &wc), 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    return wc;
}

/* A READ goes there and back, and its bytes come in at the reader's own port. */
static void test_wire_read(void **state)
{
    struct shaped *s = shaped_open("read", false);
    (void)state;
    memset(s->b_memory, 0x33, BYTES);
    struct ibv_sge sge = {(uint64_t)(uintptr_t)s->a_memory, 5000, s->a.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 3,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {s->to_b.memory, s->to_b.rkey}};
    struct ibv_send_wr *bad;
    uint64_t start = s->clock;
    assert_int_equal(softnic_post_send(s->a.qp, &wr, &bad), 0);
    assert_int_equal(side_write(&s->a, &s->to_b, 4, 1000), 0);
    assert_int_equal(due_at(s, &s->a, start + 25000).wr_id, 3);
    /* The write, after the gap alone, was done at 2 + 10 + 1, but follows in order. */
    struct ibv_wc wc;
    assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 1);
    assert_int_equal(wc.wr_id, 4);
    assert_memory_equal(s->a_memory, s->b_memory, 1000);
    shaped_close(s);
}

/* Two that write to each other through one port share its sending and its receiving side. */
static void test_wire_shared_port(void **state)
{
    struct shaped *s = shaped_open("shared", true);
    (void)state;
    uint64_t start = s->clock;
    assert_int_equal(side_write(&s->a, &s->to_b, 1, 3000), 0);
    assert_int_equal(side_write(&s->b, &s->to_a, 2, 3000), 0);
    assert_int_equal(due_at(s, &s->a, start + 13000).wr_id, 1);
    /* It started when the first had gone, 2 + 3 later. */
    assert_int_equal(due_at(s, &s->b, start + 18000).wr_id, 2);
    shaped_close(s);
}

/* A receiver sees the arrival when it is due, not before. */
static void test_wire_arrival(void **state)
{
    struct shaped *s = shaped_open("arrival", false);
    struct ibv_sge sge = {(uint64_t)(uintptr_t)s->a_memory, 100, s->a.mr->lkey};
    struct ibv_recv_wr recv = {.wr_id = 9}, *bad_recv;
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                             .imm_data = 77,
                             .wr.rdma = {s->to_b.memory, s->to_b.rkey}};
    struct ibv_send_wr *bad;
    (void)state;
    assert_int_equal(softnic_post_recv(s->b.qp, &recv, &bad_recv), 0);
    uint64_t start = s->clock;
    assert_int_equal(softnic_post_send(s->a.qp, &wr, &bad), 0);
    struct ibv_wc wc = due_at(s, &s->b, start + 10100);
    assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_int_equal(wc.wr_id, 9);
    assert_int_equal(wc.imm_data, 77);
    assert_int_equal(wc.byte_len, 100);
    shaped_close(s);
}

/* A lone message does not wait behind a deep queue of another queue pair: they take turns. */
static void test_wire_turns(void **state)
{
    struct shaped *s = shaped_open("turns", false);
    struct ibv_qp *deep = s->a.qp, *far = s->b.qp;
    struct ibv_qp_init_attr init = {.send_cq = s->a.cq,
                                    .recv_cq = s->a.cq,
                                    .cap = {.max_send_wr = 4, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    (void)state;
    uint64_t start = s->clock;
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(side_write(&s->a, &s->to_b, i, 4000), 0);
    s->a.qp = softnic_create_qp(s->a.pd, &init);
    init.send_cq = init.recv_cq = s->b.cq;
    s->b.qp = softnic_create_qp(s->b.pd, &init);
    assert_non_null(s->a.qp);
    assert_non_null(s->b.qp);
    struct address lone_b = side_address(&s->b), lone_a = side_address(&s->a);
    side_connect(&s->a, &lone_b);
    side_connect(&s->b, &lone_a);
    assert_int_equal(side_write(&s->a, &lone_b, 1000, 4000), 0);
    /* At start 0 and 6 us two of the deep queue were let in (12 > alpha); then turns begin. */
    unsigned place = 0;
    for (bool seen = false; !seen; place++) {
        struct ibv_wc wc;
        while (softnic_poll_cq(s->a.cq, 1, &wc) == 0)
            s->clock += 100;
        seen = wc.wr_id == 1000;
        assert_true(place < 5);
    }
    assert_true(s->clock < start + 5 * 6000 + 14000);
    assert_int_equal(softnic_destroy_qp(s->a.qp), 0);
    assert_int_equal(softnic_destroy_qp(s->b.qp), 0);
    s->a.qp = deep;
    s->b.qp = far;
    shaped_close(s);
}

/* A peer that is not there ends in RETRY_EXC_ERR at 4.096 us * 2^timeout * (retries + 1). */
static void test_absent_peer(void **state)
{
    struct shaped *s = shaped_open("absent", false);
    struct ibv_wc wc;
    (void)state;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    assert_int_equal(softnic_modify_qp(s->b.qp, &reset, IBV_QP_STATE), 0);
    uint64_t start = s->clock, limit = (4096u << 8) * 8;
    assert_int_equal(side_write(&s->a, &s->to_b, 5, 8), 0);
    s->clock = start + limit - 1;
    assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 0);
    s->clock = start + limit;
    assert_int_equal(softnic_poll_cq(s->a.cq, 1, &wc), 1);
    assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(wc.wr_id, 5);
    shaped_close(s);
}

/* What a killed process left is cleared when any port of the user is opened next. */
static void test_leftovers(void **state)
{
    static uint8_t memory[BYTES];
    char name[64], path[96] = "";
    int up[2];
    struct side s;
    (void)state;
    assert_int_equal(pipe(up), 0);
    port_name(name, sizeof name, "left");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct softnic_attr attr = {.port_name = name};
        side_open(&s, &attr, memory);
        file_of(s.context, path, sizeof path);
        if (write(up[1], path, sizeof path) != sizeof path)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(up[0], path, sizeof path), sizeof path);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    struct softnic_attr attr = {.port_name = port_name(name, sizeof name, "next")};
    side_open(&s, &attr, memory);
    assert_int_equal(access(path, F_OK), -1);
    side_close(&s);
    close(up[0]);
    close(up[1]);
}

static void test_wire_of_others(void **state)
{
    static uint8_t memory[BYTES];
    char name[64], error[256] = "";
    struct softnic_wire wire = {.alpha_us = 3}, other = {.alpha_us = 4}, got;
    struct softnic_attr attr = {.port_name = port_name(name, sizeof name, "busy"),
                                .wire = &wire,
                                .error = error,
                                .error_size = sizeof error};
    struct side s;
    (void)state;
    side_open(&s, &attr, memory);
    attr.wire = &other;
    errno = 0;
    assert_null(softnic_open_port(&attr));
    assert_int_equal(errno, EBUSY);
    assert_true(strlen(error) > 0);
    assert_int_equal(softnic_set_wire(s.context, &other), 0);
    assert_int_equal(softnic_get_wire(s.context, &got), 0);
    assert_true(got.alpha_us == 4 && got.gap_us == 0 && got.beta_gbps == 0);
    other.beta_gbps = -1;
    assert_int_equal(softnic_set_wire(s.context, &other), EINVAL);
    side_close(&s);
}

/* In a child the parent's port is refused, with a sentence. */
static void test_child_is_refused(void **state)
{
    static uint8_t memory[BYTES];
    char name[64];
    struct softnic_attr attr = {.port_name = port_name(name, sizeof name, "fork")};
    struct side s;
    int status;
    (void)state;
    side_open(&s, &attr, memory);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct ibv_wc wc;
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(3);
        if (softnic_poll_cq(s.cq, 1, &wc) != -1)
            _exit(1);
        _exit(strstr(softnic_last_error(s.context), "after fork") != NULL ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    side_close(&s);
}

static void test_bad_names(void **state)
{
    static const char *const names[] = {"", "a/b", "a b", "\x80",
                                        "0123456789012345678901234567890123456789012345678901234567"
                                        "890123"};
    (void)state;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        char error[256] = "";
        struct softnic_attr attr = {
            .port_name = names[i], .error = error, .error_size = sizeof error};
        errno = 0;
        assert_null(softnic_open_port(&attr));
        assert_int_equal(errno, EINVAL);
        assert_true(strlen(error) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_in_one_process), cmocka_unit_test(test_processes_mapped),
        cmocka_unit_test(test_processes_private),  cmocka_unit_test(test_wire),
        cmocka_unit_test(test_wire_read),          cmocka_unit_test(test_wire_shared_port),
        cmocka_unit_test(test_wire_arrival),       cmocka_unit_test(test_wire_turns),
        cmocka_unit_test(test_wire_of_others),     cmocka_unit_test(test_absent_peer),
        cmocka_unit_test(test_leftovers),          cmocka_unit_test(test_child_is_refused),
        cmocka_unit_test(test_bad_names),
    };
    return cmocka_run_group_tests_name("softnic", tests, NULL, NULL);
}
