/* SPDX-License-Identifier: MIT */
/* Options that every measuring command takes. */
#include "collectives/collectives.h"
#include "tools/tool.h"
#include "transport/decorators/faults.h"
#include <stdio.h>
#include <string.h>

enum { MAX_TIMEOUT_S = 86400 };
enum { MAX_TRAFFIC_CLASS = 255, MAX_SERVICE_LEVEL = 15, MAX_PROXIES = 16 };

static struct sstar_config *config_of(void *arguments)
{
    return &((struct common_options *)arguments)->config;
}

/* The parts of SSTAR_CONTROL, one at a time. */
static void set_proxy(struct sstar_config *config, long threads, const char *cpus,
                      struct argp_state *state)
{
    char text[128];
    snprintf(text, sizeof(text), "proxy,%ld%s%.80s", threads, *cpus ? "," : "", cpus);
    if (sstar_control_parse(text, config))
        argp_error(state, "--proxy-cpu takes a list of CPUs as in 0,4-5, not '%s'", cpus);
}

static long threads_of(const struct sstar_config *config)
{
    return config->proxy_threads > 0 ? config->proxy_threads : 1;
}

static void set_control(void *arguments, const char *text, struct argp_state *state)
{
    struct sstar_config *config = config_of(arguments);
    if (strcmp(text, "direct") && strcmp(text, "proxy"))
        argp_error(state, "--control takes direct or proxy, not '%s'", text);
    set_proxy(config, threads_of(config), config->proxy_cpus, state);
    if (strcmp(text, "direct") == 0)
        config->control = SSTAR_CONTROL_DIRECT;
}

static void set_proxy_threads(void *arguments, const char *text, struct argp_state *state)
{
    struct sstar_config *config = config_of(arguments);
    long threads = option_whole("--proxy-threads", text, 1, MAX_PROXIES, state);
    set_proxy(config, threads, config->proxy_cpus, state);
}

static void set_proxy_cpus(void *arguments, const char *text, struct argp_state *state)
{
    struct sstar_config *config = config_of(arguments);
    set_proxy(config, threads_of(config), text, state);
}

void option_device(void *arguments, const char *name, struct argp_state *state)
{
    struct sstar_config *config = config_of(arguments);
    if (!name[0] || strlen(name) >= sizeof(config->ib_dev))
        argp_error(state, "--ib-dev takes the name of a device, at most %zu characters, not '%s'",
                   sizeof(config->ib_dev) - 1, name);
    else
        strcpy(config->ib_dev, name);
}

static void set_faults(void *arguments, const char *plan, struct argp_state *state)
{
    struct sstar_config *config = config_of(arguments);
    struct fault_plan *parsed;
    char error[256];
    if (fault_plan_parse(plan, 0, &parsed, error, sizeof(error))) {
        argp_error(state, "--faults: %s", error);
        return;
    }
    fault_plan_free(parsed);
    config->faults = plan;
}

static void set_wire(void *arguments, const char *arg, struct argp_state *state)
{
    struct sstar_config *config = config_of(arguments);
    if (parse_wire(arg, &config->wire))
        argp_error(state,
                   "--wire takes three numbers, ALPHA_US,GAP_US,BETA_GBPS as in 120,10,0.1 "
                   "(0,0,0: unshaped, else the last above 0), not '%s'",
                   arg);
}

static void set_order(void *arguments, const char *arg, struct argp_state *state)
{
    struct sstar_config *config = config_of(arguments);
    if (sstar_order_parse(arg, &config->order))
        argp_error(state,
                   "--order takes strict, relaxed,SEED or relaxed-qps,SEED with a whole "
                   "number, not '%s'",
                   arg);
}

static const char *const connects[] = {"exchange", "rdmacm"};

#define COMMON(MEMBER) SETS(struct common_options, MEMBER)

const struct setting common_settings[] = {
    {.doc = "World and device:", .group = 10},
    {"ranks", "N", "Start N ranks on this machine", COMMON(ranks), FROM_TO(1, MAX_RANKS)},
    {"ranks-per-node", "R",
     "Virtual nodes of R ranks each; between them messages go through the NIC",
     COMMON(ranks_per_node), FROM_TO(1, MAX_RANKS)},
    {"ib-dev", "NAME",
     "Device to use (see sstar devices), or softnic; of A,B,.. rank r takes entry r mod n",
     .call = option_device},
    {"gid-index", "I", "GID to use; -1: chosen (default)", COMMON(config.gid_index),
     FROM_TO(-1, MAX_GID_INDEX)},
    {"connect", "exchange|rdmacm",
     "How queue pairs are connected: by what the ranks tell each other (default), or by "
     "librdmacm",
     CHOOSES(struct common_options, config.connect, connects, 0, 2)},
    {"traffic-class", "N", "Traffic class of the packets: DSCP * 4 + ECN on RoCE",
     COMMON(config.traffic_class), FROM_TO(0, MAX_TRAFFIC_CLASS)},
    {"service-level", "N", "Service level: the priority on the wire", COMMON(config.service_level),
     FROM_TO(0, MAX_SERVICE_LEVEL)},
    {"control", "direct|proxy",
     "Who builds work requests and rings: the thread that calls (default), or a proxy thread",
     .call = set_control},
    {"proxy-threads", "N", "Proxies of each rank (1); implies --control proxy",
     .call = set_proxy_threads},
    {"proxy-cpu", "LIST",
     "CPUs of the proxies, as in 0,4-5 (default: near the device); implies --control proxy",
     .call = set_proxy_cpus},
    {"qp", "K", "Queue pairs of a link across nodes (4)", COMMON(config.queue_pairs),
     FROM_TO(1, MAX_QUEUE_PAIRS)},
    {"wire", "ALPHA_US,GAP_US,BETA_GBPS",
     "Shape softnic's wire: start-up time, time between messages, 1e9 bytes per second",
     .call = set_wire},
    {"order", "strict|relaxed,SEED|relaxed-qps,SEED",
     "Order in which bytes land on softnic: as on one path (default), or any that the seed picks",
     .call = set_order},
    {"port-per-rank", NULL, "Give each rank a softnic port of its own, not one per node",
     COMMON(config.port_per_rank)},
    {"timeout", "S", "Fail when nothing has moved for S seconds (60)", COMMON(config.timeout_s),
     FROM_TO(0.1, MAX_TIMEOUT_S), .what = "seconds"},
    {"faults", "PLAN|@FILE",
     "Let the device misbehave, as in 'drop op=write nth=3' (sstar-faults(5))", .call = set_faults},
    {"check-verbs", NULL, "Say what is wrong with how verbs are used, and end with 1",
     COMMON(config.check_verbs)},
    {.doc = "Output:", .group = 20},
    {"capture", "FILE", "Write what goes over softnic's wire as RoCEv2 frames, pcapng",
     COMMON(config.capture)},
    {"capture-snap", "BYTES", "Keep so many bytes of a captured frame (default: all)",
     COMMON(config.capture_snap), FROM_TO(64, 65535)},
    {"json", "FILE", "Write the record as JSON (-: stdout)", COMMON(json)},
    {"csv", "FILE", "Write the table as CSV (-: stdout)", COMMON(csv)},
    {"seed", "N", "Seed of all random choices (1)", COMMON(seed)},
    {"no-progress", NULL, "No progress line on the terminal", COMMON(no_progress)},
    {0},
};

/* Once, and not by every rank when a collective opens. */
static int check_algorithm(const char *name)
{
    for (int i = 0; *name && i < SSTAR_ALGORITHMS; i++)
        if (!strcmp(name, sstar_algorithm_name((enum sstar_algorithm)i)))
            return 0;
    if (*name)
        fprintf(stderr,
                "sstar: SSTAR_ALGORITHM is '%s', which is no algorithm; sstar help allreduce has "
                "their names\n",
                name);
    return *name ? EXIT_USAGE : 0;
}

int common_init(struct common_options *common)
{
    char error[512];
    *common = (struct common_options){.seed = 1};
    if (sstar_config_init(&common->config, error, sizeof(error))) {
        fprintf(stderr, "sstar: %s\n", error);
        return EXIT_USAGE;
    }
    common->ranks_per_node = common->config.ranks_per_node;
    return check_algorithm(common->config.algorithm);
}
