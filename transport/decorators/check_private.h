/* SPDX-License-Identifier: MIT */
/* What the files of the checking decorator share. */
#ifndef SSTAR_DECORATORS_CHECK_PRIVATE_H
#define SSTAR_DECORATORS_CHECK_PRIVATE_H

#include "transport/decorators/check.h"
#include <pthread.h>
#include <stdint.h>

/* A posted request whose completion has not been polled. */
struct request {
    struct request *next;
    uint64_t wr_id;
    bool signalled; /* it has a completion of its own */
    bool written;   /* a send whose answer the device writes into its buffer */
    int num_sge;
    struct ibv_sge sge[];
};

struct requests {
    struct request *first;
    uint32_t count, signalled;
};

enum kind { CHECK_PD, CHECK_MR, CHECK_CHANNEL, CHECK_CQ, CHECK_SRQ, CHECK_QP, CHECK_KINDS };

/* An object that is there. */
struct object {
    struct object *next;
    enum kind kind;
    union {
        void *any;
        struct ibv_mr *mr;
        struct ibv_cq *cq;
        struct ibv_qp *qp;
    };
    int access;         /* of a region, */
    uint64_t from;      /* and where it begins for those who name it */
    uint32_t under_way; /* completions that a queue is to get of sends */
    int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
    int (*next_poll)(struct ibv_cq_ex *);
    enum ibv_qp_state state; /* of a queue pair */
    uint32_t max_send_wr;
    bool sig_all, told_overlap, told_overrun;
    struct requests sends, receives; /* receives of a shared queue are its own */
};

struct check {
    struct verbs table; /* the inner one's, but for what is looked at */
    const struct verbs *inner;
    struct ibv_context *context;
    struct ibv_context_ops ops; /* as they were */
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
    void (*say)(void *arg, const char *line);
    void *arg;
    bool leftovers_pass;
    pthread_mutex_t lock; /* of what follows */
    struct object *objects;
};

struct check *check_of(const struct ibv_context *context);

/* check_say.c: a finding counts, what is only said does not. */
void check_found(struct check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_say(struct check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_mark_gone(const void *object, bool is_gone);

/* check.c */
struct object *check_find(struct check *c, const void *any); /* lock held, as below */
struct object *check_find_qp(struct check *c, uint32_t qp_num);

/* check_post.c */
int check_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int check_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int check_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* A completion was polled. */
void check_completed(struct check *c, uint32_t qp_num, uint64_t wr_id, enum ibv_wc_status status,
                     enum ibv_wc_opcode opcode);
/* The queue pair is reset, or goes: nothing of it is under way any more. */
void check_forget(struct check *c, struct object *qp);
void check_requests_free(struct requests *requests);

#endif
