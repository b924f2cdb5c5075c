/* SPDX-License-Identifier: MIT */
/*
 * Streams of buffers to some ranks: what is put for a peer gathers in a buffer, composed where the
 * link will send it from, and leaves when it is full or a flush rule says so. Of the strategies
 * that gather per peer. Private.
 */
#ifndef SSTAR_COLLECTIVES_AGGREGATOR_STREAMS_H
#define SSTAR_COLLECTIVES_AGGREGATOR_STREAMS_H

#include "collectives/aggregator_pool.h"

struct stream {
    struct sstar_lane lane; /* the open buffer */
    uint8_t *buffer;        /* where it begins; NULL: none is open */
    /* Of what it holds: not pushed here but passed on. The bytes count where sizes vary. */
    uint32_t passed, passed_bytes;
    uint32_t seen;                /* of what it holds: known to the last look */
    uint64_t last_ns, last_bytes; /* the last wire message */
    bool urgent;                  /* what is held must not wait */
    uint32_t thin;                /* how many of the last ones were shorter than thin_bytes */
    uint64_t fence;               /* goes with each buffer, if the streams are fenced */
    /* The buffer that is being handed out. */
    const uint8_t *at, *end;
    uint32_t left;
    bool came_urgent; /* a buffer that was urgent; until its passing on is done */
    uint64_t came_fence;
};
struct streams {
    struct sstar_aggregator *a;
    struct peers *peers;
    struct pool *pool;     /* where the buffers come from; NULL: from each link's slots */
    struct stream *stream; /* [peers->n] */
    struct item_format format;
    uint32_t slot_bytes;
    uint32_t header_bytes; /* of a buffer: the header, and the fence if they are fenced */
    uint32_t thin_bytes;
    bool urged; /* some stream is urgent */
};

/* `most`: how many peers any rank of the world has. Pooled: buffers are those of a common pool, for
 * peers that it is asked for, and each carries a number, the fence. Collective.
 */
int streams_open(struct sstar_aggregator *a, const int *ranks, int n, int most,
                 const struct item_format *format, bool pooled, struct streams **streams);
void streams_close(struct streams *s);
void streams_reset(struct streams *s);
/* The links that streams_open opens, and bytes of pooled ones to n peers, the pool with them. */
struct sstar_link_attr streams_attr(const struct sstar_aggregator *a, int most,
                                    const struct item_format *format);
uint64_t streams_pooled_bytes(const struct sstar_aggregator *a, int n,
                              const struct item_format *format);
/* A message for peer i whose lane has no room for it; `passed`: not pushed here. 0, -EAGAIN, or an
 * error. */
int streams_put(struct streams *s, int i, int source, int destination, const void *data,
                uint32_t bytes, bool passed);
/* Send what is held for peer i soon, and let who passes it on do so too. */
void streams_urge(struct streams *s, int i);
/* Send what is due; number of buffers, or -errno. */
int streams_flush(struct streams *s);
int streams_progress(struct streams *s);
/* The next item from peer i, in its format, without taking it: 1, 0 or -errno. What was taken
 * before may be overwritten. Where all are alike, stream[i].left of them lie there in a row. */
int stream_peek(struct streams *s, int i, const uint8_t **item);
/* After stream_peek: take n items, 1 if sizes vary. */
void stream_take(struct streams *s, int i, uint32_t n);
/* After stream_peek: hand out that item, and more behind it. */
void stream_hand_out(struct streams *s, int i, struct sstar_item *item);
/* Send the rest and the ends: 1: call again, 0, or -errno. */
int streams_end(struct streams *s);

#endif
