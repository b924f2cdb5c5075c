/* SPDX-License-Identifier: MIT */
/* Threads of `sstar control-path` that post, and the sets of links that they post on. Private. */
#ifndef SSTAR_TOOLS_CONTROL_CALLERS_H
#define SSTAR_TOOLS_CONTROL_CALLERS_H

#include "tools/control_path.h"
#include "transport/link_carrier.h"
#include "transport/world.h"

enum {
    PATH_QUEUE = 512, /* requests that a queue pair takes */
    PATH_BETA_BYTES = 256 << 10,
    PATH_COMPLETIONS = 16,
};

struct sets {
    struct sstar_links *links[PATH_MOST_CALLERS];
    uint32_t n, qps; /* sets, queue pairs of each */
};

struct caller {
    struct path_test *test;
    const struct path_way *way;
    struct sstar_link *link;
    struct carrier *direct; /* whose completion queue this thread polls itself */
    bool share_core;        /* with other callers, while a proxy works on another */
    _Atomic uint32_t *ready;
    uint32_t first_qp, n_qps;
    uint64_t offset; /* where it puts */
    uint64_t posted, begun_ns, ended_ns;
    struct stage_stamps *stamps; /* of lone messages */
    uint64_t *written, *told;
    double *outside_ns;
    uint32_t rounds; /* of lone messages */
    bool each;       /* each is timed for itself */
    int err;
    uint32_t at; /* the completion in use: lone messages take turns, as lines are not alike */
    struct sstar_completion completion[PATH_COMPLETIONS];
};

/* Both ranks go through this: open, rank 0 measures, close. What only rank 0 sees is told. */
int path_with_sets(struct path_test *test, const struct path_way *way, void *result,
                   int (*measure)(struct path_test *test, const struct path_way *way,
                                  struct sets *sets, void *result));
/* One for each of way->callers. */
void callers_fill(struct path_test *test, const struct path_way *way, struct sets *sets,
                  struct caller *callers, _Atomic uint32_t *ready);
struct sstar_one_sided caller_operation(struct caller *c, uint32_t qp);
int caller_post(struct caller *c, const struct sstar_one_sided *ops, int n);
/* Until at most `left` are under way. */
int caller_await(struct caller *c, uint64_t left);

#endif
