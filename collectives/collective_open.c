/* SPDX-License-Identifier: MIT */
/* Collectives: opening a plan and closing it: candidates, meeting the others, links. */
#include "collectives/collective_plan.h"
#include "transport/turn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening -----------------------------------------------------------------------------------
 */

/* What the ranks tell each other on opening. */
struct hello {
    uint64_t area;
    uint32_t operation, algorithm, queue_pairs, slice_bytes, wire_type;
    int32_t root;
    uint32_t cores;   /* that we may run on, */
    uint32_t crowded; /* fewer than there are ranks here */
    uint32_t frozen;  /* cores, as the tuning file of rank 0 has them; 0: it does not say */
    uint32_t freezes; /* it is to say so from now on */
    int32_t status;
};

bool sstar_algorithm_exists(enum sstar_operation operation, enum sstar_algorithm algorithm)
{
    return algorithm == SSTAR_AUTO || algorithm == SSTAR_HIERARCHICAL ||
           schedule_exists(operation, algorithm);
}

static int attr_check(struct sstar_world *world, const struct sstar_collective_attr *attr)
{
    if ((unsigned)attr->operation >= SSTAR_OPERATIONS)
        return report_set(&world->report, -EINVAL, "collectives: there is no operation %d",
                          (int)attr->operation);
    const char *name = sstar_operation_name(attr->operation);
    if ((unsigned)attr->algorithm >= SSTAR_ALGORITHMS)
        return report_set(&world->report, -EINVAL, "%s: there is no algorithm %d", name,
                          (int)attr->algorithm);
    if (!sstar_algorithm_exists(attr->operation, attr->algorithm))
        return report_set(&world->report, -EINVAL, "%s cannot be done by %s", name,
                          sstar_algorithm_name(attr->algorithm));
    if (attr->root < 0 || attr->root >= world->size)
        return report_set(&world->report, -EINVAL, "%s: there is no rank %d to be the root", name,
                          attr->root);
    if (attr->wire_type != SSTAR_FLOAT32 && attr->wire_type != SSTAR_FLOAT16 &&
        attr->wire_type != SSTAR_BFLOAT16 && attr->wire_type != SSTAR_FLOAT8_E4M3 &&
        attr->wire_type != SSTAR_FLOAT8_E5M2)
        return report_set(&world->report, -EINVAL,
                          "%s: type %d cannot cross nodes in place of float; half, bfloat16, "
                          "fp8_e4m3 and fp8_e5m2 can",
                          name, (int)attr->wire_type);
    if (attr->slice_bytes && (attr->slice_bytes < 8 || attr->slice_bytes > 1u << 26))
        return report_set(&world->report, -EINVAL,
                          "%s: slices of %u bytes; 8 to 64 MiB are possible", name,
                          attr->slice_bytes);
    return 0;
}

/* SSTAR_ALGORITHM overrules AUTO, where the operation has that algorithm. */
static int overrule(struct sstar_collective *plan)
{
    const char *name = plan->world->config.algorithm;
    if (!*name || plan->asked != SSTAR_AUTO)
        return 0;
    for (int i = 0; i < SSTAR_ALGORITHMS; i++) {
        enum sstar_algorithm it = (enum sstar_algorithm)i;
        if (strcmp(name, sstar_algorithm_name(it)) != 0)
            continue;
        if (sstar_algorithm_exists(plan->operation, it))
            plan->asked = it;
        return 0;
    }
    return report_set(&plan->world->report, -EINVAL,
                      "SSTAR_ALGORITHM is \"%s\", which is no algorithm: auto, ring, doubling, "
                      "halving, circulant, tree, hierarchical or hierarchical-NAME",
                      name);
}

static int map_world(struct sstar_collective *plan)
{
    struct sstar_world *world = plan->world;
    int *node_of = malloc((size_t)world->size * sizeof *node_of);
    if (!node_of)
        return report_set(&world->report, -ENOMEM, "collectives: out of memory");
    for (int rank = 0; rank < world->size; rank++)
        node_of[rank] = sstar_node_of(world, rank);
    int err = node_map_init(&plan->map, world->size, node_of);
    free(node_of);
    return err ? report_set(&world->report, err, "collectives: out of memory") : 0;
}

/* Those among which the choice is; each does something of its own in a world like this. */
static void find_candidates(struct sstar_collective *plan)
{
    bool one_node = plan->map.nodes == 1, one_each = plan->map.nodes == plan->map.size;
    for (int i = SSTAR_RING; i < SSTAR_ALGORITHMS; i++) {
        enum sstar_algorithm it = (enum sstar_algorithm)i;
        bool family = algorithm_is_hierarchical(it);
        if (it == SSTAR_HIERARCHICAL || !schedule_exists(plan->operation, it))
            continue;
        if (plan->asked == SSTAR_AUTO) /* inside a node memory is always the way */
            plan->candidates[i] = family ? !one_each : true;
        else
            plan->candidates[i] =
                plan->asked == it || (plan->asked == SSTAR_HIERARCHICAL && family);
    }
    /* All hierarchical ones are the same there. */
    if (one_node && (plan->asked == SSTAR_AUTO || plan->asked == SSTAR_HIERARCHICAL)) {
        enum sstar_algorithm local = SSTAR_HIERARCHICAL_RING;
        if (schedule_exists(plan->operation, SSTAR_HIERARCHICAL_DOUBLING))
            local = SSTAR_HIERARCHICAL_DOUBLING;
        memset(plan->candidates, 0, sizeof plan->candidates);
        plan->candidates[local] = true;
    }
}

static int settle(struct sstar_collective *plan, const struct sstar_collective_attr *attr)
{
    struct sstar_world *world = plan->world;
    const struct sstar_config *config = &world->config;
    const struct sstar_wire *wire = &config->wire;
    plan->operation = attr->operation;
    plan->asked = attr->algorithm;
    plan->root = attr->root;
    plan->queue_pairs = attr->queue_pairs         ? attr->queue_pairs
                        : config->queue_pairs > 0 ? (uint32_t)config->queue_pairs
                                                  : 4;
    plan->slice_given = attr->slice_bytes != 0;
    plan->slot_bytes = plan->slice_given ? attr->slice_bytes / 8 * 8 : PLAN_SLOT_BYTES;
    plan->shaped = wire->alpha_us > 0 || wire->gap_us > 0 || wire->beta_gbps > 0;
    plan->kernels = reduce_best();
    plan->copy = copy_best(world);
    plan->wire_type = attr->wire_type;
    for (int k = 0; plan->wire_type != SSTAR_FLOAT32 && k < 2; k++) {
        plan->wide[k] = malloc(plan->slot_bytes);
        if (!plan->wide[k])
            return report_set(&world->report, -ENOMEM, "collectives: out of memory");
    }
    int err = overrule(plan);
    if (!err)
        err = map_world(plan);
    if (err)
        return err;
    int least = node_map_least(&plan->map);
    plan->rings = !config->port_per_rank      ? 1
                  : least < SCHEDULE_CHANNELS ? (uint32_t)least
                                              : SCHEDULE_CHANNELS;
    find_candidates(plan);
    return node_part_open(&plan->node, world, &plan->map);
}

/* What of a plan a rank asks for as no other may: "ring by algorithm". False: nothing. */
static bool plans_differ(const struct hello *a, const struct hello *b, const char **what,
                         char mine[32], char theirs[32])
{
    const struct hello *both[2] = {a, b};
    char *text[2] = {mine, theirs};
    for (int i = 0; i < 2; i++) {
        const struct hello *it = both[i];
        if (a->operation != b->operation) {
            *what = "operation";
            snprintf(text[i], 32, "%s", sstar_operation_name((enum sstar_operation)it->operation));
        } else if (a->algorithm != b->algorithm) {
            *what = "algorithm (or SSTAR_ALGORITHM)";
            snprintf(text[i], 32, "%s", sstar_algorithm_name((enum sstar_algorithm)it->algorithm));
        } else if (a->wire_type != b->wire_type) {
            *what = "wire type";
            snprintf(text[i], 32, "%s", sstar_type_name((enum sstar_type)it->wire_type));
        } else if (a->root != b->root) {
            *what = "root";
            snprintf(text[i], 32, "%d", it->root);
        } else if (a->slice_bytes != b->slice_bytes) {
            *what = "slice_bytes";
            snprintf(text[i], 32, "%u", it->slice_bytes);
        } else if (a->queue_pairs != b->queue_pairs) {
            *what = "queue_pairs";
            snprintf(text[i], 32, "%u", it->queue_pairs);
        } else {
            return false;
        }
    }
    return true;
}

/* Tell all whether we got what we need and where it is; all fail if one does. */
static int meet_others(struct sstar_collective *plan, const struct sstar_collective_attr *attr,
                       int status)
{
    struct sstar_world *world = plan->world;
    if (!status && world->rank == 0) {
        int read = tuning_read_cores(plan);
        status = read < 0 ? read : 0;
    }
    struct hello mine = {.area = (uintptr_t)plan->node.area,
                         .operation = attr->operation,
                         .algorithm = plan->asked,
                         .queue_pairs = attr->queue_pairs,
                         .slice_bytes = attr->slice_bytes,
                         .wire_type = attr->wire_type,
                         .root = attr->root,
                         .cores = (uint32_t)world->cores,
                         .crowded = world_crowded(world),
                         .frozen = (uint32_t)plan->cores,
                         .freezes = world->rank == 0 && *world->config.tuning && !plan->cores,
                         .status = status};
    size_t size = (size_t)world->size;
    struct hello *all = calloc(size, sizeof *all + sizeof(uint64_t));
    if (!all)
        return report_set(&world->report, -ENOMEM, "collectives: out of memory");
    uint64_t *areas = (uint64_t *)(all + size);
    uint32_t cores = UINT32_MAX;
    bool crowded = false;
    const char *what;
    char ours[32], theirs[32];
    int err = sstar_allgather(world, &mine, sizeof mine, all);
    for (int rank = 0; !err && !status && rank < world->size; rank++) {
        const struct hello *it = &all[rank];
        areas[rank] = it->area;
        cores = it->cores < cores ? it->cores : cores;
        crowded |= it->crowded != 0;
        if (it->status)
            err = report_set(&world->report, it->status, "%s: rank %d could not open: %s",
                             sstar_operation_name(attr->operation), rank, strerror(-it->status));
        else if (plans_differ(&mine, it, &what, ours, theirs))
            err = report_set(&world->report, -EINVAL,
                             "collectives: rank %d asks for a plan with %s %s and rank %d with %s; "
                             "every rank must ask for the same",
                             world->rank, what, ours, rank, theirs);
    }
    plan->cores = all->frozen ? (int)all->frozen : crowded ? (int)cores : 1;
    plan->freezes_cores = all->freezes;
    node_part_group(&plan->node, plan->cores);
    if (crowded)
        node_part_crowd(&plan->node);
    if (!err && !status)
        err = node_part_meet(&plan->node, areas);
    free(all);
    return status ? status : err;
}

/* ---- links -------------------------------------------------------------------------------------
 */

static int channels_of(const struct sstar_collective *plan, enum sstar_algorithm algorithm)
{
    bool local = plan->map.nodes == 1 && algorithm_is_hierarchical(algorithm);
    enum sstar_algorithm across =
        algorithm_is_hierarchical(algorithm) ? algorithm_across(algorithm) : algorithm;
    return plan->map.size == 1 || local ? 0
           : across == SSTAR_TREE       ? 2
           : across == SSTAR_RING && plan->operation != SSTAR_BROADCAST &&
                   plan->operation != SSTAR_REDUCE
               ? (int)plan->rings
               : 1;
}

/* Mark whom we send to or receive from: a vector with something for everybody shows them all. */
static int mark_peers(struct sstar_collective *plan, enum sstar_algorithm algorithm, bool *peers)
{
    struct sstar_world *world = plan->world;
    struct schedule_shape shape = {.operation = plan->operation,
                                   .algorithm = algorithm,
                                   .map = &plan->map,
                                   .count = (size_t)world->size * SCHEDULE_CHANNELS * 2,
                                   .root = plan->root,
                                   .slice_elements = SIZE_MAX / 4,
                                   .window = PLAN_WINDOW,
                                   .channels = plan->rings};
    int err = schedule_make(&plan->schedule, &shape, world->rank);
    if (err)
        return world_fail(world, err, "collectives: rank %d is out of memory", world->rank);
    for (size_t i = 0; i < plan->schedule.n_steps; i++) {
        const struct step *step = &plan->schedule.steps[i];
        bool *of_channel = peers + (size_t)step->channel * (size_t)world->size;
        for (int k = 0; k < 2; k++) {
            if (step->from[k] >= 0)
                of_channel[step->from[k]] = true;
            if (step->to[k] >= 0)
                of_channel[step->to[k]] = true;
        }
    }
    return 0;
}

static int open_channel(struct sstar_collective *plan, const bool *wanted, int *peers, int channel)
{
    struct sstar_link_attr attr = {
        .queue_pairs = plan->queue_pairs, .slots = PLAN_SLOTS, .slot_bytes = plan->slot_bytes};
    int n = 0;
    for (int rank = 0; rank < plan->world->size; rank++)
        if (wanted[rank])
            peers[n++] = rank;
    plan->sent_size += n;
    int err = sstar_links_open(plan->world, peers, n, &attr, &plan->channels[channel]);
    plan->n_channels += !err;
    return err;
}

static int open_links(struct sstar_collective *plan)
{
    struct sstar_world *world = plan->world;
    size_t size = (size_t)world->size;
    bool *wanted = calloc(size, SCHEDULE_CHANNELS + sizeof(int));
    if (!wanted)
        return world_fail(world, -ENOMEM, "collectives: out of memory");
    int *peers = (int *)(wanted + size * SCHEDULE_CHANNELS), channels = 0, err = 0;
    for (int i = 0; i < SSTAR_ALGORITHMS && !err; i++) {
        int n = plan->candidates[i] ? channels_of(plan, (enum sstar_algorithm)i) : 0;
        channels = n > channels ? n : channels;
        if (n)
            err = mark_peers(plan, (enum sstar_algorithm)i, wanted);
    }
    for (int c = 0; c < channels && !err; c++)
        err = open_channel(plan, wanted + (size_t)c * size, peers, c);
    free(wanted);
    plan->sent = calloc((size_t)plan->sent_size + 1, sizeof *plan->sent);
    if (!err && !plan->sent)
        err = world_fail(world, -ENOMEM, "collectives: out of memory");
    return err;
}

/* ---- the life of a plan ------------------------------------------------------------------------
 */

/* Accepts a plan that is half open. */
static void destroy(struct sstar_collective *plan)
{
    while (plan->n_channels)
        sstar_links_close(plan->channels[--plan->n_channels]);
    node_part_close(&plan->node);
    node_map_destroy(&plan->map);
    schedule_destroy(&plan->schedule);
    free(plan->sent);
    free(plan->wide[0]);
    free(plan->wide[1]);
    free(plan->work);
    free(plan);
}

int sstar_collective_open(struct sstar_world *world, const struct sstar_collective_attr *attr,
                          struct sstar_collective **plan)
{
    struct sstar_collective_attr own = attr ? *attr : (struct sstar_collective_attr){0};
    int status = own.progress_thread ? progress_thread_start(world) : 0;
    WORLD_TURN(world);
    if (world->failed)
        return world->failed;
    struct sstar_collective *made = calloc(1, sizeof *made);
    if (!made)
        return report_set(&world->report, -ENOMEM, "collectives: out of memory");
    made->world = world;
    atomic_init(&made->run.done, true);
    /* A rank that fails here still meets the others, so that they hear of it. */
    if (!status)
        status = attr_check(world, &own);
    if (!status)
        status = settle(made, &own);
    int err = meet_others(made, &own, status);
    if (!err)
        err = open_links(made);
    if (!err)
        err = plan_choose(made);
    if (err) {
        destroy(made);
        return err;
    }
    *plan = made;
    return 0;
}

void sstar_collective_close(struct sstar_collective *plan)
{
    if (!plan)
        return;
    WORLD_TURN(plan->world);
    sstar_collective_wait(
        plan); /* the others count on what is under way; an error stays in the world */
    /* Nobody takes its area away while another still reads there; closing links is a barrier too.
     */
    if (!plan->n_channels && !plan->world->failed)
        sstar_barrier(plan->world);
    destroy(plan);
}
