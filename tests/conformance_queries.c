/* SPDX-License-Identifier: MIT */
/* What a device says of itself must agree, whichever call is asked. */
#include "tests/conformance.h"
#include <arpa/inet.h>

static void device_ex_says_the_same(struct trial *t)
{
    struct ibv_device_attr plain;
    struct ibv_device_attr_ex ex;
    memset(&ex, 0xa5, sizeof ex);
    expect_equal(t, t->verbs->query_device(t->a.context, &plain), 0, "query_device");
    expect_equal(t, t->verbs->query_device_ex(t->a.context, NULL, &ex), 0, "query_device_ex");
    const struct ibv_device_attr *orig = &ex.orig_attr;
    expect(t, !strcmp(orig->fw_ver, plain.fw_ver), "fw_ver");
    expect_equal(t, orig->node_guid == plain.node_guid, 1, "the node's GUIDs are one");
    expect_equal(t, orig->max_qp, plain.max_qp, "max_qp");
    expect_equal(t, orig->max_qp_wr, plain.max_qp_wr, "max_qp_wr");
    expect_equal(t, orig->max_sge, plain.max_sge, "max_sge");
    expect_equal(t, orig->max_cq, plain.max_cq, "max_cq");
    expect_equal(t, orig->max_cqe, plain.max_cqe, "max_cqe");
    expect_equal(t, orig->max_mr, plain.max_mr, "max_mr");
    expect_equal(t, orig->max_srq, plain.max_srq, "max_srq");
    expect_equal(t, orig->phys_port_cnt, plain.phys_port_cnt, "phys_port_cnt");
}

static void device_ex_refuses_what_it_does_not_know(struct trial *t)
{
    struct ibv_query_device_ex_input input = {.comp_mask = 1u << 31};
    struct ibv_device_attr_ex ex;
    int err = t->verbs->query_device_ex(t->a.context, &input, &ex);
    expect(t, err == EINVAL || err == EOPNOTSUPP, "query_device_ex: %d", err);
}

static void services_have_limits(struct trial *t)
{
    struct ibv_device_attr attr;
    expect_equal(t, t->verbs->query_device(t->a.context, &attr), 0, "query_device");
    expect(t, attr.max_ah > 0, "max_ah %d", attr.max_ah);
    expect(t, attr.max_srq > 0, "max_srq %d", attr.max_srq);
    expect(t, attr.max_srq_wr > 0, "max_srq_wr %d", attr.max_srq_wr);
    expect(t, attr.max_srq_sge > 0, "max_srq_sge %d", attr.max_srq_sge);
    expect(t, attr.max_pkeys > 0, "max_pkeys %d", attr.max_pkeys);
}

static void the_first_pkey_is_the_default(struct trial *t)
{
    __be16 pkey = 0;
    expect_equal(t, t->verbs->query_pkey(t->a.context, 1, 0, &pkey), 0, "query_pkey");
    expect_equal(t, ntohs(pkey), 0xffff, "the first P_Key");
}

static void a_pkey_that_is_not_there(struct trial *t)
{
    __be16 pkey = 0;
    int index = t->a.port.pkey_tbl_len;
    expect(t, t->verbs->query_pkey(t->a.context, 1, index, &pkey) != 0,
           "query_pkey beyond the table");
    expect(t, t->verbs->query_pkey(t->a.context, 77, 0, &pkey) != 0, "query_pkey of port 77");
}

static void the_gid_table_says_the_same(struct trial *t)
{
    struct ibv_gid_entry table[512];
    ssize_t count = t->verbs->query_gid_table(t->a.context, table, 512, 0);
    expect(t, count > 0, "query_gid_table: %zd", count);
    for (ssize_t i = 0; i < count; i++) {
        struct ibv_gid_entry one;
        union ibv_gid gid;
        expect_equal(
            t, t->verbs->query_gid_ex(t->a.context, table[i].port_num, table[i].gid_index, &one, 0),
            0, "query_gid_ex");
        expect_equal(t, t->verbs->query_gid(t->a.context, 1, (int)table[i].gid_index, &gid), 0,
                     "query_gid");
        expect(t, !memcmp(&one.gid, &table[i].gid, sizeof gid), "GID %zd of query_gid_ex", i);
        expect(t, !memcmp(&gid, &table[i].gid, sizeof gid), "GID %zd of query_gid", i);
        expect_equal(t, one.gid_type, table[i].gid_type, "gid_type");
    }
}

static void a_gid_that_is_not_there(struct trial *t)
{
    struct ibv_gid_entry entry;
    union ibv_gid gid;
    int index = t->a.port.gid_tbl_len;
    expect(t, t->verbs->query_gid(t->a.context, 1, index, &gid) != 0, "query_gid beyond the table");
    expect(t, t->verbs->query_gid_ex(t->a.context, 1, (uint32_t)index, &entry, 0) != 0,
           "query_gid_ex beyond the table");
    expect(t, t->verbs->query_gid_ex(t->a.context, 1, 0, &entry, 1u << 31) != 0,
           "query_gid_ex with an unknown flag");
}

/* ibv_query_qp(3): what a queue pair was made with. */
static void queue_pairs_tell_their_type(struct trial *t)
{
    struct options o = default_options();
    o.type = (enum ibv_qp_type)t->check->parameter;
    o.srq_wr = 16;
    trial_connect(t, &o);
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init = {0};
    expect_equal(t, t->verbs->query_qp(t->b.qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init), 0,
                 "query_qp");
    expect_equal(t, attr.qp_state, IBV_QPS_RTS, "qp_state");
    expect_equal(t, init.qp_type, o.type, "qp_type");
    expect_equal(t, t->b.qp->qp_type, o.type, "qp_type of the queue pair");
    expect(t, init.srq == t->b.srq && t->b.qp->srq == t->b.srq, "the shared receive queue");
    expect(t, init.send_cq == t->b.send_cq && init.recv_cq == t->b.recv_cq, "the CQs");
}

/* What is not there answers; none of it may crash. */
static void memory_windows_answer(struct trial *t)
{
    errno = 0;
    struct ibv_mw *mw = ibv_alloc_mw(t->a.pd, IBV_MW_TYPE_1);
    if (mw)
        expect_equal(t, ibv_dealloc_mw(mw), 0, "dealloc_mw");
    else
        expect(t, errno == EOPNOTSUPP || errno == EINVAL || errno == ENOMEM, "alloc_mw: %s",
               strerror(errno));
}

static void extensions_answer(struct trial *t)
{
    struct ibv_context *context = t->a.context;
    struct ibv_xrcd_init_attr xrcd = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = 0100};
    struct ibv_xrcd *domain = ibv_open_xrcd(context, &xrcd);
    if (domain)
        ibv_close_xrcd(domain);
    struct ibv_alloc_dm_attr dm_attr = {.length = 64};
    struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
    if (dm)
        ibv_free_dm(dm);
    struct ibv_td_init_attr td_attr = {0};
    struct ibv_td *td = ibv_alloc_td(context, &td_attr);
    if (td)
        ibv_dealloc_td(td);
    struct ibv_counters_init_attr counters_attr = {0};
    struct ibv_counters *counters = ibv_create_counters(context, &counters_attr);
    if (counters)
        ibv_destroy_counters(counters);
    struct ibv_mr *null_mr = ibv_alloc_null_mr(t->a.pd);
    if (null_mr)
        t->verbs->dereg_mr(null_mr);
    struct ibv_wq_init_attr wq_attr = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1};
    expect(t, !ibv_create_wq(context, &wq_attr), "a WQ without CQ and PD is made");
    struct ibv_sge sge = {0};
    expect(t, ibv_advise_mr(t->a.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) != 0,
           "advise_mr of nothing");
}

#define FOR(text, type)                                                                            \
    {                                                                                              \
        .name = (text), .run = queue_pairs_tell_their_type, .parameter = (type)                    \
    }

static const struct check checks[] = {
    {.name = "query_device_ex says the same", .run = device_ex_says_the_same},
    {.name = "query_device_ex refuses what it does not know",
     .run = device_ex_refuses_what_it_does_not_know},
    {.name = "services have limits", .run = services_have_limits},
    {.name = "the first P_Key is the default", .run = the_first_pkey_is_the_default},
    {.name = "a P_Key that is not there", .run = a_pkey_that_is_not_there},
    {.name = "the GID table says the same", .run = the_gid_table_says_the_same},
    {.name = "a GID that is not there", .run = a_gid_that_is_not_there},
    FOR("a queue pair tells its type and SRQ, RC", IBV_QPT_RC),
    FOR("a queue pair tells its type and SRQ, UC", IBV_QPT_UC),
    FOR("a queue pair tells its type and SRQ, UD", IBV_QPT_UD),
    {.name = "memory windows answer", .run = memory_windows_answer},
    {.name = "extensions answer", .run = extensions_answer},
};

const struct check_group queries_checks = GROUP("queries", checks);
