/* SPDX-License-Identifier: MIT */
/* The program: finds the command that was asked for and hands over to it. */
#include "tools/tool.h"
#include <stdio.h>
#include <string.h>

static const struct command *const commands[] = {
    &command_devices, &command_info,      &command_run,      &command_fit,
    &command_put,     &command_allreduce, &command_alltoall, &command_routing,
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
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "  %-10s %s\n", "help",
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

int main(int argc, char **argv)
{
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version = version;
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
