/* SPDX-License-Identifier: MIT */
#include "transport/control.h"
#include "transport/links.h"
#include "transport/wait.h"
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How long news may take to come before a dead process is held for the cause: over other hosts the
 * news goes through rank 0. */
static const uint64_t grace_here_ns = 150 * 1000 * 1000;
static const uint64_t grace_across_ns = 1000 * 1000 * 1000;
static const uint64_t tick_ns = 1000 * 1000;

struct notice {
    int32_t code;
    int32_t rank; /* that said it first */
    char text[504];
};

static void blame(struct sstar_world *world, int rank)
{
    const struct rank_info *info = &world->ranks[rank];
    world_fail(world, -ECONNRESET,
               "rank %d (host %s, pid %ld) died: it was killed, or ended without leaving the world",
               rank, info->host, (long)info->pid);
}

/* ---- what comes in -------------------------------------------------------------------------- */

static void take_notice(struct channel *c)
{
    struct sstar_world *world = c->world;
    struct notice notice = {0};
    size_t bytes = c->in.bytes;
    void *body = channel_take(c);
    if (body)
        memcpy(&notice, body, bytes < sizeof(notice) ? bytes : sizeof(notice));
    free(body);
    notice.text[sizeof(notice.text) - 1] = '\0';
    int code = (int32_t)le32toh((uint32_t)notice.code);
    int rank = (int32_t)le32toh((uint32_t)notice.rank);
    c->told = true;
    if (world->failed)
        return;
    world->control->told_by = rank;
    bool clear = strncmp(notice.text, "rank ", 5) == 0;
    char who[32] = "";
    if (!clear)
        snprintf(who, sizeof(who), "rank %d: ", rank);
    world_fail(world, code < 0 ? code : -EPROTO, "%s%s", who, notice.text);
}

/* The connection was not closed but fell silent. That says nothing of the process. */
static bool is_network_error(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
}

static void channel_ended(struct channel *c)
{
    c->ended = true;
    loop_unwatch(c->loop, c->fd);
    if (c->left || c->world->failed)
        return;
    if (!is_network_error(c->error)) {
        blame(c->world, c->rank);
        return;
    }
    char link[288];
    links_describe(c->world, c->rank, link, sizeof(link));
    world_fail(c->world, -c->error,
               "rank %d has no connection to rank %d (host %s) any more: %s; look at: that host, "
               "and the network between the two%s%s",
               c->world->rank, c->rank, c->world->ranks[c->rank].host, strerror(c->error),
               *link ? ", and " : "", link);
}

static void read_frames(struct channel *c)
{
    struct sstar_world *world = c->world;
    while (!c->ended && !world->failed) {
        switch (channel_read(c)) {
        case CHANNEL_NOTHING:
            return;
        case CHANNEL_FRAME:
            if (c->in.kind == FRAME_NOTICE)
                take_notice(c);
            else
                exchange_frame(c);
            break;
        case CHANNEL_END:
            channel_ended(c);
            break;
        case CHANNEL_GARBAGE:
            world_fail(world, -EPROTO, "rank %d received what is no frame from rank %d",
                       world->rank, c->rank);
            break;
        case CHANNEL_NO_MEMORY:
            world_fail(world, -ENOMEM, "rank %d has no memory for %llu bytes from rank %d",
                       world->rank, (unsigned long long)c->in.bytes, c->rank);
            break;
        }
    }
}

void control_rewatch(struct channel *c)
{
    if (c->ended)
        return;
    loop_rewatch(c->loop, c->fd, (short)(channel_sent(c) ? POLLIN : POLLIN | POLLOUT));
}

void control_serve(struct channel *c)
{
    if (c->fd < 0 || c->ended)
        return;
    read_frames(c);
    if (c->world->failed) {
        loop_unwatch(c->loop, c->fd); /* nothing that comes now matters */
        return;
    }
    /* A broken connection is told by its reading side, which may still hold a notice. */
    if (!c->ended && !channel_sent(c) && channel_write(c) < 0) {
        c->out_left = 0;
        read_frames(c);
    }
    control_rewatch(c);
}

static void channel_ready(void *arg)
{
    control_serve(arg);
}

static void process_ended(void *arg)
{
    struct guardian *g = arg;
    struct sstar_world *world = g->world;
    struct control *control = world->control;
    loop_unwatch(control->loop, g->pidfd);
    if (world->failed || control->left)
        return;
    /* What it said before is in the socket already: sockets are closed before a process has ended.
     */
    if (world->rank == 0 || g->rank == 0) {
        struct channel *c = &control->channels[world->rank == 0 ? g->rank : 0];
        control_serve(c);
        if (!world->failed && !c->left)
            blame(world, g->rank);
    } else if (control->suspect < 0) {
        control->suspect = g->rank;
        control->suspect_ns = clock_ns();
    }
}

/* ---- looking -------------------------------------------------------------------------------- */

int control_check_owner(struct sstar_world *world)
{
    const struct control *control = world->control;
    if (!control || (*control->owned && control->owner == getpid()))
        return 0;
    return report_set(&world->report, -EPERM,
                      "rank %d: a world cannot be used in a child of the process that opened it "
                      "(pid %ld); fork before sstar_world_open",
                      world->rank, (long)control->owner);
}

bool control_is_inherited(const struct sstar_world *world)
{
    return world->control && !*world->control->owned;
}

static int check_suspect(struct sstar_world *world)
{
    struct control *control = world->control;
    if (control->suspect >= 0 && !world->failed && !control->left &&
        clock_ns() - control->suspect_ns >= control->grace_ns)
        blame(world, control->suspect);
    return world->failed;
}

/* A rank that waits for something else still moves its links on, as other ranks may wait for what
 * it has posted (softnic moves only when polled) or for credit. No timer does it: it would
 * interrupt whoever is busy, too, and under emulation that was a fifth of a small message. */
static int tick(struct sstar_world *world)
{
    uint64_t now = world->ticking ? clock_ns() : 0;
    if (now >= world->ticked_ns + tick_ns) {
        world->ticked_ns = UINT64_MAX - tick_ns; /* not again from in there */
        links_tick(world);
        world->ticked_ns = now;
    }
    return world->failed;
}

int control_poll(struct sstar_world *world)
{
    struct control *control = world->control;
    if (world->failed || !control)
        return world->failed;
    if (control_is_inherited(world))
        return control_check_owner(world);
    int n = loop_poll(control->loop);
    if (n < 0 && !world->failed)
        return world_fail(world, n, "rank %d: the event loop failed: %s", world->rank,
                          strerror(-n));
    check_suspect(world);
    return tick(world);
}

int control_sleep(struct sstar_world *world, uint64_t timeout_us)
{
    struct control *control = world->control;
    if (world->failed || !control)
        return world->failed;
    if (control_is_inherited(world))
        return control_check_owner(world);
    if (control->suspect >= 0 && timeout_us > 10000)
        timeout_us = 10000;
    if (world->ticking && timeout_us > tick_ns / 1000)
        timeout_us = tick_ns / 1000;
    int n = loop_sleep(control->loop, timeout_us);
    if (n < 0 && !world->failed)
        return world_fail(world, n, "rank %d: the event loop failed: %s", world->rank,
                          strerror(-n));
    check_suspect(world);
    return tick(world);
}

uint64_t control_news_ns(const struct sstar_world *world)
{
    return world->control ? 2 * world->control->grace_ns : 0;
}

int control_await_news(struct sstar_world *world)
{
    struct control *control = world->control;
    uint64_t until = clock_ns() + control_news_ns(world);
    while (control && !world->failed && clock_ns() < until)
        if (control_sleep(world, 10000) < 0)
            break;
    return world->failed;
}

int control_watch(struct sstar_world *world, int fd, void (*ready)(void *arg), void *arg)
{
    return loop_watch(world->control->loop, fd, POLLIN, ready, arg);
}

void control_unwatch(struct sstar_world *world, int fd)
{
    if (world->control)
        loop_unwatch(world->control->loop, fd);
}

const struct loop *control_loop(const struct sstar_world *world)
{
    return world->control->loop;
}

void control_port_down(struct sstar_world *world, bool down)
{
    unsigned limit_ms = down ? 4000 : 0; /* as address_tune has it for a connection at rest */
    struct control *control = world->control;
    for (int i = 0; control && i < control->channel_count; i++)
        if (control->channels[i].fd >= 0)
            setsockopt(control->channels[i].fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms,
                       sizeof limit_ms);
}

void control_tell(struct sstar_world *world)
{
    struct control *control = world->control;
    if (!control || control->left || control_is_inherited(world)) /* the parent's world goes on */
        return;
    int32_t rank = control->told_by >= 0 ? control->told_by : world->rank;
    struct notice notice = {.code = (int32_t)htole32((uint32_t)world->failed),
                            .rank = (int32_t)htole32((uint32_t)rank)};
    snprintf(notice.text, sizeof(notice.text), "%.503s", world->report.text);
    const struct frame frame = {
        .magic = RENDEZVOUS_MAGIC, .kind = FRAME_NOTICE, .bytes = sizeof(notice)};
    for (int i = 0; i < control->channel_count; i++) {
        struct channel *c = &control->channels[i];
        if (c->fd >= 0 && !c->told && !c->ended && !c->left)
            c->told = channel_send_small(c, &frame, &notice);
    }
}

/* ---- opening and closing -------------------------------------------------------------------- */

static int guard(struct guardian *g)
{
    struct sstar_world *world = g->world;
    const struct rank_info *info = &world->ranks[g->rank];
    g->pidfd = -1;
    if (!info->same_host || info->pid == getpid())
        return 0; /* a thread of ours, or out of sight: the sockets tell */
    g->pidfd = (int)syscall(SYS_pidfd_open, info->pid, 0);
    if (g->pidfd < 0) {
        log_line(&world->log, SSTAR_LOG_INFO,
                 "rank %d (pid %ld) is watched through its socket only: pidfd_open: %s", g->rank,
                 (long)info->pid, strerror(errno));
        return 0;
    }
    return loop_watch(world->control->loop, g->pidfd, POLLIN, process_ended, g);
}

/* A word that is 1 in this process and 0 in a child that fork makes. */
static volatile uint32_t *owned_word(void)
{
    long page = sysconf(_SC_PAGESIZE);
    uint32_t *word =
        mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (word == MAP_FAILED)
        return NULL;
    madvise(word, (size_t)page,
            MADV_WIPEONFORK); /* refused: slow calls compare pids all the same */
    *word = 1;
    return word;
}

static int open_channels(struct sstar_world *world, struct meeting *meeting)
{
    struct control *control = world->control;
    bool across = false;
    for (int r = 0; r < world->size; r++)
        across |= !world->ranks[r].same_host;
    control->grace_ns = across ? grace_across_ns : grace_here_ns;
    control->channels = calloc((size_t)meeting->fd_count, sizeof(*control->channels));
    control->guardians = calloc((size_t)world->size, sizeof(*control->guardians));
    if (!control->channels || !control->guardians)
        return -ENOMEM;
    for (int r = 0; r < world->size; r++)
        control->guardians[r] = (struct guardian){.world = world, .rank = r, .pidfd = -1};
    for (; control->channel_count < meeting->fd_count; control->channel_count++) {
        int i = control->channel_count;
        struct channel *c = &control->channels[i];
        *c = (struct channel){.world = world,
                              .loop = control->loop,
                              .rank = world->rank == 0 ? i : 0,
                              .fd = meeting->fds[i]};
        meeting->fds[i] = -1;
        int err = c->fd < 0 ? 0 : loop_watch(c->loop, c->fd, POLLIN, channel_ready, c);
        if (err < 0)
            return err;
    }
    for (int r = 0; r < world->size; r++) {
        int err = guard(&control->guardians[r]);
        if (err < 0)
            return err;
    }
    return 0;
}

int control_open(struct sstar_world *world, struct loop *loop, struct meeting *meeting)
{
    struct control *control = calloc(1, sizeof(*control));
    if (!control)
        return report_set(&world->report, -ENOMEM, "no memory left for the control plane");
    *control = (struct control){
        .loop = loop, .suspect = -1, .told_by = -1, .owner = getpid(), .owned = owned_word()};
    int err = control->owned ? 0 : -ENOMEM;
    world->control = control;
    if (err == 0 && meeting)
        err = open_channels(world, meeting);
    if (err == 0)
        return 0;
    report_set(&world->report, err, "rank %d: the control plane could not be opened: %s",
               world->rank, strerror(-err));
    control->loop = NULL; /* stays with the caller */
    control_close(world);
    return err;
}

/* TCP resets a connection that is closed with input unread, and what we sent last could be lost
 * with it: our notice. */
static void discard_input(int fd)
{
    char bytes[4096];
    for (int i = 0; i < 1024 && read(fd, bytes, sizeof(bytes)) > 0; i++)
        continue;
}

void control_close(struct sstar_world *world)
{
    struct control *control = world->control;
    if (!control)
        return;
    if (world->failed)
        control_tell(world);
    loop_close(control->loop);
    for (int i = 0; i < control->channel_count; i++) {
        struct channel *c = &control->channels[i];
        if (c->fd >= 0) {
            discard_input(c->fd);
            close(c->fd);
        }
        if (c->in_body != c->target)
            free(c->in_body);
        if (c->parked_body != c->target)
            free(c->parked_body);
    }
    for (int r = 0; control->guardians && r < world->size; r++)
        if (control->guardians[r].pidfd >= 0)
            close(control->guardians[r].pidfd);
    free(control->channels);
    free(control->guardians);
    if (control->owned)
        munmap((void *)control->owned, (size_t)sysconf(_SC_PAGESIZE));
    free(control);
    world->control = NULL;
}
