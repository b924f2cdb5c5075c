/* SPDX-License-Identifier: MIT */
/* Random choices of a command, the same for the same seed. Private to tools. */
#ifndef SSTAR_TOOLS_RANDOM_H
#define SSTAR_TOOLS_RANDOM_H

#include <stdint.h>

/* splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
