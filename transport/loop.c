/* SPDX-License-Identifier: MIT */
#include "transport/loop.h"
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* A place in the table; a poll request carries the place and its generation, so that a completion
 * of an earlier holder of the place is known as such. */
struct watcher {
    int fd; /* -1: free */
    short events;
    uint32_t generation;
    void (*ready)(void *arg);
    void *arg;
};

struct loop {
    bool uring;
    struct io_uring ring;
    struct watcher *watchers;
    struct pollfd *polls; /* ppoll: parallel to watchers */
    int used, capacity;
};

enum { RING_ENTRIES = 64, RING_COMPLETIONS = 4096 };
static const uint64_t removal_tag = UINT64_MAX;

static int open_ring(struct io_uring *ring)
{
    struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
                                     .cq_entries = RING_COMPLETIONS};
    int err = io_uring_queue_init_params(RING_ENTRIES, ring, &params);
    if (err < 0)
        return err;
    /* Without these a timed wait would need a request of its own, and completions could be lost. */
    if (!(params.features & IORING_FEAT_EXT_ARG) || !(params.features & IORING_FEAT_NODROP)) {
        io_uring_queue_exit(ring);
        return -ENOSYS;
    }
    /* A sandbox may allow to set one up and yet not to use it. */
    err = io_uring_submit_and_get_events(ring);
    if (err < 0) {
        io_uring_queue_exit(ring);
        return err;
    }
    io_uring_ring_dontfork(ring);
    return 0;
}

int loop_open(struct loop **loop, enum loop_choice choice, struct log *log)
{
    struct loop *l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    if (choice == LOOP_AUTOMATIC) {
        int err = open_ring(&l->ring);
        l->uring = err == 0;
        if (err < 0 && log)
            log_line(log, SSTAR_LOG_INFO, "event loop over ppoll: io_uring is refused (%s)",
                     strerror(-err));
        else if (log)
            log_line(log, SSTAR_LOG_TRACE, "event loop over io_uring");
    }
    *loop = l;
    return 0;
}

void loop_close(struct loop *loop)
{
    if (!loop)
        return;
    if (loop->uring)
        io_uring_queue_exit(&loop->ring);
    free(loop->watchers);
    free(loop->polls);
    free(loop);
}

const char *loop_backend(const struct loop *loop)
{
    return loop->uring ? "io_uring" : "ppoll";
}

static int find(const struct loop *loop, int fd)
{
    for (int i = 0; i < loop->used; i++)
        if (loop->watchers[i].fd == fd)
            return i;
    return -1;
}

static int grow(struct loop *loop)
{
    int capacity = loop->capacity ? 2 * loop->capacity : 16;
    struct watcher *watchers = realloc(loop->watchers, (size_t)capacity * sizeof(*watchers));
    if (!watchers)
        return -ENOMEM;
    loop->watchers = watchers;
    struct pollfd *polls = realloc(loop->polls, (size_t)capacity * sizeof(*polls));
    if (!polls)
        return -ENOMEM;
    loop->polls = polls;
    loop->capacity = capacity;
    return 0;
}

/* A free place, made if need be. */
static int place(struct loop *loop)
{
    int i = find(loop, -1);
    if (i >= 0)
        return i;
    if (loop->used == loop->capacity) {
        int err = grow(loop);
        if (err < 0)
            return err;
    }
    loop->watchers[loop->used] = (struct watcher){.fd = -1};
    loop->polls[loop->used] = (struct pollfd){.fd = -1};
    return loop->used++;
}

static uint64_t tag_of(const struct loop *loop, int i)
{
    return (uint64_t)(loop->watchers[i].generation & 0x7fffffff) << 32 | (uint32_t)i;
}

static struct io_uring_sqe *request(struct loop *loop)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);
    if (!sqe && io_uring_submit(&loop->ring) >= 0)
        sqe = io_uring_get_sqe(&loop->ring);
    return sqe;
}

/* Ask for one event. Requests are for one event each and renewed after it, which makes readiness
 * level-triggered; events are rare here. */
static int arm(struct loop *loop, int i)
{
    struct watcher *w = &loop->watchers[i];
    if (!loop->uring) {
        loop->polls[i] = (struct pollfd){.fd = w->fd, .events = w->events};
        return 0;
    }
    struct io_uring_sqe *sqe = request(loop);
    if (!sqe)
        return -EBUSY;
    io_uring_prep_poll_add(sqe, w->fd, (unsigned)w->events);
    io_uring_sqe_set_data64(sqe, tag_of(loop, i));
    return 0;
}

static void disarm(struct loop *loop, int i)
{
    loop->polls[i].fd = -1;
    if (loop->uring) {
        struct io_uring_sqe *sqe = request(loop);
        if (sqe) {
            io_uring_prep_poll_remove(sqe, tag_of(loop, i));
            io_uring_sqe_set_data64(sqe, removal_tag);
        }
    }
    loop->watchers[i].generation++;
}

static int submit(struct loop *loop)
{
    if (!loop->uring)
        return 0;
    int n = io_uring_submit(&loop->ring);
    return n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY ? n : 0;
}

int loop_watch(struct loop *loop, int fd, short events, void (*ready)(void *arg), void *arg)
{
    if (fd < 0)
        return -EBADF;
    if (find(loop, fd) >= 0)
        return -EEXIST;
    int i = place(loop);
    if (i < 0)
        return i;
    struct watcher *w = &loop->watchers[i];
    w->fd = fd;
    w->events = events;
    w->ready = ready;
    w->arg = arg;
    int err = arm(loop, i);
    if (err == 0)
        err = submit(loop);
    if (err < 0) {
        disarm(loop, i);
        loop->watchers[i].fd = -1;
    }
    return err;
}

int loop_rewatch(struct loop *loop, int fd, short events)
{
    int i = fd < 0 ? -1 : find(loop, fd);
    if (i < 0)
        return -ENOENT;
    if (loop->watchers[i].events == events)
        return 0;
    disarm(loop, i);
    loop->watchers[i].events = events;
    int err = arm(loop, i);
    return err < 0 ? err : submit(loop);
}

void loop_unwatch(struct loop *loop, int fd)
{
    int i = fd < 0 ? -1 : find(loop, fd);
    if (i < 0)
        return;
    disarm(loop, i);
    loop->watchers[i].fd = -1;
    submit(loop); /* at once: a request that is under way would keep the file open */
}

/* Handle the completions that are there now. */
static int dispatch_ring(struct loop *loop)
{
    int calls = 0, err = 0;
    unsigned ready = io_uring_cq_ready(&loop->ring);
    for (; ready > 0; ready--) {
        struct io_uring_cqe *cqe;
        if (io_uring_peek_cqe(&loop->ring, &cqe) < 0)
            break;
        uint64_t tag = cqe->user_data;
        int result = cqe->res;
        io_uring_cqe_seen(&loop->ring, cqe);
        int i = (int)(uint32_t)tag;
        if (tag == removal_tag || i >= loop->used || tag != tag_of(loop, i) ||
            loop->watchers[i].fd < 0)
            continue;
        uint32_t generation = loop->watchers[i].generation;
        /* -ECANCELED: the thread that asked is gone; whoever has the world now asks anew. */
        if (result != -ECANCELED) {
            loop->watchers[i].ready(loop->watchers[i].arg);
            calls++;
        }
        if (i < loop->used && loop->watchers[i].fd >= 0 &&
            loop->watchers[i].generation == generation && err == 0)
            err = arm(loop, i);
    }
    if (io_uring_sq_ready(&loop->ring) > 0) {
        int submitted = submit(loop);
        err = err < 0 ? err : submitted;
    }
    return err < 0 ? err : calls;
}

static int dispatch_polls(struct loop *loop, int ready)
{
    int calls = 0;
    for (int i = 0; i < loop->used && ready > 0; i++) {
        if (loop->polls[i].fd < 0 || loop->polls[i].revents == 0)
            continue;
        ready--;
        loop->polls[i].revents = 0;
        loop->watchers[i].ready(loop->watchers[i].arg);
        calls++;
    }
    return calls;
}

static int poll_for(struct loop *loop, uint64_t timeout_us)
{
    struct timespec t = {.tv_sec = (time_t)(timeout_us / 1000000),
                         .tv_nsec = (long)(timeout_us % 1000000) * 1000};
    int ready = ppoll(loop->polls, (nfds_t)loop->used, &t, NULL);
    if (ready < 0)
        return errno == EINTR ? 0 : -errno;
    return dispatch_polls(loop, ready);
}

int loop_poll(struct loop *loop)
{
    if (!loop->uring)
        return poll_for(loop, 0);
    if (io_uring_cq_ready(&loop->ring) == 0) {
        if (!io_uring_cq_has_overflow(&loop->ring))
            return 0;
        io_uring_get_events(&loop->ring);
    }
    return dispatch_ring(loop);
}

int loop_sleep(struct loop *loop, uint64_t timeout_us)
{
    if (!loop->uring)
        return poll_for(loop, timeout_us);
    struct __kernel_timespec t = {.tv_sec = (long long)(timeout_us / 1000000),
                                  .tv_nsec = (long long)(timeout_us % 1000000) * 1000};
    struct io_uring_cqe *cqe;
    int err = io_uring_wait_cqe_timeout(&loop->ring, &cqe, &t);
    if (err < 0 && err != -ETIME && err != -EINTR && err != -EAGAIN && err != -EBUSY)
        return err;
    return dispatch_ring(loop);
}
