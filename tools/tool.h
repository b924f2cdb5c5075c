/* SPDX-License-Identifier: MIT */
/*
 * What every subcommand shares: the table of commands, common options, starting its own ranks.
 * Private to tools.
 */
#ifndef SSTAR_TOOLS_TOOL_H
#define SSTAR_TOOLS_TOOL_H

#include "tools/settings.h"
#include "transport/transport.h"

enum { EXIT_USAGE = 2, EXIT_SKIPPED = 77, MAX_RANKS = 1024 };

struct command {
    const char *name;
    int (*main)(int argc, char **argv); /* argv[0] is "sstar NAME"; returns the exit status */
    const char *summary;                /* one line for `sstar help` */
};
/* One file per subcommand, each defining command_NAME; main.c lists them. */
extern const struct command command_devices, command_info, command_run, command_fit, command_put,
    command_allreduce, command_reducescatter, command_allgather, command_broadcast, command_reduce,
    command_barrier, command_alltoall, command_routing, command_decode, command_replay, command_moe,
    command_control_path, command_transpose, command_spmv, command_overlap, command_histogram,
    command_indexgather;

/* Options that every measuring command takes: --ranks N, --ranks-per-node R,
 * --ib-dev NAME, --gid-index I, --qp K, --control WAY, --proxy-threads N, --proxy-cpu LIST,
 * --connect WAY, --traffic-class N, --service-level N, --wire A,G,B, --order O, --port-per-rank,
 * --timeout S, --json FILE, --csv FILE, --seed N, --no-progress. Values on the command line win
 * over the environment. */
struct common_options {
    struct sstar_config config;
    int ranks;          /* 0: started by a launcher, or the command's default */
    int ranks_per_node; /* 0: real nodes */
    const char *json, *csv;
    uint64_t seed;
    bool no_progress;
};
extern const struct setting common_settings[];
enum { MAX_QUEUE_PAIRS = 16, MAX_GID_INDEX = 255 };
/* --ib-dev, for perftest's -d. */
setting_call option_device;
/* Before a command line is read: the environment. 0, or EXIT_USAGE after a sentence. */
int common_init(struct common_options *options);

/*
 * After parsing. If no launcher started us and the command needs `default_ranks` ranks (or --ranks
 * says how many), run ourselves as so many ranks with the same arguments and return their exit
 * status with *world NULL; in each rank open the world. Returns 0 with *world set, or
 * the exit status to leave with, *world NULL. `argv` is the command's whole argv.
 */
int common_start(struct common_options *options, int default_ranks, int argc, char **argv,
                 struct sstar_world **world, int *exit_status);
/* The end of a command: for `err` (0 or a negative errno) the world's sentence on stderr, the world
 * closed. The exit status: 1 after an error, else `status`. */
int common_finish(struct sstar_world *world, const char *command, int err, int status);

/*
 * The whole of a measuring command, for one whose arguments begin with struct common_options (and
 * are filled with their defaults but for those): the environment is read, the command line parsed,
 * the ranks started and the world opened. `prepare` (or NULL) looks at the arguments before any
 * rank is started and may set the number of ranks; it returns an exit status. `run` is a rank's
 * work: 0 with *status set, or a negative errno whose sentence the world has. The exit status.
 */
struct measurement {
    struct command_line line;
    int default_ranks;
    bool across_nodes; /* each rank is a node, unless it is said how many a node has */
    int (*prepare)(void *arguments, int *default_ranks);
    int (*run)(struct sstar_world *world, void *arguments, int *status);
};
int measurement_main(const struct measurement *measurement, void *arguments, int argc, char **argv);

/* A size with K, M or G (powers of two), a whole number, a real number, the wire triple: 0, or
 * -EINVAL; the whole text must be used up. */
int parse_size(const char *text, uint64_t *value);
int parse_whole(const char *text, long low, long high, long *value);
int parse_real(const char *text, double low, double high, double *value);
int parse_wire(const char *text, struct sstar_wire *wire);

/* Progress line on a terminal's stderr (rank 0 only); nothing elsewhere. */
void progress_show(const struct common_options *options, const struct sstar_world *world,
                   const char *what, double share);
void progress_clear(const struct common_options *options, const struct sstar_world *world);

/* launch.c: start n copies of argv as ranks, forward signals, end all when one fails. A child's
 * environment: RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT SSTAR_TOKEN
 * SSTAR_RANKS_PER_NODE. Returns the exit status to leave with: the first failing rank's. */
int launch_ranks(int n, int ranks_per_node, char **argv);
/* A job's name that no other has: 32 random hex digits. 0 or -errno. */
int launch_token(char *token, size_t size);

#endif
