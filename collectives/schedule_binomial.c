/* SPDX-License-Identifier: MIT */
/*
 * Binomial tree: Broadcast in rounds in which everybody who has the vector hands it to one who has
 * not; Reduce the other way. The textbook scheme, as in R. Thakur, R. Rabenseifner and W. Gropp,
 * "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005).
 *
 *     T = ceil(log2 n) (alpha + S/beta)
 *
 * The fewest rounds: for short vectors. With q the distance of a place from the root, its parent is
 * q less its lowest bit, its children q plus each lower bit. Sums are made in the order of the
 * children, the smallest subtree first.
 */
#include "collectives/schedule.h"

enum { MOST_CHILDREN = 32 };

struct family {
    int parent, n, children[MOST_CHILDREN]; /* ranks; the smallest subtree first */
};

static struct family family_of(const struct group *group)
{
    int n = group->n, root = group->root, q = (group->me - root + n) % n;
    struct family family = {.parent = -1};
    if (q)
        family.parent = group_rank(group, (root + q - (q & -q)) % n);
    for (int bit = 1; q + bit < n && (q == 0 || bit < (q & -q)); bit *= 2)
        family.children[family.n++] = group_rank(group, (root + q + bit) % n);
    return family;
}

/* To the largest subtrees first, two with each step. */
static void broadcast_slice(struct schedule *schedule, const struct family *family,
                            struct range range)
{
    bool root = family->parent < 0;
    unsigned what = root ? STEP_STORE : STEP_RECEIVE | STEP_STORE;
    int left = family->n;
    do {
        struct step step = {.what = (uint16_t)(what | (left ? STEP_SEND : 0)),
                            .from = {family->parent, -1},
                            .to = {-1, -1},
                            .offset = range.offset,
                            .count = range.count};
        for (int i = 0; i < 2 && left; i++)
            step.to[i] = family->children[--left];
        schedule_add(schedule, step);
        what = root ? 0 : STEP_PARTIAL;
    } while (left);
}

static void reduce_slice(struct schedule *schedule, const struct family *family, unsigned operand,
                         struct range range)
{
    int done = 0;
    do {
        struct step step = {.from = {-1, -1}, .to = {family->parent, -1}, .offset = range.offset};
        step.count = range.count;
        unsigned what = operand;
        for (int i = 0; i < 2 && done < family->n; i++) {
            step.from[i] = family->children[done++];
            what |= i ? STEP_RECEIVE_2 : STEP_RECEIVE | STEP_REDUCE;
        }
        if (done < family->n)
            what |= STEP_KEEP;
        else
            what |= family->parent >= 0 ? STEP_SEND : STEP_STORE;
        step.what = (uint16_t)what;
        schedule_add(schedule, step);
        operand = STEP_PARTIAL;
    } while (done < family->n);
}

void schedule_binomial(struct schedule *schedule, const struct schedule_shape *shape,
                       const struct group *group)
{
    struct family family = family_of(group);
    size_t slices = range_slices(group->range.count, shape->slice_elements);
    schedule_lane(schedule, group->phase);
    for (size_t i = 0; i < slices; i++) {
        struct range range = range_cut(group->range, slices, i);
        if (shape->operation == SSTAR_BROADCAST)
            broadcast_slice(schedule, &family, range);
        else
            reduce_slice(schedule, &family, group->operand, range);
    }
}
