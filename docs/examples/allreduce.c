/* SPDX-License-Identifier: MIT */
/*
 * Every rank gives its rank + 1; every rank gets the sum.
 *
 *     cc allreduce.c $(pkg-config --cflags --libs sstar) -o allreduce
 *     sstar run -n 4 -- ./allreduce
 */
#include <sstar/collectives.h>
#include <stdio.h>

enum { COUNT = 1000 };

static int add_up(struct sstar_world *world)
{
    const int rank = sstar_rank(world), size = sstar_size(world);
    void *memory; /* any memory will do; this the other ranks of the node can read in place */
    if (sstar_alloc(world, COUNT * sizeof(float), &memory))
        return -1;
    float *numbers = memory;
    for (int i = 0; i < COUNT; i++)
        numbers[i] = (float)(rank + 1);
    if (sstar_allreduce(world, numbers, numbers, COUNT, SSTAR_FLOAT32, SSTAR_SUM))
        return -1;
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        wrong += numbers[i] != (float)(size * (size + 1) / 2);
    printf("rank %d of %d: sum %g, %d of %d wrong\n", rank, size, (double)numbers[0], wrong, COUNT);
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
    int wrong = add_up(world);
    if (wrong < 0)
        fprintf(stderr, "%s\n", sstar_last_error(world));
    sstar_world_close(world);
    return wrong != 0;
}
