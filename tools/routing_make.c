/* SPDX-License-Identifier: MIT */
/*
 * Makes up a routing with a given skew. For every sequence and layer it first decides how many
 * tokens each expert gets, exactly, then which: so the skew is what was asked for and not a matter
 * of luck.
 */
#include "tools/random.h"
#include "tools/routing.h"
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The fullest expert over the mean: least, median, most, a little inside what routing.h promises
 * because counts are whole numbers. */
static const double skew_least = 2.09, skew_median = 2.83, skew_most = 4.46;
/* Of eight groups. */
static const double group_least = 1.19, group_most = 1.88;
enum { GROUPS = 8, PLACEMENTS = 1000, SHUFFLES = 4 };

struct maker {
    const struct routing_shape *shape;
    struct routing *routing;
    uint64_t random;
    uint32_t *load; /* [experts]: tokens of each */
    double *part;   /* [experts]: what rounding left over */
    uint16_t *cell; /* [tokens][top] */
};

static uint32_t below(struct maker *m, uint32_t limit)
{
    return (uint32_t)((next_random(&m->random) >> 32) * limit >> 32);
}

static double unit(struct maker *m)
{
    return (double)(next_random(&m->random) >> 11) * 0x1p-53;
}

/* The mean of skew * exp(-decay * i) over the experts. */
static double mean_of(double skew, double decay, uint32_t experts)
{
    double sum = 0;
    for (uint32_t i = 0; i < experts; i++)
        sum += skew * exp(-decay * i);
    return sum / experts;
}

/* Loads that fall off exponentially from `skew` times the mean, whole, and tokens * top in all. */
static void make_loads(struct maker *m, double skew)
{
    const struct routing_shape *s = m->shape;
    double low = 0, high = 64, mean = (double)s->tokens * s->top / s->experts;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (mean_of(skew, middle, s->experts) > 1)
            low = middle;
        else
            high = middle;
    }
    int64_t left = (int64_t)s->tokens * s->top;
    for (uint32_t i = 0; i < s->experts; i++) {
        double load = mean * skew * exp(-low * i);
        load = load > s->tokens ? s->tokens : load;
        m->load[i] = (uint32_t)load;
        m->part[i] = load - m->load[i];
        left -= m->load[i];
    }
    /* The rest goes to whom rounding took most, and the first keeps its skew. */
    for (; left > 0; left--) {
        uint32_t best = s->experts;
        for (uint32_t i = 0; i < s->experts; i++)
            if (m->load[i] < s->tokens && (best == s->experts || m->part[i] > m->part[best]))
                best = i;
        m->load[best]++;
        m->part[best] -= 1;
    }
}

static double group_skew(const struct maker *m)
{
    uint64_t group[GROUPS] = {0}, most = 0;
    for (uint32_t e = 0; e < m->shape->experts; e++) {
        uint64_t n = group[(uint64_t)e * GROUPS / m->shape->experts] += m->load[e];
        most = n > most ? n : most;
    }
    return (double)most * GROUPS / ((double)m->shape->tokens * m->shape->top);
}

/* Which expert has which load: by chance, but the groups as unequal as asked for. */
static void place(struct maker *m)
{
    uint32_t experts = m->shape->experts;
    for (int tries = 0; tries < PLACEMENTS; tries++) {
        for (uint32_t i = experts - 1; i > 0; i--) {
            uint32_t j = below(m, i + 1), swap = m->load[i];
            m->load[i] = m->load[j];
            m->load[j] = swap;
        }
        double skew = group_skew(m);
        if (experts < GROUPS || experts % GROUPS || (skew >= group_least && skew <= group_most))
            return;
    }
}

static bool has(const struct maker *m, uint32_t token, uint16_t expert)
{
    for (uint32_t e = 0; e < m->shape->top; e++)
        if (m->cell[token * m->shape->top + e] == expert)
            return true;
    return false;
}

/* Every expert takes the tokens behind the last one's, round and round, which gives no token the
 * same expert twice since no load is more than all tokens; then trades that keep this. */
static void assign(struct maker *m)
{
    uint32_t tokens = m->shape->tokens, top = m->shape->top;
    uint64_t at = 0;
    for (uint32_t e = 0; e < m->shape->experts; e++)
        for (uint32_t n = 0; n < m->load[e]; n++, at++)
            m->cell[(at % tokens) * top + at / tokens] = (uint16_t)e;
    uint64_t trades = (uint64_t)SHUFFLES * tokens * top;
    for (uint64_t i = 0; i < trades; i++) {
        uint32_t t = below(m, tokens), u = below(m, tokens);
        uint16_t *a = &m->cell[t * top + below(m, top)], *b = &m->cell[u * top + below(m, top)];
        if (t != u && (has(m, u, *a) || has(m, t, *b)))
            continue;
        uint16_t swap = *a;
        *a = *b;
        *b = swap;
    }
}

static double pick_skew(struct maker *m)
{
    double u = unit(m), most = (double)m->shape->experts / m->shape->top;
    double skew = u < 0.5 ? skew_least * pow(skew_median / skew_least, 2 * u)
                          : skew_median * pow(skew_most / skew_median, 2 * u - 1);
    return skew > most ? most : skew;
}

/* Lines stand as a run of the model writes them: token by token, layer by layer. */
static void make_layer(struct maker *m, uint32_t sequence, uint32_t layer)
{
    const struct routing_shape *s = m->shape;
    struct routing *t = m->routing;
    make_loads(m, pick_skew(m));
    place(m);
    assign(m);
    for (uint32_t token = 0; token < s->tokens; token++) {
        size_t line = ((size_t)sequence * s->tokens + token) * s->layers + layer;
        t->sequence[line] = sequence;
        t->token[line] = token;
        t->layer[line] = (uint16_t)layer;
        memcpy(t->expert + line * s->top, m->cell + (size_t)token * s->top,
               s->top * sizeof *t->expert);
    }
}

static bool shape_is_good(const struct routing_shape *s)
{
    return s->sequences && s->tokens && s->layers && s->experts && s->top &&
           s->experts <= ROUTING_MAX_EXPERTS && s->top <= ROUTING_MAX_TOP && s->top <= s->experts &&
           s->layers <= ROUTING_MAX_LAYERS &&
           (double)s->sequences * s->tokens * s->layers * s->top <= 1e9;
}

int routing_make(const struct routing_shape *s, struct routing *out)
{
    if (!shape_is_good(s))
        return -EINVAL;
    size_t lines = (size_t)s->sequences * s->tokens * s->layers;
    struct routing t = {.lines = lines,
                        .top = s->top,
                        .experts = s->experts,
                        .layers = s->layers,
                        .sequences = s->sequences,
                        .sequence = calloc(lines, sizeof(uint32_t)),
                        .token = calloc(lines, sizeof(uint32_t)),
                        .layer = calloc(lines, sizeof(uint16_t)),
                        .expert = calloc(lines * s->top, sizeof(uint16_t))};
    struct maker m = {.shape = s,
                      .routing = &t,
                      .random = s->seed,
                      .load = calloc(s->experts, sizeof(uint32_t)),
                      .part = calloc(s->experts, sizeof(double)),
                      .cell = calloc((size_t)s->tokens * s->top, sizeof(uint16_t))};
    bool room = t.sequence && t.token && t.layer && t.expert && m.load && m.part && m.cell;
    for (uint32_t sequence = 0; room && sequence < s->sequences; sequence++)
        for (uint32_t layer = 0; layer < s->layers; layer++)
            make_layer(&m, sequence, layer);
    free(m.load);
    free(m.part);
    free(m.cell);
    if (!room) {
        routing_free(&t);
        return -ENOMEM;
    }
    *out = t;
    return 0;
}

int routing_write(const struct routing *t, const struct routing_shape *s, FILE *out)
{
    fprintf(
        out,
        "# made up by sstar routing: %u sequences of %u tokens, %u layers, top-%u of %u experts, "
        "seed %llu\n# seq,token,layer",
        s->sequences, s->tokens, s->layers, s->top, s->experts, (unsigned long long)s->seed);
    for (uint32_t e = 0; e < t->top; e++)
        fprintf(out, ",e%u", e);
    fputc('\n', out);
    for (size_t i = 0; i < t->lines; i++) {
        fprintf(out, "%u,%u,%u", t->sequence[i], t->token[i], t->layer[i]);
        for (uint32_t e = 0; e < t->top; e++)
            fprintf(out, ",%u", t->expert[i * t->top + e]);
        fputc('\n', out);
    }
    return fflush(out) || ferror(out) ? -EIO : 0;
}
