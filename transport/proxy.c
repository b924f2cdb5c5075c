/* SPDX-License-Identifier: MIT */
#include "transport/proxy.h"
#include "transport/proxy_place.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RING_SLOTS = 4096,
    DRAIN_MOST = 64, /* descriptors before the doorbell and a look at completions */
    IDLE_LOOK = 32,  /* idle rounds between looks at the clock */
    ATTACH_WAIT_S = 10,
};
static const uint64_t spin_ns = 50 * 1000;
static const uint64_t yield_ns = 25 * 1000 * 1000; /* longer than a rank that waits yields */
static const uint64_t short_naps_ns = 200 * 1000 * 1000;
static const uint64_t nap_ns = 100 * 1000, long_nap_ns = 1000 * 1000;
static const uint64_t idle_nap_ns = 100 * 1000 * 1000; /* when nobody can wait for completions */

struct proxy {
    struct descriptor_ring ring;
    pthread_t thread;
    _Atomic bool stop;
    bool crowded; /* more threads than cores: yield at once */
    struct carrier **carriers;
    uint32_t n_carriers, room; /* places are kept: a carrier's index stays */
};

struct proxies {
    uint32_t n, next;
    struct proxy *all;
};

struct descriptor_ring *proxy_ring(struct proxy *proxy)
{
    return &proxy->ring;
}

void proxy_nudge(struct proxy *proxy)
{
    descriptor_wake_if_asleep(&proxy->ring);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static int attach(struct proxy *p, struct carrier *c)
{
    uint32_t at = 0;
    while (at < p->n_carriers && p->carriers[at])
        at++;
    if (at > UINT16_MAX)
        return -ENOSPC;
    if (at == p->room) {
        uint32_t room = p->room ? 2 * p->room : 16;
        struct carrier **more = realloc(p->carriers, room * sizeof(struct carrier *));
        if (!more)
            return -ENOMEM;
        p->carriers = more;
        p->room = room;
    }
    if (at == p->n_carriers)
        p->n_carriers++;
    p->carriers[at] = c;
    c->index = (uint16_t)at;
    return 0;
}

static void charge(struct proxy *p, const struct descriptor *d)
{
    struct carrier *c = (void *)(uintptr_t)d->token;
    if (d->opcode == DESCRIPTOR_ATTACH) {
        int err = attach(p, c);
        atomic_store_explicit(&c->attached, err ? err : 1, memory_order_release);
        return;
    }
    carrier_ring(c);
    p->carriers[c->index] = NULL;
    atomic_store_explicit(&c->attached, 0, memory_order_release);
}

/* The pieces of a descriptor that has more than one; the first slot is published last. */
static const struct ibv_sge *gather(const struct descriptor_ring *ring, const struct descriptor *d,
                                    struct ibv_sge *pieces)
{
    pieces[0] = d->sge;
    for (uint32_t i = 1; i < d->n_sge; i++)
        pieces[i] =
            descriptor_peek(ring, 1 + (i - 1) / DESCRIPTOR_SGE)->more[(i - 1) % DESCRIPTOR_SGE];
    return pieces;
}

static uint32_t drain(struct proxy *p)
{
    struct descriptor_ring *ring = &p->ring;
    struct ibv_sge pieces[POST_MAX_SGE];
    struct descriptor *d;
    uint32_t n = 0;
    for (; n < DRAIN_MOST && (d = descriptor_peek(ring, 0)) != NULL; n++) {
        uint32_t slots = 1;
        __builtin_prefetch(descriptor_at(ring, ring->head + 4));
        if (__builtin_expect(d->opcode == DESCRIPTOR_ATTACH || d->opcode == DESCRIPTOR_DETACH, 0)) {
            charge(p, d);
        } else if (__builtin_expect(d->n_sge <= 1, 1)) {
            if (carrier_take(p->carriers[d->carrier], d, &d->sge) != 0)
                break;
        } else {
            slots += (d->n_sge - 1u + DESCRIPTOR_SGE - 1) / DESCRIPTOR_SGE;
            if (carrier_take(p->carriers[d->carrier], d, gather(ring, d, pieces)) != 0)
                break;
        }
        descriptor_done(ring, slots);
    }
    return n;
}

/* Whether completions can come for which nobody writes a descriptor. */
static bool completions_may_come(const struct proxy *p)
{
    for (uint32_t i = 0; i < p->n_carriers; i++)
        if (p->carriers[i] && (p->carriers[i]->links_wait || p->carriers[i]->expected > 0))
            return true;
    return false;
}

static uint32_t look_around(struct proxy *p, bool rang)
{
    uint32_t events = 0;
    for (uint32_t i = 0; i < p->n_carriers; i++) {
        struct carrier *c = p->carriers[i];
        if (!c)
            continue;
        if (rang && c->n_touched > 0)
            carrier_ring(c);
        if (!c->links_wait && c->expected == 0)
            continue;
        int n = carrier_poll(c);
        events += n > 0 ? (uint32_t)n : 0;
    }
    return events;
}

struct idle {
    uint32_t rounds;
    uint64_t since_ns;
};

static void idle_step(struct proxy *p, struct idle *idle)
{
    if (!p->crowded && ++idle->rounds % IDLE_LOOK != 0)
        return;
    uint64_t now = clock_ns();
    if (idle->since_ns == 0)
        idle->since_ns = now;
    uint64_t idle_ns = now - idle->since_ns;
    if (!p->crowded && idle_ns < spin_ns)
        return;
    if (idle_ns < yield_ns)
        sched_yield();
    else if (!completions_may_come(p))
        descriptor_nap(&p->ring, idle_nap_ns);
    else
        descriptor_nap(&p->ring, idle_ns < short_naps_ns ? nap_ns : long_nap_ns);
}

static void *proxy_main(void *arg)
{
    struct proxy *p = arg;
    struct idle idle = {0};
    while (!atomic_load_explicit(&p->stop, memory_order_relaxed)) {
        uint32_t n = drain(p);
        n += look_around(p, n > 0);
        if (__builtin_expect(n > 0, 1))
            idle = (struct idle){0};
        else
            idle_step(p, &idle);
    }
    return NULL;
}

/* ---- starting and ending -------------------------------------------------------------------- */

static int proxy_start(struct sstar_world *world, struct proxy *p, uint32_t i)
{
    pthread_attr_t attr;
    sigset_t all, before;
    cpu_set_t cpus;
    char name[16];
    int err = descriptor_ring_open(&p->ring, RING_SLOTS);
    if (err)
        return report_set(&world->report, err, "out of memory for a proxy");
    p->crowded = world_crowded(world);
    pthread_attr_init(&attr);
    if (proxy_place(world, i, &cpus))
        pthread_attr_setaffinity_np(&attr, sizeof cpus, &cpus);
    /* Signals are the program's. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    err = pthread_create(&p->thread, &attr, proxy_main, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (err) {
        descriptor_ring_close(&p->ring);
        return report_set(&world->report, -err, "rank %d cannot start proxy %u of %d: %s; %s",
                          world->rank, i, world->config.proxy_threads, strerror(err),
                          err == EINVAL ? "name CPUs that are there and that this process may run "
                                          "on (SSTAR_CONTROL, --proxy-cpu; see taskset -p)"
                                        : "ask for fewer (SSTAR_CONTROL, --proxy-threads)");
    }
    snprintf(name, sizeof name, "sstar-proxy-%u", i % 100);
    pthread_setname_np(p->thread, name);
    return 0;
}

static void proxies_end(struct proxies *proxies)
{
    for (uint32_t i = 0; i < proxies->n; i++) {
        struct proxy *p = &proxies->all[i];
        atomic_store(&p->stop, true);
        descriptor_wake(&p->ring);
    }
    for (uint32_t i = 0; i < proxies->n; i++) {
        pthread_join(proxies->all[i].thread, NULL); /* no round of its waits for anything */
        descriptor_ring_close(&proxies->all[i].ring);
        free(proxies->all[i].carriers);
    }
    free(proxies->all);
    free(proxies);
}

static int proxies_open(struct sstar_world *world)
{
    uint32_t n = world->config.proxy_threads > 0 ? (uint32_t)world->config.proxy_threads : 1;
    struct proxies *made = calloc(1, sizeof *made);
    if (made)
        made->all = aligned_alloc(alignof(struct proxy), n * sizeof *made->all);
    if (!made || !made->all) {
        free(made);
        return report_set(&world->report, -ENOMEM, "out of memory for proxies");
    }
    memset(made->all, 0, n * sizeof *made->all);
    for (uint32_t i = 0; i < n; i++) {
        int err = proxy_start(world, &made->all[i], i);
        if (err) {
            proxies_end(made);
            return err;
        }
        made->n = i + 1;
    }
    world->proxies = made;
    return 0;
}

void proxies_close(struct sstar_world *world)
{
    if (world->proxies)
        proxies_end(world->proxies);
    world->proxies = NULL;
}

/* ---- charge --------------------------------------------------------------------------------- */

/* A word to the proxy about a carrier, and its answer. It does not end when the world fails: the
 * proxy, a thread of ours, still has to let go. */
static int proxy_order(struct sstar_world *world, struct proxy *p, struct carrier *c,
                       enum descriptor_opcode opcode, int *answer)
{
    uint64_t until = clock_ns() + ATTACH_WAIT_S * 1000000000ull, place;
    int before = atomic_load(&c->attached), now = before;
    while (descriptor_claim(&p->ring, 1, &place) != 0) {
        if (clock_ns() > until)
            goto silent;
        sched_yield();
    }
    struct descriptor *d = descriptor_at(&p->ring, place);
    d->opcode = (uint8_t)opcode;
    d->token = (uintptr_t)c;
    descriptor_publish(d, place);
    descriptor_wake_if_asleep(&p->ring);
    while ((now = atomic_load_explicit(&c->attached, memory_order_acquire)) == before) {
        if (clock_ns() > until)
            goto silent;
        sched_yield();
    }
    *answer = now;
    return 0;
silent:
    return report_set(&world->report, -ETIMEDOUT,
                      "rank %d: its proxy has not answered for %d s; is a driver's call stuck?",
                      world->rank, ATTACH_WAIT_S);
}

int proxy_take_charge(struct sstar_world *world, struct carrier *carrier, struct proxy **proxy)
{
    int err = world->proxies ? 0 : proxies_open(world);
    if (err)
        return err;
    struct proxies *all = world->proxies;
    struct proxy *p = &all->all[all->next++ % all->n];
    int answer = 0;
    err = proxy_order(world, p, carrier, DESCRIPTOR_ATTACH, &answer);
    if (!err && answer < 0)
        err = report_set(&world->report, answer, "a proxy of rank %d has no room for more links",
                         world->rank);
    if (!err)
        *proxy = p;
    return err;
}

int proxy_release(struct sstar_world *world, struct proxy *proxy, struct carrier *carrier)
{
    int answer = 0;
    return proxy_order(world, proxy, carrier, DESCRIPTOR_DETACH, &answer);
}
