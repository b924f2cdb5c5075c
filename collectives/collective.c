/* SPDX-License-Identifier: MIT */
/* Collectives: starting what is planned, testing it, waiting for it. The algorithms are in
 * schedule_*.c, opening is in collective_open.c. */
#include "collectives/collective_plan.h"
#include "transport/control.h"
#include "transport/turn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- operations --------------------------------------------------------------------------------
 */

static int run_check(const struct sstar_collective *plan, const void *send, const void *recv,
                     size_t count, enum sstar_type type, enum sstar_op op)
{
    struct sstar_world *world = plan->world;
    const char *name = sstar_operation_name(plan->operation);
    bool root = world->rank == plan->root;
    bool needs_send = plan->operation != SSTAR_BROADCAST || root;
    bool needs_recv = plan->operation != SSTAR_REDUCE || root;
    if ((unsigned)type >= SSTAR_TYPES || (unsigned)op >= SSTAR_OPS)
        return report_set(&world->report, -EINVAL, "%s: there is no type %d or operation %d", name,
                          (int)type, (int)op);
    if (count > (size_t)1 << 48 || (count && ((needs_send && !send) || (needs_recv && !recv))))
        return report_set(&world->report, -EINVAL, "%s: %zu elements at %p, to %p", name, count,
                          send, recv);
    return 0;
}

/* Whether the operation may begin with these arguments. */
static int start_check(const struct sstar_collective *plan, const void *send, const void *recv,
                       size_t count, enum sstar_type type, enum sstar_op op)
{
    struct sstar_world *world = plan->world;
    if (world->failed)
        return world->failed;
    if (control_is_inherited(world))
        return control_check_owner(world);
    if (plan->run.active)
        return report_set(&world->report, -EBUSY,
                          "%s: one is under way on this plan already; wait for it, or open another "
                          "plan",
                          sstar_operation_name(plan->operation));
    return plan->operation == SSTAR_BARRIER ? 0 : run_check(plan, send, recv, count, type, op);
}

static int start(struct sstar_collective *plan, const void *send, void *recv, size_t count,
                 enum sstar_type type, enum sstar_op op)
{
    int err = start_check(plan, send, recv, count, type, op);
    if (err)
        return err;
    if (plan->operation == SSTAR_BARRIER) {
        count = 0;
        type = SSTAR_INT64;
        op = SSTAR_SUM;
    }
    struct schedule_shape shape = plan_shape(plan, count, sstar_type_bytes(type));
    err = execute_begin(plan, &shape, send, recv, type, op);
    if (err)
        return err;
    int done = execute_advance(plan);
    if (done)
        started_finish(plan, done < 0 ? done : 0);
    return plan->run.err;
}

int sstar_collective_start(struct sstar_collective *plan, const void *send, void *recv,
                           size_t count, enum sstar_type type, enum sstar_op op)
{
    WORLD_TURN(plan->world);
    int err = start(plan, send, recv, count, type, op);
    if (!err && plan->run.active)
        started_add(plan);
    return err;
}

enum { TESTS_PER_LOOK = 64 };

static int result(const struct sstar_collective *plan)
{
    return plan->run.err ? plan->run.err : plan->world->failed;
}

int sstar_collective_test(struct sstar_collective *plan)
{
    if (plan->world->turn) { /* others move it on */
        if (!atomic_load_explicit(&plan->run.done, memory_order_acquire))
            return 0;
        return plan->run.err ? plan->run.err : 1;
    }
    if (!plan->run.active)
        return result(plan) ? result(plan) : 1;
    int events = execute_progress(plan);
    if (events < 0)
        return events;
    int done = ++plan->run.tests % TESTS_PER_LOOK == 0 ? control_poll(plan->world) : 0;
    if (!done)
        done = execute_advance(plan);
    if (done)
        started_finish(plan, done < 0 ? done : 0);
    return done;
}

int sstar_collective_wait(struct sstar_collective *plan)
{
    WORLD_TURN(plan->world);
    return plan->run.active ? execute_wait(plan) : result(plan);
}

int sstar_collective_run(struct sstar_collective *plan, const void *send, void *recv, size_t count,
                         enum sstar_type type, enum sstar_op op)
{
    WORLD_TURN(plan->world);
    if (execute_is_local(plan)) {
        int err = start_check(plan, send, recv, count, type, op);
        return err ? err : execute_local(plan, send, recv, count, type, op);
    }
    int err = start(plan, send, recv, count, type, op);
    return err ? err : plan->run.active ? execute_wait(plan) : result(plan);
}

static void close_cached(struct sstar_world *world)
{
    sstar_collective_close(world->collectives);
    world->collectives = NULL;
}

int sstar_allreduce(struct sstar_world *world, const void *send, void *recv, size_t count,
                    enum sstar_type type, enum sstar_op op)
{
    if (!world->collectives) {
        struct sstar_collective *plan;
        int err = sstar_collective_open(world, NULL, &plan);
        if (err)
            return err;
        world->collectives = plan;
        world->collectives_close = close_cached;
    }
    return sstar_collective_run(world->collectives, send, recv, count, type, op);
}
