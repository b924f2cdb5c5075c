/* SPDX-License-Identifier: MIT */
/*
 * librdmacm's calls over softnic: what its files offer to each other.
 *
 * A port number of a port space is an abstract unix socket whose name holds our user id, so that
 * the kernel gives it to one id at a time and takes it back from the dead. A connection is a
 * socket between two ids; the messages of the communication manager go over it, and its end says
 * that the other side has closed or died. An event channel's descriptor is an epoll over the
 * sockets of its ids and a timer. Nothing runs in the background: what the kernel's rdma_cm does
 * for a program at any time happens here in rdma_get_cm_event, before which nobody could see it.
 */
#ifndef SOFTNIC_CM_H
#define SOFTNIC_CM_H

/* Defined here for the program: exported from the library to preload. */
#pragma GCC visibility push(default)
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#pragma GCC visibility pop

#include "transport/softnic/cm/message.h"
#include "transport/softnic/softnic.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct cm_id;

enum {
    CM_HOP_LIMIT = 64,
    /* 4.096 us * 2^14 = 67 ms: no packet is ever lost here, so it is the time in which a peer that
     * died is noticed. RDMA_OPTION_ID_ACK_TIMEOUT says otherwise. */
    CM_ACK_TIMEOUT = 14,
};

/* A port of softnic, opened once for all ids of the process. */
struct cm_device {
    struct ibv_context *verbs;
    struct ibv_pd *pd;
    union ibv_gid gid;
    uint32_t ip;
    uint8_t max_initiator_depth, max_responder_resources;
};

struct cm_event {
    struct rdma_cm_event base;
    struct cm_event *next;
    struct cm_id *counted_on; /* cannot be destroyed before this is acknowledged */
    uint8_t private_data[CM_PRIVATE_MAX];
};

struct cm_channel {
    struct rdma_event_channel base; /* base.fd is the epoll */
    int timer_fd;                   /* due at once while an event waits */
    unsigned users;                 /* threads in rdma_get_cm_event */
    bool destroyed;
    struct cm_event *first, *last;
    struct cm_id *ids;
};

enum cm_state {
    CM_IDLE,
    CM_BOUND,
    CM_ADDR_RESOLVED,
    CM_ROUTE_RESOLVED,
    CM_LISTENING,
    CM_NASCENT,       /* a peer has come, but not yet said what it wants; no user knows of it */
    CM_REQ_SENT,      /* active */
    CM_REP_RECEIVED,  /* active, without a queue pair: rdma_establish is to come */
    CM_REQ_RECEIVED,  /* passive */
    CM_REP_SENT,      /* passive */
    CM_ESTABLISHED,   /* both */
    CM_DREQ_SENT,     /* both */
    CM_DREQ_RECEIVED, /* both */
    CM_TIMEWAIT,      /* both */
    CM_CLOSED,        /* refused, unreachable, or a datagram service that was looked up */
};

struct cm_id {
    struct rdma_cm_id base;
    struct cm_id *next; /* of the channel's */
    struct cm_device *device;
    struct cm_id *listener; /* of one that its user has not been told of */
    int fd;                 /* -1: none yet */
    enum cm_state state;
    bool sync; /* the channel is its own, and calls wait for their event */
    bool watched, named, reuse_address, family_only;
    uint8_t tos, ack_timeout;
    uint64_t deadline_ns; /* 0: none */
    uint32_t events_given, events_acked;
    uint32_t psn;
    uint8_t responder_resources, initiator_depth, retry_count, rnr_retry_count;
    struct {
        union ibv_gid gid;
        uint32_t qpn, psn;
    } peer;
    void *connect_data; /* of rdma_create_ep, goes before that of rdma_connect */
    size_t connect_len;
    struct ibv_qp_init_attr *qp_init;
};

static inline struct cm_id *to_id(struct rdma_cm_id *base)
{
    return (struct cm_id *)base;
}

static inline struct cm_channel *to_channel(struct rdma_event_channel *base)
{
    return (struct cm_channel *)base;
}

static inline int cm_fail(int err)
{
    errno = err;
    return -1;
}

static inline bool cm_is_datagram(const struct cm_id *id)
{
    return id->base.qp_type == IBV_QPT_UD;
}

/* Guards all that hangs off ids, channels and devices. librdmacm's calls carry no handle that
 * could hold it. Connecting is no hot path: one lock for the process. */
extern pthread_mutex_t cm_lock;
/* Lock and unlock it; meanwhile the thread is not cancelled. */
void cm_enter(void);
void cm_leave(void);

/* channel.c; cm_lock held in all of them */
uint64_t cm_now_ns(void);
void cm_channel_add(struct cm_channel *channel, struct cm_id *id);
void cm_channel_remove(struct cm_id *id);
int cm_watch(struct cm_id *id); /* 0 or a negative errno */
void cm_unwatch(struct cm_id *id);
void cm_set_deadline(struct cm_id *id, uint64_t after_ns); /* 0: none */
void cm_channel_arm(struct cm_channel *channel);

/* event.c; cm_lock held */
struct cm_event *cm_event_new(struct cm_id *id, enum rdma_cm_event_type type, int status);
void cm_event_post(struct cm_channel *channel, struct cm_event *event);
/* Both in one; -ENOMEM: no event. */
int cm_tell(struct cm_id *id, enum rdma_cm_event_type type, int status);
void cm_event_private(struct cm_event *event, const struct cm_message *message);
void cm_events_drop(struct cm_channel *channel, struct cm_id *id);
void cm_events_move(struct cm_channel *from, struct cm_channel *to, struct cm_id *id);
/* Until all events given for the id are acknowledged; lets go of cm_lock meanwhile. */
void cm_wait_acked(struct cm_id *id);

/* id.c */
struct cm_id *cm_id_new(struct cm_channel *channel, void *context, enum rdma_port_space ps,
                        enum ibv_qp_type qp_type); /* cm_lock held */
/* All with cm_lock held. */
void cm_close(struct cm_id *id);
void cm_id_free(struct cm_id *id);
void cm_id_abandon(struct cm_id *id); /* no user knows of it */
int cm_id_move(struct cm_id *id, struct cm_channel *to);
int cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                 enum rdma_port_space ps, enum ibv_qp_type qp_type);
/* What a synchronous call waits for; nothing for another. 0, or -1 and errno. Not locked. */
int cm_complete(struct rdma_cm_id *id);

/* address.c */
socklen_t cm_address_size(const struct sockaddr *addr); /* 0: no address that is served */
uint16_t cm_address_port(const struct sockaddr *addr);
void cm_address_set_port(struct sockaddr *addr, uint16_t port);
bool cm_address_is_any(const struct sockaddr *addr);
bool cm_address_same_host(const struct sockaddr *a, const struct sockaddr *b);
bool cm_address_is_of_host(const struct sockaddr *addr);
uint32_t cm_address_softnic_ip(const struct sockaddr *addr); /* 0: no address of a port */
void cm_address_pack(struct cm_address *to, const struct sockaddr *from);
bool cm_address_unpack(struct sockaddr_storage *to, const struct cm_address *from);

/* name.c; 0 or a negative errno */
int cm_name_take(struct cm_id *id); /* the id's source port, or a free one where that is 0 */
int cm_name_connect(struct cm_id *id);

/* device.c; cm_lock held */
int cm_device_bind(struct cm_id *id, const struct sockaddr *addr); /* open it; -errno */
bool cm_device_leads_to(const struct sockaddr *addr);
void cm_device_fill_gids(struct cm_id *id);
int cm_device_fill_path(struct cm_id *id);

/* resolve.c; cm_lock held */
int cm_bind(struct cm_id *id, const struct sockaddr *addr);

/* pump.c; cm_lock held */
/* Take what has come for the id. It may be gone afterwards. */
void cm_pump(struct cm_id *id);
/* Else a sentence was said: SOFTNIC_CM_TIMEOUT_MS is no such time. */
bool cm_patience_is_known(void);
uint64_t cm_patience_ns(void); /* how long an answer may take */

/* receive.c; cm_lock held */
/* A message that is expected in the id's state. False: the id is to go. */
bool cm_on_message(struct cm_id *id, const struct cm_message *message);
void cm_on_end(struct cm_id *id);
void cm_expired(struct cm_id *id);
void cm_enter_timewait(struct cm_id *id);

/* qp.c; 0 or a negative errno */
int cm_qp_to_rts(struct cm_id *id);
void cm_qp_to_error(struct cm_id *id);
void cm_destroy_queues(struct rdma_cm_id *id);

#endif
