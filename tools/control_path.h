/* SPDX-License-Identifier: MIT */
/* sstar control-path: what it measures of one way to post, and what it says of that. Private. */
#ifndef SSTAR_TOOLS_CONTROL_PATH_H
#define SSTAR_TOOLS_CONTROL_PATH_H

#include "transport/post.h"
#include "transport/stages.h"
#include "transport/transport.h"
#include <jansson.h>
#include <sched.h>

enum { PATH_MOST_CALLERS = 16, PATH_MOST_QPS = 16 };

/* One way to post. */
struct path_way {
    enum sstar_control control;
    enum post_method method;
    bool each;    /* a doorbell for each request */
    bool in_line; /* the data goes into the request */
    uint32_t batch, signal, qps, callers, proxies;
    uint64_t bytes;
};

/* From one stamp to the next. */
enum path_stage {
    STAGE_HANDOVER,   /* descriptor begun -> taken up by who builds */
    STAGE_BUILD,      /* -> WQE whole */
    STAGE_BATCH,      /* -> the doorbell of its batch begun */
    STAGE_DOORBELL,   /* -> rung, without */
    STAGE_DEVICE,     /* what the device itself did in there (softnic) */
    STAGE_COMPLETION, /* rung -> completion found */
    STAGE_TOLD,       /* -> the caller sees it */
    STAGES
};
extern const char *const path_stage_names[STAGES];

struct path_spread {
    double median_ns, p99_ns, max_ns;
    double typical_ns; /* these add up, see control_lone.c */
};

struct path_lone {
    struct path_spread stage[STAGES];
    double alpha_ns;      /* a lone message from outside, without stamps: mean of the middle half */
    double stamps_add_ns; /* to a message that has all of them; 0: not measured */
    uint32_t samples;
};

struct path_rate {
    double per_us; /* messages, all callers */
    double wqes_per_doorbell, doorbells_per_message, cqes_per_message;
};

/* A world of two ranks, of which rank 0 puts into the memory of rank 1. */
struct path_test {
    struct sstar_world *world;
    uint64_t *memory;
    struct sstar_region *region;
    struct sstar_remote_region remote;
    uint64_t max_bytes;
    double seconds; /* for each measurement */
    struct stage_clock clock;
    double line_ns; /* a cache line from core to core, typical */
};

/* Collective. */
int path_open(struct path_test *test);
void path_close(struct path_test *test);
/* 0; -ENODATA: this device or this shape does not allow it. Collective; results on rank 0. */
int path_lone(struct path_test *test, const struct path_way *way, struct path_lone *lone);
int path_rate(struct path_test *test, const struct path_way *way, struct path_rate *rate);
/* Bytes per ns of long messages. */
int path_beta(struct path_test *test, double *bytes_per_ns);

/* control_threads.c: callers on cores of their own, away from the proxies where there are enough.
 */
int path_callers_run(struct path_test *test, const struct path_way *way, void *(*caller)(void *),
                     void *arguments, size_t size);
double path_line_ns(const struct path_test *test);
/* Mean of the middle half; sorts them. */
double path_middle_half(double *values, uint32_t n);

/* control_report.c */
void path_report_stages(const json_t *stages);
json_t *path_stage_rows(const struct path_lone *lone);
/* What a proxy adds and carries, where both paths were measured. */
void path_report_summary(const json_t *rates);
void path_report_budget(json_t *budget, const struct sstar_device_info *device);

#endif
