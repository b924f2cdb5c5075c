/* SPDX-License-Identifier: MIT */
/* sstar fit: alpha, g, beta and S* of the wire between two ranks. */
#include "tools/fit_run.h"
#include "tools/record.h"
#include "tools/tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_POINTS = 0x3000, OPTION_QUICK };
enum { BEGIN_BYTES = 8, LEAST_POINTS = 6, MOST_ITERATIONS = 1000000 };
static const uint64_t most_bytes = 1 << 30;

static const struct argp_option options[] = {
    {.name = "minbytes", .key = 'b', .arg = "BYTES", .doc = "Shortest message (8)"},
    {.name = "maxbytes",
     .key = 'e',
     .arg = "BYTES",
     .doc = "Longest message (chosen: takes 16 times as long as the shortest, at most 4M)"},
    {.name = "iters",
     .key = 'n',
     .arg = "N",
     .doc = "Round trips per size (chosen: about 3 s for all)"},
    {.name = "points", .key = OPTION_POINTS, .arg = "N", .doc = "Sizes (21; quick: 13)"},
    {.name = "quick", .key = OPTION_QUICK, .doc = "Fewer sizes and samples: less than a second"},
    {0},
};

static uint64_t size(const char *option, const char *text, struct argp_state *state)
{
    uint64_t bytes = 0;
    if (parse_size(text, &bytes) || !bytes || bytes > most_bytes)
        argp_error(state, "%s takes a size from 1 to 1G, not '%s'", option, text);
    return bytes;
}

static void check_arguments(const struct fit_arguments *a, struct argp_state *state)
{
    if (a->end_bytes && a->end_bytes < 16 * a->begin_bytes)
        argp_error(state,
                   "-e %llu is less than 16 times -b %llu: a line needs short and long messages",
                   (unsigned long long)a->end_bytes, (unsigned long long)a->begin_bytes);
    if (!a->end_bytes && a->begin_bytes > most_bytes / 64)
        argp_error(state, "with -b %llu say where to end (-e)", (unsigned long long)a->begin_bytes);
    if (a->common.ranks == 1)
        argp_error(state, "--ranks 1, but a wire is between two ranks");
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct fit_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case 'b':
        a->begin_bytes = size("-b", arg, state);
        return 0;
    case 'e':
        a->end_bytes = size("-e", arg, state);
        return 0;
    case 'n':
        a->iterations = option_whole("-n", arg, 1, MOST_ITERATIONS, state);
        return 0;
    case OPTION_POINTS:
        a->points = option_whole("--points", arg, LEAST_POINTS, FIT_MAX_POINTS, state);
        return 0;
    case OPTION_QUICK:
        a->quick = true;
        return 0;
    case ARGP_KEY_END:
        check_arguments(a, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{.argp = &common_argp}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse_option,
    .children = children,
    .doc =
        "Measure what a message costs: T(S) = alpha + S/beta for a lone one, g for a stream, and "
        "S* = "
        "alpha*beta.\v"
        "Without a launcher it starts its own two ranks as two nodes. With more ranks the first of "
        "each of the first two nodes measure. Where the sizes do not lie on a line it gives the "
        "table and the reason, no S*, and exits with 1. With --wire the imposed figures stand "
        "beside "
        "the measured ones; what the software takes by itself is measured in the same run.",
};

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

static int fit_main(int argc, char **argv)
{
    struct fit_arguments a = {.begin_bytes = BEGIN_BYTES};
    struct sstar_world *world;
    int status = common_init(&a.common);
    if (status)
        return status;
    if (argp_parse(&argp, argc, argv, 0, NULL, &a))
        return EXIT_USAGE;
    if (!a.common.ranks_per_node && !strcmp(a.common.config.launcher, "none"))
        a.common.ranks_per_node = 1; /* a launcher's ranks are on real nodes */
    if (common_start(&a.common, 2, argc, argv, &world, &status) || !world)
        return status;
    struct fit_run *run = calloc(1, sizeof *run);
    if (!run) {
        fprintf(stderr, "sstar fit: no memory for %zu bytes\n", sizeof *run);
        sstar_world_close(world);
        return EXIT_FAILURE;
    }
    run->arguments = &a;
    run->world = world;
    int err = fit_open(run);
    if (!err)
        err = fit_measure(run);
    status = err ? EXIT_FAILURE : run->pair.role == PAIR_ASKS ? conclude(run) : 0;
    fit_close(run);
    free(run);
    sstar_world_close(world);
    return status;
}

const struct command command_fit = {"fit", fit_main,
                                    "alpha, g, beta and S* of the wire, two ranks"};
