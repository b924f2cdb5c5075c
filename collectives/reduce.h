/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of reductions: destination = a op b, element by element.
 *
 * Any alignment. The destination may be a or b, otherwise they do not overlap. min and max: a NaN
 * in either gives NaN, -0 is less than +0. Integer sums and products wrap. Short floats
 * (short_float.h) are added and multiplied as float32 and rounded once.
 */
#ifndef SSTAR_COLLECTIVES_REDUCE_H
#define SSTAR_COLLECTIVES_REDUCE_H

#include "collectives/collectives.h"

typedef void reduce_kernel(void *destination, const void *a, const void *b, size_t count);
/* Each element of `memory` over `by`; integers towards zero. */
typedef void reduce_divide(void *memory, size_t count, uint32_t by);

/* What a type can do. The kernel of an average is that of a sum; the sum is then divided, once. */
struct reduce_row {
    reduce_kernel *op[SSTAR_OPS];
    reduce_divide *divide;
};

/* float32 as a short float and back, rounded to nearest even as in short_float.h; `round`: there
 * and back, in place. */
struct reduce_short {
    void (*widen)(void *to, const void *from, size_t count);
    void (*narrow)(void *to, const void *from, size_t count);
    void (*round)(void *memory, size_t count);
};

/* One set of kernels for each instruction set that this build has, the plainest first. */
struct reduce_set {
    const char *name;
    struct reduce_row kernels[SSTAR_TYPES];
    struct reduce_short shorts[SSTAR_TYPES]; /* of the short floats */
};

/* How many sets this machine can run; set i < that. */
int reduce_set_count(void);
const struct reduce_set *reduce_set(int i);
/* The best that this machine can run. Looks at the processor: choose once, keep the pointer. */
const struct reduce_set *reduce_best(void);

#endif
