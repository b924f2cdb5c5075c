/* SPDX-License-Identifier: MIT */
/*
 * The collective calls of the control plane, all through rank 0: each rank sends it a call, and
 * when it has the calls of all it replies to all. Rank 0 serves from within its own call; what
 * comes earlier is parked. A call carries its number and its operation, so two ranks that call
 * different things get a sentence and not a hang.
 */
#include "transport/control.h"
#include "transport/turn.h"
#include "transport/wait.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t drain_idle_ns = 1000 * 1000 * 1000;
static const uint64_t drain_ns = 3ull * 1000 * 1000 * 1000;

static const char *operation_name(int operation)
{
    switch (operation) {
    case OPERATION_BARRIER:
        return "sstar_barrier";
    case OPERATION_ALLGATHER:
        return "sstar_allgather";
    case OPERATION_ALLTOALL:
        return "sstar_alltoall_blocks";
    case OPERATION_LEAVE:
        return "sstar_world_close";
    }
    return "an unknown operation";
}

static bool same_call(const struct frame *a, const struct frame *b)
{
    return a->operation == b->operation && a->sequence == b->sequence && a->bytes == b->bytes;
}

static void fail_mismatch(struct sstar_world *world, int a, const struct frame *fa, int b,
                          const struct frame *fb)
{
    if (fa->operation == OPERATION_LEAVE || fb->operation == OPERATION_LEAVE) {
        bool first = fa->operation == OPERATION_LEAVE;
        world_fail(world, -EPROTO,
                   "rank %d left the world (sstar_world_close) while rank %d called %s; if rank %d "
                   "failed, it says itself why",
                   first ? a : b, first ? b : a,
                   operation_name(first ? fb->operation : fa->operation), first ? a : b);
        return;
    }
    world_fail(world, -EPROTO,
               "rank %d called %s with %" PRIu64 " bytes (call %" PRIu64 " of its control plane) "
               "while rank %d called %s with %" PRIu64 " bytes (call %" PRIu64 "); every rank must "
               "make the same calls in the same order, with one build of sstar",
               a, operation_name(fa->operation), fa->bytes, fa->sequence, b,
               operation_name(fb->operation), fb->bytes, fb->sequence);
}

/* Rank 0: does the call just parked at `c` agree with ours, or else with another that is parked? */
static void check_call(struct channel *c)
{
    struct control *control = c->world->control;
    if (control->call) {
        if (!same_call(control->call, &c->parked_frame))
            fail_mismatch(c->world, c->rank, &c->parked_frame, 0, control->call);
        return;
    }
    for (int r = 1; r < control->channel_count; r++) {
        const struct channel *other = &control->channels[r];
        if (other == c || !other->parked)
            continue;
        if (!same_call(&other->parked_frame, &c->parked_frame))
            fail_mismatch(c->world, c->rank, &c->parked_frame, other->rank, &other->parked_frame);
        return;
    }
}

void exchange_frame(struct channel *c)
{
    struct sstar_world *world = c->world;
    const struct frame *call = world->control->call;
    bool expected = !c->parked && c->in.kind == (world->rank == 0 ? FRAME_CALL : FRAME_REPLY);
    if (world->rank != 0)
        expected = expected && call && call->operation == c->in.operation &&
                   call->sequence == c->in.sequence && c->in.bytes == c->target_bytes;
    if (!expected) {
        world_fail(world, -EPROTO,
                   "rank %d received a %s of %s (call %" PRIu64 ", %" PRIu64 " bytes) from rank %d "
                   "that it did not expect",
                   world->rank, c->in.kind == FRAME_CALL ? "call" : "reply",
                   operation_name(c->in.operation), c->in.sequence, c->in.bytes, c->rank);
        return;
    }
    c->parked = true;
    c->parked_frame = c->in;
    c->parked_body = channel_take(c);
    if (world->rank == 0)
        check_call(c);
    else if (call->operation == OPERATION_LEAVE)
        c->left = world->control->left = true;
}

/* Start a frame and send what the socket takes. */
static void send_frame(struct channel *c, const struct frame *frame, struct iovec *pieces,
                       int count)
{
    channel_send(c, frame, pieces, count);
    control_serve(c);
}

static uint64_t bytes_moved(const struct control *control)
{
    uint64_t moved = 0;
    for (int i = 0; i < control->channel_count; i++)
        moved += control->channels[i].moved;
    return moved;
}

/* Wait for something to move. Rank 0 knows who is missing, so its sentence shall come before those
 * of the others, which wait two seconds more. */
static int step(struct waiter *w, uint64_t *moved)
{
    const struct sstar_world *world = w->world;
    uint64_t now = bytes_moved(world->control);
    if (now != *moved)
        wait_progress(w);
    *moved = now;
    bool first = w->started_ns == 0;
    int err = wait_sleep(w);
    if (first && world->rank != 0)
        w->deadline_ns += 2000000000u;
    return err;
}

/* The other end cannot read the notice before the frame that is half sent is through: push it on
 * while it moves. */
static void push_through(struct channel *c, uint64_t until)
{
    uint64_t moved = c->moved, moved_ns = clock_ns(), now = moved_ns;
    while (!channel_sent(c) && now < until && now - moved_ns < drain_idle_ns) {
        struct pollfd p = {.fd = c->fd, .events = POLLOUT};
        poll(&p, 1, 10);
        if (channel_write(c) < 0)
            c->out_left = 0;
        now = clock_ns();
        if (c->moved != moved)
            moved_ns = now;
        moved = c->moved;
    }
    if (!channel_sent(c))
        c->told = true; /* nothing sensible can be sent any more */
}

/* After a failure, before the call returns: nothing may refer to the caller's memory any more. */
static void drain(struct sstar_world *world)
{
    struct control *control = world->control;
    uint64_t until = clock_ns() + drain_ns;
    for (int i = 0; i < control->channel_count; i++) {
        struct channel *c = &control->channels[i];
        if (c->fd >= 0 && !c->ended && !c->told)
            push_through(c, until);
        c->out_left = 0;
        if (c->in_body == c->target)
            c->in_body = NULL;
    }
}

struct exchange {
    struct sstar_world *world;
    struct frame frame; /* our call */
    const uint8_t *send;
    uint8_t *receive; /* size blocks */
    size_t block_bytes;
};

/* ---- rank 0 --------------------------------------------------------------------------------- */

static int first_missing(const struct control *control)
{
    for (int r = 1; r < control->channel_count; r++)
        if (!control->channels[r].parked)
            return r;
    return -1;
}

static int first_unsent(const struct control *control)
{
    for (int r = 1; r < control->channel_count; r++)
        if (!channel_sent(&control->channels[r]))
            return r;
    return -1;
}

/* The block of rank `from` that is for rank `to`. */
static const uint8_t *block(const struct exchange *x, void *const *bodies, int from, int to)
{
    const uint8_t *base = from == 0 ? x->send : bodies[from];
    return x->frame.operation == OPERATION_ALLTOALL ? base + (size_t)to * x->block_bytes : base;
}

static int gather_calls(struct exchange *x, struct waiter *w, uint64_t *moved)
{
    struct control *control = x->world->control;
    for (int r = 1; r < control->channel_count; r++)
        if (control->channels[r].parked &&
            !same_call(&x->frame, &control->channels[r].parked_frame))
            fail_mismatch(x->world, r, &control->channels[r].parked_frame, 0, &x->frame);
    while (!x->world->failed && (w->peer = first_missing(control)) > 0) {
        int err = step(w, moved);
        if (err < 0)
            return err;
    }
    return x->world->failed;
}

static int send_replies(struct exchange *x, struct waiter *w, uint64_t *moved, void *const *bodies,
                        struct iovec *pieces)
{
    struct control *control = x->world->control;
    const int size = x->world->size;
    struct frame reply = x->frame;
    reply.kind = FRAME_REPLY;
    reply.bytes = (uint64_t)size * x->block_bytes;
    const int count = x->block_bytes ? size : 0;
    for (int to = 1; to < size; to++) {
        struct iovec *mine = &pieces[(size_t)to * (size_t)count];
        for (int from = 0; from < count; from++)
            mine[from] = (struct iovec){(void *)block(x, bodies, from, to), x->block_bytes};
        control->channels[to].left = x->frame.operation == OPERATION_LEAVE;
        send_frame(&control->channels[to], &reply, mine, count);
    }
    while (!x->world->failed && (w->peer = first_unsent(control)) > 0) {
        int err = step(w, moved);
        if (err < 0)
            return err;
    }
    return x->world->failed;
}

static int exchange_at_root(struct exchange *x)
{
    struct control *control = x->world->control;
    const size_t size = (size_t)x->world->size;
    void **bodies = calloc(size, sizeof(*bodies));
    struct iovec *pieces = calloc(x->block_bytes ? size * size : 1, sizeof(*pieces));
    struct waiter w =
        wait_begin(x->world, operation_name(x->frame.operation), -1, x->frame.sequence);
    uint64_t moved = bytes_moved(control);
    int err = -ENOMEM;
    if (bodies && pieces)
        err = gather_calls(x, &w, &moved);
    else
        world_fail(x->world, err, "rank 0 has no memory left for an exchange of %zu ranks", size);
    for (size_t r = 1; err == 0 && r < size; r++) {
        bodies[r] = control->channels[r].parked_body;
        control->channels[r].parked_body = NULL;
        control->channels[r].parked = false;
    }
    control->call = NULL; /* what comes now belongs to the next call */
    if (err == 0)
        err = send_replies(x, &w, &moved, bodies, pieces);
    if (err < 0)
        drain(x->world);
    for (size_t from = 0; err == 0 && x->block_bytes && from < size; from++)
        memmove(x->receive + from * x->block_bytes, block(x, bodies, (int)from, 0), x->block_bytes);
    for (size_t r = 1; bodies && r < size; r++)
        free(bodies[r]);
    free(bodies);
    free(pieces);
    return err;
}

/* ---- the others ----------------------------------------------------------------------------- */

static int exchange_with_root(struct exchange *x)
{
    struct channel *c = &x->world->control->channels[0];
    struct iovec piece = {(void *)x->send, x->frame.bytes};
    struct waiter w =
        wait_begin(x->world, operation_name(x->frame.operation), -1, x->frame.sequence);
    uint64_t moved = c->moved;
    int err = 0;
    c->target = x->receive;
    c->target_bytes = (size_t)x->world->size * x->block_bytes;
    send_frame(c, &x->frame, &piece, x->frame.bytes ? 1 : 0);
    while (!x->world->failed && !c->parked && err == 0)
        err = step(&w, &moved);
    if (c->parked)
        err = 0;
    else if (err == 0)
        err = x->world->failed;
    if (err < 0)
        drain(x->world);
    c->parked = false;
    c->parked_body = NULL; /* it is the caller's */
    c->target = NULL;
    return err;
}

/* ---- the calls ------------------------------------------------------------------------------ */

static int exchange(struct sstar_world *world, enum operation operation, const void *send,
                    size_t send_bytes, void *receive, size_t block_bytes)
{
    struct control *control = world->control;
    int err = control_check_owner(world);
    if (err == 0)
        err = control_poll(world);
    if (err < 0)
        return err;
    struct exchange x = {.world = world,
                         .frame = {.magic = RENDEZVOUS_MAGIC,
                                   .kind = FRAME_CALL,
                                   .operation = (uint16_t)operation,
                                   .sequence = control->sequence++,
                                   .bytes = send_bytes},
                         .send = send,
                         .receive = receive,
                         .block_bytes = block_bytes};
    if (world->size == 1) {
        if (block_bytes)
            memmove(receive, send, block_bytes);
        return 0;
    }
    control->call = &x.frame;
    err = world->rank == 0 ? exchange_at_root(&x) : exchange_with_root(&x);
    control->call = NULL;
    if (err < 0)
        control_tell(world);
    return err;
}

int sstar_barrier(struct sstar_world *world)
{
    WORLD_TURN(world);
    return exchange(world, OPERATION_BARRIER, NULL, 0, NULL, 0);
}

int sstar_allgather(struct sstar_world *world, const void *mine, size_t bytes, void *all)
{
    WORLD_TURN(world);
    return exchange(world, OPERATION_ALLGATHER, mine, bytes, all, bytes);
}

int sstar_alltoall_blocks(struct sstar_world *world, const void *send, size_t bytes, void *recv)
{
    WORLD_TURN(world);
    return exchange(world, OPERATION_ALLTOALL, send, (size_t)world->size * bytes, recv, bytes);
}

int control_leave(struct sstar_world *world)
{
    if (world->size == 1)
        return 0;
    return exchange(world, OPERATION_LEAVE, NULL, 0, NULL, 0);
}
