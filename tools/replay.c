/* SPDX-License-Identifier: MIT */
/* sstar replay: the command line. */
#include "tools/replay.h"
#include "tools/strategies.h"
#include <stdio.h>
#include <stdlib.h>

enum { MOST_REPEATS = 100000, MESSAGE_BYTES_MOST = 16 << 20 };

#define A(MEMBER) SETS(struct replay_arguments, MEMBER)

static const struct setting settings[] = {
    {"strategy", "LIST",
     "How all-to-alls are sent: none, rank, node, mesh, adaptive, or several with commas "
     "(all)",
     TAKES_STRATEGIES(struct replay_arguments)},
    {"message-bytes", "BYTES",
     "Cut a block of an all-to-all into messages of at most so many (64K)", A(message_bytes),
     FROM_TO(1, MESSAGE_BYTES_MOST)},
    {"repeat", "N", "Play each entry N times and show the median (5)", A(repeat),
     FROM_TO(1, MOST_REPEATS)},
    {"no-check", NULL, "Do not check the results", CLEARS(struct replay_arguments, check)},
    {0},
};

static void check_arguments(void *arguments, struct argp_state *state)
{
    (void)state;
    strategies_default(((struct replay_arguments *)arguments)->strategies);
}

static const char doc[] =
    "Play a list of collectives that a program made: AllReduce and its kin by the algorithm "
    "that "
    "costs least, all-to-alls through the aggregator with one strategy after the other; time "
    "of each beside its price, then the sums.\v"
    "FILE, plain or gzip, has the line rank,seq,coll,elem_bytes,bytes,in_splits_elems,"
    "out_splits_elems and then a line for each rank and collective, as sstar-replay(1) has it. "
    "Without a launcher it starts as many ranks as the file has. The elements of 1, 2, 4 and 8 "
    "bytes are uint8, bfloat16, float and double; what reduces is a sum; the root is rank 0. "
    "Every result is checked. Exit status 1 if one is wrong or the file is not as it must be.";

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
        .line = {.settings = settings,
                 .args_doc = "FILE",
                 .doc = doc,
                 .operand = offsetof(struct replay_arguments, path),
                 .operand_missing = "which file is to be played?",
                 .too_much = "one file is played",
                 .check = check_arguments},
        .prepare = prepare,
        .run = replay_run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_replay = {
    "replay", replay_main, "play a list of collectives that a program made, each beside its price"};
