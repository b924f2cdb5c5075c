/* SPDX-License-Identifier: MIT */
/*
 * The control plane after the rendezvous: who is alive, who called what. The part that everybody
 * uses is in world.h. Private to the control plane.
 *
 * Deaths. Every rank watches the processes of its host through pidfds and its connection to rank 0;
 * rank 0 has a connection to all. A rank that fails says why in a notice before it leaves, and rank
 * 0 passes the notice on, so that the first sentence reaches everybody and no rank is blamed for
 * leaving because of another. A connection that ends without a notice or a leave is a death.
 */
#ifndef SSTAR_TRANSPORT_CONTROL_H
#define SSTAR_TRANSPORT_CONTROL_H

#include "transport/channel.h"
#include "transport/rendezvous.h"
#include "transport/world.h"

enum operation { OPERATION_BARRIER = 1, OPERATION_ALLGATHER, OPERATION_ALLTOALL, OPERATION_LEAVE };

struct guardian {
    struct sstar_world *world;
    int rank;
    int pidfd; /* -1: none */
};

struct control {
    struct loop *loop;
    struct channel *channels; /* rank 0: [size], its own without an fd; others: [1], to rank 0 */
    int channel_count;
    struct guardian *guardians; /* [size] */
    uint64_t sequence;          /* calls made so far */
    const struct frame *call;   /* the one under way here */
    int suspect;                /* dead, but perhaps because of another; -1: nobody */
    uint64_t suspect_ns, grace_ns;
    int told_by;              /* whose sentence the failure is */
    pid_t owner;              /* the process that opened the world */
    volatile uint32_t *owned; /* a page that fork clears in the child */
    bool left;
};

/* Take over the sockets of the meeting (they are -1 in it afterwards). The world's ranks are known.
 * Without a meeting (size 1) there is only the loop, which control_close also closes. */
int control_open(struct sstar_world *world, struct loop *loop, struct meeting *meeting);
void control_close(struct sstar_world *world);
/* Tell the others that the world has failed. Never blocks. */
void control_tell(struct sstar_world *world);
/* Our port went down, or is active again: the control plane may go over the same cable, and what is
 * under way on a connection keeps the kernel from asking whether the other end is still there. */
void control_port_down(struct sstar_world *world, bool down);
/* Leave in good order, together with the others. 0 or the world's failure. */
int control_leave(struct sstar_world *world);
const struct loop *control_loop(const struct sstar_world *world);
/* 0, or -EPERM with a sentence in a child of the process that opened the world. */
int control_check_owner(struct sstar_world *world);
/* The same in a comparison, on all kernels that know MADV_WIPEONFORK (4.14). */
bool control_is_inherited(const struct sstar_world *world);

/* Frames that are whole are handled here (exchange.c). */
void exchange_frame(struct channel *c);
/* Read and write what can be, without blocking. */
void control_serve(struct channel *c);
/* Watch for room to send exactly as long as something waits to be sent. */
void control_rewatch(struct channel *c);

/* world.c: sstar_world_open with a choice of event loop, for tests. */
int world_open_over(struct sstar_world **world, const struct sstar_config *config,
                    enum loop_choice choice, char *error, size_t error_size);

#endif
