/* SPDX-License-Identifier: MIT */
/*
 * Writing and reading an aggregator's ledger. Private to the project.
 */
#ifndef SSTAR_COLLECTIVES_LEDGER_H
#define SSTAR_COLLECTIVES_LEDGER_H

#include "collectives/collectives.h"

enum { LEDGER_WIRE_CLASSES = 128, LEDGER_AGE_CLASSES = 192 };

/* The class i of a value, which lies in [2^(i/4), 2^((i+1)/4)); 0 for 0. At most classes - 1. */
unsigned ledger_class(uint64_t value, unsigned classes);
/* Where class i begins. */
double ledger_class_begin(unsigned i);

/* Begin anew, with the sizes past which is counted exactly (0: not known, nothing is counted). */
void ledger_reset(struct sstar_ledger *ledger, double s_star_bytes, double s_star_rate_bytes);
/* A wire message was sent: its size with all headers, and what it carried. */
void ledger_wire(struct sstar_ledger *ledger, uint64_t wire_bytes, uint64_t messages,
                 uint64_t message_bytes);
/* Buffers whose first message waited so long for the doorbell. */
void ledger_age(struct sstar_ledger *ledger, uint64_t age_ns, uint64_t buffers);

/* Add the ledger of another rank (memory: of the one that has most), or of another stretch of the
 * same run. */
void ledger_add(struct sstar_ledger *sum, const struct sstar_ledger *one);
/* The size that `share` of the wire messages do not exceed, and the age: the mean of the class for
 * sizes (exact where all are alike), the class's geometric middle for ages. 0 if there were none.
 */
double ledger_wire_quantile(const struct sstar_ledger *ledger, double share);
double ledger_age_quantile_us(const struct sstar_ledger *ledger, double share);

#endif
