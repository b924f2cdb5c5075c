/* SPDX-License-Identifier: MIT */
/* What query_device promises is to be had, and no more. */
#include "tests/conformance.h"

enum { MOST_OBJECTS = 5000 }; /* a device that grants more is not filled up */

static struct ibv_device_attr limits_of(struct trial *t)
{
    struct ibv_device_attr attr;
    expect_equal(t, t->verbs->query_device(t->a.context, &attr), 0, "query_device");
    return attr;
}

/* Makes objects until it is refused; then one is destroyed, and one more is to be had. */
static void fill_up(struct trial *t, int limit, void *(*make)(struct trial *t),
                    int (*destroy)(struct trial *t, void *object))
{
    if (limit > MOST_OBJECTS)
        trial_skip(t, "the device grants more than the check makes");
    void **made = trial_memory(t, (size_t)(limit + 1) * sizeof *made);
    int count = 0, err = 0;
    while (count <= limit) {
        errno = 0;
        made[count] = make(t);
        err = errno;
        if (!made[count])
            break;
        count++;
    }
    int granted = count;
    bool again = false;
    if (count > 0 && destroy(t, made[--count]) == 0) {
        made[count] = make(t);
        again = made[count] != NULL;
        count += again;
    }
    for (int failed = 0; count > 0 && !failed;)
        failed = destroy(t, made[--count]);
    expect_equal(t, count, 0, "objects that refuse to be destroyed");
    expect(t, granted >= limit - 8, "%d were made, should be %d", granted, limit);
    expect(t, granted <= limit, "more than %d were made", limit);
    expect(t, err == ENOMEM || err == EINVAL || err == ENOSPC, "one too many: %s", strerror(err));
    expect(t, again, "one that was given back is not to be had again");
}

static void *make_pd(struct trial *t)
{
    return t->verbs->alloc_pd(t->a.context);
}
static int destroy_pd(struct trial *t, void *pd)
{
    return t->verbs->dealloc_pd(pd);
}

static void *make_cq(struct trial *t)
{
    return t->verbs->create_cq(t->a.context, 1, NULL, NULL, 0);
}
static int destroy_cq(struct trial *t, void *cq)
{
    return t->verbs->destroy_cq(cq);
}

static void *make_srq(struct trial *t)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 1, .max_sge = 1}};
    return t->verbs->create_srq(t->a.pd, &init);
}
static int destroy_srq(struct trial *t, void *srq)
{
    return t->verbs->destroy_srq(srq);
}

static void *make_qp(struct trial *t)
{
    struct ibv_qp_init_attr init = {.send_cq = t->a.send_cq,
                                    .recv_cq = t->a.recv_cq,
                                    .cap = {1, 1, 1, 1, 0},
                                    .qp_type = IBV_QPT_RC};
    return t->verbs->create_qp(t->a.pd, &init);
}
static int unmake_qp(struct trial *t, void *qp)
{
    return t->verbs->destroy_qp(qp);
}

static void protection_domains(struct trial *t)
{
    fill_up(t, limits_of(t).max_pd - 1, make_pd, destroy_pd); /* the trial has one */
}

static void completion_queues(struct trial *t)
{
    fill_up(t, limits_of(t).max_cq, make_cq, destroy_cq);
}

static void shared_receive_queues(struct trial *t)
{
    fill_up(t, limits_of(t).max_srq, make_srq, destroy_srq);
}

static void queue_pairs(struct trial *t)
{
    t->a.send_cq = t->a.recv_cq = trial_cq(t, &t->a, 16, NULL);
    fill_up(t, limits_of(t).max_qp, make_qp, unmake_qp);
}

static void the_largest_cq(struct trial *t)
{
    int most = limits_of(t).max_cqe;
    struct ibv_cq *cq = t->verbs->create_cq(t->a.context, most + 1, NULL, NULL, 0);
    int err = errno;
    if (cq)
        trial_track(t, CQ, cq, 0);
    expect(t, !cq, "a CQ beyond max_cqe is made");
    expect(t, err == EINVAL || err == ENOMEM, "create_cq: %s", strerror(err));
    trial_cq(t, &t->a, most, NULL);
}

enum capacity { SEND_WR, RECV_WR, SEND_SGE, RECV_SGE };

static void set(struct ibv_qp_cap *cap, enum capacity which, uint32_t value)
{
    uint32_t *const fields[] = {&cap->max_send_wr, &cap->max_recv_wr, &cap->max_send_sge,
                                &cap->max_recv_sge};
    *fields[which] = value;
}

static struct ibv_qp *with_capacity(struct trial *t, uint32_t value, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = t->a.send_cq, .recv_cq = t->a.send_cq, .cap = {4, 4, 1, 1, 0}, .qp_type = type};
    set(&init.cap, (enum capacity)t->check->parameter, value);
    struct ibv_qp *qp = t->verbs->create_qp(t->a.pd, &init);
    if (qp)
        trial_track(t, QP, qp, 0);
    return qp;
}

static void the_largest_queue_pair(struct trial *t)
{
    struct ibv_device_attr attr = limits_of(t);
    bool sges = t->check->parameter >= SEND_SGE;
    uint32_t most = (uint32_t)(sges ? attr.max_sge : attr.max_qp_wr);
    t->a.send_cq = trial_cq(t, &t->a, 16, NULL);
    for (int type = IBV_QPT_RC; type <= IBV_QPT_UD; type++) {
        if (type != IBV_QPT_RC && type != IBV_QPT_UC && type != IBV_QPT_UD)
            continue;
        expect(t, with_capacity(t, most, (enum ibv_qp_type)type), "what is promised (%u): %s", most,
               strerror(errno));
        expect(t, !with_capacity(t, most + 1, (enum ibv_qp_type)type),
               "more than is promised (%u) is granted", most);
        expect(t, errno == EINVAL || errno == ENOMEM, "one too many: %s", strerror(errno));
    }
}

static void the_largest_srq(struct trial *t)
{
    struct ibv_device_attr attr = limits_of(t);
    bool sges = t->check->parameter == RECV_SGE;
    for (uint32_t more = 0; more < 2; more++) {
        struct ibv_srq_init_attr init = {
            .attr = {.max_wr = sges ? 4 : (uint32_t)attr.max_srq_wr + more,
                     .max_sge = sges ? (uint32_t)attr.max_srq_sge + more : 1}};
        struct ibv_srq *srq = t->verbs->create_srq(t->a.pd, &init);
        int err = errno;
        if (srq)
            trial_track(t, SRQ, srq, 0);
        expect(t, more || srq, "what is promised: %s", strerror(err));
        expect(t, !more || !srq, "more than is promised is granted");
        expect(t, !more || err == EINVAL || err == ENOMEM, "one too many: %s", strerror(err));
    }
}

static void inline_data_is_granted_as_asked(struct trial *t)
{
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
    t->a.send_cq = t->a.recv_cq = trial_cq(t, &t->a, 16, NULL);
    for (size_t i = 0; i < 3; i++) {
        struct options o = default_options();
        o.type = types[i];
        o.inline_bytes = 96;
        trial_qp(t, &t->a, &o);
        expect(t, t->a.cap.max_inline_data >= 96, "%u bytes inline are granted, asked for 96",
               t->a.cap.max_inline_data);
    }
}

static void a_cq_of_no_entries(struct trial *t)
{
    struct ibv_cq *cq = t->verbs->create_cq(t->a.context, 0, NULL, NULL, 0);
    int err = errno;
    if (cq)
        trial_track(t, CQ, cq, 0);
    expect(t, !cq, "a CQ of no entries is made");
    expect_equal(t, err, EINVAL, "create_cq");
}

static void an_srq_of_no_entries(struct trial *t)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 0, .max_sge = 1}};
    struct ibv_srq *srq = t->verbs->create_srq(t->a.pd, &init);
    int err = errno;
    if (srq)
        trial_track(t, SRQ, srq, 0);
    expect(t, !srq, "a shared queue of no entries is made");
    expect_equal(t, err, EINVAL, "create_srq");
}

static void a_vector_that_is_not_there(struct trial *t)
{
    int vectors = t->a.context->num_comp_vectors;
    expect(t, vectors >= 1, "%d completion vectors", vectors);
    struct ibv_cq *cq = t->verbs->create_cq(t->a.context, 4, NULL, NULL, vectors);
    int err = errno;
    if (cq)
        trial_track(t, CQ, cq, 0);
    expect(t, !cq, "a CQ on a completion vector that is not there is made");
    expect_equal(t, err, EINVAL, "create_cq");
}

#define WITH(text, function, value)                                                                \
    {                                                                                              \
        .name = (text), .run = (function), .parameter = (value)                                    \
    }

static const struct check checks[] = {
    {.name = "max_pd protection domains", .run = protection_domains},
    {.name = "max_cq completion queues", .run = completion_queues},
    {.name = "max_srq shared receive queues", .run = shared_receive_queues},
    {.name = "max_qp queue pairs", .run = queue_pairs},
    {.name = "max_cqe entries", .run = the_largest_cq},
    WITH("max_qp_wr sends", the_largest_queue_pair, SEND_WR),
    WITH("max_qp_wr receives", the_largest_queue_pair, RECV_WR),
    WITH("max_sge pieces of a send", the_largest_queue_pair, SEND_SGE),
    WITH("max_sge pieces of a receive", the_largest_queue_pair, RECV_SGE),
    WITH("max_srq_wr receives", the_largest_srq, RECV_WR),
    WITH("max_srq_sge pieces", the_largest_srq, RECV_SGE),
    {.name = "inline data is granted as asked", .run = inline_data_is_granted_as_asked},
    {.name = "a CQ of no entries", .run = a_cq_of_no_entries},
    {.name = "an SRQ of no entries", .run = an_srq_of_no_entries},
    {.name = "a completion vector that is not there", .run = a_vector_that_is_not_there},
};

const struct check_group limits_checks = GROUP("limits", checks);
