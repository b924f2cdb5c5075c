/* SPDX-License-Identifier: MIT */
/* librdmacm's calls on softnic between processes: peers that are killed, strangers, and peers that
 * send what is no message. */
#include "tests/cm_side.h"
#include "transport/softnic/cm/message.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- killed --------------------------------------------------------------------------------- */

/* A process forked before any port was opened: it reads the number of a listener, connects to it,
 * says so, and waits to be killed. */
struct child {
    pid_t pid;
    int to, from;
};

static void child_run(int in, int out)
{
    struct cm_side side = {0};
    uint16_t port;
    char done = 1;
    if (read(in, &port, sizeof port) != sizeof port)
        _exit(0);
    cm_resolve(&side, RDMA_PS_TCP, port);
    cm_give_qp(&side, IBV_QPT_RC);
    if (rdma_connect(side.id, NULL) != 0 || write(out, &done, 1) != 1)
        _exit(1);
    struct rdma_cm_event *event;
    while (rdma_get_cm_event(side.channel, &event) == 0)
        rdma_ack_cm_event(event);
    _exit(0);
}

static struct child child_start(void)
{
    int to[2], from[2];
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(to[1]);
        close(from[0]);
        child_run(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    return (struct child){pid, to[1], from[0]};
}

static void child_connect(const struct child *c, uint16_t port)
{
    char done;
    assert_int_equal(write(c->to, &port, sizeof port), sizeof port);
    assert_int_equal(read(c->from, &done, 1), 1);
}

static void child_kill(struct child *c)
{
    if (c->pid > 0) {
        kill(c->pid, SIGKILL);
        waitpid(c->pid, NULL, 0);
        close(c->to);
        close(c->from);
    }
    c->pid = 0;
}

static struct child children[2];

static void test_killed_before_answer(void **state)
{
    struct cm_side listener = {0}, server = {0};
    struct rdma_conn_param param = {.qp_num = 5};
    (void)state;
    child_connect(&children[0], cm_listen(&listener, RDMA_PS_TCP, 4));
    server.id = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0).event.id;
    child_kill(&children[0]);
    cm_expect(listener.channel, RDMA_CM_EVENT_REJECTED, 4);
    assert_int_equal(rdma_accept(server.id, &param), -1);
    cm_close_side(&server);
    cm_close_side(&listener);
}

/* The connection ends, and what is sent on it fails. */
static void test_killed_connected(void **state)
{
    struct cm_side listener = {0}, server = {0};
    (void)state;
    child_connect(&children[1], cm_listen(&listener, RDMA_PS_TCP, 4));
    server.id = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0).event.id;
    cm_give_qp(&server, IBV_QPT_RC);
    assert_int_equal(rdma_accept(server.id, NULL), 0);
    cm_expect(listener.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
    child_kill(&children[1]);
    cm_expect(listener.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    struct ibv_sge sge = {(uint64_t)(uintptr_t)server.memory, 8, server.mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_wc wc;
    int n;
    assert_int_equal(softnic_post_send(server.id->qp, &send, &bad), 0);
    while ((n = softnic_poll_cq(server.cq, 1, &wc)) == 0)
        usleep(100);
    assert_int_equal(n, 1);
    assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(rdma_disconnect(server.id), 0);
    cm_expect(listener.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    cm_close_side(&server);
    cm_close_side(&listener);
}

/* ---- strangers ------------------------------------------------------------------------------ */

static socklen_t name_of(struct sockaddr_un *name, unsigned uid, unsigned port)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n =
        snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "softnic-cm-%u-106-%u", uid, port);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int knock(uint16_t port)
{
    struct sockaddr_un name;
    socklen_t size = name_of(&name, geteuid(), port);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&name, size), 0);
    return fd;
}

static struct cm_message request_to(uint16_t port)
{
    struct sockaddr_in to = cm_loopback(port);
    struct cm_message m = {.type = CM_REQ, .qpn = 7};
    m.from.family = m.to.family = 4;
    memcpy(m.from.ip, &to.sin_addr, 4);
    memcpy(m.to.ip, &to.sin_addr, 4);
    memcpy(m.to.port, &to.sin_port, 2);
    return m;
}

enum { NOBODY = 65534 };

/* Another user's process asks as one of ours would. */
static void test_stranger_asks(void **state)
{
    struct cm_side listener = {0};
    (void)state;
    if (geteuid() != 0)
        skip(); /* cannot be another */
    uint16_t port = cm_listen(&listener, RDMA_PS_TCP, 4);
    struct cm_message ask = request_to(port);
    /* The kernel keeps who connected, not who sends. */
    assert_int_equal(seteuid(NOBODY), 0);
    struct sockaddr_un name;
    socklen_t size = name_of(&name, 0, port);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int err = connect(fd, (struct sockaddr *)&name, size);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(err, 0);
    assert_int_equal(cm_message_send(fd, &ask), 0);
    cm_expect_silence(listener.channel);
    assert_int_equal(cm_message_receive(fd, &ask), -ECONNRESET);
    close(fd);
    cm_close_side(&listener);
}

/* Another user's process has taken a name of ours. */
static void test_stranger_listens(void **state)
{
    struct cm_side client = {0};
    struct rdma_conn_param param = {.qp_num = 5};
    struct sockaddr_un name;
    uint16_t port = 20000;
    (void)state;
    if (geteuid() != 0)
        skip();
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    while (bind(fd, (struct sockaddr *)&name, name_of(&name, 0, port)) != 0)
        port++;
    assert_int_equal(seteuid(NOBODY), 0);
    int err = listen(fd, 4);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(err, 0);
    cm_resolve(&client, RDMA_PS_TCP, port);
    assert_int_equal(rdma_connect(client.id, &param), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_REJECTED, 8);
    cm_close_side(&client);
    close(fd);
}

/* ---- garbage -------------------------------------------------------------------------------- */

static uint64_t seed;

static uint64_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* `good` with up to three bytes changed, most often at its head, and sometimes of another size. */
static void send_spoilt(int fd, const struct cm_message *good)
{
    uint8_t raw[sizeof *good + 8] = {0};
    struct cm_message whole = *good;
    whole.magic = CM_MAGIC;
    whole.version = CM_VERSION;
    whole.size = sizeof whole;
    memcpy(raw, &whole, sizeof whole);
    for (uint64_t n = draw() % 4; n > 0; n--)
        raw[draw() % (draw() % 2 ? 60 : sizeof whole)] = (uint8_t)draw();
    size_t size = draw() % 4 == 0 ? draw() % sizeof raw : sizeof whole;
    assert_true(send(fd, raw, size, MSG_NOSIGNAL) >= 0);
}

static void no_waiting(struct rdma_event_channel *channel)
{
    assert_int_equal(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
}

/* Every event that there is; ids of requests are accepted, or not, and destroyed. How many. */
static int drain(struct rdma_event_channel *channel)
{
    struct rdma_conn_param param = {.qp_num = 5};
    struct rdma_cm_event *event;
    int events = 0;
    for (; rdma_get_cm_event(channel, &event) == 0; events++) {
        struct rdma_cm_id *id = event->event == RDMA_CM_EVENT_CONNECT_REQUEST ? event->id : NULL;
        rdma_ack_cm_event(event);
        if (id != NULL && draw() % 2)
            rdma_accept(id, &param);
        if (id != NULL)
            assert_int_equal(rdma_destroy_id(id), 0);
    }
    assert_int_equal(errno, EAGAIN);
    return events;
}

/* Nothing that a process of ours sends to a listener makes more than a refusal or a request. */
static void test_garbage_to_listener(void **state)
{
    enum { TRIES = 2000 };
    struct cm_side listener = {0}, client = {0}, server = {0};
    int requests = 0;
    (void)state;
    uint16_t port = cm_listen(&listener, RDMA_PS_TCP, 64);
    struct cm_message good = request_to(port);
    no_waiting(listener.channel);
    for (int i = 0; i < TRIES; i++) {
        int fd = knock(port);
        for (uint64_t n = draw() % 3; n > 0; n--)
            send_spoilt(fd, &good);
        if (draw() % 2)
            requests += drain(listener.channel);
        close(fd);
        requests += drain(listener.channel);
    }
    assert_true(requests > TRIES / 20);
    cm_connect_pair(&client, &server, &listener, port);
    cm_send(&client, &server, 64);
    cm_close_side(&client);
    cm_close_side(&server);
    cm_close_side(&listener);
}

/* Nor does what a listener of ours answers. */
static void test_garbage_to_client(void **state)
{
    enum { TRIES = 500 };
    struct cm_message reply = {.type = CM_REP, .qpn = 9, .initiator_depth = 1};
    struct cm_side client = {0};
    struct sockaddr_un name;
    uint16_t port = 20000;
    int told = 0;
    (void)state;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    while (bind(fd, (struct sockaddr *)&name, name_of(&name, geteuid(), port)) != 0)
        port++;
    assert_int_equal(listen(fd, 4), 0);
    for (int i = 0; i < TRIES; i++) {
        struct rdma_conn_param param = {.qp_num = 5};
        cm_resolve(&client, RDMA_PS_TCP, port);
        if (draw() % 2)
            cm_give_qp(&client, IBV_QPT_RC);
        memcpy(reply.gid, client.id->route.addr.addr.ibaddr.sgid.raw, sizeof reply.gid);
        assert_int_equal(rdma_connect(client.id, &param), 0);
        int server = accept(fd, NULL, NULL);
        reply.type = draw() % 4 ? CM_REP : (uint16_t)(draw() % 10);
        send_spoilt(server, &reply);
        no_waiting(client.channel);
        told += drain(client.channel);
        close(server);
        told += drain(client.channel);
        cm_close_side(&client);
    }
    assert_true(told >= TRIES);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_before_answer), cmocka_unit_test(test_killed_connected),
        cmocka_unit_test(test_stranger_asks),        cmocka_unit_test(test_stranger_listens),
        cmocka_unit_test(test_garbage_to_listener),  cmocka_unit_test(test_garbage_to_client),
    };
    const char *text = getenv("SSTAR_TEST_SEED");
    seed = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) << 20 | (uint64_t)getpid();
    printf("seed %#llx (SSTAR_TEST_SEED repeats it)\n", (unsigned long long)seed);
    fflush(stdout);
    cm_own_port("processes");
    for (int i = 0; i < 2; i++)
        children[i] = child_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 2; i++)
        child_kill(&children[i]);
    return failed;
}
