/* SPDX-License-Identifier: MIT */
/* FNV-1a (Fowler, Noll, Vo) of a text: names that ranks of one job derive from its token. */
#ifndef SSTAR_TRANSPORT_HASH_H
#define SSTAR_TRANSPORT_HASH_H

#include <stdint.h>

static inline uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3;
    return hash;
}

#endif
