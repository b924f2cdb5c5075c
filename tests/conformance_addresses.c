/* SPDX-License-Identifier: MIT */
/* Address handles, what a header tells of a sender, and errors of a datagram queue pair's own. */
#include "tests/conformance.h"

enum { GRH = 40 };

static void connect_datagrams(struct trial *t)
{
    struct options o = default_options();
    o.type = IBV_QPT_UD;
    trial_connect(t, &o);
}

static void make(struct trial *t, struct work *w, uint32_t bytes)
{
    work_make(t, w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, bytes);
    aim(w, &t->a, &t->b);
}

/* A datagram from a lands at b's first byte. */
static struct ibv_wc hear(struct trial *t)
{
    struct receive r;
    struct work w;
    give_receive(t, &r, 0, GRH + 64);
    payload(t, &t->a, 0, 64);
    make(t, &w, 64);
    post(t, &t->a, &w);
    struct ibv_wc wc = expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    return wc;
}

/* b answers by this handle. */
static void answer(struct trial *t, struct ibv_ah *ah, uint32_t qpn)
{
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->a, 4096, GRH + 32);
    post_receive(t, &t->a, &r);
    payload(t, &t->b, 2048, 32);
    work_make(t, &w, IBV_WR_SEND, &t->b, 2048, &t->a.address, 0, 32);
    w.wr.wr.ud.ah = ah;
    w.wr.wr.ud.remote_qpn = qpn;
    w.wr.wr.ud.remote_qkey = t->a.options.qkey;
    post(t, &t->b, &w);
    struct ibv_wc wc = expect_received(t, &t->a, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->b, &w, IBV_WC_SUCCESS);
    expect_equal(t, wc.src_qp, t->b.address.qpn, "src_qp of the answer");
    expect(t, !memcmp(t->a.memory + 4096 + GRH, t->b.memory + 2048, 32), "the answer differs");
}

static void a_handle_from_a_completion(struct trial *t)
{
    connect_datagrams(t);
    struct ibv_wc wc = hear(t);
    struct ibv_ah *ah =
        t->verbs->create_ah_from_wc(t->b.pd, &wc, (struct ibv_grh *)(void *)t->b.memory, 1);
    expect(t, ah, "create_ah_from_wc: %s", strerror(errno));
    trial_track(t, AH, ah, 0);
    answer(t, ah, wc.src_qp);
}

static void attributes_from_a_completion(struct trial *t)
{
    connect_datagrams(t);
    struct ibv_wc wc = hear(t);
    struct ibv_ah_attr attr;
    memset(&attr, 0xa5, sizeof attr);
    expect_equal(t,
                 t->verbs->init_ah_from_wc(t->b.context, 1, &wc,
                                           (struct ibv_grh *)(void *)t->b.memory, &attr),
                 0, "init_ah_from_wc");
    expect_equal(t, attr.is_global, 1, "is_global");
    expect_equal(t, attr.port_num, 1, "port_num");
    expect(t, !memcmp(&attr.grh.dgid, &t->a.address.gid, sizeof attr.grh.dgid),
           "the destination is not the sender's GID");
    expect_equal(t, attr.grh.sgid_index, t->b.gid_index, "sgid_index");
    struct ibv_ah *ah = t->verbs->create_ah(t->b.pd, &attr);
    expect(t, ah, "create_ah: %s", strerror(errno));
    trial_track(t, AH, ah, 0);
    answer(t, ah, wc.src_qp);
}

/* By every GID of the port: the header that comes names the sender by the same kind. */
static void every_gid_leads_there(struct trial *t)
{
    connect_datagrams(t);
    struct ibv_gid_entry entry;
    int used = 0;
    for (uint32_t i = 0; i < (uint32_t)t->b.port.gid_tbl_len; i++) {
        if (t->verbs->query_gid_ex(t->b.context, 1, i, &entry, 0) ||
            entry.gid_type != IBV_GID_TYPE_ROCE_V2)
            continue;
        struct address to = t->b.address;
        to.gid = entry.gid;
        t->a.ah = trial_ah(t, &t->a, &to, (int)i);
        struct ibv_wc wc = hear(t);
        struct ibv_ah_attr attr;
        union ibv_gid own;
        expect_equal(t,
                     t->verbs->init_ah_from_wc(t->b.context, 1, &wc,
                                               (struct ibv_grh *)(void *)t->b.memory, &attr),
                     0, "init_ah_from_wc");
        expect_equal(t, t->verbs->query_gid(t->a.context, 1, (int)i, &own), 0, "query_gid");
        expect(t, !memcmp(&attr.grh.dgid, &own, sizeof own), "GID %u: another sender's", i);
        used++;
    }
    expect(t, used > 0, "the port has no GID of RoCEv2");
}

static void many_handles(struct trial *t)
{
    connect_datagrams(t);
    struct ibv_ah *ah[200];
    for (int i = 0; i < 200; i++)
        ah[i] = trial_ah(t, &t->a, &t->b.address, t->a.gid_index);
    for (int i = 0; i < 200; i++) {
        trial_forget(t, ah[i]);
        expect_equal(t, t->verbs->destroy_ah(ah[i]), 0, "destroy_ah");
    }
    hear(t);
}

static void a_handle_may_go_after_its_completion(struct trial *t)
{
    connect_datagrams(t);
    for (int i = 0; i < 20; i++) {
        t->a.ah = trial_ah(t, &t->a, &t->b.address, t->a.gid_index);
        hear(t);
        trial_forget(t, t->a.ah);
        expect_equal(t, t->verbs->destroy_ah(t->a.ah), 0, "destroy_ah");
    }
}

enum wrong { PORT_NUMBER, SGID_INDEX, ZERO_GID, NO_GRH_NO_LID };

static void wrong_attributes_are_refused(struct trial *t)
{
    struct ibv_ah_attr attr = {
        .is_global = 1,
        .port_num = 1,
        .grh = {.dgid = t->b.address.gid, .sgid_index = (uint8_t)t->a.gid_index, .hop_limit = 64}};
    switch ((enum wrong)t->check->parameter) {
    case PORT_NUMBER:
        attr.port_num = 9;
        break;
    case SGID_INDEX:
        attr.grh.sgid_index = 255;
        break;
    case ZERO_GID:
        memset(&attr.grh.dgid, 0, sizeof attr.grh.dgid);
        break;
    case NO_GRH_NO_LID:
        attr.is_global = 0;
    }
    struct ibv_ah *ah = t->verbs->create_ah(t->a.pd, &attr);
    int err = errno;
    if (ah)
        trial_track(t, AH, ah, 0);
    expect(t, !ah, "create_ah takes it");
    expect(t, err == EINVAL || err == ENODATA || err == ENETUNREACH, "create_ah: %s",
           strerror(err));
}

static void a_handle_holds_its_pd(struct trial *t)
{
    struct side side = t->a;
    side.pd = trial_pd(t, t->a.context);
    struct ibv_ah *ah = trial_ah(t, &side, &t->b.address, t->a.gid_index);
    expect_equal(t, t->verbs->dealloc_pd(side.pd), EBUSY, "dealloc_pd with an address handle");
    trial_forget(t, ah);
    expect_equal(t, t->verbs->destroy_ah(ah), 0, "destroy_ah");
}

/* --- errors of one's own --------------------------------------------------------------------- */

static void longer_than_the_mtu(struct trial *t)
{
    connect_datagrams(t);
    struct work w;
    struct ibv_send_wr *bad = NULL;
    make(t, &w, mtu_bytes(&t->a) + 1);
    int err = t->verbs->post_send(t->a.qp, &w.wr, &bad);
    if (err) {
        expect_equal(t, err, EINVAL, "post_send");
        return; /* refused at once is as good */
    }
    expect_sent(t, &t->a, &w, IBV_WC_LOC_LEN_ERR);
    expect_quiet(t, t->b.recv_cq);
}

static void a_bad_lkey_stops_the_send_queue(struct trial *t)
{
    connect_datagrams(t);
    struct work bad, behind;
    make(t, &bad, 16);
    make(t, &behind, 16);
    bad.sge[0].lkey ^= 0x5a5a5a;
    bad.wr.next = &behind.wr;
    post(t, &t->a, &bad);
    expect_sent(t, &t->a, &bad, IBV_WC_LOC_PROT_ERR);
    expect_sent(t, &t->a, &behind, IBV_WC_WR_FLUSH_ERR);
    expect_state(t, &t->a, IBV_QPS_SQE);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE};
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), 0,
                 "modify_qp from SQE to RTS");
    hear(t);
}

static void a_receive_with_a_bad_key(struct trial *t)
{
    connect_datagrams(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->b, 1024, GRH + 16);
    r.sge[0].lkey ^= 0x5a5a5a;
    post_receive(t, &t->b, &r);
    make(t, &w, 16);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_received(t, &t->b, &r, IBV_WC_LOC_PROT_ERR);
    expect_state(t, &t->b, IBV_QPS_ERR);
    expect_memory(t, &t->b, "b");
}

static void what_is_not_carried_is_refused(struct trial *t)
{
    connect_datagrams(t);
    struct work w;
    struct ibv_send_wr *bad = NULL;
    make(t, &w, 8);
    w.wr.opcode = (enum ibv_wr_opcode)t->check->parameter;
    int err = t->verbs->post_send(t->a.qp, &w.wr, &bad);
    expect(t, err == EINVAL || err == EOPNOTSUPP, "post_send: %s", strerror(err));
    expect(t, bad == &w.wr, "bad_wr does not point to the request");
    expect_quiet(t, t->a.send_cq);
}

static void errors_flush_both_queues(struct trial *t)
{
    connect_datagrams(t);
    struct receive r;
    struct work w;
    receive_make(t, &r, &t->a, 0, 64);
    post_receive(t, &t->a, &r);
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_ERR), 0, "modify_qp to ERR");
    expect_received(t, &t->a, &r, IBV_WC_WR_FLUSH_ERR);
    make(t, &w, 16);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_WR_FLUSH_ERR);
    expect_quiet(t, t->b.recv_cq);
}

static void a_solicited_datagram_wakes(struct trial *t)
{
    struct options o = default_options();
    o.type = IBV_QPT_UD;
    o.channel = true;
    trial_connect(t, &o);
    struct receive r;
    struct work w;
    struct ibv_cq *found = NULL;
    void *cq_context = NULL;
    give_receive(t, &r, 0, GRH + 16);
    expect_equal(t, t->verbs->req_notify_cq(t->b.recv_cq, 1), 0, "req_notify_cq");
    make(t, &w, 16);
    w.wr.send_flags |= IBV_SEND_SOLICITED;
    post(t, &t->a, &w);
    expect(t, poll_readable(t->b.channel->fd, t->deadline_ms), "the channel is not readable");
    expect_equal(t, t->verbs->get_cq_event(t->b.channel, &found, &cq_context), 0, "get_cq_event");
    t->verbs->ack_cq_events(found, 1);
    expect(t, found == t->b.recv_cq, "the event is of another CQ");
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
}

#define WITH(text, function, value)                                                                \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (value)                                    \
    }

static const struct check checks[] = {
    {.name = "a handle from a completion", .run = a_handle_from_a_completion},
    {.name = "attributes from a completion", .run = attributes_from_a_completion},
    {.name = "every GID leads there", .run = every_gid_leads_there},
    {.name = "many address handles", .run = many_handles},
    {.name = "a handle may go after its completion", .run = a_handle_may_go_after_its_completion},
    WITH("a handle of a port that is not there", wrong_attributes_are_refused, PORT_NUMBER),
    WITH("a handle of a GID index that is not there", wrong_attributes_are_refused, SGID_INDEX),
    WITH("a handle of no GID", wrong_attributes_are_refused, ZERO_GID),
    WITH("a handle of neither GRH nor LID", wrong_attributes_are_refused, NO_GRH_NO_LID),
    {.name = "a handle holds its PD", .run = a_handle_holds_its_pd},
    {.name = "UD: longer than the MTU", .run = longer_than_the_mtu},
    {.name = "UD: a bad lkey stops the send queue", .run = a_bad_lkey_stops_the_send_queue},
    {.name = "UD: a receive with a bad key", .run = a_receive_with_a_bad_key},
    WITH("UD carries no WRITE", what_is_not_carried_is_refused, IBV_WR_RDMA_WRITE),
    WITH("UD carries no WRITE_WITH_IMM", what_is_not_carried_is_refused,
         IBV_WR_RDMA_WRITE_WITH_IMM),
    WITH("UD carries no READ", what_is_not_carried_is_refused, IBV_WR_RDMA_READ),
    WITH("UD carries no fetch and add", what_is_not_carried_is_refused,
         IBV_WR_ATOMIC_FETCH_AND_ADD),
    {.name = "UD: ERR flushes both queues", .run = errors_flush_both_queues},
    {.name = "UD: a solicited datagram wakes", .run = a_solicited_datagram_wakes},
};

const struct check_group address_checks = GROUP("address handles", checks);
