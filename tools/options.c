/* SPDX-License-Identifier: MIT */
/* Options that every measuring command takes, and the start of its ranks. */
#include "tools/record.h"
#include "tools/tool.h"
#include "transport/decorators/faults.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OPTION_RANKS = COMMON_QP + 1,
    OPTION_RANKS_PER_NODE,
    OPTION_WIRE,
    OPTION_CONNECT,
    OPTION_TRAFFIC_CLASS,
    OPTION_SERVICE_LEVEL,
    OPTION_PORT_PER_RANK,
    OPTION_TIMEOUT,
    OPTION_FAULTS,
    OPTION_CHECK_VERBS,
    OPTION_CAPTURE,
    OPTION_CAPTURE_SNAP,
    OPTION_JSON,
    OPTION_CSV,
    OPTION_SEED,
    OPTION_ORDER,
    OPTION_NO_PROGRESS,
    OPTION_CONTROL,
    OPTION_PROXY_THREADS,
    OPTION_PROXY_CPU,
};

enum { MAX_QUEUE_PAIRS = 64, MAX_TIMEOUT_S = 86400, MAX_GID_INDEX = 255 };
enum { MAX_TRAFFIC_CLASS = 255, MAX_SERVICE_LEVEL = 15, MAX_PROXIES = 16 };

static const struct argp_option options[] = {
    {.doc = "World and device:", .group = 10},
    {.name = "ranks", .key = OPTION_RANKS, .arg = "N", .doc = "Start N ranks on this machine"},
    {.name = "ranks-per-node",
     .key = OPTION_RANKS_PER_NODE,
     .arg = "R",
     .doc = "Virtual nodes of R ranks each; between them messages go through the NIC"},
    {.name = "ib-dev",
     .key = COMMON_IB_DEV,
     .arg = "NAME",
     .doc = "Device to use (see sstar devices), or softnic; of A,B,.. rank r takes entry r mod n"},
    {.name = "gid-index", .key = COMMON_GID_INDEX, .arg = "I", .doc = "GID to use; -1: chosen"},
    {.name = "connect",
     .key = OPTION_CONNECT,
     .arg = "exchange|rdmacm",
     .doc = "How queue pairs are connected: by what the ranks tell each other, or by librdmacm"},
    {.name = "traffic-class",
     .key = OPTION_TRAFFIC_CLASS,
     .arg = "N",
     .doc = "Traffic class of the packets: DSCP * 4 + ECN on RoCE"},
    {.name = "service-level",
     .key = OPTION_SERVICE_LEVEL,
     .arg = "N",
     .doc = "Service level: the priority on the wire"},
    {.name = "control",
     .key = OPTION_CONTROL,
     .arg = "direct|proxy",
     .doc = "Who builds work requests and rings: the thread that calls, or a proxy thread"},
    {.name = "proxy-threads",
     .key = OPTION_PROXY_THREADS,
     .arg = "N",
     .doc = "Proxies of each rank (1); implies --control proxy"},
    {.name = "proxy-cpu",
     .key = OPTION_PROXY_CPU,
     .arg = "LIST",
     .doc = "CPUs of the proxies, as in 0,4-5 (default: near the device); implies --control proxy"},
    {.name = "qp", .key = COMMON_QP, .arg = "K", .doc = "Queue pairs of a link across nodes"},
    {.name = "wire",
     .key = OPTION_WIRE,
     .arg = "ALPHA_US,GAP_US,BETA_GBPS",
     .doc = "Shape softnic's wire: start-up time, time between messages, 1e9 bytes per second"},
    {.name = "order",
     .key = OPTION_ORDER,
     .arg = "strict|relaxed,SEED|relaxed-qps,SEED",
     .doc = "Order in which bytes land on softnic: as on one path, or any that the seed picks"},
    {.name = "port-per-rank",
     .key = OPTION_PORT_PER_RANK,
     .doc = "Give each rank a softnic port of its own, not one per node"},
    {.name = "timeout",
     .key = OPTION_TIMEOUT,
     .arg = "S",
     .doc = "Fail when nothing has moved for S seconds"},
    {.name = "faults",
     .key = OPTION_FAULTS,
     .arg = "PLAN|@FILE",
     .doc = "Let the device misbehave, as in 'drop op=write nth=3' (sstar-faults(5))"},
    {.name = "check-verbs",
     .key = OPTION_CHECK_VERBS,
     .doc = "Say what is wrong with how verbs are used, and end with 1"},
    {.doc = "Output:", .group = 20},
    {.name = "capture",
     .key = OPTION_CAPTURE,
     .arg = "FILE",
     .doc = "Write what goes over softnic's wire as RoCEv2 frames, pcapng"},
    {.name = "capture-snap",
     .key = OPTION_CAPTURE_SNAP,
     .arg = "BYTES",
     .doc = "Keep so many bytes of a captured frame (default: all)"},
    {.name = "json",
     .key = OPTION_JSON,
     .arg = "FILE",
     .doc = "Write the record as JSON (-: stdout)"},
    {.name = "csv", .key = OPTION_CSV, .arg = "FILE", .doc = "Write the table as CSV (-: stdout)"},
    {.name = "seed",
     .key = OPTION_SEED,
     .arg = "N",
     .doc = "Seed of all random choices (default 1)"},
    {.name = "no-progress", .key = OPTION_NO_PROGRESS, .doc = "No progress line on the terminal"},
    {0},
};

long option_whole(const char *option, const char *text, long low, long high,
                  struct argp_state *state)
{
    long value = low;
    if (parse_whole(text, low, high, &value))
        argp_error(state, "%s takes a whole number from %ld to %ld, not '%s'", option, low, high,
                   text);
    return value;
}

uint64_t option_size(const char *option, const char *text, uint64_t low, uint64_t high,
                     struct argp_state *state)
{
    uint64_t value = low;
    if (parse_size(text, &value) || value < low || value > high)
        argp_error(state, "%s takes a whole number from %llu to %llu, not '%s'", option,
                   (unsigned long long)low, (unsigned long long)high, text);
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

static void set_connect(struct sstar_config *config, const char *name, struct argp_state *state)
{
    if (strcmp(name, "exchange") == 0)
        config->connect = SSTAR_CONNECT_EXCHANGE;
    else if (strcmp(name, "rdmacm") == 0)
        config->connect = SSTAR_CONNECT_RDMACM;
    else
        argp_error(state, "--connect takes exchange or rdmacm, not '%s'", name);
}

/* The parts of SSTAR_CONTROL, one at a time. */
static void set_control(struct sstar_config *config, int key, const char *arg,
                        struct argp_state *state)
{
    const char *cpus = key == OPTION_PROXY_CPU ? arg : config->proxy_cpus;
    int threads = config->proxy_threads > 0 ? config->proxy_threads : 1;
    char text[128];
    if (key == OPTION_CONTROL && strcmp(arg, "direct") && strcmp(arg, "proxy"))
        argp_error(state, "--control takes direct or proxy, not '%s'", arg);
    if (key == OPTION_PROXY_THREADS)
        threads = (int)option_whole("--proxy-threads", arg, 1, MAX_PROXIES, state);
    snprintf(text, sizeof(text), "proxy,%d%s%.80s", threads, *cpus ? "," : "", cpus);
    if (sstar_control_parse(text, config))
        argp_error(state, "--proxy-cpu takes a list of CPUs as in 0,4-5, not '%s'", arg);
    if (key == OPTION_CONTROL && strcmp(arg, "direct") == 0)
        config->control = SSTAR_CONTROL_DIRECT;
}

static void set_device(struct sstar_config *config, const char *name, struct argp_state *state)
{
    if (!name[0] || strlen(name) >= sizeof(config->ib_dev))
        argp_error(state, "--ib-dev takes the name of a device, at most %zu characters, not '%s'",
                   sizeof(config->ib_dev) - 1, name);
    else
        strcpy(config->ib_dev, name);
}

static void set_faults(struct sstar_config *config, const char *plan, struct argp_state *state)
{
    struct fault_plan *parsed;
    char error[256];
    if (fault_plan_parse(plan, 0, &parsed, error, sizeof(error))) {
        argp_error(state, "--faults: %s", error);
        return;
    }
    fault_plan_free(parsed);
    config->faults = plan;
}

static void set_wire(struct sstar_config *config, const char *arg, struct argp_state *state)
{
    if (parse_wire(arg, &config->wire))
        argp_error(state,
                   "--wire takes three numbers, ALPHA_US,GAP_US,BETA_GBPS as in 120,10,0.1 "
                   "(0,0,0: unshaped, else the last above 0), not '%s'",
                   arg);
}

static void set_order(struct sstar_config *config, const char *arg, struct argp_state *state)
{
    if (sstar_order_parse(arg, &config->order))
        argp_error(state,
                   "--order takes strict, relaxed,SEED or relaxed-qps,SEED with a whole "
                   "number, not '%s'",
                   arg);
}

static void set_timeout(struct sstar_config *config, const char *arg, struct argp_state *state)
{
    if (parse_real(arg, 0.1, MAX_TIMEOUT_S, &config->timeout_s))
        argp_error(state, "--timeout takes seconds from 0.1 to %d, not '%s'", MAX_TIMEOUT_S, arg);
}

error_t common_parse(int key, char *arg, struct argp_state *state, struct common_options *common)
{
    struct sstar_config *config = &common->config;
    switch (key) {
    case OPTION_RANKS:
        common->ranks = (int)option_whole("--ranks", arg, 1, MAX_RANKS, state);
        return 0;
    case OPTION_RANKS_PER_NODE:
        common->ranks_per_node = (int)option_whole("--ranks-per-node", arg, 1, MAX_RANKS, state);
        return 0;
    case COMMON_IB_DEV:
        set_device(config, arg, state);
        return 0;
    case COMMON_GID_INDEX:
        config->gid_index = (int)option_whole("--gid-index", arg, -1, MAX_GID_INDEX, state);
        return 0;
    case OPTION_CONNECT:
        set_connect(config, arg, state);
        return 0;
    case OPTION_CONTROL:
    case OPTION_PROXY_THREADS:
    case OPTION_PROXY_CPU:
        set_control(config, key, arg, state);
        return 0;
    case OPTION_TRAFFIC_CLASS:
        config->traffic_class =
            (int)option_whole("--traffic-class", arg, 0, MAX_TRAFFIC_CLASS, state);
        return 0;
    case OPTION_SERVICE_LEVEL:
        config->service_level =
            (int)option_whole("--service-level", arg, 0, MAX_SERVICE_LEVEL, state);
        return 0;
    case COMMON_QP:
        config->queue_pairs = (int)option_whole("--qp", arg, 1, MAX_QUEUE_PAIRS, state);
        return 0;
    case OPTION_WIRE:
        set_wire(config, arg, state);
        return 0;
    case OPTION_ORDER:
        set_order(config, arg, state);
        return 0;
    case OPTION_PORT_PER_RANK:
        config->port_per_rank = true;
        return 0;
    case OPTION_TIMEOUT:
        set_timeout(config, arg, state);
        return 0;
    case OPTION_CAPTURE:
        config->capture = arg;
        return 0;
    case OPTION_CAPTURE_SNAP:
        config->capture_snap = (uint32_t)(int)option_whole("--capture-snap", arg, 64, 65535, state);
        return 0;
    case OPTION_CHECK_VERBS:
        config->check_verbs = true;
        return 0;
    case OPTION_FAULTS:
        set_faults(config, arg, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct common_options *common = state->input;
    switch (key) {
    case OPTION_JSON:
        common->json = arg;
        return 0;
    case OPTION_CSV:
        common->csv = arg;
        return 0;
    case OPTION_SEED:
        if (parse_size(arg, &common->seed))
            argp_error(state, "--seed takes a whole number, not '%s'", arg);
        return 0;
    case OPTION_NO_PROGRESS:
        common->no_progress = true;
        return 0;
    default:
        return common_parse(key, arg, state, common);
    }
}

const struct argp common_argp = {.options = options, .parser = parse_option};

int common_init(struct common_options *common)
{
    char error[512];
    *common = (struct common_options){.seed = 1};
    if (sstar_config_init(&common->config, error, sizeof(error))) {
        fprintf(stderr, "sstar: %s\n", error);
        return EXIT_USAGE;
    }
    common->ranks_per_node = common->config.ranks_per_node;
    return 0;
}

/* The same command again, as a rank: argv[0] is "sstar NAME" and becomes two words. */
static int start_ranks(int n, int ranks_per_node, int argc, char **argv)
{
    char program[4096], *name = strchr(argv[0], ' ');
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[length < 0 ? 0 : length] = '\0';
    if (access(program,
               X_OK)) /* replaced while we run: what we run is still there under this name */
        strcpy(program, "/proc/self/exe");
    char **copy = calloc((size_t)argc + 2, sizeof(*copy));
    if (!copy) {
        fprintf(stderr, "%s: out of memory while starting ranks\n", argv[0]);
        return EXIT_FAILURE;
    }
    copy[0] = program;
    copy[1] = name ? name + 1 : argv[0];
    memcpy(copy + 2, argv + 1, ((size_t)argc - 1) * sizeof(*copy));
    int status = launch_ranks(n, ranks_per_node, copy);
    free(copy);
    return status;
}

static int check_shape(const struct common_options *common, int ranks, const char *command)
{
    if (common->ranks && common->ranks != ranks) {
        fprintf(stderr,
                "%s: --ranks %d, but the launcher (%s) started %d; leave --ranks out or start %d\n",
                command, common->ranks, common->config.launcher, ranks, common->ranks);
        return EXIT_USAGE;
    }
    if (common->ranks_per_node > ranks) {
        fprintf(stderr,
                "%s: --ranks-per-node %d is more than the %d rank%s there are; take at most "
                "that\n",
                command, common->ranks_per_node, ranks, ranks == 1 ? "" : "s");
        return EXIT_USAGE;
    }
    return 0;
}

/* Where every rank can have a core of its own it gets one: two that spin on the same core cost each
 * other far more than what is measured. Only ranks of our own launcher, all on this machine. After
 * the world is open, which counts the cores that it may use. */
static void take_core(const struct sstar_config *config)
{
    cpu_set_t allowed, mine;
    int nth = config->rank;
    if (strcmp(config->launcher, "sstar") != 0 || sched_getaffinity(0, sizeof(allowed), &allowed) ||
        config->size > CPU_COUNT(&allowed))
        return;
    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || nth--)
            continue;
        CPU_SET(cpu, &mine);
        sched_setaffinity(0, sizeof(mine), &mine); /* as good as it gets */
        return;
    }
}

/* Ports append to it when they are opened, which is after the world has met. */
static int capture_begin_file(const struct sstar_config *config, const char *command)
{
    if (!config->capture)
        return 0;
    int fd = open(config->capture, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        fprintf(stderr, "%s: the capture %s cannot be written: %s\n", command, config->capture,
                strerror(errno));
        return -errno;
    }
    close(fd);
    return 0;
}

static int start(struct common_options *common, int default_ranks, int argc, char **argv,
                 struct sstar_world **world)
{
    struct sstar_config *config = &common->config;
    bool launched = strcmp(config->launcher, "none") != 0;
    int ranks = launched ? config->size : common->ranks ? common->ranks : default_ranks;
    int status = check_shape(common, ranks, argv[0]);
    if (!status && (!launched || config->rank == 0))
        status = record_can_write(argv[0], common->json, common->csv);
    if (status)
        return status;
    if (!launched && ranks > 1 && !common->ranks_per_node &&
        (config->wire.beta_gbps > 0 || config->order.relaxed || config->capture)) {
        /* One node would never use the wire that was asked for. */
        common->ranks_per_node = (ranks + 1) / 2;
        fprintf(stderr, "%s: %s and no --ranks-per-node: taking 2 nodes of %d\n", argv[0],
                config->order.relaxed ? "a relaxed order"
                : config->capture     ? "a capture"
                                      : "a wire",
                common->ranks_per_node);
    }
    config->ranks_per_node = common->ranks_per_node;
    config->faults_seed = common->seed;
    if (!launched && ranks > 1)
        return start_ranks(ranks, common->ranks_per_node, argc, argv);
    if (!launched) /* softnic's ports are named by it: not to meet another lone rank's */
        launch_token(config->token, sizeof(config->token));
    if (config->rank == 0 && capture_begin_file(config, argv[0]))
        return EXIT_FAILURE;
    char error[512];
    if (sstar_world_open(world, config, error, sizeof(error))) {
        fprintf(stderr, "%s: %s\n", argv[0], error);
        return EXIT_FAILURE;
    }
    take_core(config);
    return 0;
}

int common_finish(struct sstar_world *world, const char *command, int err, int status)
{
    if (err) {
        const char *why = sstar_last_error(world);
        fprintf(stderr, "%s: rank %d: %s\n", command, sstar_rank(world),
                *why ? why : strerror(-err));
    }
    sstar_world_close(world);
    return err ? EXIT_FAILURE : status;
}

int common_start(struct common_options *common, int default_ranks, int argc, char **argv,
                 struct sstar_world **world, int *exit_status)
{
    *world = NULL;
    *exit_status = start(common, default_ranks, argc, argv, world);
    return *exit_status;
}
