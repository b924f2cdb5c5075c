/* SPDX-License-Identifier: MIT */
/* Fetching a cache line with the intent to write it. */
#ifndef SSTAR_TRANSPORT_FETCH_H
#define SSTAR_TRANSPORT_FETCH_H

/* __builtin_prefetch(line, 1) would only read it, unless compiled for processors that are known to
 * have the instruction; where they have not, it does nothing. */
static inline void fetch_to_write(const void *line)
{
#ifdef __x86_64__
    __asm__ __volatile__("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

#endif
