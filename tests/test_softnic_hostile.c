/* SPDX-License-Identifier: MIT */
/*
 * A hostile process of the same user writes garbage into all that a port shares: the meeting file
 * and the memory of its members. Ours may fail, and must neither crash nor hang. Each trial is a
 * process of its own, or two that take turns, so that what happens follows from the seed; in every
 * third the garbage comes while operations run.
 */
#include "tests/seeds.h"
#include "tests/softnic_side.h"
#include "transport/softnic/shared.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 150, MAPPED = 24 << 20, TRIAL_SECONDS = 60 };

static uint64_t trials(void)
{
    return seeds_count(60, 5000);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* ---- what is scribbled on ------------------------------------------------------------------- */

struct prey {
    struct member *members[4];
    int n_members;
    struct meeting *meetings[2];
    int n_meetings;
    char path[64];
};

/* The members' memory of a process, as anybody of its user can have it. */
static void find_members(struct prey *prey, pid_t pid)
{
    char path[64], name[64];
    for (int fd = 3; fd < 200 && prey->n_members < 4; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
        ssize_t n = readlink(path, name, sizeof name - 1);
        if (n < 0 || strncmp(name, "/memfd:softnic", 14) != 0)
            continue;
        int own = open(path, O_RDWR | O_CLOEXEC);
        struct stat st;
        if (own >= 0 && fstat(own, &st) == 0 && st.st_size > MAPPED) {
            void *map = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
            if (map != MAP_FAILED)
                prey->members[prey->n_members++] = map;
        }
        if (own >= 0)
            close(own);
    }
}

static void find_meeting(struct prey *prey, struct ibv_context *context)
{
    nic_test_file(context, prey->path, sizeof prey->path);
    int fd = open(prey->path, O_RDWR | O_CLOEXEC);
    void *map = mmap(NULL, sizeof(struct meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED)
        prey->meetings[prey->n_meetings++] = map;
    close(fd);
}

static uint64_t garbage(uint64_t *random, uint64_t old)
{
    static const uint64_t likely[] = {
        0,       1,       2,       7,          63,         64,         0xff,       0x100,    0xffff,
        1 << 16, 1 << 20, 1 << 30, 0x7fffffff, 0x80000000, UINT32_MAX, UINT64_MAX, INT64_MAX};
    uint64_t r = next_random(random);
    switch (r % 5) {
    case 0:
        return likely[next_random(random) % (sizeof likely / sizeof *likely)];
    case 1:
        return old ^ 1ull << next_random(random) % 64;
    case 2:
        return old + next_random(random) % 257 - 128;
    case 3:
        return next_random(random) << 32 | (uint32_t)old;
    default:
        return next_random(random);
    }
}

/* Somewhere in a structure, or in the first pages of the rings. */
static void *place(uint64_t *random, struct member *m, size_t *bytes)
{
    uint64_t r = next_random(random), which = next_random(random);
    uint8_t *ring = (uint8_t *)m + (sizeof *m + 4095) / 4096 * 4096;
    void *const at[] = {m,          &m->qp[which % QPS_MAX], &m->cq[which % 2],
                        &m->srq[0], &m->mr[which % MRS_MAX], ring + which % 16 * 4096};
    const size_t sizes[] = {offsetof(struct member, qp),
                            sizeof m->qp[0],
                            sizeof m->cq[0],
                            sizeof m->srq[0],
                            sizeof m->mr[0],
                            4096};
    /* Of the large tables mostly what is in use. */
    void *chosen = at[r % 6];
    if (r % 6 == 1 || r % 6 == 4) {
        for (unsigned i = 0; i < QPS_MAX; i++, which++) {
            if (r % 6 == 1 && atomic_load(&m->qp[which % QPS_MAX].qpn) != 0)
                chosen = &m->qp[which % QPS_MAX];
            if (r % 6 == 4 && atomic_load(&m->mr[which % MRS_MAX].key) != 0)
                chosen = &m->mr[which % MRS_MAX];
        }
    }
    *bytes = sizes[r % 6];
    return chosen;
}

static void scribble(uint64_t *random, const struct prey *prey)
{
    uint64_t r = next_random(random);
    size_t bytes = sizeof(struct meeting);
    uint8_t *at;
    if (r % 8 == 0)
        at = (uint8_t *)prey->meetings[next_random(random) % (uint64_t)prey->n_meetings];
    else
        at = place(random, prey->members[next_random(random) % (uint64_t)prey->n_members], &bytes);
    size_t offset = next_random(random) % bytes & ~(size_t)3;
    size_t width = offset + 8 <= bytes && r & 256 ? 8 : 4;
    uint64_t value = 0;
    memcpy(&value, at + offset, width);
    value = garbage(random, value);
    memcpy(at + offset, &value, width);
}

/* ---- what is done meanwhile ----------------------------------------------------------------- */

struct victim {
    struct nic_side side;
    struct nic_address to;
    struct ibv_srq *srq;
    struct ibv_qp *with_srq;
    uint8_t *memory;
    uint64_t random;
};

static const int all_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

static void open_victim(struct victim *v, const char *port, bool shared, uint64_t seed)
{
    const struct softnic_wire wire = {.alpha_us = seed % 4 == 3 ? 1 : 0,
                                      .beta_gbps = seed % 4 == 3 ? 1 : 0};
    const struct softnic_order order = {.relaxed = seed % 5 == 1, .seed = seed};
    struct softnic_attr attr = {.port_name = port, .wire = &wire, .order = &order};
    int fd = shared ? memfd_create("victim", MFD_CLOEXEC) : -1;
    if (shared)
        assert_int_equal(ftruncate(fd, BYTES), 0);
    v->memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
                     shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    assert_true(v->memory != MAP_FAILED);
    v->random = seed;
    nic_side_open(&v->side, &attr, v->memory);
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 16, .max_sge = 2}};
    v->srq = softnic_create_srq(v->side.pd, &srq);
    struct ibv_qp_init_attr init = {.send_cq = v->side.cq,
                                    .recv_cq = v->side.cq,
                                    .srq = v->srq,
                                    .cap = {.max_send_wr = 16, .max_send_sge = 2},
                                    .qp_type = IBV_QPT_RC};
    v->with_srq = softnic_create_qp(v->side.pd, &init);
    assert_non_null(v->with_srq);
}

static void post_something(struct victim *v)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,  IBV_WR_SEND,
        IBV_WR_RDMA_READ,  IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_IMM};
    enum ibv_wr_opcode opcode = opcodes[next_random(&v->random) % 6];
    bool atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    uint32_t bytes = atomic ? 8 : (uint32_t)(next_random(&v->random) % 5000);
    struct ibv_sge sge = {(uint64_t)(uintptr_t)v->memory, bytes, v->side.mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = opcode,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {v->to.memory + 8192, v->to.rkey}};
    if (atomic) {
        wr.wr.atomic.remote_addr = v->to.memory;
        wr.wr.atomic.rkey = v->to.rkey;
    }
    softnic_post_send(v->side.qp, &wr, &bad);
}

static void post_receives(struct victim *v)
{
    struct ibv_sge sge[2] = {{(uint64_t)(uintptr_t)v->memory, 1000, v->side.mr->lkey},
                             {(uint64_t)(uintptr_t)v->memory + 2000, 5000, v->side.mr->lkey}};
    struct ibv_recv_wr *bad, wr = {.wr_id = 1, .sg_list = sge, .num_sge = 2};
    softnic_post_recv(v->side.qp, &wr, &bad);
    if (v->srq != NULL)
        softnic_post_srq_recv(v->srq, &wr, &bad);
}

static void poll_some(struct victim *v)
{
    struct ibv_wc wc[8];
    for (unsigned i = 0; i < 4; i++) {
        int n = softnic_poll_cq(v->side.cq, 8, wc);
        for (int k = 0; k < n; k++) {
            if (wc[k].status == IBV_WC_SUCCESS && wc[k].opcode == IBV_WC_RECV &&
                wc[k].byte_len > 6000)
                _exit(4); /* more than was posted */
        }
    }
}

static void register_more(struct victim *v)
{
    struct ibv_mr *mr = softnic_reg_mr(v->side.pd, v->memory + 4096, 4096, all_access);
    if (mr != NULL)
        softnic_dereg_mr(mr);
}

/* Back to where a connection can begin, as a program does after an error. */
static void connect_again(struct victim *v)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    softnic_modify_qp(v->side.qp, &attr, IBV_QP_STATE);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)all_access};
    softnic_modify_qp(v->side.qp, &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = v->to.qpn,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = v->to.gid, .sgid_index = 1}}};
    softnic_modify_qp(v->side.qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 1, .retry_cnt = 1, .rnr_retry = 1, .max_rd_atomic = 16};
    softnic_modify_qp(v->side.qp, &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static void step(struct victim *v)
{
    struct ibv_port_attr port;
    switch (next_random(&v->random) % 16) {
    case 0:
        register_more(v);
        break;
    case 1:
    case 2:
        connect_again(v);
        break;
    case 3:
        softnic_req_notify_cq(v->side.cq, 0);
        softnic_query_port(v->side.context, 1, &port);
        break;
    case 4:
    case 5:
    case 6:
        post_receives(v);
        break;
    case 7:
    case 8:
        poll_some(v);
        break;
    default:
        post_something(v);
        break;
    }
    poll_some(v);
}

static void close_victim(struct victim *v)
{
    softnic_destroy_qp(v->with_srq);
    softnic_destroy_qp(v->side.qp);
    softnic_destroy_srq(v->srq);
    softnic_dereg_mr(v->side.mr);
    softnic_destroy_cq(v->side.cq);
    softnic_dealloc_pd(v->side.pd);
    softnic_close_device(v->side.context);
}

/* ---- a trial -------------------------------------------------------------------------------- */

/* Between two processes that take turns. */
struct turns {
    struct nic_address address[2];
    _Atomic uint32_t turn;
    _Atomic uint32_t there;
};

static void wait_turn(struct turns *t, uint32_t turn)
{
    while (atomic_load(&t->turn) < turn)
        usleep(20);
}

static void two_processes(struct turns *t, uint32_t me, uint64_t seed, pid_t other, bool at_once)
{
    static struct victim v;
    struct prey prey = {0};
    char port[64];
    uint64_t random = seed * 2 + me;
    snprintf(port, sizeof port, "hostile-%d-%u", (int)(me == 0 ? getpid() : other), me);
    open_victim(&v, port, seed % 2 != 0, random);
    t->address[me] = nic_side_address(&v.side);
    find_members(&prey, getpid());
    find_meeting(&prey, v.side.context);
    atomic_fetch_add(&t->there, 1);
    while (atomic_load(&t->there) < 2)
        usleep(20);
    find_members(&prey, other);
    v.to = t->address[1 - me];
    connect_again(&v);
    for (uint32_t i = 0; i < STEPS; i++) {
        if (!at_once)
            wait_turn(t, i * 2 + me);
        if (i > 10)
            scribble(&random, &prey);
        step(&v);
        atomic_fetch_add(&t->turn, 1);
    }
    close_victim(&v);
    unlink(prey.path); /* what nobody can read any more nobody takes away */
}

static void one_process(uint64_t seed)
{
    static struct victim a, b;
    struct prey prey = {0};
    char port[64];
    uint64_t random = seed;
    snprintf(port, sizeof port, "hostile-%d", (int)getpid());
    open_victim(&a, port, seed % 2 != 0, seed);
    open_victim(&b, port, seed % 2 != 0, seed);
    a.to = nic_side_address(&b.side);
    b.to = nic_side_address(&a.side);
    find_members(&prey, getpid());
    find_meeting(&prey, a.side.context);
    connect_again(&a);
    connect_again(&b);
    for (uint32_t i = 0; i < STEPS; i++) {
        if (i > 10)
            scribble(&random, &prey);
        step(i % 2 ? &a : &b);
    }
    close_victim(&a);
    close_victim(&b);
    unlink(prey.path);
}

static void quiet(void)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (getenv("SSTAR_TEST_LOUD") == NULL)
        dup2(null, 1);
    close(null);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(TRIAL_SECONDS);
}

/* 0, or what a process of the trial ended with. */
static int ended_with(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

static int trial(uint64_t seed)
{
    struct turns *t =
        mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(t != MAP_FAILED);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int status = 0;
        quiet();
        if (seed % 3 == 0) {
            one_process(seed);
        } else {
            pid_t parent = getpid(), child = fork();
            if (child == 0)
                quiet();
            two_processes(t, child == 0, seed, child == 0 ? parent : child, seed % 3 == 2);
            status = child > 0 ? ended_with(child) : 0;
        }
        _exit(status != 0);
    }
    int status = ended_with(pid);
    munmap(t, sizeof *t);
    return status;
}

static void test_garbage(void **state)
{
    (void)state;
    for (uint64_t seed = seeds_first(), n = trials(); n > 0; seed++, n--) {
        int status = trial(seed);
        if (status != 0)
            fail_msg("seed %llu: status 0x%x (%s)", (unsigned long long)seed, status,
                     WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "see above");
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return trial(strtoull(argv[1], NULL, 10)) != 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_garbage)};
    print_message("# %llu seeds from %llu on\n", (unsigned long long)trials(),
                  (unsigned long long)seeds_first());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
