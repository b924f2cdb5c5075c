/* SPDX-License-Identifier: MIT */
/* Compiled for AVX-512 F, VL, BW and DQ (see CMakeLists.txt). */
#ifdef __x86_64__
#define REDUCE_SET avx512
#include "collectives/reduce_template.h"
#endif
