/* SPDX-License-Identifier: MIT */
/*
 * How long a collective takes: rounds that each rank times for itself, behind a barrier.
 *
 * Ranks leave a barrier one after another, up to alpha apart when it goes over a wire: one that
 * comes late finds the others' messages there and is off at once, while its own are still on
 * their way. So where all ranks share a clock (one host) a round lasts from when the last of them
 * begins until the last has done, which is what a price is about; else as long as it took the
 * slowest rank.
 */
#ifndef SSTAR_COLLECTIVES_ROUNDS_H
#define SSTAR_COLLECTIVES_ROUNDS_H

#include "transport/transport.h"

struct round_time {
    uint64_t begin_ns, end_ns; /* of sstar_now_ns */
};
/* Of `n` rounds in us, the same on all ranks: `of` order statistics (share 0.5: the median), or the
 * median alone. Collective. */
int rounds_quantiles(struct sstar_world *world, const struct round_time *mine, size_t n,
                     const double *shares, int of, double *us);
int rounds_median(struct sstar_world *world, const struct round_time *mine, size_t n, double *us);

#endif
