/* SPDX-License-Identifier: MIT */
/*
 * One queue pair as something to post to: work requests are built, and rung for later. Private.
 *
 * Where the device has ibv_wr_*, requests are built in the queue between ibv_wr_start and
 * ibv_wr_complete; where it has not, they are chained and posted at once. Whoever owns the control
 * path of a queue pair owns its post_queue: the world's thread, or a proxy.
 */
#ifndef SSTAR_TRANSPORT_POST_H
#define SSTAR_TRANSPORT_POST_H

#include "transport/verbs.h"
#include <stdbool.h>
#include <stdint.h>

enum { POST_MAX_SGE = 17, POST_CHAIN_MOST = 64, POST_WORD_BYTES = 16 };

enum post_method {
    POST_WR,    /* ibv_wr_*, one doorbell for all that was built */
    POST_CHAIN, /* one ibv_post_send for a chain of requests, of one if it is rung for each */
};

struct post_request {
    enum ibv_wr_opcode opcode;
    unsigned int flags; /* IBV_SEND_SIGNALED, IBV_SEND_INLINE */
    uint64_t wr_id;
    uint64_t remote_address;
    uint64_t add;
    uint32_t rkey;
    uint32_t immediate;
    int n_sge;
    const struct ibv_sge *sge;
    bool is_word; /* one piece, inline, at most POST_WORD_BYTES, which is gone after the call */
};

struct post_chain {
    int n;
    struct ibv_send_wr wr[POST_CHAIN_MOST];
    struct ibv_sge sge[POST_CHAIN_MOST][POST_MAX_SGE];
    uint8_t word[POST_CHAIN_MOST][POST_WORD_BYTES]; /* they must stay until they are posted */
};

struct post_queue {
    const struct verbs *verbs;
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;     /* NULL: no ibv_wr_* */
    struct post_chain *chain; /* NULL until a method needs it */
    enum post_method method;
    bool started;   /* between ibv_wr_start and ibv_wr_complete */
    uint32_t built; /* not yet rung for */
    uint64_t doorbells;
    bool time_wanted;      /* by the doorbell to come */
    uint64_t device_ticks; /* of these, what the device spent on the work itself; see stages.h */
};

/* By ibv_wr_* if `ex` is there, else chained. 0 or -ENOMEM. */
int post_open(struct post_queue *q, const struct verbs *verbs, struct ibv_qp *qp,
              struct ibv_qp_ex *ex);
/* Before the queue pair is destroyed; leaves no list open. Accepts a queue of zeros. */
void post_close(struct post_queue *q);
/* Post in another way from now on; nothing may be waiting for its doorbell. 0, -ENOMEM, or
 * -EOPNOTSUPP where ibv_wr_* are not to be had. */
int post_method_set(struct post_queue *q, enum post_method method);
/* Have device_ticks counted while time_wanted; -EOPNOTSUPP where the device does its work beside
 * the CPU. */
int post_time_device(struct post_queue *q);
/* These: 0, or the negative errno of the device, which may speak of any request built before. */
int post_build(struct post_queue *q, const struct post_request *request);
int post_ring(struct post_queue *q);
/* Post `n` receives without data: places for the immediates of what comes. */
int post_receives(struct post_queue *q, uint32_t n, uint64_t wr_id);

#endif
