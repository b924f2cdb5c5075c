/* SPDX-License-Identifier: MIT */
/* sstar overlap: the command line, and what comes of the sweep. */
#include "tools/overlap_sweep.h"
#include "tools/record.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_BUCKETS = 0x7200,
    OPTION_SCALE,
    OPTION_COMPUTE,
    OPTION_PROGRESS,
    OPTION_ROUNDS,
};
enum { MOST_ROUNDS = 1000 };

static const struct argp_option options[] = {
    {.name = "buckets",
     .key = OPTION_BUCKETS,
     .arg = "LIST",
     .doc = "Sizes of buckets in MiB of float32 gradients, at most 16 numbers separated by commas "
            "(1,2,4,...,512)"},
    {.name = "scale",
     .key = OPTION_SCALE,
     .arg = "TIMES,SIZES",
     .doc = "What runs here is so many times slower and smaller than what it stands for (1,1)"},
    {.name = "compute",
     .key = OPTION_COMPUTE,
     .arg = "RATIO",
     .doc = "The pass computes for so many times as long as its gradients take to be reduced in "
            "one piece (1, or what the file says in microseconds)"},
    {.name = "progress",
     .key = OPTION_PROGRESS,
     .arg = "thread|calls|none",
     .doc = "What moves the AllReduces on meanwhile: a thread of the library, calls between slices "
            "of the computation, or nothing (thread)"},
    {.name = "rounds",
     .key = OPTION_ROUNDS,
     .arg = "N",
     .doc = "Passes of each kind; the median "
            "counts (3)"},
    {0},
};

static void set_buckets(struct overlap_arguments *a, const char *text, struct argp_state *state)
{
    a->n_buckets = option_reals("--buckets", text, 0.001, 1 << 20, a->buckets, state);
}

static void set_scale(struct overlap_arguments *a, const char *text, struct argp_state *state)
{
    double values[OPTION_REALS_MOST];
    if (option_reals("--scale", text, 1, 1 << 20, values, state) != 2)
        argp_error(state, "--scale takes two numbers, TIMES,SIZES as in 10,45, not '%s'", text);
    a->time_scale = values[0];
    a->size_scale = values[1];
}

static void set_progress(struct overlap_arguments *a, const char *text, struct argp_state *state)
{
    static const char *const names[] = {"thread", "calls", "none"};
    for (int i = PROGRESS_THREAD; i <= PROGRESS_NONE; i++)
        if (!strcmp(text, names[i])) {
            a->progress = (enum overlap_progress)i;
            return;
        }
    argp_error(state, "--progress takes thread, calls or none, not '%s'", text);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct overlap_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_BUCKETS:
        set_buckets(a, arg, state);
        return 0;
    case OPTION_SCALE:
        set_scale(a, arg, state);
        return 0;
    case OPTION_COMPUTE:
        if (parse_real(arg, 0.001, 1000, &a->compute))
            argp_error(state, "--compute takes a number from 0.001 to 1000, not '%s'", arg);
        return 0;
    case OPTION_PROGRESS:
        set_progress(a, arg, state);
        return 0;
    case OPTION_ROUNDS:
        a->rounds = (int)option_whole("--rounds", arg, 1, MOST_ROUNDS, state);
        return 0;
    case ARGP_KEY_ARG:
        if (a->path)
            argp_error(state, "'%s' is too much; one model is taken", arg);
        a->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->path)
            argp_error(state, "which model? Give a list of layers, as docs/examples/layers-*.csv");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{.argp = &common_argp}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "FILE",
    .children = children,
    .doc =
        "A backward pass over the layers of a model: gradients are gathered into buckets, and the "
        "AllReduce of each is started when its layers are computed, while the pass computes on; "
        "for "
        "one bucket size after the other.\v"
        "FILE has the line layer,parameters[,flops or microseconds] and a line for each layer, "
        "first to last. Computation is arithmetic in the caller, the same work each time, shared "
        "out by flops, microseconds or parameters. One AllReduce at a time is under way. hidden is "
        "the share of the AllReduces' own time that the pass did not take longer for. predicted "
        "starts each bucket when it is computed and the one before is reduced, and takes the price "
        "of its AllReduce. cpu is the processor time of a rank over the time of the pass, taken "
        "what of it the computation alone does not need. Without a launcher it starts two ranks as "
        "two nodes.",
};

/* The file is looked at before any rank is started. */
static int prepare(void *arguments, int *default_ranks)
{
    struct overlap_arguments *a = arguments;
    struct layers layers;
    char error[512];
    (void)default_ranks;
    if (layers_read(a->path, &layers, error, sizeof error)) {
        fprintf(stderr, "sstar overlap: %s\n", error);
        return EXIT_FAILURE;
    }
    layers_free(&layers);
    if (!a->common.ranks_per_node)
        a->common.ranks_per_node = 1;
    return 0;
}

static int overlap_main(int argc, char **argv)
{
    struct overlap_arguments a = {.rounds = 3, .time_scale = 1, .size_scale = 1};
    for (int i = 0; i < 10; i++)
        a.buckets[a.n_buckets++] = 1 << i;
    static const struct measurement measurement = {
        .argp = &argp, .default_ranks = 2, .prepare = prepare, .run = overlap_run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_overlap = {
    "overlap", overlap_main, "gradients reduced in buckets while a backward pass computes"};
