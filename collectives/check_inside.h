/* SPDX-License-Identifier: MIT */
/* What check.c, which plays and judges, and check_steps.c, which takes steps, have in common. */
#ifndef SSTAR_COLLECTIVES_CHECK_INSIDE_H
#define SSTAR_COLLECTIVES_CHECK_INSIDE_H

#include "collectives/check.h"

/* An element of the vector: what is in it, and where it belongs. 0: nothing. */
struct symbol {
    uint32_t value, element;
};

struct parcel {
    struct parcel *next;
    size_t count;
    uint64_t *known; /* of a barrier */
    struct symbol symbols[];
};
struct channel {
    int to, number;       /* rank, channel of the steps */
    int sender, receiver; /* lanes; -1 until used */
    struct parcel *head, **tail;
    uint64_t sent, received;
};

/* Elements of the vector that a memory holds. */
struct memory {
    struct symbol *symbols;
    size_t offset, count;
};

struct player {
    struct schedule schedule;
    size_t at[SCHEDULE_LANES]; /* next step */
    int phase, lanes_left;     /* of the phase */
    uint64_t node_steps;       /* that this rank has come to */
    struct memory input, result, work;
    struct symbol *block;
    struct channel *channels; /* to others */
    int n_channels;
    uint64_t
        *known[3]; /* barrier: who has come, as far as heard; as it was at the last two meets */
};

struct check {
    const struct schedule_shape *shape;
    const struct check_attr *attr;
    struct check_values *values;
    struct player *players;
    size_t words; /* of a set of ranks */
    char *error;
    size_t error_size;
};

#define FAIL(check, code, ...) (snprintf((check)->error, (check)->error_size, __VA_ARGS__), (code))

/* All channels that the schedule of a rank sends on, beforehand. 0 or -ENOMEM. */
int check_make_channels(struct check *c, int rank);
/* Whether all is there that a step needs; then take it. */
bool check_may_run(struct check *c, int rank, const struct step *s);
int check_step(struct check *c, int rank, int lane, const struct step *s);

#endif
