/* SPDX-License-Identifier: MIT */
/* Two sides, what each is made of, and how they are connected. */
#include "tests/conformance.h"
#include <fcntl.h>

struct options default_options(void)
{
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
              IBV_ACCESS_REMOTE_ATOMIC;
    return (struct options){
        .type = IBV_QPT_RC,
        .qkey = 0x11111111,
        .sends = 32,
        .receives = 32,
        .sge = 4,
        .cqe = 256,
        .access = all,
        .qp_access = all & ~IBV_ACCESS_LOCAL_WRITE,
        .rnr_retry = 7,
        .min_rnr_timer = 1,
        .retry_count = 3,
        .timeout = 10,
        .rd_atomic = 4,
        .memory_bytes = 16384,
    };
}

struct options transport_options(const struct trial *t, enum ibv_qp_type type)
{
    struct options o = default_options();
    o.type = type;
    o.wr_calls = t->check->way == BY_WR_CALLS;
    return o;
}

static int find_gid(struct trial *t, const struct side *side)
{
    struct ibv_gid_entry entry;
    for (int i = 0; i < side->port.gid_tbl_len; i++)
        if (!t->verbs->query_gid_ex(side->context, 1, (uint32_t)i, &entry, 0) &&
            entry.gid_type == IBV_GID_TYPE_ROCE_V2)
            return i;
    return 0;
}

void side_open(struct trial *t, struct side *side, int which)
{
    side->context = t->device->open(t, which);
    expect(t, side->context, "opening %s: %s", t->device->name, strerror(errno));
    expect_equal(t, t->verbs->query_port(side->context, 1, &side->port), 0, "query_port");
    side->gid_index = find_gid(t, side);
    expect_equal(t, t->verbs->query_gid(side->context, 1, side->gid_index, &side->address.gid), 0,
                 "query_gid");
    side->address.lid = side->port.lid;
    side->pd = trial_pd(t, side->context);
}

void side_close(struct trial *t, struct side *side)
{
    struct ibv_context *context = side->context;
    side->context = NULL;
    if (context)
        expect_equal(t, t->verbs->close_device(context), 0, "close_device");
}

void side_memory(struct trial *t, struct side *side, const struct options *options)
{
    side->bytes = options->memory_bytes;
    side->memory = options->memory ? options->memory : trial_memory(t, side->bytes);
    memset(side->memory, GUARD, side->bytes);
    side->expected = trial_memory(t, side->bytes);
    side->mr = trial_mr(t, side->pd, side->memory, side->bytes, options->access);
    side->address.rkey = side->mr->rkey;
    side->address.memory = (uintptr_t)side->memory;
}

void side_make(struct trial *t, struct side *side, const struct options *options)
{
    side->options = *options;
    side->channel = options->channel ? trial_channel(t, side->context) : NULL;
    side->send_cq = trial_cq(t, side, options->cqe, side->channel);
    side->recv_cq =
        options->one_cq ? side->send_cq : trial_cq(t, side, options->cqe, side->channel);
    side->srq = options->srq_wr ? trial_srq(t, side, options->srq_wr, options->sge) : NULL;
    side->qp = trial_qp(t, side, options);
    side->qpx = options->wr_calls ? t->verbs->qp_to_qp_ex(side->qp) : NULL;
    if (options->wr_calls && !side->qpx)
        trial_skip(t, "the device has no ibv_wr_* calls");
    side->address.qpn = side->qp->qp_num;
    side->address.psn = (side->qp->qp_num * 7919) & 0xffffff;
    side_memory(t, side, options);
}

void pair_make(struct trial *t, const struct options *options)
{
    struct options standard = default_options();
    if (!options)
        options = &standard;
    side_make(t, &t->a, options);
    struct options other = *options;
    other.memory = NULL; /* memory that was handed in is for a */
    side_make(t, &t->b, &other);
}

void trial_connect(struct trial *t, const struct options *options)
{
    struct options standard = default_options();
    standard.wr_calls = t->check->way == BY_WR_CALLS;
    pair_make(t, options ? options : &standard);
    bring(t, &t->a, &t->b.address, IBV_QPS_RTS);
    bring(t, &t->b, &t->a.address, IBV_QPS_RTS);
    if (t->a.options.type != IBV_QPT_UD)
        return;
    t->a.ah = trial_ah(t, &t->a, &t->b.address, t->a.gid_index);
    t->b.ah = trial_ah(t, &t->b, &t->a.address, t->b.gid_index);
}

static int attr_for_rtr(const struct side *side, const struct address *peer,
                        struct ibv_qp_attr *attr)
{
    attr->path_mtu = side->options.mtu ? side->options.mtu : side->port.active_mtu;
    attr->dest_qp_num = peer->qpn;
    attr->rq_psn = peer->psn;
    attr->max_dest_rd_atomic = side->options.rd_atomic;
    attr->min_rnr_timer = side->options.min_rnr_timer;
    attr->ah_attr.port_num = 1;
    attr->ah_attr.dlid = peer->lid;
    attr->ah_attr.is_global = side->port.link_layer == IBV_LINK_LAYER_ETHERNET;
    attr->ah_attr.grh.dgid = peer->gid;
    attr->ah_attr.grh.sgid_index = (uint8_t)side->gid_index;
    attr->ah_attr.grh.hop_limit = 64;
    int mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (side->options.type == IBV_QPT_RC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return mask;
}

int fill_attr(const struct side *side, const struct address *peer, enum ibv_qp_state to,
              struct ibv_qp_attr *attr)
{
    const struct options *o = &side->options;
    bool datagrams = o->type == IBV_QPT_UD;
    *attr = (struct ibv_qp_attr){.qp_state = to};
    switch (to) {
    case IBV_QPS_INIT:
        attr->port_num = 1;
        attr->qp_access_flags = (unsigned)o->qp_access;
        attr->qkey = o->qkey;
        return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
               (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    case IBV_QPS_RTR:
        return datagrams ? IBV_QP_STATE : IBV_QP_STATE | attr_for_rtr(side, peer, attr);
    case IBV_QPS_RTS:
        attr->timeout = o->timeout;
        attr->retry_cnt = o->retry_count;
        attr->rnr_retry = o->rnr_retry;
        attr->sq_psn = side->address.psn;
        attr->max_rd_atomic = o->rd_atomic;
        if (o->type != IBV_QPT_RC)
            return IBV_QP_STATE | IBV_QP_SQ_PSN;
        return IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC;
    default:
        return IBV_QP_STATE;
    }
}

int move(struct trial *t, struct side *side, const struct address *peer, enum ibv_qp_state to)
{
    struct ibv_qp_attr attr;
    int mask = fill_attr(side, peer, to, &attr);
    return t->verbs->modify_qp(side->qp, &attr, mask);
}

/* From RESET along the usual path. ERR and SQD are reached from where the path has led. */
void bring(struct trial *t, struct side *side, const struct address *peer, enum ibv_qp_state to)
{
    static const enum ibv_qp_state path[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
    if (to == IBV_QPS_RESET)
        return;
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        int err = move(t, side, peer, path[i]);
        expect(t, !err, "moving to %s: %s", state_name(path[i]), strerror(err));
        if (path[i] == to)
            return;
    }
    int err = move(t, side, peer, to);
    expect(t, !err, "moving from RTS to %s: %s", state_name(to), strerror(err));
}

enum ibv_qp_state state_of(struct trial *t, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init;
    expect_equal(t, t->verbs->query_qp(qp, &attr, IBV_QP_STATE, &init), 0, "query_qp");
    return attr.qp_state;
}

const char *state_name(enum ibv_qp_state state)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return (size_t)state < sizeof names / sizeof *names ? names[state] : "an unknown state";
}

/* A device may need a moment, and somebody who polls, to fall into a state. */
void expect_state(struct trial *t, struct side *side, enum ibv_qp_state state)
{
    uint64_t started = 0;
    enum ibv_qp_state found;
    while ((found = state_of(t, side->qp)) != state)
        expect(t, !deadline_passed(t, &started), "the queue pair is in %s, should be in %s",
               state_name(found), state_name(state));
}

uint32_t mtu_bytes(const struct side *side)
{
    return 128u << (side->options.mtu ? side->options.mtu : side->port.active_mtu);
}

void set_nonblocking(struct trial *t, int fd)
{
    int flags = fcntl(fd, F_GETFL);
    expect(t, flags >= 0 && !fcntl(fd, F_SETFL, flags | O_NONBLOCK), "fcntl on fd %d: %s", fd,
           strerror(errno));
}
