/* SPDX-License-Identifier: MIT */
/* Compiled for any processor of the architecture. */
#define REDUCE_SET plain
#include "collectives/reduce_template.h"
