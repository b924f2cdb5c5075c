/* SPDX-License-Identifier: MIT */
/* Another process that serves one side: it does what it is told over a socket and answers. */
#include "tests/conformance.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static bool send_all(int fd, const void *data, size_t bytes)
{
    for (const uint8_t *at = data; bytes;) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

static bool receive_all(int fd, void *data, size_t bytes)
{
    for (uint8_t *at = data; bytes;) {
        if (!poll_readable(fd, 2 * DEADLINE_MS))
            return false;
        ssize_t got = recv(fd, at, bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* --- the peer's side ------------------------------------------------------------------------- */

static void answer(struct trial *t, int fd, const void *data, size_t bytes)
{
    expect(t, send_all(fd, data, bytes), "nobody listens any more");
}

static void do_receive(struct trial *t, const struct peer_order *order)
{
    struct receive r;
    receive_make(t, &r, &t->b, order->at, order->bytes);
    post_receive(t, &t->b, &r);
}

/* The same request `count` times, one after the other; answers the last completion. */
static struct ibv_wc do_work(struct trial *t, const struct peer_order *order,
                             const struct address *other)
{
    struct ibv_wc wc = {0};
    for (uint32_t i = 0; i < order->count; i++) {
        struct work w;
        work_make(t, &w, order->opcode, &t->b, order->at, other, order->remote_at, order->bytes);
        if (order->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            w.wr.wr.atomic.compare_add = order->add;
        post(t, &t->b, &w);
        wc = next_wc(t, t->b.send_cq);
        if (wc.status != IBV_WC_SUCCESS)
            break;
    }
    return wc;
}

/* Says that it is armed, then sleeps until the event. The channel is not readable without one. */
static void do_event(struct trial *t, int fd)
{
    struct ibv_cq *found = NULL;
    void *cq_context;
    set_nonblocking(t, t->b.channel->fd);
    int armed = t->verbs->req_notify_cq(t->b.recv_cq, 0);
    answer(t, fd, &armed, sizeof armed);
    expect(t, poll_readable(t->b.channel->fd, t->deadline_ms), "the channel never became readable");
    expect_equal(t, t->verbs->get_cq_event(t->b.channel, &found, &cq_context), 0, "get_cq_event");
    t->verbs->ack_cq_events(found, 1);
    expect(t, found == t->b.recv_cq, "the event is of another CQ");
}

/* False: the order was to quit. */
static bool obey(struct trial *t, int fd, const struct peer_order *order,
                 const struct address *other)
{
    struct ibv_wc wc;
    int value = 0;
    switch (order->command) {
    case PEER_RECEIVE:
        do_receive(t, order);
        break;
    case PEER_EVENT:
        do_event(t, fd);
        wc = next_wc(t, t->b.recv_cq);
        answer(t, fd, &wc, sizeof wc);
        return true;
    case PEER_POLL:
        wc = next_wc(t, t->b.recv_cq);
        answer(t, fd, &wc, sizeof wc);
        return true;
    case PEER_WORK:
        wc = do_work(t, order, other);
        answer(t, fd, &wc, sizeof wc);
        return true;
    case PEER_ASYNC:
        value = (int)expect_async(t, &t->b, IBV_EVENT_QP_ACCESS_ERR, t->b.qp);
        break;
    case PEER_SHOW:
        answer(t, fd, t->b.memory + order->at, order->bytes);
        return true;
    case PEER_DEREGISTER:
        deregister(t, t->b.mr);
        break;
    case PEER_STATE:
        value = (int)state_of(t, t->b.qp);
        break;
    case PEER_QUIT:
        return false;
    }
    answer(t, fd, &value, sizeof value);
    return true;
}

static void serve(struct trial *t, int which, int fd, const struct options *options, bool memfd)
{
    struct options own = *options;
    struct address other;
    side_open(t, &t->b, which);
    if (memfd)
        own.memory = memfd_memory(t, own.memory_bytes);
    side_make(t, &t->b, &own);
    answer(t, fd, &t->b.address, sizeof t->b.address);
    expect(t, receive_all(fd, &other, sizeof other), "no address came");
    bring(t, &t->b, &other, IBV_QPS_RTS);
    answer(t, fd, &t->b.address, sizeof t->b.address);
    struct peer_order order;
    do {
        expect(t, receive_all(fd, &order, sizeof order), "no order came");
    } while (obey(t, fd, &order, &other));
    if (!trial_undo(t))
        longjmp(t->out, 1);
    side_close(t, &t->b);
}

static noreturn void peer_main(struct trial *t, int which, int fd, const struct options *options,
                               bool memfd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    t->peers = NULL;
    if (setjmp(t->out)) {
        fprintf(stderr, "peer process %d: %s %s\n", (int)getpid(), t->where, t->message);
        _exit(1);
    }
    serve(t, which, fd, options, memfd);
    _exit(0);
}

/* --- this process's side --------------------------------------------------------------------- */

struct peer *peer_start(struct trial *t, int which, const struct options *options, bool memfd)
{
    int fds[2];
    expect(t, !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "socketpair: %s",
           strerror(errno));
    struct peer *peer = calloc(1, sizeof *peer);
    expect(t, peer, "no memory");
    fflush(NULL);
    peer->fd = fds[0];
    peer->next = t->peers;
    t->peers = peer;
    peer->pid = fork();
    expect(t, peer->pid >= 0, "fork: %s", strerror(errno));
    if (peer->pid == 0) {
        close(fds[0]);
        peer_main(t, which, fds[1], options, memfd);
    }
    close(fds[1]);
    peer_answer(t, peer, &peer->address, sizeof peer->address);
    return peer;
}

void peer_connect(struct trial *t, struct peer *peer, const struct address *own)
{
    expect(t, send_all(peer->fd, own, sizeof *own), "the peer process has ended");
    peer_answer(t, peer, &peer->address, sizeof peer->address);
}

void peer_tell(struct trial *t, struct peer *peer, const struct peer_order *order)
{
    expect(t, send_all(peer->fd, order, sizeof *order), "the peer process has ended");
}

void peer_answer(struct trial *t, struct peer *peer, void *data, size_t bytes)
{
    expect(t, receive_all(peer->fd, data, bytes),
           "the peer process has ended or is silent (its own message stands on stderr)");
}

static int reap(struct peer *peer)
{
    int status = 0;
    while (peer->pid > 0 && waitpid(peer->pid, &status, 0) < 0 && errno == EINTR)
        ;
    peer->pid = 0;
    return status;
}

void peer_kill(struct peer *peer)
{
    if (peer->pid > 0)
        kill(peer->pid, SIGKILL);
    reap(peer);
}

void peer_quit(struct trial *t, struct peer *peer)
{
    const struct peer_order order = {.command = PEER_QUIT};
    char end;
    peer_tell(t, peer, &order);
    expect(t, !receive_all(peer->fd, &end, 1), "the peer process answers when told to quit");
    int status = reap(peer);
    expect(t, WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "the peer process ended with status %#x", status);
}

void peers_end(struct trial *t)
{
    while (t->peers) {
        struct peer *peer = t->peers;
        t->peers = peer->next;
        peer_kill(peer);
        close(peer->fd);
        free(peer);
    }
}

/* Starts the peer before this process opens anything: a device may be of no use after fork. */
struct peer *peer_meet(struct trial *t, const struct options *options)
{
    struct options o = options ? *options : default_options();
    bool memfd = t->check->size == PEER_MEMFD;
    struct peer *peer = peer_start(t, 1, &o, memfd);
    side_open(t, &t->a, 0);
    if (memfd)
        o.memory = memfd_memory(t, o.memory_bytes);
    side_make(t, &t->a, &o);
    bring(t, &t->a, &peer->address, IBV_QPS_RTS);
    peer_connect(t, peer, &t->a.address);
    t->b.address = peer->address;
    t->b.bytes = o.memory_bytes;
    t->b.memory = trial_memory(t, t->b.bytes);
    t->b.expected = trial_memory(t, t->b.bytes);
    return peer;
}

void expect_peer_memory(struct trial *t, struct peer *peer)
{
    struct peer_order order = {.command = PEER_SHOW, .bytes = (uint32_t)t->b.bytes};
    peer_tell(t, peer, &order);
    peer_answer(t, peer, t->b.memory, t->b.bytes);
    expect_memory(t, &t->b, "the peer process");
}
