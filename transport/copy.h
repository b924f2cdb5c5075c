/* SPDX-License-Identifier: MIT */
/*
 * Copying long pieces where a program plays the processor: libc copies from some KiB on by one
 * string instruction (rep movsb), which is taken apart there byte by byte; words go eight times as
 * fast.
 */
#ifndef SSTAR_TRANSPORT_COPY_H
#define SSTAR_TRANSPORT_COPY_H

#include "transport/world.h"
#include <string.h>

typedef void *copy_function(void *to, const void *from, size_t bytes);

/* As memmove. */
void *copy_by_words(void *to, const void *from, size_t bytes);

/* How to copy here. */
static inline copy_function *copy_best(const struct sstar_world *world)
{
    return world->emulated ? copy_by_words : memmove;
}

#endif
