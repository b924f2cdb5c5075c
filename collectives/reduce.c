/* SPDX-License-Identifier: MIT */
/*
 * The choice among the sets. It is the caller's at run time and not an ifunc resolver's, which
 * sanitizers and older compilers do not get on with.
 */
#include "collectives/reduce.h"

extern const struct reduce_set reduce_set_plain;

#ifdef __x86_64__
#include <cpuid.h>

extern const struct reduce_set reduce_set_avx2, reduce_set_avx512;

/* Not every compiler's __builtin_cpu_supports knows it. */
static bool converts_half(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

int reduce_set_count(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !converts_half())
        return 1;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
               ? 3
               : 2;
}

const struct reduce_set *reduce_set(int i)
{
    const struct reduce_set *const sets[] = {&reduce_set_plain, &reduce_set_avx2,
                                             &reduce_set_avx512};
    return sets[i];
}
#else
int reduce_set_count(void)
{
    return 1;
}

const struct reduce_set *reduce_set(int i)
{
    (void)i;
    return &reduce_set_plain;
}
#endif

const struct reduce_set *reduce_best(void)
{
    return reduce_set(reduce_set_count() - 1);
}
