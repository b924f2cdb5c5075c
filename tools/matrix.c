/* SPDX-License-Identifier: MIT */
/* sstar transpose and sstar spmv: the command line. */
#include "tools/matrix.h"
#include "tools/strategies.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REPEATS = 100000 };

static void set_rows(void *arguments, const char *text, struct argp_state *state)
{
    struct matrix_arguments *a = arguments;
    a->blocks = strcmp(text, "block") == 0;
    if (!a->blocks && strcmp(text, "cyclic") != 0)
        argp_error(state, "--rows takes cyclic or block, not '%s'", text);
}

#define A(MEMBER) SETS(struct matrix_arguments, MEMBER)

static const struct setting settings[] = {
    {"strategy", "LIST",
     "none, rank, node, mesh, adaptive, or several with commas, run in turn (all)",
     TAKES_STRATEGIES(struct matrix_arguments)},
    {"rows", "cyclic|block", "Row i on rank i mod N, or rows in N blocks (cyclic)",
     .call = set_rows},
    {"flush-bytes", "BYTES", "A buffer is sent by the message that makes it this long (4*S*)",
     A(flush_bytes), FROM_TO(64, 64 << 20)},
    {"repeat", "N", "Run each strategy N times and show the median (3)", A(repeat),
     FROM_TO(1, MOST_REPEATS)},
    {0},
};

static void check_arguments(void *arguments, struct argp_state *state)
{
    (void)state;
    strategies_default(((struct matrix_arguments *)arguments)->strategies);
}

static const char epilogue[] =
    "\vFILE is a Matrix Market file, plain or gzip: coordinate real, integer or pattern, general, "
    "symmetric or skew-symmetric. Without a launcher it starts its own ranks (8, or --ranks; "
    "--ranks-per-node R makes virtual nodes). Every rank reads the file, and so knows what it must "
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
    const struct measurement measurement = {
        .line = {.settings = settings,
                 .args_doc = "FILE",
                 .doc = whole_doc,
                 .operand = offsetof(struct matrix_arguments, path),
                 .operand_missing = "which matrix? Give a Matrix Market file",
                 .too_much = "one matrix is taken",
                 .check = check_arguments},
        .default_ranks = 8,
        .prepare = prepare,
        .run = matrix_run};
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
