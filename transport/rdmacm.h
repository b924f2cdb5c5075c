/* SPDX-License-Identifier: MIT */
/*
 * Queue pairs connected through librdmacm. Private to link_connect_rdmacm.c and rdmacm_*.c.
 *
 * Every rank of a set of links listens at the addresses of its device and tells the port in the
 * exchange. Of a pair of ranks the lower one asks, once for each queue pair, and shows in the
 * private data of its request who it is; the other checks that, answers or refuses. Our own queue
 * pairs are used, not ones of librdmacm's making: rdma_init_qp_attr says what the connection
 * manager has agreed on, and the attributes that are ours stay ours (connector.h). So memory and
 * completion queues are those of the device that is open already. (rdma_establish(3) was made for
 * this.)
 *
 *     lower rank                                    higher rank
 *     resolve address, resolve route
 *     rdma_connect (cm_hello)           ------->    CONNECT_REQUEST: check, to RTS, rdma_accept
 *     CONNECT_RESPONSE: to RTS, rdma_establish -->  ESTABLISHED
 *
 * Events are read from the event loop, never waited for in librdmacm.
 */
#ifndef SSTAR_TRANSPORT_RDMACM_H
#define SSTAR_TRANSPORT_RDMACM_H

#include "transport/links.h"
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

enum { CM_MAGIC = 0x4d435353, CM_VERSION = 1 };

/* Private data of a request; at most 56 bytes fit. Little-endian. */
struct cm_hello {
    uint32_t magic;
    uint16_t version, size;
    uint64_t token; /* of the job, hashed */
    uint64_t key;   /* of the listening rank's set of links, as told in the exchange */
    uint32_t from, to;
    uint32_t qp;     /* index of the queue pair in its link */
    uint32_t number; /* and its number */
};
_Static_assert(sizeof(struct cm_hello) == 40, "private data of a request");

enum cm_refusal {
    CM_WELCOME,
    CM_NO_HELLO,
    CM_OTHER_VERSION,
    CM_OTHER_JOB,
    CM_OTHER_SET,
    CM_OTHER_RANK,
    CM_UNKNOWN_RANK,
    CM_UNKNOWN_QP,
    CM_OTHER_QP,
    CM_TAKEN,
    CM_REFUSALS
};

/* Private data of a refusal. Little-endian. */
struct cm_farewell {
    uint32_t magic;
    uint16_t version, refusal;
};

enum cm_state {
    CM_IDLE,
    CM_ADDRESS,   /* asked for the address */
    CM_ROUTE,     /* asked for the route */
    CM_ASKING,    /* waits for the answer of the listener */
    CM_ANSWERING, /* waits for the asker to say that it is ready */
    CM_CONNECTED,
    CM_ENDED, /* by the other side */
};

/* One for each queue pair. */
struct cm_connection {
    struct rdmacm *cm;
    struct sstar_link *link;
    uint32_t qp;
    enum cm_state state;
    struct rdma_cm_id *id; /* its context is this connection */
    uint64_t again_ns;     /* when to ask again; 0: not at all */
};

struct rdmacm {
    struct sstar_links *links;
    struct rdma_event_channel *channel;
    bool watched;
    struct rdma_cm_id *listeners[GID_USABLE]; /* by place in the device's table; context NULL */
    uint64_t token, key;
    const struct link_introduction *theirs; /* by rank, while connecting */
    struct cm_connection *connections;      /* [n_links * qps_per_link], those of the NIC used */
    uint32_t qps_per_link;
    uint32_t left; /* connections still to come */
    bool leaving;
    const struct cm_connection *lost; /* ended unasked, at lost_ns */
    uint64_t lost_ns;
};

static inline struct cm_connection *cm_connection_of(const struct rdmacm *cm,
                                                     const struct sstar_link *link, uint32_t qp)
{
    return &cm->connections[link->index * cm->qps_per_link + qp];
}

/* ---- rdmacm_hello.c ------------------------------------------------------------------------- */

void cm_hello_fill(const struct cm_connection *c, struct cm_hello *hello);
/* Whose request this is: CM_WELCOME with *found set, or why it is refused. */
enum cm_refusal cm_hello_check(const struct rdmacm *cm, const void *data, size_t bytes,
                               struct cm_connection **found);
const char *cm_refusal_text(enum cm_refusal refusal);
void cm_farewell_fill(enum cm_refusal refusal, struct cm_farewell *farewell);
/* CM_WELCOME: there is no reason in it. */
enum cm_refusal cm_farewell_read(const void *data, size_t bytes);

/* ---- rdmacm_events.c ------------------------------------------------------------------------ */

/* Ask the peer for this connection. 0 or the world's failure. */
int cm_ask(struct cm_connection *c);
/* Handle what has happened; for the event loop. arg: struct rdmacm * */
void cm_events_ready(void *arg);

/* ---- rdmacm_error.c ------------------------------------------------------------------------- */

/* Our address of a connection and the peer's, with the port where it listens. */
void cm_addresses(const struct cm_connection *c, struct sockaddr_in *ours,
                  struct sockaddr_in *theirs);
/* The world fails: a call of librdmacm did (errno), or an event says so. Returns the code. */
int cm_call_failed(const struct cm_connection *c, const char *call, int error);
int cm_event_failed(const struct cm_connection *c, enum rdma_cm_event_type type, int status,
                    enum cm_refusal refusal);

#endif
