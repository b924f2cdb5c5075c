/* SPDX-License-Identifier: MIT */
#include "transport/world.h"
#include "transport/barrier.h"
#include "transport/control.h"
#include "transport/device.h"
#include "transport/memory.h"
#include "transport/proxy.h"
#include "transport/rank_map.h"
#include "transport/wait.h"
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

int world_fail(struct sstar_world *world, int code, const char *format, ...)
{
    if (world->failed)
        return world->failed;
    va_list arguments;
    va_start(arguments, format);
    report_format(&world->report, code, format, arguments);
    va_end(arguments);
    world->failed = code;
    log_line(&world->log, SSTAR_LOG_INFO, "the world has failed: %s", world->report.text);
    control_tell(world);
    return code;
}

int world_fail_as_reported(struct sstar_world *world, int code)
{
    const struct report why = world->report;
    return world_fail(world, code, "%s", why.text[0] ? why.text : strerror(-code));
}

/* The CPU time that our cgroup may use, in whole cores; 0: no limit is known. */
static int quota_cores(void)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    long quota_us, period_us;
    if (!file)
        return 0;
    int fields = fscanf(file, "%ld %ld", &quota_us, &period_us);
    fclose(file);
    return fields == 2 && period_us > 0 ? (int)((quota_us + period_us - 1) / period_us) : 0;
}

/* Whether a program plays the processor (QEMU's TCG says so in this leaf). */
static bool is_emulated(void)
{
#if defined(__x86_64__)
    unsigned int eax, name[3];
    if (!__get_cpuid(1, &eax, &name[0], &name[1], &name[2]) || !(name[1] & 1u << 31))
        return false; /* no hypervisor */
    __cpuid(0x40000000, eax, name[0], name[1], name[2]);
    return memcmp(name, "TCGTCGTCGTCG", sizeof(name)) == 0;
#else
    return false;
#endif
}

static int count_cores(cpu_set_t *set)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(set);
    if (sched_getaffinity(0, sizeof(*set), set) == 0)
        cores = CPU_COUNT(set);
    int quota = quota_cores();
    if (quota > 0 && quota < cores)
        cores = quota;
    return cores > 0 ? (int)cores : 1;
}

/* ---- opening and closing -------------------------------------------------------------------- */

static int check_config(const struct sstar_config *config, struct report *report)
{
    if (config->size < 1 || config->rank < 0 || config->rank >= config->size)
        return report_set(report, -EINVAL, "there is no rank %d in a world of %d ranks",
                          config->rank, config->size);
    if (config->ranks_per_node < 0 || config->ranks_per_node > config->size)
        return report_set(
            report, -EINVAL,
            "%d ranks per node (SSTAR_RANKS_PER_NODE) in a world of %d ranks; it takes "
            "0 (real nodes) to the number of ranks",
            config->ranks_per_node, config->size);
    if (config->size > 1 && !config->root_host[0])
        return report_set(
            report, -EINVAL,
            "rank %d of %d does not know the host of rank 0: set MASTER_ADDR to it for "
            "every rank (mpirun -x MASTER_ADDR=HOST, srun --export=ALL,MASTER_ADDR=HOST)",
            config->rank, config->size);
    if (config->size > 1 && (config->root_port < 1 || config->root_port > 65535))
        return report_set(report, -EINVAL,
                          "rank %d of %d does not know the port of rank 0: set MASTER_PORT to the "
                          "same number for every rank (1024 to 65534)",
                          config->rank, config->size);
    if (!(config->timeout_s > 0))
        return report_set(report, -EINVAL, "a timeout of %g s (SSTAR_TIMEOUT) leaves no time",
                          config->timeout_s);
    return 0;
}

/* From the config to a control plane and a map. */
static int meet(struct sstar_world *world, enum loop_choice choice)
{
    struct loop *loop;
    int err = loop_open(&loop, choice, &world->log);
    if (err < 0)
        return report_set(&world->report, err, "the event loop could not be opened: %s",
                          strerror(-err));
    struct hello mine;
    hello_fill(&mine, &world->config);
    struct meeting meeting = {0};
    bool alone = world->size == 1;
    if (!alone)
        err = rendezvous(&meeting, &mine, &world->config, loop, &world->log, &world->report);
    if (err < 0)
        goto close_loop;
    err = rank_map(world, alone ? &mine : meeting.hellos);
    if (err == 0)
        err = control_open(world, loop, alone ? NULL : &meeting);
    meeting_free(&meeting);
    if (err == 0)
        return 0;
close_loop:
    loop_close(loop);
    return err;
}

static void world_free(struct sstar_world *world)
{
    log_close(&world->log);
    free(world->ranks);
    free(world->node_first_member);
    free(world->node_members);
    free(world->wire_cost);
    free(world);
}

int world_open_over(struct sstar_world **world, const struct sstar_config *config,
                    enum loop_choice choice, char *error, size_t error_size)
{
    struct sstar_world *w = calloc(1, sizeof(*w));
    if (!w) {
        snprintf(error, error_size, "no memory left for a world");
        return -ENOMEM;
    }
    w->config = *config;
    w->rank = config->rank;
    w->size = config->size;
    w->cores = count_cores(&w->allowed);
    w->emulated = is_emulated();
    w->log.fd = -1;
    int err = check_config(config, &w->report);
    if (err < 0)
        goto free_world;
    err = log_open(&w->log, config, w->report.text, sizeof(w->report.text));
    if (err < 0)
        goto free_world;
    err = meet(w, choice);
    if (err < 0)
        goto free_world;
    err = node_memory_open(w);
    if (err < 0)
        goto close_control;
    /* VERSION asks for this line; WARN, the default, wants silence when all is well. */
    if (w->rank == 0 && w->log.level != SSTAR_LOG_WARN)
        log_line(&w->log, SSTAR_LOG_VERSION, "sstar %s: %d ranks on %d nodes, event loop over %s",
                 SSTAR_VERSION, w->size, w->node_count, loop_backend(control_loop(w)));
    *world = w;
    return 0;
close_control:
    /* The others must not wait for a rank that could not open. */
    world_fail_as_reported(w, err);
    control_close(w);
free_world:
    snprintf(error, error_size, "%s", w->report.text);
    world_free(w);
    return err;
}

int sstar_world_open(struct sstar_world **world, const struct sstar_config *config, char *error,
                     size_t error_size)
{
    return world_open_over(world, config, LOOP_AUTOMATIC, error, error_size);
}

void sstar_world_close(struct sstar_world *world)
{
    if (!world || control_check_owner(world) < 0)
        return; /* in a child after fork nothing of it is ours to end */
    if (world->progress_close)
        world->progress_close(world);
    if (world->collectives_close)
        world->collectives_close(world);
    barrier_close(world);
    while (world->links)
        sstar_links_close(world->links);
    proxies_close(world);
    if (!world->failed)
        control_leave(world);
    device_close(world);
    node_memory_close(world);
    control_close(world);
    world_free(world);
}

/* ---- asking --------------------------------------------------------------------------------- */

int sstar_rank(const struct sstar_world *world)
{
    return world->rank;
}

int sstar_size(const struct sstar_world *world)
{
    return world->size;
}

int sstar_node_count(const struct sstar_world *world)
{
    return world->node_count;
}

int sstar_node_of(const struct sstar_world *world, int rank)
{
    return world->ranks[rank].node;
}

int sstar_local_rank_of(const struct sstar_world *world, int rank)
{
    return world->ranks[rank].local_rank;
}

int sstar_local_size_of(const struct sstar_world *world, int node)
{
    return world->node_first_member[node + 1] - world->node_first_member[node];
}

int sstar_rank_at(const struct sstar_world *world, int node, int local)
{
    return world->node_members[world->node_first_member[node] + local];
}

const char *sstar_last_error(const struct sstar_world *world)
{
    return world->report.text;
}

uint64_t sstar_now_ns(const struct sstar_world *world)
{
    (void)
        world; /* one clock for all worlds of a host; a world on virtual time would have its own */
    return clock_ns();
}
