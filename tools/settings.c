/* SPDX-License-Identifier: MIT */
#include "tools/settings.h"
#include "tools/tool.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is taken, and the sentences about what is not ---------------------------------------
 */

struct text {
    char text[128];
};

static struct text name_of(const struct setting *s)
{
    struct text name;
    if (s->letter)
        snprintf(name.text, sizeof name.text, "-%c", s->letter);
    else
        snprintf(name.text, sizeof name.text, "--%s", s->name);
    return name;
}

/* A bound as it would be given, with K, M or G where that is taken: 64M, 1000000. */
static struct text bound_text(double bound, bool suffixed)
{
    static const char suffixes[] = " KMG";
    struct text out;
    int i = 0;
    while (suffixed && i < 3 && bound >= 1024 && bound / 1024 == floor(bound / 1024)) {
        bound /= 1024;
        i++;
    }
    snprintf(out.text, sizeof out.text, "%.10g%.*s", bound, i > 0, suffixes + i);
    return out;
}

void setting_refuse(const struct setting *s, const char *takes, const char *text,
                    struct argp_state *state)
{
    argp_error(state, "%s takes %s, not '%s'", name_of(s).text, takes, text);
}

static void refuse_number(const struct setting *s, const char *kind, bool suffixed,
                          const char *text, struct argp_state *state)
{
    char takes[128];
    snprintf(takes, sizeof takes, "%s", s->what ? s->what : kind);
    if (s->high > s->low)
        snprintf(takes + strlen(takes), sizeof takes - strlen(takes), " from %.20s to %.20s",
                 bound_text(s->low, suffixed).text, bound_text(s->high, suffixed).text);
    setting_refuse(s, takes, text, state);
}

void setting_true(const struct setting *s, void *member, const char *text, struct argp_state *state)
{
    (void)s, (void)text, (void)state;
    *(bool *)member = true;
}

void setting_false(const struct setting *s, void *member, const char *text,
                   struct argp_state *state)
{
    (void)s, (void)text, (void)state;
    *(bool *)member = false;
}

void setting_text(const struct setting *s, void *member, const char *text, struct argp_state *state)
{
    (void)s, (void)state;
    *(const char **)member = text;
}

void setting_u64(const struct setting *s, void *member, const char *text, struct argp_state *state)
{
    uint64_t value = 0;
    bool bounded = s->high > s->low;
    if (parse_size(text, &value) ||
        (bounded && ((double)value < s->low || (double)value > s->high)))
        refuse_number(s, "a whole number", true, text, state);
    else
        *(uint64_t *)member = value;
}

void setting_u32(const struct setting *s, void *member, const char *text, struct argp_state *state)
{
    uint64_t value = *(uint32_t *)member;
    setting_u64(s, &value, text, state);
    *(uint32_t *)member = (uint32_t)value;
}

void setting_long(const struct setting *s, void *member, const char *text, struct argp_state *state)
{
    if (parse_whole(text, (long)s->low, (long)s->high, member))
        refuse_number(s, "a whole number", false, text, state);
}

void setting_int(const struct setting *s, void *member, const char *text, struct argp_state *state)
{
    long value = *(int *)member;
    setting_long(s, &value, text, state);
    *(int *)member = (int)value;
}

void setting_real(const struct setting *s, void *member, const char *text, struct argp_state *state)
{
    if (parse_real(text, s->low, s->high, member))
        refuse_number(s, "a number", false, text, state);
}

/* "A", "A or B", "A, B or C". */
void names_text(const char *const *names, int first, int end, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = first; i < end; i++)
        snprintf(text + strlen(text), size - strlen(text), "%s%s",
                 i == first     ? ""
                 : i + 1 == end ? " or "
                                : ", ",
                 names[i]);
}

void setting_choice(const struct setting *s, void *member, const char *text,
                    struct argp_state *state)
{
    int first = (int)s->low, end = (int)s->high + 1;
    char all[256];
    for (int i = first; i < end; i++)
        if (!strcmp(text, s->names[i])) {
            *(uint32_t *)member = (uint32_t)i;
            return;
        }
    names_text(s->names, first, end, all, sizeof all);
    setting_refuse(s, all, text, state);
}

long option_whole(const char *option, const char *text, long low, long high,
                  struct argp_state *state)
{
    long value = low;
    if (parse_whole(text, low, high, &value))
        argp_error(state, "%s takes a whole number from %ld to %ld, not '%s'", option, low, high,
                   text);
    return value;
}

int option_reals(const char *option, const char *text, double low, double high,
                 double values[OPTION_REALS_MOST], struct argp_state *state)
{
    char copy[256], *rest = copy, *word;
    int n = 0;
    bool right = strlen(text) < sizeof copy;
    snprintf(copy, sizeof copy, "%s", text);
    while (right && (word = strsep(&rest, ",")))
        right = n < OPTION_REALS_MOST && parse_real(word, low, high, &values[n++]) == 0;
    if (!right)
        argp_error(state,
                   "%s takes up to %d numbers from %g to %.0f, separated by commas, not '%s'",
                   option, OPTION_REALS_MOST, low, high, text);
    return n;
}

/* ---- the line -----------------------------------------------------------------------------------
 */

/* Far more than any command has; options without a letter have keys from KEY_OF_FIRST on. */
enum { SETTINGS_MOST = 128, KEY_OF_FIRST = 0x1000 };

struct parse {
    const struct command_line *line;
    const struct setting *settings[SETTINGS_MOST];
    int n, n_own;
    void *arguments;
    bool operand;
};

static char given[COMMAND_LINE_GIVEN];

const char *command_line_given(void)
{
    return given;
}

/* A file may be elsewhere on another host. */
static void note_given(const struct setting *s, const char *text)
{
    if (s->take != setting_text)
        snprintf(given + strlen(given), sizeof given - strlen(given), " %s%s%s", name_of(s).text,
                 text ? " " : "", text ? text : "");
}

static bool is_end(const struct setting *s)
{
    return !s->name && !s->letter && !s->doc;
}

static void add(struct parse *parse, const struct setting *table)
{
    for (const struct setting *s = table; s && !is_end(s) && parse->n < SETTINGS_MOST; s++)
        parse->settings[parse->n++] = s;
}

static int key_of(const struct parse *parse, int i)
{
    const struct setting *s = parse->settings[i];
    return s->letter ? s->letter : s->name ? KEY_OF_FIRST + i : 0;
}

static void take(struct parse *parse, const struct setting *s, const char *text,
                 struct argp_state *state)
{
    if (s->call)
        s->call(parse->arguments, text, state);
    else if (s->take)
        s->take(s, (char *)parse->arguments + s->offset, text, state);
}

static error_t take_operand(struct parse *parse, const char *text, struct argp_state *state)
{
    const struct command_line *line = parse->line;
    if (!line->too_much)
        return ARGP_ERR_UNKNOWN;
    if (!line->operand_missing || parse->operand) {
        argp_error(state, "'%s' is too much; %s", text, line->too_much);
        return 0;
    }
    *(const char **)((char *)parse->arguments + line->operand) = text;
    parse->operand = true;
    return 0;
}

static void check(struct parse *parse, struct argp_state *state)
{
    if (parse->line->operand_missing && !parse->operand)
        argp_error(state, "%s", parse->line->operand_missing);
    if (parse->line->check)
        parse->line->check(parse->arguments, state);
}

static error_t parse_key(int key, char *text, struct argp_state *state)
{
    struct parse *parse = state->input;
    if (key == ARGP_KEY_ARG)
        return take_operand(parse, text, state);
    if (key == ARGP_KEY_END) {
        check(parse, state);
        return 0;
    }
    for (int i = 0; i < parse->n; i++)
        if (key && key == key_of(parse, i)) {
            take(parse, parse->settings[i], text, state);
            if (i < parse->n_own)
                note_given(parse->settings[i], text);
            return 0;
        }
    return ARGP_ERR_UNKNOWN;
}

int command_line_parse(const struct command_line *line, const struct setting *more, void *arguments,
                       int argc, char **argv, unsigned flags)
{
    struct parse parse = {.line = line, .arguments = arguments};
    struct argp_option options[SETTINGS_MOST + 1] = {0};
    add(&parse, line->settings);
    parse.n_own = parse.n;
    add(&parse, more);
    for (int i = 0; i < parse.n; i++) {
        const struct setting *s = parse.settings[i];
        options[i] = (struct argp_option){.name = s->name,
                                          .key = key_of(&parse, i),
                                          .arg = s->arg,
                                          .doc = s->doc,
                                          .group = s->group};
    }
    const struct argp argp = {
        .options = options, .parser = parse_key, .args_doc = line->args_doc, .doc = line->doc};
    return argp_parse(&argp, argc, argv, flags, NULL, &parse) ? EXIT_USAGE : 0;
}
