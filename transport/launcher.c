/* SPDX-License-Identifier: MIT */
/*
 * Rank and size always come from the same launcher. The order matters: launchers run inside others.
 * Slurm is last, because its variables are set under mpirun, too.
 */
#include "transport/launcher.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_DEFAULT = 29501, PORT_FIRST = 20000, PORT_COUNT = 10000 };

struct launcher {
    const char *name;
    const char *rank, *size, *size_fallback;
    const char *local_size; /* how many ranks this host has */
    const char *node_count; /* how many hosts there are */
    const char *job_ids[2]; /* the first that is set names the job */
    const char *job_suffix; /* tells the steps of a job apart */
};

static const struct launcher launchers[] = {
    {.name = "sstar", .rank = "RANK", .size = "WORLD_SIZE", .local_size = "LOCAL_WORLD_SIZE"},
    {.name = "openmpi",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .job_ids = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {.name = "pmix", .rank = "PMIX_RANK", .size = "PMIX_SIZE", .job_ids = {"PMIX_NAMESPACE"}},
    {.name = "mpich",
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_size = "MPI_LOCALNRANKS",
     .job_ids = {"PMI_JOBID"}},
    {.name = "flux",
     .rank = "FLUX_TASK_RANK",
     .size = "FLUX_JOB_SIZE",
     .node_count = "FLUX_JOB_NNODES",
     .job_ids = {"FLUX_JOB_ID"}},
    {.name = "slurm",
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .size_fallback = "SLURM_NTASKS",
     .node_count = "SLURM_STEP_NUM_NODES",
     .job_ids = {"SLURM_JOB_ID", "SLURM_JOBID"},
     .job_suffix = "SLURM_STEP_ID"},
};
enum { LAUNCHERS = sizeof(launchers) / sizeof(launchers[0]) };

struct environment {
    lookup_fn lookup;
    void *arg;
};

/* The value, NULL if it is not set or empty. */
static const char *get(const struct environment *e, const char *variable)
{
    const char *value = variable ? e->lookup(variable, e->arg) : NULL;
    return value && *value ? value : NULL;
}

static bool whole_number(const char *text, long low, long high, long *value)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || end == text || *end || v < low || v > high)
        return false;
    *value = v;
    return true;
}

static long number_or(const struct environment *e, const char *variable, long otherwise)
{
    const char *text = get(e, variable);
    long value;
    return text && whole_number(text, 0, 1 << 30, &value) ? value : otherwise;
}

static const char *size_variable(const struct environment *e, const struct launcher *l)
{
    return l->size_fallback && !get(e, l->size) ? l->size_fallback : l->size;
}

/* A batch script of Slurm has SLURM_PROCID=0 without being a rank: only a step has ranks. */
static bool outside_a_step(const struct environment *e, const struct launcher *l)
{
    return strcmp(l->name, "slurm") == 0 && get(e, "SLURM_JOB_ID") && !get(e, "SLURM_STEP_ID") &&
           !get(e, "SLURM_STEPID");
}

static const struct launcher *find_launcher(const struct environment *e)
{
    for (int i = 0; i < LAUNCHERS; i++) {
        const struct launcher *l = &launchers[i];
        if (!get(e, l->rank) || outside_a_step(e, l))
            continue;
        /* PMIx tells no size in the environment; the launcher that speaks it may. */
        if (strcmp(l->name, "pmix") == 0 && !get(e, l->size) && get(e, "SLURM_PROCID"))
            continue;
        return l;
    }
    return NULL;
}

static int read_rank_and_size(struct sstar_config *config, const struct environment *e,
                              const struct launcher *l, struct report *report)
{
    const char *size_from = size_variable(e, l);
    const char *rank_text = get(e, l->rank), *size_text = get(e, size_from);
    long rank, size;
    if (!size_text)
        return report_set(report, -EINVAL,
                          "%s is %s but %s is not set: a rank needs the number of ranks, from the "
                          "same launcher",
                          l->rank, rank_text, size_from);
    if (!whole_number(size_text, 1, 1 << 20, &size))
        return report_set(report, -EINVAL,
                          "%s is \"%s\": it takes the number of ranks, a whole number from 1 to %d",
                          size_from, size_text, 1 << 20);
    if (!whole_number(rank_text, 0, size - 1, &rank))
        return report_set(report, -EINVAL,
                          "%s is \"%s\" and %s is %ld: a rank is a whole number from 0 to %ld",
                          l->rank, rank_text, size_from, size, size - 1);
    config->rank = (int)rank;
    config->size = (int)size;
    snprintf(config->launcher, sizeof(config->launcher), "%s",
             strcmp(l->name, "sstar") == 0 && get(e, "TORCHELASTIC_RUN_ID") ? "torchrun" : l->name);
    return 0;
}

bool launcher_first_host(const char *list, char *host, size_t size)
{
    size_t used = 0;
    const char *p = list;
    while (*p && *p != ',' && used + 1 < size) {
        if (*p != '[') {
            host[used++] = *p++;
            continue;
        }
        /* the first number of the brackets, with its zeros; what follows them belongs to the name
         */
        for (p++; *p && !strchr("-,]", *p) && used + 1 < size; p++)
            host[used++] = *p;
        p += strcspn(p, "]");
        p += *p == ']';
    }
    host[used] = '\0';
    return used > 0;
}

static bool all_local(const struct sstar_config *config, const struct environment *e,
                      const struct launcher *l)
{
    return config->size == 1 ||
           (l && l->local_size && number_or(e, l->local_size, 0) == config->size) ||
           (l && l->node_count && number_or(e, l->node_count, 0) == 1);
}

static int read_root_host(struct sstar_config *config, const struct environment *e,
                          const struct launcher *l, struct report *report)
{
    const char *text = get(e, "MASTER_ADDR"), *origin = "MASTER_ADDR";
    char first[sizeof(config->root_host)];
    if (!text && all_local(config, e, l)) {
        text = "127.0.0.1";
        origin =
            l && config->size > 1 ? (l->local_size ? l->local_size : l->node_count) : "default";
    }
    if (!text && l && (strcmp(l->name, "slurm") == 0 || strcmp(l->name, "mpich") == 0)) {
        origin = get(e, "SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
        const char *list = get(e, origin);
        if (list && launcher_first_host(list, first, sizeof(first)))
            text = first;
    }
    if (!text) { /* sstar_world_open says what to do; `sstar info` needs no root */
        text = "";
        origin = "default";
    }
    if (strlen(text) >= sizeof(config->root_host))
        return report_set(report, -EINVAL, "%s is too long for a host name (%zu characters)",
                          origin, strlen(text));
    snprintf(config->root_host, sizeof(config->root_host), "%s", text);
    snprintf(config->root_host_origin, sizeof(config->root_host_origin), "%s", origin);
    return 0;
}

/* The name of the job, and the variable that it is from; "" if there is none. */
static const char *read_job(const struct sstar_config *config, const struct environment *e,
                            const struct launcher *l, char *job, size_t size)
{
    job[0] = '\0';
    if (strcmp(config->launcher, "torchrun") == 0) {
        snprintf(job, size, "%s", get(e, "TORCHELASTIC_RUN_ID"));
        return "TORCHELASTIC_RUN_ID";
    }
    for (int i = 0; l && i < 2; i++) {
        const char *id = get(e, l->job_ids[i]);
        if (!id)
            continue;
        const char *suffix = get(e, l->job_suffix);
        snprintf(job, size, "%s%s%s", id, suffix ? "." : "", suffix ? suffix : "");
        return l->job_ids[i];
    }
    return "default";
}

static uint32_t hash(const char *text)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 16777619u;
    return h;
}

int launcher_detect(struct sstar_config *config, lookup_fn lookup, void *arg, struct report *report)
{
    const struct environment e = {lookup, arg};
    const struct launcher *l = find_launcher(&e);
    config->rank = 0;
    config->size = 1;
    snprintf(config->launcher, sizeof(config->launcher), "none");
    int err = l ? read_rank_and_size(config, &e, l, report) : 0;
    if (err == 0)
        err = read_root_host(config, &e, l, report);
    if (err < 0)
        return err;
    char job[sizeof(config->token)];
    const char *job_origin = read_job(config, &e, l, job, sizeof(job));
    const char *port = get(&e, "MASTER_PORT"), *token = get(&e, "SSTAR_TOKEN");
    long number = 0;
    if (port && !whole_number(port, 1, 65534, &number))
        return report_set(report, -EINVAL,
                          "MASTER_PORT is \"%s\": it takes a port, a whole number from 1 to 65534 "
                          "(rank 0 listens at the next one)",
                          port);
    config->root_port = port     ? (int)number + 1
                        : job[0] ? PORT_FIRST + (int)(hash(job) % PORT_COUNT)
                                 : PORT_DEFAULT;
    if (token && strlen(token) >= sizeof(config->token))
        return report_set(report, -EINVAL, "SSTAR_TOKEN has %zu characters: it takes at most %zu",
                          strlen(token), sizeof(config->token) - 1);
    snprintf(config->token, sizeof(config->token), "%s", token ? token : job);
    snprintf(config->origins[CONFIG_RANK], sizeof(config->origins[0]), "%s",
             l ? l->rank : "default");
    snprintf(config->origins[CONFIG_SIZE], sizeof(config->origins[0]), "%s",
             l ? size_variable(&e, l) : "default");
    snprintf(config->origins[CONFIG_ROOT_HOST], sizeof(config->origins[0]), "%.27s",
             config->root_host_origin);
    snprintf(config->origins[CONFIG_ROOT_PORT], sizeof(config->origins[0]), "%s",
             port ? "MASTER_PORT" : job_origin);
    snprintf(config->origins[CONFIG_TOKEN], sizeof(config->origins[0]), "%s",
             token ? "SSTAR_TOKEN" : job_origin);
    return 0;
}
