/* SPDX-License-Identifier: MIT */
/*
 * The contexts of this process. They reach each other by address, and no address may come out of a
 * file that others write: so it is looked up here.
 */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct own *first;

/* A child must not inherit the lock held. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void at_fork(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

int nic_own_create(struct ctx *ctx)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, at_fork);
    struct own *own = calloc(1, sizeof *own);
    if (own == NULL)
        return ENOMEM;
    own->mr = calloc(MRS_MAX, sizeof *own->mr);
    if (own->mr == NULL) {
        free(own);
        return ENOMEM;
    }
    own->member = ctx->member;
    own->pid = ctx->pid;
    own->async_wfd = ctx->async_wfd;
    atomic_store(&own->refs, 1);
    ctx->own = own;
    return 0;
}

void nic_own_joined(struct ctx *ctx)
{
    struct own *own = ctx->own;
    own->ip = ctx->ip;
    own->slot = ctx->slot;
    pthread_mutex_lock(&lock);
    own->next = first;
    first = own;
    pthread_mutex_unlock(&lock);
}

void nic_own_left(struct ctx *ctx)
{
    pthread_mutex_lock(&lock);
    struct own **at = &first;
    while (*at != NULL && *at != ctx->own)
        at = &(*at)->next;
    if (*at != NULL)
        *at = ctx->own->next;
    pthread_mutex_unlock(&lock);
}

struct own *nic_own_get(uint32_t ip, uint32_t slot)
{
    pthread_mutex_lock(&lock);
    struct own *own = first;
    while (own != NULL && (own->ip != ip || own->slot != slot || own->pid != getpid()))
        own = own->next;
    if (own != NULL)
        atomic_fetch_add(&own->refs, 1);
    pthread_mutex_unlock(&lock);
    return own;
}

void nic_own_put(struct own *own)
{
    if (atomic_fetch_sub(&own->refs, 1) != 1)
        return;
    munmap(own->member, MEMBER_BYTES);
    free(own->mr);
    free(own);
}
