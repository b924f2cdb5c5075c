/* SPDX-License-Identifier: MIT */
/* See pair.h: the two ranks that are timed run on different cores. */
#include "collectives/pair.h"
#include "transport/world.h"

int pair_core_offer(struct pair *pair)
{
    int offer = -1;
    if (pair->role == PAIR_LOOKS_ON ||
        sched_getaffinity(0, sizeof pair->allowed, &pair->allowed) != 0)
        return -1;
    /* One takes the first and the other the last: hardly ever two threads of one core. */
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &pair->allowed))
            continue;
        offer = cpu;
        if (pair->role == PAIR_ASKS)
            break;
    }
    return offer;
}

void pair_core_take(struct pair *pair, int ours, int theirs)
{
    cpu_set_t mine;
    int peer = pair->role == PAIR_ASKS ? pair->answers : pair->asks;
    if (ours < 0 || theirs < 0 || (pair->world->ranks[peer].same_host && ours == theirs))
        return;
    CPU_ZERO(&mine);
    CPU_SET(ours, &mine);
    pair->moved = sched_setaffinity(0, sizeof mine, &mine) == 0;
    pair->spins = pair->moved;
}

void pair_core_return(struct pair *pair)
{
    if (pair->moved)
        sched_setaffinity(0, sizeof pair->allowed, &pair->allowed);
    pair->moved = pair->spins = false;
}
