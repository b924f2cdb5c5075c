/* SPDX-License-Identifier: MIT */
/*
 * The way through a mesh: the ranks as numbers of two or three digits, of which every hop sets one
 * right, the lowest first. Private.
 *
 * A rank has links only to those that differ from it in one digit, so about 2*sqrt(n), or
 * 3*cbrt(n). The last block of a digit may be cut off by the number of ranks; a hop into the part
 * that is missing goes to the block before it instead, which is whole, and the hops after it set
 * the higher digits right as ever. A message takes links of rising hops, so none waits for another
 * in a circle. (The matrix and tensor routes of bale's conveyors, with blocks that need not divide
 * the number of ranks.)
 */
#ifndef SSTAR_COLLECTIVES_MESH_ROUTE_H
#define SSTAR_COLLECTIVES_MESH_ROUTE_H

#include <stdbool.h>

enum { MESH_HOPS_MOST = 3, MESH_TWO_HOPS_MOST = 256 };

struct mesh_shape {
    int ranks, hops;
    int block[MESH_HOPS_MOST + 1]; /* [h]: ranks that differ in the digits below h; [0] is 1 */
};
/* With the fewest links; the lowest digit a multiple or divisor of `local_size`, so that its hop
 * stays inside a node as far as it can. hops 0: two, from MESH_TWO_HOPS_MOST ranks three. */
struct mesh_shape mesh_shape_of(int ranks, int local_size, int hops);
/* Where a message for `to` that is at `at` goes by hop h: `at` itself if that digit is right. */
int mesh_next(const struct mesh_shape *shape, int h, int at, int to);
/* Whether two ranks need a link for hop h. */
bool mesh_linked(const struct mesh_shape *shape, int h, int a, int b);

#endif
