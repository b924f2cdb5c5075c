/* SPDX-License-Identifier: MIT */
/*
 * Text files that commands read, plain or gzip, line by line. What is wrong is said with file and
 * line. Private to tools.
 */
#ifndef SSTAR_TOOLS_TEXT_FILE_H
#define SSTAR_TOOLS_TEXT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <zlib.h>

enum { TEXT_LINE_MOST = 65534 }; /* bytes, without its end */

struct text_file {
    const char *path, *kind; /* what it should be, as in "a routing file" */
    gzFile file;
    unsigned long line; /* number of the current one, from 1; 0: none */
    char *text;         /* it, without its end and the spaces before that */
    size_t bytes;
    bool ended; /* by a newline; only the last may lack it */
    char *error;
    size_t error_size;
};

/* Open it, unless it is a pipe, which each rank would read a part of; the sentence of this and all
 * later failures goes into `error`. 0 or a negative errno. */
int text_open(struct text_file *file, const char *path, const char *kind, char *error,
              size_t error_size);
/* The next line: 1, 0 at the end, or a negative errno (it is no text, a line is too long, the
 * stream is damaged or cut off). */
int text_next(struct text_file *file);
/* 0, or the refusal of a last line without its end: a number at its end may be half a number. */
int text_check_end(const struct text_file *file);
/* Say what is wrong with the current line, or with the whole file once it has ended: `code`. */
int text_refuse(const struct text_file *file, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Accepts a file that could not be opened. */
void text_close(struct text_file *file);

/* Cut a line at its commas into at most `most` fields; how many there are, also if more. */
int text_fields(char *line, char **fields, int most);

#endif
