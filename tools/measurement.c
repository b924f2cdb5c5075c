/* SPDX-License-Identifier: MIT */
/* What the measuring commands have in common from first to last. */
#include "tools/tool.h"

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
    int err = measurement->run(world, arguments, &status);
    return common_finish(world, argv[0], err, status);
}
