/* SPDX-License-Identifier: MIT */
/* The states of queue pairs that are not reliable: what leads where, and with which attributes. */
#include "tests/conformance.h"

enum verdict { ILLEGAL, LEGAL, EITHER };

/* InfiniBand specification, 10.3.1: as for RC, except that SQE is there (see also the checks on
 * send queues that stop). From RESET to ERR only some devices go. */
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

static void make_pair(struct trial *t)
{
    struct options o = default_options();
    o.type = (enum ibv_qp_type)t->check->size;
    pair_make(t, &o);
}

static int mask_of(const struct trial *t, enum ibv_qp_state from, enum ibv_qp_state to,
                   struct ibv_qp_attr *attr)
{
    int full = fill_attr(&t->a, &t->b.address, to, attr);
    bool path = (to == IBV_QPS_INIT && from <= IBV_QPS_INIT) ||
                (to == IBV_QPS_RTR && from == IBV_QPS_INIT) ||
                (to == IBV_QPS_RTS && from == IBV_QPS_RTR);
    return transitions[from][to] != ILLEGAL && !path ? IBV_QP_STATE : full;
}

static void every_transition_from(struct trial *t)
{
    enum ibv_qp_state from = (enum ibv_qp_state)t->check->parameter;
    make_pair(t);
    for (int to = IBV_QPS_RESET; to <= IBV_QPS_ERR; to++) {
        struct ibv_qp_attr attr;
        expect_equal(t, move(t, &t->a, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
        bring(t, &t->a, &t->b.address, from);
        int mask = mask_of(t, from, (enum ibv_qp_state)to, &attr);
        int err = t->verbs->modify_qp(t->a.qp, &attr, mask);
        enum verdict verdict = transitions[from][to];
        if (verdict != EITHER)
            expect(t, (err == 0) == (verdict == LEGAL), "%s to %s is %s: %s", state_name(from),
                   state_name((enum ibv_qp_state)to), verdict == LEGAL ? "legal" : "illegal",
                   strerror(err));
        expect_state(t, &t->a, err ? from : (enum ibv_qp_state)to);
    }
}

static void required_attributes(struct trial *t)
{
    enum ibv_qp_state to = (enum ibv_qp_state)t->check->parameter;
    make_pair(t);
    bring(t, &t->a, &t->b.address, (enum ibv_qp_state)(to - 1));
    struct ibv_qp_attr attr;
    int mask = fill_attr(&t->a, &t->b.address, to, &attr);
    for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1) {
        if (!(mask & bit) || bit == IBV_QP_STATE)
            continue;
        expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask & ~bit), EINVAL,
                     "modify_qp without a required attribute");
    }
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask), 0, "modify_qp with all");
    expect_state(t, &t->a, to);
}

/* What belongs to other transports has no place here. */
static void foreign_attributes(struct trial *t)
{
    enum ibv_qp_state to = (enum ibv_qp_state)t->check->parameter;
    bool datagrams = t->check->size == IBV_QPT_UD;
    int foreign = to == IBV_QPS_INIT  ? (datagrams ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)
                  : to == IBV_QPS_RTR ? IBV_QP_MIN_RNR_TIMER
                                      : IBV_QP_TIMEOUT;
    make_pair(t);
    bring(t, &t->a, &t->b.address, (enum ibv_qp_state)(to - 1));
    struct ibv_qp_attr attr;
    int mask = fill_attr(&t->a, &t->b.address, to, &attr);
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, mask | foreign), EINVAL,
                 "modify_qp with an attribute of another transport");
    expect_state(t, &t->a, (enum ibv_qp_state)(to - 1));
}

static void sends_are_refused_before_rts(struct trial *t)
{
    make_pair(t);
    bring(t, &t->a, &t->b.address, IBV_QPS_RTR);
    struct work w;
    struct ibv_send_wr *bad = NULL;
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
    if (t->check->size == IBV_QPT_UD) {
        t->a.ah = trial_ah(t, &t->a, &t->b.address, t->a.gid_index);
        aim(&w, &t->a, &t->b);
    }
    expect_equal(t, t->verbs->post_send(t->a.qp, &w.wr, &bad), EINVAL, "post_send in RTR");
    expect_quiet(t, t->a.send_cq);
}

static void query_gives_back_what_was_set(struct trial *t)
{
    struct options o = default_options();
    o.type = (enum ibv_qp_type)t->check->size;
    o.qkey = 0x1357;
    o.mtu = IBV_MTU_1024;
    trial_connect(t, &o);
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init = {0};
    expect_equal(t,
                 t->verbs->query_qp(t->a.qp, &attr,
                                    IBV_QP_STATE | IBV_QP_QKEY | IBV_QP_SQ_PSN | IBV_QP_PATH_MTU,
                                    &init),
                 0, "query_qp");
    expect_equal(t, attr.qp_state, IBV_QPS_RTS, "qp_state");
    expect_equal(t, attr.sq_psn, t->a.address.psn, "sq_psn");
    if (o.type == IBV_QPT_UD) {
        expect_equal(t, attr.qkey, 0x1357, "qkey");
        return;
    }
    expect_equal(t, attr.path_mtu, IBV_MTU_1024, "path_mtu");
    expect_equal(t, attr.dest_qp_num, t->b.qp->qp_num, "dest_qp_num");
    expect_equal(t, attr.rq_psn, t->b.address.psn, "rq_psn");
}

static void a_reset_forgets_all(struct trial *t)
{
    struct options o = default_options();
    o.type = (enum ibv_qp_type)t->check->size;
    trial_connect(t, &o);
    struct receive r;
    for (int i = 0; i < 3; i++)
        give_receive(t, &r, 0, 64);
    expect_equal(t, move(t, &t->b, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_RESET), 0, "modify_qp to RESET");
    expect_quiet(t, t->b.recv_cq);
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    struct work w;
    give_receive(t, &r, 1024, 64);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
    if (o.type == IBV_QPT_UD)
        aim(&w, &t->a, &t->b);
    post(t, &t->a, &w);
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
}

static void a_drained_send_queue_waits_for_rts(struct trial *t)
{
    struct options o = default_options();
    o.type = (enum ibv_qp_type)t->check->size;
    trial_connect(t, &o);
    expect_equal(t, move(t, &t->a, NULL, IBV_QPS_SQD), 0, "modify_qp to SQD");
    struct receive r;
    struct work w;
    give_receive(t, &r, 1024, 64);
    work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 16);
    if (o.type == IBV_QPT_UD)
        aim(&w, &t->a, &t->b);
    post(t, &t->a, &w);
    expect_quiet(t, t->a.send_cq);
    expect_quiet(t, t->b.recv_cq);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    expect_equal(t, t->verbs->modify_qp(t->a.qp, &attr, IBV_QP_STATE), 0, "modify_qp to RTS");
    expect_received(t, &t->b, &r, IBV_WC_SUCCESS);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
}

#define ONE(text, function, type, value)                                                           \
    {                                                                                              \
        .name = (text), .run = (function), .size = (type), .parameter = (value)                    \
    }
#define OF(text, type)                                                                             \
    ONE(text " transitions from RESET", every_transition_from, type, IBV_QPS_RESET),               \
        ONE(text " transitions from INIT", every_transition_from, type, IBV_QPS_INIT),             \
        ONE(text " transitions from RTR", every_transition_from, type, IBV_QPS_RTR),               \
        ONE(text " transitions from RTS", every_transition_from, type, IBV_QPS_RTS),               \
        ONE(text " transitions from SQD", every_transition_from, type, IBV_QPS_SQD),               \
        ONE(text " transitions from ERR", every_transition_from, type, IBV_QPS_ERR),               \
        ONE(text ": INIT needs its attributes", required_attributes, type, IBV_QPS_INIT),          \
        ONE(text ": RTR needs its attributes", required_attributes, type, IBV_QPS_RTR),            \
        ONE(text ": RTS needs its attributes", required_attributes, type, IBV_QPS_RTS),            \
        ONE(text ": INIT takes none of others", foreign_attributes, type, IBV_QPS_INIT),           \
        ONE(text ": RTR takes none of others", foreign_attributes, type, IBV_QPS_RTR),             \
        ONE(text ": RTS takes none of others", foreign_attributes, type, IBV_QPS_RTS),             \
        ONE(text ": sends are refused before RTS", sends_are_refused_before_rts, type, 0),         \
        ONE(text ": query_qp gives back what was set", query_gives_back_what_was_set, type, 0),    \
        ONE(text ": RESET forgets all", a_reset_forgets_all, type, 0),                             \
        ONE(text ": SQD holds back until RTS", a_drained_send_queue_waits_for_rts, type, 0)

static const struct check checks[] = {OF("UC", IBV_QPT_UC), OF("UD", IBV_QPT_UD)};

const struct check_group transport_checks = GROUP("states of other transports", checks);
