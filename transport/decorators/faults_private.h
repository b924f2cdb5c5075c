/* SPDX-License-Identifier: MIT */
/* What the files of the faults decorator share. */
#ifndef SSTAR_DECORATORS_FAULTS_PRIVATE_H
#define SSTAR_DECORATORS_FAULTS_PRIVATE_H

#include "transport/decorators/faults_plan.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { QP_BUCKETS = 256 };

/* A work request of ours: copied, with its segments and inline bytes. */
struct held {
    struct held *next;
    struct ibv_send_wr wr;
    uint64_t user_id;        /* what wr.wr_id was */
    uint32_t tries;          /* transmissions lost */
    bool rnr;                /* for want of a receive */
    uint64_t interval_ns;    /* between transmissions; 0: as the queue pair has it */
    uint64_t delay_ns;       /* before it is posted */
    enum ibv_wc_status fail; /* with what it ends; IBV_WC_SUCCESS: well */
    uint64_t bytes;
    bool timed; /* release_ns is set: it is the first of its queue */
    uint64_t release_ns;
    struct ibv_sge sge[];
};

struct builder;

struct fault_qp {
    struct fault_qp *next;
    struct ibv_qp *qp;
    uint32_t qp_num;       /* of qp, which may be gone */
    uint64_t number;       /* in order of making */
    struct ibv_qp_cap cap; /* as granted */
    struct held *first, *last;
    uint32_t n_held;
    uint64_t late_until_ns; /* no completion is shown before one that came earlier */
    struct fault_count count[FAULT_RULES_MAX];
    pthread_mutex_t building; /* from wr_start to wr_complete */
    struct builder *builder;
};

struct late {
    struct late *next;
    uint64_t due_ns;
    struct ibv_wc wc;
};

struct fault_cq {
    struct fault_cq *next;
    struct ibv_cq *cq;
    /* Of a queue that is polled field by field: the device's own. */
    int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
    int (*next_poll)(struct ibv_cq_ex *);
    struct late *first, **end;
    bool armed;
    unsigned events; /* given by us and not acknowledged */
};

struct fault_event {
    struct fault_event *next;
    struct ibv_async_event event;
};

/* When a rule has the port down: [from, to). */
struct outage {
    uint64_t from_ns, to_ns;
};

struct faults {
    struct ibv_context *context;
    const struct verbs *inner;
    struct ibv_context_ops ops; /* as they were; inner->post_send would come back to us */
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
    int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *, size_t);
    struct fault_plan plan;
    bool applies[FAULT_RULES_MAX]; /* by rank and port */
    uint32_t kinds;                /* bits of those that apply */
    int rank;
    void (*say)(void *arg, const char *line);
    void *say_arg;
    char port[FAULT_PORT_MAX + 1];
    uint64_t opened_ns;

    pthread_mutex_t lock; /* of all that follows; held while posting to the device */
    pthread_cond_t changed;
    pthread_t mover;
    bool moving, ending;
    struct fault_qp *qps[QP_BUCKETS];
    uint64_t next_number;
    _Atomic uint32_t n_held; /* on all queue pairs */
    struct held *condemned;  /* posted to be flushed; known by wr_id */
    struct fault_cq *cqs;
    struct fault_count calls[FAULT_RULES_MAX];
    uint64_t busy_ns; /* of a slow port */
    struct outage outage[FAULT_RULES_MAX];
    bool told_down;

    int inner_fd, epoll_fd, event_fd; /* -1 where the plan raises no events */
    pthread_mutex_t async_lock;
    struct fault_event *events, **events_end, *given;
};

uint64_t faults_now(void);
struct faults *faults_of(const struct ibv_context *context);
void faults_say(struct faults *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline bool faults_has(const struct faults *f, uint32_t kinds)
{
    return (f->kinds & kinds) != 0;
}
int faults_close_device(struct ibv_context *context);
bool faults_call_fails(struct faults *f, enum fault_call call, int *err);

/* faults_table.c */
struct ibv_cq_ex *faults_create_cq_ex(struct ibv_context *context,
                                      struct ibv_cq_init_attr_ex *attr);
struct ibv_qp *faults_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
int faults_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                      size_t size);
void faults_qp_free(struct faults *f, struct fault_qp *q);

/* faults_pass.c */
int faults_query_device(struct ibv_context *context, struct ibv_device_attr *attr);
int faults_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
int faults_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                        struct ibv_gid_entry *entry, uint32_t flags);
ssize_t faults_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                               size_t max_entries, uint32_t flags);
int faults_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey);
int faults_query_device_ex(struct ibv_context *context,
                           const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *attr);
int faults_time_device(struct ibv_qp *qp, const bool *wanted, uint64_t *ticks);
int faults_next_poll(struct ibv_cq *cq, uint64_t *at_ns);
int faults_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);
int faults_dealloc_pd(struct ibv_pd *pd);
int faults_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                    int access);
int faults_dereg_mr(struct ibv_mr *mr);
int faults_destroy_comp_channel(struct ibv_comp_channel *channel);
int faults_resize_cq(struct ibv_cq *cq, int cqe);
int faults_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
                           struct ibv_grh *grh, struct ibv_ah_attr *attr);
int faults_destroy_ah(struct ibv_ah *ah);
int faults_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
int faults_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int faults_destroy_srq(struct ibv_srq *srq);
int faults_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_qp_ex *faults_qp_to_qp_ex(struct ibv_qp *qp);
int faults_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                    struct ibv_qp_init_attr *init_attr);

/* faults_judge.c */
/* What the plan does to one work request. */
struct fault_verdict {
    bool hold, fatal;
    uint32_t tries;
    bool rnr;
    uint64_t interval_ns, delay_ns;
    enum ibv_wc_status fail;
};
struct fault_verdict faults_judge(struct faults *f, struct fault_qp *q,
                                  const struct ibv_send_wr *wr, uint64_t now);

/* faults_post.c; f->lock held where not said otherwise */
struct fault_qp *faults_qp(struct faults *f, const struct ibv_qp *qp);
struct fault_qp *faults_qp_by_number(struct faults *f, uint32_t qp_num);
int faults_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad); /* not */
void faults_release(struct faults *f, struct fault_qp *q, uint64_t now);
void faults_release_all(struct faults *f, uint64_t now);
void faults_flush(struct faults *f, struct fault_qp *q);   /* post all, the queue pair is in ERR */
void faults_discard(struct faults *f, struct fault_qp *q); /* forget all */
uint64_t faults_next_release(const struct faults *f);

/* faults_move.c; f->lock held */
void faults_wake_mover(struct faults *f); /* starts it if need be */
void faults_end_mover(struct faults *f);  /* lock not held */
/* Until when the port is down at `now`; `now` where it is not. */
uint64_t faults_port_down_until(const struct faults *f, uint64_t now);
void faults_port_look(struct faults *f, uint64_t now); /* tell of changes */

/* faults_poll.c */
int faults_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int faults_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int faults_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
void faults_ack_cq_events(struct ibv_cq *cq, unsigned n);
/* ex: NULL, or the same queue where it is polled field by field. */
int faults_cq_add(struct faults *f, struct ibv_cq *cq, struct ibv_cq_ex *ex);
void faults_cq_remove(struct faults *f, struct ibv_cq *cq);

/* faults_async.c */
/* The kernel is told async_fd when objects are made: around that the device has its own back. */
void faults_own_fd(struct faults *f);
void faults_our_fd(struct faults *f);
int faults_async_open(struct faults *f);
void faults_async_close(struct faults *f);
void faults_async_raise(struct faults *f, enum ibv_event_type type, struct ibv_qp *qp);
void faults_async_forget(struct faults *f, const struct ibv_qp *qp);
int faults_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
void faults_ack_async_event(struct ibv_async_event *event);

/* faults_build.c */
struct builder *builder_new(void);
void builder_free(struct builder *b);
void faults_wr_api(struct ibv_qp_ex *ex);

/* Of nothing there may be no address. */
static inline void copy_some(void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, bytes);
}

#endif
