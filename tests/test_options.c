/* SPDX-License-Identifier: MIT */
/* Numbers and options of the command line: what is taken, what is refused, what is left alone. */
#include "tools/tool.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
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

/* ---- the common options, as a child of a command's own ----------------------------------------
 */

static error_t parse_parent(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key == ARGP_KEY_INIT)
        state->child_inputs[0] = state->input;
    return key == ARGP_KEY_INIT ? 0 : ARGP_ERR_UNKNOWN;
}

static void parse(struct common_options *common, int argc, char **argv)
{
    static const struct argp_child children[] = {{.argp = &common_argp}, {0}};
    static const struct argp parent = {.parser = parse_parent, .children = children};
    assert_int_equal(argp_parse(&parent, argc, argv, ARGP_NO_EXIT, NULL, common), 0);
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
        cmocka_unit_test(the_command_line_wins),
        cmocka_unit_test(a_bad_variable_is_wrong_usage),
        cmocka_unit_test(a_world_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
