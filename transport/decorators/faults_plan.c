/* SPDX-License-Identifier: MIT */
/*
 * The text of a plan: rules, each a kind of fault and key=value pairs; rules end at a semicolon or
 * a line's end, pairs are parted by spaces or commas, # begins a comment.
 */
#include "transport/decorators/faults_plan.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 65536 };

static const struct {
    const char *name, *needs, *also; /* a key that must be there, or one of two */
} kinds[FAULT_KINDS] = {
    [FAULT_DROP] = {"drop", NULL, NULL},       [FAULT_RNR] = {"rnr", NULL, NULL},
    [FAULT_DELAY] = {"delay", "by", NULL},     [FAULT_LATE] = {"late", "by", NULL},
    [FAULT_ERROR] = {"error", "status", NULL}, [FAULT_FATAL] = {"fatal", NULL, NULL},
    [FAULT_DOWN] = {"down", NULL, NULL},       [FAULT_SLOW] = {"slow", "gbps", "gap"},
    [FAULT_FAIL] = {"fail", "call", NULL},
};

const char *fault_kind_name(enum fault_kind kind)
{
    return kinds[kind].name;
}

/* ---- the text -------------------------------------------------------------------------------- */

struct reader {
    const char *text, *at;
    char *error;
    size_t error_size;
};

static int bad(const struct reader *r, const char *place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int bad(const struct reader *r, const char *place, const char *format, ...)
{
    int line = 1, column = 1;
    for (const char *c = r->text; c < place; c++) {
        column = *c == '\n' ? 1 : column + 1;
        line += *c == '\n';
    }
    int n = snprintf(r->error, r->error_size, "fault plan, line %d column %d: ", line, column);
    va_list arguments;
    va_start(arguments, format);
    if (n > 0 && (size_t)n < r->error_size)
        vsnprintf(r->error + n, r->error_size - (size_t)n, format, arguments);
    va_end(arguments);
    return -EINVAL;
}

static void skip(struct reader *r, const char *also)
{
    for (;;) {
        if (*r->at == '#')
            r->at += strcspn(r->at, "\n");
        else if (*r->at && (strchr(" \t\r,", *r->at) || strchr(also, *r->at)))
            r->at++;
        else
            return;
    }
}

/* The next word, up to what parts words. */
static int word(struct reader *r, char *out, const char **place)
{
    size_t length = strcspn(r->at, " \t\r\n,;#");
    *place = r->at;
    if (length > FAULT_WORD_MAX)
        return bad(r, r->at, "a word of %zu characters; the longest that means something has %d",
                   length, FAULT_WORD_MAX);
    memcpy(out, r->at, length);
    out[length] = '\0';
    r->at += length;
    return 0;
}

static void keys_of(enum fault_kind kind, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < FAULT_KEYS && used < size; i++)
        if (fault_keys[i].kinds & 1 << kind)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "",
                                     fault_keys[i].name);
}

static int find_key(const char *name)
{
    for (int i = 0; i < FAULT_KEYS; i++)
        if (!strcmp(fault_keys[i].name, name))
            return i;
    return -1;
}

static int parse_pair(struct reader *r, struct fault_rule *rule)
{
    char text[FAULT_WORD_MAX + 1], list[256];
    const char *place;
    int err = word(r, text, &place);
    if (err)
        return err;
    char *value = strchr(text, '=');
    if (!value)
        return bad(r, place, "'%s' is no key=value", text);
    *value++ = '\0';
    int key = find_key(text);
    if (key < 0 || !(fault_keys[key].kinds & 1 << rule->kind)) {
        keys_of(rule->kind, list, sizeof list);
        return bad(r, place, "'%s' is no key of %s, which takes %s", text, kinds[rule->kind].name,
                   list);
    }
    if (rule->given & 1u << key)
        return bad(r, place, "%s is given twice", text);
    if (!fault_keys[key].read(rule, value))
        return bad(r, place + (value - text), "'%s': %s takes %s", value, text,
                   fault_keys[key].takes);
    rule->given |= 1u << key;
    return 0;
}

static bool has(const struct fault_rule *rule, const char *key)
{
    return key && rule->given & 1u << find_key(key);
}

/* What of a rule must go together. */
static int check_rule(const struct reader *r, const char *place, const struct fault_rule *rule)
{
    const char *needs = kinds[rule->kind].needs, *also = kinds[rule->kind].also;
    if (needs && !has(rule, needs) && !has(rule, also))
        return bad(r, place, "%s needs %s%s%s", kinds[rule->kind].name, needs, also ? " or " : "",
                   also ? also : "");
    if (has(rule, "nth") + has(rule, "every") + has(rule, "p") > 1)
        return bad(r, place, "nth, every and p are three ways to choose: give one");
    return 0;
}

static int parse_rule(struct reader *r, const char *name, const char *place,
                      struct fault_plan *plan)
{
    int kind = 0;
    while (kind < FAULT_KINDS && strcmp(kinds[kind].name, name) != 0)
        kind++;
    if (kind == FAULT_KINDS)
        return bad(r, place,
                   "'%s' is no fault; there are drop, rnr, delay, late, error, fatal, down, slow, "
                   "fail, and seed=N",
                   name);
    if (plan->n_rules == FAULT_RULES_MAX)
        return bad(r, place, "more than %d faults", FAULT_RULES_MAX);
    struct fault_rule *rule = &plan->rule[plan->n_rules];
    *rule = (struct fault_rule){.kind = (enum fault_kind)kind,
                                .rank = {0, UINT64_MAX},
                                .qp = {0, UINT64_MAX},
                                .nth = {1, UINT64_MAX},
                                .ops = FAULT_OP_ANY,
                                .times = UINT64_MAX,
                                .p = 1,
                                .tries = 1,
                                .error = ENOMEM,
                                .every = 1};
    for (skip(r, ""); *r->at && !strchr(";\n", *r->at); skip(r, "")) {
        int err = parse_pair(r, rule);
        if (err)
            return err;
    }
    plan->n_rules++;
    return check_rule(r, place, rule);
}

static int parse(struct reader *r, struct fault_plan *plan)
{
    for (skip(r, ";\n"); *r->at; skip(r, ";\n")) {
        char text[FAULT_WORD_MAX + 1];
        const char *place;
        int err = word(r, text, &place);
        if (!err && !strncmp(text, "seed=", 5)) {
            if (!fault_read_whole(text + 5, 0, &plan->seed))
                err = bad(r, place + 5, "'%s': seed takes a whole number", text + 5);
        } else if (!err) {
            err = parse_rule(r, text, place, plan);
        }
        if (err)
            return err;
    }
    if (plan->n_rules == 0)
        return bad(r, r->text, "it names no fault");
    return 0;
}

static int read_file(const char *path, char *text, char *error, size_t error_size)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        int err = errno;
        snprintf(error, error_size, "the fault plan %s cannot be read: %s", path, strerror(err));
        return -err;
    }
    size_t n = fread(text, 1, FILE_MAX, file);
    bool all = feof(file) && !ferror(file);
    fclose(file);
    text[n < FILE_MAX ? n : FILE_MAX - 1] = '\0';
    if (all && n < FILE_MAX && !memchr(text, '\0', n))
        return 0;
    snprintf(error, error_size, "the fault plan %s is no text of less than %d bytes", path,
             FILE_MAX);
    return -EINVAL;
}

int fault_plan_parse(const char *text, uint64_t default_seed, struct fault_plan **out, char *error,
                     size_t error_size)
{
    char *contents = NULL;
    int err = -ENOMEM;
    struct fault_plan *plan = calloc(1, sizeof *plan);
    if (plan && text[0] == '@')
        contents = malloc(FILE_MAX);
    if (!plan || (text[0] == '@' && !contents)) {
        snprintf(error, error_size, "out of memory for a fault plan");
        goto free_plan;
    }
    err = contents ? read_file(text + 1, contents, error, error_size) : 0;
    plan->seed = default_seed;
    struct reader reader = {contents ? contents : text, contents ? contents : text, error,
                            error_size};
    if (!err)
        err = parse(&reader, plan);
    if (!err) {
        *out = plan;
        plan = NULL;
    }
free_plan:
    free(contents);
    free(plan);
    return err;
}

void fault_plan_free(struct fault_plan *plan)
{
    free(plan);
}

uint64_t fault_plan_seed(const struct fault_plan *plan)
{
    return plan->seed;
}
