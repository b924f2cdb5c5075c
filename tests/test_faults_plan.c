/* SPDX-License-Identifier: MIT */
/* The text of a plan of faults, and that what it decides follows from its seed. */
#include "transport/decorators/faults_plan.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* CMocka needs the ones above first. */
#include <cmocka.h>

static struct fault_plan *parse(const char *text)
{
    struct fault_plan *plan = NULL;
    char error[256] = "";
    if (fault_plan_parse(text, 77, &plan, error, sizeof error) != 0)
        fail_msg("'%s': %s", text, error);
    return plan;
}

static void test_good(void **state)
{
    (void)state;
    struct fault_plan *plan = parse("seed=0x2a; drop rank=1-3,qp=2 op=write+read nth=5-9 tries=all "
                                    "# the rest of this line is for people; drop\n"
                                    "rnr timer=1.5ms times=3;slow gap=2us gbps=0.5 port=mlx5_*\n"
                                    "fail call=reg_mr errno=ENOSPC every=4 after=2s ;\n"
                                    "error status=REM_ACCESS_ERR p=0.25; down for=10ms\n");
    assert_int_equal(plan->seed, 42);
    assert_int_equal(plan->n_rules, 6);
    const struct fault_rule *r = plan->rule;
    assert_int_equal(r[0].kind, FAULT_DROP);
    assert_true(r[0].rank.first == 1 && r[0].rank.last == 3);
    assert_true(r[0].qp.first == 2 && r[0].qp.last == 2);
    assert_true(r[0].nth.first == 5 && r[0].nth.last == 9);
    assert_int_equal(r[0].ops, FAULT_OP_WRITE | FAULT_OP_READ);
    assert_int_equal(r[0].tries, FAULT_ALL);
    assert_int_equal(r[1].kind, FAULT_RNR);
    assert_int_equal(r[1].time_ns, 1500000);
    assert_int_equal(r[1].times, 3);
    assert_true(r[2].gap_us > 1.99 && r[2].gap_us < 2.01 && r[2].beta_gbps > 0.49);
    assert_string_equal(r[2].port, "mlx5_*");
    assert_true(r[3].call == FAULT_CALL_REG_MR && r[3].error == ENOSPC && r[3].every == 4);
    assert_int_equal(r[3].after_ns, 2000000000);
    assert_true(r[4].status == IBV_WC_REM_ACCESS_ERR && r[4].p > 0.24 && r[4].p < 0.26);
    assert_false(fault_rule_counts(&r[5]));
    fault_plan_free(plan);
    plan = parse("drop");
    assert_int_equal(plan->seed, 77); /* the caller's, where none is named */
    fault_plan_free(plan);
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "line 1 column 1: it names no fault"},
        {"# nothing", "names no fault"},
        {"drip nth=1", "line 1 column 1: 'drip' is no fault"},
        {"drop; rnr; fxil", "line 1 column 12: 'fxil' is no fault"},
        {"drop\nrnr ntj=1", "line 2 column 5: 'ntj' is no key of rnr, which takes rank, port"},
        {"drop nth=0", "line 1 column 10: '0': nth takes a count from 1"},
        {"drop nth=5-3", "column 10: '5-3'"},
        {"drop nth=-1", "column 10: '-1'"},
        {"drop nth", "'nth' is no key=value"},
        {"drop nth=1 nth=2", "column 12: nth is given twice"},
        {"drop nth=1 p=0.5", "three ways to choose"},
        {"drop p=1.5", "'1.5': p takes a probability"},
        {"drop p=nan", "'nan': p takes"},
        {"drop op=recv", "'recv': op takes"},
        {"drop op=write+", "'write+': op takes"},
        {"drop tries=0", "'0': tries takes"},
        {"drop by=1s", "'by' is no key of drop"},
        {"delay nth=2", "delay needs by"},
        {"delay by=5", "'5': by takes a time with its unit"},
        {"delay by=0us", "'0us': by takes"},
        {"delay by=-1us", "'-1us': by takes"},
        {"slow", "slow needs gbps or gap"},
        {"slow gbps=0", "'0': gbps takes"},
        {"fail", "fail needs call"},
        {"fail call=sing", "'sing': call takes post_send"},
        {"fail call=reg_mr errno=EWHAT", "'EWHAT': errno takes"},
        {"error", "error needs status"},
        {"error status=SUCCESS", "'SUCCESS': status takes"},
        {"seed=x; drop", "column 6: 'x': seed takes a whole number"},
        {"@/nowhere/plan", "/nowhere/plan cannot be read: No such file"},
        {"@/dev/zero", "is no text"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fault_plan *plan = NULL;
        char error[256] = "";
        assert_int_not_equal(fault_plan_parse(bad[i].text, 1, &plan, error, sizeof error), 0);
        assert_null(plan);
        if (!strstr(error, bad[i].says))
            fail_msg("'%s' says '%s', not '%s'", bad[i].text, error, bad[i].says);
    }
}

/* Whatever stands there: an answer, and no more. */
static void test_garbage(void **state)
{
    (void)state;
    static const char letters[] = "drop rnrfail=;,#\n@0123456789-+.usmpnthqxe call seed";
    uint64_t seed = 20261130;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 20000; round++) {
        char text[300], error[64];
        size_t length = 0;
        struct fault_plan *plan = NULL;
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        size_t wanted = (seed >> 33) % (sizeof text - 1);
        for (; length < wanted; length++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            text[length] = letters[(seed >> 33) % (sizeof letters - 1)];
        }
        text[length] = '\0';
        if (fault_plan_parse(text, 1, &plan, error, sizeof error) == 0)
            fault_plan_free(plan);
        else
            assert_true(error[0] != '\0' && memchr(error, '\0', sizeof error));
    }
}

static void test_file(void **state)
{
    (void)state;
    char path[] = "/tmp/sstar-faults-XXXXXX", at[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "# a plan\nseed=5\nlate by=1ms\n", 28), 28);
    close(fd);
    snprintf(at, sizeof at, "@%s", path);
    struct fault_plan *plan = parse(at);
    assert_true(plan->seed == 5 && plan->n_rules == 1 && plan->rule[0].kind == FAULT_LATE);
    fault_plan_free(plan);
    unlink(path);
}

static uint64_t draws(const char *text, int rank, uint64_t object)
{
    struct fault_plan *plan = parse(text);
    struct fault_count count = {0};
    uint64_t bits = 0;
    for (int i = 0; i < 64; i++)
        bits = bits << 1 | fault_rule_strikes(plan, 0, rank, object, &count);
    fault_plan_free(plan);
    return bits;
}

static void test_decisions(void **state)
{
    (void)state;
    assert_int_equal(draws("drop nth=1", 0, 0), 1ull << 63);
    assert_int_equal(draws("drop nth=63-64", 0, 0), 3);
    assert_int_equal(draws("drop every=16", 0, 0), 0x0001000100010001);
    assert_int_equal(draws("drop every=16 times=2", 0, 0), 0x0001000100000000);
    assert_int_equal(draws("drop", 0, 0), UINT64_MAX);
    assert_int_equal(draws("drop p=0", 0, 0), 0);
    uint64_t half = draws("seed=9; drop p=0.5", 3, 2);
    int ones = __builtin_popcountll(half);
    assert_true(ones > 16 && ones < 48);
    assert_int_equal(half, draws("seed=9; drop p=0.5", 3, 2));
    assert_int_not_equal(half, draws("seed=10; drop p=0.5", 3, 2));
    assert_int_not_equal(half, draws("seed=9; drop p=0.5", 2, 2));
    assert_int_not_equal(half, draws("seed=9; drop p=0.5", 3, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),      cmocka_unit_test(test_bad),
        cmocka_unit_test(test_garbage),   cmocka_unit_test(test_file),
        cmocka_unit_test(test_decisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
