/* SPDX-License-Identifier: MIT */
/* Compiled for AVX2 (see CMakeLists.txt). */
#ifdef __x86_64__
#define REDUCE_SET avx2
#include "collectives/reduce_template.h"
#endif
