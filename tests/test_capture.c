/* SPDX-License-Identifier: MIT */
/* A capture holds the frames of what was sent, each one as it should be on the wire. */
#include "collectives/collectives.h"
#include "tests/fault_pair.h"
#include "tests/pcapng.h"
#include "tests/ranks.h"
#include "transport/softnic/softnic.h"
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    SEND_ONLY = 4,
    SEND_LAST_IMM = 3,
    WRITE_FIRST = 6,
    WRITE_MIDDLE,
    WRITE_LAST,
    WRITE_LAST_IMM
};
enum { WRITE_ONLY = 10, WRITE_ONLY_IMM, READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST };
enum { READ_ONLY = 16, ACK, ATOMIC_ACK, COMPARE_SWAP, FETCH_ADD };

static char path[64];

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/sstar-capture-%d.pcapng", (int)getpid());
    unlink(path);
    return 0;
}

static int remove_path(void **state)
{
    (void)state;
    unlink(path);
    return unsetenv("SOFTNIC_CAPTURE") || unsetenv("SOFTNIC_CAPTURE_SNAP") ||
           unsetenv("SOFTNIC_CAPTURE_LIMIT");
}

static void read_back(struct frames *f)
{
    const char *wrong = frames_read(f, path);
    if (wrong)
        fail_msg("frame %d: %s", f->n, wrong);
}

/* A frame that a ConnectX-4 Lx sent: what we hold to be its ICRC is. */
static void test_known_frame(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {
        0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00, 0x45,
        0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01,
        0x0a, 0x00, 0x12, 0x01, 0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00, 0xff,
        0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x82, 0xfd, 0x00, 0x2a};
    struct frame frame;
    uint8_t spoilt[sizeof bytes];
    assert_null(frame_check(bytes, sizeof bytes, &frame));
    memcpy(spoilt, bytes, sizeof bytes);
    spoilt[60] ^= 1;
    assert_string_equal(frame_check(spoilt, sizeof spoilt, &frame), "ICRC");
}

/* ---- each operation -------------------------------------------------------------------------- */

static void post(struct fault_pair *p, struct ibv_send_wr *wr, size_t at, uint32_t bytes)
{
    struct ibv_sge sge[2] = {
        {(uintptr_t)p->a.memory + at, bytes / 3, p->a.mr->lkey},
        {(uintptr_t)p->a.memory + at + bytes / 3, bytes - bytes / 3, p->a.mr->lkey}};
    bool atomic = wr->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP;
    struct ibv_send_wr *bad;
    if (atomic)
        sge[0].length = bytes;
    wr->sg_list = sge;
    wr->num_sge = atomic ? 1 : 2;
    wr->send_flags |= IBV_SEND_SIGNALED;
    assert_int_equal(p->a.verbs->post_send(p->a.qp, wr, &bad), 0);
    fault_expect(&p->a, wr->wr_id, IBV_WC_SUCCESS);
}

static struct ibv_send_wr rdma(const struct fault_pair *p, enum ibv_wr_opcode opcode, size_t at)
{
    return (struct ibv_send_wr){.wr_id = 7,
                                .opcode = opcode,
                                .imm_data = htobe32(0x01020304),
                                .wr.rdma = {(uintptr_t)p->b.memory + at, p->b.mr->rkey}};
}

/* The next frame must be this one, from a to b or back. */
struct reading {
    const struct fault_pair *pair;
    struct frames frames;
    int at;
};

static const struct frame *next(struct reading *r, uint8_t opcode, bool from_a, uint32_t psn,
                                uint32_t payload_bytes)
{
    assert_true(r->at < r->frames.n);
    const struct frame *f = &r->frames.frame[r->at++];
    assert_int_equal(f->opcode, opcode);
    assert_int_equal(f->qpn, (from_a ? &r->pair->b : &r->pair->a)->qp->qp_num);
    assert_int_equal(f->psn, psn);
    assert_int_equal(f->payload_bytes, payload_bytes);
    assert_false(f->ipv6);
    return f;
}

static void expect_ack(struct reading *r, uint32_t psn, uint32_t msn)
{
    const struct frame *f = next(r, ACK, false, psn, 0);
    assert_int_equal(f->extended[0], 0x1f);
    assert_int_equal(be_read(f->extended + 1, 3), msn);
}

/* MTU 1024: 1, 3 and 3 packets; then 2 of a message to a receive; then a READ and two atomics. */
static void send_all(struct fault_pair *p)
{
    struct ibv_send_wr wr = rdma(p, IBV_WR_RDMA_WRITE, 0);
    post(p, &wr, 0, 1023);
    wr = rdma(p, IBV_WR_RDMA_WRITE, 1024);
    post(p, &wr, 1024, 2049);
    fault_pair_receive(p, 1);
    wr = rdma(p, IBV_WR_RDMA_WRITE_WITH_IMM, 8192);
    wr.send_flags = IBV_SEND_SOLICITED;
    post(p, &wr, 8192, 3072);
    fault_pair_receive(p, 2);
    wr = rdma(p, IBV_WR_SEND_WITH_IMM, 0);
    post(p, &wr, 0, 1026);
    wr = rdma(p, IBV_WR_RDMA_WRITE, 0);
    post(p, &wr, 0, 0);
    wr = rdma(p, IBV_WR_RDMA_READ, 4096);
    post(p, &wr, 16384, 2500);
    wr = (struct ibv_send_wr){.wr_id = 7, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD};
    wr.wr.atomic.remote_addr = (uintptr_t)p->b.memory + 32768;
    wr.wr.atomic.rkey = p->b.mr->rkey;
    wr.wr.atomic.compare_add = 5;
    post(p, &wr, 32768, 8);
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic.swap = 9;
    post(p, &wr, 32776, 8);
}

static void expect_reth(const struct frame *f, const void *address, uint32_t rkey, uint32_t bytes)
{
    assert_int_equal(be_read(f->extended, 8), (uintptr_t)address);
    assert_int_equal(be_read(f->extended + 8, 4), rkey);
    assert_int_equal(be_read(f->extended + 12, 4), bytes);
}

static void expect_writes(struct reading *r, const struct fault_pair *p)
{
    const struct frame *f = next(r, WRITE_ONLY, true, 0, 1023);
    expect_reth(f, p->b.memory, p->b.mr->rkey, 1023);
    assert_memory_equal(f->payload, p->a.memory, 1023);
    assert_true(f->pad == 1 && f->ask);
    expect_ack(r, 0, 1);
    f = next(r, WRITE_FIRST, true, 1, 1024);
    expect_reth(f, p->b.memory + 1024, p->b.mr->rkey, 2049);
    assert_false(f->ask);
    f = next(r, WRITE_MIDDLE, true, 2, 1024);
    assert_memory_equal(f->payload, p->a.memory + 2048, 1024);
    f = next(r, WRITE_LAST, true, 3, 1);
    assert_true(f->payload[0] == p->a.memory[3072] && f->pad == 3 && f->ask);
    expect_ack(r, 3, 2);
    next(r, WRITE_FIRST, true, 4, 1024);
    next(r, WRITE_MIDDLE, true, 5, 1024);
    f = next(r, WRITE_LAST_IMM, true, 6, 1024);
    assert_int_equal(be_read(f->extended, 4), 0x01020304);
    assert_true(f->solicited);
    expect_ack(r, 6, 3);
}

static void expect_rest(struct reading *r, const struct fault_pair *p)
{
    next(r, 0 /* send first */, true, 7, 1024);
    const struct frame *f = next(r, SEND_LAST_IMM, true, 8, 2);
    assert_false(f->solicited);
    expect_ack(r, 8, 4);
    f = next(r, WRITE_ONLY, true, 9, 0);
    assert_int_equal(be_read(f->extended + 12, 4), 0);
    expect_ack(r, 9, 5);
    f = next(r, READ_REQUEST, true, 10, 0);
    expect_reth(f, p->b.memory + 4096, p->b.mr->rkey, 2500);
    f = next(r, READ_FIRST, false, 10, 1024);
    assert_memory_equal(f->payload, p->b.memory + 4096, 1024);
    next(r, READ_MIDDLE, false, 11, 1024);
    f = next(r, READ_LAST, false, 12, 452);
    assert_int_equal(be_read(f->extended + 1, 3), 6);
    f = next(r, FETCH_ADD, true, 13, 0);
    assert_int_equal(be_read(f->extended + 12, 8), 5);
    f = next(r, ATOMIC_ACK, false, 13, 0);
    assert_int_equal(be_read(f->extended + 4, 8), 77);
    f = next(r, COMPARE_SWAP, true, 14, 0);
    assert_true(be_read(f->extended + 12, 8) == 9 && be_read(f->extended + 20, 8) == 5);
    f = next(r, ATOMIC_ACK, false, 14, 0);
    assert_true(be_read(f->extended + 4, 8) == 82 && be_read(f->extended + 1, 3) == 8);
}

static void test_operations(void **state)
{
    (void)state;
    struct fault_pair p;
    setenv("SOFTNIC_CAPTURE", path, 1);
    fault_pair_open(&p, NULL, false);
    for (size_t i = 0; i < PAIR_BYTES; i++)
        p.a.memory[i] = p.b.memory[PAIR_BYTES - 1 - i] = (uint8_t)(i * 7 + i / 256);
    uint64_t value = 77;
    memcpy(p.b.memory + 32768, &value, sizeof value);
    send_all(&p);
    struct reading r = {.pair = &p};
    read_back(&r.frames);
    assert_int_equal(r.frames.interfaces, 2);
    expect_writes(&r, &p);
    expect_rest(&r, &p);
    assert_int_equal(r.at, r.frames.n);
    frames_free(&r.frames);
    fault_pair_close(&p);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    (void)state;
    struct fault_pair p;
    setenv("SOFTNIC_CAPTURE", path, 1);
    fault_pair_open(&p, NULL, false);
    assert_int_equal(fault_pair_send(&p, 1, 10), 0);
    struct ibv_wc wc;
    assert_int_equal(p.a.verbs->poll_cq(p.a.cq, 1, &wc), 0); /* no receive is posted yet */
    fault_pair_receive(&p, 2);
    fault_expect(&p.a, 1, IBV_WC_SUCCESS);
    p.b.mr->rkey++;
    assert_int_equal(fault_pair_write(&p, 3, 0, 10), 0);
    fault_expect(&p.a, 3, IBV_WC_REM_ACCESS_ERR);
    struct reading r = {.pair = &p};
    read_back(&r.frames);
    next(&r, SEND_ONLY, true, 0, 10);
    const struct frame *f = next(&r, ACK, false, 0, 0);
    assert_int_equal(f->extended[0], 0x20 | 12); /* not ready; the timer of the pair */
    next(&r, SEND_ONLY, true, 0, 10);
    expect_ack(&r, 0, 1);
    next(&r, WRITE_ONLY, true, 1, 10);
    f = next(&r, ACK, false, 1, 0);
    assert_int_equal(f->extended[0], 0x62); /* remote access error */
    assert_int_equal(r.at, r.frames.n);
    frames_free(&r.frames);
    fault_pair_close(&p);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void test_snap(void **state)
{
    (void)state;
    struct fault_pair p;
    setenv("SOFTNIC_CAPTURE", path, 1);
    setenv("SOFTNIC_CAPTURE_SNAP", "100", 1);
    fault_pair_open(&p, NULL, false);
    assert_int_equal(fault_pair_write(&p, 1, 0, 1024), 0);
    struct reading r = {.pair = &p};
    read_back(&r.frames);
    const struct frame *f = next(&r, WRITE_ONLY, true, 0, 1024);
    assert_true(f->kept_bytes == 100 && f->wire_bytes == 14 + 20 + 8 + 12 + 16 + 1024 + 4);
    expect_ack(&r, 0, 1);
    frames_free(&r.frames);
    fault_pair_close(&p);
}

/* The capture ends, the run does not, and what is there can be read. */
static void run_beyond(const char *says)
{
    struct fault_pair p;
    setenv("SOFTNIC_CAPTURE", path, 1);
    fault_pair_open(&p, NULL, false);
    for (uint64_t i = 0; i < 64; i++) {
        assert_int_equal(fault_pair_write(&p, i, 0, 4096), 0);
        fault_expect(&p.a, i, IBV_WC_SUCCESS);
    }
    const char *said = softnic_last_error(p.a.context);
    if (!strstr(said, "the capture ends here, the run goes on") || !strstr(said, says))
        fail_msg("said '%s'", said);
    struct frames f;
    read_back(&f);
    assert_true(f.n > 0 && f.n < 64 * 5 && f.file_bytes < 70000);
    frames_free(&f);
    fault_pair_close(&p);
}

static void test_file_full(void **state)
{
    (void)state;
    setenv("SOFTNIC_CAPTURE_LIMIT", "60000", 1);
    run_beyond("SOFTNIC_CAPTURE_LIMIT");
}

static void test_device_full(void **state)
{
    (void)state;
    struct fault_side s = {0};
    char error[256] = "";
    struct softnic_wire unshaped = {0};
    struct softnic_attr attr = {.port_name = "test-capture",
                                .wire = &unshaped,
                                .capture = "/dev/full",
                                .error = error,
                                .error_size = sizeof error};
    errno = 0;
    s.context = softnic_open_port(&attr);
    assert_null(s.context);
    assert_non_null(strstr(error, "/dev/full cannot be written: No space left on device"));
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "something else, of somebody's", 29), 29);
    close(fd);
    attr.capture = path;
    assert_null(softnic_open_port(&attr));
    assert_non_null(strstr(error, "no pcapng file of softnic's; remove it"));
    attr.capture = "/nowhere/file";
    assert_null(softnic_open_port(&attr));
    assert_non_null(strstr(error, "/nowhere/file cannot be opened: No such file"));
}

/* A path is not cut off where some buffer of ours ends. */
static void test_long_path(void **state)
{
    (void)state;
    char directory[300], file[600];
    snprintf(directory, sizeof directory, "%s-%0200d", path, 0);
    snprintf(file, sizeof file, "%s/%0200d.pcapng", directory, 0);
    struct softnic_wire unshaped = {0};
    struct softnic_attr attr = {.port_name = "test-capture", .wire = &unshaped, .capture = file};
    assert_int_equal(mkdir(directory, 0700), 0);
    struct ibv_context *context = softnic_open_port(&attr);
    assert_non_null(context);
    assert_int_equal(access(file, F_OK), 0);
    assert_int_equal(softnic_close_device(context), 0);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(directory), 0); /* nothing else is there */
}

static void interrupted(int signal)
{
    (void)signal;
}

static void *let_go(void *arg)
{
    usleep(100 * 1000);
    flock(*(int *)arg, LOCK_UN);
    return NULL;
}

/* Whoever waits for another to have written goes on waiting when a signal comes. */
static void test_signal(void **state)
{
    (void)state;
    pthread_t thread;
    sigset_t alarm_only, before;
    struct sigaction act = {.sa_handler = interrupted}, old;
    struct softnic_wire unshaped = {0};
    struct softnic_attr attr = {.port_name = "test-capture", .wire = &unshaped, .capture = path};
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, &before); /* the other thread's stay blocked */
    assert_int_equal(pthread_create(&thread, NULL, let_go, &fd), 0);
    assert_int_equal(sigaction(SIGALRM, &act, &old), 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {0};
    setitimer(ITIMER_REAL, &often, NULL);
    struct ibv_context *context = softnic_open_port(&attr);
    setitimer(ITIMER_REAL, &never, NULL);
    pthread_join(thread, NULL);
    assert_non_null(context);
    assert_int_equal(softnic_close_device(context), 0);
    sigaction(SIGALRM, &old, NULL);
    close(fd);
}

/* Limits that are no numbers of bytes are refused, not taken for others. */
static void test_garbage_in_limits(void **state)
{
    (void)state;
    static const char *const names[] = {"SOFTNIC_CAPTURE_SNAP", "SOFTNIC_CAPTURE_LIMIT"};
    static const char *const texts[] = {"-1", "x", "0", " 5", "5k"};
    char error[256];
    struct softnic_wire unshaped = {0};
    struct softnic_attr attr = {.port_name = "test-capture",
                                .wire = &unshaped,
                                .capture = path,
                                .error = error,
                                .error_size = sizeof error};
    for (size_t i = 0; i < 2 * (sizeof texts / sizeof *texts); i++) {
        setenv(names[i % 2], texts[i / 2], 1);
        error[0] = '\0';
        assert_null(softnic_open_port(&attr));
        unsetenv(names[i % 2]);
        if (!strstr(error, names[i % 2]) || !strstr(error, texts[i / 2]))
            fail_msg("of %s=%s: '%s'", names[i % 2], texts[i / 2], error);
    }
}

/* ---- an AllReduce ---------------------------------------------------------------------------- */

enum { COUNT = 40000 };

static int body_allreduce(struct sstar_world *world, void *arg)
{
    struct sstar_counters *counters = arg;
    float *numbers = calloc(COUNT, sizeof *numbers);
    CHECK(numbers != NULL);
    for (int i = 0; i < COUNT; i++)
        numbers[i] = (float)(sstar_rank(world) + 1);
    struct sstar_collective *plan;
    CHECK(sstar_collective_open(world,
                                &(struct sstar_collective_attr){.operation = SSTAR_ALL_REDUCE,
                                                                .algorithm = SSTAR_RING},
                                &plan) == 0);
    CHECK(sstar_collective_run(plan, numbers, numbers, COUNT, SSTAR_FLOAT32, SSTAR_SUM) == 0);
    for (int i = 0; i < COUNT; i++)
        CHECK(numbers[i] == 10);
    free(numbers);
    CHECK(sstar_fast_barrier(world) == 0);
    sstar_counters_read(world, &counters[sstar_rank(world)]);
    sstar_collective_close(plan);
    return 0;
}

struct flow {
    uint32_t qpn, from, psn;
};

/* PSNs of a queue pair follow on each other. */
static void expect_psn(struct flow *flows, int *n, const struct frame *f)
{
    int at = 0;
    while (at < *n && (flows[at].qpn != f->qpn || flows[at].from != f->from))
        at++;
    assert_true(at < 256);
    if (at == *n)
        flows[(*n)++] = (struct flow){f->qpn, f->from, f->psn};
    assert_int_equal(flows[at].psn, f->psn);
    flows[at].psn = (f->psn + 1) & 0xffffff;
}

/* Four ranks of two nodes: as many messages as they say they sent, and their bytes with 16 of a
 * trailer each. Up to 8 bytes are credit, and the end of a link. */
static void test_allreduce(void **state)
{
    (void)state;
    struct sstar_counters counters[4] = {0};
    struct flow flows[256];
    struct frames f;
    int n_flows = 0;
    uint64_t messages = 0, bytes = 0, told_messages = 0, told_bytes = 0;
    setenv("SOFTNIC_CAPTURE", path, 1);
    ranks_expect(
        &(struct ranks){.size = 4, .ranks_per_node = 2, .body = body_allreduce, .arg = counters});
    read_back(&f);
    assert_int_equal(f.interfaces, 2);
    for (int i = 0; i < f.n; i++) {
        const struct frame *x = &f.frame[i];
        if (x->opcode == ACK || (x->opcode == WRITE_ONLY && x->payload_bytes <= 8))
            continue;
        assert_true(x->opcode >= WRITE_FIRST && x->opcode <= WRITE_ONLY);
        messages += x->opcode >= WRITE_LAST;
        bytes += x->payload_bytes;
    }
    for (int i = 0; i < f.n; i++)
        if (f.frame[i].opcode != ACK)
            expect_psn(flows, &n_flows, &f.frame[i]);
    for (int rank = 0; rank < 4; rank++) {
        told_messages += counters[rank].messages;
        told_bytes += counters[rank].bytes;
    }
    assert_true(told_bytes >= 2 * COUNT * sizeof(float));
    assert_int_equal(messages, told_messages);
    assert_int_equal(bytes, told_bytes + 16 * told_messages);
    frames_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_frame),
        cmocka_unit_test_setup_teardown(test_operations, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_refused, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_snap, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_file_full, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_device_full, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_long_path, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_signal, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_garbage_in_limits, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_allreduce, make_path, remove_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
