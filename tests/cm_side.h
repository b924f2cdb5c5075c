/* SPDX-License-Identifier: MIT */
/* One side of a connection through librdmacm's calls on softnic, for their own tests. */
#ifndef SSTAR_TESTS_CM_SIDE_H
#define SSTAR_TESTS_CM_SIDE_H

#include "transport/softnic/softnic.h"
#include <rdma/rdma_cma.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* CMocka needs the ones above first. */
#include <cmocka.h>

/* What an event said; private data is kept. */
struct cm_heard {
    struct rdma_cm_event event;
    uint8_t data[256];
};

struct cm_side {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    uint8_t memory[256];
};

/* A port of this process's own. */
void cm_own_port(const char *what);
/* The next event, within 20 s, acknowledged. */
struct cm_heard cm_hear(struct rdma_event_channel *channel);
/* The same, and it must be this one. */
struct cm_heard cm_expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type,
                          int status);
void cm_expect_silence(struct rdma_event_channel *channel);

struct sockaddr_in cm_loopback(uint16_t port);
uint16_t cm_listen(struct cm_side *s, enum rdma_port_space ps, int backlog);
/* Up to ROUTE_RESOLVED. */
void cm_resolve(struct cm_side *s, enum rdma_port_space ps, uint16_t port);
void cm_give_qp(struct cm_side *s, enum ibv_qp_type type);
void cm_close_side(struct cm_side *s);
/* From a resolved client and a listener to two connected sides with queue pairs. */
void cm_connect_pair(struct cm_side *client, struct cm_side *server, struct cm_side *listener,
                     uint16_t port);
/* `from` sends `bytes` of its memory, they come into `to`'s. */
void cm_send(struct cm_side *from, struct cm_side *to, uint32_t bytes);

#endif
