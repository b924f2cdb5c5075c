/* SPDX-License-Identifier: MIT */
/* Messages as fast as they go: what --no-check measures. Private to tools/alltoall*.c. */
#ifndef SSTAR_TOOLS_ALLTOALL_BARE_H
#define SSTAR_TOOLS_ALLTOALL_BARE_H

#include "collectives/collectives.h"

/* How many came, and the sums of the first bytes of what was sent and what came, up to 8 of each:
 * over all ranks both are alike. */
struct bare {
    uint64_t pulled, sum_sent, sum_pulled;
};

/* Push n messages of so many bytes to the ranks `to`, as many as there is room for before pulling
 * all that came, until nothing is left anywhere. 0 or a negative errno. */
int bare_exchange(struct sstar_aggregator *aggregator, const uint16_t *to, size_t n, uint32_t bytes,
                  void *message, struct bare *bare);

#endif
