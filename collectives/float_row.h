/* SPDX-License-Identifier: MIT */
/*
 * Rows of floats of 32 bits or less, to float32 and back (rounded to nearest even). Private.
 */
#ifndef SSTAR_COLLECTIVES_FLOAT_ROW_H
#define SSTAR_COLLECTIVES_FLOAT_ROW_H

#include "collectives/collectives.h"

/* Whether rows of this type can be converted. */
bool float_row_is(enum sstar_type type);
/* to[i] = float32(from[i] * weight). Any alignment. */
void float_row_widen(float *to, const void *from, size_t count, enum sstar_type type, float weight);
void float_row_narrow(void *to, const float *from, size_t count, enum sstar_type type);

#endif
