/* SPDX-License-Identifier: MIT */
/* What `sstar fit` measures (fit_measure.c) and shows (fit_report.c). Private to tools/fit*.c. */
#ifndef SSTAR_TOOLS_FIT_RUN_H
#define SSTAR_TOOLS_FIT_RUN_H

#include "collectives/fit.h"
#include "collectives/pair.h"
#include "tools/tool.h"
#include <jansson.h>

enum { FIT_MAX_POINTS = 64, FIT_TRIPS_PER_VISIT = 8 };

struct fit_arguments {
    struct common_options common;
    uint64_t begin_bytes, end_bytes; /* end 0: chosen */
    long iterations;                 /* round trips per size; 0: chosen */
    long points;                     /* 0: chosen */
    bool quick;
};

/*
 * Samples of one size, in visits of `block` taken in one go: undisturbed visits from the front,
 * disturbed ones (the kernel gave a core away meanwhile) from the back of the room.
 */
struct fit_visits {
    double *us; /* [room * block] */
    int block, room;
    int clean, disturbed; /* visits */
};

struct fit_run {
    const struct fit_arguments *arguments;
    struct sstar_world *world;
    struct sstar_world *unshaped_world; /* where a wire is imposed; else NULL */
    struct pair pair, unshaped;
    struct sstar_device_info device;
    /* The rest is the asking rank's, which is rank 0. */
    int sizes, rounds;
    uint64_t size_bytes[FIT_MAX_POINTS];
    double typical_us[FIT_MAX_POINTS];
    int trips[FIT_MAX_POINTS], stream_messages[FIT_MAX_POINTS]; /* of a visit */
    struct fit_visits lone[FIT_MAX_POINTS], streams[FIT_MAX_POINTS], unshaped_lone;
    uint64_t begun_ns;
    int dropped; /* sizes that were never measured undisturbed */
    uint64_t longest_dropped;
    double *samples;            /* of all of these */
    int left_out;               /* disturbed visits that were not used */
    double unshaped_latency_us; /* 0: not measured */
    struct fit_point points[FIT_MAX_POINTS];
    struct fit_result result;
};

/* Open what is needed beside the world; collective. 0 or -errno after a sentence on stderr. */
int fit_open(struct fit_run *run);
/* The longest message that may be sent. */
uint64_t fit_longest(const struct fit_arguments *a);
/* Say the world's sentence, or what the errno means. Returns it. */
int fit_say(struct sstar_world *world, int err);
void fit_close(struct fit_run *run);
/* Sweep and fit. 0 or -errno, the sentence said. */
int fit_measure(struct fit_run *run);

/* Table and words on stdout. */
void fit_print(const struct fit_run *run);
/* The member "fit" of the report. */
json_t *fit_json(const struct fit_run *run);

#endif
