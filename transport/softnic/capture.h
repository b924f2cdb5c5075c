/* SPDX-License-Identifier: MIT */
/*
 * What goes over a port's wire, as RoCEv2 frames in a pcapng file: the frames that a NIC would have
 * sent for each request and the answers to it, made by the side that posts when it carries a
 * request out. Private to softnic.
 *
 * Several processes may write to one file. Each appends whole blocks, under the file's lock; a port
 * has one Interface Description Block, written by whoever comes first.
 */
#ifndef SOFTNIC_CAPTURE_H
#define SOFTNIC_CAPTURE_H

#include "transport/softnic/nic.h"

struct capture {
    struct ctx *ctx;
    pthread_mutex_t lock; /* of what follows */
    int fd;
    char *path;
    uint32_t interface;
    uint32_t snap;    /* bytes of a frame that are kept */
    uint64_t limit;   /* bytes of the file, after which nothing more is written */
    int64_t epoch_ns; /* wall clock less ours */
    bool ended;
    uint8_t *buffer;
    size_t used;
    off_t looked_at; /* of the file in the buffer, while interfaces are looked for */
    off_t looked_bytes;
    uint32_t crc[256];
};

/* From `path`, or the environment where it is NULL. 0 with ctx->capture NULL where none is asked
 * for; an errno with a sentence. */
int nic_capture_open(struct ctx *ctx, const struct softnic_attr *attr);
void nic_capture_close(struct ctx *ctx);

/* A request that is carried out, and its answer. sq_lock held. `late`: its bytes come later, so the
 * answer to a READ is what stands there now where it is mapped, and else zeros. */
void nic_capture_request(struct qp *qp, const struct work *work, bool late);
/* One that the far side refuses with this syndrome of an AETH (specification, 9.7.5.2). */
void nic_capture_refusal(struct qp *qp, const struct work *work, uint8_t syndrome);
enum { SYNDROME_RNR = 0x20, SYNDROME_INVALID = 0x61, SYNDROME_ACCESS, SYNDROME_OPERATION };
/* To the file, at the end of a batch. */
void nic_capture_flush(struct ctx *ctx);

/* capture_file.c, for capture.c: c->lock held. Room for one frame of these bytes on the wire, of
 * which *kept are to be written; NULL once the capture has ended. */
uint8_t *capture_begin(struct capture *c, uint64_t time_ns, uint32_t bytes, uint32_t *kept);
void capture_end(struct capture *c, uint32_t kept);

#endif
