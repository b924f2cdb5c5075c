/* SPDX-License-Identifier: MIT */
/* See pair.h. */
#include "collectives/pair.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    PAGE = 4096,
    /* wait_step takes longer than a poll, and what is timed must not wait for it; after a while it
     * yields the core, too. */
    POLLS_PER_STEP = 16,
    SPINNING_POLLS_PER_STEP = 1 << 16,
    PUTS =
        256, /* under way at most: enough to keep any wire full while word of arrivals comes back */
};

static void choose_ranks(struct pair *pair)
{
    struct sstar_world *world = pair->world;
    pair->across_nodes = sstar_node_count(world) > 1;
    pair->asks = sstar_rank_at(world, 0, 0);
    pair->answers = pair->across_nodes ? sstar_rank_at(world, 1, 0) : sstar_rank_at(world, 0, 1);
    int rank = sstar_rank(world);
    pair->role = rank == pair->asks      ? PAIR_ASKS
                 : rank == pair->answers ? PAIR_ANSWERS
                                         : PAIR_LOOKS_ON;
}

static int peer_of(const struct pair *pair)
{
    return pair->role == PAIR_ASKS ? pair->answers : pair->asks;
}

static size_t memory_bytes(const struct pair *pair)
{
    return 2 * pair->max_bytes + PAGE;
}

/* Where the peer's reports arrive, and from where ours are sent. */
static size_t report_offset(const struct pair *pair)
{
    return 2 * pair->max_bytes;
}

static void *report_source(const struct pair *pair)
{
    return pair->memory + report_offset(pair) + PAGE / 2;
}

static int open_memory(struct pair *pair)
{
    void *memory;
    if (pair->role == PAIR_LOOKS_ON)
        return 0;
    int err = sstar_alloc(pair->world, memory_bytes(pair), &memory);
    if (err < 0)
        return err;
    memset(memory, 1, memory_bytes(pair)); /* no page is touched for the first time while timing */
    err = sstar_register(pair->world, memory, memory_bytes(pair), &pair->region);
    if (err < 0) {
        sstar_free(pair->world, memory);
        return err;
    }
    pair->memory = memory;
    return 0;
}

static void close_memory(struct pair *pair)
{
    if (pair->region)
        sstar_deregister(pair->region);
    if (pair->memory)
        sstar_free(pair->world, pair->memory);
    pair->region = NULL;
    pair->memory = NULL;
}

/* What a rank tells the others. */
struct told {
    struct sstar_remote_region region;
    int32_t err, core;
};

static int exchange(struct pair *pair, int opened)
{
    struct sstar_world *world = pair->world;
    struct told mine = {.err = opened, .core = pair_core_offer(pair)};
    struct told *all = calloc((size_t)sstar_size(world), sizeof *all);
    if (!all)
        return world_fail(world, -ENOMEM, "no memory for what %d ranks tell", sstar_size(world));
    if (pair->region)
        sstar_region_describe(pair->region, &mine.region);
    int err = sstar_allgather(world, &mine, sizeof mine, all);
    for (int rank = 0; !err && rank < sstar_size(world); rank++) {
        err = all[rank].err;
        if (err && !opened) /* who failed has its own sentence */
            report_set(&world->report, err,
                       "rank %d cannot get or register memory to measure with: %s", rank,
                       strerror(-err));
    }
    if (!err && pair->role != PAIR_LOOKS_ON) {
        const struct told *peer = &all[peer_of(pair)];
        pair->remote = peer->region;
        pair_core_take(pair, mine.core, peer->core);
    }
    free(all);
    return err;
}

static int open_links(struct pair *pair)
{
    const struct sstar_link_attr attr = {.puts = PUTS};
    int peer = peer_of(pair);
    int peers = pair->role == PAIR_LOOKS_ON ? 0 : 1;
    int err = sstar_links_open(pair->world, &peer, peers, &attr, &pair->links);
    if (err < 0)
        return err;
    pair->link = peers ? sstar_links_to(pair->links, peer) : NULL;
    return 0;
}

int pair_open(struct pair *pair, struct sstar_world *world, size_t max_bytes)
{
    if (sstar_size(world) < 2)
        return report_set(&world->report, -EINVAL,
                          "a world of one rank has nobody to measure with; start two (--ranks 2)");
    *pair = (struct pair){.world = world, .max_bytes = (max_bytes + PAGE - 1) / PAGE * PAGE};
    choose_ranks(pair);
    int err = exchange(pair, open_memory(pair));
    if (!err)
        err = open_links(pair);
    if (err) {
        pair_core_return(pair);
        close_memory(pair);
    }
    return err;
}

void pair_close(struct pair *pair)
{
    if (!pair->world)
        return;
    sstar_links_close(pair->links);
    pair_core_return(pair);
    close_memory(pair);
    *pair = (struct pair){0};
}

/* ---- one message ---------------------------------------------------------------------- */

/* Poll once. A signal may come without an event (it lies in memory), so the caller looks for it
 * after every poll. */
static int move_on(struct pair *pair, struct waiter *w)
{
    int events = sstar_links_progress(pair->links);
    if (events < 0)
        return events;
    uint32_t polls = pair->spins ? SPINNING_POLLS_PER_STEP : POLLS_PER_STEP;
    return ++pair->polls % polls ? 0 : wait_step(w);
}

static int put(struct pair *pair, const void *source, uint64_t offset, size_t bytes)
{
    struct waiter w =
        wait_begin(pair->world, "room for a put to be timed", peer_of(pair), pair->arrived);
    uint64_t ticket;
    for (;;) {
        int err = sstar_put(pair->link, pair->region, source, &pair->remote, offset, bytes,
                            SSTAR_SIGNAL, &ticket);
        if (err != -EAGAIN || (err = move_on(pair, &w)) < 0)
            return err;
    }
}

static int put_message(struct pair *pair, size_t bytes)
{
    return put(pair, pair->memory, pair->max_bytes, bytes);
}

/* Wait for `count` more signals of the peer than there were. */
static int await(struct pair *pair, uint64_t count)
{
    struct waiter w = wait_begin(pair->world, "the signal of a put to be timed", peer_of(pair),
                                 pair->arrived + count);
    while (sstar_signals(pair->link) < pair->arrived + count) {
        int err = move_on(pair, &w);
        if (err < 0)
            return err;
    }
    pair->arrived += count;
    return 0;
}

/* ---- what is asked -------------------------------------------------------------------- */

/* How often this thread lost its core. */
static uint64_t switches(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) ? 0 : (uint64_t)usage.ru_nivcsw;
}

enum question { LONE = 1, STREAM, FINISH, FINISH_FOR_NOW };

struct asked {
    uint64_t question, bytes, count;
};

struct report_back {
    double us;
    uint64_t switches; /* while it answered */
};

/* Both reports and questions land here. */
static const volatile void *report_landing(const struct pair *pair)
{
    return pair->memory + report_offset(pair);
}

static int await_report(struct pair *pair, uint64_t switches_before, double *us)
{
    int err = await(pair, 1);
    if (err)
        return err;
    struct report_back report = *(const volatile struct report_back *)report_landing(pair);
    pair->disturbed = report.switches || switches() != switches_before;
    if (us)
        *us = report.us;
    return 0;
}

/* Puts may overtake each other, so a question is answered before anything follows it. */
static int ask(struct pair *pair, enum question question, size_t bytes, int count)
{
    *(struct asked *)report_source(pair) =
        (struct asked){.question = question, .bytes = bytes, .count = (uint64_t)count};
    int err = put(pair, report_source(pair), report_offset(pair), sizeof(struct asked));
    return err ? err : await(pair, 1);
}

int pair_lone(struct pair *pair, size_t bytes, int warm, int count, double *us)
{
    int err = ask(pair, LONE, bytes, warm + count);
    uint64_t switches_before = switches(), before = clock_ns();
    for (int i = -warm; i < count && !err; i++) {
        err = put_message(pair, bytes);
        if (!err)
            err = await(pair, 1);
        uint64_t now = clock_ns();
        if (i >= 0)
            us[i] = (double)(now - before) / 2e3;
        before = now;
    }
    return err ? err : await_report(pair, switches_before, NULL);
}

int pair_stream(struct pair *pair, size_t bytes, int messages, double *us)
{
    int err = ask(pair, STREAM, bytes, messages);
    uint64_t switches_before = switches();
    for (int i = 0; i < messages && !err; i++)
        err = put_message(pair, bytes);
    return err ? err : await_report(pair, switches_before, us);
}

int pair_finish(struct pair *pair, bool more)
{
    return ask(pair, more ? FINISH_FOR_NOW : FINISH, 0, 0);
}

/* ---- what is answered ----------------------------------------------------------------- */

static int report_back(struct pair *pair, double us, uint64_t switches_before)
{
    *(struct report_back *)report_source(pair) =
        (struct report_back){.us = us, .switches = switches() - switches_before};
    return put(pair, report_source(pair), report_offset(pair), sizeof(struct report_back));
}

static int answer_lone(struct pair *pair, size_t bytes, uint64_t count)
{
    uint64_t switches_before = switches();
    int err = 0;
    for (uint64_t i = 0; i < count && !err; i++) {
        err = await(pair, 1);
        if (!err)
            err = put_message(pair, bytes);
    }
    return err ? err : report_back(pair, 0, switches_before);
}

/* Time from an early arrival to the last, and report it. */
static int answer_stream(struct pair *pair, uint64_t messages)
{
    uint64_t warm = messages / 5 + 1, begin = pair->arrived + warm;
    uint64_t switches_before = switches();
    int err = await(pair, warm);
    uint64_t begun_ns = clock_ns(), begun = sstar_signals(pair->link);
    if (!err)
        err = await(pair, messages - warm);
    uint64_t ended_ns = clock_ns(), timed = pair->arrived - begun;
    if (err)
        return err;
    /* If a backlog was there when we began, the time is not that of the wire. */
    bool lost = begun >= pair->arrived || begun - begin > messages / 4;
    double us = lost ? 0 : (double)(ended_ns - begun_ns) / 1e3 / (double)timed;
    return report_back(pair, us, switches_before);
}

int pair_serve(struct pair *pair)
{
    if (pair->role != PAIR_ANSWERS)
        return 0;
    for (;;) {
        int err = await(pair, 1);
        if (err)
            return err;
        struct asked asked = *(const volatile struct asked *)report_landing(pair);
        err = put_message(pair, 1);
        if (err || asked.question == FINISH)
            return err;
        if (asked.question == FINISH_FOR_NOW)
            return 1;
        err = asked.question == LONE ? answer_lone(pair, asked.bytes, asked.count)
                                     : answer_stream(pair, asked.count);
        if (err)
            return err;
    }
}
