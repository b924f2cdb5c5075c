/* SPDX-License-Identifier: MIT */
/* Collectives that were started and that nobody waits for now: whoever waits for something else, or
 * a progress thread, moves them on. */
#include "collectives/collective_plan.h"
#include "transport/links.h"
#include "transport/turn.h"

static void tell_thread(struct sstar_world *world)
{
    if (world->turn)
        world->turn->work = world->started != NULL;
}

/* What was started may need it sooner than what it sleeps for. */
static void wake_thread(const struct sstar_world *world)
{
    struct turn *turn = world->turn;
    uint64_t next = turn && turn->nap_ends_ns ? started_next_look(world) : 0;
    if (next && next < turn->nap_ends_ns)
        pthread_cond_signal(&turn->changed);
}

void started_add(struct sstar_collective *plan)
{
    struct sstar_world *world = plan->world;
    plan->next_started = world->started;
    world->started = plan;
    world->move_started = started_move_on;
    tell_thread(world);
    wake_thread(world);
}

void started_remove(struct sstar_collective *plan)
{
    struct sstar_collective **at = &plan->world->started;
    while (*at && *at != plan)
        at = &(*at)->next_started;
    if (*at)
        *at = plan->next_started;
    tell_thread(plan->world);
}

void started_finish(struct sstar_collective *plan, int err)
{
    started_remove(plan);
    plan->run.active = false;
    plan->run.err = err;
    atomic_store_explicit(&plan->run.done, true, memory_order_release);
}

static bool move_on(struct sstar_collective *plan)
{
    int done = plan->world->failed, events = done ? 0 : execute_progress(plan);
    plan->run.moved = false;
    done = events < 0 ? events : done;
    if (!done)
        done = execute_advance(plan);
    bool moved = events > 0 || plan->run.moved || done;
    if (done)
        started_finish(plan, done < 0 ? done : 0);
    return moved;
}

int started_move_on(struct sstar_world *world)
{
    if (world->moving_started) /* a step of one of them waits */
        return 0;
    world->moving_started = true;
    int moved = 0;
    struct sstar_collective *next;
    for (struct sstar_collective *plan = world->started; plan; plan = next) {
        next = plan->next_started; /* it may leave the list, and nobody else can */
        moved += move_on(plan);
    }
    world->moving_started = false;
    return moved;
}

uint64_t started_next_look(const struct sstar_world *world)
{
    uint64_t next = UINT64_MAX, at;
    for (const struct sstar_collective *plan = world->started; plan; plan = plan->next_started) {
        if (plan->run.in_node_step)
            return 0;
        for (int c = 0; c < plan->n_channels; c++) {
            if (links_next_look(plan->channels[c], &at))
                return 0;
            if (at < next)
                next = at;
        }
    }
    return next;
}
