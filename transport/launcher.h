/* SPDX-License-Identifier: MIT */
/* The environment as configuration: what the launcher says, and our own variables. Private. */
#ifndef SSTAR_TRANSPORT_LAUNCHER_H
#define SSTAR_TRANSPORT_LAUNCHER_H

#include "transport/report.h"

/* How a variable is read; getenv, or a table in tests. */
typedef const char *(*lookup_fn)(const char *variable, void *arg);

/* The settings, in the order of sstar_config_describe. The first five are the launcher's business.
 */
enum config_setting {
    CONFIG_RANK,
    CONFIG_SIZE,
    CONFIG_ROOT_HOST,
    CONFIG_ROOT_PORT,
    CONFIG_TOKEN,
    CONFIG_RANKS_PER_NODE,
    CONFIG_PORTS,
    CONFIG_WIRE,
    CONFIG_ORDER,
    CONFIG_IB_HCA,
    CONFIG_IB_GID_INDEX,
    CONFIG_QP,
    CONFIG_TIMEOUT,
    CONFIG_SOCKET_IFNAME,
    CONFIG_LOG_LEVEL,
    CONFIG_LOG_FILE,
    CONFIG_ALGORITHM,
    CONFIG_TUNING,
    CONFIG_CONTROL,
    CONFIG_SETTINGS
};

/* Fill rank, size, launcher, root_host, root_host_origin, root_port, token and their origins. 0 or
 * -EINVAL with a sentence. */
int launcher_detect(struct sstar_config *config, lookup_fn lookup, void *arg,
                    struct report *report);

/* The first host of a Slurm node list ("gpu[03-07,9],login1" gives "gpu03"). False if it has none.
 */
bool launcher_first_host(const char *list, char *host, size_t size);

/* sstar_config_init with another environment. */
int config_init_from(struct sstar_config *config, lookup_fn lookup, void *arg, char *error,
                     size_t error_size);

/* The CPUs that a list like 0,4-5 names, at most `most` of them; their number, or -1. */
int config_cpus(const char *text, int *cpus, int most);

/* As SSTAR_ORDER takes it. */
void order_text(const struct sstar_order *order, char *text, size_t size);

#endif
