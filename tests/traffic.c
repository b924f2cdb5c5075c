/* SPDX-License-Identifier: MIT */
#include "tests/traffic.h"
#include "tests/ranks.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t traffic_mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = (TRAFFIC_SEED ^ a << 40 ^ b << 20 ^ c) | 1;
    random_next(&state);
    return random_next(&state);
}

/* Where message i of a rank goes; the same for who sends and who counts. */
int traffic_destination(const struct traffic *t, int size, int from, uint32_t i)
{
    switch (t->pattern) {
    case ALL_TO_ONE:
        return size / 2;
    case ONE_TO_ALL:
    case UNIFORM:
        return (int)(traffic_mix((uint64_t)from, 77, i) % (uint64_t)size);
    case SKEWED: { /* the first ranks get most, as the experts that are liked */
        uint64_t r = traffic_mix((uint64_t)from, 78, i);
        uint64_t least = r % (uint64_t)size, other = r / 65536 % (uint64_t)size;
        return (int)(least < other ? least * least / (uint64_t)size : other);
    }
    default:
        return (from + 1) % size;
    }
}

static uint32_t messages_of(const struct traffic *t, int from)
{
    if (t->pattern == NOTHING || (t->pattern == ONE_TO_ALL && from != 0))
        return 0;
    return t->messages;
}

/* The n-th message from one rank to another: how long, and what is in it. */
static uint32_t bytes_of(const struct traffic *t, int from, int to, uint32_t n)
{
    uint64_t r = traffic_mix((uint64_t)from * RANKS_MOST + (uint64_t)to, 1, n);
    return t->least_bytes + (uint32_t)(r % (t->most_bytes - t->least_bytes + 1));
}

static void fill(uint8_t *data, uint32_t bytes, int from, int to, uint32_t n)
{
    uint64_t state = traffic_mix((uint64_t)from * RANKS_MOST + (uint64_t)to, 2, n) | 1;
    for (uint32_t i = 0; i < bytes; i += 8) {
        uint64_t word = random_next(&state);
        memcpy(data + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

struct stream {
    uint32_t sent[RANKS_MOST], received[RANKS_MOST];
    uint32_t pushed;
};

static int push_some(struct sstar_world *world, struct sstar_aggregator *a, const struct traffic *t,
                     struct stream *s)
{
    int me = sstar_rank(world), size = sstar_size(world);
    uint32_t burst = 1 + (uint32_t)(traffic_mix((uint64_t)me, 3, s->pushed) % 100);
    uint8_t data[BYTES_MOST];
    for (; s->pushed < messages_of(t, me) && burst > 0; burst--) {
        int to = traffic_destination(t, size, me, s->pushed);
        uint32_t bytes = bytes_of(t, me, to, s->sent[to]);
        fill(data, bytes, me, to, s->sent[to]);
        int err = sstar_push(a, to, data, bytes);
        if (err == -EAGAIN)
            return 0;
        CHECK(err == 0);
        s->sent[to]++;
        s->pushed++;
    }
    return 0;
}

static int pull_all(struct sstar_world *world, struct sstar_aggregator *a, const struct traffic *t,
                    struct stream *s)
{
    int me = sstar_rank(world), got;
    struct sstar_item item;
    uint8_t data[BYTES_MOST];
    while ((got = sstar_pull(a, &item)) == 1) {
        CHECK(item.source >= 0 && item.source < sstar_size(world));
        uint32_t n = s->received[item.source]++;
        CHECK(item.bytes == bytes_of(t, item.source, me, n));
        CHECK((uintptr_t)item.data % (!t->fixed ? 8 : t->most_bytes % 4 ? 1 : 4) == 0);
        fill(data, item.bytes, item.source, me, n);
        CHECK(memcmp(data, item.data, item.bytes) == 0);
    }
    CHECK(got == 0);
    return 0;
}

static int check_counts(struct sstar_world *world, const struct traffic *t, const struct stream *s)
{
    int me = sstar_rank(world), size = sstar_size(world);
    for (int from = 0; from < size; from++) {
        uint32_t expected = 0;
        for (uint32_t i = 0; i < messages_of(t, from); i++)
            expected += traffic_destination(t, size, from, i) == me;
        CHECK(s->received[from] == expected);
    }
    return 0;
}

static int add_ledgers(struct sstar_world *world, struct sstar_aggregator *a, struct totals *sum)
{
    int size = sstar_size(world);
    struct sstar_ledger mine, *all = calloc((size_t)size, sizeof *all);
    struct sstar_link_ledger links[RANKS_MOST];
    uint64_t refused_ns = 0;
    sstar_aggregator_ledger(a, &mine);
    sstar_aggregator_links(a, links);
    for (int r = 0; r < size; r++)
        refused_ns += links[r].refused_ns;
    CHECK(refused_ns == 0 || mine.full > 0);
    CHECK(all && sstar_allgather(world, &mine, sizeof mine, all) == 0);
    *sum = (struct totals){0};
    for (int r = 0; r < size; r++) {
        sum->messages += all[r].messages;
        sum->cross += all[r].cross_messages;
        sum->cross_bytes += all[r].cross_bytes;
        sum->wire += all[r].wire_messages;
        sum->wire_bytes += all[r].wire_bytes;
        for (int i = 0; i < 128; i++) {
            sum->in_wire += all[r].wire_class_messages[i];
            sum->in_wire_bytes += all[r].wire_class_bytes[i];
        }
        for (int i = 0; i < 192; i++)
            sum->ages += all[r].age_class[i];
    }
    free(all);
    return 0;
}

static int check_ledger(struct sstar_world *world, const struct totals *sum,
                        const struct traffic *t, enum sstar_strategy strategy, uint32_t hops)
{
    int size = sstar_size(world);
    uint64_t messages = 0, cross = 0, ends = 0;
    for (int r = 0; r < size; r++) {
        int node = sstar_node_of(world, r);
        for (uint32_t i = 0; i < messages_of(t, r); i++, messages++)
            cross += sstar_node_of(world, traffic_destination(t, size, r, i)) != node;
        for (int o = 0; o < size; o++)
            ends += sstar_node_of(world, o) != node;
    }
    CHECK(sum->messages == messages);
    CHECK(sum->cross == cross);
    /* A mesh may take a message across nodes twice, or by way of its own. */
    bool once = strategy != SSTAR_MESH && (strategy != SSTAR_ADAPTIVE || !hops);
    CHECK(!once || sum->in_wire == cross);
    CHECK(!once || sum->in_wire_bytes == sum->cross_bytes);
    CHECK(sum->in_wire >= cross);
    CHECK(strategy != SSTAR_NONE || sum->wire == cross + ends);
    CHECK(strategy != SSTAR_NONE || sum->ages == cross);
    CHECK(sum->ages <= sum->wire);
    return 0;
}

int traffic_run(struct sstar_world *world, const struct traffic *t, enum sstar_strategy strategy,
                struct totals *sum)
{
    struct sstar_aggregator_attr attr = {.strategy = strategy,
                                         .item_bytes = t->fixed ? t->most_bytes : 0,
                                         .max_item_bytes = t->most_bytes,
                                         .flush_bytes = t->flush_bytes,
                                         .flush = t->flush,
                                         .hops = t->hops,
                                         .s_star_bytes = t->s_star_bytes,
                                         .buffer_bytes = t->buffer_bytes,
                                         .max_age_us = t->max_age_us};
    struct sstar_aggregator *a;
    CHECK(sstar_aggregator_open(world, &attr, &a) == 0);
    for (int round = 0; round < t->rounds; round++) {
        struct stream s = {0};
        int left;
        if (round)
            CHECK(sstar_aggregator_reset(a) == 0);
        do {
            if (push_some(world, a, t, &s) || pull_all(world, a, t, &s))
                return -1;
            left = sstar_advance(a, s.pushed == messages_of(t, sstar_rank(world)));
            CHECK(left >= 0);
        } while (left);
        CHECK(sstar_advance(a, true) == 0);
        if (check_counts(world, t, &s) || add_ledgers(world, a, sum) ||
            check_ledger(world, sum, t, strategy, attr.hops))
            return -1;
    }
    sstar_aggregator_close(a);
    return 0;
}
