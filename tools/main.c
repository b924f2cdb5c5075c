/* SPDX-License-Identifier: MIT */
/* The program: finds the command that was asked for and hands over to it. */
#include "tools/tool.h"
#include "transport/decorators/check.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct command *const commands[] = {
    &command_devices,      &command_info,        &command_run,           &command_fit,
    &command_put,          &command_allreduce,   &command_reducescatter, &command_allgather,
    &command_broadcast,    &command_reduce,      &command_barrier,       &command_alltoall,
    &command_routing,      &command_decode,      &command_replay,        &command_moe,
    &command_control_path, &command_transpose,   &command_spmv,          &command_overlap,
    &command_histogram,    &command_indexgather,
};
enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static const char version[] = "sstar " SSTAR_VERSION;

static const struct command *find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

static void help(FILE *out)
{
    fprintf(out,
            "Usage: sstar COMMAND [OPTION...]\n"
            "What small messages cost over RDMA verbs, and how far aggregation carries them past "
            "S*.\n\nCommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-13s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "  %-13s %s\n", "help",
            "this list, or the options of one command: sstar help COMMAND");
    fprintf(out, "\nsstar COMMAND --help lists the options of a command; sstar --version the "
                 "version.\nExit status: 0 done, 1 failed, 2 wrong usage, 77 skipped.\n");
}

static int run_command(const struct command *command, int argc, char **argv)
{
    char name[64];
    snprintf(name, sizeof(name), "sstar %s", command->name);
    argv[0] = name;
    return command->main(argc, argv);
}

static int run_help(int argc, char **argv)
{
    if (argc == 1) {
        help(stdout);
        return 0;
    }
    const struct command *command = find(argv[1]);
    if (!command) {
        fprintf(stderr, "sstar help: there is no command '%s'; sstar help lists them\n", argv[1]);
        return EXIT_USAGE;
    }
    char option[] = "--help";
    char *arguments[] = {NULL, option, NULL};
    return run_command(command, 2, arguments);
}

/* Where the caller has closed 0, 1 or 2, the next file opened would get that number, and what is
 * printed would go into a socket. Standard output stays one that cannot be written. */
static int fill_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR) < 0)
            return -errno;
    return 0;
}

/* At every exit, that of --help too. */
static void check_output(void)
{
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return;
    fprintf(stderr, "sstar: cannot write to standard output: %s\n",
            errno ? strerror(errno) : "some of it is lost; is there room for it?");
    _exit(EXIT_FAILURE);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("%s\n", version);
        return 0;
    }
    if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-?"))
        return run_help(argc - 1, argv + 1);
    const struct command *command = find(argv[1]);
    if (!command) {
        fprintf(stderr, "sstar: there is no command '%s'; sstar help lists them\n", argv[1]);
        return EXIT_USAGE;
    }
    return run_command(command, argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version = version;
    int err = fill_standard_files();
    if (err < 0) {
        fprintf(stderr, "sstar: cannot open /dev/null: %s\n", strerror(-err));
        return EXIT_FAILURE;
    }
    atexit(check_output);
    int status = dispatch(argc, argv);
    if (!status && check_findings() > 0)
        status = EXIT_FAILURE; /* --check-verbs has said what */
    return status;
}
