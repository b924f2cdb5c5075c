/* SPDX-License-Identifier: MIT */
/* Numbers and options of the command line: what is taken, what is refused, what is left alone. */
#include "tools/tool.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void sizes_are_powers_of_two(void **state)
{
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {
        {"0", 0},
        {"8", 8},
        {"4K", 4096},
        {"4k", 4096},
        {"3M", 3u << 20},
        {"2G", 2ull << 30},
        {"007", 7},
        {"18446744073709551615", UINT64_MAX},
        {"17179869183G", 17179869183ull << 30},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t value = 99;
        assert_int_equal(parse_size(good[i].text, &value), 0);
        assert_int_equal(value, good[i].value);
    }
}

static void sizes_that_are_none(void **state)
{
    static const char *const bad[] = {"",
                                      "K",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1KB",
                                      "1T",
                                      "0x10",
                                      "1.5K",
                                      "eight",
                                      "18446744073709551616",
                                      "17179869184G"};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t value = 99;
        assert_int_equal(parse_size(bad[i], &value), -EINVAL);
        assert_int_equal(value, 99);
    }
}

static void whole_numbers(void **state)
{
    static const char *const bad[] = {
        "", "-", "1x", " 1", "+1", "11", "-6", "1.0", "99999999999999999999"};
    long value = 99;
    (void)state;
    assert_int_equal(parse_whole("10", -5, 10, &value), 0);
    assert_int_equal(value, 10);
    assert_int_equal(parse_whole("-5", -5, 10, &value), 0);
    assert_int_equal(value, -5);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse_whole(bad[i], -5, 10, &value), -EINVAL);
        assert_int_equal(value, -5);
    }
}

static void real_numbers(void **state)
{
    static const char *const bad[] = {"",    ".",  "1e", "nan", "inf",  "-inf",
                                      "1,5", " 1", "11", "-1",  "1e999"};
    double value = 99;
    (void)state;
    assert_int_equal(parse_real("1.5", 0, 10, &value), 0);
    assert_true(value == 1.5);
    assert_int_equal(parse_real("1e-3", 0, 10, &value), 0);
    assert_true(value == 1e-3);
    assert_int_equal(parse_real(".5", 0, 10, &value), 0);
    assert_true(value == 0.5);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse_real(bad[i], 0, 10, &value), -EINVAL);
        assert_true(value == 0.5);
    }
}

static void wires(void **state)
{
    static const char *const bad[] = {
        "",        "120",      "120,10",      "120,10,",     "120,10,0.1,",
        ",10,0.1", "120,,0.1", "120,10,0.1 ", "120,10,0.1x", "-1,10,0.1",
        "1,nan,1", "1,10,inf", "120 10 0.1",  "120,10,0"};
    struct sstar_wire wire = {1, 2, 3};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse_wire(bad[i], &wire), -EINVAL);
        assert_true(wire.alpha_us == 1 && wire.gap_us == 2 && wire.beta_gbps == 3);
    }
    assert_int_equal(parse_wire("120,10,0.1", &wire), 0);
    assert_true(wire.alpha_us == 120 && wire.gap_us == 10 && wire.beta_gbps == 0.1);
    assert_int_equal(parse_wire("0,0,0", &wire), 0);
    assert_true(wire.alpha_us == 0 && wire.gap_us == 0 && wire.beta_gbps == 0);
}

/* ---- settings -----------------------------------------------------------------------------------
 */

enum color { RED, GREEN, BLUE };
static const char *const colors[] = {"red", "green", "blue"};

struct things {
    bool on, off;
    const char *text, *file;
    int whole;
    long longer;
    uint32_t size;
    uint64_t any;
    double real;
    enum color color;
    char called[16];
    int checked;
};

static void call(void *arguments, const char *text, struct argp_state *state)
{
    (void)state;
    strcpy(((struct things *)arguments)->called, text);
}

static void count_check(void *arguments, struct argp_state *state)
{
    (void)state;
    ((struct things *)arguments)->checked++;
}

static const struct setting things_settings[] = {
    {"on", NULL, "A bool", SETS(struct things, on)},
    {"no-off", NULL, "One that is cleared", CLEARS(struct things, off)},
    {.doc = "Values:", .group = 1},
    {"text", "TEXT", "A text", .letter = 't', SETS(struct things, text)},
    {"whole", "N", "An int", SETS(struct things, whole), FROM_TO(-5, 5)},
    {"longer", "N", "A long", SETS(struct things, longer), FROM_TO(1, 1 << 20)},
    {"size", "BYTES", "A size", SETS(struct things, size), FROM_TO(64, 64 << 20)},
    {"any", "N", "Any size", SETS(struct things, any)},
    {"real", "X", "A number", SETS(struct things, real), FROM_TO(0.001, 1e9), .what = "seconds"},
    {"color", "NAME", "Of the last two", CHOOSES(struct things, color, colors, 1, 3)},
    {"called", "TEXT", "As it likes", .call = call},
    {0},
};
static const struct command_line things_line = {.settings = things_settings,
                                                .args_doc = "FILE",
                                                .operand = offsetof(struct things, file),
                                                .operand_missing = "which file?",
                                                .too_much = "one file is taken",
                                                .check = count_check};

/* What is said goes to `said`. */
static struct things parse_things(int argc, char **argv, char *said, size_t size)
{
    struct things things = {.off = true, .size = 7, .color = BLUE};
    FILE *file = tmpfile(), *old = stderr;
    assert_non_null(file);
    stderr = file;
    command_line_parse(&things_line, NULL, &things, argc, argv, ARGP_NO_EXIT);
    stderr = old;
    rewind(file);
    said[fread(said, 1, size - 1, file)] = '\0';
    fclose(file);
    return things;
}

static void settings_set_what_they_say(void **state)
{
    char said[512];
    char *argv[] = {"sstar test", "--on",         "--no-off",  "-t",          "a b",
                    "--whole=-5", "--longer=512", "--size=2M", "file",        "--any=3G",
                    "--real=.5",  "--color",      "green",     "--called=me", NULL};
    (void)state;
    struct things things = parse_things(14, argv, said, sizeof said);
    assert_string_equal(said, "");
    assert_true(things.on);
    assert_false(things.off);
    assert_string_equal(things.text, "a b");
    assert_string_equal(things.file, "file");
    assert_int_equal(things.whole, -5);
    assert_int_equal(things.longer, 512);
    assert_int_equal(things.size, 2 << 20);
    assert_int_equal(things.any, 3ull << 30);
    assert_true(things.real == 0.5);
    assert_int_equal(things.color, GREEN);
    assert_string_equal(things.called, "me");
    assert_int_equal(things.checked, 1);
}

static void settings_refuse_the_rest(void **state)
{
    static const struct {
        char *option;
        const char *said;
    } bad[] = {
        {"--whole=6", "--whole takes a whole number from -5 to 5, not '6'"},
        {"--whole=1K", "--whole takes a whole number from -5 to 5, not '1K'"},
        {"--longer=0", "--longer takes a whole number from 1 to 1048576, not '0'"},
        {"--size=63", "--size takes a whole number from 64 to 64M, not '63'"},
        {"--size=4G", "--size takes a whole number from 64 to 64M, not '4G'"},
        {"--any=-1", "--any takes a whole number, not '-1'"},
        {"--real=0", "--real takes seconds from 0.001 to 1000000000, not '0'"},
        {"--color=red", "--color takes green or blue, not 'red'"},
        {"more", "'more' is too much; one file is taken"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char said[512], *argv[] = {"sstar test", "file", bad[i].option, NULL};
        struct things things = parse_things(3, argv, said, sizeof said);
        if (!strstr(said, bad[i].said))
            fail_msg("%s: said '%s', not '%s'", bad[i].option, said, bad[i].said);
        assert_int_equal(things.size, 7);
        assert_int_equal(things.color, BLUE);
        assert_string_equal(things.file, "file");
    }
    char said[512], *argv[] = {"sstar test", NULL};
    parse_things(1, argv, said, sizeof said);
    assert_non_null(strstr(said, "which file?"));
}

/* ---- the common options ------------------------------------------------------------------------
 */

static void parse(struct common_options *common, int argc, char **argv)
{
    const struct command_line line = {.doc = "Nothing"};
    assert_int_equal(command_line_parse(&line, common_settings, common, argc, argv, ARGP_NO_EXIT),
                     0);
}

static void the_command_line_wins(void **state)
{
    struct common_options common;
    char *argv[] = {"sstar test",          "--ranks",           "8",        "--ranks-per-node=4",
                    "--ib-dev=softnic",    "--gid-index=3",     "--qp=2",   "--connect=rdmacm",
                    "--traffic-class=104", "--service-level=3", "--wire",   "120,10,0.1",
                    "--port-per-rank",     "--timeout=2.5",     "--json=a", "--csv=b",
                    "--seed=12345678901",  "--no-progress",     NULL};
    (void)state;
    setenv("SSTAR_QP", "8", 1);
    setenv("SSTAR_TIMEOUT", "7", 1);
    setenv("SSTAR_RANKS_PER_NODE", "2", 1);
    assert_int_equal(common_init(&common), 0);
    assert_int_equal(common.config.queue_pairs, 8);
    assert_int_equal(common.ranks_per_node, 2);
    parse(&common, 18, argv);
    assert_int_equal(common.ranks, 8);
    assert_int_equal(common.ranks_per_node, 4);
    assert_string_equal(common.config.ib_dev, "softnic");
    assert_int_equal(common.config.gid_index, 3);
    assert_int_equal(common.config.queue_pairs, 2);
    assert_int_equal(common.config.connect, SSTAR_CONNECT_RDMACM);
    assert_int_equal(common.config.traffic_class, 104);
    assert_int_equal(common.config.service_level, 3);
    assert_true(common.config.wire.alpha_us == 120 && common.config.wire.gap_us == 10);
    assert_true(common.config.port_per_rank && common.no_progress);
    assert_true(common.config.timeout_s == 2.5);
    assert_string_equal(common.json, "a");
    assert_string_equal(common.csv, "b");
    assert_int_equal(common.seed, 12345678901);
    unsetenv("SSTAR_QP");
    unsetenv("SSTAR_TIMEOUT");
    unsetenv("SSTAR_RANKS_PER_NODE");
}

static void a_bad_variable_is_wrong_usage(void **state)
{
    struct common_options common;
    (void)state;
    setenv("SSTAR_QP", "many", 1);
    assert_int_equal(common_init(&common), EXIT_USAGE);
    unsetenv("SSTAR_QP");
    assert_int_equal(common_init(&common), 0);
    assert_int_equal(common.ranks, 0);
    assert_int_equal(common.seed, 1);
}

/* Only what would be refused before any rank is started. */
static void a_world_that_cannot_be(void **state)
{
    struct common_options common;
    struct sstar_world *world = (struct sstar_world *)&common;
    char *argv[] = {"sstar test", NULL};
    int status;
    (void)state;
    assert_int_equal(common_init(&common), 0);
    common.ranks = 2;
    common.ranks_per_node = 3;
    assert_int_equal(common_start(&common, 1, 1, argv, &world, &status), EXIT_USAGE);
    assert_int_equal(status, EXIT_USAGE);
    assert_null(world);
    strcpy(common.config.launcher, "openmpi");
    common.config.size = 4;
    common.ranks_per_node = 0;
    assert_int_equal(common_start(&common, 1, 1, argv, &world, &status), EXIT_USAGE);
    common.ranks = 4;
    common.json = "/nonexistent/directory/file.json";
    assert_int_equal(common_start(&common, 1, 1, argv, &world, &status), EXIT_FAILURE);
    assert_null(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_powers_of_two),
        cmocka_unit_test(sizes_that_are_none),
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(real_numbers),
        cmocka_unit_test(wires),
        cmocka_unit_test(settings_set_what_they_say),
        cmocka_unit_test(settings_refuse_the_rest),
        cmocka_unit_test(the_command_line_wins),
        cmocka_unit_test(a_bad_variable_is_wrong_usage),
        cmocka_unit_test(a_world_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
