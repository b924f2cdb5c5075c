/* SPDX-License-Identifier: MIT */
/*
 * A mixture-of-experts routing: which experts every token chose in every layer. Private to tools.
 *
 * A file, plain or gzip, has lines `sequence,token,layer,e0,e1,...`, all with the same number of
 * experts, each ended by a newline; lines that begin with # are comments. "of N experts" in a
 * comment says how many experts there are.
 */
#ifndef SSTAR_TOOLS_ROUTING_H
#define SSTAR_TOOLS_ROUTING_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { ROUTING_MAX_TOP = 64, ROUTING_MAX_EXPERTS = 65535, ROUTING_MAX_LAYERS = 65535 };

struct routing {
    size_t lines;
    uint32_t top; /* experts per line */
    uint32_t experts, layers,
        sequences;              /* how many there are: the largest number + 1, or as told */
    uint32_t *sequence, *token; /* [lines] */
    uint16_t *layer;            /* [lines] */
    uint16_t *expert;           /* [lines][top] */
};

/* Read a file. `experts`: how many there are, 0: as its comments say, else the largest + 1. 0, or a
 * negative errno with a sentence (file, line) in `error`. */
int routing_read(const char *path, uint32_t experts, struct routing *out, char *error,
                 size_t error_size);
void routing_free(struct routing *routing);

struct routing_shape {
    uint32_t sequences, tokens, layers, experts, top;
    uint64_t seed;
};
/* Make one up that is as skewed as a real router's: for every sequence and layer the fullest expert
 * carries 2.07 to 4.51 times the mean (median 2.83), where `experts` and `top` allow it, and of
 * eight equal groups of experts the fullest 1.18 to 1.90 times. Deterministic. 0, -EINVAL or
 * -ENOMEM. */
int routing_make(const struct routing_shape *shape, struct routing *out);
/* 0 or -EIO. */
int routing_write(const struct routing *routing, const struct routing_shape *shape, FILE *out);

/* The load of the fullest of `groups` equal groups of experts over the mean load, for the given
 * sequence and layer; 0 if that has no lines. */
double routing_skew(const struct routing *routing, uint32_t sequence, uint32_t layer,
                    uint32_t groups);

#endif
