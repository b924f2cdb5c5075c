/* SPDX-License-Identifier: MIT */
#include "transport/copy.h"
#include <stdint.h>

typedef uint64_t word __attribute__((may_alias, aligned(1)));

/* Words through registers: without the empty statement the compiler would make vectors of them,
 * which an emulator takes apart again, or the very call of memcpy that is to be avoided. */
void *copy_by_words(void *to, const void *from, size_t bytes)
{
    enum { WORDS = 4, STEP = WORDS * (int)sizeof(word) };
    char *t = to;
    const char *f = from;
    size_t i = 0;
    if ((uintptr_t)to - (uintptr_t)from < bytes)
        return memmove(to, from, bytes);
    for (; i + STEP <= bytes; i += STEP) {
        const word *here = (const word *)(f + i);
        word *there = (word *)(t + i);
        uint64_t a = here[0], b = here[1], c = here[2], d = here[3];
        __asm__("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
        there[0] = a;
        there[1] = b;
        there[2] = c;
        there[3] = d;
    }
    if (i < bytes)
        memmove(t + i, f + i, bytes - i);
    return to;
}
