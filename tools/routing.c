/* SPDX-License-Identifier: MIT */
/* sstar routing: print a made-up mixture-of-experts routing. */
#include "tools/routing.h"
#include "tools/tool.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_SEQUENCES = 0x4000,
    OPTION_TOKENS,
    OPTION_LAYERS,
    OPTION_EXPERTS,
    OPTION_TOP,
    OPTION_SEED,
};

static const struct argp_option options[] = {
    {.name = "sequences", .key = OPTION_SEQUENCES, .arg = "N", .doc = "Sequences (8)"},
    {.name = "tokens", .key = OPTION_TOKENS, .arg = "N", .doc = "Tokens of a sequence (511)"},
    {.name = "layers", .key = OPTION_LAYERS, .arg = "N", .doc = "Layers (24)"},
    {.name = "experts", .key = OPTION_EXPERTS, .arg = "N", .doc = "Experts of a layer (32)"},
    {.name = "top", .key = OPTION_TOP, .arg = "K", .doc = "Experts that a token chooses (4)"},
    {.name = "seed", .key = OPTION_SEED, .arg = "N", .doc = "Seed (1)"},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct routing_shape *shape = state->input;
    switch (key) {
    case OPTION_SEQUENCES:
        shape->sequences = (uint32_t)option_whole("--sequences", arg, 1, 1000000, state);
        return 0;
    case OPTION_TOKENS:
        shape->tokens = (uint32_t)option_whole("--tokens", arg, 1, 1000000, state);
        return 0;
    case OPTION_LAYERS:
        shape->layers = (uint32_t)option_whole("--layers", arg, 1, ROUTING_MAX_LAYERS, state);
        return 0;
    case OPTION_EXPERTS:
        shape->experts = (uint32_t)option_whole("--experts", arg, 1, ROUTING_MAX_EXPERTS, state);
        return 0;
    case OPTION_TOP:
        shape->top = (uint32_t)option_whole("--top", arg, 1, ROUTING_MAX_TOP, state);
        return 0;
    case OPTION_SEED:
        if (parse_size(arg, &shape->seed))
            argp_error(state, "--seed takes a whole number, not '%s'", arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is too much; the routing goes to stdout", arg);
        return 0;
    case ARGP_KEY_END:
        if (shape->top > shape->experts)
            argp_error(state, "--top %u is more than the %u experts there are", shape->top,
                       shape->experts);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse_option,
    .doc =
        "Print a made-up mixture-of-experts routing: lines sequence,token,layer,expert,...\v"
        "As skewed as a real router's choices: of every sequence and layer the fullest expert "
        "carries 2.07 to 4.51 times the mean (median 2.83), and with the experts placed in order "
        "on 8 ranks the fullest rank 1.18 to 1.90 times. For sstar alltoall --routing.",
};

static int routing_main(int argc, char **argv)
{
    struct routing_shape shape = {8, 511, 24, 32, 4, 1};
    struct routing routing;
    if (argp_parse(&argp, argc, argv, 0, NULL, &shape))
        return EXIT_USAGE;
    int err = routing_make(&shape, &routing);
    if (err) {
        fprintf(stderr, "sstar routing: %s\n",
                err == -EINVAL ? "more than 1e9 choices are too many" : strerror(-err));
        return err == -EINVAL ? EXIT_USAGE : EXIT_FAILURE;
    }
    err = routing_write(&routing, &shape, stdout);
    if (err)
        fprintf(stderr, "sstar routing: cannot write: %s\n", strerror(errno));
    routing_free(&routing);
    return err ? EXIT_FAILURE : 0;
}

const struct command command_routing = {"routing", routing_main,
                                        "make up a skewed mixture-of-experts routing for alltoall"};
