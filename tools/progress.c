/* SPDX-License-Identifier: MIT */
/* How far long work has come, for a person at a terminal. */
#include "tools/tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool shown(const struct common_options *options, const struct sstar_world *world)
{
    const char *terminal = getenv("TERM");
    return !options->no_progress && (!world || sstar_rank(world) == 0) && isatty(STDERR_FILENO) &&
           terminal && strcmp(terminal, "dumb") != 0; /* a dumb one cannot erase a line */
}

void progress_show(const struct common_options *options, const struct sstar_world *world,
                   const char *what, double share)
{
    if (shown(options, world))
        fprintf(stderr, "\r%s %3.0f %%\033[K", what, 100 * share);
}

void progress_clear(const struct common_options *options, const struct sstar_world *world)
{
    if (shown(options, world))
        fputs("\r\033[K", stderr);
}
