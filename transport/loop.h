/* SPDX-License-Identifier: MIT */
/*
 * The event loop: watches everything that is not the data path. io_uring where the kernel lets us,
 * ppoll otherwise; callers cannot tell the difference except by loop_backend(). Private.
 *
 * Readiness is level-triggered: `ready` is called again as long as the fd is ready. It may watch
 * and unwatch any fd, its own too. Calls come only from loop_poll and loop_sleep.
 */
#ifndef SSTAR_TRANSPORT_LOOP_H
#define SSTAR_TRANSPORT_LOOP_H

#include "transport/report.h"
#include <stdint.h>

struct loop;

enum loop_choice {
    LOOP_AUTOMATIC, /* io_uring, or ppoll if it is refused */
    LOOP_PPOLL,     /* for tests of the second choice */
};

/* `log` gets a line on which backend was taken and why; may be NULL. */
int loop_open(struct loop **loop, enum loop_choice choice, struct log *log);
void loop_close(struct loop *loop);
/* "io_uring" or "ppoll". */
const char *loop_backend(const struct loop *loop);

/* Watch `fd` for `events` (POLLIN, POLLOUT). -EEXIST if it is watched already. */
int loop_watch(struct loop *loop, int fd, short events, void (*ready)(void *arg), void *arg);
/* Watch for other events from now on. -ENOENT if the fd is not watched. */
int loop_rewatch(struct loop *loop, int fd, short events);
/* Must be called before the fd is closed. No harm if it is not watched. */
void loop_unwatch(struct loop *loop, int fd);

/* Call `ready` of what is ready without blocking: the number of calls, or -errno. With io_uring
 * this is a look at the completion ring in memory. */
int loop_poll(struct loop *loop);
/* The same, but sleep until something is ready or the timeout has passed. */
int loop_sleep(struct loop *loop, uint64_t timeout_us);

#endif
