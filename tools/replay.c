/* SPDX-License-Identifier: MIT */
/* sstar replay: the command line. */
#include "tools/replay.h"
#include "tools/strategies.h"
#include <stdio.h>
#include <stdlib.h>

enum {
    OPTION_STRATEGY = 0x7000,
    OPTION_REPEAT,
    OPTION_MESSAGE_BYTES,
    OPTION_NO_CHECK,
};
enum { MOST_REPEATS = 100000, MESSAGE_BYTES_MOST = 16 << 20 };

static const struct argp_option options[] = {
    {.name = "strategy",
     .key = OPTION_STRATEGY,
     .arg = "LIST",
     .doc = "How all-to-alls are sent: none, rank, node, mesh, adaptive, or several with commas "
            "(all)"},
    {.name = "message-bytes",
     .key = OPTION_MESSAGE_BYTES,
     .arg = "BYTES",
     .doc = "Cut a block of an all-to-all into messages of at most so many (64K)"},
    {.name = "repeat",
     .key = OPTION_REPEAT,
     .arg = "N",
     .doc = "Play each entry N times and show the median (5)"},
    {.name = "no-check", .key = OPTION_NO_CHECK, .doc = "Do not check the results"},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct replay_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_STRATEGY:
        option_strategies(arg, a->strategies, state);
        return 0;
    case OPTION_MESSAGE_BYTES:
        a->message_bytes =
            (uint32_t)option_size("--message-bytes", arg, 1, MESSAGE_BYTES_MOST, state);
        return 0;
    case OPTION_REPEAT:
        a->repeat = (uint32_t)option_whole("--repeat", arg, 1, MOST_REPEATS, state);
        return 0;
    case OPTION_NO_CHECK:
        a->check = false;
        return 0;
    case ARGP_KEY_ARG:
        if (a->path)
            argp_error(state, "'%s' is too much; one file is played", arg);
        a->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->path)
            argp_error(state, "which file is to be played?");
        strategies_default(a->strategies);
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
        "Play a list of collectives that a program made: AllReduce and its kin by the algorithm "
        "that "
        "costs least, all-to-alls through the aggregator with one strategy after the other; time "
        "of each beside its price, then the sums.\v"
        "FILE, plain or gzip, has the line rank,seq,coll,elem_bytes,bytes,in_splits_elems,"
        "out_splits_elems and then a line for each rank and collective, as sstar-replay(1) has it. "
        "Without a launcher it starts as many ranks as the file has. The elements of 1, 2, 4 and 8 "
        "bytes are uint8, bfloat16, float and double; what reduces is a sum; the root is rank 0. "
        "Every result is checked. Exit status 1 if one is wrong or the file is not as it must be.",
};

/* The file says how many ranks there are, and is looked at before any is started. */
static int prepare(void *arguments, int *default_ranks)
{
    const struct replay_arguments *a = arguments;
    struct replay replay;
    char error[512];
    if (replay_read(a->path, &replay, error, sizeof error)) {
        fprintf(stderr, "sstar replay: %s\n", error);
        return EXIT_FAILURE;
    }
    *default_ranks = replay.ranks;
    replay_free(&replay);
    return 0;
}

static int replay_main(int argc, char **argv)
{
    struct replay_arguments a = {.repeat = 5, .message_bytes = 64 << 10, .check = true};
    static const struct measurement measurement = {
        .argp = &argp, .prepare = prepare, .run = replay_run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_replay = {
    "replay", replay_main, "play a list of collectives that a program made, each beside its price"};
