/* SPDX-License-Identifier: MIT */
#include "collectives/mesh_route.h"

static int blocks(int ranks, int block)
{
    return (ranks + block - 1) / block;
}

static bool fits_node(int digit, int local_size)
{
    return digit % local_size == 0 || local_size % digit == 0;
}

struct mesh_shape mesh_shape_of(int ranks, int local_size, int hops)
{
    int best = 0, three = hops ? hops == 3 : ranks > MESH_TWO_HOPS_MOST;
    struct mesh_shape shape = {.ranks = ranks, .hops = three ? 3 : 2};
    for (int low = 1; low <= ranks && low <= 4096; low++) {
        if (!fits_node(low, local_size))
            continue;
        for (int mid = 1; mid <= (three ? 256 : 1); mid++) {
            int links = low + (three ? mid : 0) + blocks(ranks, low * mid);
            if (best && links >= best)
                continue;
            best = links;
            shape.block[1] = low;
            shape.block[2] = three ? low * mid : ranks;
            shape.block[3] = ranks;
        }
    }
    shape.block[0] = 1;
    return shape;
}

int mesh_next(const struct mesh_shape *shape, int h, int at, int to)
{
    int block = shape->block[h + 1];
    if (h + 1 == shape->hops)
        return to;
    int next = at / block * block + to % block;
    return next < shape->ranks ? next : next - block;
}

bool mesh_linked(const struct mesh_shape *shape, int h, int a, int b)
{
    return a != b && a % shape->block[h] == b % shape->block[h] &&
           (mesh_next(shape, h, a, b) == b || mesh_next(shape, h, b, a) == a);
}
