/* SPDX-License-Identifier: MIT */
/*
 * Command lines as tables: what an option is called, what it sets, and what it may be. Private to
 * tools.
 */
#ifndef SSTAR_TOOLS_SETTINGS_H
#define SSTAR_TOOLS_SETTINGS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct setting;
typedef void setting_take(const struct setting *setting, void *member, const char *text,
                          struct argp_state *state);
typedef void setting_call(void *arguments, const char *text, struct argp_state *state);

/* A line of --help that is no option has only `doc` and `group`. */
struct setting {
    const char *name, *arg, *doc; /* as in struct argp_option */
    int letter;                   /* 's' where there is -s; the sentences then say that */
    int group;
    setting_take *take; /* what SETS, CLEARS and CHOOSES fill in */
    size_t offset;      /* of the member, in the command's arguments */
    setting_call *call; /* or what takes the text */
    double low, high;   /* what a number may be; of one with K, M or G both 0: any */
    const char *what;   /* such a number is, for the sentence: "a size" */
    const char *const *names;
};

/* The member that a setting sets, by its type: bool becomes true, const char * the text, uint32_t
 * and uint64_t a whole number that may end in K, M or G, int and long one that may not and may be
 * negative, double any number. */
#define SETS(TYPE, MEMBER)                                                                         \
    .offset = offsetof(TYPE, MEMBER),                                                              \
    .take = _Generic(((TYPE *)NULL)->MEMBER,                                                       \
        bool: setting_true,                                                                        \
        const char *: setting_text,                                                                \
        int: setting_int,                                                                          \
        long: setting_long,                                                                        \
        uint32_t: setting_u32,                                                                     \
        uint64_t: setting_u64,                                                                     \
        double: setting_real)
/* What a number may be. */
#define FROM_TO(LOW, HIGH)   .low = (LOW), .high = (HIGH)
/* A bool becomes false. */
#define CLEARS(TYPE, MEMBER) .offset = offsetof(TYPE, MEMBER), .take = setting_false
/* An enum becomes the place in NAMES, of those from FIRST on to before END. */
#define CHOOSES(TYPE, MEMBER, NAMES, FIRST, END)                                                   \
    .offset = offsetof(TYPE, MEMBER),                                                              \
    .take = _Generic(((TYPE *)NULL)->MEMBER, uint32_t                                              \
                     : setting_choice),                                                            \
    .names = (NAMES), .low = (FIRST), .high = (END)-1

setting_take setting_true, setting_false, setting_text, setting_int, setting_long, setting_u32,
    setting_u64, setting_real, setting_choice;

/* A command line. */
struct command_line {
    const struct setting *settings; /* to one that is all zero */
    const char *args_doc, *doc;     /* as in struct argp */
    /* The one word that is no option: where it goes, and the question if it is not there. What
     * is too many words is told `too_much`. NULL: there is none; argp's own sentence. */
    const char *operand_missing, *too_much;
    size_t operand;
    void (*check)(void *arguments, struct argp_state *state); /* when all is read, or NULL */
};
/* What a table and `more` (or NULL) say, into `arguments`. 0, or EXIT_USAGE; unless `flags`
 * (ARGP_NO_EXIT) say otherwise the program ends after a sentence. */
int command_line_parse(const struct command_line *line, const struct setting *more, void *arguments,
                       int argc, char **argv, unsigned flags);

/* The settings of the last command line's own table that were given, but for the names of files:
 * "-e 32K -n 100", with a space before each; cut off where there is no more room. */
enum { COMMAND_LINE_GIVEN = 256 };
const char *command_line_given(void);

/* For takers of other kinds: says that `text` is not what the setting takes. */
void setting_refuse(const struct setting *setting, const char *takes, const char *text,
                    struct argp_state *state);
/* "A, B or C". */
void names_text(const char *const *names, int first, int end, char *text, size_t size);
/* The value of an option; what else is given is said, and ends the program. */
long option_whole(const char *option, const char *text, long low, long high,
                  struct argp_state *state);
/* Numbers separated by commas: how many. */
enum { OPTION_REALS_MOST = 16 };
int option_reals(const char *option, const char *text, double low, double high,
                 double values[OPTION_REALS_MOST], struct argp_state *state);

#endif
