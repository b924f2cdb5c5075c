/* SPDX-License-Identifier: MIT */
/*
 * Every rank sends 1000 numbers to each rank, one by one; those that cross nodes travel together.
 *
 *     cc aggregator.c $(pkg-config --cflags --libs sstar) -o aggregator
 *     sstar run -n 4 --ranks-per-node 2 -- ./aggregator
 */
#include <errno.h>
#include <sstar/collectives.h>
#include <stdio.h>
#include <string.h>

enum { EACH = 1000 };

static int add_up(struct sstar_world *world)
{
    const int rank = sstar_rank(world), size = sstar_size(world);
    const struct sstar_aggregator_attr attr = {
        .strategy = SSTAR_PER_NODE, .max_item_bytes = sizeof(int), .flush_bytes = 4096};
    struct sstar_aggregator *aggregator;
    if (sstar_aggregator_open(world, &attr, &aggregator))
        return -1;
    long sum = 0, pushed = 0;
    int left;
    do {
        struct sstar_item item;
        int err = 0, got, number;
        for (; pushed < (long)EACH * size; pushed++) {
            number = (int)(pushed / size) + rank;
            if ((err = sstar_push(aggregator, (int)(pushed % size), &number, sizeof number)))
                break; /* -EAGAIN: it is full; first take what has come */
        }
        while ((got = sstar_pull(aggregator, &item)) == 1) {
            memcpy(&number, item.data, sizeof number);
            sum += number;
        }
        left = sstar_advance(aggregator, pushed == (long)EACH * size);
        if ((err && err != -EAGAIN) || got < 0 || left < 0)
            return -1;
    } while (left);
    sstar_aggregator_close(aggregator);
    long right = (long)size * EACH * (EACH - 1) / 2 + (long)EACH * size * (size - 1) / 2;
    printf("rank %d of %d: sum %ld, %s\n", rank, size, sum, sum == right ? "right" : "wrong");
    return sum != right;
}

int main(void)
{
    struct sstar_config config;
    struct sstar_world *world;
    char error[512];
    int wrong = sstar_config_init(&config, error, sizeof error) ||
                sstar_world_open(&world, &config, error, sizeof error);
    if (wrong)
        return fprintf(stderr, "%s\n", error), 1;
    if ((wrong = add_up(world)) < 0)
        fprintf(stderr, "%s\n", sstar_last_error(world));
    sstar_world_close(world);
    return wrong != 0;
}
