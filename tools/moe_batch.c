/* SPDX-License-Identifier: MIT */
/* The tokens of `sstar moe`, what its experts answer, and the plain computation beside it. */
#include "collectives/float_row.h"
#include "collectives/moe.h"
#include "tools/moe.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9e3779b97f4a7c15u + b;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float unit(uint64_t random)
{
    return (float)(random >> 40) * 0x1p-24f;
}

static int rank_of_expert(const struct moe_work *w, uint32_t expert)
{
    return (int)((uint64_t)expert * (uint64_t)w->map.size / w->routing.experts);
}

/* Who sends what where: of each line that counts, in the order of the file. */
static void count_line(struct moe_work *w, size_t line, uint32_t index)
{
    const struct routing *r = &w->routing;
    size_t ranks = (size_t)w->map.size, base = r->layer[line] * ranks * ranks;
    int source = (int)(r->sequence[line] % ranks);
    const uint16_t *expert = r->expert + line * r->top;
    for (uint32_t e = 0; e < r->top; e++) {
        int to = rank_of_expert(w, expert[e]), node = w->map.node_of[to];
        w->copies[base + (size_t)source * ranks + (size_t)to]++;
        if (node == w->map.node_of[source])
            continue;
        bool before = false;
        for (uint32_t i = 0; i < e; i++)
            before = before || w->map.node_of[rank_of_expert(w, expert[i])] == node;
        int landing = moe_landing_rank(&w->map, source, index, node);
        w->crossings[base + (size_t)source * ranks + (size_t)landing] += !before;
        w->all_crossings += !before;
        w->all_copies++;
    }
}

static int count_lines(struct moe_work *w)
{
    const struct routing *r = &w->routing;
    size_t ranks = (size_t)w->map.size;
    w->crossings = calloc(w->layers * ranks * ranks, sizeof *w->crossings);
    w->copies = calloc(w->layers * ranks * ranks, sizeof *w->copies);
    uint32_t *tokens = calloc(w->layers * ranks, sizeof *tokens);
    int err = w->crossings && w->copies && tokens ? 0 : -ENOMEM;
    for (size_t i = 0; !err && i < r->lines; i++) {
        if (r->layer[i] >= w->layers)
            continue;
        uint32_t *n = &tokens[r->layer[i] * ranks + r->sequence[i] % ranks];
        count_line(w, i, (*n)++);
        w->most_tokens = *n > w->most_tokens ? *n : w->most_tokens;
    }
    free(tokens);
    return err;
}

static int batch_room(struct moe_work *w)
{
    const struct moe_arguments *a = w->arguments;
    struct moe_batch *b = &w->batch;
    size_t most = w->most_tokens, values = a->values;
    b->experts = calloc(most * w->routing.top, sizeof *b->experts);
    b->weights = calloc(most * w->routing.top, sizeof *b->weights);
    b->tokens = calloc(most * values, sstar_type_bytes(a->token_type));
    b->out = calloc(most * values, sizeof *b->out);
    b->wanted = calloc(values, sizeof *b->wanted);
    b->ramp = calloc(values + MOE_RAMP, sizeof *b->ramp);
    b->row = calloc(values, sizeof(float));
    b->share = calloc(values, sizeof *b->share);
    b->one = calloc(values, sizeof *b->one);
    if (!b->experts || !b->weights || !b->tokens || !b->out || !b->wanted || !b->ramp || !b->row ||
        !b->share || !b->one)
        return -ENOMEM;
    for (size_t v = 0; v < values + MOE_RAMP; v++)
        b->ramp[v] = unit(mix(a->common.seed, v)) - 0.5f;
    return 0;
}

static int read_routing(struct moe_work *w, const struct moe_arguments *a, char *error, size_t size)
{
    static const struct routing_shape shape = {
        .sequences = 8, .tokens = 511, .layers = 24, .experts = 32, .top = 4, .seed = 1};
    if (a->routing)
        return routing_read(a->routing, a->experts, &w->routing, error, size);
    return routing_make(&shape, &w->routing);
}

int moe_work_open(struct moe_work *w, struct sstar_world *world, const struct moe_arguments *a,
                  char *error, size_t error_size)
{
    int size = sstar_size(world), *node_of = calloc((size_t)size, sizeof *node_of);
    *w = (struct moe_work){.arguments = a, .rank = sstar_rank(world)};
    int err = node_of ? read_routing(w, a, error, error_size) : -ENOMEM;
    for (int r = 0; !err && r < size; r++)
        node_of[r] = sstar_node_of(world, r);
    if (!err)
        err = node_map_init(&w->map, size, node_of);
    free(node_of);
    w->layers = a->layers && a->layers < w->routing.layers ? a->layers : w->routing.layers;
    if (!err)
        err = count_lines(w);
    return err ? err : batch_room(w);
}

void moe_work_close(struct moe_work *w)
{
    struct moe_batch *b = &w->batch;
    free(b->experts);
    free(b->weights);
    free(b->tokens);
    free(b->out);
    free(b->wanted);
    free(b->ramp);
    free(b->row);
    free(b->share);
    free(b->one);
    free(w->crossings);
    free(w->copies);
    node_map_destroy(&w->map);
    routing_free(&w->routing);
}

void moe_batch_fill(struct moe_work *w, uint32_t layer)
{
    const struct routing *r = &w->routing;
    const struct moe_arguments *a = w->arguments;
    struct moe_batch *b = &w->batch;
    size_t bytes = a->values * sstar_type_bytes(a->token_type);
    b->n = 0;
    for (size_t i = 0; i < r->lines; i++) {
        if (r->layer[i] != layer || (int)(r->sequence[i] % (uint32_t)w->map.size) != w->rank)
            continue;
        uint64_t random = mix(a->common.seed + 1, i);
        float_row_widen(b->one, b->ramp + random % MOE_RAMP, a->values, SSTAR_FLOAT32,
                        1 + unit(random));
        float_row_narrow(b->tokens + b->n * bytes, b->one, a->values, a->token_type);
        for (uint32_t e = 0; e < r->top; e++) {
            b->experts[b->n * r->top + e] = r->expert[i * r->top + e];
            b->weights[b->n * r->top + e] = unit(mix(random, e));
        }
        b->n++;
    }
}

/* Any function that another expert would have computed otherwise. */
static void answer(struct moe_work *w, uint32_t expert, const void *token, void *result)
{
    const struct moe_arguments *a = w->arguments;
    float_row_widen(w->batch.one, token, a->values, a->token_type, 0.5f + 0.03125f * (float)expert);
    float_row_narrow(result, w->batch.one, a->values, a->result_type);
}

void moe_answer(struct moe_work *w, const struct sstar_moe_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        answer(w, rows[i].expert, rows[i].token, rows[i].result);
}

static void add(float *sum, const float *row, size_t n, bool first)
{
    for (size_t v = 0; v < n; v++)
        sum[v] = first ? row[v] : sum[v] + row[v];
}

/* What the experts of a node make of a token, weighted, added up and rounded; how many they are. */
static int node_share(struct moe_work *w, uint32_t t, int node)
{
    const struct moe_arguments *a = w->arguments;
    struct moe_batch *b = &w->batch;
    const uint8_t *token = b->tokens + t * a->values * sstar_type_bytes(a->token_type);
    const uint32_t *experts = b->experts + t * w->routing.top;
    int n = 0;
    for (uint32_t e = 0; e < w->routing.top; e++) {
        if (w->map.node_of[rank_of_expert(w, experts[e])] != node)
            continue;
        answer(w, experts[e], token, b->row);
        float_row_widen(b->one, b->row, a->values, a->result_type,
                        b->weights[t * w->routing.top + e]);
        add(b->share, b->one, a->values, n++ == 0);
    }
    if (n) {
        float_row_narrow(b->row, b->share, a->values, a->result_type);
        float_row_widen(b->share, b->row, a->values, a->result_type, 1);
    }
    return n;
}

uint64_t moe_count_wrong(struct moe_work *w)
{
    struct moe_batch *b = &w->batch;
    size_t values = w->arguments->values;
    uint64_t wrong = 0;
    for (uint32_t t = 0; t < b->n; t++) {
        bool first = true;
        for (int node = 0; node < w->map.nodes; node++)
            if (node_share(w, t, node)) {
                add(b->wanted, b->share, values, first);
                first = false;
            }
        wrong += memcmp(b->wanted, b->out + t * values, values * sizeof *b->out) != 0;
    }
    return wrong;
}
