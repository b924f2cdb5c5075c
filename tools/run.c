/* SPDX-License-Identifier: MIT */
/* sstar run: start a program as ranks on this machine. */
#include "tools/tool.h"
#include <stdio.h>

struct arguments {
    int n, ranks_per_node;
    char **program;
};

static const struct argp_option options[] = {
    {.name = "ranks", .key = 'n', .arg = "N", .doc = "Ranks to start, 1 to 1024"},
    {.name = "ranks-per-node",
     .key = 'r',
     .arg = "R",
     .doc = "Virtual nodes of R ranks each; between them messages go through the NIC"},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    switch (key) {
    case 'n':
        arguments->n = (int)option_whole("-n", arg, 1, MAX_RANKS, state);
        return 0;
    case 'r':
        arguments->ranks_per_node = (int)option_whole("--ranks-per-node", arg, 1, MAX_RANKS, state);
        return 0;
    case ARGP_KEY_ARG: /* the program; all that follows is its own */
        arguments->program = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_END:
        if (!arguments->program)
            argp_error(state, "no program to run: sstar run -n N -- PROGRAM [ARGUMENT...]");
        else if (!arguments->n)
            argp_error(state, "how many ranks? Say -n N");
        else if (arguments->ranks_per_node > arguments->n)
            argp_error(state,
                       "--ranks-per-node %d is more than the %d ranks of -n; take at most that",
                       arguments->ranks_per_node, arguments->n);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "-- PROGRAM [ARGUMENT...]",
    .doc =
        "Start a program as N ranks on this machine.\v"
        "Ranks find each other through RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
        "MASTER_ADDR, "
        "MASTER_PORT, SSTAR_TOKEN and SSTAR_RANKS_PER_NODE. SIGINT, SIGTERM and SIGHUP are passed "
        "on "
        "to them. When one fails, the others get 4 seconds to end and are then killed. The exit "
        "status is that of the first rank that failed, 128 and the signal if it was killed, 127 if "
        "the program was not found.",
};

static int run_main(int argc, char **argv)
{
    struct arguments arguments = {0};
    struct common_options common;
    int status = common_init(&common);
    if (status)
        return status;
    arguments.ranks_per_node = common.ranks_per_node;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &arguments))
        return EXIT_USAGE;
    return launch_ranks(arguments.n, arguments.ranks_per_node, arguments.program);
}

const struct command command_run = {"run", run_main, "start a program as N ranks on this machine"};
