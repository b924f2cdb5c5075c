/* SPDX-License-Identifier: MIT */
/*
 * What time brings: a thread posts what was held back, so that a program that sleeps on a
 * completion channel is woken; and the port's going down and up. The thread is there only once
 * something has to happen by time.
 */
#include "transport/decorators/faults_private.h"
#include <signal.h>
#include <time.h>

uint64_t faults_port_down_until(const struct faults *f, uint64_t now)
{
    uint64_t until = now;
    if (!faults_has(f, 1u << FAULT_DOWN))
        return now;
    /* Outages may follow on each other. */
    for (int n = 0; n < f->plan.n_rules; n++)
        for (int i = 0; i < f->plan.n_rules; i++)
            if (f->outage[i].from_ns <= until && until < f->outage[i].to_ns)
                until = f->outage[i].to_ns;
    return until;
}

void faults_port_look(struct faults *f, uint64_t now)
{
    bool down = faults_port_down_until(f, now) > now;
    if (down == f->told_down)
        return;
    f->told_down = down;
    faults_say(f, "the port goes %s", down ? "down" : "up");
    faults_async_raise(f, down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, NULL);
}

/* When the next outage begins or ends. */
static uint64_t next_change(const struct faults *f, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < f->plan.n_rules; i++) {
        const struct outage *o = &f->outage[i];
        uint64_t edge = now < o->from_ns ? o->from_ns : now < o->to_ns ? o->to_ns : UINT64_MAX;
        if (edge < next)
            next = edge;
    }
    return next;
}

static void *move(void *arg)
{
    struct faults *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->ending) {
        uint64_t now = faults_now();
        faults_port_look(f, now);
        faults_release_all(f, now);
        uint64_t next = faults_next_release(f), change = next_change(f, now);
        if (change < next)
            next = change;
        if (next == UINT64_MAX) {
            pthread_cond_wait(&f->changed, &f->lock);
        } else {
            struct timespec until = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
            pthread_cond_timedwait(&f->changed, &f->lock, &until);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

void faults_wake_mover(struct faults *f)
{
    if (f->moving) {
        pthread_cond_signal(&f->changed);
        return;
    }
    /* The program's signals are the program's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    /* Where no thread is to be had, whoever polls does it. */
    f->moving = pthread_create(&f->mover, NULL, move, f) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void faults_end_mover(struct faults *f)
{
    pthread_mutex_lock(&f->lock);
    f->ending = true;
    bool moving = f->moving;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (moving)
        pthread_join(f->mover, NULL);
}
