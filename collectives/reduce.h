/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of AllReduce: destination = a op b, element by element.
 *
 * Any alignment. The destination may be a or b, otherwise they do not overlap. min and max: a NaN
 * in either gives NaN, -0 is less than +0. Integer sums wrap.
 */
#ifndef SSTAR_COLLECTIVES_REDUCE_H
#define SSTAR_COLLECTIVES_REDUCE_H

#include "collectives/collectives.h"

typedef void reduce_kernel(void *destination, const void *a, const void *b, size_t count);

enum { REDUCE_TYPES = 4, REDUCE_OPS = 3 };

/* One set of kernels for each instruction set that this build has, the plainest first. */
struct reduce_set {
    const char *name;
    reduce_kernel *kernels[REDUCE_TYPES][REDUCE_OPS];
};

/* How many sets this machine can run; set i < that. */
int reduce_set_count(void);
const struct reduce_set *reduce_set(int i);
/* The best that this machine can run. Looks at the processor: choose once, keep the pointer. */
const struct reduce_set *reduce_best(void);

#endif
