/* SPDX-License-Identifier: MIT */
/* Plays a list of collectives: those that are one by a plan for each operation, an all-to-all by
 * the aggregator under one strategy after the other. */
#include "collectives/wire_cost.h"
#include "tools/collective.h"
#include "tools/record.h"
#include "tools/replay.h"
#include "tools/strategies.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2 };

struct run {
    struct sstar_world *world;
    const struct replay_arguments *arguments;
    struct replay replay;
    struct sstar_cost cost;
    char device_class[24];
    struct sstar_collective *plans[SSTAR_OPERATIONS];
    void *send, *recv; /* of the longest vector */
    json_t *rows;      /* rank 0 */
    uint64_t wrong;
    double played, all; /* entries; of progress */
};

static void add_row(struct run *run, const struct replay_entry *entry, const char *by,
                    const struct replay_outcome *outcome)
{
    run->wrong += outcome->wrong;
    run->played++;
    if (!run->rows)
        return;
    json_t *row = replay_row(entry, by, run->device_class, outcome);
    progress_clear(&run->arguments->common, run->world);
    replay_print_row(row);
    json_array_append_new(run->rows, row);
    progress_show(&run->arguments->common, run->world, "replay", run->played / run->all);
}

/* ---- collectives --------------------------------------------------------------------------------
 */

static enum sstar_type type_of(uint32_t element_bytes)
{
    return element_bytes == 1   ? SSTAR_UINT8
           : element_bytes == 2 ? SSTAR_BFLOAT16
           : element_bytes == 4 ? SSTAR_FLOAT32
                                : SSTAR_FLOAT64;
}

/* Elements as the call counts them; of a reducescatter the entry has the whole vector. */
static size_t count_of(const struct run *run, const struct replay_entry *entry)
{
    size_t n = entry->bytes / entry->element_bytes;
    return entry->kind == SSTAR_REDUCE_SCATTER ? n / (size_t)run->replay.ranks : n;
}

/* Bytes of the longest vector of an entry. */
static uint64_t vector_bytes(const struct run *run, const struct replay_entry *entry)
{
    if (replay_is_alltoall(entry->kind))
        return 0;
    return entry->kind == SSTAR_ALL_GATHER ? entry->bytes * (uint64_t)run->replay.ranks
                                           : entry->bytes;
}

static int open_plans(struct run *run)
{
    uint64_t most = 8;
    int err = 0;
    for (size_t i = 0; i < run->replay.n && !err; i++) {
        const struct replay_entry *entry = &run->replay.entries[i];
        uint64_t bytes = vector_bytes(run, entry);
        most = bytes > most ? bytes : most;
        if (replay_is_alltoall(entry->kind) || run->plans[entry->kind])
            continue;
        struct sstar_collective_attr attr = {.operation = (enum sstar_operation)entry->kind};
        err = sstar_collective_open(run->world, &attr, &run->plans[entry->kind]);
    }
    if (!err)
        err = sstar_alloc(run->world, most, &run->send);
    return err ? err : sstar_alloc(run->world, most, &run->recv);
}

static int play_collective(struct run *run, const struct replay_entry *entry)
{
    struct collective_trial trial = {.world = run->world,
                                     .plan = run->plans[entry->kind],
                                     .operation = (enum sstar_operation)entry->kind,
                                     .send = run->send,
                                     .recv = run->recv,
                                     .count = count_of(run, entry),
                                     .type = type_of(entry->element_bytes),
                                     .op = SSTAR_SUM,
                                     .seed = run->arguments->common.seed};
    struct replay_outcome outcome = {0};
    struct sstar_price price = {0};
    int err = run->arguments->check ? collective_check(&trial, &outcome.wrong) : 0;
    if (!err)
        err = collective_time(&trial, WARM_UP, run->arguments->repeat, &outcome.us);
    price.algorithm = sstar_collective_choice(trial.plan, trial.count, trial.type);
    if (!err && run->rows && sstar_node_count(run->world) > 1)
        err = sstar_collective_price(trial.plan, trial.count, trial.type, &price);
    outcome.predicted_us = price.us;
    if (!err)
        add_row(run, entry, sstar_algorithm_name(price.algorithm), &outcome);
    return err;
}

static int play_collectives(struct run *run)
{
    int err = open_plans(run);
    for (size_t i = 0; i < run->replay.n && !err; i++)
        if (!replay_is_alltoall(run->replay.entries[i].kind))
            err = play_collective(run, &run->replay.entries[i]);
    return err;
}

/* ---- all-to-alls --------------------------------------------------------------------------------
 */

static int play_strategy(struct run *run, enum sstar_strategy strategy)
{
    struct replay_alltoall *alltoall;
    int err = replay_alltoall_open(run->world, run->arguments, &run->replay, &run->cost, strategy,
                                   &alltoall);
    if (err)
        return err;
    for (size_t i = 0; i < run->replay.n && !err; i++) {
        const struct replay_entry *entry = &run->replay.entries[i];
        struct replay_outcome outcome;
        if (!replay_is_alltoall(entry->kind))
            continue;
        err = replay_alltoall_play(alltoall, entry, &outcome);
        if (!err)
            add_row(run, entry, sstar_strategy_name(strategy), &outcome);
    }
    replay_alltoall_close(alltoall);
    return err;
}

static int alltoalls(const struct replay *replay)
{
    int n = 0;
    for (size_t i = 0; i < replay->n; i++)
        n += replay_is_alltoall(replay->entries[i].kind);
    return n;
}

static int play_alltoalls(struct run *run)
{
    int err = 0;
    for (int s = 0; s < SSTAR_STRATEGIES && !err && alltoalls(&run->replay); s++)
        if (run->arguments->strategies[s])
            err = play_strategy(run, (enum sstar_strategy)s);
    return err;
}

/* ---- all ----------------------------------------------------------------------------------------
 */

static int prepare(struct run *run)
{
    int strategies = 0, n = alltoalls(&run->replay);
    for (int s = 0; s < SSTAR_STRATEGIES; s++)
        strategies += run->arguments->strategies[s];
    run->all = (double)run->replay.n + (double)n * (strategies - 1);
    strcpy(run->device_class, "memory");
    int err = wire_cost(run->world, &run->cost);
    if (!err && sstar_node_count(run->world) > 1) {
        struct sstar_device_info device;
        err = sstar_device_info(run->world, &device);
        if (!err)
            strcpy(run->device_class, device.device_class);
    }
    return err;
}

static int write_record(const struct run *run, const json_t *sums)
{
    const struct replay_arguments *a = run->arguments;
    json_t *record = record_new(run->world, "replay");
    json_object_set_new(record, "file", record_string(a->path));
    json_object_set_new(record, "repeat", json_integer(a->repeat));
    json_object_set_new(record, "message_bytes", json_integer(a->message_bytes));
    json_object_set_new(record, "checked", json_boolean(a->check));
    json_object_set(record, "replay", run->rows);
    json_object_set(record, "kinds", (json_t *)sums);
    int status = record_write_json(record, a->common.json) ||
                 record_write_csv(record, "replay", a->common.csv);
    json_decref(record);
    return status;
}

static int play(struct run *run, int *status)
{
    int err = prepare(run);
    if (!err && run->rows)
        replay_print_head(run->world, run->arguments, &run->replay, &run->cost, run->device_class);
    if (!err)
        err = play_collectives(run);
    if (!err)
        err = play_alltoalls(run);
    progress_clear(&run->arguments->common, run->world);
    if (err)
        return err;
    if (run->rows) {
        json_t *sums = replay_sums(run->rows);
        replay_print_sums(sums);
        *status = write_record(run, sums);
        json_decref(sums);
        if (run->wrong)
            fprintf(stderr, "sstar replay: %llu elements or bytes are wrong\n",
                    (unsigned long long)run->wrong);
    }
    if (run->wrong)
        *status = EXIT_FAILURE;
    return 0;
}

int replay_run(struct sstar_world *world, void *arguments, int *status)
{
    struct run run = {.world = world, .arguments = arguments};
    char error[512];
    run.rows = sstar_rank(world) == 0 ? json_array() : NULL;
    int err = replay_read(run.arguments->path, &run.replay, error, sizeof error);
    if (err) {
        fprintf(stderr, "sstar replay: %s\n", error);
        *status = EXIT_FAILURE;
    } else if (run.replay.ranks != sstar_size(world)) {
        if (run.rows)
            fprintf(stderr, "sstar replay: %s is of %d ranks, and there are %d; start %d\n",
                    run.arguments->path, run.replay.ranks, sstar_size(world), run.replay.ranks);
        *status = EXIT_USAGE;
    } else {
        err = play(&run, status);
    }
    if (run.recv)
        sstar_free(world, run.recv);
    if (run.send)
        sstar_free(world, run.send);
    for (int i = 0; i < SSTAR_OPERATIONS; i++)
        sstar_collective_close(run.plans[i]);
    replay_free(&run.replay);
    json_decref(run.rows);
    return err;
}
