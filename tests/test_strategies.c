/* SPDX-License-Identifier: MIT */
/*
 * Every strategy, mesh of two and three hops and both bases of adaptive too, on 1 to 16 ranks and 1
 * to 8 nodes, the last of which may have fewer ranks; messages of 1 B to 64 KiB, alike or not; to
 * all, to one, from one, none, skewed; on a device that keeps the order of bytes and one that keeps
 * none. A sample by chance, SSTAR_TEST_SEED for another one. With SSTAR_TEST_FULL=1 every world and
 * order, each with a slice of the cases in which every two values of the others meet;
 * SSTAR_TEST_SLICE=I/N for slice I of N, 1/1 for all of it, and SSTAR_TEST_WAY=I for one strategy.
 */
#include "collectives/mesh_route.h"
#include "tests/ranks.h"
#include "tests/seeds.h"
#include "tests/traffic.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 16, NODES = 8, SAMPLES = 10, MOST_BYTES = 300 * 1000, SLICES = 13 };

static const enum pattern patterns[] = {UNIFORM, ALL_TO_ONE, ONE_TO_ALL, NOTHING, SKEWED};
static const uint32_t sizes[] = {1, 8, 12, 157, 512, 4096, 65536};
static const struct {
    enum sstar_strategy strategy;
    uint32_t hops;
} ways[] = {{SSTAR_NONE, 0}, {SSTAR_PER_RANK, 0}, {SSTAR_PER_NODE, 0}, {SSTAR_MESH, 2},
            {SSTAR_MESH, 3}, {SSTAR_ADAPTIVE, 0}, {SSTAR_ADAPTIVE, 2}, {SSTAR_ADAPTIVE, 3}};
enum {
    PATTERNS = sizeof patterns / sizeof *patterns,
    SIZES = sizeof sizes / sizeof *sizes,
    WAYS = sizeof ways / sizeof *ways,
    CASES = PATTERNS * SIZES * WAYS * 2,
};

static uint64_t seed(void)
{
    const char *text = getenv("SSTAR_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : 20261130;
}

static bool full(void)
{
    const char *text = getenv("SSTAR_TEST_FULL");
    return text && strcmp(text, "0") != 0;
}

/* Which cases a full run tries: those of number `first` of `of`, shifted from world to world. */
struct slice {
    unsigned first, of;
};

static struct slice slice_asked_for(void)
{
    struct slice slice = {0, SLICES};
    const char *text = getenv("SSTAR_TEST_SLICE");
    if (text && sscanf(text, "%u/%u", &slice.first, &slice.of) == 2 && slice.of && slice.first &&
        slice.first <= slice.of)
        slice.first--;
    else if (text)
        fail_msg("SSTAR_TEST_SLICE is I/N, not '%s'", text);
    return slice;
}

static bool in_slice(const struct slice *slice, unsigned world, unsigned c)
{
    return (c + world) % slice->of == slice->first;
}

static bool way_asked_for(unsigned way)
{
    const char *text = getenv("SSTAR_TEST_WAY");
    return !text || strtoul(text, NULL, 10) == way;
}

struct sample {
    uint64_t random;
    unsigned world;
    struct slice slice;
};

static unsigned way_of(unsigned c)
{
    return c / SIZES / 2 % WAYS;
}

static int one_case(struct sstar_world *world, unsigned c, uint64_t r)
{
    static const uint32_t flushes[] = {64, 1000, 8192, 100000};
    uint32_t bytes = sizes[c % SIZES], fixed = c / SIZES % 2, messages = MOST_BYTES / (bytes + 200);
    unsigned way = way_of(c);
    struct traffic t = {.name = "",
                        .pattern = patterns[c / SIZES / 2 / WAYS],
                        .messages = messages > 300 ? 300 : messages,
                        .least_bytes = fixed ? bytes : 0,
                        .most_bytes = bytes,
                        .flush_bytes = flushes[r % 4],
                        .buffer_bytes = r / 4 % 2,
                        .max_age_us = r / 8 % 3 ? 0 : 100,
                        .rounds = 1 + (int)(r / 24 % 2),
                        .fixed = fixed,
                        .flush = r / 48 % 3 ? SSTAR_FLUSH_BYTES : SSTAR_FLUSH_MARGINAL,
                        .hops = ways[way].hops};
    if (!traffic_run(world, &t, ways[way].strategy, &(struct totals){0}))
        return 0;
    fprintf(stderr, "case %u, %llu: %s, hops %u, pattern %d, %u B%s, flush %u %s, buffer %u\n", c,
            (unsigned long long)r, sstar_strategy_name(ways[way].strategy), t.hops, (int)t.pattern,
            bytes, fixed ? " each" : " at most", t.flush_bytes, sstar_flush_name(t.flush),
            t.buffer_bytes);
    return -1;
}

static int cases(struct sstar_world *world, void *arg)
{
    const struct sample *sample = arg;
    unsigned n = full() ? CASES : sanitized() ? SAMPLES / 2 : SAMPLES;
    for (unsigned i = 0; i < n; i++) {
        uint64_t r = traffic_mix(sample->random, 5, i);
        unsigned c = full() ? i : (unsigned)(r % CASES);
        if ((full() && !in_slice(&sample->slice, sample->world, c)) || !way_asked_for(way_of(c)))
            continue;
        if (one_case(world, c, r / CASES))
            return -1;
    }
    return 0;
}

static int world_of(int size, int ranks_per_node, uint64_t random)
{
    static unsigned worlds;
    struct sample sample = {random, worlds++, slice_asked_for()};
    struct ranks ranks = {
        .size = size, .ranks_per_node = ranks_per_node, .body = cases, .arg = &sample};
    if (random % 2 && ranks_can_shape())
        ranks.order = (struct sstar_order){.relaxed = true, .seed = random};
    int failed = ranks_run(&ranks);
    if (failed)
        fprintf(stderr, "%d ranks, %d per node, %s order, seed %llu\n", size, ranks_per_node,
                random % 2 ? "relaxed" : "strict", (unsigned long long)seed());
    return failed;
}

static void every_message_comes_once(void **state)
{
    (void)state;
    uint64_t random = seed() | 1;
    printf("seed %llu\n", (unsigned long long)seed());
    /* With more, `none` wants completion queues longer than SoftRoCE has. */
    for (int size = 1; size <= (ranks_can_shape() ? RANKS : RANKS / 2); size++) {
        int least = (size + NODES - 1) / NODES;
        if (!full()) {
            int ranks_per_node = least + (int)(random_next(&random) % (uint64_t)(size - least + 1));
            if (random_next(&random) % 2)
                ranks_per_node = least + (ranks_per_node - least) / 3;
            assert_int_equal(world_of(size, ranks_per_node, random_next(&random) >> 32), 0);
            continue;
        }
        for (int ranks_per_node = least; ranks_per_node <= size; ranks_per_node++) {
            assert_int_equal(world_of(size, ranks_per_node, random_next(&random) >> 32 | 1), 0);
            assert_int_equal(world_of(size, ranks_per_node, random_next(&random) >> 33 << 1), 0);
        }
    }
}

/* In a slice of a full run every world meets every value of each, and every two values meet. */
static void a_slice_covers_each_pair(void **state)
{
    (void)state;
    enum { WORLDS = 230 };
    for (unsigned first = 0; first < SLICES; first++) {
        const struct slice slice = {first, SLICES};
        static bool met[4][8][4][8];
        memset(met, 0, sizeof met);
        for (unsigned w = 0; w < WORLDS; w++) {
            bool here[4][8] = {{false}};
            for (unsigned c = 0; c < CASES; c++) {
                const unsigned v[4] = {c % SIZES, c / SIZES % 2, way_of(c), c / SIZES / 2 / WAYS};
                for (unsigned i = 0; i < 4 && in_slice(&slice, w, c); i++) {
                    here[i][v[i]] = true;
                    for (unsigned k = 0; k < 4; k++)
                        met[i][v[i]][k][v[k]] = true;
                }
            }
            static const unsigned n[4] = {SIZES, 2, WAYS, PATTERNS};
            for (unsigned i = 0; i < 4; i++)
                for (unsigned v = 0; v < n[i]; v++) {
                    assert_true(here[i][v]);
                    for (unsigned k = 0; w == WORLDS - 1 && k < 4; k++)
                        for (unsigned u = 0; k != i && u < n[k]; u++)
                            assert_true(met[i][v][k][u]);
                }
        }
    }
}

/* From everywhere to everywhere, by hops that rise, over links that are there. */
static void a_mesh_leads_everywhere(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 70; ranks++)
        for (int hops = 2; hops <= 3; hops++)
            for (int local = 1; local <= 4; local++) {
                struct mesh_shape shape = mesh_shape_of(ranks, local, hops);
                for (int from = 0; from < ranks; from++)
                    for (int to = 0; to < ranks; to++) {
                        int at = from;
                        for (int h = 0; h < hops; h++) {
                            int next = mesh_next(&shape, h, at, to);
                            assert_in_range(next, 0, ranks - 1);
                            assert_true(next == at || mesh_linked(&shape, h, at, next));
                            assert_true(next == at || mesh_linked(&shape, h, next, at));
                            at = next;
                        }
                        assert_int_equal(at, to);
                    }
            }
}

static void a_mesh_has_few_links(void **state)
{
    (void)state;
    static const int most[][3] = {{64, 2, 14}, {1024, 2, 62}, {1024, 3, 35}, {1000, 3, 27}};
    for (int i = 0; i < 4; i++) {
        struct mesh_shape shape = mesh_shape_of(most[i][0], 1, most[i][1]);
        for (int rank = 0; rank < shape.ranks; rank++) {
            int links = 0;
            for (int h = 0; h < shape.hops; h++)
                for (int r = 0; r < shape.ranks; r++)
                    links += mesh_linked(&shape, h, rank, r);
            assert_true(links <= most[i][2]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mesh_leads_everywhere),
        cmocka_unit_test(a_mesh_has_few_links),
        cmocka_unit_test(a_slice_covers_each_pair),
        cmocka_unit_test(every_message_comes_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
