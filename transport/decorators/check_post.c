/* SPDX-License-Identifier: MIT */
/* What is posted: whether it may be, and what is under way until its completion is polled. */
#include "transport/decorators/check_private.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *state_name(enum ibv_qp_state state)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return (unsigned)state < sizeof names / sizeof *names ? names[state] : "no known state";
}

static struct object *find_region(struct check *c, uint32_t lkey)
{
    for (struct object *o = c->objects; o; o = o->next)
        if (o->kind == CHECK_MR && o->mr->lkey == lkey)
            return o;
    return NULL;
}

/* Within its region, which grants it, in this protection domain? */
static bool segments_are_right(struct check *c, const char *what, uint64_t wr_id,
                               const struct ibv_pd *pd, const struct ibv_sge *sge, int num_sge,
                               bool written)
{
    for (int i = 0; i < num_sge; i++) {
        const struct object *o = sge[i].length ? find_region(c, sge[i].lkey) : NULL;
        if (!sge[i].length)
            continue;
        if (!o) {
            check_found(c, "%s, wr_id %#llx: segment %d has lkey %#x, which is of no region", what,
                        (unsigned long long)wr_id, i, sge[i].lkey);
            return false;
        }
        uint64_t ahead = sge[i].addr - o->from;
        if (ahead > o->mr->length || sge[i].length > o->mr->length - ahead)
            check_found(c,
                        "%s, wr_id %#llx: segment %d, %u bytes at %#llx, is not within its region "
                        "of %zu bytes at %#llx",
                        what, (unsigned long long)wr_id, i, sge[i].length,
                        (unsigned long long)sge[i].addr, o->mr->length,
                        (unsigned long long)o->from);
        else if (written && !(o->access & IBV_ACCESS_LOCAL_WRITE))
            check_found(c,
                        "%s, wr_id %#llx: the device is to write into segment %d, whose region was "
                        "registered without IBV_ACCESS_LOCAL_WRITE",
                        what, (unsigned long long)wr_id, i);
        else if (o->mr->pd != pd)
            check_found(c,
                        "%s, wr_id %#llx: segment %d is of a region of another protection domain",
                        what, (unsigned long long)wr_id, i);
        else
            continue;
        return false;
    }
    return true;
}

static bool overlap(const struct request *r, const struct ibv_sge *sge, int num_sge)
{
    for (int i = 0; i < r->num_sge; i++)
        for (int k = 0; k < num_sge; k++)
            if (r->sge[i].addr < sge[k].addr + sge[k].length &&
                sge[k].addr < r->sge[i].addr + r->sge[i].length)
                return true;
    return false;
}

/* A buffer that a request of the program's own fills (an RDMA READ, an atomic) while another is
 * sent from it: what is sent nobody knows, except where a fence lets the sending wait. Two that
 * fill one buffer are the program's way to throw data away, and a receive is filled when a peer
 * sends, which the two of them have settled (ibv_rc_pingpong has one buffer for all). Said once of
 * a queue. */
static void look_for_reuse(struct check *c, struct object *q, const struct ibv_send_wr *wr,
                           int num_sge, bool written)
{
    for (const struct object *o = c->objects; o && !q->told_overlap; o = o->next) {
        const struct request *r = o->sends.first;
        bool waits = !written && o == q && wr->send_flags & IBV_SEND_FENCE;
        while (r && (waits || written == r->written || !overlap(r, wr->sg_list, num_sge)))
            r = r->next;
        if (!r)
            continue;
        q->told_overlap = true;
        check_found(c,
                    "ibv_post_send, wr_id %#llx: its buffer, %s, overlaps that of the request with "
                    "wr_id %#llx, %s, whose completion has not been polled (said once of a queue "
                    "pair)",
                    (unsigned long long)wr->wr_id,
                    written ? "which the device fills" : "which is sent from",
                    (unsigned long long)r->wr_id,
                    written ? "which is sent from" : "which the device fills");
    }
}

static struct request *keep(struct requests *requests, uint64_t wr_id, const struct ibv_sge *sge,
                            int num_sge)
{
    struct request *r = calloc(1, sizeof *r + (size_t)num_sge * sizeof *sge);
    if (!r)
        return NULL; /* what we do not know we do not judge */
    r->wr_id = wr_id;
    r->num_sge = num_sge;
    if (num_sge)
        memcpy(r->sge, sge, (size_t)num_sge * sizeof *sge);
    struct request **end = &requests->first;
    while (*end)
        end = &(*end)->next;
    *end = r;
    requests->count++;
    return r;
}

static void drop_first(struct requests *requests, struct object *cq)
{
    struct request *r = requests->first;
    requests->first = r->next;
    requests->count--;
    requests->signalled -= r->signalled;
    if (r->signalled && cq && cq->under_way)
        cq->under_way--;
    free(r);
}

void check_requests_free(struct requests *requests)
{
    while (requests->first)
        drop_first(requests, NULL);
}

void check_forget(struct check *c, struct object *qp)
{
    struct object *cq = check_find(c, qp->qp->send_cq);
    while (qp->sends.first)
        drop_first(&qp->sends, cq);
    check_requests_free(&qp->receives);
}

static bool may_send(struct check *c, const struct object *q)
{
    if (q->state == IBV_QPS_RTS || q->state == IBV_QPS_SQD || q->state == IBV_QPS_SQE ||
        q->state == IBV_QPS_ERR)
        return true;
    check_found(c, "ibv_post_send: queue pair %#x is in %s, sends are posted from RTS on",
                q->qp->qp_num, state_name(q->state));
    return false;
}

/* Of a queue that is full, does anything ask for the completion that would free it? */
static bool may_be_freed(struct check *c, const struct object *q, bool signalled)
{
    if (signalled || q->sends.signalled || q->sends.count + 1 < q->max_send_wr)
        return true;
    check_found(c,
                "ibv_post_send: with this request the send queue of queue pair %#x is full (%u), "
                "and none of them asks for a completion (IBV_SEND_SIGNALED): nothing would free it",
                q->qp->qp_num, q->max_send_wr);
    return false;
}

static void look_for_overrun(struct check *c, struct object *q, struct object *cq)
{
    if (!cq || q->told_overrun || cq->under_way < (uint32_t)cq->cq->cqe)
        return;
    q->told_overrun = true;
    check_found(
        c,
        "ibv_post_send: queue pair %#x: %u requests that ask for a completion are under way "
        "for a completion queue of %d, which may overrun (said once of a queue pair)",
        q->qp->qp_num, cq->under_way + 1, cq->cq->cqe);
}

/* lock held */
static bool take_send(struct check *c, struct object *q, const struct ibv_send_wr *wr)
{
    static const char what[] = "ibv_post_send";
    bool is_inline = wr->send_flags & IBV_SEND_INLINE;
    bool signalled = q->sig_all || wr->send_flags & IBV_SEND_SIGNALED;
    bool written = wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
                   wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    int num_sge = is_inline ? 0 : wr->num_sge;
    if (!may_send(c, q) || !may_be_freed(c, q, signalled) ||
        !segments_are_right(c, what, wr->wr_id, q->qp->pd, wr->sg_list, num_sge, written))
        return false;
    struct object *cq = check_find(c, q->qp->send_cq);
    look_for_reuse(c, q, wr, num_sge, written);
    if (signalled)
        look_for_overrun(c, q, cq);
    struct request *r = keep(&q->sends, wr->wr_id, wr->sg_list, num_sge);
    if (!r)
        return true;
    r->written = written;
    r->signalled = signalled;
    q->sends.signalled += signalled;
    if (signalled && cq)
        cq->under_way++;
    return true;
}

/* The device did not take this request and what follows it: they are not under way. */
static void take_back(struct requests *requests, uint32_t from, struct object *cq)
{
    struct requests refused = {0};
    struct request **at = &requests->first;
    for (uint32_t i = 0; i < from && *at; i++)
        at = &(*at)->next;
    refused.first = *at;
    *at = NULL;
    for (const struct request *r = refused.first; r; r = r->next) {
        refused.count++;
        refused.signalled += r->signalled;
    }
    requests->count -= refused.count;
    requests->signalled -= refused.signalled;
    while (refused.first)
        drop_first(&refused, cq);
}

int check_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct check *c = check_of(qp->context);
    int err = 0;
    pthread_mutex_lock(&c->lock);
    struct object *q = check_find(c, qp);
    uint32_t before = q ? q->sends.count : 0, taken = 0;
    struct ibv_send_wr *at = wr, **end = NULL, *cut = NULL;
    for (; q && at; at = at->next, taken++) {
        if (!take_send(c, q, at)) {
            err = EINVAL;
            break;
        }
        end = &at->next;
    }
    /* What comes before the one that is refused is posted. */
    if (err) {
        *bad = cut = at;
        if (end)
            *end = NULL;
    }
    if (!err || taken) {
        struct ibv_send_wr *refused = NULL;
        int answer = c->ops.post_send(qp, wr, &refused);
        if (answer) {
            uint32_t n = 0;
            for (at = wr; at && at != refused; at = at->next)
                n++;
            if (q)
                take_back(&q->sends, before + n, check_find(c, qp->send_cq));
            *bad = refused;
            err = answer;
        }
    }
    if (cut && end)
        *end = cut;
    pthread_mutex_unlock(&c->lock);
    return err;
}

/* lock held; the receives of a queue pair or a shared queue. 0, or EINVAL: none is posted. */
static int take_receives(struct check *c, struct object *queue, const char *what,
                         const struct ibv_pd *pd, const struct ibv_recv_wr *wr)
{
    for (; wr; wr = wr->next) {
        if (!segments_are_right(c, what, wr->wr_id, pd, wr->sg_list, wr->num_sge, true))
            return EINVAL;
        keep(&queue->receives, wr->wr_id, wr->sg_list, wr->num_sge);
    }
    return 0;
}

/* What the device took of a list, if it refused `bad`. */
static uint32_t receives_before(const struct ibv_recv_wr *wr, const struct ibv_recv_wr *bad)
{
    uint32_t n = 0;
    for (; wr && wr != bad; wr = wr->next)
        n++;
    return n;
}

int check_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct check *c = check_of(qp->context);
    int err = 0;
    *bad = wr;
    pthread_mutex_lock(&c->lock);
    struct object *q = check_find(c, qp);
    uint32_t before = q ? q->receives.count : 0;
    if (q && q->state == IBV_QPS_RESET) {
        check_found(c,
                    "ibv_post_recv: queue pair %#x is in RESET, receives are posted from INIT on",
                    qp->qp_num);
        err = EINVAL;
    } else if (q) {
        err = take_receives(c, q, "ibv_post_recv", qp->pd, wr);
    }
    if (!err)
        err = c->ops.post_recv(qp, wr, bad);
    if (err && q)
        take_back(&q->receives, before + receives_before(wr, *bad), NULL);
    pthread_mutex_unlock(&c->lock);
    return err;
}

int check_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct check *c = check_of(srq->context);
    *bad = wr;
    pthread_mutex_lock(&c->lock);
    struct object *o = check_find(c, srq);
    uint32_t before = o ? o->receives.count : 0;
    int err = o ? take_receives(c, o, "ibv_post_srq_recv", srq->pd, wr) : 0;
    if (!err)
        err = c->ops.post_srq_recv(srq, wr, bad);
    if (err && o)
        take_back(&o->receives, before + receives_before(wr, *bad), NULL);
    pthread_mutex_unlock(&c->lock);
    return err;
}

static bool complete_receive(struct requests *receives, uint64_t wr_id)
{
    struct request **at = &receives->first;
    while (*at && (*at)->wr_id != wr_id)
        at = &(*at)->next;
    if (!*at)
        return false;
    struct request *r = *at;
    *at = r->next;
    receives->count--;
    free(r);
    return true;
}

/* One request's completion is that of all before it on its queue pair. Several may have one
 * wr_id: what went well is the first of them that asks for a completion. */
static void complete_send(struct check *c, struct object *q, uint64_t wr_id, bool well)
{
    struct object *cq = check_find(c, q->qp->send_cq);
    const struct request *r = q->sends.first;
    while (r && (r->wr_id != wr_id || (well && !r->signalled)))
        r = r->next;
    for (bool last = !r; !last;) {
        last = q->sends.first == r;
        drop_first(&q->sends, cq);
    }
}

void check_completed(struct check *c, uint32_t qp_num, uint64_t wr_id, enum ibv_wc_status status,
                     enum ibv_wc_opcode opcode)
{
    struct object *q = check_find_qp(c, qp_num);
    if (!q)
        return;
    struct object *srq = q->qp->srq ? check_find(c, q->qp->srq) : NULL;
    struct requests *receives = srq ? &srq->receives : &q->receives;
    /* With an error the opcode means nothing by the letter; devices fill it all the same. */
    if (opcode & IBV_WC_RECV || (status != IBV_WC_SUCCESS && !q->sends.first))
        complete_receive(receives, wr_id);
    else
        complete_send(c, q, wr_id, status == IBV_WC_SUCCESS);
}
