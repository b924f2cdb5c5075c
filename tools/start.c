/* SPDX-License-Identifier: MIT */
/* The start of a command's ranks, and its end. */
#include "tools/record.h"
#include "tools/tool.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The same command again, as a rank: argv[0] is "sstar NAME" and becomes two words. */
static int start_ranks(int n, int ranks_per_node, int argc, char **argv)
{
    char program[4096], *name = strchr(argv[0], ' ');
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[length < 0 ? 0 : length] = '\0';
    if (access(program,
               X_OK)) /* replaced while we run: what we run is still there under this name */
        strcpy(program, "/proc/self/exe");
    char **copy = calloc((size_t)argc + 2, sizeof(*copy));
    if (!copy) {
        fprintf(stderr, "%s: out of memory while starting ranks\n", argv[0]);
        return EXIT_FAILURE;
    }
    copy[0] = program;
    copy[1] = name ? name + 1 : argv[0];
    memcpy(copy + 2, argv + 1, ((size_t)argc - 1) * sizeof(*copy));
    int status = launch_ranks(n, ranks_per_node, copy);
    free(copy);
    return status;
}

static int check_shape(const struct common_options *common, int ranks, const char *command)
{
    if (common->ranks && common->ranks != ranks) {
        fprintf(stderr,
                "%s: --ranks %d, but the launcher (%s) started %d; leave --ranks out or start %d\n",
                command, common->ranks, common->config.launcher, ranks, common->ranks);
        return EXIT_USAGE;
    }
    if (common->ranks_per_node > ranks) {
        fprintf(stderr,
                "%s: --ranks-per-node %d is more than the %d rank%s there are; take at most "
                "that\n",
                command, common->ranks_per_node, ranks, ranks == 1 ? "" : "s");
        return EXIT_USAGE;
    }
    return 0;
}

/* Where every rank can have a core of its own it gets one: two that spin on the same core cost each
 * other far more than what is measured. Only ranks of our own launcher, all on this machine. After
 * the world is open, which counts the cores that it may use. */
static void take_core(const struct sstar_config *config)
{
    cpu_set_t allowed, mine;
    int nth = config->rank;
    if (strcmp(config->launcher, "sstar") != 0 || sched_getaffinity(0, sizeof(allowed), &allowed) ||
        config->size > CPU_COUNT(&allowed))
        return;
    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || nth--)
            continue;
        CPU_SET(cpu, &mine);
        sched_setaffinity(0, sizeof(mine), &mine); /* as good as it gets */
        return;
    }
}

/* Ports append to it when they are opened, which is after the world has met; where it cannot be
 * written every rank says so before that, and nobody waits for one that has gone. */
static int capture_begin_file(const struct sstar_config *config, bool anew, const char *command)
{
    if (!config->capture)
        return 0;
    int fd = open(config->capture, O_WRONLY | O_CREAT | (anew ? O_TRUNC : 0) | O_CLOEXEC, 0666);
    if (fd < 0) {
        fprintf(stderr, "%s: the capture %s cannot be written: %s; give a file that can be\n",
                command, config->capture, strerror(errno));
        return EXIT_FAILURE;
    }
    close(fd);
    return 0;
}

static int start(struct common_options *common, int default_ranks, int argc, char **argv,
                 struct sstar_world **world)
{
    struct sstar_config *config = &common->config;
    bool launched = strcmp(config->launcher, "none") != 0;
    int ranks = launched ? config->size : common->ranks ? common->ranks : default_ranks;
    int status = check_shape(common, ranks, argv[0]);
    if (!status && (!launched || config->rank == 0))
        status = record_can_write(argv[0], common->json, common->csv);
    if (!status && config->rank == 0 && (launched || ranks == 1) &&
        record_claim_stdout(common->json, common->csv)) {
        fprintf(stderr, "%s: cannot write to standard output: %s\n", argv[0], strerror(errno));
        status = EXIT_FAILURE;
    }
    if (!status)
        status = capture_begin_file(config, !launched || config->rank == 0, argv[0]);
    if (status)
        return status;
    if (!launched && ranks > 1 && !common->ranks_per_node &&
        (config->wire.beta_gbps > 0 || config->order.relaxed || config->capture)) {
        /* One node would never use the wire that was asked for. */
        common->ranks_per_node = (ranks + 1) / 2;
        fprintf(stderr, "%s: %s and no --ranks-per-node: taking 2 nodes of %d\n", argv[0],
                config->order.relaxed ? "a relaxed order"
                : config->capture     ? "a capture"
                                      : "a wire",
                common->ranks_per_node);
    }
    config->ranks_per_node = common->ranks_per_node;
    config->faults_seed = common->seed;
    if (!launched && ranks > 1)
        return start_ranks(ranks, common->ranks_per_node, argc, argv);
    if (!launched) /* softnic's ports are named by it: not to meet another lone rank's */
        launch_token(config->token, sizeof(config->token));
    char error[512];
    if (sstar_world_open(world, config, error, sizeof(error))) {
        fprintf(stderr, "%s: %s\n", argv[0], error);
        return EXIT_FAILURE;
    }
    take_core(config);
    return 0;
}

int common_finish(struct sstar_world *world, const char *command, int err, int status)
{
    if (err) {
        const char *why = sstar_last_error(world);
        char self[24];
        int n = snprintf(self, sizeof self, "rank %d", sstar_rank(world));
        if (!strncmp(why, self, (size_t)n) && !isdigit((unsigned char)why[n]))
            fprintf(stderr, "%s: %s\n", command, why);
        else /* another's sentence, or one about nobody */
            fprintf(stderr, "%s: %s: %s\n", command, self, *why ? why : strerror(-err));
    }
    sstar_world_close(world);
    return err ? EXIT_FAILURE : status;
}

int common_start(struct common_options *common, int default_ranks, int argc, char **argv,
                 struct sstar_world **world, int *exit_status)
{
    *world = NULL;
    *exit_status = start(common, default_ranks, argc, argv, world);
    return *exit_status;
}
