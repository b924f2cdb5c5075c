/* SPDX-License-Identifier: MIT */
/* Who sends what to whom in `sstar alltoall`: by chance, or as a routing file says. */
#include "tools/alltoall.h"
#include "tools/routing.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void plan_free(struct plan *plan)
{
    free(plan->begin);
    free(plan->to);
    free(plan->matrix);
    free(plan->due_ns);
    free(plan->bytes);
    *plan = (struct plan){0};
}

static int plan_room(struct plan *plan, uint32_t layers, size_t messages)
{
    plan->layers = layers;
    plan->begin = calloc((size_t)layers + 1, sizeof *plan->begin);
    plan->to = calloc(messages + 1, sizeof *plan->to);
    return plan->begin && plan->to ? 0 : -ENOMEM;
}

static int by_chance(struct sstar_world *world, const struct alltoall_arguments *a,
                     struct plan *plan)
{
    int err = plan_room(plan, 1, a->messages);
    if (err)
        return err;
    plan->begin[1] = a->messages;
    load_by_chance(a, sstar_rank(world), plan);
    return 0;
}

/* Ours are the sequences q with q mod ranks == rank; layer after layer. */
static int from_routing(struct sstar_world *world, const struct routing *r, struct plan *plan)
{
    uint32_t ranks = (uint32_t)plan->ranks, me = (uint32_t)sstar_rank(world);
    size_t messages = 0;
    for (size_t i = 0; i < r->lines; i++)
        messages += r->sequence[i] % ranks == me ? r->top : 0;
    int err = plan_room(plan, r->layers, messages);
    if (err)
        return err;
    for (size_t i = 0; i < r->lines; i++)
        if (r->sequence[i] % ranks == me)
            plan->begin[r->layer[i] + 1] += r->top;
    for (uint32_t l = 0; l < r->layers; l++)
        plan->begin[l + 1] += plan->begin[l];
    size_t *at = calloc(r->layers, sizeof *at);
    if (!at)
        return -ENOMEM;
    memcpy(at, plan->begin, r->layers * sizeof *at);
    for (size_t i = 0; i < r->lines; i++) {
        if (r->sequence[i] % ranks != me)
            continue;
        for (uint32_t e = 0; e < r->top; e++)
            plan->to[at[r->layer[i]]++] =
                (uint16_t)((uint64_t)r->expert[i * r->top + e] * ranks / r->experts);
    }
    free(at);
    /* As one stream there is one layer. */
    return 0;
}

static void one_stream(struct plan *plan)
{
    plan->begin[1] = plan->begin[plan->layers];
    plan->layers = 1;
}

/* A world takes a pause in which nothing moves for a rank that hangs. */
static int check_pause(const struct alltoall_arguments *a, const struct plan *plan, char *error,
                       size_t error_size)
{
    double timeout = a->common.config.timeout_s, pause = plan->pause_seconds;
    if (pause < timeout)
        return 0;
    snprintf(error, error_size,
             "no message is due for %g s, and ranks give up when nothing has moved for %g s: give "
             "--timeout %.0f",
             pause, timeout, ceil(1.5 * pause));
    return -EINVAL;
}

static int own_part(struct sstar_world *world, const struct alltoall_arguments *a,
                    struct plan *plan, char *error, size_t error_size)
{
    struct routing routing;
    int err;
    plan->most_bytes = a->trace ? 0 : a->message_bytes;
    if (a->trace) {
        err = load_trace(a, sstar_rank(world), plan, error, error_size);
        if (err && *error)
            return err;
    } else if (!a->routing) {
        err = by_chance(world, a, plan);
    } else {
        err = routing_read(a->routing, a->experts, &routing, error, error_size);
        if (err)
            return err;
        err = from_routing(world, &routing, plan);
        routing_free(&routing);
    }
    if (err)
        snprintf(error, error_size, "no memory for the list of messages");
    else if (!a->per_layer && plan->layers > 1)
        one_stream(plan);
    if (!err && a->rate > 0 && (err = load_offer(a, sstar_rank(world), plan)))
        snprintf(error, error_size, "no memory for when messages are due");
    return err ? err : check_pause(a, plan, error, error_size);
}

/* Everybody's rows, in the order of the matrix. */
static int gather_matrix(struct sstar_world *world, struct plan *plan)
{
    size_t ranks = (size_t)plan->ranks, layers = plan->layers;
    uint64_t *mine = calloc(layers * ranks, sizeof *mine);
    uint64_t *all = calloc(ranks * layers * ranks, sizeof *all);
    plan->matrix = calloc(layers * ranks * ranks, sizeof *plan->matrix);
    int err = -ENOMEM;
    if (!mine || !all || !plan->matrix)
        goto free_both;
    for (size_t l = 0; l < layers; l++)
        for (size_t i = plan->begin[l]; i < plan->begin[l + 1]; i++)
            mine[l * ranks + plan->to[i]]++;
    err = sstar_allgather(world, mine, layers * ranks * sizeof *mine, all);
    for (size_t r = 0; !err && r < ranks; r++)
        for (size_t l = 0; l < layers; l++)
            memcpy(plan->matrix + (l * ranks + r) * ranks, all + (r * layers + l) * ranks,
                   ranks * sizeof *all);
free_both:
    free(mine);
    free(all);
    return err;
}

/* Until when messages are due on any rank, and how long they are on the average. */
static int gather_load(struct sstar_world *world, struct plan *plan)
{
    struct load {
        uint64_t last_ns, bytes, messages;
    } mine = {.messages = plan->begin[plan->layers]}, *all;
    for (size_t i = 0; i < mine.messages; i++)
        mine.bytes += plan->bytes ? plan->bytes[i] : plan->most_bytes;
    if (plan->due_ns && mine.messages)
        mine.last_ns = plan->due_ns[mine.messages - 1];
    all = calloc((size_t)plan->ranks, sizeof *all);
    int err = all ? sstar_allgather(world, &mine, sizeof mine, all) : -ENOMEM;
    uint64_t bytes = 0, messages = 0, last_ns = 0;
    for (int r = 0; !err && r < plan->ranks; r++) {
        bytes += all[r].bytes;
        messages += all[r].messages;
        last_ns = all[r].last_ns > last_ns ? all[r].last_ns : last_ns;
    }
    plan->mean_bytes = messages ? bytes / messages : plan->most_bytes;
    plan->offered_seconds = (double)last_ns * 1e-9;
    free(all);
    return err;
}

int plan_make(struct sstar_world *world, const struct alltoall_arguments *a, struct plan *plan,
              char *error, size_t error_size, int *teller)
{
    struct part {
        int32_t err;
        uint32_t layers;
    } mine, *all = calloc((size_t)sstar_size(world), sizeof *all);
    *plan = (struct plan){.ranks = sstar_size(world)};
    *teller = sstar_rank(world);
    mine.err = all ? own_part(world, a, plan, error, error_size) : -ENOMEM;
    mine.layers = plan->layers;
    int err = all ? sstar_allgather(world, &mine, sizeof mine, all) : -ENOMEM;
    /* The first that cannot says so for all: it is the same file as a rule. */
    for (int r = 0; !err && r < sstar_size(world); r++) {
        *teller = r;
        err = all[r].err;
        if (!err && all[r].layers != all[0].layers) {
            snprintf(error, error_size, "ranks 0 and %d read different routing files", r);
            err = -EINVAL;
        }
    }
    free(all);
    if (!err)
        err = gather_matrix(world, plan);
    if (!err)
        err = gather_load(world, plan);
    if (err)
        plan_free(plan);
    return err;
}
