/* SPDX-License-Identifier: MIT */
#include "transport/launcher.h"
#include "transport/links.h"
#include "transport/softnic/real.h"
#include "transport/softnic/softnic.h"
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

_Static_assert(CONFIG_SETTINGS <= sizeof(((struct sstar_config *)0)->origins) /
                                      sizeof(((struct sstar_config *)0)->origins[0]),
               "every setting has an origin");

_Static_assert(LINK_MAX_QPS == 16, "what SSTAR_QP takes, as is said below and in transport.h");

static const char *const level_names[] = {"NONE", "VERSION", "WARN", "INFO", "TRACE"};

enum { MOST_PROXIES = 16, MOST_CPU = CPU_SETSIZE - 1 };

/* ---- values from text: false if it cannot be meant ------------------------------------------ */

static bool read_whole(const char *text, long low, long high, int *value)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || end == text || *end || v < low || v > high)
        return false;
    *value = (int)v;
    return true;
}

static bool read_real(const char **text, double low, double high, double *value)
{
    char *end;
    errno = 0;
    double v = real_from(*text, &end);
    if (errno || end == *text || !isfinite(v) || v < low || v > high)
        return false;
    *value = v;
    *text = end;
    return true;
}

static bool read_text(const char *text, char *value, size_t size)
{
    if (strlen(text) >= size)
        return false;
    strcpy(value, text);
    return true;
}

static bool read_ranks_per_node(struct sstar_config *c, const char *text)
{
    return read_whole(text, 0, 1 << 20, &c->ranks_per_node);
}

static bool read_ports(struct sstar_config *c, const char *text)
{
    c->port_per_rank = strcmp(text, "rank") == 0;
    return c->port_per_rank || strcmp(text, "node") == 0;
}

static bool read_wire(struct sstar_config *c, const char *text)
{
    struct sstar_wire w;
    if (!read_real(&text, 0, 1e9, &w.alpha_us) || *text++ != ',' ||
        !read_real(&text, 0, 1e9, &w.gap_us) || *text++ != ',' ||
        !read_real(&text, 0, 1e9, &w.beta_gbps) || *text)
        return false;
    if (!(w.beta_gbps > 0) && (w.alpha_us > 0 || w.gap_us > 0))
        return false;
    c->wire = w;
    return true;
}

int sstar_order_parse(const char *text, struct sstar_order *order)
{
    struct softnic_order read = {0};
    if (softnic_read_order(text, &read) != 0)
        return -EINVAL;
    *order = (struct sstar_order){read.relaxed, read.keep_qps, read.seed};
    return 0;
}

static bool read_order(struct sstar_config *c, const char *text)
{
    return sstar_order_parse(text, &c->order) == 0;
}

/* A list like 0,4-5 of at most `most` CPUs; their number, or -1. */
int config_cpus(const char *text, int *cpus, int most)
{
    int n = 0;
    while (*text) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (end == text || first < 0)
            return -1;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text)
                return -1;
        }
        if (last < first || last > MOST_CPU || (*end && *end != ',') || (*end == ',' && !end[1]))
            return -1;
        for (long cpu = first; cpu <= last; cpu++, n++)
            if (n < most)
                cpus[n] = (int)cpu;
        text = end + (*end == ',');
    }
    return n < most ? n : most;
}

int sstar_control_parse(const char *text, struct sstar_config *config)
{
    enum sstar_control control = SSTAR_CONTROL_PROXY;
    char cpus[sizeof config->proxy_cpus] = "", *end;
    long threads = 1;
    if (strcmp(text, "direct") == 0) {
        control = SSTAR_CONTROL_DIRECT;
    } else if (strncmp(text, "proxy", 5) != 0 || (text[5] && text[5] != ',')) {
        return -EINVAL;
    } else if (text[5]) {
        threads = strtol(text + 6, &end, 10);
        if (end == text + 6 || threads < 1 || threads > MOST_PROXIES || (*end && *end != ','))
            return -EINVAL;
        if (*end &&
            (!read_text(end + 1, cpus, sizeof cpus) || config_cpus(cpus, NULL, 0) < 0 || !cpus[0]))
            return -EINVAL;
    }
    config->control = control;
    config->proxy_threads = (int)threads;
    strcpy(config->proxy_cpus, cpus);
    return 0;
}

static bool read_control(struct sstar_config *c, const char *text)
{
    return sstar_control_parse(text, c) == 0;
}

static bool read_ib_hca(struct sstar_config *c, const char *text)
{
    return read_text(text, c->ib_dev, sizeof(c->ib_dev));
}

static bool read_gid_index(struct sstar_config *c, const char *text)
{
    return read_whole(text, -1, 65535, &c->gid_index);
}

static bool read_qp(struct sstar_config *c, const char *text)
{
    return read_whole(text, 1, LINK_MAX_QPS, &c->queue_pairs);
}

static bool read_timeout(struct sstar_config *c, const char *text)
{
    return read_real(&text, 0.001, 1e7, &c->timeout_s) && !*text;
}

static bool read_socket_ifname(struct sstar_config *c, const char *text)
{
    return read_text(text, c->socket_ifname, sizeof(c->socket_ifname));
}

static bool read_log_level(struct sstar_config *c, const char *text)
{
    for (int i = SSTAR_LOG_NONE; i <= SSTAR_LOG_TRACE; i++) {
        if (strcasecmp(text, level_names[i]) == 0) {
            c->log_level = (enum sstar_log_level)i;
            return true;
        }
    }
    return false;
}

static bool read_log_file(struct sstar_config *c, const char *text)
{
    return read_text(text, c->log_file, sizeof(c->log_file));
}

static bool read_algorithm(struct sstar_config *c, const char *text)
{
    return read_text(text, c->algorithm, sizeof(c->algorithm));
}

static bool read_tuning(struct sstar_config *c, const char *text)
{
    return read_text(text, c->tuning, sizeof(c->tuning));
}

/* ---- the table ------------------------------------------------------------------------------ */

struct setting {
    const char *variable;
    bool (*read)(struct sstar_config *config, const char *text); /* NULL: the launcher's business */
    const char *takes;
};

static const struct setting settings[CONFIG_SETTINGS] = {
    [CONFIG_RANK] = {"RANK", NULL, NULL},
    [CONFIG_SIZE] = {"WORLD_SIZE", NULL, NULL},
    [CONFIG_ROOT_HOST] = {"MASTER_ADDR", NULL, NULL},
    [CONFIG_ROOT_PORT] = {"MASTER_PORT", NULL, NULL},
    [CONFIG_TOKEN] = {"SSTAR_TOKEN", NULL, NULL},
    [CONFIG_RANKS_PER_NODE] = {"SSTAR_RANKS_PER_NODE", read_ranks_per_node,
                               "how many ranks make a virtual node, a whole number; 0: real nodes"},
    [CONFIG_PORTS] = {"SSTAR_PORTS", read_ports,
                      "node (the ranks of a node share a softnic port) or rank (one each)"},
    [CONFIG_WIRE] = {"SSTAR_WIRE", read_wire,
                     "ALPHA_US,GAP_US,BETA_GBPS, three numbers, the last above 0; 0,0,0: unshaped"},
    [CONFIG_ORDER] = {"SSTAR_ORDER", read_order,
                      "strict, relaxed,SEED or relaxed-qps,SEED with a whole number"},
    [CONFIG_IB_HCA] = {"SSTAR_IB_HCA", read_ib_hca,
                       "the name of a device, of at most 63 characters, or softnic"},
    [CONFIG_IB_GID_INDEX] = {"SSTAR_IB_GID_INDEX", read_gid_index,
                             "an index into the port's GID table, or -1 for an automatic choice"},
    [CONFIG_QP] = {"SSTAR_QP", read_qp, "queue pairs of a link, a whole number from 1 to 16"},
    [CONFIG_TIMEOUT] = {"SSTAR_TIMEOUT", read_timeout, "seconds, a number from 0.001 to 1e7"},
    [CONFIG_SOCKET_IFNAME] =
        {"SSTAR_SOCKET_IFNAME", read_socket_ifname,
         "interface names, as NCCL_SOCKET_IFNAME does, of at most 63 characters"},
    [CONFIG_LOG_LEVEL] = {"SSTAR_LOG_LEVEL", read_log_level, "NONE, VERSION, WARN, INFO or TRACE"},
    [CONFIG_LOG_FILE] = {"SSTAR_LOG_FILE", read_log_file,
                         "a path of at most 255 characters; %h host, %p pid, %r rank"},
    [CONFIG_ALGORITHM] = {"SSTAR_ALGORITHM", read_algorithm,
                          "the name of an algorithm of the collectives"},
    [CONFIG_TUNING] = {"SSTAR_TUNING", read_tuning, "a path of at most 255 characters"},
    [CONFIG_CONTROL] = {"SSTAR_CONTROL", read_control,
                        "direct, or proxy[,THREADS[,CPUS]] as in proxy,2,0,4-5"},
};

void order_text(const struct sstar_order *order, char *text, size_t size)
{
    if (order->relaxed)
        snprintf(text, size, "relaxed%s,%llu", order->keep_qps ? "-qps" : "",
                 (unsigned long long)order->seed);
    else
        snprintf(text, size, "strict");
}

static void control_text(const struct sstar_config *c, char *text, size_t size)
{
    if (c->control == SSTAR_CONTROL_DIRECT)
        snprintf(text, size, "direct");
    else
        snprintf(text, size, "proxy,%d%s%s", c->proxy_threads, c->proxy_cpus[0] ? "," : "",
                 c->proxy_cpus);
}

/* Of a setting that is text. */
static const char *text_of(const struct sstar_config *c, enum config_setting i)
{
    switch (i) {
    case CONFIG_ROOT_HOST:
        return c->root_host;
    case CONFIG_PORTS:
        return c->port_per_rank ? "rank" : "node";
    case CONFIG_IB_HCA:
        return c->ib_dev;
    case CONFIG_SOCKET_IFNAME:
        return c->socket_ifname;
    case CONFIG_LOG_LEVEL:
        return level_names[c->log_level];
    case CONFIG_LOG_FILE:
        return c->log_file;
    case CONFIG_ALGORITHM:
        return c->algorithm;
    case CONFIG_TUNING:
        return c->tuning;
    default:
        return NULL;
    }
}

static void print_value(const struct sstar_config *c, int i, char *value, size_t size)
{
    const char *text = text_of(c, (enum config_setting)i);
    value[0] = '\0';
    switch ((enum config_setting)i) {
    case CONFIG_RANK:
        snprintf(value, size, "%d", c->rank);
        break;
    case CONFIG_SIZE:
        snprintf(value, size, "%d", c->size);
        break;
    case CONFIG_ROOT_PORT: /* in the terms of the variable: rank 0 listens at the next one */
        snprintf(value, size, "%d", c->root_port - 1);
        break;
    case CONFIG_TOKEN: /* not itself: it is what keeps strangers out */
        if (c->token[0])
            snprintf(value, size, "(set, %zu characters)", strlen(c->token));
        break;
    case CONFIG_RANKS_PER_NODE:
        snprintf(value, size, "%d", c->ranks_per_node);
        break;
    case CONFIG_WIRE:
        snprintf(value, size, "%g,%g,%g", c->wire.alpha_us, c->wire.gap_us, c->wire.beta_gbps);
        break;
    case CONFIG_ORDER:
        order_text(&c->order, value, size);
        break;
    case CONFIG_IB_GID_INDEX:
        snprintf(value, size, "%d", c->gid_index);
        break;
    case CONFIG_QP:
        snprintf(value, size, "%d", c->queue_pairs);
        break;
    case CONFIG_TIMEOUT:
        snprintf(value, size, "%g", c->timeout_s);
        break;
    case CONFIG_CONTROL:
        control_text(c, value, size);
        break;
    default:
        snprintf(value, size, "%s", text ? text : "");
    }
}

/* A check of the value, to notice that a caller has changed it. */
static uint32_t check_of(const struct sstar_config *config, int i)
{
    char value[320] = "";
    if (i == CONFIG_TOKEN)
        snprintf(value, sizeof(value), "%s", config->token);
    else
        print_value(config, i, value, sizeof(value));
    uint32_t h = 2166136261u;
    for (const char *p = value; *p; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    return h;
}

int config_init_from(struct sstar_config *config, lookup_fn lookup, void *arg, char *error,
                     size_t error_size)
{
    struct sstar_config c = {.traffic_class = -1,
                             .service_level = -1,
                             .gid_index = -1,
                             .queue_pairs = 4,
                             .proxy_threads = 1,
                             .timeout_s = 60,
                             .faults_seed = 1,
                             .log_level = SSTAR_LOG_WARN};
    struct report report = {""};
    int err = launcher_detect(&c, lookup, arg, &report);
    for (int i = 0; err == 0 && i < CONFIG_SETTINGS; i++) {
        const struct setting *s = &settings[i];
        const char *text = s->read ? lookup(s->variable, arg) : NULL;
        bool set = text && *text;
        if (s->read)
            snprintf(c.origins[i], sizeof(c.origins[i]), "%s", set ? s->variable : "default");
        if (set && !s->read(&c, text))
            err = report_set(&report, -EINVAL, "%s is \"%.200s\": it takes %s", s->variable, text,
                             s->takes);
        c.as_read[i] = check_of(&c, i);
    }
    if (err < 0)
        snprintf(error, error_size, "%s", report.text);
    else
        *config = c;
    return err;
}

static const char *from_environment(const char *variable, void *arg)
{
    (void)arg;
    return getenv(variable);
}

int sstar_config_init(struct sstar_config *config, char *error, size_t error_size)
{
    return config_init_from(config, from_environment, NULL, error, error_size);
}

int sstar_config_count(void)
{
    return CONFIG_SETTINGS;
}

void sstar_config_describe(const struct sstar_config *config, int i, const char **variable,
                           char *value, size_t value_size, const char **origin)
{
    *variable = settings[i].variable;
    print_value(config, i, value, value_size);
    *origin = config->as_read[i] == check_of(config, i) ? config->origins[i] : "caller";
}
