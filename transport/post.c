/* SPDX-License-Identifier: MIT */
/* Building work requests and ringing for them. */
#include "transport/post.h"
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int post_method_set(struct post_queue *q, enum post_method method)
{
    if (method == POST_WR && !q->ex)
        return -EOPNOTSUPP;
    if (method != POST_WR && !q->chain) {
        q->chain = calloc(1, sizeof *q->chain);
        if (!q->chain)
            return -ENOMEM;
    }
    q->method = method;
    return 0;
}

int post_open(struct post_queue *q, const struct verbs *verbs, struct ibv_qp *qp,
              struct ibv_qp_ex *ex)
{
    *q = (struct post_queue){.verbs = verbs, .qp = qp, .ex = ex};
    return post_method_set(q, ex ? POST_WR : POST_CHAIN);
}

void post_close(struct post_queue *q)
{
    if (q->started)
        ibv_wr_abort(q->ex);
    free(q->chain);
    *q = (struct post_queue){0};
}

static void build_in_queue(struct post_queue *q, const struct post_request *r)
{
    struct ibv_qp_ex *ex = q->ex;
    if (!q->started)
        ibv_wr_start(ex);
    q->started = true;
    ex->wr_id = r->wr_id;
    ex->wr_flags = r->flags;
    switch (r->opcode) {
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        ibv_wr_rdma_write_imm(ex, r->rkey, r->remote_address, htobe32(r->immediate));
        break;
    case IBV_WR_RDMA_READ:
        ibv_wr_rdma_read(ex, r->rkey, r->remote_address);
        break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        ibv_wr_atomic_fetch_add(ex, r->rkey, r->remote_address, r->add);
        break;
    default:
        ibv_wr_rdma_write(ex, r->rkey, r->remote_address);
        break;
    }
    if (r->n_sge == 1 && r->flags & IBV_SEND_INLINE) {
        ibv_wr_set_inline_data(ex, (void *)(uintptr_t)r->sge->addr, r->sge->length);
    } else if (r->flags & IBV_SEND_INLINE) {
        struct ibv_data_buf list[POST_MAX_SGE];
        for (int i = 0; i < r->n_sge; i++)
            list[i] = (struct ibv_data_buf){(void *)(uintptr_t)r->sge[i].addr, r->sge[i].length};
        ibv_wr_set_inline_data_list(ex, (size_t)r->n_sge, list);
    } else {
        ibv_wr_set_sge_list(ex, (size_t)r->n_sge, r->sge);
    }
}

static void build_in_chain(struct post_chain *chain, const struct post_request *r)
{
    int i = chain->n++;
    struct ibv_send_wr *wr = &chain->wr[i];
    struct ibv_sge *sge = chain->sge[i];
    wr->wr_id = r->wr_id; /* what no opcode of ours uses stays as it was made: zero */
    wr->next = NULL;
    wr->sg_list = sge;
    wr->num_sge = r->n_sge;
    wr->opcode = r->opcode;
    wr->send_flags = r->flags;
    wr->imm_data = htobe32(r->immediate);
    if (r->is_word) {
        memcpy(chain->word[i], (const void *)(uintptr_t)r->sge->addr, r->sge->length);
        *sge = (struct ibv_sge){.addr = (uintptr_t)chain->word[i], .length = r->sge->length};
    } else {
        for (int piece = 0; piece < r->n_sge; piece++)
            sge[piece] = r->sge[piece];
    }
    if (r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr->wr.atomic.remote_addr = r->remote_address;
        wr->wr.atomic.rkey = r->rkey;
        wr->wr.atomic.compare_add = r->add;
    } else {
        wr->wr.rdma.remote_addr = r->remote_address;
        wr->wr.rdma.rkey = r->rkey;
    }
    if (i > 0)
        chain->wr[i - 1].next = wr;
}

int post_build(struct post_queue *q, const struct post_request *request)
{
    int err = 0;
    if (q->method == POST_WR) {
        build_in_queue(q, request);
        q->built++;
        return 0;
    }
    if (q->chain->n == POST_CHAIN_MOST)
        err = post_ring(q);
    build_in_chain(q->chain, request);
    q->built++;
    return err;
}

int post_time_device(struct post_queue *q)
{
    return -q->verbs->time_device(q->qp, &q->time_wanted, &q->device_ticks);
}

int post_ring(struct post_queue *q)
{
    if (q->built == 0)
        return 0;
    q->built = 0;
    q->doorbells++;
    if (q->method == POST_WR) {
        q->started = false;
        return -ibv_wr_complete(q->ex);
    }
    struct ibv_send_wr *bad;
    q->chain->n = 0;
    return -q->verbs->post_send(q->qp, q->chain->wr, &bad);
}

int post_receives(struct post_queue *q, uint32_t n, uint64_t wr_id)
{
    enum { BATCH = 32 };
    struct ibv_recv_wr wr[BATCH], *bad;
    int err = 0;
    while (n > 0 && !err) {
        uint32_t some = n < BATCH ? n : BATCH;
        for (uint32_t i = 0; i < some; i++)
            wr[i] = (struct ibv_recv_wr){.wr_id = wr_id, .next = i + 1 < some ? &wr[i + 1] : NULL};
        err = -q->verbs->post_recv(q->qp, wr, &bad);
        n -= some;
    }
    return err;
}
