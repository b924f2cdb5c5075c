/* SPDX-License-Identifier: MIT */
/* Full queues, chains with a bad request in them, completion queues that overflow. */
#include "tests/conformance.h"
#include <stdlib.h>

static struct options small_queues(void)
{
    struct options o = default_options();
    o.sends = 8;
    o.receives = 8;
    o.memory_bytes = 65536;
    return o;
}

/* SENDs to a peer without receives: nothing leaves, so the queue can be filled to the brim. */
static void fill_with_waiting_sends(struct trial *t, struct work *w, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        size_t at = i % 256 * 64;
        payload(t, &t->a, at, 8);
        work_make(t, &w[i], IBV_WR_SEND, &t->a, at, &t->b.address, 0, 8);
        post(t, &t->a, &w[i]);
    }
}

static void drain_waiting_sends(struct trial *t, const struct work *w, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct receive r;
        receive_make(t, &r, &t->b, 32768, 8);
        post_receive(t, &t->b, &r);
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
        expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    }
    expect_quiet(t, t->a.send_cq);
}

static void a_full_send_queue_refuses(struct trial *t)
{
    struct options o = small_queues();
    trial_connect(t, &o);
    uint32_t depth = t->a.cap.max_send_wr;
    expect(t, depth < 250, "%u requests granted for 8", depth);
    struct work w[256], more;
    fill_with_waiting_sends(t, w, depth);
    for (int i = 0; i < 3; i++) {
        struct ibv_send_wr *bad = NULL;
        work_make(t, &more, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
        expect_equal(t, t->verbs->post_send(t->a.qp, &more.wr, &bad), ENOMEM, "post_send");
        expect(t, bad == &more.wr, "bad_wr does not point to the request");
    }
    drain_waiting_sends(t, w, depth);
    fill_with_waiting_sends(t, w, depth);
    drain_waiting_sends(t, w, depth);
}

/* A chain that is too long is posted as far as there is room, and bad_wr says how far. */
static void a_chain_longer_than_the_room(struct trial *t)
{
    struct options o = small_queues();
    trial_connect(t, &o);
    uint32_t depth = t->a.cap.max_send_wr;
    expect(t, depth < 250, "%u requests granted for 8", depth);
    struct work w[256];
    fill_with_waiting_sends(t, w, depth - 3);
    for (uint32_t i = depth - 3; i < depth + 2; i++) {
        work_make(t, &w[i], IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
        if (i > depth - 3)
            w[i - 1].wr.next = &w[i].wr;
    }
    struct ibv_send_wr *bad = NULL;
    expect_equal(t, t->verbs->post_send(t->a.qp, &w[depth - 3].wr, &bad), ENOMEM, "post_send");
    expect(t, bad == &w[depth].wr, "bad_wr does not point to the first request without room");
    drain_waiting_sends(t, w, depth);
}

/* ibv_wr_complete(3): on failure none of the batch is posted. */
static void a_batch_longer_than_the_room(struct trial *t)
{
    struct options o = small_queues();
    o.wr_calls = true;
    trial_connect(t, &o);
    uint32_t depth = t->a.cap.max_send_wr;
    expect(t, depth < 250, "%u requests granted for 8", depth);
    struct work w[256], more[5];
    fill_with_waiting_sends(t, w, depth - 3);
    for (int i = 0; i < 5; i++) {
        work_make(t, &more[i], IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
        if (i)
            more[i - 1].wr.next = &more[i].wr;
    }
    expect_equal(t, post_any(&t->a, t->verbs, &more[0].wr, BY_WR_CALLS), ENOMEM, "ibv_wr_complete");
    drain_waiting_sends(t, w, depth - 3);
}

static void a_full_receive_queue_refuses(struct trial *t)
{
    struct options o = small_queues();
    trial_connect(t, &o);
    uint32_t depth = t->b.cap.max_recv_wr;
    expect(t, depth < 250, "%u requests granted for 8", depth);
    struct receive r[256];
    for (uint32_t i = 0; i < depth + 2; i++) {
        receive_make(t, &r[i], &t->b, (size_t)i * 64, 8);
        if (i)
            r[i - 1].wr.next = &r[i].wr;
    }
    struct ibv_recv_wr *bad = NULL;
    expect_equal(t, t->verbs->post_recv(t->b.qp, &r[0].wr, &bad), ENOMEM, "post_recv");
    expect(t, bad == &r[depth].wr, "bad_wr does not point to the first receive without room");
    for (uint32_t i = 0; i < depth; i++) {
        struct work w;
        payload(t, &t->a, 0, 8);
        work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &w);
        expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
        expect_received(t, &t->b, &r[i], IBV_WC_SUCCESS);
        expect_copy(&t->a, 0, &t->b, (size_t)i * 64, 8);
    }
    expect_memory(t, &t->b, "b");
}

static void polling_makes_room(struct trial *t)
{
    struct options o = small_queues();
    trial_connect(t, &o);
    uint32_t depth = t->a.cap.max_send_wr;
    expect(t, depth < 250, "%u requests granted for 8", depth);
    struct work w[256];
    for (uint32_t i = 0; i < 20 * depth; i++) {
        struct work *slot = &w[i % depth];
        if (i >= depth)
            expect_sent(t, &t->a, slot, IBV_WC_SUCCESS);
        work_make(t, slot, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, slot);
    }
}

/* One signalled request in four: its completion frees the three before it. */
static void selective_signalling(struct trial *t)
{
    struct options o = small_queues();
    o.wr_calls = t->check->way == BY_WR_CALLS;
    trial_connect(t, &o);
    struct work w;
    for (size_t i = 0; i < 400; i++) {
        payload(t, &t->a, i % 64 * 16, 16);
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, i % 64 * 16, &t->b.address, i % 64 * 16, 16);
        w.wr.send_flags = i % 4 == 3 ? IBV_SEND_SIGNALED : 0;
        post(t, &t->a, &w);
        expect_copy(&t->a, i % 64 * 16, &t->b, i % 64 * 16, 16);
        if (i % 4 == 3)
            expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    }
    expect_quiet(t, t->a.send_cq);
    expect_memory(t, &t->b, "b");
}

static void sq_sig_all_signals_all(struct trial *t)
{
    struct options o = default_options();
    o.signal_all = true;
    trial_connect(t, &o);
    struct work w[8];
    for (int i = 0; i < 8; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        w[i].wr.send_flags = 0;
        post(t, &t->a, &w[i]);
    }
    for (int i = 0; i < 8; i++)
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
}

/* What stands before the bad request is done; it and what stands behind are not. */
static void a_bad_request_in_a_chain(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w[7];
    struct ibv_sge pieces[1000] = {{0}};
    payload(t, &t->a, 0, 64);
    for (size_t i = 0; i < 7; i++) {
        work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, i * 64, 64);
        if (i)
            w[i - 1].wr.next = &w[i].wr;
    }
    if (t->check->parameter) {
        w[4].wr.opcode = (enum ibv_wr_opcode)0x7f;
    } else {
        w[4].wr.sg_list = pieces; /* a device may read all of it before it refuses */
        w[4].wr.num_sge = sizeof pieces / sizeof *pieces;
    }
    struct ibv_send_wr *bad = NULL;
    int err = t->verbs->post_send(t->a.qp, &w[0].wr, &bad);
    expect(t, err == EINVAL || err == ENOMEM || err == EOPNOTSUPP, "post_send: %s", strerror(err));
    expect(t, bad == &w[4].wr, "bad_wr does not point to the bad request");
    for (size_t i = 0; i < 4; i++) {
        expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
        expect_copy(&t->a, 0, &t->b, i * 64, 64);
    }
    expect_quiet(t, t->a.send_cq);
    expect_memory(t, &t->b, "b");
    expect_state(t, &t->a, IBV_QPS_RTS);
}

/* --- overflow of a completion queue ------------------------------------------------------------
 */

/* Makes a's send CQ small; returns what was granted. */
static uint32_t open_with_small_cq(struct trial *t)
{
    struct options o = default_options();
    o.sends = 64;
    pair_make(t, &o);
    destroy_qp(t, t->a.qp);
    t->a.send_cq = trial_cq(t, &t->a, 4, NULL);
    t->a.qp = trial_qp(t, &t->a, &o);
    t->a.address.qpn = t->a.qp->qp_num;
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    return (uint32_t)t->a.send_cq->cqe;
}

static void overflow(struct trial *t, uint32_t granted)
{
    struct work w;
    for (uint32_t i = 0; i < granted + 8 && i < t->a.cap.max_send_wr; i++) {
        work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
        struct ibv_send_wr *bad;
        if (t->verbs->post_send(t->a.qp, &w.wr, &bad))
            break; /* the queue pair may have failed already */
    }
    expect_async(t, &t->a, IBV_EVENT_CQ_ERR, t->a.send_cq);
}

static void an_overflow_is_an_event(struct trial *t)
{
    uint32_t granted = open_with_small_cq(t);
    if (granted + 8 > t->a.cap.max_send_wr)
        trial_skip(t, "the CQ that was granted cannot be filled");
    overflow(t, granted);
}

static void an_overflow_loses_no_entry_before_it(struct trial *t)
{
    uint32_t granted = open_with_small_cq(t);
    if (granted + 8 > t->a.cap.max_send_wr)
        trial_skip(t, "the CQ that was granted cannot be filled");
    uint64_t first = t->next_id;
    overflow(t, granted);
    struct ibv_wc wc;
    uint64_t next = first;
    while (t->verbs->poll_cq(t->a.send_cq, 1, &wc) == 1)
        if (wc.status == IBV_WC_SUCCESS)
            expect(t, wc.wr_id == next++, "a completion of wr_id %llu, should be of %llu",
                   (unsigned long long)wc.wr_id, (unsigned long long)next - 1);
    expect(t, next - first <= granted, "%llu completions from a CQ of %u",
           (unsigned long long)(next - first), granted);
}

static void an_overflow_is_one_queues_own(struct trial *t)
{
    uint32_t granted = open_with_small_cq(t);
    if (granted + 8 > t->a.cap.max_send_wr)
        trial_skip(t, "the CQ that was granted cannot be filled");
    struct side near = t->a, far = t->b;
    near.send_cq = trial_cq(t, &near, 16, NULL);
    near.qp = trial_qp(t, &near, &near.options);
    far.qp = trial_qp(t, &far, &far.options);
    near.address.qpn = near.qp->qp_num;
    far.address.qpn = far.qp->qp_num;
    bring(t, &near, &far.address, IBV_QPS_RTS);
    bring(t, &far, &near.address, IBV_QPS_RTS);
    overflow(t, granted);
    struct work w;
    payload(t, &t->a, 512, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &near, 512, &far.address, 4096, 64);
    post(t, &near, &w);
    expect_sent(t, &near, &w, IBV_WC_SUCCESS);
    expect(t, !memcmp(t->b.memory + 4096, t->a.memory + 512, 64), "the contents differ");
}

static void a_cq_can_be_filled_to_the_last_entry(struct trial *t)
{
    uint32_t granted = open_with_small_cq(t);
    if (granted > t->a.cap.max_send_wr)
        trial_skip(t, "the CQ that was granted cannot be filled");
    struct work *w = calloc(granted, sizeof *w);
    expect(t, w, "no memory");
    trial_track(t, MEMORY, w, 0);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < granted; i++) {
            work_make(t, &w[i], IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
            post(t, &t->a, &w[i]);
        }
        for (uint32_t i = 0; i < granted; i++)
            expect_sent(t, &t->a, &w[i], IBV_WC_SUCCESS);
    }
    expect_state(t, &t->a, IBV_QPS_RTS);
}

/* Entries of a queue pair that is destroyed take no room for ever. */
static void a_queue_pair_gives_its_entries_back(struct trial *t)
{
    uint32_t granted = open_with_small_cq(t);
    if (granted > t->a.cap.max_send_wr)
        trial_skip(t, "the CQ that was granted cannot be filled");
    for (int round = 0; round < 3; round++) {
        struct work w;
        struct ibv_wc wc;
        for (uint32_t i = 0; i < granted; i++) {
            work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
            post(t, &t->a, &w);
        }
        if (round == 2)
            break;
        destroy_qp(t, t->a.qp);
        while (t->verbs->poll_cq(t->a.send_cq, 1, &wc) == 1)
            ; /* those of the one that is gone may or may not be shown */
        t->a.qp = trial_qp(t, &t->a, &t->a.options);
        t->a.address.qpn = t->a.qp->qp_num;
        expect_equal(t, move(t, &t->b, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
        bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
        bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    }
    for (uint32_t i = 0; i < granted; i++)
        expect_equal(t, next_wc(t, t->a.send_cq).status, IBV_WC_SUCCESS, "status");
    expect_state(t, &t->a, IBV_QPS_RTS);
}

static const struct check checks[] = {
    {.name = "a full send queue refuses", .run = a_full_send_queue_refuses},
    {.name = "a chain longer than the room", .run = a_chain_longer_than_the_room},
    {.name = "a batch longer than the room", .run = a_batch_longer_than_the_room},
    {.name = "a full receive queue refuses", .run = a_full_receive_queue_refuses},
    {.name = "polling makes room", .run = polling_makes_room},
    {.name = "selective signalling", .run = selective_signalling},
    {.name = "selective signalling by ibv_wr_*", .run = selective_signalling, .way = BY_WR_CALLS},
    {.name = "sq_sig_all signals all", .run = sq_sig_all_signals_all},
    {.name = "a request with too long a list in a chain", .run = a_bad_request_in_a_chain},
    {.name = "a request of unknown opcode in a chain",
     .run = a_bad_request_in_a_chain,
     .parameter = 1},
    {.name = "an overflow of a CQ is an event", .run = an_overflow_is_an_event},
    {.name = "an overflow loses no entry before it", .run = an_overflow_loses_no_entry_before_it},
    {.name = "an overflow is one queue's own", .run = an_overflow_is_one_queues_own},
    {.name = "a queue pair gives its entries back", .run = a_queue_pair_gives_its_entries_back},
    {.name = "a CQ can be filled to the last entry", .run = a_cq_can_be_filled_to_the_last_entry},
};

const struct check_group queues_checks = GROUP("queues", checks);
