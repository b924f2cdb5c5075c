/* SPDX-License-Identifier: MIT */
/*
 * What hangs off a world. Private to the project; each member is the business of the file named.
 */
#ifndef SSTAR_TRANSPORT_WORLD_H
#define SSTAR_TRANSPORT_WORLD_H

#include "transport/report.h"
#include "transport/transport.h"
#include <sched.h>
#include <sys/types.h>

struct rank_info {
    int node;       /* 0 .. node_count - 1, in order of the first rank of each node */
    int local_rank; /* place among the ranks of the node */
    pid_t pid;
    bool same_host; /* as we are: pid and /proc are meaningful here */
    char host[64];
};

struct sstar_world {
    struct sstar_config config;
    struct log log;
    struct report report; /* the sentence */
    int failed;           /* 0, or the negative errno that every later call returns */
    int rank, size;
    struct rank_info *ranks; /* [size] */
    int node_count;
    int *node_first_member; /* [node_count + 1] into node_members: ranks of each node in order */
    int *node_members;      /* [size] */
    int cores;              /* that this process may run on */
    bool emulated;          /* the processor: a pause costs it microseconds */
    cpu_set_t allowed;      /* likewise, when the world was opened */
    int ranks_on_host;
    struct control *control;         /* control.c: rendezvous sockets, pidfds, the event loop */
    struct node_memory *node_memory; /* memory.c */
    struct device *device;           /* device.c; NULL until first needed */
    struct sstar_links *links;       /* links.c: a list of all that are open */
    bool ticking;                    /* links.c: some of them go through the NIC */
    uint64_t ticked_ns;              /* control.c */
    struct barrier *barrier;         /* barrier.c */
    struct proxies *proxies;         /* proxy.c; NULL until first needed */
    struct sstar_counters counters;
    bool timed;
    struct turn *turn; /* turn.h: NULL unless a progress thread shares the world */
    void (*progress_close)(struct sstar_world *world);
    /* collectives/: what was started and is not done. Whoever waits moves it on, through this
     * function; more than 0: something has moved. */
    struct sstar_collective *started;
    int (*move_started)(struct sstar_world *world);
    bool moving_started; /* in there */
    void *collectives;   /* collectives/: cached plans */
    void *wire_cost;     /* collectives/: what was measured of the wire; freed with the world */
    void (*collectives_close)(struct sstar_world *world);
};

/* Mark the world as failed (the first failure stays) and keep the sentence. Returns the code. */
int world_fail(struct sstar_world *world, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with the sentence that report_set has left: for who fails alone in a collective call,
 * where the others would otherwise wait. */
int world_fail_as_reported(struct sstar_world *world, int code);

/* More threads that wait than cores: waiting yields at once. */
static inline bool world_crowded(const struct sstar_world *world)
{
    const struct sstar_config *config = &world->config;
    int proxies = config->control == SSTAR_CONTROL_PROXY ? config->proxy_threads : 0;
    return world->ranks_on_host * (1 + proxies) > world->cores;
}

/* ---- control plane (control.c) ----------------------------------------------------------------
 */

/* Look at sockets, pidfds and async events without blocking, and move links through the NIC on now
 * and then; marks the world failed when a rank died. 0 or world->failed. Costs a memory read when
 * nothing happened (io_uring). */
int control_poll(struct sstar_world *world);
/* Sleep until a control event, readiness of an fd watched with control_watch, or the timeout. */
int control_sleep(struct sstar_world *world, uint64_t timeout_us);
/* Something of a peer was not there. Its death, or the failure for which it left, may be the cause,
 * and the news of that on its way: wait for it as long as it may take, so that the cause is told
 * and not the symptom. 0 if none came, or world->failed. */
int control_await_news(struct sstar_world *world);
/* How long that may take. */
uint64_t control_news_ns(const struct sstar_world *world);
/* Watch an fd for input; `ready` is called from control_poll/control_sleep. Returns 0 or -errno. */
int control_watch(struct sstar_world *world, int fd, void (*ready)(void *arg), void *arg);
void control_unwatch(struct sstar_world *world, int fd);

#endif
