/* SPDX-License-Identifier: MIT */
/* Life cycles of objects, and what can be asked of a device. */
#include "tests/conformance.h"

static void pd_with_mr_is_busy(struct trial *t)
{
    struct ibv_pd *pd = trial_pd(t, t->a.context);
    struct ibv_mr *mr = trial_mr(t, pd, trial_memory(t, 64), 64, IBV_ACCESS_LOCAL_WRITE);
    expect_equal(t, t->verbs->dealloc_pd(pd), EBUSY, "dealloc_pd with a memory region");
    deregister(t, mr);
    trial_forget(t, pd);
    expect_equal(t, t->verbs->dealloc_pd(pd), 0, "dealloc_pd without one");
}

static void pd_with_qp_is_busy(struct trial *t)
{
    trial_connect(t, NULL);
    deregister(t, t->a.mr);
    expect_equal(t, t->verbs->dealloc_pd(t->a.pd), EBUSY, "dealloc_pd with a queue pair");
    destroy_qp(t, t->a.qp);
    trial_forget(t, t->a.pd);
    expect_equal(t, t->verbs->dealloc_pd(t->a.pd), 0, "dealloc_pd without one");
}

static void cq_with_qp_is_busy(struct trial *t)
{
    trial_connect(t, NULL);
    expect_equal(t, t->verbs->destroy_cq(t->a.send_cq), EBUSY, "destroy_cq of the send queue's");
    expect_equal(t, t->verbs->destroy_cq(t->a.recv_cq), EBUSY, "destroy_cq of the receive queue's");
    destroy_qp(t, t->a.qp);
    struct ibv_cq *cqs[] = {t->a.send_cq, t->a.recv_cq};
    for (int i = 0; i < 2; i++) {
        trial_forget(t, cqs[i]);
        expect_equal(t, t->verbs->destroy_cq(cqs[i]), 0, "destroy_cq");
    }
}

static void channel_with_cq_is_busy(struct trial *t)
{
    struct ibv_comp_channel *channel = trial_channel(t, t->a.context);
    struct ibv_cq *cq = trial_cq(t, &t->a, 8, channel);
    expect_equal(t, t->verbs->destroy_comp_channel(channel), EBUSY, "destroy_comp_channel");
    trial_forget(t, cq);
    expect_equal(t, t->verbs->destroy_cq(cq), 0, "destroy_cq");
}

static void many_objects_come_and_go(struct trial *t)
{
    uint8_t *memory = trial_memory(t, 4096);
    struct options o = default_options();
    for (int round = 0; round < 300; round++) {
        struct ibv_pd *pd = trial_pd(t, t->a.context);
        struct ibv_mr *mr = trial_mr(t, pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
        t->b.send_cq = t->b.recv_cq = trial_cq(t, &t->b, 16, NULL);
        struct ibv_qp *qp = trial_qp(t, &t->b, &o);
        destroy_qp(t, qp);
        trial_forget(t, t->b.send_cq);
        expect_equal(t, t->verbs->destroy_cq(t->b.send_cq), 0, "destroy_cq");
        deregister(t, mr);
        trial_forget(t, pd);
        expect_equal(t, t->verbs->dealloc_pd(pd), 0, "dealloc_pd");
    }
}

static void qp_numbers_and_keys_differ(struct trial *t)
{
    enum { COUNT = 32 };
    struct ibv_qp *qps[COUNT];
    struct ibv_mr *mrs[COUNT];
    uint8_t *memory = trial_memory(t, 4096);
    struct options o = default_options();
    t->a.send_cq = t->a.recv_cq = trial_cq(t, &t->a, 16, NULL);
    for (int i = 0; i < COUNT; i++) {
        qps[i] = trial_qp(t, &t->a, &o);
        mrs[i] =
            trial_mr(t, t->a.pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        expect(t, qps[i]->qp_num > 1 && qps[i]->qp_num < 0xffffff, "qp_num %#x", qps[i]->qp_num);
        for (int j = 0; j < i; j++)
            expect(t,
                   qps[i]->qp_num != qps[j]->qp_num && mrs[i]->rkey != mrs[j]->rkey &&
                       mrs[i]->lkey != mrs[j]->lkey,
                   "objects %d and %d share a number", i, j);
    }
}

static void objects_point_to_their_owners(struct trial *t)
{
    struct options o = default_options();
    o.channel = true;
    trial_connect(t, &o);
    const struct side *a = &t->a;
    expect(t, a->pd->context == a->context, "pd->context");
    expect(t, a->mr->context == a->context && a->mr->pd == a->pd, "mr->context, mr->pd");
    expect(t, a->mr->addr == a->memory && a->mr->length == a->bytes, "mr->addr, mr->length");
    expect(t,
           a->send_cq->context == a->context && a->send_cq->channel == a->channel &&
               a->send_cq->cq_context == a,
           "cq->context, channel, cq_context");
    expect(t,
           a->qp->context == a->context && a->qp->pd == a->pd && a->qp->send_cq == a->send_cq &&
               a->qp->recv_cq == a->recv_cq && a->qp->qp_context == a &&
               a->qp->qp_type == IBV_QPT_RC,
           "qp->context, pd, send_cq, recv_cq, qp_context, qp_type");
    expect_equal(t, a->qp->state, IBV_QPS_RTS, "qp->state");
}

/* What is under way when its queue pair goes is forgotten, and nothing of it shows later. */
static void busy_objects_can_be_destroyed(struct trial *t)
{
    trial_connect(t, NULL);
    for (int i = 0; i < 4; i++) {
        struct work w;
        struct receive r;
        receive_make(t, &r, &t->a, 0, 8);
        post_receive(t, &t->a, &r);
        work_make(t, &w, IBV_WR_SEND, &t->a, 0, &t->b.address, 0, 8);
        post(t, &t->a, &w); /* waits: b has no receive */
    }
    destroy_qp(t, t->a.qp);
    expect_quiet(t, t->a.send_cq);
    expect_quiet(t, t->a.recv_cq);
}

static void a_cq_can_be_destroyed_unpolled(struct trial *t)
{
    trial_connect(t, NULL);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    for (int i = 0; i < 8; i++)
        post(t, &t->a, &w);
    destroy_qp(t, t->a.qp);
    trial_forget(t, t->a.send_cq);
    expect_equal(t, t->verbs->destroy_cq(t->a.send_cq), 0, "destroy_cq");
}

static void a_device_is_opened_many_times(struct trial *t)
{
    struct ibv_context *contexts[16];
    for (int round = 0; round < 3; round++) {
        int opened = 0, refused = 0;
        for (int i = 0; i < 16; i++)
            opened += (contexts[i] = t->device->open(t, 0)) != NULL;
        for (int i = 0; i < 16; i++)
            refused += contexts[i] && t->verbs->close_device(contexts[i]) != 0;
        expect_equal(t, opened, 16, "contexts opened");
        expect_equal(t, refused, 0, "contexts that could not be closed");
    }
    trial_connect(t, NULL);
    struct work w;
    work_make(t, &w, IBV_WR_RDMA_WRITE, &t->a, 0, &t->b.address, 0, 8);
    post(t, &t->a, &w);
    expect_sent(t, &t->a, &w, IBV_WC_SUCCESS);
}

/* --- refusals ------------------------------------------------------------------------------- */

static void refuse_cq(struct trial *t, int cqe)
{
    struct ibv_cq *cq = t->verbs->create_cq(t->a.context, cqe, NULL, NULL, 0);
    int err = errno;
    if (cq)
        t->verbs->destroy_cq(cq);
    expect(t, !cq, "create_cq of %d entries succeeds", cqe);
    expect(t, err == EINVAL || err == ENOMEM, "create_cq of %d entries: %s", cqe, strerror(err));
}

static void cq_of_impossible_size_is_refused(struct trial *t)
{
    struct ibv_device_attr attr;
    expect_equal(t, t->verbs->query_device(t->a.context, &attr), 0, "query_device");
    refuse_cq(t, 0);
    refuse_cq(t, -1);
    if (attr.max_cqe < INT32_MAX)
        refuse_cq(t, attr.max_cqe + 1);
}

static void refuse_qp(struct trial *t, struct ibv_qp_init_attr init, const char *why)
{
    struct ibv_qp *qp = t->verbs->create_qp(t->a.pd, &init);
    int err = errno;
    if (qp)
        t->verbs->destroy_qp(qp);
    expect(t, !qp, "create_qp with %s succeeds", why);
    expect(t, err == EINVAL || err == ENOMEM || err == EOPNOTSUPP, "create_qp with %s: %s", why,
           strerror(err));
}

static void qp_beyond_the_limits_is_refused(struct trial *t)
{
    struct ibv_device_attr attr;
    expect_equal(t, t->verbs->query_device(t->a.context, &attr), 0, "query_device");
    struct ibv_cq *cq = trial_cq(t, &t->a, 16, NULL);
    const struct ibv_qp_init_attr good = {
        .send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp_init_attr bad = good;
    bad.cap.max_send_wr = (uint32_t)attr.max_qp_wr + 1;
    refuse_qp(t, bad, "too many send requests");
    bad = good;
    bad.cap.max_recv_wr = (uint32_t)attr.max_qp_wr + 1;
    refuse_qp(t, bad, "too many receive requests");
    bad = good;
    bad.cap.max_send_sge = (uint32_t)attr.max_sge + 1;
    refuse_qp(t, bad, "too many send sges");
    bad = good;
    bad.cap.max_recv_sge = (uint32_t)attr.max_sge + 1;
    refuse_qp(t, bad, "too many receive sges");
    bad = good;
    bad.cap.max_inline_data = 1u << 24;
    refuse_qp(t, bad, "16 MiB of inline data");
}

static void qp_without_cq_is_refused(struct trial *t)
{
    if (!t->device->strict)
        trial_skip(t, "libibverbs leaves this undefined");
    struct ibv_cq *cq = trial_cq(t, &t->a, 16, NULL);
    struct ibv_qp_init_attr init = {.recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    refuse_qp(t, init, "no send CQ");
    init.send_cq = cq;
    init.recv_cq = NULL;
    refuse_qp(t, init, "no receive CQ");
}

static void qp_of_unknown_type_is_refused(struct trial *t)
{
    struct ibv_cq *cq = trial_cq(t, &t->a, 16, NULL);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = (enum ibv_qp_type)77};
    refuse_qp(t, init, "type 77");
}

static void granted_capacity_is_enough(struct trial *t)
{
    struct options o = default_options();
    o.sends = 100;
    o.receives = 57;
    o.sge = 3;
    o.inline_bytes = 60;
    pair_make(t, &o);
    const struct ibv_qp_cap *cap = &t->a.cap;
    expect(t, cap->max_send_wr >= 100, "max_send_wr %u", cap->max_send_wr);
    expect(t, cap->max_recv_wr >= 57, "max_recv_wr %u", cap->max_recv_wr);
    expect(t, cap->max_send_sge >= 3, "max_send_sge %u", cap->max_send_sge);
    expect(t, cap->max_recv_sge >= 3, "max_recv_sge %u", cap->max_recv_sge);
    expect(t, cap->max_inline_data >= 60, "max_inline_data %u", cap->max_inline_data);
}

/* --- queries -------------------------------------------------------------------------------- */

static void device_attributes_are_sane(struct trial *t)
{
    struct ibv_device_attr attr;
    memset(&attr, 0xff, sizeof attr);
    expect_equal(t, t->verbs->query_device(t->a.context, &attr), 0, "query_device");
    expect(t, attr.max_qp >= 64 && attr.max_cq >= 16 && attr.max_mr >= 64 && attr.max_pd >= 8,
           "max_qp %d, max_cq %d, max_mr %d, max_pd %d", attr.max_qp, attr.max_cq, attr.max_mr,
           attr.max_pd);
    expect(t, attr.max_qp_wr >= 128 && attr.max_cqe >= 256 && attr.max_sge >= 2,
           "max_qp_wr %d, max_cqe %d, max_sge %d", attr.max_qp_wr, attr.max_cqe, attr.max_sge);
    expect(t, attr.max_qp_rd_atom >= 1 && attr.max_qp_init_rd_atom >= 1, "no READ outstanding");
    expect(t, attr.phys_port_cnt == 1 || !t->device->strict, "%d ports", attr.phys_port_cnt);
    expect(t, attr.max_mr_size > 1 << 20, "max_mr_size");
    expect(t, memchr(attr.fw_ver, 0, sizeof attr.fw_ver), "fw_ver is not ended");
}

static void port_attributes_are_sane(struct trial *t)
{
    struct ibv_port_attr attr;
    expect_equal(t, t->verbs->query_port(t->a.context, 1, &attr), 0, "query_port");
    expect_equal(t, attr.state, IBV_PORT_ACTIVE, "state of the port");
    expect(t,
           attr.active_mtu >= IBV_MTU_256 && attr.active_mtu <= attr.max_mtu &&
               attr.max_mtu <= IBV_MTU_4096,
           "active_mtu %d, max_mtu %d", attr.active_mtu, attr.max_mtu);
    expect(t, attr.gid_tbl_len > 0 && attr.pkey_tbl_len > 0, "empty tables");
    expect(t, attr.max_msg_sz >= 1u << 21, "max_msg_sz %u", attr.max_msg_sz);
    expect(t, attr.link_layer == IBV_LINK_LAYER_ETHERNET || attr.lid != 0,
           "neither Ethernet nor a LID");
}

static void ports_that_are_not_there_are_refused(struct trial *t)
{
    struct ibv_port_attr attr;
    union ibv_gid gid;
    expect(t, t->verbs->query_port(t->a.context, 0, &attr), "query_port of port 0 succeeds");
    expect(t, t->verbs->query_port(t->a.context, 77, &attr), "query_port of port 77 succeeds");
    expect(t, t->verbs->query_gid(t->a.context, 77, 0, &gid), "query_gid of port 77 succeeds");
    expect(t, t->verbs->query_gid(t->a.context, 1, 1 << 20, &gid),
           "query_gid of index 2^20 succeeds");
}

static void both_gid_queries_agree(struct trial *t)
{
    static const union ibv_gid zero;
    for (int i = 0; i < 2; i++) {
        struct side *side = i ? &t->b : &t->a;
        struct ibv_gid_entry entry = {0};
        expect(t, memcmp(&side->address.gid, &zero, sizeof zero), "the GID is zero");
        expect_equal(t,
                     t->verbs->query_gid_ex(side->context, 1, (uint32_t)side->gid_index, &entry, 0),
                     0, "query_gid_ex");
        expect(t, !memcmp(&entry.gid, &side->address.gid, sizeof entry.gid), "the GIDs differ");
        expect_equal(t, entry.port_num, 1, "port_num");
        expect_equal(t, entry.gid_index, side->gid_index, "gid_index");
    }
    if (!t->device->one_port && t->device->strict)
        expect(t, memcmp(&t->a.address.gid, &t->b.address.gid, 16), "two ports share a GID");
}

static void the_device_list_can_be_taken_and_freed(struct trial *t)
{
    int count = -1;
    struct ibv_device **list = t->verbs->get_device_list(&count);
    expect(t, list && count >= 1, "get_device_list answers %d", count);
    expect(t, list[count] == NULL, "the list is not ended by NULL");
    for (int i = 0; i < count; i++) {
        const char *name = t->verbs->get_device_name(list[i]);
        expect(t, name && *name, "device %d has no name", i);
    }
    t->verbs->free_device_list(list);
    list = t->verbs->get_device_list(NULL);
    expect(t, list, "get_device_list(NULL)");
    t->verbs->free_device_list(list);
}

static const struct check checks[] = {
    {.name = "a PD with a memory region is busy", .run = pd_with_mr_is_busy},
    {.name = "a PD with a queue pair is busy", .run = pd_with_qp_is_busy},
    {.name = "a CQ with a queue pair is busy", .run = cq_with_qp_is_busy},
    {.name = "a completion channel with a CQ is busy", .run = channel_with_cq_is_busy},
    {.name = "many objects come and go", .run = many_objects_come_and_go},
    {.name = "queue pair numbers and keys differ", .run = qp_numbers_and_keys_differ},
    {.name = "objects point to their owners", .run = objects_point_to_their_owners},
    {.name = "busy objects can be destroyed", .run = busy_objects_can_be_destroyed},
    {.name = "a CQ can be destroyed unpolled", .run = a_cq_can_be_destroyed_unpolled},
    {.name = "a device is opened many times", .run = a_device_is_opened_many_times},
    {.name = "a CQ of impossible size is refused", .run = cq_of_impossible_size_is_refused},
    {.name = "a queue pair beyond the limits is refused", .run = qp_beyond_the_limits_is_refused},
    {.name = "a queue pair without a CQ is refused", .run = qp_without_cq_is_refused},
    {.name = "a queue pair of unknown type is refused", .run = qp_of_unknown_type_is_refused},
    {.name = "the capacity granted is enough", .run = granted_capacity_is_enough},
    {.name = "the device's attributes are sane", .run = device_attributes_are_sane},
    {.name = "the port's attributes are sane", .run = port_attributes_are_sane},
    {.name = "ports that are not there are refused", .run = ports_that_are_not_there_are_refused},
    {.name = "both GID queries agree", .run = both_gid_queries_agree},
    {.name = "the device list can be taken and freed",
     .run = the_device_list_can_be_taken_and_freed},
};

const struct check_group objects_checks = GROUP("objects and queries", checks);
