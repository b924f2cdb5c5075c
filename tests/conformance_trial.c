/* SPDX-License-Identifier: MIT */
/* How a check ends early, and the objects that are undone after it. */
#include "tests/conformance.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

noreturn void trial_fail(struct trial *t, const char *file, int line, const char *format, ...)
{
    const char *slash = strrchr(file, '/');
    snprintf(t->where, sizeof t->where, "%s:%d", slash ? slash + 1 : file, line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(t->message, sizeof t->message, format, arguments);
    va_end(arguments);
    longjmp(t->out, 1);
}

noreturn void trial_skip(struct trial *t, const char *reason)
{
    snprintf(t->message, sizeof t->message, "%s", reason);
    longjmp(t->out, 2);
}

void trial_track(struct trial *t, enum kind kind, void *object, size_t bytes)
{
    expect(t, t->tracked_count < MAX_TRACKED, "the check makes too many objects");
    t->tracked[t->tracked_count++] = (struct tracked){kind, object, bytes};
}

void trial_forget(struct trial *t, const void *object)
{
    for (size_t i = t->tracked_count; i-- > 0;)
        if (t->tracked[i].object == object) {
            memmove(&t->tracked[i], &t->tracked[i + 1],
                    (t->tracked_count - i - 1) * sizeof t->tracked[0]);
            t->tracked_count--;
            return;
        }
}

static int undo(const struct verbs *verbs, const struct tracked *object)
{
    switch (object->kind) {
    case QP:
        return verbs->destroy_qp(object->object);
    case CQ:
        return verbs->destroy_cq(object->object);
    case CHANNEL:
        return verbs->destroy_comp_channel(object->object);
    case AH:
        return verbs->destroy_ah(object->object);
    case SRQ:
        return verbs->destroy_srq(object->object);
    case MR:
        return verbs->dereg_mr(object->object);
    case PD:
        return verbs->dealloc_pd(object->object);
    case MAPPING:
        return munmap(object->object, object->bytes) ? errno : 0;
    case DESCRIPTOR:
        return close((int)(intptr_t)object->object) ? errno : 0;
    case MEMORY:
        free(object->object);
        return 0;
    }
    return EINVAL;
}

bool trial_undo(struct trial *t)
{
    static const char *const names[] = {
        "free",       "close",      "munmap",      "dealloc_pd",
        "dereg_mr",   "destroy_ah", "destroy_srq", "destroy_comp_channel",
        "destroy_cq", "destroy_qp"};
    bool fine = true;
    if (t->unacked)
        t->verbs->ack_cq_events(t->unacked_cq, t->unacked);
    t->unacked = 0;
    for (int kind = QP; kind >= MEMORY; kind--)
        for (size_t i = t->tracked_count; i-- > 0;) {
            if (t->tracked[i].kind != (enum kind)kind)
                continue;
            int err = undo(t->verbs, &t->tracked[i]);
            if (err && fine) {
                snprintf(t->message, sizeof t->message, "after the check: %s answers %s",
                         names[kind], strerror(err));
                fine = false;
            }
        }
    t->tracked_count = 0;
    return fine;
}

void *trial_memory(struct trial *t, size_t bytes)
{
    void *memory = NULL;
    expect(t, posix_memalign(&memory, 64, bytes) == 0, "no memory for %zu bytes", bytes);
    memset(memory, GUARD, bytes);
    trial_track(t, MEMORY, memory, bytes);
    return memory;
}

/* A part of a memfd whose descriptor stays open, so that a device may let peers map it. */
void *memfd_memory(struct trial *t, size_t bytes)
{
    int fd = memfd_create("conformance", MFD_CLOEXEC);
    expect(t, fd >= 0, "memfd_create: %s", strerror(errno));
    trial_track(t, DESCRIPTOR, (void *)(intptr_t)fd, 0);
    void *memory = MAP_FAILED;
    if (!ftruncate(fd, 4096 + (off_t)bytes))
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096);
    expect(t, memory != MAP_FAILED, "mapping a memfd: %s", strerror(errno));
    trial_track(t, MAPPING, memory, bytes);
    memset(memory, GUARD, bytes);
    return memory;
}

struct ibv_pd *trial_pd(struct trial *t, struct ibv_context *context)
{
    struct ibv_pd *pd = t->verbs->alloc_pd(context);
    expect(t, pd, "alloc_pd: %s", strerror(errno));
    trial_track(t, PD, pd, 0);
    return pd;
}

struct ibv_mr *trial_mr(struct trial *t, struct ibv_pd *pd, void *at, size_t bytes, int access)
{
    struct ibv_mr *mr = t->verbs->reg_mr(pd, at, bytes, access);
    expect(t, mr, "reg_mr of %zu bytes, access %#x: %s", bytes, access, strerror(errno));
    trial_track(t, MR, mr, 0);
    return mr;
}

struct ibv_comp_channel *trial_channel(struct trial *t, struct ibv_context *context)
{
    struct ibv_comp_channel *channel = t->verbs->create_comp_channel(context);
    expect(t, channel, "create_comp_channel: %s", strerror(errno));
    trial_track(t, CHANNEL, channel, 0);
    return channel;
}

struct ibv_cq *trial_cq(struct trial *t, struct side *side, int cqe,
                        struct ibv_comp_channel *channel)
{
    struct ibv_cq *cq = t->verbs->create_cq(side->context, cqe, side, channel, 0);
    expect(t, cq, "create_cq of %d entries: %s", cqe, strerror(errno));
    trial_track(t, CQ, cq, 0);
    expect(t, cq->cqe >= cqe, "create_cq granted %d entries, asked for %d", cq->cqe, cqe);
    return cq;
}

struct ibv_srq *trial_srq(struct trial *t, struct side *side, uint32_t max_wr, uint32_t max_sge)
{
    struct ibv_srq_init_attr init = {.srq_context = side,
                                     .attr = {.max_wr = max_wr, .max_sge = max_sge}};
    struct ibv_srq *srq = t->verbs->create_srq(side->pd, &init);
    expect(t, srq, "create_srq of %u: %s", max_wr, strerror(errno));
    trial_track(t, SRQ, srq, 0);
    expect(t, init.attr.max_wr >= max_wr && init.attr.max_sge >= max_sge,
           "create_srq granted %u x %u, asked for %u x %u", init.attr.max_wr, init.attr.max_sge,
           max_wr, max_sge);
    return srq;
}

struct ibv_ah *trial_ah(struct trial *t, struct side *side, const struct address *to, int gid_index)
{
    struct ibv_ah_attr attr = {
        .is_global = 1,
        .port_num = 1,
        .dlid = to->lid,
        .grh = {.dgid = to->gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}};
    struct ibv_ah *ah = t->verbs->create_ah(side->pd, &attr);
    expect(t, ah, "create_ah: %s", strerror(errno));
    trial_track(t, AH, ah, 0);
    return ah;
}

static uint64_t operations(enum ibv_qp_type type)
{
    uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if (type != IBV_QPT_UD)
        ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    if (type == IBV_QPT_RC)
        ops |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
               IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    return ops;
}

static struct ibv_qp *create_with_calls(struct trial *t, struct side *side,
                                        const struct ibv_qp_init_attr *init)
{
    struct ibv_qp_init_attr_ex ex = {
        .qp_context = init->qp_context,
        .send_cq = init->send_cq,
        .recv_cq = init->recv_cq,
        .cap = init->cap,
        .srq = init->srq,
        .qp_type = init->qp_type,
        .sq_sig_all = init->sq_sig_all,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = side->pd,
        .send_ops_flags = operations(init->qp_type),
    };
    struct ibv_qp *qp = t->verbs->create_qp_ex(side->context, &ex);
    if (!qp && (errno == EOPNOTSUPP || errno == ENOSYS))
        trial_skip(t, "the device has no ibv_wr_* calls");
    if (qp)
        side->cap = ex.cap;
    return qp;
}

struct ibv_qp *trial_qp(struct trial *t, struct side *side, const struct options *options)
{
    struct ibv_qp_init_attr init = {
        .qp_context = side,
        .send_cq = side->send_cq,
        .recv_cq = side->recv_cq,
        .cap = {options->sends, options->receives, options->sge, options->sge,
                options->inline_bytes},
        .srq = side->srq,
        .qp_type = options->type,
        .sq_sig_all = options->signal_all,
    };
    struct ibv_qp *qp = options->wr_calls ? create_with_calls(t, side, &init)
                                          : t->verbs->create_qp(side->pd, &init);
    expect(t, qp, "create_qp: %s", strerror(errno));
    trial_track(t, QP, qp, 0);
    if (!options->wr_calls)
        side->cap = init.cap;
    return qp;
}

void destroy_qp(struct trial *t, struct ibv_qp *qp)
{
    trial_forget(t, qp);
    expect_equal(t, t->verbs->destroy_qp(qp), 0, "destroy_qp");
}

void deregister(struct trial *t, struct ibv_mr *mr)
{
    trial_forget(t, mr);
    expect_equal(t, t->verbs->dereg_mr(mr), 0, "dereg_mr");
}
