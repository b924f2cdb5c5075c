/* SPDX-License-Identifier: MIT */
/*
 * ibv_wr_*, as a list for ibv_post_send: what a plan does to a work request is decided in one
 * place. The calls are put into the queue pair itself, where the program looks for them.
 */
#include "transport/decorators/faults_private.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A piece of inline data or a segment, by its place, since the arrays grow. */
struct request {
    struct ibv_send_wr wr;
    size_t first_sge, data;
    uint64_t inline_bytes;
};

struct builder {
    int err;
    struct request *request;
    size_t n, room;
    struct ibv_sge *sge;
    size_t n_sge, sge_room;
    uint8_t *data;
    size_t n_data, data_room;
    struct fault_qp *q;
};

struct builder *builder_new(void)
{
    return calloc(1, sizeof(struct builder));
}

void builder_free(struct builder *b)
{
    if (!b)
        return;
    free(b->request);
    free(b->sge);
    free(b->data);
    free(b);
}

static bool grow(struct builder *b, void **array, size_t *room, size_t needed, size_t each)
{
    if (needed <= *room)
        return true;
    size_t more = needed * 2 < 64 ? 64 : needed * 2;
    void *larger = realloc(*array, more * each);
    if (!larger) {
        b->err = ENOMEM;
        return false;
    }
    *array = larger;
    *room = more;
    return true;
}

static struct builder *of(struct ibv_qp_ex *ex)
{
    struct faults *f = faults_of(ex->qp_base.context);
    pthread_mutex_lock(&f->lock);
    struct fault_qp *q = faults_qp(f, &ex->qp_base);
    pthread_mutex_unlock(&f->lock);
    q->builder->q = q;
    return q->builder;
}

static void refuse(struct builder *b, int err)
{
    if (!b->err)
        b->err = err;
}

static struct request *last(struct builder *b)
{
    return b->err || b->n == 0 ? NULL : &b->request[b->n - 1];
}

static struct ibv_send_wr *begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
    struct builder *b = of(ex);
    if (b->err || !grow(b, (void **)&b->request, &b->room, b->n + 1, sizeof *b->request))
        return NULL;
    struct request *r = &b->request[b->n++];
    *r = (struct request){.wr = {.wr_id = ex->wr_id,
                                 .opcode = opcode,
                                 .send_flags = ex->wr_flags & ~(unsigned)IBV_SEND_INLINE},
                          .first_sge = b->n_sge,
                          .data = b->n_data};
    return &r->wr;
}

static void begin_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey,
                       uint64_t address, __be32 imm)
{
    struct ibv_send_wr *wr = begin(ex, opcode);
    if (!wr)
        return;
    wr->wr.rdma.rkey = rkey;
    wr->wr.rdma.remote_addr = address;
    wr->imm_data = imm;
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address)
{
    begin_rdma(ex, IBV_WR_RDMA_WRITE, rkey, address, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, __be32 imm)
{
    begin_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address, imm);
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address)
{
    begin_rdma(ex, IBV_WR_RDMA_READ, rkey, address, 0);
}

static void wr_send(struct ibv_qp_ex *ex)
{
    begin(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
    struct ibv_send_wr *wr = begin(ex, IBV_WR_SEND_WITH_IMM);
    if (wr)
        wr->imm_data = imm;
}

static void begin_key(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t key)
{
    struct ibv_send_wr *wr = begin(ex, opcode);
    if (wr)
        wr->invalidate_rkey = key;
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t key)
{
    begin_key(ex, IBV_WR_SEND_WITH_INV, key);
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t key)
{
    begin_key(ex, IBV_WR_LOCAL_INV, key);
}

static void begin_atomic(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey,
                         uint64_t address, uint64_t first, uint64_t second)
{
    struct ibv_send_wr *wr = begin(ex, opcode);
    if (!wr)
        return;
    wr->wr.atomic.rkey = rkey;
    wr->wr.atomic.remote_addr = address;
    wr->wr.atomic.compare_add = first;
    wr->wr.atomic.swap = second;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address,
                              uint64_t compare, uint64_t swap)
{
    begin_atomic(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, uint64_t add)
{
    begin_atomic(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address, add, 0);
}

/* ---- what is not passed on: the list fails, at wr_complete, and nothing of it is posted -------
 */

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
                       const struct ibv_mw_bind_info *info)
{
    (void)mw, (void)rkey, (void)info;
    refuse(of(ex), EOPNOTSUPP);
}

static void wr_send_tso(struct ibv_qp_ex *ex, void *header, uint16_t header_size, uint16_t mss)
{
    (void)header, (void)header_size, (void)mss;
    refuse(of(ex), EOPNOTSUPP);
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
    (void)srqn;
    refuse(of(ex), EOPNOTSUPP);
}

static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, const void *data)
{
    (void)rkey, (void)address, (void)data;
    refuse(of(ex), EOPNOTSUPP);
}

/* ---- setters --------------------------------------------------------------------------------- */

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
    struct request *r = last(of(ex));
    if (!r)
        return;
    r->wr.wr.ud.ah = ah;
    r->wr.wr.ud.remote_qpn = qpn;
    r->wr.wr.ud.remote_qkey = qkey;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
    struct builder *b = of(ex);
    struct request *r = last(b);
    if (n > b->q->cap.max_send_sge)
        refuse(b, EINVAL);
    if (b->err || !r || !grow(b, (void **)&b->sge, &b->sge_room, b->n_sge + n, sizeof *b->sge))
        return;
    r->first_sge = b->n_sge;
    if (n)
        copy_some(b->sge + b->n_sge, list, n * sizeof *list);
    b->n_sge += n;
    r->wr.num_sge = (int)n;
    r->wr.send_flags &= ~(unsigned)IBV_SEND_INLINE;
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t address, uint32_t length)
{
    struct ibv_sge sge = {address, length, lkey};
    wr_set_sge_list(ex, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
    struct builder *b = of(ex);
    struct ibv_sge whole = {0};
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += list[i].length;
    if (bytes > b->q->cap.max_inline_data)
        refuse(b, EINVAL);
    if (!last(b) || !grow(b, (void **)&b->data, &b->data_room, b->n_data + bytes, 1))
        return;
    wr_set_sge_list(ex, 1, &whole);
    struct request *r = last(b);
    if (!r)
        return;
    r->data = b->n_data;
    r->inline_bytes = bytes;
    r->wr.send_flags |= IBV_SEND_INLINE;
    for (size_t i = 0; i < n; i++) {
        copy_some(b->data + b->n_data, list[i].addr, list[i].length);
        b->n_data += list[i].length;
    }
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *address, size_t length)
{
    struct ibv_data_buf buf = {address, length};
    wr_set_inline_data_list(ex, 1, &buf);
}

/* ---- beginning and end ----------------------------------------------------------------------- */

static void wr_start(struct ibv_qp_ex *ex)
{
    struct builder *b = of(ex);
    pthread_mutex_lock(&b->q->building);
    b->err = 0;
    b->n = b->n_sge = b->n_data = 0;
}

static struct ibv_send_wr *link_up(struct builder *b)
{
    for (size_t i = 0; i < b->n; i++) {
        struct request *r = &b->request[i];
        struct ibv_sge *sge = b->sge + r->first_sge;
        r->wr.sg_list = r->wr.num_sge ? sge : NULL;
        r->wr.next = i + 1 < b->n ? &b->request[i + 1].wr : NULL;
        if (r->wr.send_flags & IBV_SEND_INLINE)
            *sge = (struct ibv_sge){.addr = (uintptr_t)(b->data + r->data),
                                    .length = (uint32_t)r->inline_bytes};
    }
    return b->n ? &b->request[0].wr : NULL;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
    struct builder *b = of(ex);
    struct ibv_send_wr *first = b->err ? NULL : link_up(b), *bad;
    int err = b->err;
    if (first)
        err = faults_post_send(&ex->qp_base, first, &bad);
    pthread_mutex_unlock(&b->q->building);
    return err;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
    pthread_mutex_unlock(&of(ex)->q->building);
}

void faults_wr_api(struct ibv_qp_ex *ex)
{
    ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
    ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
    ex->wr_bind_mw = wr_bind_mw;
    ex->wr_local_inv = wr_local_inv;
    ex->wr_rdma_read = wr_rdma_read;
    ex->wr_rdma_write = wr_rdma_write;
    ex->wr_rdma_write_imm = wr_rdma_write_imm;
    ex->wr_send = wr_send;
    ex->wr_send_imm = wr_send_imm;
    ex->wr_send_inv = wr_send_inv;
    ex->wr_send_tso = wr_send_tso;
    ex->wr_set_ud_addr = wr_set_ud_addr;
    ex->wr_set_xrc_srqn = wr_set_xrc_srqn;
    ex->wr_set_inline_data = wr_set_inline_data;
    ex->wr_set_inline_data_list = wr_set_inline_data_list;
    ex->wr_set_sge = wr_set_sge;
    ex->wr_set_sge_list = wr_set_sge_list;
    ex->wr_start = wr_start;
    ex->wr_complete = wr_complete;
    ex->wr_abort = wr_abort;
    ex->wr_atomic_write = wr_atomic_write;
}
