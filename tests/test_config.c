/* SPDX-License-Identifier: MIT */
/* Configuration: launchers' environments and our own variables, from tables. */
#include "transport/launcher.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { PAIRS = 12 };
struct pair {
    const char *variable, *value;
};

static const char *lookup(const char *variable, void *arg)
{
    const struct pair *pairs = arg;
    for (int i = 0; i < PAIRS && pairs[i].variable; i++)
        if (strcmp(pairs[i].variable, variable) == 0)
            return pairs[i].value;
    return NULL;
}

static int init(struct sstar_config *config, const struct pair *pairs, char *error)
{
    error[0] = '\0';
    return config_init_from(config, lookup, (void *)pairs, error, 512);
}

struct good {
    struct pair environment[PAIRS];
    const char *launcher;
    int rank, size;
    const char *host, *host_origin;
    int port; /* 0: some port derived from the job */
    const char *token;
};

static const struct good good[] = {
    {{{0}}, "none", 0, 1, "127.0.0.1", "default", 29501, ""},
    {{{"RANK", "3"},
      {"WORLD_SIZE", "8"},
      {"MASTER_ADDR", "node7"},
      {"MASTER_PORT", "29500"},
      {"SSTAR_TOKEN", "abc"}},
     "sstar",
     3,
     8,
     "node7",
     "MASTER_ADDR",
     29501,
     "abc"},
    {{{"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"TORCHELASTIC_RUN_ID", "job5"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "1234"}},
     "torchrun",
     1,
     2,
     "h",
     "MASTER_ADDR",
     1235,
     "job5"},
    /* mpirun inside a Slurm job: every process has SLURM_PROCID=0 */
    {{{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_RANK", "1"},
      {"PMIX_NAMESPACE", "1436024833"},
      {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "1"},
      {"SLURM_JOB_ID", "77"},
      {"SLURM_STEP_ID", "0"}},
     "openmpi",
     1,
     2,
     "127.0.0.1",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     0,
     "1436024833"},
    {{{"OMPI_COMM_WORLD_RANK", "5"},
      {"OMPI_COMM_WORLD_SIZE", "8"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
      {"OMPI_MCA_ess_base_jobid", "99"}},
     "openmpi",
     5,
     8,
     "",
     "default",
     0,
     "99"},
    {{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}},
     "mpich",
     2,
     4,
     "127.0.0.1",
     "MPI_LOCALNRANKS",
     29501,
     ""},
    {{{"PMI_RANK", "2"},
      {"PMI_SIZE", "4"},
      {"PMI_JOBID", "12.0"},
      {"SLURM_STEP_NODELIST", "n[1-2]"},
      {"SLURM_PROCID", "2"}},
     "mpich",
     2,
     4,
     "n1",
     "SLURM_STEP_NODELIST",
     0,
     "12.0"},
    {{{"PMIX_RANK", "2"}, {"PMIX_SIZE", "4"}, {"PMIX_NAMESPACE", "ns"}, {"MASTER_ADDR", "x"}},
     "pmix",
     2,
     4,
     "x",
     "MASTER_ADDR",
     0,
     "ns"},
    {{{"FLUX_TASK_RANK", "0"},
      {"FLUX_JOB_SIZE", "3"},
      {"FLUX_JOB_NNODES", "1"},
      {"FLUX_JOB_ID", "f1"}},
     "flux",
     0,
     3,
     "127.0.0.1",
     "FLUX_JOB_NNODES",
     0,
     "f1"},
    /* srun --mpi=pmix: PMIx names a rank, Slurm knows the size */
    {{{"PMIX_RANK", "2"},
      {"SLURM_PROCID", "2"},
      {"SLURM_STEP_NUM_TASKS", "4"},
      {"SLURM_NTASKS", "16"},
      {"SLURM_STEP_NODELIST", "gpu[03-07,9],login1"},
      {"SLURM_JOB_ID", "77"},
      {"SLURM_STEP_ID", "3"}},
     "slurm",
     2,
     4,
     "gpu03",
     "SLURM_STEP_NODELIST",
     0,
     "77.3"},
    {{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", "a,b"}},
     "slurm",
     1,
     2,
     "a",
     "SLURM_JOB_NODELIST",
     29501,
     ""},
    /* a batch script is no step and so no rank */
    {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}},
     "none",
     0,
     1,
     "127.0.0.1",
     "default",
     29501,
     ""},
    /* empty is not set */
    {{{"RANK", ""}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", ""}, {"SSTAR_QP", ""}},
     "none",
     0,
     1,
     "127.0.0.1",
     "default",
     29501,
     ""},
};

static void test_launchers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        const struct good *g = &good[i];
        struct sstar_config config;
        char error[512];
        print_message("launcher case %zu: %s\n", i, g->launcher);
        assert_int_equal(init(&config, g->environment, error), 0);
        assert_string_equal(config.launcher, g->launcher);
        assert_int_equal(config.rank, g->rank);
        assert_int_equal(config.size, g->size);
        assert_string_equal(config.root_host, g->host);
        assert_string_equal(config.root_host_origin, g->host_origin);
        assert_string_equal(config.token, g->token);
        if (g->port)
            assert_int_equal(config.root_port, g->port);
        else
            assert_in_range(config.root_port, 20000, 29999);
    }
}

struct bad {
    struct pair environment[PAIRS];
    const char *says[3];
};

#define LONG_TEXT "0123456789012345678901234567890123456789012345678901234567890123456789"

static const struct bad bad[] = {
    {{{"RANK", "0"}}, {"RANK is 0", "WORLD_SIZE is not set"}},
    {{{"RANK", "4"}, {"WORLD_SIZE", "4"}}, {"RANK is \"4\"", "WORLD_SIZE is 4", "0 to 3"}},
    {{{"RANK", "-1"}, {"WORLD_SIZE", "4"}}, {"RANK is \"-1\""}},
    {{{"RANK", "1x"}, {"WORLD_SIZE", "4"}}, {"RANK is \"1x\""}},
    {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE is \"0\"", "number of ranks"}},
    {{{"OMPI_COMM_WORLD_RANK", "0"}, {"WORLD_SIZE", "4"}},
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE is not set"}},
    {{{"PMIX_RANK", "0"}}, {"PMIX_RANK", "PMIX_SIZE is not set"}},
    {{{"PMI_RANK", "9"}, {"PMI_SIZE", "4"}}, {"PMI_RANK is \"9\"", "PMI_SIZE is 4"}},
    {{{"SLURM_PROCID", "0"}}, {"SLURM_PROCID", "SLURM_NTASKS is not set"}},
    {{{"MASTER_PORT", "0"}}, {"MASTER_PORT is \"0\"", "1 to 65534"}},
    {{{"MASTER_PORT", "65535"}}, {"MASTER_PORT is \"65535\""}},
    {{{"MASTER_PORT", "99999999999999999999"}}, {"MASTER_PORT"}},
    {{{"SSTAR_TOKEN", LONG_TEXT}}, {"SSTAR_TOKEN has 70 characters", "at most 64"}},
    {{{"SSTAR_RANKS_PER_NODE", "-2"}}, {"SSTAR_RANKS_PER_NODE is \"-2\"", "virtual node"}},
    {{{"SSTAR_RANKS_PER_NODE", "2.5"}}, {"SSTAR_RANKS_PER_NODE is \"2.5\""}},
    {{{"SSTAR_PORTS", "both"}}, {"SSTAR_PORTS is \"both\"", "node", "rank"}},
    {{{"SSTAR_WIRE", "1,2"}}, {"SSTAR_WIRE is \"1,2\"", "ALPHA_US,GAP_US,BETA_GBPS"}},
    {{{"SSTAR_WIRE", "1,2,3,4"}}, {"SSTAR_WIRE"}},
    {{{"SSTAR_WIRE", "1,2,0"}}, {"SSTAR_WIRE"}},
    {{{"SSTAR_WIRE", "1,-2,3"}}, {"SSTAR_WIRE"}},
    {{{"SSTAR_WIRE", "nan,1,1"}}, {"SSTAR_WIRE"}},
    {{{"SSTAR_WIRE", "inf,1,1"}}, {"SSTAR_WIRE"}},
    {{{"SSTAR_IB_GID_INDEX", "-2"}}, {"SSTAR_IB_GID_INDEX"}},
    {{{"SSTAR_QP", "0"}}, {"SSTAR_QP is \"0\"", "from 1 to 16"}},
    {{{"SSTAR_QP", "17"}}, {"SSTAR_QP is \"17\"", "from 1 to 16"}},
    {{{"SSTAR_QP", "many"}}, {"SSTAR_QP is \"many\""}},
    {{{"SSTAR_CONTROL", "proxy,1,1024"}}, {"SSTAR_CONTROL is \"proxy,1,1024\""}},
    {{{"SSTAR_TIMEOUT", "0"}}, {"SSTAR_TIMEOUT is \"0\"", "seconds"}},
    {{{"SSTAR_TIMEOUT", "60s"}}, {"SSTAR_TIMEOUT is \"60s\""}},
    {{{"SSTAR_LOG_LEVEL", "LOUD"}}, {"SSTAR_LOG_LEVEL is \"LOUD\"", "NONE, VERSION, WARN"}},
    {{{"SSTAR_IB_HCA", LONG_TEXT}}, {"SSTAR_IB_HCA"}},
};

static void test_bad_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct sstar_config config, before;
        char error[512];
        memset(&config, 0x5a, sizeof(config));
        memset(&before, 0x5a, sizeof(before));
        print_message("bad case %zu: %s\n", i, bad[i].environment[0].variable);
        assert_int_equal(init(&config, bad[i].environment, error), -EINVAL);
        assert_memory_equal(&config, &before, sizeof(config));
        for (int s = 0; s < 3 && bad[i].says[s]; s++)
            if (!strstr(error, bad[i].says[s]))
                fail_msg("\"%s\" does not say \"%s\"", error, bad[i].says[s]);
    }
}

static void test_our_variables(void **state)
{
    (void)state;
    static const struct pair environment[PAIRS] = {
        {"SSTAR_RANKS_PER_NODE", "4"}, {"SSTAR_PORTS", "rank"},
        {"SSTAR_WIRE", "120,10,0.1"},  {"SSTAR_IB_HCA", "mlx5_0"},
        {"SSTAR_IB_GID_INDEX", "3"},   {"SSTAR_QP", "8"},
        {"SSTAR_TIMEOUT", "2.5"},      {"SSTAR_SOCKET_IFNAME", "=eth0"},
        {"SSTAR_LOG_LEVEL", "info"},   {"SSTAR_LOG_FILE", "/var/log/%h.%p.%r"},
    };
    struct sstar_config c;
    char error[512];
    assert_int_equal(init(&c, environment, error), 0);
    assert_int_equal(c.ranks_per_node, 4);
    assert_true(c.port_per_rank);
    assert_true(c.wire.alpha_us == 120 && c.wire.gap_us == 10 && c.wire.beta_gbps == 0.1);
    assert_string_equal(c.ib_dev, "mlx5_0");
    assert_int_equal(c.gid_index, 3);
    assert_int_equal(c.queue_pairs, 8);
    assert_true(c.timeout_s == 2.5);
    assert_string_equal(c.socket_ifname, "=eth0");
    assert_int_equal(c.log_level, SSTAR_LOG_INFO);
    assert_string_equal(c.log_file, "/var/log/%h.%p.%r");
}

static void test_defaults(void **state)
{
    (void)state;
    static const struct pair environment[PAIRS];
    struct sstar_config c;
    char error[512];
    assert_int_equal(init(&c, environment, error), 0);
    assert_int_equal(c.gid_index, -1);
    assert_int_equal(c.queue_pairs, 4);
    assert_int_equal(c.connect, SSTAR_CONNECT_EXCHANGE);
    assert_int_equal(c.traffic_class, -1);
    assert_int_equal(c.service_level, -1);
    assert_true(c.timeout_s == 60);
    assert_int_equal(c.log_level, SSTAR_LOG_WARN);
    assert_false(c.port_per_rank);
    assert_true(c.wire.alpha_us == 0 && c.wire.gap_us == 0 && c.wire.beta_gbps == 0);
    for (int i = 0; i < sstar_config_count(); i++) {
        const char *variable, *origin;
        char value[256];
        sstar_config_describe(&c, i, &variable, value, sizeof(value), &origin);
        assert_string_equal(origin, "default");
    }
}

static void describe(const struct sstar_config *c, const char *wanted, char *value,
                     const char **origin)
{
    for (int i = 0; i < sstar_config_count(); i++) {
        const char *variable;
        sstar_config_describe(c, i, &variable, value, 256, origin);
        if (strcmp(variable, wanted) == 0)
            return;
    }
    fail_msg("%s is not described", wanted);
}

static void test_describe(void **state)
{
    (void)state;
    static const struct pair environment[PAIRS] = {
        {"PMI_RANK", "1"}, {"PMI_SIZE", "2"},    {"MASTER_ADDR", "h"},
        {"SSTAR_QP", "4"}, {"SSTAR_TOKEN", "s"}, {"SSTAR_WIRE", "5,0.6,1"},
    };
    struct sstar_config c;
    char error[512], value[256];
    const char *origin;
    assert_int_equal(init(&c, environment, error), 0);
    describe(&c, "RANK", value, &origin);
    assert_string_equal(value, "1");
    assert_string_equal(origin, "PMI_RANK");
    describe(&c, "WORLD_SIZE", value, &origin);
    assert_string_equal(origin, "PMI_SIZE");
    describe(&c, "MASTER_ADDR", value, &origin);
    assert_string_equal(origin, "MASTER_ADDR");
    describe(&c, "SSTAR_QP", value, &origin); /* the default's value, but from the environment */
    assert_string_equal(value, "4");
    assert_string_equal(origin, "SSTAR_QP");
    describe(&c, "SSTAR_WIRE", value, &origin);
    assert_string_equal(value, "5,0.6,1");
    describe(&c, "SSTAR_TOKEN", value, &origin); /* it must not show in a terminal or a log */
    assert_string_equal(value, "(set, 1 characters)");
    c.queue_pairs = 2;
    c.timeout_s = 3;
    describe(&c, "SSTAR_QP", value, &origin);
    assert_string_equal(value, "2");
    assert_string_equal(origin, "caller");
    describe(&c, "SSTAR_TIMEOUT", value, &origin);
    assert_string_equal(origin, "caller");
    describe(&c, "SSTAR_PORTS", value, &origin);
    assert_string_equal(value, "node");
    assert_string_equal(origin, "default");
}

static void test_same_job_same_port(void **state)
{
    (void)state;
    struct sstar_config a, b, c;
    char error[512];
    const struct pair one[PAIRS] = {
        {"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "2"}, {"FLUX_JOB_ID", "f1"}};
    const struct pair two[PAIRS] = {
        {"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}, {"FLUX_JOB_ID", "f1"}};
    const struct pair other[PAIRS] = {
        {"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}, {"FLUX_JOB_ID", "f2"}};
    assert_int_equal(init(&a, one, error), 0);
    assert_int_equal(init(&b, two, error), 0);
    assert_int_equal(init(&c, other, error), 0);
    assert_int_equal(a.root_port, b.root_port);
    assert_string_equal(a.token, b.token);
    assert_int_not_equal(a.root_port, c.root_port);
}

static void test_first_host(void **state)
{
    (void)state;
    static const struct {
        const char *list, *host;
    } cases[] = {
        {"one", "one"}, {"a,b", "a"},          {"host[3-7,9]", "host3"}, {"n[01-04]", "n01"},
        {"n[5]", "n5"}, {"n[7,9-11],x", "n7"}, {"r[1-2]n[3-4]", "r1n3"}, {"n[1-3].lan", "n1.lan"},
    };
    char host[64];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(launcher_first_host(cases[i].list, host, sizeof(host)));
        assert_string_equal(host, cases[i].host);
    }
    assert_false(launcher_first_host("", host, sizeof(host)));
    assert_false(launcher_first_host(",a", host, sizeof(host)));
    assert_true(launcher_first_host("n[", host, sizeof(host)));
    assert_string_equal(host, "n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launchers),     cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_our_variables), cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_describe),      cmocka_unit_test(test_same_job_same_port),
        cmocka_unit_test(test_first_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
