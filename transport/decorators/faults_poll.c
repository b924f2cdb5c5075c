/* SPDX-License-Identifier: MIT */
/*
 * Completions on their way to the program: those of condemned requests are given their status back,
 * late ones wait here. Events for late ones we give ourselves, to whoever blocks in get_cq_event;
 * the channel's descriptor cannot be made readable by us.
 */
#include "transport/decorators/faults_private.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>

enum { LOOK_AGAIN_NS = 10000000 };

static struct fault_cq *find_cq(struct faults *f, const struct ibv_cq *cq)
{
    struct fault_cq *c = f->cqs;
    while (c && c->cq != cq)
        c = c->next;
    return c;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr);
static int next_poll(struct ibv_cq_ex *ex);

int faults_cq_add(struct faults *f, struct ibv_cq *cq, struct ibv_cq_ex *ex)
{
    struct fault_cq *c = calloc(1, sizeof *c);
    if (!c)
        return ENOMEM;
    c->cq = cq;
    c->end = &c->first;
    if (ex) {
        c->start_poll = ex->start_poll;
        c->next_poll = ex->next_poll;
        ex->start_poll = start_poll;
        ex->next_poll = next_poll;
    }
    pthread_mutex_lock(&f->lock);
    c->next = f->cqs;
    f->cqs = c;
    pthread_mutex_unlock(&f->lock);
    return 0;
}

void faults_cq_remove(struct faults *f, struct ibv_cq *cq)
{
    pthread_mutex_lock(&f->lock);
    struct fault_cq **at = &f->cqs;
    while (*at && (*at)->cq != cq)
        at = &(*at)->next;
    struct fault_cq *c = *at;
    if (c)
        *at = c->next;
    pthread_mutex_unlock(&f->lock);
    while (c && c->first) {
        struct late *l = c->first;
        c->first = l->next;
        free(l);
    }
    free(c);
}

/* A flushed completion that stands for another. True: it was one. */
static bool give_status(struct faults *f, struct ibv_wc *wc)
{
    for (struct held **at = &f->condemned; *at; at = &(*at)->next) {
        struct held *h = *at;
        if (wc->wr_id != (uintptr_t)h || wc->qp_num != h->release_ns)
            continue;
        wc->wr_id = h->user_id;
        if (wc->status == IBV_WC_WR_FLUSH_ERR)
            wc->status = h->fail;
        *at = h->next;
        free(h);
        return true;
    }
    return false;
}

static unsigned op_of(const struct ibv_wc *wc)
{
    if (wc->opcode & IBV_WC_RECV)
        return FAULT_OP_RECV;
    switch (wc->opcode) {
    case IBV_WC_RDMA_WRITE:
        return FAULT_OP_WRITE;
    case IBV_WC_RDMA_READ:
        return FAULT_OP_READ;
    case IBV_WC_COMP_SWAP:
    case IBV_WC_FETCH_ADD:
        return FAULT_OP_ATOMIC;
    default:
        return FAULT_OP_SEND;
    }
}

/* How much later this one is shown than it came. */
static uint64_t lateness(struct faults *f, struct fault_qp *q, const struct ibv_wc *wc,
                         uint64_t now)
{
    uint64_t by_ns = 0;
    unsigned op = op_of(wc);
    for (int i = 0; i < f->plan.n_rules; i++) {
        const struct fault_rule *rule = &f->plan.rule[i];
        if (!f->applies[i] || rule->kind != FAULT_LATE || !(rule->ops & op) ||
            q->number < rule->qp.first || q->number > rule->qp.last ||
            now < f->opened_ns + rule->after_ns ||
            !fault_rule_strikes(&f->plan, i, f->rank, q->number, &q->count[i]))
            continue;
        faults_say(f, "late, queue pair %llu (0x%x), completion %llu",
                   (unsigned long long)q->number, wc->qp_num, (unsigned long long)q->count[i].met);
        by_ns += rule->time_ns;
    }
    return by_ns;
}

static bool put_aside(struct fault_cq *c, const struct ibv_wc *wc, uint64_t due_ns)
{
    struct late *l = calloc(1, sizeof *l);
    if (!l)
        return false; /* then it is shown now */
    *l = (struct late){.due_ns = due_ns, .wc = *wc};
    *c->end = l;
    c->end = &l->next;
    return true;
}

/* What failed comes before all that is flushed because of it, receives too. */
static bool await_cause(struct faults *f, struct fault_cq *c, const struct ibv_wc *wc)
{
    const struct fault_qp *q = faults_qp_by_number(f, wc->qp_num);
    if (wc->status != IBV_WC_WR_FLUSH_ERR || !q || q->qp->send_cq != c->cq)
        return false;
    const struct held *h = f->condemned;
    while (h && h->release_ns != wc->qp_num)
        h = h->next;
    return h && put_aside(c, wc, UINT64_MAX);
}

static void cause_has_come(struct fault_cq *c, uint32_t qp_num)
{
    for (struct late *l = c->first; l; l = l->next)
        if (l->wc.qp_num == qp_num && l->due_ns == UINT64_MAX)
            l->due_ns = 0;
}

/* True: it waits here now. */
static bool keep(struct faults *f, struct fault_cq *c, const struct ibv_wc *wc, uint64_t now)
{
    struct fault_qp *q = faults_qp_by_number(f, wc->qp_num);
    if (!q || wc->status != IBV_WC_SUCCESS)
        return false;
    uint64_t due = now + lateness(f, q, wc, now);
    if (due < q->late_until_ns)
        due = q->late_until_ns;
    if (due <= now)
        return false;
    if (!put_aside(c, wc, due))
        return false;
    q->late_until_ns = due;
    return true;
}

static int take_due(struct fault_cq *c, int n, struct ibv_wc *wc, uint64_t now)
{
    int count = 0;
    for (struct late **at = &c->first; *at && count < n;) {
        struct late *l = *at;
        if (l->due_ns > now) {
            at = &l->next;
            continue;
        }
        wc[count++] = l->wc;
        *at = l->next;
        if (c->end == &l->next)
            c->end = at;
        free(l);
    }
    return count;
}

/* What came from the device: shown, or put aside. How many are to be shown, at the front of `wc`.
 */
static int sift(struct faults *f, struct fault_cq *c, struct ibv_wc *wc, int n, uint64_t now)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        struct ibv_wc one = wc[i];
        bool cause = f->condemned && give_status(f, &one);
        if (cause)
            cause_has_come(c, one.qp_num);
        else if ((f->condemned && await_cause(f, c, &one)) || keep(f, c, &one, now))
            continue;
        wc[count++] = one;
    }
    return count;
}

static int poll_both(struct faults *f, struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    struct fault_cq *c = find_cq(f, cq);
    if (!c || (!c->first && !f->condemned && !faults_has(f, 1u << FAULT_LATE)))
        return f->ops.poll_cq(cq, n, wc);
    uint64_t now = faults_now();
    int count = 0;
    /* One put aside makes room for another, so look until nothing comes. */
    for (;;) {
        count += take_due(c, n - count, wc + count, now);
        int got = count < n ? f->ops.poll_cq(cq, n - count, wc + count) : 0;
        if (got <= 0)
            return got < 0 && count == 0 ? got : count;
        count += sift(f, c, wc + count, got, now);
    }
}

int faults_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    struct faults *f = faults_of(cq->context);
    if (n < 1)
        return f->ops.poll_cq(cq, n, wc);
    pthread_mutex_lock(&f->lock);
    if (f->n_held)
        faults_release_all(f, faults_now());
    int count = poll_both(f, cq, n, wc);
    pthread_mutex_unlock(&f->lock);
    return count;
}

/* ---- field by field: completions get their status back, and are not late -----------------------
 */

static int give_status_ex(struct faults *f, struct ibv_cq_ex *ex, int err)
{
    pthread_mutex_lock(&f->lock);
    if (!err && f->condemned) {
        struct ibv_wc wc = {
            .wr_id = ex->wr_id, .status = ex->status, .qp_num = ibv_wc_read_qp_num(ex)};
        give_status(f, &wc);
        ex->wr_id = wc.wr_id;
        ex->status = wc.status;
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

static struct fault_cq *looked_at(struct faults *f, struct ibv_cq_ex *ex)
{
    pthread_mutex_lock(&f->lock);
    if (f->n_held)
        faults_release_all(f, faults_now());
    struct fault_cq *c = find_cq(f, ibv_cq_ex_to_cq(ex));
    pthread_mutex_unlock(&f->lock);
    return c;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
    struct faults *f = faults_of(ex->context);
    return give_status_ex(f, ex, looked_at(f, ex)->start_poll(ex, attr));
}

/* Between start and end the device may hold its own locks, so nothing is posted from here. */
static int next_poll(struct ibv_cq_ex *ex)
{
    struct faults *f = faults_of(ex->context);
    pthread_mutex_lock(&f->lock);
    struct fault_cq *c = find_cq(f, ibv_cq_ex_to_cq(ex));
    pthread_mutex_unlock(&f->lock);
    return give_status_ex(f, ex, c->next_poll(ex));
}

/* ---- events ---------------------------------------------------------------------------------- */

int faults_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    struct faults *f = faults_of(cq->context);
    int err = f->ops.req_notify_cq(cq, solicited_only);
    pthread_mutex_lock(&f->lock);
    struct fault_cq *c = find_cq(f, cq);
    if (c && !err)
        c->armed = true;
    pthread_mutex_unlock(&f->lock);
    return err;
}

/* A queue of the channel that is armed and whose late completion is due, else when one will be. */
static struct fault_cq *due_queue(struct faults *f, const struct ibv_comp_channel *channel,
                                  uint64_t now, uint64_t *wait_ns)
{
    *wait_ns = LOOK_AGAIN_NS;
    for (struct fault_cq *c = f->cqs; c; c = c->next) {
        if (c->cq->channel != channel || !c->armed)
            continue;
        for (const struct late *l = c->first; l; l = l->next) {
            if (l->due_ns <= now)
                return c;
            if (l->due_ns - now < *wait_ns)
                *wait_ns = l->due_ns - now;
        }
    }
    return NULL;
}

int faults_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    struct faults *f = faults_of(channel->context);
    if (!faults_has(f, 1u << FAULT_LATE))
        return f->inner->get_cq_event(channel, cq, cq_context);
    bool blocks = (fcntl(channel->fd, F_GETFL) & O_NONBLOCK) == 0;
    for (;;) {
        uint64_t wait_ns;
        pthread_mutex_lock(&f->lock);
        struct fault_cq *c = due_queue(f, channel, faults_now(), &wait_ns);
        if (c) {
            c->armed = false;
            c->events++;
            *cq = c->cq;
            *cq_context = c->cq->cq_context;
        }
        pthread_mutex_unlock(&f->lock);
        if (c)
            return 0;
        struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
        struct timespec wait = {.tv_nsec = (long)wait_ns};
        if (blocks && ppoll(&ready, 1, &wait, NULL) <= 0)
            continue;
        int err = f->inner->get_cq_event(channel, cq, cq_context);
        pthread_mutex_lock(&f->lock);
        c = err ? NULL : find_cq(f, *cq);
        if (c)
            c->armed = false;
        pthread_mutex_unlock(&f->lock);
        return err;
    }
}

void faults_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
    struct faults *f = faults_of(cq->context);
    pthread_mutex_lock(&f->lock);
    struct fault_cq *c = find_cq(f, cq);
    unsigned ours = c && c->events < n ? c->events : c ? n : 0;
    if (c)
        c->events -= ours;
    pthread_mutex_unlock(&f->lock);
    if (n > ours)
        f->inner->ack_cq_events(cq, n - ours);
}
