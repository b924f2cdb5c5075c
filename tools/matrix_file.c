/* SPDX-License-Identifier: MIT */
/* Reads Matrix Market files. Whatever is not one is refused with the line and what was expected. */
#include "tools/matrix.h"
#include "tools/text_file.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum symmetry { GENERAL, SYMMETRIC, SKEW };

struct reader {
    struct text_file file;
    struct matrix *matrix;
    enum symmetry symmetry;
    bool whole; /* values are integers */
    bool headed, sized;
    size_t told, seen; /* entries of the file */
    size_t room;
};

/* The next word of a line, or NULL. */
static char *next_word(char **text)
{
    char *word;
    while ((word = strsep(text, " \t")) && !*word)
        ;
    return word;
}

static int refuse_banner(const struct text_file *f, const char *word)
{
    return text_refuse(f, -EINVAL,
                       "'%.40s': read are '%%%%MatrixMarket matrix coordinate "
                       "real|integer|pattern general|symmetric|skew-symmetric'",
                       word ? word : "");
}

/* %%MatrixMarket matrix coordinate FIELD SYMMETRY, in capitals or not. */
static int banner(struct reader *r, char *text)
{
    static const char *const start[] = {"%%MatrixMarket", "matrix", "coordinate"};
    const struct text_file *f = &r->file;
    for (int i = 0; i < 3; i++) {
        char *word = next_word(&text);
        if (!word || strcasecmp(word, start[i]))
            return refuse_banner(f, word);
    }
    const char *field = next_word(&text), *symmetry = next_word(&text);
    r->whole = field && !strcasecmp(field, "integer");
    r->matrix->pattern = field && !strcasecmp(field, "pattern");
    if (!field || (!r->whole && !r->matrix->pattern && strcasecmp(field, "real")))
        return refuse_banner(f, field);
    if (symmetry && !strcasecmp(symmetry, "general"))
        r->symmetry = GENERAL;
    else if (symmetry && !strcasecmp(symmetry, "symmetric"))
        r->symmetry = SYMMETRIC;
    else if (symmetry && !strcasecmp(symmetry, "skew-symmetric") && !r->matrix->pattern)
        r->symmetry = SKEW;
    else
        return refuse_banner(f, symmetry);
    r->headed = true;
    return next_word(&text) ? text_refuse(f, -EINVAL, "the first line has more than five words")
                            : 0;
}

static int number(const struct text_file *f, char **text, const char *what, long low, long high,
                  long *value)
{
    const char *word = next_word(text);
    if (!word)
        return text_refuse(f, -EINVAL, "%s is missing", what);
    if (parse_whole(word, low, high, value))
        return text_refuse(f, -EINVAL, "%s is '%.40s'; it is a whole number from %ld to %ld", what,
                           word, low, high);
    return 0;
}

static int size_line(struct reader *r, char *text)
{
    const struct text_file *f = &r->file;
    long rows, columns, entries;
    int err = number(f, &text, "the number of rows", 1, INT32_MAX, &rows);
    if (!err)
        err = number(f, &text, "the number of columns", 1, INT32_MAX, &columns);
    if (!err)
        err = number(f, &text, "the number of entries", 0, 1l << 40, &entries);
    if (!err && next_word(&text))
        err = text_refuse(f, -EINVAL, "more than rows, columns and entries");
    if (!err && r->symmetry != GENERAL && rows != columns)
        err = text_refuse(f, -EINVAL,
                          "a symmetric matrix has as many rows as columns, not %ld and "
                          "%ld",
                          rows, columns);
    if (err)
        return err;
    r->matrix->rows = (uint32_t)rows;
    r->matrix->columns = (uint32_t)columns;
    r->told = (size_t)entries;
    r->sized = true;
    return 0;
}

static int add(struct reader *r, long row, long column, double value)
{
    struct matrix *m = r->matrix;
    if (m->n == r->room) {
        size_t room = r->room ? 2 * r->room : 4096;
        struct matrix_entry *entries = realloc(m->entries, room * sizeof *entries);
        if (!entries)
            return text_refuse(&r->file, -ENOMEM, "no memory for more than %zu entries", m->n);
        m->entries = entries;
        r->room = room;
    }
    m->entries[m->n++] = (struct matrix_entry){(uint32_t)row - 1, (uint32_t)column - 1, value};
    return 0;
}

/* The value at the end of a line. */
static int value_of(const struct reader *r, char *text, double *value)
{
    const char *word = r->matrix->pattern ? NULL : next_word(&text);
    long integer;
    *value = 1;
    if (!r->matrix->pattern && !word)
        return text_refuse(&r->file, -EINVAL, "the value is missing");
    if (word && *word == '+')
        word++;
    if (word && r->whole && parse_whole(word, -(1l << 53), 1l << 53, &integer))
        return text_refuse(&r->file, -EINVAL, "the value '%.40s' is no whole number below 2^53",
                           word);
    if (word && parse_real(word, -1e308, 1e308, value))
        return text_refuse(&r->file, -EINVAL, "the value '%.40s' is no number", word);
    if ((word = next_word(&text)))
        return text_refuse(&r->file, -EINVAL, "'%.40s' is more than an entry has", word);
    return 0;
}

static int entry_line(struct reader *r, char *text)
{
    const struct text_file *f = &r->file;
    long row, column;
    double value;
    if (r->seen == r->told)
        return text_refuse(f, -EINVAL, "an entry more than the %zu that the size line says",
                           r->told);
    int err = number(f, &text, "the row", 1, r->matrix->rows, &row);
    if (!err)
        err = number(f, &text, "the column", 1, r->matrix->columns, &column);
    if (!err)
        err = value_of(r, text, &value);
    if (!err && r->symmetry != GENERAL && (column > row || (r->symmetry == SKEW && column == row)))
        err = text_refuse(f, -EINVAL,
                          "row %ld, column %ld: of a %s matrix only what is below the "
                          "diagonal%s is given",
                          row, column, r->symmetry == SKEW ? "skew-symmetric" : "symmetric",
                          r->symmetry == SKEW ? "" : " or on it");
    if (!err)
        err = add(r, row, column, value);
    if (!err && r->symmetry != GENERAL && row != column)
        err = add(r, column, row, r->symmetry == SKEW ? -value : value);
    r->seen += !err;
    return err;
}

static int one_line(struct reader *r)
{
    struct text_file *f = &r->file;
    if (!r->headed)
        return banner(r, f->text);
    if (f->text[0] == '%' || !f->text[strspn(f->text, " \t")])
        return 0;
    return r->sized ? entry_line(r, f->text) : size_line(r, f->text);
}

static int by_place(const void *a, const void *b)
{
    const struct matrix_entry *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    return (x->column > y->column) - (x->column < y->column);
}

static void sort_and_sum(struct matrix *m)
{
    size_t n = 0;
    if (m->n)
        qsort(m->entries, m->n, sizeof *m->entries, by_place);
    for (size_t i = 0; i < m->n; i++) {
        if (n && !by_place(&m->entries[n - 1], &m->entries[i]))
            m->entries[n - 1].value += m->entries[i].value;
        else
            m->entries[n++] = m->entries[i];
    }
    m->repeated = m->n - n;
    m->n = n;
}

static int all_lines(struct reader *r)
{
    int more, err = 0;
    while (!err && (more = text_next(&r->file)) != 0)
        err = more < 0 ? more : one_line(r);
    if (err)
        return err;
    if (!r->headed)
        return refuse_banner(&r->file, "");
    if (!r->sized)
        return text_refuse(&r->file, -EINVAL, "it has no line with rows, columns and entries");
    if (r->seen != r->told)
        return text_refuse(&r->file, -EINVAL,
                           "%zu entries, but the size line says %zu; it seems to be cut off",
                           r->seen, r->told);
    return 0;
}

int matrix_read(const char *path, struct matrix *out, char *error, size_t error_size)
{
    struct matrix matrix = {0};
    struct reader r = {.matrix = &matrix};
    int err = text_open(&r.file, path, "Matrix Market", error, error_size);
    if (err)
        return err;
    err = all_lines(&r);
    text_close(&r.file);
    if (err) {
        matrix_free(&matrix);
        return err;
    }
    sort_and_sum(&matrix);
    *out = matrix;
    return 0;
}

void matrix_free(struct matrix *matrix)
{
    free(matrix->entries);
    *matrix = (struct matrix){0};
}
