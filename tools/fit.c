/* SPDX-License-Identifier: MIT */
/* sstar fit: alpha, g, beta and S* of the wire between two ranks. */
#include "tools/fit_run.h"
#include "tools/record.h"
#include "tools/tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BEGIN_BYTES = 8, LEAST_POINTS = 6, MOST_ITERATIONS = 1000000, MOST_BYTES = 1 << 30 };

#define A(MEMBER) SETS(struct fit_arguments, MEMBER)

static const struct setting settings[] = {
    {"minbytes", "BYTES", "Shortest message (8)", .letter = 'b', A(begin_bytes),
     FROM_TO(1, MOST_BYTES), .what = "a size"},
    {"maxbytes", "BYTES",
     "Longest message (chosen: takes 16 times as long as the shortest, at most 4M)", .letter = 'e',
     A(end_bytes), FROM_TO(1, MOST_BYTES), .what = "a size"},
    {"iters", "N", "Round trips per size (chosen: about 3 s for all)", .letter = 'n', A(iterations),
     FROM_TO(1, MOST_ITERATIONS)},
    {"points", "N", "Sizes (21; quick: 13)", A(points), FROM_TO(LEAST_POINTS, FIT_MAX_POINTS)},
    {"quick", NULL, "Fewer sizes and samples: less than a second", A(quick)},
    {0},
};

static void check_arguments(void *arguments, struct argp_state *state)
{
    const struct fit_arguments *a = arguments;
    if (a->end_bytes && a->end_bytes < 16 * a->begin_bytes)
        argp_error(state,
                   "-e %llu is less than 16 times -b %llu: a line needs short and long messages",
                   (unsigned long long)a->end_bytes, (unsigned long long)a->begin_bytes);
    if (!a->end_bytes && a->begin_bytes > MOST_BYTES / 64)
        argp_error(state, "with -b %llu say where to end (-e)", (unsigned long long)a->begin_bytes);
    if (a->common.ranks == 1)
        argp_error(state, "--ranks 1, but a wire is between two ranks");
}

static const char doc[] =
    "Measure what a message costs: T(S) = alpha + S/beta for a lone one, g for a stream, and "
    "S* = "
    "alpha*beta.\v"
    "Without a launcher it starts its own two ranks as two nodes. With more ranks the first of "
    "each of the first two nodes measure. Where the sizes do not lie on a line it gives the "
    "table and the reason, no S*, and exits with 1. With --wire the imposed figures stand "
    "beside "
    "the measured ones; what the software takes by itself is measured in the same run.";

/* The asking rank's part: show and write. The exit status. */
static int conclude(const struct fit_run *run)
{
    const struct common_options *common = &run->arguments->common;
    json_t *report = record_new(run->world, "fit"), *fit = fit_json(run);
    json_t *list =
        json_pack("{s:s, s:O}", "command", "fit", "points", json_object_get(fit, "points"));
    json_object_set_new(report, "seed", json_integer((json_int_t)common->seed));
    json_object_set_new(report, "fit", fit);
    fit_print(run);
    int status = record_write_json(report, common->json) ||
                 record_write_csv(list, "points", common->csv) || run->result.refused;
    if (run->result.refused)
        fprintf(stderr, "sstar fit: no S*: %s\n", run->result.reason);
    json_decref(list);
    json_decref(report);
    return status ? EXIT_FAILURE : 0;
}

static int prepare(void *arguments, int *default_ranks)
{
    struct common_options *common = arguments;
    (void)default_ranks;
    if (!common->ranks_per_node && !strcmp(common->config.launcher, "none"))
        common->ranks_per_node = 1; /* a launcher's ranks are on real nodes */
    return 0;
}

/* What goes wrong is said where it does. */
static int run(struct sstar_world *world, void *arguments, int *status)
{
    struct fit_run *run = calloc(1, sizeof *run);
    *status = EXIT_FAILURE;
    if (!run) {
        fprintf(stderr, "sstar fit: no memory for %zu bytes\n", sizeof *run);
        return 0;
    }
    run->arguments = arguments;
    run->world = world;
    int err = fit_open(run);
    if (!err)
        err = fit_measure(run);
    if (!err)
        *status = run->pair.role == PAIR_ASKS ? conclude(run) : 0;
    fit_close(run);
    free(run);
    return 0;
}

static int fit_main(int argc, char **argv)
{
    struct fit_arguments a = {.begin_bytes = BEGIN_BYTES};
    static const struct measurement measurement = {
        .line = {.settings = settings, .doc = doc, .check = check_arguments},
        .default_ranks = 2,
        .prepare = prepare,
        .run = run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_fit = {"fit", fit_main,
                                    "alpha, g, beta and S* of the wire, two ranks"};
