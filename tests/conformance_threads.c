/* SPDX-License-Identifier: MIT */
/* Verbs objects may be used by several threads at once. */
#include "tests/conformance.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

/* Of a worker: the messages, and how many of them are under way at most. Nobody may count on a full
 * send queue to slow him down: a device may take a request out before its completion is polled. */
enum { MESSAGES = 2000, DEPTH = 16 };

/*
 * What a thread is given, and what it found wrong. A thread cannot leave the check by itself, so it
 * uses the device's table and no helper that fails the check.
 */
struct worker {
    const struct trial *trial;
    const struct verbs *verbs;
    struct side side;
    const struct address *peer;
    struct ibv_cq *polled; /* NULL: somebody else polls */
    pthread_t thread;
    size_t at;
    uint64_t first_id, count;
    _Atomic uint64_t done; /* completions that were polled, by whomever */
    char wrong[128];
};

static int post_write(struct worker *w, uint64_t i)
{
    size_t at = w->at + i % DEPTH * 8;
    struct ibv_sge sge = {(uintptr_t)w->side.memory + at, 8, w->side.mr->lkey};
    struct ibv_send_wr *bad;
    struct ibv_send_wr wr = {.wr_id = w->first_id + i,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED};
    if (w->side.options.type == IBV_QPT_UD) {
        wr.opcode = IBV_WR_SEND;
        wr.wr.ud.ah = w->side.ah;
        wr.wr.ud.remote_qpn = w->peer->qpn;
        wr.wr.ud.remote_qkey = w->side.options.qkey;
    } else {
        wr.wr.rdma.remote_addr = w->peer->memory + at;
        wr.wr.rdma.rkey = w->peer->rkey;
    }
    return w->verbs->post_send(w->side.qp, &wr, &bad);
}

static bool poll_own(struct worker *w)
{
    uint64_t done = atomic_load(&w->done);
    struct ibv_wc wc;
    int got = w->verbs->poll_cq(w->polled, 1, &wc);
    if (got < 0 || (got && (wc.status != IBV_WC_SUCCESS || wc.wr_id != w->first_id + done))) {
        snprintf(w->wrong, sizeof w->wrong, "poll_cq answers %d, completion %llu after %llu", got,
                 got > 0 ? (unsigned long long)wc.wr_id : 0, (unsigned long long)done);
        return false;
    }
    atomic_fetch_add(&w->done, (uint64_t)got);
    return true;
}

static void *post_all(void *argument)
{
    struct worker *w = argument;
    uint64_t posted = 0, started = 0;
    while (posted < w->count || (w->polled && atomic_load(&w->done) < w->count)) {
        int err = EBUSY;
        if (posted < w->count && posted - atomic_load(&w->done) < DEPTH)
            err = post_write(w, posted);
        if (!err)
            posted++;
        else if (err != EBUSY)
            snprintf(w->wrong, sizeof w->wrong, "post_send: %s", strerror(err));
        else if (deadline_passed(w->trial, &started))
            snprintf(w->wrong, sizeof w->wrong, "the deadline passed at message %llu",
                     (unsigned long long)posted);
        if (*w->wrong || (w->polled && !poll_own(w)))
            break;
    }
    return NULL;
}

static struct worker worker_on(struct trial *t, const struct side *side, const struct address *peer,
                               size_t at)
{
    return (struct worker){.trial = t,
                           .verbs = t->verbs,
                           .side = *side,
                           .peer = peer,
                           .at = at,
                           .first_id = (uint64_t)(at + 1) << 32,
                           .count = MESSAGES};
}

static void start(struct trial *t, struct worker *w, void *(*run)(void *))
{
    expect_equal(t, pthread_create(&w->thread, NULL, run, w), 0, "pthread_create");
}

/* Every thread is joined before anything is judged: what they use must outlive them. */
static void join(struct trial *t, struct worker *w, int count)
{
    for (int i = 0; i < count; i++)
        pthread_join(w[i].thread, NULL);
    for (int i = 0; i < count; i++)
        expect(t, !*w[i].wrong, "thread %d: %s", i, w[i].wrong);
}

static void more_pair(struct trial *t, struct side *near, struct side *far)
{
    *near = t->a;
    *far = t->b;
    near->qp = trial_qp(t, near, &near->options);
    far->qp = trial_qp(t, far, &far->options);
    near->address.qpn = near->qp->qp_num;
    far->address.qpn = far->qp->qp_num;
    bring(t, near, &far->address, IBV_QPS_RTS);
    bring(t, far, &near->address, IBV_QPS_RTS);
}

/* Each receive of the shared queue has its own place in b's memory, and that for its wr_id. */
static void give_place(struct trial *t, uint64_t place)
{
    struct receive r;
    receive_make(t, &r, &t->b, 4096 + place * 64, 64);
    r.wr.wr_id = place;
    post_receive(t, &t->b, &r);
}

/* Where there is a shared receive queue: what was taken is given back. */
static void take_receives(struct trial *t)
{
    struct ibv_wc wc;
    while (t->b.srq && t->verbs->poll_cq(t->b.recv_cq, 1, &wc) == 1) {
        expect_equal(t, wc.status, IBV_WC_SUCCESS, "status of a receive");
        give_place(t, wc.wr_id);
    }
}

/* Polls the CQ that two workers share; answers how many completions were lost or out of order. */
static uint64_t poll_for(struct trial *t, struct worker *w)
{
    uint64_t done[2] = {0, 0}, wrong = 0, started = 0;
    while (done[0] + done[1] < 2 * MESSAGES && !deadline_passed(t, &started)) {
        struct ibv_wc wc;
        if (t->verbs->poll_cq(t->a.send_cq, 1, &wc) != 1)
            continue;
        take_receives(t);
        int i = wc.wr_id >= w[1].first_id;
        wrong += wc.status != IBV_WC_SUCCESS || wc.wr_id != w[i].first_id + done[i] ||
                 wc.qp_num != w[i].side.qp->qp_num;
        atomic_store(&w[i].done, ++done[i]);
    }
    return wrong + (2 * MESSAGES - done[0] - done[1]);
}

/* What was written before it on this queue pair is there when a receive says so. (That the sender
 * is done says so on RC only.) */
static void send_behind(struct trial *t, struct side *near, struct side *far)
{
    struct receive r;
    struct work w;
    receive_make(t, &r, far, 0, 0);
    r.wr.num_sge = 0;
    post_receive(t, far, &r);
    work_make(t, &w, IBV_WR_SEND, near, 0, &far->address, 0, 0);
    post(t, near, &w);
    expect_sent(t, near, &w, IBV_WC_SUCCESS);
    expect_received(t, far, &r, IBV_WC_SUCCESS);
}

static void two_threads_two_queue_pairs_one_cq(struct trial *t)
{
    struct options o = default_options();
    if (t->check->parameter)
        o.type = (enum ibv_qp_type)t->check->parameter;
    trial_connect(t, &o);
    struct side near[2], far[2];
    payload(t, &t->a, 0, 2048);
    for (int i = 0; i < 2; i++)
        more_pair(t, &near[i], &far[i]);
    struct worker w[2] = {worker_on(t, &near[0], &far[0].address, 0),
                          worker_on(t, &near[1], &far[1].address, 1024)};
    start(t, &w[0], post_all);
    start(t, &w[1], post_all);
    uint64_t wrong = poll_for(t, w);
    join(t, w, 2);
    expect_equal(t, wrong, 0, "completions lost or out of order");
    for (size_t i = 0; i < 2; i++) {
        send_behind(t, &near[i], &far[i]);
        expect_copy(&t->a, i * 1024, &t->b, i * 1024, DEPTH * 8);
    }
    expect_memory(t, &t->b, "b");
}

/* Datagrams of two threads into one shared receive queue, which a third fills: some may be lost. */
static void two_threads_one_shared_receive_queue(struct trial *t)
{
    struct options o = default_options();
    o.type = (enum ibv_qp_type)t->check->parameter;
    o.srq_wr = 32;
    trial_connect(t, &o);
    struct side near[2], far[2];
    for (int i = 0; i < 2; i++) {
        more_pair(t, &near[i], &far[i]);
        near[i].ah = t->a.ah;
    }
    for (uint64_t i = 0; i < 32; i++)
        give_place(t, i);
    struct worker w[2] = {worker_on(t, &near[0], &far[0].address, 0),
                          worker_on(t, &near[1], &far[1].address, 1024)};
    start(t, &w[0], post_all);
    start(t, &w[1], post_all);
    uint64_t wrong = poll_for(t, w);
    join(t, w, 2);
    expect_equal(t, wrong, 0, "completions lost or out of order");
    take_receives(t);
    expect_state(t, &far[0], IBV_QPS_RTS);
    expect_state(t, &far[1], IBV_QPS_RTS);
}

static void two_threads_one_queue_pair(struct trial *t)
{
    trial_connect(t, NULL);
    struct worker w[2] = {worker_on(t, &t->a, &t->b.address, 0),
                          worker_on(t, &t->a, &t->b.address, 1024)};
    start(t, &w[0], post_all);
    start(t, &w[1], post_all);
    uint64_t wrong = poll_for(t, w);
    join(t, w, 2);
    expect_equal(t, wrong, 0, "completions lost or out of order");
}

static void two_threads_apart(struct trial *t)
{
    trial_connect(t, NULL);
    payload(t, &t->a, 0, DEPTH * 8);
    payload(t, &t->b, 1024, DEPTH * 8);
    struct worker w[2] = {worker_on(t, &t->a, &t->b.address, 0),
                          worker_on(t, &t->b, &t->a.address, 1024)};
    w[0].polled = t->a.send_cq;
    w[1].polled = t->b.send_cq;
    start(t, &w[0], post_all);
    start(t, &w[1], post_all);
    join(t, w, 2);
    expect_copy(&t->a, 0, &t->b, 0, DEPTH * 8);
    expect_copy(&t->b, 1024, &t->a, 1024, DEPTH * 8);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

/* --- registration beside traffic ------------------------------------------------------------- */

static void *register_all(void *argument)
{
    struct worker *w = argument;
    for (uint64_t i = 0; i < w->count && !*w->wrong; i++) {
        struct ibv_mr *mr = w->verbs->reg_mr(w->side.pd, w->side.memory + i % 64 * 64,
                                             64 + i % 1000, IBV_ACCESS_LOCAL_WRITE);
        if (!mr || w->verbs->dereg_mr(mr))
            snprintf(w->wrong, sizeof w->wrong, "registration %llu: %s", (unsigned long long)i,
                     strerror(errno));
    }
    return NULL;
}

static void registering_beside_traffic(struct trial *t)
{
    trial_connect(t, NULL);
    struct worker w[3] = {worker_on(t, &t->a, &t->b.address, 0),
                          worker_on(t, &t->a, &t->b.address, 0),
                          worker_on(t, &t->b, &t->a.address, 0)};
    w[0].polled = t->a.send_cq;
    w[1].count = w[2].count = 300;
    start(t, &w[0], post_all);
    start(t, &w[1], register_all);
    start(t, &w[2], register_all);
    join(t, w, 3);
}

/* --- one thread sleeps on the channel while another posts --------------------------------------
 */

struct sleeper {
    const struct verbs *verbs;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    int result, events;
};

static void *sleep_on_channel(void *argument)
{
    struct sleeper *s = argument;
    struct ibv_cq *found;
    void *cq_context;
    s->result = -1;
    if (!poll_readable(s->channel->fd, DEADLINE_MS))
        return NULL;
    s->result = s->verbs->get_cq_event(s->channel, &found, &cq_context);
    if (!s->result) {
        s->verbs->ack_cq_events(found, 1);
        s->events += found == s->cq;
    }
    return NULL;
}

static void a_sleeping_thread_is_woken(struct trial *t)
{
    struct options o = default_options();
    o.channel = true;
    trial_connect(t, &o);
    for (int round = 0; round < 10; round++) {
        struct sleeper s = {.verbs = t->verbs, .channel = t->b.channel, .cq = t->b.recv_cq};
        struct receive r;
        struct work w;
        pthread_t thread;
        receive_make(t, &r, &t->b, 0, 8);
        post_receive(t, &t->b, &r);
        work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
        expect_equal(t, t->verbs->req_notify_cq(t->b.recv_cq, 0), 0, "req_notify_cq");
        expect_equal(t, pthread_create(&thread, NULL, sleep_on_channel, &s), 0, "pthread_create");
        int err = post_any(&t->a, t->verbs, &w.wr, BY_POST_SEND);
        pthread_join(thread, NULL);
        expect_equal(t, err, 0, "post_send");
        expect(t, !s.result && s.events == 1, "the thread was not woken");
        expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
}

static const struct check checks[] = {
    {.name = "two threads, two queue pairs, one CQ", .run = two_threads_two_queue_pairs_one_cq},
    {.name = "two threads, two UC queue pairs, one CQ",
     .run = two_threads_two_queue_pairs_one_cq,
     .parameter = IBV_QPT_UC},
    {.name = "two threads, datagrams, one SRQ",
     .run = two_threads_one_shared_receive_queue,
     .parameter = IBV_QPT_UD},
    {.name = "two threads, one queue pair", .run = two_threads_one_queue_pair},
    {.name = "two threads apart", .run = two_threads_apart},
    {.name = "registering beside traffic", .run = registering_beside_traffic},
    {.name = "a sleeping thread is woken", .run = a_sleeping_thread_is_woken},
};

const struct check_group thread_checks = GROUP("threads", checks);
