/* SPDX-License-Identifier: MIT */
/* softnic-run: start an unmodified verbs program on softnic. It only sets the environment, whose
 * variables docs/softnic.md lists, and executes. */
#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, EXIT_FOUND_NOT_RUN = 126, EXIT_NOT_FOUND = 127, PORTS_MAX = 16 };

const char *argp_program_version = "softnic-run (sstar) " SSTAR_VERSION;

/* Options whose text goes into a variable as it is: the library checks it. */
static const struct variable {
    int key;
    const char *option, *argument, *name, *doc;
} variables[] = {
    {'a', "alpha-us", "US", "SOFTNIC_ALPHA_US", "Start-up time of a message, in microseconds"},
    {'g', "gap-us", "US", "SOFTNIC_GAP_US", "Time between two messages, in microseconds"},
    {'b', "beta-gbps", "GBPS", "SOFTNIC_BETA_GBPS", "Bytes per second, in units of 1e9"},
    {'o', "order", "ORDER", "SOFTNIC_ORDER", "In what order bytes land"},
    {'l', "place", "WHEN", "SOFTNIC_PLACE", "When bytes land"},
    {'f', "faults", "PLAN", "SOFTNIC_FAULTS", "What goes wrong"},
    {'c', "capture", "FILE", "SOFTNIC_CAPTURE", "Write what goes over the wire to FILE, as pcapng"},
};
enum { N_VARIABLES = sizeof variables / sizeof *variables };

static void set(const char *name, const char *value)
{
    if (setenv(name, value, 1) != 0) {
        fprintf(stderr, "softnic-run: cannot set %s: %s\n", name, strerror(errno));
        exit(EXIT_FAILURE);
    }
}

static void set_ports(const char *text, struct argp_state *state)
{
    char names[PORTS_MAX * sizeof "softnic00,"] = "", *end;
    long ports = strtol(text, &end, 10);
    if (end == text || *end != '\0' || ports < 1 || ports > PORTS_MAX)
        argp_error(state, "--ports takes a whole number from 1 to %d, not '%s'", PORTS_MAX, text);
    for (long i = 0; i < ports; i++) {
        size_t length = strlen(names);
        snprintf(names + length, sizeof names - length, "%ssoftnic%ld", i > 0 ? "," : "", i);
    }
    set("SOFTNIC_PORT", names);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    char ***program = state->input;
    for (int i = 0; i < N_VARIABLES; i++) {
        if (variables[i].key == key) {
            set(variables[i].name, arg);
            return 0;
        }
    }
    switch (key) {
    case 'p':
        set_ports(arg, state);
        return 0;
    case 's':
        set("SOFTNIC_SHARE_PAGES", "1");
        return 0;
    case 'v':
        set("SOFTNIC_CHECK_VERBS", "1");
        return 0;
    case ARGP_KEY_ARG: /* the program; all that follows is its own */
        *program = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_END:
        if (*program == NULL)
            argp_error(state, "no program to run: softnic-run [OPTION...] PROGRAM [ARGUMENT...]");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Beside the program in a build tree, else where it was installed. */
static int find_library(char *path, size_t size)
{
    static const char *const places[] = {"lib/libsoftnic.so", SOFTNIC_FROM_BIN "/libsoftnic.so"};
    char own[PATH_MAX], candidate[PATH_MAX + sizeof SOFTNIC_FROM_BIN + 32], whole[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length < 0)
        return -errno;
    own[length] = '\0';
    *strrchr(own, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(candidate, sizeof candidate, "%s/%s", own, places[i]);
        if (realpath(candidate, whole) == NULL)
            continue;
        return snprintf(path, size, "%s", whole) < (int)size ? 0 : -ENAMETOOLONG;
    }
    return -ENOENT;
}

/* After what is there already: a sanitizer's library must come first. */
static int preload(void)
{
    char path[PATH_MAX], list[2 * PATH_MAX];
    int err = find_library(path, sizeof path);
    if (err != 0) {
        fprintf(stderr, "softnic-run: libsoftnic.so is not where it was built or installed: %s\n",
                strerror(-err));
        return err;
    }
    if (strpbrk(path, " :") != NULL) {
        fprintf(stderr,
                "softnic-run: LD_PRELOAD takes no path with a space or a colon, like %s: install "
                "it elsewhere\n",
                path);
        return -EINVAL;
    }
    const char *before = getenv("LD_PRELOAD");
    if (before != NULL && strstr(before, path) != NULL)
        return 0;
    int n = snprintf(list, sizeof list, "%s%s%s", before != NULL ? before : "",
                     before != NULL && *before != '\0' ? ":" : "", path);
    if (n >= (int)sizeof list) {
        fprintf(stderr, "softnic-run: LD_PRELOAD is too long already\n");
        return -E2BIG;
    }
    set("LD_PRELOAD", list);
    return 0;
}

static void fill_options(struct argp_option *options)
{
    *options++ = (struct argp_option){"ports", 'p', "N", 0, "Show N ports, softnic0 and on", 0};
    for (int i = 0; i < N_VARIABLES; i++)
        *options++ = (struct argp_option){
            variables[i].option, variables[i].key, variables[i].argument, 0, variables[i].doc, 0};
    *options++ = (struct argp_option){
        "share-pages",
        's',
        NULL,
        0,
        "Replace registered pages by shared ones, so that peers copy without the kernel",
        0};
    *options++ = (struct argp_option){"check-verbs",
                                      'v',
                                      NULL,
                                      0,
                                      "Say what the program does wrong with verbs, and end with 1",
                                      0};
    *options = (struct argp_option){0};
}

int main(int argc, char **argv)
{
    struct argp_option options[N_VARIABLES + 4];
    const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "PROGRAM [ARGUMENT...]",
        .doc = "Run a verbs program on softnic, a NIC in user space.",
    };
    char **program = NULL;
    fill_options(options);
    argp_err_exit_status = EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &program) != 0)
        return EXIT_USAGE;
    if (preload() != 0)
        return EXIT_FAILURE;
    /* UCX takes what kind of header a datagram had from a field in which mlx5 alone has it; by the
     * GID of index 0 all have the same. */
    if (getenv("UCX_IB_GID_INDEX") == NULL)
        set("UCX_IB_GID_INDEX", "0");
    execvp(program[0], program);
    int err = errno;
    fprintf(stderr, "softnic-run: cannot run %s: %s\n", program[0], strerror(err));
    return err == ENOENT ? EXIT_NOT_FOUND : EXIT_FOUND_NOT_RUN;
}
