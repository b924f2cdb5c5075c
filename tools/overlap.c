/* SPDX-License-Identifier: MIT */
/* sstar overlap: the command line, and what comes of the sweep. */
#include "tools/overlap_sweep.h"
#include "tools/record.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 1000 };

static void set_buckets(void *arguments, const char *text, struct argp_state *state)
{
    struct overlap_arguments *a = arguments;
    a->n_buckets = option_reals("--buckets", text, 0.001, 1 << 20, a->buckets, state);
}

static void set_scale(void *arguments, const char *text, struct argp_state *state)
{
    struct overlap_arguments *a = arguments;
    double values[OPTION_REALS_MOST];
    if (option_reals("--scale", text, 1, 1 << 20, values, state) != 2)
        argp_error(state, "--scale takes two numbers, TIMES,SIZES as in 10,45, not '%s'", text);
    a->time_scale = values[0];
    a->size_scale = values[1];
}

static const char *const progress_names[] = {"thread", "calls", "none"};
#define A(MEMBER) SETS(struct overlap_arguments, MEMBER)

static const struct setting settings[] = {
    {"buckets", "LIST",
     "Sizes of buckets in MiB of float32 gradients, at most 16 numbers separated by commas "
     "(1,2,4,...,512)",
     .call = set_buckets},
    {"scale", "TIMES,SIZES",
     "What runs here is so many times slower and smaller than what it stands for (1,1)",
     .call = set_scale},
    {"compute", "RATIO",
     "The pass computes for so many times as long as its gradients take to be reduced in "
     "one piece (1, or what the file says in microseconds)",
     A(compute), FROM_TO(0.001, 1000)},
    {"progress", "thread|calls|none",
     "What moves the AllReduces on meanwhile: a thread of the library, calls between slices "
     "of the computation, or nothing (thread)",
     CHOOSES(struct overlap_arguments, progress, progress_names, PROGRESS_THREAD,
             PROGRESS_NONE + 1)},
    {"rounds", "N",
     "Passes of each kind; the median "
     "counts (3)",
     A(rounds), FROM_TO(1, MOST_ROUNDS)},
    {0},
};

static const char doc[] =
    "A backward pass over the layers of a model: gradients are gathered into buckets, and the "
    "AllReduce of each is started when its layers are computed, while the pass computes on; "
    "for "
    "one bucket size after the other.\v"
    "FILE has the line layer,parameters[,flops or microseconds] and a line for each layer, "
    "first to last. Computation is arithmetic in the caller, the same work each time, shared "
    "out by flops, microseconds or parameters. Two AllReduces are under way at most. hidden is "
    "the share of the AllReduces' own time that the pass did not take longer for. predicted "
    "starts each bucket when it is computed and the one before is reduced, and takes the price "
    "of its AllReduce. cpu is the processor time of a rank over the time of the pass, taken "
    "what of it the computation alone does not need. Without a launcher it starts two ranks as "
    "two nodes.";

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
    return 0;
}

static int overlap_main(int argc, char **argv)
{
    struct overlap_arguments a = {.rounds = 3, .time_scale = 1, .size_scale = 1};
    for (int i = 0; i < 10; i++)
        a.buckets[a.n_buckets++] = 1 << i;
    static const struct measurement measurement = {
        .line = {.settings = settings,
                 .args_doc = "FILE",
                 .doc = doc,
                 .operand = offsetof(struct overlap_arguments, path),
                 .operand_missing =
                     "which model? Give a list of layers, as docs/examples/layers-*.csv",
                 .too_much = "one model is taken"},
        .default_ranks = 2,
        .across_nodes = true,
        .prepare = prepare,
        .run = overlap_run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_overlap = {
    "overlap", overlap_main, "gradients reduced in buckets while a backward pass computes"};
