/* SPDX-License-Identifier: MIT */
/*
 * One record, three faces: a table on stdout, --json, --csv. Private to tools.
 *
 * A report holds named members (numbers, text, objects) and named lists of rows. The table that a
 * person reads, the JSON file and the CSV file are written from it, so they cannot differ.
 */
#ifndef SSTAR_TOOLS_RECORD_H
#define SSTAR_TOOLS_RECORD_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

/* A column of a table: `key` of the row's JSON object, its heading, printf format for the number
 * ("%.2f", or "%s" for text), width. */
struct column {
    const char *key, *heading, *format;
    int width;
};

/* "# " headings, then (table_row) one row, right-aligned; missing members print "-". */
void table_head(FILE *out, const struct column *columns, int n);
void table_row(FILE *out, const struct column *columns, int n, const json_t *row);
/* Whole report as JSON to `path` ("-": stdout), and the list `key` of it as CSV with a header line;
 * 0, or 1 after a sentence on stderr. A path of NULL does nothing. */
int record_write_json(const json_t *report, const char *path);
int record_write_csv(const json_t *report, const char *key, const char *path);
/* Where one of them is "-" stdout is the record's alone, and what is printed there from now on goes
 * to stderr. 0 or -errno. */
int record_claim_stdout(const char *json, const char *csv);
/* Before long work: can these files be written at all? 0, or an exit status after a sentence. NULL,
 * "-" and pipes pass; one file for both does not. */
int record_can_write(const char *command, const char *json, const char *csv);
/* Numbers rounded to what is meaningful (6 significant digits). */
json_t *record_real(double value);
/* Text of others: a path, say, need not be UTF-8 as JSON is. Then what is not ASCII is written
 * \xNN. */
json_t *record_string(const char *text);
/* Members of a row. */
void record_number(json_t *row, const char *key, double value);
void record_count(json_t *row, const char *key, uint64_t value);
void record_text(json_t *row, const char *key, const char *text);
/* "2 nodes", for the head of a table; of one node also how to have more, since there no NIC is
 * used. */
struct nodes_text {
    char text[64];
};
struct nodes_text nodes_text(int nodes);
/* Members that every report carries: program version, command line, device class, host, date,
 * ranks, ranks per node, wire. `world` may be NULL. */
struct sstar_world;
json_t *record_new(struct sstar_world *world, const char *command);

#endif
