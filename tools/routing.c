/* SPDX-License-Identifier: MIT */
/* sstar routing: print a made-up mixture-of-experts routing. */
#include "tools/routing.h"
#include "tools/tool.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define A(MEMBER) SETS(struct routing_shape, MEMBER)

static const struct setting settings[] = {
    {"sequences", "N", "Sequences (8)", A(sequences), FROM_TO(1, 1000000)},
    {"tokens", "N", "Tokens of a sequence (511)", A(tokens), FROM_TO(1, 1000000)},
    {"layers", "N", "Layers (24)", A(layers), FROM_TO(1, ROUTING_MAX_LAYERS)},
    {"experts", "N", "Experts of a layer (32)", A(experts), FROM_TO(1, ROUTING_MAX_EXPERTS)},
    {"top", "K", "Experts that a token chooses (4)", A(top), FROM_TO(1, ROUTING_MAX_TOP)},
    {"seed", "N", "Seed (1)", A(seed)},
    {0},
};

static void check_shape(void *arguments, struct argp_state *state)
{
    const struct routing_shape *shape = arguments;
    if (shape->top > shape->experts)
        argp_error(state, "--top %u is more than the %u experts there are", shape->top,
                   shape->experts);
}

static const struct command_line line = {
    .settings = settings,
    .too_much = "the routing goes to stdout",
    .check = check_shape,
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
    if (command_line_parse(&line, NULL, &shape, argc, argv, 0))
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
