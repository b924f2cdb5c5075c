/* SPDX-License-Identifier: MIT */
/*
 * The one wait. A look at the clock and the control plane comes every LOOK_STEPS steps while
 * spinning, at every step once we yield. Naps begin late, because softnic is moved on by whoever
 * polls it: a rank that naps holds up its own wire.
 */
#include "transport/wait.h"
#include "transport/control.h"
#include "transport/world.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    LOOK_STEPS = 64,
    YIELDS_PER_LOOK = 8,
};
/* A yield costs half a microsecond where nobody else wants the core, so it comes soon: two ranks
 * that the kernel put on one core would otherwise spin at each other. */
static const uint64_t spin_ns = 10 * 1000;
static const uint64_t yield_ns = 20 * 1000 * 1000;
static const uint64_t short_nap_ns = 200 * 1000 * 1000;
static const uint64_t warn_ns = 5ull * 1000 * 1000 * 1000;
static const uint64_t stopped_ns = 1000 * 1000 * 1000; /* a longer gap was not our waiting */

/* Whether a process of this host is stopped by a signal or a debugger. */
static bool process_stopped(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    const char *name_end = strrchr(text, ')'); /* the name may hold anything */
    return name_end && (strncmp(name_end, ") T", 3) == 0 || strncmp(name_end, ") t", 3) == 0);
}

/* A rank of this host that is stopped: the one we wait for, or else any, since whom we wait for may
 * itself wait for that one. -1: none. */
static int find_stopped(const struct sstar_world *world, int first)
{
    for (int i = -1; i < world->size; i++) {
        int rank = i < 0 ? first : i;
        const struct rank_info *info = rank >= 0 ? &world->ranks[rank] : NULL;
        if (info && info->same_host && info->pid != getpid() && process_stopped(info->pid))
            return rank;
    }
    return -1;
}

/* "rank 1 waits for rank 2: a credit (sequence 17), 5 s so far; rank 2 is stopped" */
static void describe(const struct waiter *w, uint64_t waited_ns, char *text, size_t size)
{
    const struct sstar_world *world = w->world;
    char whom[160] = "the others", state[96] = "";
    int peer = w->peer < world->size ? w->peer : -1;
    if (peer >= 0)
        snprintf(whom, sizeof(whom), "rank %d (host %s, pid %ld)", peer, world->ranks[peer].host,
                 (long)world->ranks[peer].pid);
    int stopped = find_stopped(world, peer);
    if (stopped >= 0)
        snprintf(state, sizeof(state), "; rank %d is stopped (kill -CONT %ld lets it go on)",
                 stopped, (long)world->ranks[stopped].pid);
    snprintf(text, size, "rank %d waits for %s: %s (sequence %" PRIu64 "), %" PRIu64 " s so far%s",
             world->rank, whom, w->what, w->sequence, waited_ns / 1000000000u, state);
}

/* Look at the clock and the control plane. 0, or the world's failure. */
static int look(struct waiter *w, uint64_t now)
{
    struct sstar_world *world = w->world;
    if (w->started_ns == 0) {
        w->started_ns = now;
        w->deadline_ns = now + timeout_ns(world->config.timeout_s);
    } else if (now - w->looked_ns > stopped_ns) {
        /* We were stopped, or busy elsewhere; the others need not answer for that. */
        w->started_ns += now - w->looked_ns;
        w->deadline_ns += now - w->looked_ns;
    }
    w->looked_ns = now;
    int err = control_poll(world);
    if (err < 0)
        return err;
    char text[448];
    if (!w->warned && now - w->started_ns >= warn_ns) {
        w->warned = true;
        describe(w, now - w->started_ns, text, sizeof(text));
        log_line(&world->log, SSTAR_LOG_WARN, "%s", text);
    }
    if (now >= w->deadline_ns) {
        describe(w, now - w->started_ns, text, sizeof(text));
        return world_fail(world, -ETIMEDOUT, "%s; given up (SSTAR_TIMEOUT is %g s)", text,
                          world->config.timeout_s);
    }
    return 0;
}

int wait_step(struct waiter *w)
{
    struct sstar_world *world = w->world;
    uint32_t steps = ++w->steps;
    if (world->started && world->move_started(world) > 0)
        return world->failed;
    bool crowded = world_crowded(world) && !w->on_other_cores;
    bool spinning = !crowded && (w->started_ns == 0 || w->looked_ns - w->started_ns < spin_ns);
    if (steps % (spinning ? LOOK_STEPS : YIELDS_PER_LOOK) != 0) {
        if (!spinning)
            sched_yield();
        else if (!world->emulated)
            cpu_relax();
        return 0;
    }
    uint64_t now = clock_ns();
    int err = look(w, now);
    if (err < 0)
        return err;
    uint64_t waited = now - w->started_ns;
    if (waited < yield_ns) {
        if (!spinning)
            sched_yield();
        return 0;
    }
    w->steps = YIELDS_PER_LOOK - 1; /* the next step naps again */
    return control_sleep(world, waited < short_nap_ns ? 100 : 1000);
}

int wait_sleep(struct waiter *w)
{
    /* In this order: a look after which we slept could have made the condition true. */
    struct sstar_world *world = w->world;
    if (world->started)
        world->move_started(world);
    int err = control_sleep(world, world->started ? 100 : 100 * 1000);
    return err < 0 ? err : look(w, clock_ns());
}

void wait_progress(struct waiter *w)
{
    w->steps = 0;
    w->started_ns = 0;
    w->warned = false;
}
