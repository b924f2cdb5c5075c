/* SPDX-License-Identifier: MIT */
/*
 * What the two sides of a connection say to each other, over a SOCK_SEQPACKET socket: the messages
 * of the InfiniBand communication manager (specification, volume 1, chapter 12) in a form of our
 * own. One structure for all of them; little-endian; addresses as they stand in packets.
 */
#ifndef SOFTNIC_CM_MESSAGE_H
#define SOFTNIC_CM_MESSAGE_H

#include <stdint.h>
#include <sys/socket.h>

#define CM_MAGIC   0x6d636e73u /* "sncm" */
#define CM_VERSION 1u

enum cm_message_type {
    CM_REQ = 1,  /* active: connect */
    CM_REP,      /* passive: accept */
    CM_RTU,      /* active: ready to use */
    CM_REJ,      /* either: no */
    CM_DREQ,     /* either: disconnect */
    CM_DREP,     /* the other: disconnected */
    CM_SIDR_REQ, /* active: which queue pair gives this datagram service? */
    CM_SIDR_REP, /* passive: this one, or none */
};

/* Reasons of CM_REJ (table 105 of the specification). */
enum {
    CM_REJECT_TIMEOUT = 4,
    CM_REJECT_INVALID_SERVICE = 8,
    CM_REJECT_CONSUMER = 28,
    CM_REJECT_OPTION = 35, /* rdma_reject_ece */
};
/* Status of CM_SIDR_REP (table 126). */
enum { CM_SIDR_UNSUPPORTED = 1, CM_SIDR_REJECT = 2 };

/* Bytes of private data that a program has in each: the field of the specification, less what the
 * IP service takes of it (its annex A11). Receivers get the whole field, padded with zeros. */
enum {
    CM_REQ_PRIVATE = 56,
    CM_REP_PRIVATE = 196,
    CM_REJ_PRIVATE = 148,
    CM_SIDR_REQ_PRIVATE = 180,
    CM_SIDR_REP_PRIVATE = 136,
    CM_PRIVATE_MAX = 196,
};

struct cm_address {
    uint32_t family; /* 4 or 6 */
    uint32_t scope;
    uint8_t ip[16];
    uint8_t port[2];
    uint8_t pad[2];
};

struct cm_message {
    uint32_t magic;
    uint16_t version, size;
    uint16_t type, private_len;
    uint32_t status; /* reason of CM_REJ, status of CM_SIDR_REP */
    uint32_t qpn, qkey, psn;
    uint8_t gid[16]; /* of the sender's port */
    uint8_t responder_resources, initiator_depth, flow_control;
    uint8_t retry_count, rnr_retry_count, srq, ack_timeout, pad;
    struct cm_address from, to; /* of CM_REQ and CM_SIDR_REQ */
    uint8_t private_data[CM_PRIVATE_MAX];
};

unsigned cm_private_limit(enum cm_message_type type);
/* 0 or a negative errno. */
int cm_message_send(int fd, const struct cm_message *message);
/* 1: *message is there and well formed. 0: nothing yet. -ECONNRESET: the other has closed, or
 * died. -EPROTO: it sent what is no message of ours. */
int cm_message_receive(int fd, struct cm_message *message);
/* Does the other end belong to our user? */
_Bool cm_peer_is_ours(int fd);

#endif
