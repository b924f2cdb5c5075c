/* SPDX-License-Identifier: MIT */
/*
 * Checks a schedule by playing it with symbols instead of numbers.
 *
 * Shown, for the shape given: no deadlock with `slots` slots on each link; every rank that is to
 * have a result has every contribution exactly once, in its place, summed in the same order
 * everywhere (same bits); nothing is overwritten before it has been read, also when input and
 * result are the same memory; no memory is read or written that the operation does not give to a
 * rank; the messages of one rank to another on a channel belong to one lane on either side; all
 * messages sent are received. Of a barrier: nobody leaves before all have come.
 */
#ifndef SSTAR_COLLECTIVES_CHECK_H
#define SSTAR_COLLECTIVES_CHECK_H

#include "collectives/schedule.h"

struct check_attr {
    uint32_t slots;
    bool in_place;
    uint64_t seed; /* order in which ranks are moved on */
    /* Move this lane of this rank only when nothing else can move: whatever does not wait for its
     * steps happens before them. lane -1: none. */
    int late_rank, late_lane;
};
/* 0; -EDEADLK, -EBADMSG (wrong result), -EPROTO (a message left over, of the wrong size, of two
 * lanes), -EFAULT (memory) with a sentence in `error`; -ENOMEM. */
int check_schedule(const struct schedule_shape *shape, const struct check_attr *attr, char *error,
                   size_t error_size);

/* What the values stand for (check_values.c): a contribution of a rank, or the sum of two values in
 * that order. The same sum of the same values is the same number. */
struct check_values;
struct check_values *check_values_new(int ranks);
void check_values_free(struct check_values *values);
uint32_t check_leaf(const struct check_values *values, int rank); /* never 0 */
/* 0: a contribution would be in it twice, or there is no memory. */
uint32_t check_sum(struct check_values *values, uint32_t a, uint32_t b);
bool check_is_whole(const struct check_values *values, uint32_t value);

#endif
