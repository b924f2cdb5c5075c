/* SPDX-License-Identifier: MIT */
/*
 * Every protocol of transport/ordering.h on a softnic that gives the order it needs and no more, at
 * many seeds; and that a protocol which needs more than there is gets caught.
 */
#include "collectives/collectives.h"
#include "tests/ranks.h"
#include "tests/seeds.h"
#include "transport/device.h"
#include "transport/link.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

enum { MESSAGES = 60, MOST_BYTES = 600, PUTS = 24, CAUGHT_WITHIN = 20 };

static uint64_t seeds(void)
{
    return seeds_count(16, 1000);
}

/* ---- messages ------------------------------------------------------------------------------- */

static uint32_t bytes_of(int from, int to, int i)
{
    return (uint32_t)(pattern_seed(from, to, i) % (MOST_BYTES + 1));
}

static int send_next(struct sstar_link *link, int rank, int i)
{
    uint32_t bytes = bytes_of(rank, link_peer(link), i);
    void *payload;
    int err = link_reserve(link, bytes, &payload);
    if (err)
        return err;
    pattern_fill(payload, bytes, pattern_seed(rank, link_peer(link), i));
    return link_commit(link, bytes, i % 3 ? SSTAR_MORE : 0);
}

/* Each sends so many to the other; `one_way`: only rank 0 does. */
static int exchange(struct sstar_world *world, const struct sstar_link_attr *attr, bool one_way)
{
    int rank = sstar_rank(world), peer = rank ^ 1, sent = 0, received = 0;
    int to_send = one_way && rank != 0 ? 0 : MESSAGES;
    int to_receive = one_way && rank == 0 ? 0 : MESSAGES;
    struct sstar_links *links;
    CHECK(sstar_links_open(world, &peer, 1, attr, &links) == 0);
    struct sstar_link *link = sstar_links_to(links, peer);
    struct waiter w = wait_begin(world, "messages", peer, 0);
    while (sent < to_send || received < to_receive || !link_idle(link)) {
        struct message message;
        int err = sent < to_send ? send_next(link, rank, sent) : -EAGAIN;
        CHECK(err == 0 || err == -EAGAIN);
        sent += err == 0;
        int got = link_receive(link, &message);
        CHECK(got >= 0);
        if (got > 0) {
            CHECK(message.bytes == bytes_of(peer, rank, received));
            CHECK(pattern_holds(message.data, message.bytes, pattern_seed(peer, rank, received)));
            link_release(link, 1);
            received++;
        }
        if (err == 0 || got > 0)
            wait_progress(&w);
        CHECK(sstar_links_progress(links) >= 0 && wait_step(&w) == 0);
    }
    sstar_links_close(links);
    return 0;
}

static int body_messages(struct sstar_world *world, void *arg)
{
    (void)arg;
    const struct sstar_link_attr attr = {.queue_pairs = 3, .slots = 8, .slot_bytes = MOST_BYTES};
    return exchange(world, &attr, false);
}

static int body_credit(struct sstar_world *world, void *arg)
{
    (void)arg;
    const struct sstar_link_attr attr = {.queue_pairs = 2, .slots = 4, .slot_bytes = MOST_BYTES};
    return exchange(world, &attr, true);
}

/* ---- one-sided ------------------------------------------------------------------------------ */

struct board {
    uint64_t sum, before;
    uint8_t in[PUTS][MOST_BYTES], out[PUTS][MOST_BYTES], got[MOST_BYTES];
};

/* A pair of ranks, and memory that each can write at the other. */
struct pair {
    struct sstar_links *links;
    struct sstar_link *link;
    struct sstar_region *region;
    struct sstar_remote_region all[2];
    struct board *board;
    int rank, peer;
};

static int pair_open(struct sstar_world *world, struct pair *p)
{
    struct sstar_remote_region mine;
    void *memory;
    p->rank = sstar_rank(world);
    p->peer = p->rank ^ 1;
    CHECK(sstar_links_open(world, &p->peer, 1, &(struct sstar_link_attr){.queue_pairs = 3},
                           &p->links) == 0);
    p->link = sstar_links_to(p->links, p->peer);
    CHECK(sstar_alloc(world, sizeof *p->board, &memory) == 0);
    p->board = memory;
    CHECK(sstar_register(world, memory, sizeof *p->board, &p->region) == 0);
    sstar_region_describe(p->region, &mine);
    CHECK(sstar_allgather(world, &mine, sizeof mine, p->all) == 0);
    return 0;
}

static int pair_close(struct sstar_world *world, struct pair *p)
{
    CHECK(sstar_barrier(world) == 0);
    sstar_links_close(p->links);
    CHECK(sstar_deregister(p->region) == 0);
    CHECK(sstar_free(world, p->board) == 0);
    return 0;
}

static int put_one(struct pair *p, int i, uint64_t *ticket)
{
    uint32_t bytes = bytes_of(p->rank, p->peer, i);
    pattern_fill(p->board->out[i], bytes, pattern_seed(p->rank, p->peer, i));
    return sstar_put(p->link, p->region, p->board->out[i], &p->all[p->peer],
                     offsetof(struct board, in) + (size_t)i * MOST_BYTES, bytes, SSTAR_SIGNAL,
                     ticket);
}

static bool put_is_there(const struct pair *p, int i)
{
    return pattern_holds(p->board->in[i], bytes_of(p->peer, p->rank, i),
                         pattern_seed(p->peer, p->rank, i));
}

static int body_puts(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct pair p;
    uint64_t ticket = 0;
    CHECK(pair_open(world, &p) == 0);
    for (int i = 0; i < PUTS; i++)
        CHECK(put_one(&p, i, &ticket) == 0);
    CHECK(sstar_signal_wait(p.link, PUTS) == 0);
    for (int i = 0; i < PUTS; i++)
        CHECK(put_is_there(&p, i));
    CHECK(sstar_link_wait(p.link, ticket) == 0);
    return pair_close(world, &p);
}

static int body_gets(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct pair p;
    uint64_t ticket;
    CHECK(pair_open(world, &p) == 0);
    for (int i = 0; i < PUTS; i++)
        pattern_fill(p.board->out[i], bytes_of(p.rank, p.peer, i), pattern_seed(p.rank, p.peer, i));
    CHECK(sstar_barrier(world) == 0);
    for (int i = 0; i < PUTS; i++) {
        uint32_t bytes = bytes_of(p.peer, p.rank, i);
        CHECK(sstar_get(p.link, p.region, p.board->got, &p.all[p.peer],
                        offsetof(struct board, out) + (size_t)i * MOST_BYTES, bytes, 0,
                        &ticket) == 0);
        CHECK(sstar_link_wait(p.link, ticket) == 0);
        CHECK(pattern_holds(p.board->got, bytes, pattern_seed(p.peer, p.rank, i)));
    }
    return pair_close(world, &p);
}

static int body_adds(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct pair p;
    uint64_t ticket;
    CHECK(pair_open(world, &p) == 0);
    for (uint64_t i = 0; i < PUTS; i++) {
        CHECK(sstar_fetch_add(p.link, p.region, &p.board->before, &p.all[p.peer],
                              offsetof(struct board, sum), 3, i + 1 == PUTS ? SSTAR_SIGNAL : 0,
                              &ticket) == 0);
        CHECK(sstar_link_wait(p.link, ticket) == 0);
        CHECK(p.board->before == 3 * i);
    }
    CHECK(sstar_signal_wait(p.link, 1) == 0);
    CHECK(__atomic_load_n(&p.board->sum, __ATOMIC_ACQUIRE) == 3 * PUTS);
    return pair_close(world, &p);
}

static int body_barrier(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct pair p;
    uint64_t ticket;
    CHECK(pair_open(world, &p) == 0);
    for (int i = 0; i < PUTS; i++) {
        CHECK(put_one(&p, i, &ticket) == 0);
        CHECK(sstar_link_wait(p.link, ticket) == 0);
        CHECK(sstar_fast_barrier(world) == 0);
        CHECK(put_is_there(&p, i));
    }
    return pair_close(world, &p);
}

/* ---- collectives ---------------------------------------------------------------------------- */

static int body_allreduce(struct sstar_world *world, void *arg)
{
    (void)arg;
    enum { COUNT = 3001 };
    const int size = sstar_size(world);
    static const enum sstar_algorithm algorithms[] = {SSTAR_RING, SSTAR_HIERARCHICAL};
    int32_t numbers[COUNT];
    for (int a = 0; a < 2; a++) {
        const struct sstar_collective_attr attr = {.algorithm = algorithms[a], .slice_bytes = 1024};
        struct sstar_collective *plan;
        CHECK(sstar_collective_open(world, &attr, &plan) == 0);
        for (int i = 0; i < COUNT; i++)
            numbers[i] = i * (sstar_rank(world) + 1);
        CHECK(sstar_collective_run(plan, numbers, numbers, COUNT, SSTAR_INT32, SSTAR_SUM) == 0);
        for (int i = 0; i < COUNT; i++)
            CHECK(numbers[i] == i * (size * (size + 1) / 2));
        sstar_collective_close(plan);
    }
    return 0;
}

/* Message n of a rank to another is the number n, and they come in order. */
static int all_to_all(struct sstar_world *world, struct sstar_aggregator *aggregator)
{
    enum { EACH = 60 };
    const uint32_t size = (uint32_t)sstar_size(world);
    uint32_t pushed = 0, next[64] = {0};
    int left;
    do {
        struct sstar_item item;
        int err = 0, got;
        for (; pushed < EACH * size && err == 0; pushed += err == 0) {
            uint32_t number = pushed / size;
            err = sstar_push(aggregator, (int)(pushed % size), &number, sizeof number);
        }
        CHECK(err == 0 || err == -EAGAIN);
        while ((got = sstar_pull(aggregator, &item)) == 1) {
            CHECK(item.bytes == sizeof *next);
            CHECK(memcmp(item.data, &next[item.source], sizeof *next) == 0);
            next[item.source]++;
        }
        left = sstar_advance(aggregator, pushed == EACH * size);
        CHECK(got == 0 && left >= 0);
    } while (left);
    for (uint32_t from = 0; from < size; from++)
        CHECK(next[from] == EACH);
    return 0;
}

static int body_aggregator(struct sstar_world *world, void *arg)
{
    (void)arg;
    static const enum sstar_strategy strategies[] = {SSTAR_NONE, SSTAR_PER_RANK, SSTAR_PER_NODE};
    for (int s = 0; s < 3; s++) {
        const struct sstar_aggregator_attr attr = {
            .strategy = strategies[s], .max_item_bytes = 8, .flush_bytes = 256};
        struct sstar_aggregator *aggregator;
        CHECK(sstar_aggregator_open(world, &attr, &aggregator) == 0);
        CHECK(all_to_all(world, aggregator) == 0);
        sstar_aggregator_close(aggregator);
    }
    return 0;
}

/* ---- each on a device that gives no more ---------------------------------------------------- */

/* What is run for a protocol, and on how many ranks. */
static const struct trial {
    const char *protocol;
    int (*body)(struct sstar_world *world, void *arg);
    int size, per_node;
} trials[] = {
    {"message, arrival in memory", body_messages, 2, 1},
    {"message, arrival by completion", body_messages, 2, 1},
    {"credit, arrival in memory", body_credit, 2, 1},
    {"credit, arrival by completion", body_credit, 2, 1},
    {"put with signal, arrival in memory", body_puts, 2, 1},
    {"put with signal, arrival by completion", body_puts, 2, 1},
    {"get", body_gets, 2, 1},
    {"fetch-add", body_adds, 2, 1},
    {"message inside a node", body_messages, 2, 2},
    {"barrier", body_barrier, 2, 1},
    {"AllReduce", body_allreduce, 4, 2},
    {"aggregator", body_aggregator, 4, 2},
};

static void run_protocol(const struct protocol *protocol, bool keep_qps)
{
    const struct trial *trial = NULL;
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        if (strcmp(trials[i].protocol, protocol->name) == 0)
            trial = &trials[i];
    if (trial == NULL)
        fail_msg("no trial of \"%s\" here: every protocol has one", protocol->name);
    for (uint64_t seed = seeds_first(), n = seeds(); n > 0; seed++, n--) {
        const struct ranks ranks = {.size = trial->size,
                                    .ranks_per_node = trial->per_node,
                                    .order = {.relaxed = true, .keep_qps = keep_qps, .seed = seed},
                                    .body = trial->body};
        if (ranks_run(&ranks) != 0)
            fail_msg("%s went wrong at seed %llu", protocol->name, (unsigned long long)seed);
    }
}

static void test_protocols(void **state)
{
    (void)state;
    if (!ranks_can_shape())
        skip();
    for (size_t i = 0; i < n_protocols; i++)
        run_protocol(&protocols[i], protocols[i].needs == ORDERING_QUEUE_PAIR);
}

/* What is built on messages looks at memory where the device allows it. */
static void test_collectives_in_memory(void **state)
{
    (void)state;
    if (!ranks_can_shape())
        skip();
    for (size_t i = 0; i < n_protocols; i++)
        if (strcmp(protocols[i].name, "AllReduce") == 0 ||
            strcmp(protocols[i].name, "aggregator") == 0)
            run_protocol(&protocols[i], true);
}

/* ---- and with less it is caught ------------------------------------------------------------- */

static int look_at_memory(struct sstar_world *world, enum ordering claimed)
{
    struct device *device;
    CHECK(device_get(world, &device) == 0);
    CHECK(device->gives == ORDERING_COMPLETIONS);
    device->arrival = ARRIVAL_IN_MEMORY;
    device->gives = claimed;
    return 0;
}

static int body_refused(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = sstar_rank(world) ^ 1;
    struct sstar_links *links;
    CHECK(look_at_memory(world, ORDERING_COMPLETIONS) == 0);
    CHECK(sstar_links_open(world, &peer, 1, &(struct sstar_link_attr){0}, &links) == -EPROTO);
    return 0;
}

/* As put_is_there, while the bytes still land: the race is what this suite is about, so
 * ThreadSanitizer does not watch this copy. */
__attribute__((no_sanitize("thread"))) static bool put_is_there_already(const struct pair *p, int i)
{
    uint8_t seen[MOST_BYTES];
    uint32_t bytes = bytes_of(p->peer, p->rank, i);
    const volatile uint8_t *in = p->board->in[i];
    for (uint32_t b = 0; b < bytes; b++)
        seen[b] = in[b];
    return pattern_holds(seen, bytes, pattern_seed(p->peer, p->rank, i));
}

/* How far the receiver has seen, and how often the data was not there. */
struct witness {
    _Atomic int seen;
    _Atomic unsigned wrong;
};

/* Puts with arrival in memory, on a device that says it gives more than it does. The sender does
 * not poll until the receiver has looked, so that the port's thread lands one piece at a time. */
static int body_wrong_puts(struct sstar_world *world, void *arg)
{
    struct witness *witness = arg;
    struct pair p;
    uint64_t ticket = 0;
    CHECK(look_at_memory(world, ORDERING_QUEUE_PAIR) == 0);
    CHECK(pair_open(world, &p) == 0);
    struct waiter w = wait_begin(world, "the wrong order", p.peer, 0);
    for (int i = 0; i < PUTS; i++) {
        CHECK(p.rank != 0 || put_one(&p, i, &ticket) == 0);
        while (p.rank == 0 ? atomic_load(&witness->seen) <= i
                           : sstar_signals(p.link) <= (uint64_t)i)
            CHECK(wait_step(&w) == 0);
        wait_progress(&w);
        if (p.rank != 0) {
            atomic_fetch_add(&witness->wrong, !put_is_there_already(&p, i));
            atomic_store(&witness->seen, i + 1);
        }
        CHECK(p.rank != 0 || sstar_link_wait(p.link, ticket) == 0);
    }
    return pair_close(world, &p);
}

static void test_needs_more(void **state)
{
    (void)state;
    if (!ranks_can_shape())
        skip();
    struct ranks ranks = {.size = 2,
                          .ranks_per_node = 1,
                          .order = {.relaxed = true, .seed = 1},
                          .body = body_refused};
    ranks_expect(&ranks);
    struct witness witness = {0};
    ranks.body = body_wrong_puts;
    ranks.arg = &witness;
    for (; ranks.order.seed <= CAUGHT_WITHIN && witness.wrong == 0; ranks.order.seed++) {
        witness.seen = 0;
        ranks_expect(&ranks);
    }
    print_message("put with signal, arrival in memory, caught at seed %llu\n",
                  (unsigned long long)ranks.order.seed - 1);
    assert_true(witness.wrong > 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needs_more),
        cmocka_unit_test(test_protocols),
        cmocka_unit_test(test_collectives_in_memory),
    };
    print_message("# %llu seeds from %llu on\n", (unsigned long long)seeds(),
                  (unsigned long long)seeds_first());
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
