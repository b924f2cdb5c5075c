/* SPDX-License-Identifier: MIT */
/*
 * float32 that crosses nodes shorter: within the bound of collectives.h, the same bits on all
 * ranks, and defined for NaN, infinity and what does not fit. The kernels of all instruction sets
 * agree on all values of the short types and on those that lie half-way between two.
 */
#include "collectives/element.h"
#include "collectives/reduce.h"
#include "collectives/schedule.h"
#include "tests/ranks.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 1500, MOST = 8, WIRE_TYPES = 4 };
static const struct wire_type {
    enum sstar_type type;
    int significant; /* bits */
    double eta, largest;
    bool has_infinity;
} wire_types[WIRE_TYPES] = {{SSTAR_FLOAT16, 11, 0x1p-24, 65504, true},
                            {SSTAR_BFLOAT16, 8, 0x1p-133, 0x1.fep127, true},
                            {SSTAR_FLOAT8_E4M3, 4, 0x1p-9, 448, false},
                            {SSTAR_FLOAT8_E5M2, 3, 0x1p-16, 57344, true}};

/* ---- kernels ------------------------------------------------------------------------------------
 */

static void sets_agree(void **state)
{
    (void)state;
    enum { PATTERNS = 1 << 16 };
    uint32_t *numbers = malloc(PATTERNS * sizeof *numbers), *wide[2];
    uint16_t *codes[2];
    for (int s = 0; s < 2; s++) {
        wide[s] = malloc(PATTERNS * sizeof *wide[s]);
        codes[s] = calloc(PATTERNS, sizeof *codes[s]);
    }
    static const uint32_t low[] = {0, 1, 0x0fff, 0x1000, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (int set = 1; set < reduce_set_count(); set++)
        for (int t = 0; t < WIRE_TYPES; t++)
            for (size_t l = 0; l < sizeof low / sizeof *low; l++) {
                for (uint32_t i = 0; i < PATTERNS; i++)
                    numbers[i] = i << 16 | low[l];
                for (int s = 0; s < 2; s++) {
                    const struct reduce_short *it =
                        &reduce_set(s ? set : 0)->shorts[wire_types[t].type];
                    it->narrow(codes[s], numbers, PATTERNS);
                    it->widen(wide[s], codes[s], PATTERNS);
                    assert_memory_equal(codes[s], codes[0], PATTERNS * sizeof *codes[s]);
                    assert_memory_equal(wide[s], wide[0], PATTERNS * sizeof *wide[s]);
                    memcpy(wide[s], numbers, PATTERNS * sizeof *numbers);
                    it->round(wide[s], PATTERNS);
                    it->widen(numbers, codes[s], PATTERNS);
                    assert_memory_equal(wide[s], numbers, PATTERNS * sizeof *numbers);
                    for (uint32_t i = 0; i < PATTERNS; i++)
                        numbers[i] = i << 16 | low[l];
                }
            }
    for (int s = 0; s < 2; s++) {
        free(wide[s]);
        free(codes[s]);
    }
    free(numbers);
}

/* ---- worlds -------------------------------------------------------------------------------------
 */

struct scene {
    const struct wire_type *wire;
    enum sstar_operation operation;
    enum sstar_algorithm algorithm;
};

/* From -1 to 1, a fixed function of who and where; some very small, some large. */
static float value_of(int rank, size_t i)
{
    uint64_t state = (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u + i;
    random_next(&state);
    double unit = (double)(random_next(&state) >> 11) * 0x1p-52 - 1;
    return (float)ldexp(unit, i % 16 == 0 ? -12 : (int)(i % 5));
}

static int log2_up(int n)
{
    int bits = 0;
    while (1 << bits < n)
        bits++;
    return bits;
}

/* Roundings at most, as in collectives.h. */
static int roundings(const struct sstar_world *world, const struct scene *scene)
{
    bool family = algorithm_is_hierarchical(scene->algorithm);
    enum sstar_algorithm across = family ? algorithm_across(scene->algorithm) : scene->algorithm;
    if (scene->operation == SSTAR_ALL_GATHER || scene->operation == SSTAR_BROADCAST)
        return 1;
    return across == SSTAR_RING ? sstar_node_count(world) + 1
                                : log2_up(family ? sstar_node_count(world) : sstar_size(world)) + 2;
}

/* Element i of rank's result: what it is exactly, and the sum of the magnitudes. */
static double exact(const struct scene *scene, int rank, int n, size_t i, double *magnitude)
{
    double sum = 0;
    *magnitude = 0;
    size_t at = scene->operation == SSTAR_REDUCE_SCATTER ? (size_t)rank * COUNT + i : i;
    bool moves = scene->operation == SSTAR_ALL_GATHER || scene->operation == SSTAR_BROADCAST;
    int source = scene->operation == SSTAR_ALL_GATHER ? (int)(i / COUNT) : 0;
    for (int r = 0; r < n; r++) {
        double x = value_of(r, moves ? i % COUNT : at);
        if (moves && r != source)
            continue;
        sum += x;
        *magnitude += fabs(x);
    }
    return sum;
}

static int beyond_the_bound(const struct sstar_world *world, const struct scene *scene,
                            const float *got, size_t count)
{
    int n = sstar_size(world), rank = sstar_rank(world), bad = 0;
    double u = sstar_node_count(world) > 1 ? ldexp(1, -scene->wire->significant) : 0;
    double grown = pow(1 + u, roundings(world, scene));
    for (size_t i = 0; i < count; i++) {
        double magnitude, sum = exact(scene, rank, n, i, &magnitude);
        double bound = (grown * pow(1 + 0x1p-24, n) - 1) * magnitude + n * grown * scene->wire->eta;
        bad += !(fabs(got[i] - sum) <= bound);
    }
    return bad;
}

/* Whether all ranks have these bytes. */
static int same_everywhere(struct sstar_world *world, const void *bytes, size_t n, bool *same)
{
    uint64_t hash = 0xcbf29ce484222325u, all[MOST];
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    int err = sstar_allgather(world, &hash, sizeof hash, all);
    *same = true;
    for (int r = 0; !err && r < sstar_size(world); r++)
        *same &= all[r] == hash;
    return err;
}

static int one_scene(struct sstar_world *world, const struct scene *scene)
{
    int n = sstar_size(world), rank = sstar_rank(world);
    bool scatter = scene->operation == SSTAR_REDUCE_SCATTER;
    size_t given = (size_t)COUNT * (size_t)(scatter ? n : 1);
    size_t made = (size_t)COUNT * (size_t)(scene->operation == SSTAR_ALL_GATHER ? n : 1);
    float *send = malloc(given * sizeof *send), *recv = calloc(made, sizeof *recv);
    struct sstar_collective_attr attr = {.operation = scene->operation,
                                         .algorithm = scene->algorithm,
                                         .slice_bytes = 1024,
                                         .wire_type = scene->wire->type};
    struct sstar_collective *plan;
    for (size_t i = 0; i < given; i++)
        send[i] = value_of(rank, i);
    CHECK(sstar_collective_open(world, &attr, &plan) == 0);
    CHECK(sstar_collective_run(plan, send, recv, COUNT, SSTAR_FLOAT32, SSTAR_SUM) == 0);
    bool same = true, has = scene->operation != SSTAR_REDUCE || rank == 0;
    CHECK(!has || beyond_the_bound(world, scene, recv, made) == 0);
    if (has && !scatter && scene->operation != SSTAR_REDUCE)
        CHECK(same_everywhere(world, recv, made * sizeof *recv, &same) == 0);
    CHECK(same);
    /* Whole numbers are what they were. */
    if (scene->operation == SSTAR_ALL_REDUCE) {
        int32_t mine = 123456789 + rank, sum = 0;
        CHECK(sstar_collective_run(plan, &mine, &sum, 1, SSTAR_INT32, SSTAR_MAX) == 0);
        CHECK(sum == 123456789 + n - 1);
    }
    sstar_collective_close(plan);
    free(send);
    free(recv);
    return 0;
}

static int all_scenes(struct sstar_world *world, void *argument)
{
    const struct wire_type *wire = argument;
    for (int operation = 0; operation < SSTAR_BARRIER; operation++)
        for (int algorithm = SSTAR_RING; algorithm < SSTAR_ALGORITHMS; algorithm++) {
            struct scene scene = {wire, (enum sstar_operation)operation,
                                  (enum sstar_algorithm)algorithm};
            if (algorithm == SSTAR_HIERARCHICAL ||
                !schedule_exists(scene.operation, scene.algorithm))
                continue;
            if (one_scene(world, &scene)) {
                fprintf(stderr, "%s by %s as %s\n", sstar_operation_name(scene.operation),
                        sstar_algorithm_name(scene.algorithm), sstar_type_name(wire->type));
                return -1;
            }
        }
    return 0;
}

static void within_the_bound(void **state)
{
    (void)state;
    static const int worlds[][2] = {{1, 0}, {2, 1}, {2, 0}, {3, 1}, {5, 2}, {7, 1}, {8, 3}, {8, 4}};
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (size_t t = w % 2; t < WIRE_TYPES; t += 2) {
            struct ranks ranks = {.size = worlds[w][0],
                                  .ranks_per_node = worlds[w][1],
                                  .body = all_scenes,
                                  .arg = (void *)&wire_types[t]};
            ranks_expect(&ranks);
        }
}

/* ---- what is no number, and what does not fit ---------------------------------------------------
 */

static int specials(struct sstar_world *world, void *argument)
{
    const struct wire_type *wire = argument;
    int rank = sstar_rank(world);
    for (int algorithm = SSTAR_RING; algorithm < SSTAR_ALGORITHMS; algorithm++) {
        struct sstar_collective_attr attr = {.algorithm = (enum sstar_algorithm)algorithm,
                                             .wire_type = wire->type};
        struct sstar_collective *plan;
        float big = (float)wire->largest * 0.75f;
        float send[] = {rank ? 1 : NAN, rank ? 1 : INFINITY, -big, big, -0.0f, 1}, recv[6];
        CHECK(sstar_collective_open(world, &attr, &plan) == 0);
        CHECK(sstar_collective_run(plan, send, recv, 6, SSTAR_FLOAT32, SSTAR_SUM) == 0);
        CHECK(isnan(recv[0]));
        for (int i = 1; i < 4; i++)
            CHECK(wire->has_infinity ? isinf(recv[i]) && !signbit(recv[i]) == (i != 2)
                                     : isnan(recv[i]));
        CHECK(recv[4] == 0 && signbit(recv[4]));
        CHECK(recv[5] == (float)sstar_size(world));
        CHECK(sstar_collective_run(plan, send, recv, 6, SSTAR_FLOAT32, SSTAR_MIN) == 0);
        CHECK(isnan(recv[0]) && (recv[1] == 1 || !wire->has_infinity) && recv[5] == 1);
        sstar_collective_close(plan);
    }
    struct sstar_collective_attr wrong = {.wire_type = SSTAR_INT8};
    struct sstar_collective *none;
    CHECK(sstar_collective_open(world, &wrong, &none) == -EINVAL);
    return 0;
}

static void no_number_and_too_large(void **state)
{
    (void)state;
    for (int t = 0; t < WIRE_TYPES; t++)
        for (int per_node = 1; per_node <= 2; per_node++) {
            struct ranks ranks = {.size = 4,
                                  .ranks_per_node = per_node,
                                  .body = specials,
                                  .arg = (void *)&wire_types[t]};
            ranks_expect(&ranks);
        }
}

/* ---- the price ----------------------------------------------------------------------------------
 */

static int priced(struct sstar_world *world, void *argument)
{
    (void)argument;
    double us[2];
    for (int is_short = 0; is_short < 2; is_short++) {
        struct sstar_collective_attr attr = {
            .algorithm = SSTAR_RING, .wire_type = is_short ? SSTAR_BFLOAT16 : SSTAR_FLOAT32};
        struct sstar_collective *plan;
        struct sstar_price price;
        CHECK(sstar_collective_open(world, &attr, &plan) == 0);
        CHECK(sstar_collective_measure(plan) == 0);
        CHECK(sstar_collective_price(plan, 1 << 20, SSTAR_FLOAT32, &price) == 0);
        us[is_short] = price.wire_us;
        CHECK(sstar_collective_price(plan, 1 << 20, SSTAR_INT32, &price) == 0);
        CHECK(price.wire_us >= us[is_short]);
        sstar_collective_close(plan);
    }
    CHECK(us[1] < 0.6 * us[0]);
    return 0;
}

static void price_of_what_crosses(void **state)
{
    (void)state;
    struct ranks ranks = {.size = 3, .ranks_per_node = 1, .wire = {20, 2, 0.5}, .body = priced};
    ranks_expect(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_agree), cmocka_unit_test(within_the_bound),
        cmocka_unit_test(no_number_and_too_large), cmocka_unit_test(price_of_what_crosses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
