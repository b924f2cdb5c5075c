/* SPDX-License-Identifier: MIT */
/* sstar, for method.c, by its public calls. */
#include "collectives/collectives.h"
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sstar_world *world;
static struct sstar_collective *plan;
static struct sstar_aggregator *aggregator; /* for blocks of so many bytes */
static size_t aggregator_bytes;
static bool aggregator_used;

static void must(int err)
{
    if (err >= 0)
        return;
    fprintf(stderr, "compare: rank %d: %s\n", sstar_rank(world), sstar_last_error(world));
    exit(1);
}

void peer_open(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    struct sstar_config config;
    char error[512];
    int err = sstar_config_init(&config, error, sizeof error);
    /* Between commands a rank waits for as long as the others are measured. */
    config.timeout_s = 24 * 3600;
    config.log_level = SSTAR_LOG_NONE;
    if (!err)
        err = sstar_world_open(&world, &config, error, sizeof error);
    if (err) {
        fprintf(stderr, "compare: %s\n", error);
        exit(1);
    }
    must(sstar_collective_open(world, NULL, &plan));
}

void peer_close(void)
{
    sstar_aggregator_close(aggregator);
    sstar_collective_close(plan);
    sstar_world_close(world);
}

int peer_rank(void)
{
    return sstar_rank(world);
}

int peer_size(void)
{
    return sstar_size(world);
}

/* Over TCP, which waits asleep. */
void peer_tell(char command[PEER_COMMAND_BYTES])
{
    char *all = calloc((size_t)peer_size(), PEER_COMMAND_BYTES);
    must(all ? 0 : -ENOMEM);
    must(sstar_allgather(world, command, PEER_COMMAND_BYTES, all));
    memcpy(command, all, PEER_COMMAND_BYTES);
    free(all);
}

void peer_barrier(void)
{
    must(sstar_fast_barrier(world));
}

void peer_allreduce(const void *send, void *recv, size_t count)
{
    must(sstar_collective_run(plan, send, recv, count, SSTAR_FLOAT32, SSTAR_SUM));
}

/* One message for each other rank, then one from each. */
void peer_alltoall(const void *send, void *recv, size_t bytes)
{
    const int me = peer_rank(), size = peer_size();
    struct sstar_item item;
    int left = 1, got;
    for (int i = 1; i < size; i++) {
        int to = (me + i) % size;
        must(sstar_push(aggregator, to, (const char *)send + (size_t)to * bytes, (uint32_t)bytes));
    }
    memcpy((char *)recv + (size_t)me * bytes, (const char *)send + (size_t)me * bytes, bytes);
    for (int due = size - 1; due > 0;) {
        must(left = sstar_advance(aggregator, true));
        while (due > 0 && (got = sstar_pull(aggregator, &item)) != 0) {
            must(got);
            memcpy((char *)recv + (size_t)item.source * bytes, item.data, bytes);
            due--;
        }
    }
    while (left)
        must(left = sstar_advance(aggregator, true));
}

void peer_alltoall_prepare(size_t bytes)
{
    if (aggregator && aggregator_bytes == bytes) {
        if (aggregator_used)
            must(sstar_aggregator_reset(aggregator));
    } else {
        sstar_aggregator_close(aggregator);
        /* A block alone does not fill a buffer: it leaves together with the end of its stream. */
        struct sstar_aggregator_attr attr = {.strategy = SSTAR_PER_RANK,
                                             .item_bytes = (uint32_t)bytes,
                                             .flush_bytes = (uint32_t)bytes * 2};
        must(sstar_aggregator_open(world, &attr, &aggregator));
        aggregator_bytes = bytes;
    }
    aggregator_used = true;
}

void peer_greatest(double *values, int n)
{
    size_t size = (size_t)peer_size();
    double *all = calloc((size_t)n * size, sizeof *all);
    must(all ? 0 : -ENOMEM);
    must(sstar_allgather(world, values, (size_t)n * sizeof *all, all));
    for (size_t r = 0; r < size; r++)
        for (int i = 0; i < n; i++)
            if (all[r * (size_t)n + (size_t)i] > values[i])
                values[i] = all[r * (size_t)n + (size_t)i];
    free(all);
}

void *peer_alloc(size_t bytes)
{
    void *memory;
    return sstar_alloc(world, bytes, &memory) ? NULL : memory;
}

void peer_free(void *memory)
{
    must(sstar_free(world, memory));
}
