/* SPDX-License-Identifier: MIT */
/*
 * Work requests on their way to the device: passed on at once, or held back. f->lock is held
 * throughout, so that what was posted first also enters the device first.
 */
#include "transport/decorators/faults_private.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_AGAIN_NS = 1000000 };

/* Receiver-not-ready timer values in microseconds (InfiniBand specification, table 45). */
static const uint32_t rnr_us[32] = {655360, 10,    20,    30,     40,     60,     80,     120,
                                    160,    240,   320,   480,    640,    960,    1280,   1920,
                                    2560,   3840,  5120,  7680,   10240,  15360,  20480,  30720,
                                    40960,  61440, 81920, 122880, 163840, 245760, 327680, 491520};

struct fault_qp *faults_qp(struct faults *f, const struct ibv_qp *qp)
{
    struct fault_qp *q = f->qps[qp->qp_num % QP_BUCKETS];
    while (q && q->qp != qp)
        q = q->next;
    return q;
}

struct fault_qp *faults_qp_by_number(struct faults *f, uint32_t qp_num)
{
    struct fault_qp *q = f->qps[qp_num % QP_BUCKETS];
    while (q && q->qp->qp_num != qp_num)
        q = q->next;
    return q;
}

static bool is_inline(const struct ibv_send_wr *wr)
{
    return (wr->send_flags & IBV_SEND_INLINE) != 0;
}

static uint64_t bytes_of(const struct ibv_send_wr *wr)
{
    uint64_t bytes = 0;
    for (int i = 0; i < wr->num_sge; i++)
        bytes += wr->sg_list[i].length;
    return bytes;
}

/* Inline bytes stand behind the segments, of which there is one then. */
static struct held *copy(const struct ibv_send_wr *wr)
{
    size_t n_sge = is_inline(wr) ? 1 : (size_t)wr->num_sge;
    uint64_t bytes = bytes_of(wr);
    size_t extra = is_inline(wr) ? (size_t)bytes : 0;
    struct held *h = calloc(1, sizeof *h + n_sge * sizeof *h->sge + extra);
    if (!h)
        return NULL;
    h->wr = *wr;
    h->wr.next = NULL;
    h->wr.sg_list = h->sge;
    h->user_id = wr->wr_id;
    h->bytes = bytes;
    if (!is_inline(wr)) {
        if (n_sge)
            copy_some(h->sge, wr->sg_list, n_sge * sizeof *h->sge);
        return h;
    }
    uint8_t *at = (uint8_t *)(h->sge + 1);
    h->sge[0] = (struct ibv_sge){.addr = (uintptr_t)at, .length = (uint32_t)bytes};
    h->wr.num_sge = bytes > 0;
    for (int i = 0; i < wr->num_sge; at += wr->sg_list[i++].length)
        copy_some(at, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
    return h;
}

/* ---- when ------------------------------------------------------------------------------------ */

static const struct fault_rule *slow_rule(const struct faults *f, uint64_t now)
{
    for (int i = 0; i < f->plan.n_rules; i++)
        if (f->applies[i] && f->plan.rule[i].kind == FAULT_SLOW &&
            now >= f->opened_ns + f->plan.rule[i].after_ns)
            return &f->plan.rule[i];
    return NULL;
}

/* How patient the queue pair is; whoever connected it may not have gone through us. */
static struct ibv_qp_attr patience(const struct faults *f, const struct fault_qp *q)
{
    struct ibv_qp_attr attr = {.timeout = 0};
    struct ibv_qp_init_attr init;
    const int mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER;
    f->inner->query_qp(q->qp, &attr, mask, &init);
    return attr;
}

/* Lost `tries` times from `start` on: when it gets through, or fails. */
static void time_retries(const struct ibv_qp_attr *attr, struct held *h, uint64_t start)
{
    uint64_t interval = h->interval_ns;
    uint32_t limit = h->rnr ? attr->rnr_retry : attr->retry_cnt;
    if (h->rnr && !interval)
        interval = rnr_us[attr->min_rnr_timer & 31] * 1000ull;
    if (!h->rnr)
        interval = 4096ull << attr->timeout;
    bool for_ever = h->rnr && attr->rnr_retry == 7 && h->tries == FAULT_ALL;
    h->release_ns = start;
    if (for_ever || (!h->rnr && attr->timeout == 0)) {
        h->release_ns = UINT64_MAX; /* nobody counts, or nobody looks at the clock */
    } else if (h->tries <= limit || (h->rnr && limit == 7)) {
        h->release_ns += h->tries * interval;
    } else {
        /* A receiver answers at once that it is not ready, the last time too; silence lasts. */
        h->release_ns += (h->rnr ? limit : limit + 1ull) * interval;
        h->fail = h->rnr ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR;
    }
}

/* It has come to the head of its queue. */
static void set_time(struct faults *f, struct fault_qp *q, struct held *h, uint64_t now)
{
    uint64_t start = now, up = faults_port_down_until(f, now);
    struct ibv_qp_attr attr = {.timeout = 0};
    if (h->tries || up > now)
        attr = patience(f, q);
    if (up > now && !h->fail && q->qp->qp_type == IBV_QPT_RC) {
        /* All that is said until then is lost. */
        uint64_t interval = 4096ull << attr.timeout, lost = (up - now + interval - 1) / interval;
        h->tries = up == UINT64_MAX || lost > 1000 ? FAULT_ALL : (uint32_t)lost;
        h->rnr = false;
        h->interval_ns = 0;
    }
    const struct fault_rule *slow = slow_rule(f, now);
    if (slow) {
        double ns = slow->gap_us * 1e3;
        if (slow->beta_gbps > 0)
            ns += (double)h->bytes / slow->beta_gbps;
        if (f->busy_ns > start)
            start = f->busy_ns;
        start += (uint64_t)ns;
        f->busy_ns = start;
    }
    start += h->delay_ns;
    h->release_ns = start;
    if (h->tries)
        time_retries(&attr, h, start);
    h->timed = true;
}

uint64_t faults_next_release(const struct faults *f)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < QP_BUCKETS; i++)
        for (const struct fault_qp *q = f->qps[i]; q; q = q->next)
            if (q->first && q->first->timed && q->first->release_ns < next)
                next = q->first->release_ns;
    return next;
}

/* ---- releasing ------------------------------------------------------------------------------- */

static void pop(struct faults *f, struct fault_qp *q)
{
    q->first = q->first->next;
    if (!q->first)
        q->last = NULL;
    q->n_held--;
    f->n_held--;
}

/* Into the device. False: there is no room, later. */
static bool hand_over(struct faults *f, struct fault_qp *q)
{
    struct held *h = q->first;
    struct ibv_send_wr *bad;
    int err = f->ops.post_send(q->qp, &h->wr, &bad);
    if (err == ENOMEM) {
        h->release_ns = faults_now() + LOOK_AGAIN_NS;
        return false;
    }
    pop(f, q);
    if (err == 0 && h->fail) {
        h->next = f->condemned;
        f->condemned = h;
    } else {
        free(h); /* refused: it was valid when it was posted, so the queue pair is gone to RESET */
    }
    return true;
}

void faults_flush(struct faults *f, struct fault_qp *q)
{
    while (q->first && hand_over(f, q))
        ;
}

void faults_discard(struct faults *f, struct fault_qp *q)
{
    while (q->first) {
        struct held *h = q->first;
        pop(f, q);
        free(h);
    }
    for (struct held **at = &f->condemned; *at;) {
        struct held *h = *at;
        if (h->wr.wr_id == (uintptr_t)h && h->release_ns == q->qp_num) {
            *at = h->next;
            free(h);
        } else {
            at = &h->next;
        }
    }
}

/* The first of the queue fails: the queue pair breaks, and all that stands there is flushed, the
 * first one under a name by which polling knows it. */
static void condemn(struct faults *f, struct fault_qp *q)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    struct held *h = q->first;
    h->wr.wr_id = (uintptr_t)h;
    h->release_ns = q->qp->qp_num; /* time is over: whose it was */
    f->inner->modify_qp(q->qp, &attr, IBV_QP_STATE);
    faults_flush(f, q);
}

void faults_release(struct faults *f, struct fault_qp *q, uint64_t now)
{
    while (q->first) {
        struct held *h = q->first;
        if (!h->timed)
            set_time(f, q, h, now);
        if (h->release_ns > now)
            return;
        if (h->fail) {
            condemn(f, q);
            return;
        }
        if (faults_port_down_until(f, now) > now && q->qp->qp_type == IBV_QPT_RC) {
            h->tries = 0; /* it went down meanwhile: only that counts now */
            h->delay_ns = 0;
            h->timed = false;
            continue;
        }
        if (!hand_over(f, q))
            return;
    }
}

void faults_release_all(struct faults *f, uint64_t now)
{
    for (int i = 0; i < QP_BUCKETS; i++)
        for (struct fault_qp *q = f->qps[i]; q; q = q->next)
            if (q->first)
                faults_release(f, q, now);
}

/* ---- posting --------------------------------------------------------------------------------- */

static int hold(struct faults *f, struct fault_qp *q, const struct ibv_send_wr *wr,
                const struct fault_verdict *v)
{
    if (q->n_held >= q->cap.max_send_wr)
        return ENOMEM;
    struct held *h = copy(wr);
    if (!h)
        return ENOMEM;
    h->tries = v->tries;
    h->rnr = v->rnr;
    h->interval_ns = v->interval_ns;
    h->delay_ns = v->delay_ns;
    h->fail = v->fail;
    if (q->last)
        q->last->next = h;
    else
        q->first = h;
    q->last = h;
    q->n_held++;
    f->n_held++;
    return 0;
}

static void break_fatally(struct faults *f, struct fault_qp *q)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    f->inner->modify_qp(q->qp, &attr, IBV_QP_STATE);
    faults_flush(f, q);
    faults_async_raise(f, IBV_EVENT_QP_FATAL, q->qp);
}

static int post_one(struct faults *f, struct fault_qp *q, struct ibv_send_wr *wr, uint64_t now)
{
    struct fault_verdict v = faults_judge(f, q, wr, now);
    if (v.fatal)
        break_fatally(f, q);
    bool held = v.hold && !v.fatal;
    if (held || q->first || slow_rule(f, now) || faults_port_down_until(f, now) > now) {
        int err = hold(f, q, wr, &v);
        if (!err)
            faults_release(f, q, now);
        return err;
    }
    struct ibv_send_wr alone = *wr, *bad;
    alone.next = NULL;
    return f->ops.post_send(q->qp, &alone, &bad);
}

int faults_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct faults *f = faults_of(qp->context);
    int err;
    if (faults_call_fails(f, FAULT_CALL_POST_SEND, &err)) {
        *bad = wr;
        return err;
    }
    pthread_mutex_lock(&f->lock);
    struct fault_qp *q = faults_qp(f, qp);
    const uint32_t others = 1u << FAULT_FAIL | 1u << FAULT_LATE;
    if (!q || !faults_has(f, ~others)) {
        err = f->ops.post_send(qp, wr, bad);
        pthread_mutex_unlock(&f->lock);
        return err;
    }
    uint64_t now = faults_now();
    for (err = 0; wr; wr = wr->next) {
        err = post_one(f, q, wr, now);
        if (err) {
            *bad = wr;
            break;
        }
    }
    if (q->first)
        faults_wake_mover(f);
    pthread_mutex_unlock(&f->lock);
    return err;
}
