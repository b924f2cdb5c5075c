/* SPDX-License-Identifier: MIT */
/* Attaching to a context and leaving it. */
#include "transport/decorators/faults_private.h"
#include <errno.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t faults_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What belongs to an open device hangs off its context. A genuine ibv_context has no member for
 * that, but entries that libibverbs has not called since its ABI grew; one of them takes the
 * address. */
static void *(**place_of(const struct ibv_context *context))(void)
{
    return (void *(**)(void))(uintptr_t)&context->ops._compat_async_event;
}

struct faults *faults_of(const struct ibv_context *context)
{
    return (struct faults *)(uintptr_t)*place_of(context);
}

bool faults_attached(const struct ibv_context *context)
{
    return context->ops.post_send == faults_post_send;
}

void faults_say(struct faults *f, const char *format, ...)
{
    char line[256];
    if (!f->say)
        return;
    int n = snprintf(line, sizeof line, "fault on %s: ", f->port);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + n, sizeof line - (size_t)n, format, arguments);
    va_end(arguments);
    f->say(f->say_arg, line);
}

/* Counts the call. */
bool faults_call_fails(struct faults *f, enum fault_call call, int *err)
{
    if (!faults_has(f, 1u << FAULT_FAIL))
        return false;
    bool fails = false;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < f->plan.n_rules && !fails; i++) {
        const struct fault_rule *rule = &f->plan.rule[i];
        if (!f->applies[i] || rule->kind != FAULT_FAIL || rule->call != call ||
            faults_now() < f->opened_ns + rule->after_ns)
            continue;
        fails = fault_rule_strikes(&f->plan, i, f->rank, 0, &f->calls[i]);
        if (!fails)
            continue;
        *err = rule->error;
        faults_say(f, "%s number %llu fails with %s", fault_call_names[call],
                   (unsigned long long)f->calls[i].met, strerrorname_np(rule->error));
    }
    pthread_mutex_unlock(&f->lock);
    return fails;
}

/* ---- attaching ------------------------------------------------------------------------------- */

static void choose_rules(struct faults *f)
{
    for (int i = 0; i < f->plan.n_rules; i++) {
        const struct fault_rule *rule = &f->plan.rule[i];
        uint64_t rank = (uint64_t)f->rank;
        bool all = rule->rank.first == 0 && rule->rank.last == UINT64_MAX;
        f->applies[i] = (all || (rank >= rule->rank.first && rank <= rule->rank.last)) &&
                        (!rule->port[0] || fnmatch(rule->port, f->port, 0) == 0);
        if (!f->applies[i])
            continue;
        f->kinds |= 1u << rule->kind;
        if (rule->kind == FAULT_DOWN && !fault_rule_counts(rule)) {
            uint64_t from = f->opened_ns + rule->after_ns;
            f->outage[i] = (struct outage){from, rule->time_ns ? from + rule->time_ns : UINT64_MAX};
        }
    }
}

static void hook(struct faults *f)
{
    struct ibv_context_ops *ops = &f->context->ops;
    struct verbs_context *vctx = verbs_get_ctx(f->context);
    f->ops = *ops;
    ops->post_send = faults_post_send;
    ops->post_recv = verbs_faults.post_recv;
    ops->poll_cq = faults_poll_cq;
    ops->req_notify_cq = faults_req_notify_cq;
    if (vctx) {
        f->create_qp_ex = vctx->create_qp_ex;
        f->create_cq_ex = vctx->create_cq_ex;
        f->query_port = vctx->query_port;
        if (f->create_cq_ex)
            vctx->create_cq_ex = faults_create_cq_ex;
        if (f->create_qp_ex)
            vctx->create_qp_ex = faults_create_qp_ex;
        if (f->query_port)
            vctx->query_port = faults_query_port;
    }
    *place_of(f->context) = (void *(*)(void))(uintptr_t)f;
}

static void unhook(struct faults *f)
{
    struct verbs_context *vctx = verbs_get_ctx(f->context);
    f->context->ops = f->ops;
    if (vctx && f->create_qp_ex)
        vctx->create_qp_ex = f->create_qp_ex;
    if (vctx && f->create_cq_ex)
        vctx->create_cq_ex = f->create_cq_ex;
    if (vctx && f->query_port)
        vctx->query_port = f->query_port;
}

int faults_attach(struct ibv_context *context, const struct faults_attr *attr)
{
    struct faults *f = calloc(1, sizeof *f);
    if (!f)
        return ENOMEM;
    f->context = context;
    f->inner = attr->inner;
    f->plan = *attr->plan;
    f->rank = attr->rank;
    f->say = attr->say;
    f->say_arg = attr->arg;
    f->opened_ns = faults_now();
    f->events_end = &f->events;
    snprintf(f->port, sizeof f->port, "%s",
             attr->port ? attr->port : attr->inner->get_device_name(context->device));
    choose_rules(f);
    int err = faults_async_open(f);
    if (err) {
        free(f);
        return err;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->async_lock, NULL);
    hook(f);
    pthread_mutex_lock(&f->lock);
    if (faults_has(f, 1u << FAULT_DOWN))
        faults_wake_mover(f);
    pthread_mutex_unlock(&f->lock);
    return 0;
}

int faults_close_device(struct ibv_context *context)
{
    struct faults *f = faults_of(context);
    const struct verbs *inner = f->inner;
    faults_end_mover(f);
    for (int i = 0; i < QP_BUCKETS; i++)
        while (f->qps[i]) {
            struct fault_qp *q = f->qps[i];
            f->qps[i] = q->next;
            faults_qp_free(f, q);
        }
    while (f->cqs)
        faults_cq_remove(f, f->cqs->cq);
    unhook(f);
    faults_async_close(f);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->async_lock);
    free(f);
    return inner->close_device(context);
}
