/* SPDX-License-Identifier: MIT */
/* Reads lists of collectives. Whatever is not one is refused with the line and what was expected.
 */
#include "tools/replay.h"
#include "tools/text_file.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS = 7, FIELDS_LEAST = 5, ROWS_MOST = 1 << 24 };
enum { RANK, SEQ, COLL, ELEMENT_BYTES, BYTES, IN_SPLITS, OUT_SPLITS };
static const char heading[] = "rank,seq,coll,elem_bytes,bytes,in_splits_elems,out_splits_elems";
static const long most_bytes = 1l << 36;

struct row {
    unsigned long line;
    long rank, seq, bytes;
    unsigned kind;
    uint32_t element_bytes;
    uint64_t *in, *out; /* of all_to_allv: elements to and from each rank */
    int n_in, n_out;
};

struct reader {
    struct text_file file;
    bool headed;
    struct row *rows;
    size_t n, room;
};

const char *replay_kind_name(unsigned kind)
{
    return kind == REPLAY_ALL_TO_ALL    ? "all_to_all"
           : kind == REPLAY_ALL_TO_ALLV ? "all_to_allv"
                                        : sstar_operation_name((enum sstar_operation)kind);
}

/* Names are the same with and without underlines. */
static bool same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += *a == '_';
        b += *b == '_';
        if (*a != *b)
            return false;
        if (!*a)
            return true;
    }
}

/* ---- a line -------------------------------------------------------------------------------------
 */

static int whole(const struct text_file *f, const char *what, const char *text, long low, long high,
                 long *value)
{
    if (parse_whole(text, low, high, value))
        return text_refuse(f, -EINVAL, "%s is '%.40s'; it is a whole number from %ld to %ld", what,
                           text, low, high);
    return 0;
}

/* Numbers separated by spaces. */
static int splits(const struct text_file *f, const char *what, char *text, uint64_t **list, int *n)
{
    char *word;
    size_t most = 1;
    for (const char *at = text; *at; at++)
        most += *at == ' ';
    uint64_t *numbers = calloc(most, sizeof *numbers);
    if (!numbers)
        return text_refuse(f, -ENOMEM, "no memory for %s", what);
    *list = numbers;
    while ((word = strsep(&text, " "))) {
        long value;
        if (!*word)
            continue;
        int err = whole(f, what, word, 0, most_bytes, &value);
        if (err)
            return err;
        numbers[(*n)++] = (uint64_t)value;
    }
    return 0;
}

static int set_kind(const struct text_file *f, const char *name, struct row *row)
{
    for (unsigned kind = 0; kind < REPLAY_KINDS; kind++)
        if (same_name(name, replay_kind_name(kind))) {
            row->kind = kind;
            return 0;
        }
    return text_refuse(f, -EINVAL,
                       "no collective is called '%.40s'; there are allreduce, reducescatter, "
                       "allgather, broadcast, reduce, barrier, all_to_all, all_to_allv",
                       name);
}

static int check_splits(const struct text_file *f, const struct row *row)
{
    uint64_t sum = 0;
    for (int i = 0; i < row->n_in; i++)
        sum += row->in[i];
    if (row->n_in != row->n_out || !row->n_in)
        return text_refuse(f, -EINVAL, "%d in_splits and %d out_splits; there is one for each rank",
                           row->n_in, row->n_out);
    if (sum * row->element_bytes != (uint64_t)row->bytes)
        return text_refuse(f, -EINVAL,
                           "the in_splits add up to %llu elements of %u bytes, not %ld bytes",
                           (unsigned long long)sum, row->element_bytes, row->bytes);
    return 0;
}

static int parse_row(const struct text_file *f, char **fields, int n, struct row *row)
{
    long element_bytes = 0;
    int err = whole(f, "rank", fields[RANK], 0, MAX_RANKS - 1, &row->rank);
    if (!err)
        err = whole(f, "seq", fields[SEQ], 0, INT32_MAX, &row->seq);
    if (!err)
        err = set_kind(f, fields[COLL], row);
    if (!err)
        err = whole(f, "elem_bytes", fields[ELEMENT_BYTES], 1, 8, &element_bytes);
    if (!err && (element_bytes & (element_bytes - 1)))
        err = text_refuse(f, -EINVAL, "elem_bytes is %ld; it is 1, 2, 4 or 8", element_bytes);
    if (!err)
        err = whole(f, "bytes", fields[BYTES], 0, most_bytes, &row->bytes);
    if (!err && row->bytes % element_bytes)
        err = text_refuse(f, -EINVAL, "%ld bytes are not a whole number of elements of %ld",
                          row->bytes, element_bytes);
    row->element_bytes = (uint32_t)element_bytes;
    if (err || row->kind != REPLAY_ALL_TO_ALLV)
        return err;
    if (n != FIELDS)
        return text_refuse(f, -EINVAL, "all_to_allv needs in_splits and out_splits");
    err = splits(f, "in_splits", fields[IN_SPLITS], &row->in, &row->n_in);
    if (!err)
        err = splits(f, "out_splits", fields[OUT_SPLITS], &row->out, &row->n_out);
    return err ? err : check_splits(f, row);
}

static int one_line(struct reader *r)
{
    struct text_file *f = &r->file;
    char *fields[FIELDS];
    if (f->bytes == 0 || f->text[0] == '#')
        return 0;
    if (!r->headed) {
        r->headed = strcmp(f->text, heading) == 0;
        return r->headed ? 0 : text_refuse(f, -EINVAL, "the first line must be '%s'", heading);
    }
    if (text_check_end(f))
        return -EINVAL;
    int n = text_fields(f->text, fields, FIELDS);
    if (n < FIELDS_LEAST || n > FIELDS)
        return text_refuse(f, -EINVAL, "%d fields; a line has those of the heading, 5 to 7", n);
    if (r->n == r->room) {
        size_t room = r->room ? 2 * r->room : 256;
        struct row *rows = r->n < ROWS_MOST ? realloc(r->rows, room * sizeof *rows) : NULL;
        if (!rows)
            return text_refuse(f, -ENOMEM, "no memory for more than %zu lines", r->n);
        r->rows = rows;
        r->room = room;
    }
    struct row *row = &r->rows[r->n++];
    *row = (struct row){.line = f->line};
    return parse_row(f, fields, n, row);
}

/* ---- the whole ----------------------------------------------------------------------------------
 */

static int by_seq_and_rank(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->seq != y->seq)
        return x->seq < y->seq ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->line > y->line) - (x->line < y->line);
}

/* The rows of one collective, one for each rank in order, agree with each other. */
static int check_row(const struct text_file *f, const struct row *rows, int r, int ranks)
{
    const struct row *it = &rows[r];
    if (it->kind != rows->kind || it->element_bytes != rows->element_bytes)
        return text_refuse(
            f, -EINVAL, "rank %d does %s of elements of %u bytes, but rank 0 (line %lu) %s of %u",
            r, replay_kind_name(it->kind), it->element_bytes, rows->line,
            replay_kind_name(rows->kind), rows->element_bytes);
    if (it->kind != REPLAY_ALL_TO_ALLV && it->bytes != rows->bytes)
        return text_refuse(f, -EINVAL, "rank %d hands in %ld bytes, but rank 0 (line %lu) %ld", r,
                           it->bytes, rows->line, rows->bytes);
    bool blocks = it->kind == REPLAY_ALL_TO_ALL || it->kind == SSTAR_REDUCE_SCATTER;
    if (blocks && (uint64_t)it->bytes % ((uint64_t)ranks * it->element_bytes))
        return text_refuse(f, -EINVAL, "%ld bytes cannot be cut into a block for each of %d ranks",
                           it->bytes, ranks);
    if (it->kind == REPLAY_ALL_TO_ALLV && it->n_in != ranks)
        return text_refuse(f, -EINVAL, "%d splits, but there are %d ranks", it->n_in, ranks);
    for (int s = 0; it->kind == REPLAY_ALL_TO_ALLV && s <= r; s++)
        if (it->in[s] != rows[s].out[r] || rows[s].in[r] != it->out[s])
            return text_refuse(
                f, -EINVAL,
                "what ranks %d and %d send and what they expect of each other (line %lu) differ", r,
                s, rows[s].line);
    return 0;
}

static int check_group(struct text_file *f, const struct row *rows, int ranks)
{
    int err = 0;
    for (int r = 0; r < ranks && !err; r++) {
        f->line = rows[r].line;
        err = check_row(f, rows, r, ranks);
    }
    return err;
}

static int make_entry(struct text_file *f, const struct row *rows, int ranks,
                      struct replay_entry *entry)
{
    size_t n = (size_t)ranks;
    *entry = (struct replay_entry){
        .seq = rows->seq, .kind = rows->kind, .element_bytes = rows->element_bytes};
    for (size_t r = 0; r < n; r++)
        if ((uint64_t)rows[r].bytes > entry->bytes)
            entry->bytes = (uint64_t)rows[r].bytes;
    if (!replay_is_alltoall(entry->kind))
        return 0;
    entry->blocks = calloc(n * n, sizeof *entry->blocks);
    if (!entry->blocks)
        return text_refuse(f, -ENOMEM, "no memory for the blocks of %d ranks", ranks);
    for (size_t from = 0; from < n; from++)
        for (size_t to = 0; to < n; to++)
            entry->blocks[from * n + to] = entry->kind == REPLAY_ALL_TO_ALLV
                                               ? rows[from].in[to] * entry->element_bytes
                                               : (uint64_t)rows[from].bytes / n;
    return 0;
}

/* Every rank once in each collective. */
static int check_ranks(struct text_file *f, const struct row *rows, size_t left, int ranks)
{
    size_t n = 0;
    while (n < left && rows[n].seq == rows->seq)
        n++;
    for (size_t r = 0; r < n || r < (size_t)ranks; r++) {
        f->line = r < n ? rows[r].line : 0;
        if (r < n && r && rows[r].rank == rows[r - 1].rank)
            return text_refuse(f, -EINVAL, "rank %ld has seq %ld twice", rows[r].rank, rows[r].seq);
        if (r >= n || (size_t)rows[r].rank != r)
            return text_refuse(f, -EINVAL,
                               "seq %ld has no line of rank %zu, and there are %d ranks", rows->seq,
                               r, ranks);
    }
    return 0;
}

static int make_entries(struct reader *r, struct replay *replay)
{
    struct text_file *f = &r->file;
    for (size_t i = 0; i < r->n; i++)
        replay->ranks = r->rows[i].rank >= replay->ranks ? (int)r->rows[i].rank + 1 : replay->ranks;
    if (!r->n)
        return text_refuse(f, -EINVAL, "it holds no collective");
    qsort(r->rows, r->n, sizeof *r->rows, by_seq_and_rank);
    replay->entries = calloc(r->n, sizeof *replay->entries);
    int err = replay->entries ? 0 : text_refuse(f, -ENOMEM, "no memory for %zu lines", r->n);
    for (size_t at = 0; !err && at < r->n; at += (size_t)replay->ranks) {
        err = check_ranks(f, r->rows + at, r->n - at, replay->ranks);
        if (!err)
            err = check_group(f, r->rows + at, replay->ranks);
        if (!err)
            err = make_entry(f, r->rows + at, replay->ranks, &replay->entries[replay->n++]);
    }
    return err;
}

int replay_read(const char *path, struct replay *out, char *error, size_t error_size)
{
    struct reader r = {0};
    struct replay replay = {0};
    int more, err = text_open(&r.file, path, "replay", error, error_size);
    if (err)
        return err;
    while (!err && (more = text_next(&r.file)) != 0)
        err = more < 0 ? more : one_line(&r);
    if (!err)
        err = make_entries(&r, &replay);
    for (size_t i = 0; i < r.n; i++) {
        free(r.rows[i].in);
        free(r.rows[i].out);
    }
    free(r.rows);
    text_close(&r.file);
    if (err)
        replay_free(&replay);
    else
        *out = replay;
    return err;
}

void replay_free(struct replay *replay)
{
    for (size_t i = 0; i < replay->n; i++)
        free(replay->entries[i].blocks);
    free(replay->entries);
    *replay = (struct replay){0};
}
