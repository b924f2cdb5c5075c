/* SPDX-License-Identifier: MIT */
/* Settings mean the same in a program whose locale writes numbers with a comma. */
#include "transport/decorators/faults_plan.h"
#include "transport/softnic/softnic.h"
#include "transport/transport.h"
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[64];

static int make(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/de_DE.UTF-8", directory);
    pid_t pid = fork();
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) && freopen("/dev/null", "w", stdout))
            execlp("localedef", "localedef", "-i", "de_DE", "-f", "UTF-8", "--no-archive", path,
                   (char *)NULL);
        _exit(127);
    }
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

/* One that the machine has, or that we make of what it has. */
static int take_comma(void **state)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    *state = NULL;
    snprintf(directory, sizeof directory, "/tmp/sstar-locale-XXXXXX");
    if (!mkdtemp(directory))
        return -1;
    for (int made = 0; made < 2 && !*state; made++) {
        if (made && (make() != 0 || setenv("LOCPATH", directory, 1) != 0))
            break;
        for (size_t i = 0; i < sizeof names / sizeof *names && !*state; i++)
            *state = setlocale(LC_ALL, names[i]);
    }
    return 0;
}

static int drop_comma(void **state)
{
    char command[128];
    (void)state;
    setlocale(LC_ALL, "C");
    snprintf(command, sizeof command, "rm -r '%s'", directory);
    return system(command);
}

static void need_comma(void **state)
{
    char *end;
    if (!*state)
        skip();
    assert_true(strtod("1,5", &end) > 1 && *end == '\0'); /* else this shows nothing */
}

static void test_world(void **state)
{
    struct sstar_config config;
    char error[512] = "";
    need_comma(state);
    setenv("SSTAR_WIRE", "120,10,0.5", 1);
    setenv("SSTAR_TIMEOUT", "2.5", 1);
    int err = sstar_config_init(&config, error, sizeof error);
    unsetenv("SSTAR_WIRE");
    unsetenv("SSTAR_TIMEOUT");
    if (err)
        fail_msg("%s", error);
    assert_true(config.wire.alpha_us == 120 && config.wire.gap_us == 10);
    assert_true(config.wire.beta_gbps == 0.5 && config.timeout_s == 2.5);
}

static void test_softnic(void **state)
{
    char error[256] = "";
    struct softnic_attr attr = {
        .port_name = "test-locale", .error = error, .error_size = sizeof error};
    struct softnic_wire wire = {0};
    need_comma(state);
    setenv("SOFTNIC_ALPHA_US", "2.5", 1);
    setenv("SOFTNIC_BETA_GBPS", "0.25", 1);
    struct ibv_context *context = softnic_open_port(&attr);
    unsetenv("SOFTNIC_ALPHA_US");
    unsetenv("SOFTNIC_BETA_GBPS");
    if (!context)
        fail_msg("%s", error);
    assert_int_equal(softnic_get_wire(context, &wire), 0);
    assert_true(wire.alpha_us == 2.5 && wire.beta_gbps == 0.25);
    assert_int_equal(softnic_close_device(context), 0);
}

static void test_faults(void **state)
{
    struct fault_plan *plan;
    char error[256] = "";
    need_comma(state);
    if (fault_plan_parse("drop p=0.25", 1, &plan, error, sizeof error) != 0)
        fail_msg("%s", error);
    fault_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_world), cmocka_unit_test(test_softnic),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, take_comma, drop_comma);
}
