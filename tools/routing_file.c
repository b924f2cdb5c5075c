/* SPDX-License-Identifier: MIT */
/* Reads routing files. Whatever is not one is refused with the line and what was expected. */
#include "tools/routing.h"
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { LINE_MOST_BYTES = 4096, FIELDS_BEFORE_EXPERTS = 3 };

struct reader {
    const char *path;
    gzFile file;
    struct routing *routing;
    size_t room; /* lines allocated */
    unsigned long line;
    uint32_t told_experts; /* by the caller or a comment */
    uint32_t largest_expert;
    char *error;
    size_t error_size;
};

static int refuse(struct reader *r, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int refuse(struct reader *r, int code, const char *format, ...)
{
    int n = r->line ? snprintf(r->error, r->error_size, "%s:%lu: ", r->path, r->line)
                    : snprintf(r->error, r->error_size, "%s: ", r->path);
    if (n > 0 && (size_t)n < r->error_size) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(r->error + n, r->error_size - (size_t)n, format, arguments);
        va_end(arguments);
    }
    return code;
}

void routing_free(struct routing *routing)
{
    free(routing->sequence);
    free(routing->token);
    free(routing->layer);
    free(routing->expert);
    *routing = (struct routing){0};
}

static int grow(struct reader *r)
{
    struct routing *t = r->routing;
    size_t room = r->room ? 2 * r->room : 4096;
    uint32_t *sequence = realloc(t->sequence, room * sizeof *sequence);
    t->sequence = sequence ? sequence : t->sequence;
    uint32_t *token = realloc(t->token, room * sizeof *token);
    t->token = token ? token : t->token;
    uint16_t *layer = realloc(t->layer, room * sizeof *layer);
    t->layer = layer ? layer : t->layer;
    uint16_t *expert = realloc(t->expert, room * t->top * sizeof *expert);
    t->expert = expert ? expert : t->expert;
    if (!sequence || !token || !layer || !expert)
        return refuse(r, -ENOMEM, "out of memory after %zu lines", t->lines);
    r->room = room;
    return 0;
}

/* One whole number of a line; *text moves behind it and its comma. */
static int number(struct reader *r, const char **text, long high, const char *what, long *value)
{
    char *behind;
    errno = 0;
    *value = strtol(*text, &behind, 10);
    if (behind == *text)
        return refuse(r, -EINVAL,
                      "%s is missing at '%.40s' (lines are sequence,token,layer,expert,...)", what,
                      *text);
    if (*behind && *behind != ',')
        return refuse(r, -EINVAL, "'%.40s' where a comma or the end of the line should be", behind);
    if (errno || *value < 0 || *value > high)
        return refuse(r, -EINVAL, "%s %.*s: there are 0 to %ld", what, (int)(behind - *text), *text,
                      high);
    *text = *behind ? behind + 1 : behind;
    return 0;
}

static uint32_t count_fields(const char *text)
{
    uint32_t n = 1;
    for (; *text; text++)
        n += *text == ',';
    return n;
}

static int check_fields(struct reader *r, const char *text)
{
    struct routing *t = r->routing;
    uint32_t fields = count_fields(text);
    if (t->top && fields != t->top + FIELDS_BEFORE_EXPERTS)
        return refuse(r, -EINVAL, "%u fields, but the lines before have %u; is it cut off?", fields,
                      t->top + FIELDS_BEFORE_EXPERTS);
    if (fields <= FIELDS_BEFORE_EXPERTS || fields > ROUTING_MAX_TOP + FIELDS_BEFORE_EXPERTS)
        return refuse(r, -EINVAL, "%u fields; a line is sequence,token,layer and 1 to %d experts",
                      fields, ROUTING_MAX_TOP);
    t->top = fields - FIELDS_BEFORE_EXPERTS;
    return 0;
}

static int data_line(struct reader *r, const char *text)
{
    struct routing *t = r->routing;
    int err = check_fields(r, text);
    if (err || (t->lines == r->room && (err = grow(r))))
        return err;
    long sequence, token, layer, expert;
    long expert_most = r->told_experts ? (long)r->told_experts - 1 : ROUTING_MAX_EXPERTS - 1;
    if ((err = number(r, &text, INT32_MAX - 1, "sequence", &sequence)) ||
        (err = number(r, &text, INT32_MAX - 1, "token", &token)) ||
        (err = number(r, &text, ROUTING_MAX_LAYERS - 1, "layer", &layer)))
        return err;
    t->sequence[t->lines] = (uint32_t)sequence;
    t->token[t->lines] = (uint32_t)token;
    t->layer[t->lines] = (uint16_t)layer;
    for (uint32_t e = 0; e < t->top; e++) {
        if ((err = number(r, &text, expert_most, "expert", &expert)))
            return err;
        t->expert[t->lines * t->top + e] = (uint16_t)expert;
        r->largest_expert = expert > (long)r->largest_expert ? (uint32_t)expert : r->largest_expert;
    }
    t->sequences = (uint32_t)sequence >= t->sequences ? (uint32_t)sequence + 1 : t->sequences;
    t->layers = (uint32_t)layer >= t->layers ? (uint32_t)layer + 1 : t->layers;
    t->lines++;
    return 0;
}

/* "... top-4 of 32 experts ..." tells how many there are, unless the caller did. */
static void comment(struct reader *r, const char *text)
{
    for (const char *of = strstr(text, " of "); of; of = strstr(of + 1, " of ")) {
        char *behind;
        long experts = strtol(of + 4, &behind, 10);
        if (behind != of + 4 && !strncmp(behind, " experts", 8) && experts > 0 &&
            experts <= ROUTING_MAX_EXPERTS && !r->told_experts)
            r->told_experts = (uint32_t)experts;
    }
}

/* A line may hold what a CSV of whole numbers holds; a comment any text. */
static int check_bytes(struct reader *r, const char *text, size_t bytes)
{
    bool is_comment = text[0] == '#';
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (is_comment ? c >= ' ' || c == '\t' : isdigit(c) || c == ',' || c == '-')
            continue;
        if (isprint(c))
            return refuse(r, -EINVAL, "'%c' at column %zu: a routing line is numbers and commas", c,
                          i + 1);
        return refuse(r, -EINVAL, "byte 0x%02x at column %zu is not text; is this a routing file?",
                      c, i + 1);
    }
    return 0;
}

static int one_line(struct reader *r, char *text, size_t bytes)
{
    bool ended = text[bytes - 1] == '\n', full = bytes == LINE_MOST_BYTES - 1;
    while (bytes && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r' || text[bytes - 1] == ' '))
        text[--bytes] = '\0';
    if (bytes == 0)
        return 0;
    int err = check_bytes(r, text, bytes);
    if (err)
        return err;
    if (!ended && full)
        return refuse(r, -EINVAL, "a line of more than %d bytes; is this a routing file?",
                      LINE_MOST_BYTES - 2);
    if (!ended)
        return refuse(r, -EINVAL, "the last line has no end; the file seems to be cut off");
    if (text[0] == '#') {
        comment(r, text);
        return 0;
    }
    return data_line(r, text);
}

/* As gzgets, but with the number of bytes, since there may be a NUL in what is no routing file. */
static int get_line(gzFile file, char *line, int size)
{
    int n = 0;
    while (n < size - 1) {
        int c = gzgetc(file);
        if (c < 0)
            break;
        line[n++] = (char)c;
        if (c == '\n')
            break;
    }
    line[n] = '\0';
    return n;
}

/* What zlib says about the stream: 0, or the error with its sentence. */
static int stream_error(struct reader *r)
{
    int code;
    const char *what = gzerror(r->file, &code);
    if (code == Z_ERRNO) {
        int err = errno;
        r->line = 0;
        return refuse(r, err ? -err : -EIO, "cannot read it: %s", strerror(err ? err : EIO));
    }
    if (code == Z_BUF_ERROR)
        return refuse(r, -EINVAL, "the compressed file ends too early; it seems to be cut off");
    if (code != Z_OK && code != Z_STREAM_END)
        return refuse(r, -EINVAL, "the compressed file is damaged: %s", what);
    return 0;
}

static int all_lines(struct reader *r)
{
    char line[LINE_MOST_BYTES];
    int n, err = 0;
    while ((n = get_line(r->file, line, sizeof line)) > 0) {
        r->line++;
        /* A line that the end of a damaged stream cut off is the stream's fault. */
        if (line[n - 1] != '\n' && (err = stream_error(r)))
            return err;
        if ((err = one_line(r, line, (size_t)n)))
            return err;
    }
    if ((err = stream_error(r)))
        return err;
    r->line = 0;
    return r->routing->lines ? 0 : refuse(r, -EINVAL, "it holds no routing line");
}

int routing_read(const char *path, uint32_t experts, struct routing *out, char *error,
                 size_t error_size)
{
    struct routing routing = {0};
    struct reader r = {.path = path,
                       .routing = &routing,
                       .told_experts = experts,
                       .error = error,
                       .error_size = error_size};
    errno = 0;
    r.file = gzopen(path, "rb");
    if (!r.file) {
        int code = errno ? errno : ENOMEM;
        return refuse(&r, -code, "cannot open it: %s", strerror(code));
    }
    gzbuffer(r.file, 1 << 18);
    int err = all_lines(&r);
    gzclose_r(r.file);
    if (err) {
        routing_free(&routing);
        return err;
    }
    routing.experts = r.told_experts ? r.told_experts : r.largest_expert + 1;
    *out = routing;
    return 0;
}

double routing_skew(const struct routing *t, uint32_t sequence, uint32_t layer, uint32_t groups)
{
    uint64_t *load = calloc(groups, sizeof *load), most = 0, all = 0;
    for (size_t i = 0; load && i < t->lines; i++) {
        if (t->sequence[i] != sequence || t->layer[i] != layer)
            continue;
        for (uint32_t e = 0; e < t->top; e++) {
            uint64_t n = ++load[(uint64_t)t->expert[i * t->top + e] * groups / t->experts];
            most = n > most ? n : most;
            all++;
        }
    }
    free(load);
    return all ? (double)most * groups / (double)all : 0;
}
