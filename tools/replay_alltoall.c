/* SPDX-License-Identifier: MIT */
/*
 * One all-to-all of a replay through the aggregator: the block for each rank is one message, cut
 * where it is longer than --message-bytes. What arrives is put where a receive buffer has it, since
 * a collective gives its caller that; the contents are checked there, outside of what is timed.
 */
#include "tools/replay.h"
#include "tools/stream.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2 };

/* The next piece that is to be pushed. Ranks begin with those behind them, so that not all fill the
 * same one first. */
struct cursor {
    int step; /* 0 .. ranks: to rank + step */
    uint64_t done;
};

struct replay_alltoall {
    struct sstar_world *world;
    const struct replay_arguments *arguments;
    struct stream stream;
    int rank, ranks;
    struct cursor cursor;
    uint64_t *send_at, *receive_at; /* [ranks + 1]: where the blocks begin */
    uint64_t *received;             /* [ranks]: bytes of each block so far */
    uint8_t *send, *receive;
    struct round_time *times;
};

/* ---- contents -----------------------------------------------------------------------------------
 */

/* Byte i of the block from one rank to another. */
static uint8_t content(int from, int to, uint64_t i)
{
    uint64_t z = ((uint64_t)from << 40 ^ (uint64_t)to << 28 ^ i) * 0x9e3779b97f4a7c15u;
    return (uint8_t)(z >> 56);
}

static void fill(struct replay_alltoall *a)
{
    for (int to = 0; to < a->ranks; to++)
        for (uint64_t i = a->send_at[to]; i < a->send_at[to + 1]; i++)
            a->send[i] = content(a->rank, to, i - a->send_at[to]);
    memset(a->receive, 0, a->receive_at[a->ranks]);
}

static uint64_t wrong_bytes(const struct replay_alltoall *a)
{
    uint64_t wrong = 0;
    for (int from = 0; from < a->ranks; from++)
        for (uint64_t i = a->receive_at[from]; i < a->receive_at[from + 1]; i++)
            wrong += a->receive[i] != content(from, a->rank, i - a->receive_at[from]) ||
                     i - a->receive_at[from] >= a->received[from];
    return wrong;
}

/* ---- playing ------------------------------------------------------------------------------------
 */

static int pull(void *context, const struct sstar_item *item)
{
    struct replay_alltoall *a = context;
    uint64_t at = a->receive_at[item->source] + a->received[item->source];
    uint64_t end = a->receive_at[item->source + 1];
    if (at + item->bytes > end)
        return world_fail(a->world, -EIO,
                          "rank %d got more from rank %d than the %llu bytes that are due", a->rank,
                          item->source, (unsigned long long)(end - a->receive_at[item->source]));
    memcpy(a->receive + at, item->data, item->bytes);
    a->received[item->source] += item->bytes;
    return 0;
}

static int push(void *context, struct sstar_aggregator *aggregator)
{
    struct replay_alltoall *a = context;
    struct cursor *c = &a->cursor;
    while (c->step < a->ranks) {
        int to = (a->rank + c->step) % a->ranks;
        uint64_t left = a->send_at[to + 1] - a->send_at[to] - c->done;
        if (!left) {
            *c = (struct cursor){c->step + 1, 0};
            continue;
        }
        uint32_t bytes = a->arguments->message_bytes;
        bytes = left < bytes ? (uint32_t)left : bytes;
        int err = sstar_push(aggregator, to, a->send + a->send_at[to] + c->done, bytes);
        if (err)
            return err;
        c->done += bytes;
    }
    return 0;
}

static const struct stream_ops ops = {push, pull};

static int round_of(struct replay_alltoall *a, struct round_time *time)
{
    memset(a->received, 0, (size_t)a->ranks * sizeof *a->received);
    a->cursor = (struct cursor){0};
    return stream_round(&a->stream, time);
}

static int play_rounds(struct replay_alltoall *a, uint64_t *wrong)
{
    struct round_time ignored;
    int err = round_of(a, &ignored);
    *wrong = a->arguments->check && !err ? wrong_bytes(a) : 0;
    for (uint32_t i = 1; i < WARM_UP && !err; i++)
        err = round_of(a, &ignored);
    for (uint32_t i = 0; i < a->arguments->repeat && !err; i++)
        err = round_of(a, &a->times[i]);
    return err;
}

/* ---- what came of it ----------------------------------------------------------------------------
 */

static int predict(const struct replay_alltoall *a, const struct replay_entry *entry, double *us)
{
    size_t pairs = (size_t)a->ranks * (size_t)a->ranks;
    uint64_t *messages = calloc(pairs, sizeof *messages);
    if (!messages)
        return -ENOMEM;
    for (size_t i = 0; i < pairs; i++)
        messages[i] =
            (entry->blocks[i] + a->arguments->message_bytes - 1) / a->arguments->message_bytes;
    int err = stream_predict(&a->stream, messages, entry->blocks, us);
    free(messages);
    return err;
}

/* What was wrong and what went over the wire, summed over the ranks. */
static int sum_up(struct replay_alltoall *a, uint64_t wrong, struct replay_outcome *out)
{
    struct sstar_ledger ledger;
    uint64_t *all = calloc((size_t)a->ranks, sizeof *all);
    int err = all ? sstar_allgather(a->world, &wrong, sizeof wrong, all) : -ENOMEM;
    for (int r = 0; !err && r < a->ranks; r++)
        out->wrong += all[r];
    free(all);
    if (!err)
        err = stream_ledger(&a->stream, &ledger);
    if (err)
        return err;
    out->wire_messages = ledger.wire_messages;
    out->cross_bytes = ledger.cross_bytes;
    out->past_bytes = ledger.past[SSTAR_PAST_S_STAR].message_bytes;
    return 0;
}

static void lay_out(struct replay_alltoall *a, const struct replay_entry *entry)
{
    size_t n = (size_t)a->ranks, me = (size_t)a->rank;
    for (size_t r = 0; r < n; r++) {
        a->send_at[r + 1] = a->send_at[r] + entry->blocks[me * n + r];
        a->receive_at[r + 1] = a->receive_at[r] + entry->blocks[r * n + me];
    }
}

int replay_alltoall_play(struct replay_alltoall *a, const struct replay_entry *entry,
                         struct replay_outcome *out)
{
    uint64_t wrong = 0;
    *out = (struct replay_outcome){0};
    lay_out(a, entry);
    fill(a);
    int err = play_rounds(a, &wrong);
    if (!err)
        err = rounds_median(a->world, a->times, a->arguments->repeat, &out->us);
    if (!err)
        err = sum_up(a, wrong, out);
    if (!err)
        err = predict(a, entry, &out->predicted_us);
    return err;
}

/* ---- opening ------------------------------------------------------------------------------------
 */

static uint64_t largest(const struct replay *replay, int rank, bool sent)
{
    uint64_t most = 1;
    size_t n = (size_t)replay->ranks, me = (size_t)rank;
    for (size_t i = 0; i < replay->n; i++) {
        uint64_t sum = 0;
        for (size_t r = 0; replay->entries[i].blocks && r < n; r++)
            sum += replay->entries[i].blocks[sent ? me * n + r : r * n + me];
        most = sum > most ? sum : most;
    }
    return most;
}

static int allocate(struct replay_alltoall *a, const struct replay *replay)
{
    size_t n = (size_t)a->ranks;
    a->send_at = calloc(n + 1, sizeof *a->send_at);
    a->receive_at = calloc(n + 1, sizeof *a->receive_at);
    a->received = calloc(n, sizeof *a->received);
    a->send = malloc(largest(replay, a->rank, true));
    a->receive = malloc(largest(replay, a->rank, false));
    a->times = calloc(a->arguments->repeat, sizeof *a->times);
    if (!a->send_at || !a->receive_at || !a->received || !a->send || !a->receive || !a->times)
        return world_fail(a->world, -ENOMEM, "no memory for the blocks of an all-to-all");
    return 0;
}

int replay_alltoall_open(struct sstar_world *world, const struct replay_arguments *arguments,
                         const struct replay *replay, const struct sstar_cost *cost,
                         enum sstar_strategy strategy, struct replay_alltoall **out)
{
    struct replay_alltoall *a = calloc(1, sizeof *a);
    if (!a)
        return world_fail(world, -ENOMEM, "no memory for an all-to-all");
    *a = (struct replay_alltoall){.world = world,
                                  .arguments = arguments,
                                  .stream = {.ops = &ops, .context = a},
                                  .rank = sstar_rank(world),
                                  .ranks = sstar_size(world)};
    struct sstar_aggregator_attr attr = {.strategy = strategy,
                                         .max_item_bytes = arguments->message_bytes};
    int err = allocate(a, replay);
    if (!err)
        err = stream_open(&a->stream, world, cost, &attr);
    if (err)
        replay_alltoall_close(a);
    else
        *out = a;
    return err;
}

void replay_alltoall_close(struct replay_alltoall *a)
{
    if (!a)
        return;
    stream_close(&a->stream);
    free(a->times);
    free(a->receive);
    free(a->send);
    free(a->received);
    free(a->receive_at);
    free(a->send_at);
    free(a);
}
