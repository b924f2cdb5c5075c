/* SPDX-License-Identifier: MIT */
/* sstar decode: what it measures for one message on one wire, and what that says. Private to tools.
 */
#ifndef SSTAR_TOOLS_DECODE_H
#define SSTAR_TOOLS_DECODE_H

#include "collectives/collectives.h"
#include <jansson.h>

/* The AllReduces of a token, one after the other, as tensor parallelism makes them. */
struct decode_case {
    size_t count; /* of bfloat16 */
    int allreduces, tokens;
    double measured_us;  /* one AllReduce: the median over the tokens of their mean */
    double predicted_us; /* the price of its schedule on the wire, */
    double alpha_us;     /* and so much of it that is not due to its bandwidth */
};

/* Check one AllReduce, time the tokens. Collective; the results are the same on all ranks. */
int decode_measure(struct sstar_world *world, struct sstar_collective *plan,
                   const struct sstar_cost *cost, struct decode_case *one);
/* The price alone, on a wire that is not there. */
int decode_predict(struct sstar_collective *plan, const struct sstar_cost *cost,
                   struct decode_case *one);
/* On stdout: where the time goes and what would help, from the rows of the record. */
void decode_advise(const json_t *rows);

#endif
