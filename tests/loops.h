/* SPDX-License-Identifier: MIT */
/* A test over each event loop; its state is the choice. */
#ifndef SSTAR_TESTS_LOOPS_H
#define SSTAR_TESTS_LOOPS_H

#include "transport/loop.h"

static enum loop_choice loop_automatic = LOOP_AUTOMATIC, loop_ppoll = LOOP_PPOLL;

/* clang-format off */
#define OVER_BOTH_LOOPS(test)                                       \
    {#test " (automatic)", test, NULL, NULL, &loop_automatic},      \
    {#test " (ppoll)", test, NULL, NULL, &loop_ppoll}
/* clang-format on */

#endif
