/* SPDX-License-Identifier: MIT */
/* The states of a queue pair: which transitions exist, what each needs, what each state refuses. */
#include "tests/conformance.h"

enum verdict { ILLEGAL, LEGAL, EITHER };

/*
 * InfiniBand Architecture, "QP state diagram", and ibv_modify_qp(3), for RC: RESET and ERR are
 * reached from everywhere (from RESET to ERR only some devices go), the rest along the path.
 * SQE is not reached by an RC queue pair, nor may it be asked for.
 */
static const enum verdict transitions[7][7] = {
    /*            RESET  INIT     RTR      RTS      SQD      SQE      ERR */
    /* RESET */ {LEGAL, LEGAL, ILLEGAL, ILLEGAL, ILLEGAL, ILLEGAL, EITHER},
    /* INIT  */ {LEGAL, LEGAL, LEGAL, ILLEGAL, ILLEGAL, ILLEGAL, LEGAL},
    /* RTR   */ {LEGAL, ILLEGAL, ILLEGAL, LEGAL, ILLEGAL, ILLEGAL, LEGAL},
    /* RTS   */ {LEGAL, ILLEGAL, ILLEGAL, LEGAL, LEGAL, ILLEGAL, LEGAL},
    /* SQD   */ {LEGAL, ILLEGAL, ILLEGAL, LEGAL, LEGAL, ILLEGAL, LEGAL},
    /* SQE   */ {LEGAL, ILLEGAL, ILLEGAL, LEGAL, ILLEGAL, ILLEGAL, LEGAL},
    /* ERR   */ {LEGAL, ILLEGAL, ILLEGAL, ILLEGAL, ILLEGAL, ILLEGAL, LEGAL},
};

/* The mask that a transition takes: that of fill_attr where it is the usual path. */
static int mask_of(enum ibv_qp_state from, enum ibv_qp_state to, int full)
{
    bool path = (to == IBV_QPS_INIT && from <= IBV_QPS_INIT) ||
                (to == IBV_QPS_RTR && from == IBV_QPS_INIT) ||
                (to == IBV_QPS_RTS && from == IBV_QPS_RTR);
    bool legal = transitions[from][to] != ILLEGAL;
    return legal && !path ? IBV_QP_STATE : full;
}

static void every_transition_from(struct trial *t)
{
    enum ibv_qp_state from = (enum ibv_qp_state)t->check->parameter;
    struct options o = default_options();
    pair_make(t, &o);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    for (int to = IBV_QPS_RESET; to <= IBV_QPS_ERR; to++) {
        expect_equal(t, move(t, &t->a, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
        bring(t, &t->a, &t->b.address, from);
        expect_state(t, &t->a, from);
        struct ibv_qp_attr attr;
        int mask = fill_attr(&t->a, &t->b.address, (enum ibv_qp_state)to, &attr);
        mask = mask_of(from, (enum ibv_qp_state)to, mask);
        int err = t->verbs->modify_qp(t->a.qp, &attr, mask);
        enum verdict verdict = transitions[from][to];
        if (verdict != EITHER)
            expect(t, (err == 0) == (verdict == LEGAL), "%s to %s is %s: %s", state_name(from),
                   state_name((enum ibv_qp_state)to), verdict == LEGAL ? "legal" : "illegal",
                   strerror(err));
        if (verdict == ILLEGAL)
            expect_equal(t, err, EINVAL, "errno of an illegal transition");
        expect_state(t, &t->a, err ? from : (enum ibv_qp_state)to);
    }
}

static void required_attributes(struct trial *t)
{
    enum ibv_qp_state to = (enum ibv_qp_state)t->check->parameter;
    enum ibv_qp_state from = (enum ibv_qp_state)(to - 1);
    pair_make(t, NULL);
    bring(t, &t->a, &t->b.address, from);
    struct ibv_qp_attr attr;
    int mask = fill_attr(&t->a, &t->b.address, to, &attr);
    for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1) {
        if (!(mask & bit) || bit == IBV_QP_STATE)
            continue;
        expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask & ~bit), EINVAL,
                     "modify_qp without a required attribute");
        expect_state(t, &t->a, from);
    }
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask), 0, "modify_qp with all");
    expect_state(t, &t->a, to);
}

static void attributes_out_of_place(struct trial *t)
{
    enum ibv_qp_state to = (enum ibv_qp_state)t->check->parameter;
    enum ibv_qp_state from = (enum ibv_qp_state)(to - 1);
    static const int foreign[] = {0,
                                  /* INIT */ IBV_QP_SQ_PSN | IBV_QP_DEST_QPN,
                                  /* RTR */ IBV_QP_TIMEOUT | IBV_QP_SQ_PSN,
                                  /* RTS */ IBV_QP_DEST_QPN | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN};
    pair_make(t, NULL);
    bring(t, &t->a, &t->b.address, from);
    struct ibv_qp_attr attr;
    int mask = fill_attr(&t->a, &t->b.address, to, &attr);
    attr.path_mtu = IBV_MTU_256;
    for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1) {
        if (!(foreign[to] & bit))
            continue;
        expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask | bit), EINVAL,
                     "modify_qp with an attribute out of place");
        expect_state(t, &t->a, from);
    }
}

static void impossible_values(struct trial *t)
{
    pair_make(t, NULL);
    struct ibv_qp_attr attr;
    int mask = fill_attr(&t->a, &t->b.address, IBV_QPS_INIT, &attr);
    attr.port_num = 77;
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask), EINVAL, "port_num 77");
    attr.port_num = 0;
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask), EINVAL, "port_num 0");
    expect_state(t, &t->a, IBV_QPS_RESET);
    bring(t, &t->a, &t->b.address, IBV_QPS_INIT);
    mask = fill_attr(&t->a, &t->b.address, IBV_QPS_RTR, &attr);
    attr.path_mtu = (enum ibv_mtu)(IBV_MTU_4096 + 1);
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask), EINVAL, "path_mtu of 8192");
    attr.path_mtu = (enum ibv_mtu)0;
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask), EINVAL, "path_mtu 0");
    expect_state(t, &t->a, IBV_QPS_INIT);
}

static void query_gives_back_what_was_set(struct trial *t)
{
    struct options o = default_options();
    o.timeout = 13;
    o.retry_count = 5;
    o.rnr_retry = 4;
    o.min_rnr_timer = 9;
    o.rd_atomic = 2;
    o.mtu = IBV_MTU_512;
    trial_connect(t, &o);
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init = {0};
    int mask = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT | IBV_QP_AV |
               IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
               IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN;
    expect_equal(t, t->verbs->query_qp(t->a.qp, &attr, mask, &init), 0, "query_qp");
    expect_equal(t, attr.qp_state, IBV_QPS_RTS, "qp_state");
    expect_equal(t, attr.qp_access_flags & (unsigned)o.qp_access, o.qp_access, "access flags");
    expect_equal(t, attr.port_num, 1, "port_num");
    expect_equal(t, attr.path_mtu, o.mtu, "path_mtu");
    expect_equal(t, attr.timeout, o.timeout, "timeout");
    expect_equal(t, attr.retry_cnt, o.retry_count, "retry_cnt");
    expect_equal(t, attr.rnr_retry, o.rnr_retry, "rnr_retry");
    expect_equal(t, attr.min_rnr_timer, o.min_rnr_timer, "min_rnr_timer");
    expect_equal(t, attr.max_rd_atomic, o.rd_atomic, "max_rd_atomic");
    expect_equal(t, attr.max_dest_rd_atomic, o.rd_atomic, "max_dest_rd_atomic");
    expect_equal(t, attr.dest_qp_num, t->b.qp->qp_num, "dest_qp_num");
    expect_equal(t, attr.rq_psn, t->b.address.psn, "rq_psn");
    expect_equal(t, attr.sq_psn, t->a.address.psn, "sq_psn");
    expect(t, !memcmp(&attr.ah_attr.grh.dgid, &t->b.address.gid, 16) || t->a.address.lid,
           "the peer's GID");
    expect(t, init.send_cq == t->a.send_cq && init.recv_cq == t->a.recv_cq, "the CQs");
    expect(t, init.qp_context == &t->a && init.qp_type == IBV_QPT_RC, "qp_context, qp_type");
}

static void query_gives_the_current_state(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init = {0};
    int mask = IBV_QP_STATE | IBV_QP_CUR_STATE;
    expect_equal(t, t->verbs->query_qp(t->a.qp, &attr, mask, &init), 0, "query_qp");
    expect_equal(t, attr.cur_qp_state, IBV_QPS_RTS, "cur_qp_state");
}

static void query_gives_the_capacity_granted(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init = {0};
    expect_equal(t, t->verbs->query_qp(t->a.qp, &attr, IBV_QP_CAP, &init), 0, "query_qp");
    expect_equal(t, attr.cap.max_send_wr, t->a.cap.max_send_wr, "max_send_wr");
    expect_equal(t, attr.cap.max_recv_wr, t->a.cap.max_recv_wr, "max_recv_wr");
}

/* ibv_post_send(3), InfiniBand C10-96: no send before RTS. */
static void sends_are_refused_before_rts(struct trial *t)
{
    enum ibv_qp_state state = (enum ibv_qp_state)t->check->parameter;
    pair_make(t, NULL);
    bring(t, &t->a, &t->b.address, state);
    struct work w;
    struct ibv_send_wr *bad = NULL;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    expect_equal(t, t->verbs->post_send(t->a.qp, &w.wr, &bad), EINVAL, "post_send");
    expect(t, bad == &w.wr, "bad_wr does not point to the request");
    expect_quiet(t, t->a.send_cq);
}

static void receives_are_refused_in_reset(struct trial *t)
{
    pair_make(t, NULL);
    struct receive r;
    struct ibv_recv_wr *bad = NULL;
    receive_make(t, &r, &t->a, 0, 8);
    expect_equal(t, t->verbs->post_recv(t->a.qp, &r.wr, &bad), EINVAL, "post_recv in RESET");
    expect(t, bad == &r.wr, "bad_wr does not point to the request");
}

static void receives_posted_in_init_are_used(struct trial *t)
{
    pair_make(t, NULL);
    bring(t, &t->b, &t->a.address, IBV_QPS_INIT);
    struct receive r;
    receive_make(t, &r, &t->b, 512, 64);
    post_receive(t, &t->b, &r);
    expect_equal(t, move(t, &t->b, &t->a.address, IBV_QPS_RTR), 0, "modify_qp to RTR");
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    struct work w;
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 512, 64);
    expect_memory(t, &t->b, "b");
}

static void a_receiver_needs_no_rts(struct trial *t)
{
    pair_make(t, NULL);
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTR);
    struct work w;
    payload(t, &t->a, 0, 64);
    payload(t, &t->b, 4096, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 100, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    work_make(t, &w, IBV_WR_RDMA_READ, &t->a, 4096, &t->b.address, 4096, 64);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 100, 64);
    expect_copy(&t->b, 4096, &t->a, 4096, 64);
    expect_memory(t, &t->a, "a");
    expect_memory(t, &t->b, "b");
}

/* SQD holds back what is posted; RTS lets it go. */
static void a_drained_send_queue_waits_for_rts(struct trial *t)
{
    trial_connect(t, NULL);
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_SQD), 0, "modify_qp to SQD");
    struct work w;
    payload(t, &t->a, 0, 64);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 64);
    post(t, &t->a, &w);
    expect_quiet(t, t->a.send_cq);
    expect_memory(t, &t->b, "b");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, IBV_QP_STATE), 0, "modify_qp to RTS");
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 0, 64);
    expect_memory(t, &t->b, "b");
}

/* RESET forgets what was posted, without completions; then the queue pair is as new. */
static void a_reset_queue_pair_is_as_new(struct trial *t)
{
    trial_connect(t, NULL);
    struct receive stale[3], r;
    for (int i = 0; i < 3; i++) {
        receive_make(t, &stale[i], &t->b, 0, 8);
        post_receive(t, &t->b, &stale[i]);
    }
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
    expect_quiet(t, t->b.recv_cq);
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    receive_make(t, &r, &t->b, 1024, 16);
    post_receive(t, &t->b, &r);
    struct work w;
    payload(t, &t->a, 0, 16);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
    post(t, &t->a, &w);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    expect_copy(&t->a, 0, &t->b, 1024, 16);
    expect_memory(t, &t->b, "b");
}

/* ibv_modify_qp(3): the rights of peers may be changed in RTS. */
static void rights_can_be_changed_in_rts(struct trial *t)
{
    trial_connect(t, NULL);
    struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_READ};
    expect_equal(t, t->verbs->modify_qp(t->b.qp, &attr, IBV_QP_ACCESS_FLAGS), 0,
                 "modify_qp of the access flags alone");
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_READ, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
    payload(t, &t->a, 0, 8);
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    struct ibv_wc wc = next_wc(t, t->a.send_cq);
    expect(t, wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_ACCESS_ERR,
           "status '%s'", ibv_wc_status_str(wc.status));
    expect_memory(t, &t->b, "b");
}

static const struct check checks[] = {
    {.name = "transitions from RESET", .run = every_transition_from, .parameter = IBV_QPS_RESET},
    {.name = "transitions from INIT", .run = every_transition_from, .parameter = IBV_QPS_INIT},
    {.name = "transitions from RTR", .run = every_transition_from, .parameter = IBV_QPS_RTR},
    {.name = "transitions from RTS", .run = every_transition_from, .parameter = IBV_QPS_RTS},
    {.name = "transitions from SQD", .run = every_transition_from, .parameter = IBV_QPS_SQD},
    {.name = "transitions from ERR", .run = every_transition_from, .parameter = IBV_QPS_ERR},
    {.name = "INIT needs its attributes", .run = required_attributes, .parameter = IBV_QPS_INIT},
    {.name = "RTR needs its attributes", .run = required_attributes, .parameter = IBV_QPS_RTR},
    {.name = "RTS needs its attributes", .run = required_attributes, .parameter = IBV_QPS_RTS},
    {.name = "INIT takes no others", .run = attributes_out_of_place, .parameter = IBV_QPS_INIT},
    {.name = "RTR takes no others", .run = attributes_out_of_place, .parameter = IBV_QPS_RTR},
    {.name = "RTS takes no others", .run = attributes_out_of_place, .parameter = IBV_QPS_RTS},
    {.name = "impossible attribute values are refused", .run = impossible_values},
    {.name = "query_qp gives back what was set", .run = query_gives_back_what_was_set},
    {.name = "query_qp gives the current state", .run = query_gives_the_current_state},
    {.name = "query_qp gives the capacity granted", .run = query_gives_the_capacity_granted},
    {.name = "sends are refused in RESET",
     .run = sends_are_refused_before_rts,
     .parameter = IBV_QPS_RESET},
    {.name = "sends are refused in INIT",
     .run = sends_are_refused_before_rts,
     .parameter = IBV_QPS_INIT},
    {.name = "sends are refused in RTR",
     .run = sends_are_refused_before_rts,
     .parameter = IBV_QPS_RTR},
    {.name = "receives are refused in RESET", .run = receives_are_refused_in_reset},
    {.name = "receives posted in INIT are used", .run = receives_posted_in_init_are_used},
    {.name = "a receiver needs no RTS", .run = a_receiver_needs_no_rts},
    {.name = "a drained send queue waits for RTS", .run = a_drained_send_queue_waits_for_rts},
    {.name = "a reset queue pair is as new", .run = a_reset_queue_pair_is_as_new},
    {.name = "rights can be changed in RTS", .run = rights_can_be_changed_in_rts},
};

const struct check_group states_checks = GROUP("states", checks);
