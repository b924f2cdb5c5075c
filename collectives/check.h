/* SPDX-License-Identifier: MIT */
/*
 * Checks a schedule by playing it with symbols instead of numbers.
 *
 * Shown, for the shape given: no deadlock with `slots` slots on each link; every rank ends with
 * every contribution exactly once, summed in the same order everywhere (same bits); nothing is
 * overwritten before it has been read, also when input and result are the same memory; all messages
 * sent are received.
 */
#ifndef SSTAR_COLLECTIVES_CHECK_H
#define SSTAR_COLLECTIVES_CHECK_H

#include "collectives/schedule.h"

enum { CHECK_MAX_RANKS = 64 };

struct check_attr {
    uint32_t slots;
    bool in_place;
    uint64_t seed; /* order in which ranks are moved on */
};
/* 0; -EDEADLK, -EBADMSG (wrong result), -EPROTO (a message left over or of the wrong size) with a
 * sentence in `error`; -ENOMEM. */
int check_schedule(const struct schedule_shape *shape, const struct check_attr *attr, char *error,
                   size_t error_size);

#endif
