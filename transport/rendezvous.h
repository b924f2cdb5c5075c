/* SPDX-License-Identifier: MIT */
/*
 * How ranks meet: rank 0 listens, the others connect, each says who it is, and all get the table of
 * all. Private.
 *
 * On the wire everything is little-endian. A rank sends {magic, bytes} and a struct hello of so
 * many bytes. Rank 0 answers {magic, bytes} and a struct welcome; if its code is 0, `size` structs
 * of hello follow, rank by rank. The first part of a hello (to `token`) has the same place in every
 * version of the protocol, so that a rank of another version can be told so.
 */
#ifndef SSTAR_TRANSPORT_RENDEZVOUS_H
#define SSTAR_TRANSPORT_RENDEZVOUS_H

#include "transport/loop.h"
#include "transport/report.h"
#include "transport/transport.h"

#define RENDEZVOUS_MAGIC 0x52545353u /* "SSTR" */
enum { RENDEZVOUS_VERSION = 2, HELLO_BYTES_MAX = 4096 };

struct hello_prefix {
    uint32_t magic;
    uint32_t bytes;
};

struct hello {
    uint32_t version;     /* RENDEZVOUS_VERSION */
    uint32_t struct_size; /* of struct hello */
    char program[24];     /* the version of the program */
    int32_t size;
    int32_t rank;
    char token[72];
    /* up to here the same in every version */
    char boot_id[40];
    char host[64];
    uint64_t pid_namespace;
    uint32_t uid;
    int32_t pid;
    int32_t ranks_per_node;
    int32_t queue_pairs;
    uint32_t port_per_rank;
    uint32_t reserved;
    uint64_t wire[3];       /* the bits of three doubles: alpha_us, gap_us, beta_gbps */
    uint64_t order_relaxed; /* 1; 3: keep_qps */
    uint64_t order_seed;
};
_Static_assert(sizeof(struct hello) == 288, "the layout on the wire");

struct welcome {
    uint32_t version;
    int32_t code;   /* 0, or a negative errno */
    char text[504]; /* why, if not 0 */
};

/* What the meeting yields. */
struct meeting {
    struct hello *hellos; /* [size], in the byte order of this machine */
    int *fds; /* rank 0: [size], one socket per rank (own: -1); others: [1], to rank 0 */
    int fd_count;
};

/* What this process says of itself. */
void hello_fill(struct hello *hello, const struct sstar_config *config);

/* Meet. `mine` is from hello_fill. Blocks until all are there, or the timeout of the config. On
 * failure nothing stays open and the sentence is in `report`. */
int rendezvous(struct meeting *meeting, const struct hello *mine, const struct sstar_config *config,
               struct loop *loop, struct log *log, struct report *report);
void meeting_free(struct meeting *meeting); /* closes the sockets that are not -1 */

/* The sentence why a rank that says `theirs` cannot join the world of `mine`, or false. *stranger:
 * it belongs to another job (or is no rank at all), and the meeting goes on without it. */
bool hello_refused(const struct hello *mine, const struct hello *theirs, bool *stranger, char *text,
                   size_t size);

#endif
