/* SPDX-License-Identifier: MIT */
/*
 * What `sstar put` measures between two ranks. Private to tools. Every function here is collective:
 * rank 0 acts and measures, rank 1 answers.
 */
#ifndef SSTAR_TOOLS_PUT_H
#define SSTAR_TOOLS_PUT_H

#include "transport/transport.h"

struct put_test {
    struct sstar_world *world;
    struct sstar_links *links;
    struct sstar_link *link;
    bool get;           /* READ instead of put with signal */
    bool no_signal;     /* a stream of puts without */
    bool local;         /* the link is memory, not the NIC */
    uint32_t post_list; /* work requests per doorbell */
    uint32_t tx_depth;  /* operations under way */
    uint64_t max_bytes;
    void *send, *recv; /* max_bytes each, and a word for rank 0 to say that it is done */
    struct sstar_region *send_region, *recv_region;
    struct sstar_remote_region peer_send, peer_recv;
    uint64_t signals; /* of the peer's that we have waited for */
};

struct put_rate {
    double peak_gbps, average_gbps; /* 1e9 bytes per second */
    double messages_per_us;
    struct sstar_counters spent; /* by rank 0 */
};

/* Fill in world, get, post_list, tx_depth, max_bytes before. */
int put_open(struct put_test *test);
void put_close(struct put_test *test);
/* Move `bytes` once and compare. -EIO with a sentence on stderr if they differ. */
int put_check(struct put_test *test, uint64_t bytes, uint64_t seed);
/* us[n] on rank 0: half of a round trip of put with signal, the whole time of a get. */
int put_latency(struct put_test *test, uint64_t bytes, uint32_t n, double *us);
int put_bandwidth(struct put_test *test, uint64_t bytes, uint32_t n, struct put_rate *rate);

#endif
