/* SPDX-License-Identifier: MIT */
/*
 * sstar transpose and sstar spmv: the entries of a sparse matrix sent where they are needed. The
 * file (matrix_file.c), the exchange (matrix_run.c), the commands (matrix.c). Private to tools.
 */
#ifndef SSTAR_TOOLS_MATRIX_H
#define SSTAR_TOOLS_MATRIX_H

#include "collectives/collectives.h"
#include "tools/tool.h"

struct matrix_entry {
    uint32_t row, column; /* from 0 */
    double value;
};
/* All entries, in the order of rows and then columns, each place once: what a file leaves out
 * because of symmetry is there, what it says twice is summed. */
struct matrix {
    uint32_t rows, columns;
    size_t n;
    struct matrix_entry *entries;
    bool pattern;    /* no values in the file: all are 1 */
    size_t repeated; /* entries of the file whose place had one already */
};

/* Read a file of Matrix Market's coordinate format, plain or gzip: real, integer or pattern;
 * general, symmetric or skew-symmetric. After R. F. Boisvert, R. Pozo, K. A. Remington, The Matrix
 * Market Exchange Formats: Initial Design, NISTIR 5935, 1996. 0, or a negative errno with a
 * sentence (file, line) in `error`. */
int matrix_read(const char *path, struct matrix *out, char *error, size_t error_size);
void matrix_free(struct matrix *matrix);

enum matrix_command { MATRIX_TRANSPOSE, MATRIX_SPMV };

struct matrix_arguments {
    struct common_options common;
    enum matrix_command command;
    const char *path;
    bool strategies[SSTAR_STRATEGIES];
    uint32_t repeat, flush_bytes;
    bool blocks; /* rows are distributed in blocks, else in turn */
};
/* All of it; rank 0 prints and writes. `arguments`: struct matrix_arguments. */
int matrix_run(struct sstar_world *world, void *arguments, int *status);

#endif
