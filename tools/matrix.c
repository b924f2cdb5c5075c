/* SPDX-License-Identifier: MIT */
/* sstar transpose and sstar spmv: the command line. */
#include "tools/matrix.h"
#include "tools/strategies.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_STRATEGY = 0x7100, OPTION_REPEAT, OPTION_FLUSH_BYTES, OPTION_ROWS };
enum { MOST_REPEATS = 100000 };

static const struct argp_option options[] = {
    {.name = "strategy",
     .key = OPTION_STRATEGY,
     .arg = "LIST",
     .doc = "none, rank, node, mesh, adaptive, or several with commas, run in turn (all)"},
    {.name = "rows",
     .key = OPTION_ROWS,
     .arg = "cyclic|block",
     .doc = "Row i on rank i mod N, or rows in N blocks (cyclic)"},
    {.name = "flush-bytes",
     .key = OPTION_FLUSH_BYTES,
     .arg = "BYTES",
     .doc = "A buffer is sent by the message that makes it this long (4*S*)"},
    {.name = "repeat",
     .key = OPTION_REPEAT,
     .arg = "N",
     .doc = "Run each strategy N times and show the median (3)"},
    {0},
};

static void set_rows(struct matrix_arguments *a, const char *text, struct argp_state *state)
{
    a->blocks = strcmp(text, "block") == 0;
    if (!a->blocks && strcmp(text, "cyclic") != 0)
        argp_error(state, "--rows takes cyclic or block, not '%s'", text);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct matrix_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_STRATEGY:
        option_strategies(arg, a->strategies, state);
        return 0;
    case OPTION_ROWS:
        set_rows(a, arg, state);
        return 0;
    case OPTION_FLUSH_BYTES:
        a->flush_bytes = (uint32_t)option_size("--flush-bytes", arg, 64, 64 << 20, state);
        return 0;
    case OPTION_REPEAT:
        a->repeat = (uint32_t)option_whole("--repeat", arg, 1, MOST_REPEATS, state);
        return 0;
    case ARGP_KEY_ARG:
        if (a->path)
            argp_error(state, "'%s' is too much; one matrix is taken", arg);
        a->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->path)
            argp_error(state, "which matrix? Give a Matrix Market file");
        strategies_default(a->strategies);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{.argp = &common_argp}, {0}};
static const char epilogue[] =
    "\vFILE is a Matrix Market file, plain or gzip: coordinate real, integer or pattern, general, "
    "symmetric or skew-symmetric. Without a launcher it starts its own ranks (8, or --ranks; "
    "--ranks-per-node R makes virtual nodes). Every rank reads the file, and knows so what it must "
    "receive. Time runs from a barrier until the slowest rank has all that is due. Shares are of "
    "the bytes that cross nodes: how many travelled in wire messages of at least S*, or S*rate. "
    "Exit status 1 if a value is wrong.";

/* A file that cannot be read is refused once, not by each rank. */
static int prepare(void *arguments, int *default_ranks)
{
    const struct matrix_arguments *a = arguments;
    struct matrix matrix;
    char error[512];
    (void)default_ranks;
    if (strcmp(a->common.config.launcher, "none") != 0)
        return 0;
    if (matrix_read(a->path, &matrix, error, sizeof error)) {
        fprintf(stderr, "sstar %s: %s\n", a->command == MATRIX_SPMV ? "spmv" : "transpose", error);
        return EXIT_FAILURE;
    }
    matrix_free(&matrix);
    return 0;
}

static int matrix_main(enum matrix_command command, const char *doc, int argc, char **argv)
{
    struct matrix_arguments a = {.command = command, .repeat = 3};
    char whole_doc[2048];
    snprintf(whole_doc, sizeof whole_doc, "%s%s", doc, epilogue);
    const struct argp argp = {.options = options,
                              .parser = parse_option,
                              .args_doc = "FILE",
                              .children = children,
                              .doc = whole_doc};
    const struct measurement measurement = {
        .argp = &argp, .default_ranks = 8, .prepare = prepare, .run = matrix_run};
    return measurement_main(&measurement, &a, argc, argv);
}

static int transpose_main(int argc, char **argv)
{
    return matrix_main(MATRIX_TRANSPOSE,
                       "Transpose a sparse matrix whose rows are distributed over the ranks: each "
                       "entry (16 B) is a message to the rank of its column, under one strategy "
                       "after the other.",
                       argc, argv);
}

static int spmv_main(int argc, char **argv)
{
    return matrix_main(MATRIX_SPMV,
                       "Multiply a sparse matrix by a vector, y = A x: the rank that has x_j sends "
                       "each product a_ij x_j (12 B) to the rank that has y_i, under one strategy "
                       "after the other.",
                       argc, argv);
}

const struct command command_transpose = {"transpose", transpose_main,
                                          "transpose a sparse matrix, a message for each entry"};
const struct command command_spmv = {"spmv", spmv_main,
                                     "sparse matrix times vector, a message for each product"};
