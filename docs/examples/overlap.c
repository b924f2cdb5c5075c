/* SPDX-License-Identifier: MIT */
/*
 * Buckets of gradients: the AllReduce of each is started as soon as it is computed, and a thread of
 * the library moves it on while the next is computed.
 *
 *     cc overlap.c $(pkg-config --cflags --libs sstar) -o overlap
 *     sstar run -n 2 --ranks-per-node 1 -- ./overlap
 */
#include <sstar/collectives.h>
#include <stdio.h>

enum { BUCKETS = 4, COUNT = 1 << 16 };

static float gradients[BUCKETS][COUNT];

static void compute(int bucket, int rank)
{
    for (int i = 0; i < COUNT; i++)
        gradients[bucket][i] = (float)(rank + 1) * (float)(bucket + 1);
}

/* One operation is under way on a plan at a time, so each bucket has its own. */
static int pass(struct sstar_world *world, struct sstar_collective **plans)
{
    const int rank = sstar_rank(world), size = sstar_size(world);
    int wrong = 0;
    for (int b = 0; b < BUCKETS; b++) {
        compute(b, rank);
        if (sstar_collective_start(plans[b], gradients[b], gradients[b], COUNT, SSTAR_FLOAT32,
                                   SSTAR_SUM))
            return -1;
    }
    for (int b = 0; b < BUCKETS; b++) {
        if (sstar_collective_wait(plans[b]))
            return -1;
        for (int i = 0; i < COUNT; i++)
            wrong += gradients[b][i] != (float)(size * (size + 1) / 2) * (float)(b + 1);
    }
    printf("rank %d of %d: %d buckets, %d wrong\n", rank, size, BUCKETS, wrong);
    return wrong;
}

static int run(struct sstar_world *world)
{
    const struct sstar_collective_attr attr = {.operation = SSTAR_ALL_REDUCE,
                                               .progress_thread = true};
    struct sstar_collective *plans[BUCKETS] = {NULL};
    int err = 0, opened = 0;
    while (!err && opened < BUCKETS)
        if (!(err = sstar_collective_open(world, &attr, &plans[opened])))
            opened++;
    int wrong = err ? -1 : pass(world, plans);
    if (wrong < 0)
        fprintf(stderr, "%s\n", sstar_last_error(world));
    while (opened > 0)
        sstar_collective_close(plans[--opened]);
    return wrong;
}

int main(void)
{
    struct sstar_config config;
    struct sstar_world *world;
    char error[512];
    if (sstar_config_init(&config, error, sizeof error) ||
        sstar_world_open(&world, &config, error, sizeof error)) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    int wrong = run(world);
    sstar_world_close(world);
    return wrong != 0;
}
