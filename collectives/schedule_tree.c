/* SPDX-License-Identifier: MIT */
/*
 * Double binary tree: half of the vector is reduced along one binary tree and handed back along it,
 * the other half along another, in which the leaves of the first are the inner nodes and the other
 * way round; so each place sends and receives about as much as every other. Slices follow one
 * another through the trees. Broadcast and Reduce alone hang the root above the two trees of the
 * others.
 *
 * P. Sanders, J. Speck and J. L. Traff, "Two-tree algorithms for full bandwidth broadcast,
 * reduction and scan", Parallel Computing 35 (2009).
 *
 *     T = 2 log2 n (alpha + S/(2 P beta)) + 2 (P-1) (g + S/(2 P beta))      P slices of a half
 *
 * about; long vectors take 2 S/beta, and short ones 2 log2 n alpha where a ring takes 2 (n-1)
 * alpha. Up and down are lanes of their own, so a place hands results down while it waits for what
 * comes up. A sum is the own contribution with the left and then the right subtree's; it is made at
 * the root and copied: all places have the same bits.
 */
#include "collectives/schedule.h"

/* The neighbours of a place in one tree, as ranks; -1: none. */
struct branch {
    int parent, children[2];
};

struct trees {
    const struct group *group;
    int root; /* place, above both trees; -1: the vector has none */
    int n;    /* numbers in a tree, 1 .. n in order from left to right */
};

/* Number of a place in tree t; 0: the root above. */
static int number_of(const struct trees *trees, int t, int place)
{
    int n = trees->n, first = place + 1;
    if (trees->root >= 0)
        first = (place - trees->root + trees->group->n) % trees->group->n;
    if (t == 0 || first == 0)
        return first;
    /* Even numbers are inner nodes: mirrored or moved on by one they become odd. */
    return n % 2 ? first % n + 1 : n + 1 - first;
}

static int rank_of(const struct trees *trees, int t, int number)
{
    int n = trees->n, first = number;
    if (t == 1 && number > 0)
        first = n % 2 ? (number + n - 2) % n + 1 : n + 1 - number;
    int place = trees->root >= 0 ? (trees->root + first) % trees->group->n : first - 1;
    return group_rank(trees->group, place);
}

static struct branch branch_of(const struct trees *trees, int t, int place)
{
    int n = trees->n, i = number_of(trees, t, place), bit = i & -i;
    struct branch branch = {-1, {-1, -1}};
    if (i == 0) { /* above: its child is the tree's root, the greatest power of two */
        for (bit = 1; bit * 2 <= n; bit *= 2)
            ;
        branch.children[0] = rank_of(trees, t, bit);
        return branch;
    }
    int up = (i - bit) | bit << 1;
    up = up > n ? i - bit : up;
    if (up > 0 || trees->root >= 0)
        branch.parent = rank_of(trees, t, up);
    int children = 0;
    if (bit > 1)
        branch.children[children++] = rank_of(trees, t, i - bit / 2);
    for (bit /= 2; bit && i + bit > n; bit /= 2)
        ;
    if (bit)
        branch.children[children] = rank_of(trees, t, i + bit);
    return branch;
}

/* Sum what comes from the children and hand it to the parent; without one it is the result, and
 * with `turn` it goes down again at once. */
static struct step upwards(const struct branch *branch, unsigned operand, bool turn)
{
    const int *children = branch->children;
    unsigned what = operand;
    if (children[0] >= 0)
        what |= STEP_RECEIVE | STEP_REDUCE;
    if (children[1] >= 0)
        what |= STEP_RECEIVE_2;
    what |= branch->parent >= 0 ? STEP_SEND : STEP_STORE;
    struct step step = {.from = {children[0], children[1]}, .to = {branch->parent, -1}};
    if (branch->parent < 0 && turn && children[0] >= 0) {
        what |= STEP_SEND;
        step.to[0] = children[0];
        step.to[1] = children[1];
    }
    step.what = (uint16_t)what;
    return step;
}

static struct step downwards(const struct branch *branch)
{
    unsigned what = STEP_STORE | (branch->parent >= 0 ? STEP_RECEIVE : 0);
    if (branch->children[0] >= 0)
        what |= STEP_SEND;
    return (struct step){.what = (uint16_t)what,
                         .from = {branch->parent, -1},
                         .to = {branch->children[0], branch->children[1]}};
}

static void lane(struct schedule *schedule, const struct schedule_shape *shape, int phase, int tree,
                 struct range half, struct step step)
{
    size_t slices = range_slices(half.count, shape->slice_elements);
    schedule_lane(schedule, phase);
    step.channel = (uint8_t)tree;
    for (size_t i = 0; i < slices; i++) {
        struct range range = range_cut(half, slices, i);
        step.offset = range.offset;
        step.count = range.count;
        schedule_add(schedule, step);
    }
}

void schedule_tree(struct schedule *schedule, const struct schedule_shape *shape,
                   const struct group *group)
{
    bool rooted = shape->operation != SSTAR_ALL_REDUCE;
    struct trees trees = {
        .group = group, .root = rooted ? group->root : -1, .n = group->n - rooted};
    for (int t = 0; t < 2; t++) {
        struct range half = range_cut(group->range, 2, (size_t)t);
        struct branch branch = branch_of(&trees, t, group->me);
        if (shape->operation != SSTAR_BROADCAST)
            lane(schedule, shape, group->phase, t, half, upwards(&branch, group->operand, !rooted));
        if (shape->operation == SSTAR_BROADCAST || (!rooted && branch.parent >= 0))
            lane(schedule, shape, group->phase, t, half, downwards(&branch));
    }
}
