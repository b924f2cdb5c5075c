/* SPDX-License-Identifier: MIT */
/* Reads routing files. Whatever is not one is refused with the line and what was expected. */
#include "tools/routing.h"
#include "tools/text_file.h"
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS_BEFORE_EXPERTS = 3 };

struct reader {
    struct text_file file;
    struct routing *routing;
    size_t room;           /* lines allocated */
    uint32_t told_experts; /* by the caller or a comment */
    uint32_t largest_expert;
};

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
        return text_refuse(&r->file, -ENOMEM, "out of memory after %zu lines", t->lines);
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
        return text_refuse(&r->file, -EINVAL,
                           "%s is missing at '%.40s' (lines are sequence,token,layer,expert,...)",
                           what, *text);
    if (*behind && *behind != ',')
        return text_refuse(&r->file, -EINVAL,
                           "'%.40s' where a comma or the end of the line should be", behind);
    if (errno || *value < 0 || *value > high)
        return text_refuse(&r->file, -EINVAL, "%s %.*s: there are 0 to %ld", what,
                           (int)(behind - *text), *text, high);
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
        return text_refuse(&r->file, -EINVAL,
                           "%u fields, but the lines before have %u; is it cut off?", fields,
                           t->top + FIELDS_BEFORE_EXPERTS);
    if (fields <= FIELDS_BEFORE_EXPERTS || fields > ROUTING_MAX_TOP + FIELDS_BEFORE_EXPERTS)
        return text_refuse(&r->file, -EINVAL,
                           "%u fields; a line is sequence,token,layer and 1 to %d experts", fields,
                           ROUTING_MAX_TOP);
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
static int check_bytes(const struct text_file *f)
{
    for (size_t i = 0; i < f->bytes; i++) {
        unsigned char c = (unsigned char)f->text[i];
        if (!isdigit(c) && c != ',' && c != '-')
            return text_refuse(f, -EINVAL,
                               isprint(c) ? "'%c' at column %zu: a routing line is numbers and "
                                            "commas"
                                          : "byte 0x%02x at column %zu is not text; is this a "
                                            "routing file?",
                               c, i + 1);
    }
    return 0;
}

static int one_line(struct reader *r)
{
    const struct text_file *f = &r->file;
    if (f->bytes == 0)
        return 0;
    int err = f->text[0] == '#' ? 0 : check_bytes(f);
    if (err)
        return err;
    if (text_check_end(f))
        return -EINVAL;
    if (f->text[0] == '#') {
        comment(r, f->text);
        return 0;
    }
    return data_line(r, f->text);
}

static int all_lines(struct reader *r)
{
    int more, err;
    while ((more = text_next(&r->file)) > 0)
        if ((err = one_line(r)))
            return err;
    if (more)
        return more;
    return r->routing->lines ? 0 : text_refuse(&r->file, -EINVAL, "it holds no routing line");
}

int routing_read(const char *path, uint32_t experts, struct routing *out, char *error,
                 size_t error_size)
{
    struct routing routing = {0};
    struct reader r = {.routing = &routing, .told_experts = experts};
    int err = text_open(&r.file, path, "routing", error, error_size);
    if (err)
        return err;
    err = all_lines(&r);
    text_close(&r.file);
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
