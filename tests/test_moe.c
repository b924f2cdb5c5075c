/* SPDX-License-Identifier: MIT */
/*
 * Combining, and a mixture of experts on top: sums bit for bit those of a plain local computation
 * in the same order, every token at every one of its experts once and at a node once; any worlds,
 * experts that do not divide by ranks, tokens without an expert, all experts on one node, a device
 * that keeps no order.
 */
#include "collectives/collectives.h"
#include "collectives/float_row.h"
#include "tests/ranks.h"
#include "tests/traffic.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 40, VALUES = 19, TOP = 4, EXPERTS = 11, BATCHES = 3, NODES_MOST = 16 };

struct shape {
    int size, ranks_per_node;
    enum sstar_strategy strategy;
    enum sstar_type token_type, result_type;
    enum { BY_CHANCE, ONE_EXPERT, NOBODY, TWICE } choice;
    uint32_t experts;
};

static const struct shape shapes[] = {
    {1, 0, SSTAR_PER_NODE, SSTAR_FLOAT32, SSTAR_FLOAT32, BY_CHANCE, EXPERTS},
    {4, 0, SSTAR_PER_NODE, SSTAR_BFLOAT16, SSTAR_BFLOAT16, BY_CHANCE, EXPERTS},
    {4, 2, SSTAR_PER_NODE, SSTAR_FLOAT32, SSTAR_FLOAT32, BY_CHANCE, EXPERTS},
    {8, 4, SSTAR_ADAPTIVE, SSTAR_FLOAT8_E4M3, SSTAR_BFLOAT16, BY_CHANCE, EXPERTS},
    {7, 3, SSTAR_PER_NODE, SSTAR_FLOAT8_E5M2, SSTAR_FLOAT8_E5M2, BY_CHANCE, EXPERTS},
    {5, 4, SSTAR_PER_RANK, SSTAR_FLOAT16, SSTAR_FLOAT32, BY_CHANCE, 3},
    {6, 1, SSTAR_MESH, SSTAR_BFLOAT16, SSTAR_FLOAT16, BY_CHANCE, EXPERTS},
    {5, 2, SSTAR_NONE, SSTAR_FLOAT32, SSTAR_FLOAT32, ONE_EXPERT, EXPERTS},
    {6, 3, SSTAR_PER_NODE, SSTAR_BFLOAT16, SSTAR_BFLOAT16, NOBODY, EXPERTS},
    {6, 2, SSTAR_PER_NODE, SSTAR_BFLOAT16, SSTAR_BFLOAT16, TWICE, EXPERTS},
};

static uint64_t salt_of(int batch, int rank, uint32_t token)
{
    return traffic_mix((uint64_t)batch, (uint64_t)rank, token);
}

static uint32_t count_of(int batch, int rank)
{
    return (uint32_t)(traffic_mix((uint64_t)batch, 300, (uint64_t)rank) % (TOKENS + 1));
}

/* A number that is not the same in short floats. */
static float number(uint64_t a, uint64_t b)
{
    return (float)((int64_t)(traffic_mix(a, 400, b) % 200001) - 100000) * 0.00037f;
}

static void make_token(const struct shape *s, int batch, int rank, uint32_t t, void *to)
{
    float row[VALUES];
    for (uint32_t v = 0; v < VALUES; v++)
        row[v] = number(salt_of(batch, rank, t), v);
    float_row_narrow(to, row, VALUES, s->token_type);
}

static void choose(const struct shape *s, int batch, int rank, uint32_t t, uint32_t *experts,
                   float *weights)
{
    uint64_t r = salt_of(batch, rank, t);
    for (uint32_t e = 0; e < TOP; e++) {
        uint64_t pick = traffic_mix(r, 500, e);
        experts[e] = (uint32_t)(pick % s->experts);
        if (s->choice == ONE_EXPERT)
            experts[e] = s->experts - 1;
        if (s->choice == NOBODY || (s->choice == BY_CHANCE && pick >> 32 & 7) == 0)
            experts[e] = SSTAR_NO_EXPERT;
        if (s->choice == TWICE && e % 2)
            experts[e] = experts[e - 1];
        weights[e] = number(r, 600 + e);
    }
}

/* What an expert makes of a token. */
static void answer(const struct shape *s, uint32_t expert, const void *token, void *to)
{
    float row[VALUES];
    float_row_widen(row, token, VALUES, s->token_type, 1);
    for (uint32_t v = 0; v < VALUES; v++)
        row[v] = row[v] * (1 + (float)expert) + (float)v;
    float_row_narrow(to, row, VALUES, s->result_type);
}

static int node_of_expert(struct sstar_world *world, const struct shape *s, uint32_t expert)
{
    return sstar_node_of(world, (int)((uint64_t)expert * (uint64_t)s->size / s->experts));
}

/* The sum that a token must get, in the order that collectives.h says, element by element. */
static void expected(struct sstar_world *world, const struct shape *s, const void *token,
                     const uint32_t *experts, const float *weights, float *out)
{
    bool any = false;
    memset(out, 0, VALUES * sizeof *out);
    for (int node = 0; node < sstar_node_count(world); node++) {
        float share[VALUES], one[VALUES];
        unsigned char row[VALUES * sizeof(float)];
        int n = 0;
        for (uint32_t e = 0; e < TOP; e++) {
            if (experts[e] == SSTAR_NO_EXPERT || node_of_expert(world, s, experts[e]) != node)
                continue;
            answer(s, experts[e], token, row);
            float_row_widen(one, row, VALUES, s->result_type, weights[e]);
            for (uint32_t v = 0; v < VALUES; v++)
                share[v] = n ? share[v] + one[v] : one[v];
            n++;
        }
        if (!n)
            continue;
        float_row_narrow(row, share, VALUES, s->result_type);
        float_row_widen(one, row, VALUES, s->result_type, 1);
        for (uint32_t v = 0; v < VALUES; v++)
            out[v] = any ? out[v] + one[v] : one[v];
        any = true;
    }
}

/* Every choice of every rank for our experts is a row, once, and there is no other. */
static int check_rows(struct sstar_world *world, const struct shape *s, int batch,
                      const struct sstar_moe_row *rows, size_t n)
{
    size_t at = 0;
    for (uint32_t expert = 0; expert < s->experts; expert++) {
        if ((int)((uint64_t)expert * (uint64_t)s->size / s->experts) != sstar_rank(world))
            continue;
        for (int source = 0; source < s->size; source++)
            for (uint32_t t = 0; t < count_of(batch, source); t++) {
                uint32_t experts[TOP];
                float weights[TOP];
                unsigned char token[VALUES * sizeof(float)];
                choose(s, batch, source, t, experts, weights);
                make_token(s, batch, source, t, token);
                for (uint32_t e = 0; e < TOP; e++) {
                    if (experts[e] != expert)
                        continue;
                    CHECK(at < n);
                    CHECK(rows[at].expert == expert && rows[at].source == source);
                    CHECK(rows[at].index == t && rows[at].weight == weights[e]);
                    CHECK(!memcmp(rows[at].token, token, VALUES * sstar_type_bytes(s->token_type)));
                    at++;
                }
            }
    }
    CHECK(at == n);
    return 0;
}

/* What crosses, and what need not. */
static int check_ledgers(struct sstar_world *world, const struct shape *s, struct sstar_moe *moe,
                         int batch)
{
    struct sstar_ledger two[2], *all = calloc((size_t)s->size, sizeof two);
    uint64_t copies = 0, crossings = 0, sums[2][2] = {{0}};
    for (int r = 0; r < s->size; r++)
        for (uint32_t t = 0; t < count_of(batch, r); t++) {
            uint32_t experts[TOP];
            float weights[TOP];
            uint64_t nodes = 0;
            choose(s, batch, r, t, experts, weights);
            for (uint32_t e = 0; e < TOP; e++) {
                int node = experts[e] == SSTAR_NO_EXPERT ? sstar_node_of(world, r)
                                                         : node_of_expert(world, s, experts[e]);
                copies += node != sstar_node_of(world, r);
                if (node != sstar_node_of(world, r))
                    nodes |= 1ull << node;
            }
            crossings += (uint64_t)__builtin_popcountll(nodes);
        }
    sstar_moe_ledgers(moe, &two[0], &two[1]);
    CHECK(all && sstar_allgather(world, two, sizeof two, all) == 0);
    for (int i = 0; i < 2 * s->size; i++) {
        sums[i % 2][0] += all[i].cross_messages;
        sums[i % 2][1] += all[i].merged_messages;
    }
    free(all);
    CHECK(sums[0][0] == crossings && sums[1][0] == crossings);
    CHECK(sums[0][1] == copies - crossings && sums[1][1] == copies - crossings);
    return 0;
}

static int one_batch(struct sstar_world *world, const struct shape *s, struct sstar_moe *moe,
                     int batch)
{
    size_t bytes = VALUES * sstar_type_bytes(s->token_type), n_rows;
    uint32_t n = count_of(batch, sstar_rank(world)), experts[TOKENS * TOP];
    unsigned char tokens[TOKENS * VALUES * sizeof(float)];
    float weights[TOKENS * TOP], out[TOKENS * VALUES], wanted[VALUES];
    struct sstar_moe_row *rows;
    for (uint32_t t = 0; t < n; t++) {
        make_token(s, batch, sstar_rank(world), t, tokens + t * bytes);
        choose(s, batch, sstar_rank(world), t, experts + t * TOP, weights + t * TOP);
    }
    CHECK(sstar_moe_dispatch(moe, tokens, experts, weights, n, &rows, &n_rows) == 0);
    if (check_rows(world, s, batch, rows, n_rows))
        return -1;
    for (size_t i = 0; i < n_rows; i++)
        answer(s, rows[i].expert, rows[i].token, rows[i].result);
    CHECK(sstar_moe_combine(moe, out) == 0);
    for (uint32_t t = 0; t < n; t++) {
        expected(world, s, tokens + t * bytes, experts + t * TOP, weights + t * TOP, wanted);
        CHECK(!memcmp(wanted, out + t * VALUES, sizeof wanted));
    }
    return check_ledgers(world, s, moe, batch);
}

static int batches(struct sstar_world *world, void *arg)
{
    const struct shape *s = arg;
    struct sstar_moe_attr attr = {.gather = {.strategy = s->strategy, .flush_bytes = 1000},
                                  .experts = s->experts,
                                  .top = TOP,
                                  .tokens = TOKENS,
                                  .values = VALUES,
                                  .token_type = s->token_type,
                                  .result_type = s->result_type};
    struct sstar_moe *moe;
    CHECK(sstar_moe_open(world, &attr, &moe) == 0);
    CHECK(sstar_moe_memory(moe) > 0);
    for (int b = 0; b < BATCHES; b++)
        if (one_batch(world, s, moe, b))
            return -1;
    sstar_moe_close(moe);
    return 0;
}

static void every_token_gets_its_sum(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct shape s = shapes[i];
        struct ranks ranks = {
            .size = s.size, .ranks_per_node = s.ranks_per_node, .body = batches, .arg = &s};
        if (i % 3 == 2)
            ranks.order = (struct sstar_order){.relaxed = true, .seed = 20261130 + i};
        ranks.processes = i % 4 == 3;
        int failed = ranks_run(&ranks);
        if (failed)
            fprintf(stderr, "shape %zu, order seed %llu\n", i,
                    (unsigned long long)ranks.order.seed);
        assert_int_equal(failed, 0);
    }
}

/* ---- combining by itself ------------------------------------------------------------------------
 */

static const enum sstar_op ops[] = {SSTAR_SUM, SSTAR_MIN, SSTAR_MAX, SSTAR_PROD};
enum { KEYS = 30, COUNT = 5, OPS = 4 };

/* Every rank has a part of every key of every rank. */
static int one_op(struct sstar_world *world, enum sstar_op op, int round, struct sstar_combiner *c,
                  float *data)
{
    int size = sstar_size(world), me = sstar_rank(world), pushed = 0, got, left, local = 0,
        here = 0;
    uint32_t come[KEYS] = {0};
    for (int r = 0; r < size; r++) {
        local += r < me && sstar_node_of(world, r) == sstar_node_of(world, me);
        here += sstar_node_of(world, r) == sstar_node_of(world, me);
    }
    for (int i = 0; i < size * KEYS * COUNT; i++)
        data[i] = (float)(1 + (me + i / COUNT + round) % 3); /* products stay exact */
    do {
        for (int burst = 0; burst < 20 && pushed < size * KEYS; burst++) {
            struct sstar_part part = {.to = pushed % size,
                                      .key = (uint32_t)(pushed / size),
                                      .place = (uint32_t)local,
                                      .here = (uint32_t)here,
                                      .nodes = (uint32_t)sstar_node_count(world),
                                      .weight = 1,
                                      .data = data + pushed * COUNT};
            int err = sstar_combiner_push(c, &part);
            if (err == -EAGAIN)
                break;
            CHECK(err == 0);
            pushed++;
        }
        struct sstar_combined key;
        while ((got = sstar_combiner_pull(c, &key)) == 1) {
            CHECK(key.key < KEYS && come[key.key]++ == 0);
            float want = op == SSTAR_MIN ? 1000 : op == SSTAR_PROD;
            for (int r = 0; r < size; r++) {
                float x = (float)(1 + (r + (int)key.key * size + me + round) % 3);
                want = op == SSTAR_SUM    ? want + x
                       : op == SSTAR_PROD ? want * x
                       : op == SSTAR_MIN  ? (x < want ? x : want)
                                          : (x > want ? x : want);
            }
            for (int v = 0; v < COUNT; v++)
                CHECK(key.values[v] == want);
        }
        CHECK(got == 0);
        CHECK((left = sstar_combiner_advance(c, pushed == size * KEYS)) >= 0);
    } while (left);
    for (int k = 0; k < KEYS; k++)
        CHECK(come[k] == 1);
    return 0;
}

static int all_ops(struct sstar_world *world, void *arg)
{
    (void)arg;
    size_t bytes = (size_t)(sstar_size(world) * KEYS * COUNT) * sizeof(float);
    void *data;
    CHECK(sstar_alloc(world, bytes, &data) == 0);
    for (int i = 0; i < OPS; i++) {
        struct sstar_combiner_attr attr = {
            .gather = {.strategy = (enum sstar_strategy)(i % SSTAR_STRATEGIES), .flush_bytes = 512},
            .type = SSTAR_FLOAT32,
            .op = ops[i],
            .count = COUNT,
            .keys = KEYS,
            .parts = (uint32_t)sstar_size(world)};
        struct sstar_combiner *c;
        CHECK(sstar_combiner_open(world, &attr, &c, NULL) == 0);
        if (one_op(world, ops[i], 0, c, data))
            return -1;
        CHECK(sstar_combiner_reset(c) == 0);
        if (one_op(world, ops[i], 1, c, data))
            return -1;
        sstar_combiner_close(c);
    }
    CHECK(sstar_free(world, data) == 0);
    return 0;
}

static void parts_of_a_key_become_one(void **state)
{
    (void)state;
    static const int worlds[][2] = {{1, 0}, {3, 0}, {4, 2}, {5, 3}, {6, 1}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        ranks_expect(
            &(struct ranks){.size = worlds[i][0], .ranks_per_node = worlds[i][1], .body = all_ops});
}

static int refusals(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct sstar_combiner_attr attr = {.gather = {.flush_bytes = 512},
                                       .type = SSTAR_INT32,
                                       .op = SSTAR_SUM,
                                       .count = 1,
                                       .keys = 2,
                                       .parts = 1};
    struct sstar_combiner *c;
    CHECK(sstar_combiner_open(world, &attr, &c, NULL) == -EINVAL);
    CHECK(strstr(sstar_last_error(world), "float of 32 bits"));
    attr.type = SSTAR_FLOAT32;
    CHECK(sstar_combiner_open(world, &attr, &c, NULL) == 0);
    float one = 1;
    struct sstar_part part = {.to = 0, .key = 2, .here = 1, .nodes = 1, .weight = 1, .data = &one};
    CHECK(sstar_combiner_push(c, &part) == -EINVAL);
    part.key = 0;
    part.here = 2;
    CHECK(sstar_combiner_push(c, &part) == -EINVAL);
    CHECK(strstr(sstar_last_error(world), "there is no such part"));
    while (sstar_combiner_advance(c, true) > 0)
        ;
    sstar_combiner_close(c);
    struct sstar_moe_attr moe = {.gather = {.flush_bytes = 512},
                                 .experts = 4,
                                 .top = 1,
                                 .tokens = 2,
                                 .values = 1,
                                 .token_type = SSTAR_BFLOAT16,
                                 .result_type = SSTAR_FLOAT64};
    struct sstar_moe *m;
    struct sstar_moe_row *rows;
    size_t n;
    CHECK(sstar_moe_open(world, &moe, &m) == -EINVAL);
    moe.result_type = SSTAR_FLOAT32;
    CHECK(sstar_moe_open(world, &moe, &m) == 0);
    CHECK(sstar_moe_combine(m, &one) == -EINVAL);
    CHECK(sstar_moe_dispatch(m, &one, &(uint32_t){4}, &one, 1, &rows, &n) == -EINVAL);
    CHECK(strstr(sstar_last_error(world), "to expert 4, there are 4"));
    CHECK(sstar_moe_dispatch(m, &one, &(uint32_t){4}, &one, 3, &rows, &n) == -EINVAL);
    sstar_moe_close(m);
    return 0;
}

/* All know why, and can go on with less. */
static int one_has_no_memory(struct sstar_world *world, void *arg)
{
    (void)arg;
    bool much = sstar_rank(world) == 1;
    struct sstar_combiner_attr attr = {.gather = {.flush_bytes = 512},
                                       .type = SSTAR_FLOAT32,
                                       .op = SSTAR_SUM,
                                       .count = much ? 1u << 27 : 1,
                                       .keys = much ? 1u << 28 : 2,
                                       .parts = 1};
    struct sstar_combiner *c;
    CHECK(sstar_combiner_open(world, &attr, &c, NULL) == -ENOMEM);
    CHECK(strstr(sstar_last_error(world), much ? "rank 1: combiner: out of memory, it needs"
                                               : "combiner: rank 1 could not"));
    attr.count = 1;
    attr.keys = 2;
    CHECK(sstar_combiner_open(world, &attr, &c, NULL) == 0);
    while (sstar_combiner_advance(c, true) > 0)
        ;
    sstar_combiner_close(c);
    return 0;
}

static void memory_of_one(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* sanitizers end a program that asks for so much */
#endif
    ranks_expect(&(struct ranks){.size = 3, .ranks_per_node = 1, .body = one_has_no_memory});
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    ranks_expect(&(struct ranks){.size = 2, .ranks_per_node = 1, .body = refusals});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_key_become_one),
        cmocka_unit_test(every_token_gets_its_sum),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(memory_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
