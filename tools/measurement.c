/* SPDX-License-Identifier: MIT */
/* What the measuring commands have in common from first to last. */
#include "tools/tool.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ranks that somebody starts one by one may be given different work, and would wait for each other
 * or take each other's values for wrong. 0, a negative errno, or EXIT_USAGE after a sentence. */
static int check_same_work(struct sstar_world *world, const struct common_options *common,
                           const char *command)
{
    struct work {
        char text[COMMAND_LINE_GIVEN + 96];
    } mine = {0}, *all = calloc((size_t)sstar_size(world), sizeof *all);
    int me = sstar_rank(world), other = 0;
    if (!all)
        return -ENOMEM;
    snprintf(mine.text, sizeof mine.text, "%.32s%s --seed %llu", command, command_line_given(),
             (unsigned long long)common->seed);
    int err = sstar_allgather(world, &mine, sizeof mine, all);
    while (!err && other < sstar_size(world) && !strcmp(all[other].text, all[0].text))
        other++;
    if (!err && other < sstar_size(world)) {
        err = EXIT_USAGE;
        if (me == 0 || me == other)
            fprintf(stderr,
                    "%s: rank 0 was started as '%s' and rank %d as '%s'; give all the same\n",
                    command, all[0].text, other, all[other].text);
    }
    free(all);
    return err;
}

int measurement_main(const struct measurement *measurement, void *arguments, int argc, char **argv)
{
    struct common_options *common = arguments;
    int ranks = measurement->default_ranks;
    struct sstar_world *world;
    int status = common_init(common);
    if (status)
        return status;
    if ((status =
             command_line_parse(&measurement->line, common_settings, arguments, argc, argv, 0)))
        return status;
    if (measurement->across_nodes && !common->ranks_per_node)
        common->ranks_per_node = 1;
    if (measurement->prepare && (status = measurement->prepare(arguments, &ranks)))
        return status;
    if (common_start(common, ranks, argc, argv, &world, &status) || !world)
        return status;
    int err = check_same_work(world, common, argv[0]);
    if (err > 0)
        return common_finish(world, argv[0], 0, err);
    if (!err)
        err = measurement->run(world, arguments, &status);
    return common_finish(world, argv[0], err, status);
}
