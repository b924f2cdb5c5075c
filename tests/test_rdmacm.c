/* SPDX-License-Identifier: MIT */
/* Connections through librdmacm: who is let in and who is not, and how they end. What needs a
 * device that librdmacm knows runs where SSTAR_TEST_DEVICE names one (tools/test-lab). */
#include "tests/ranks.h"
#include "transport/connector.h"
#include "transport/rc.h"
#include "transport/rdmacm.h"
#include "transport/wait.h"
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

/* ---- requests, made up ---------------------------------------------------------------------- */

/* Rank 2 of 4, which has links through the NIC to ranks 0 and 3, and one in memory to rank 1. */
enum { QPS = 3, SIZE = 4 };
struct listener {
    struct sstar_world world;
    struct sstar_links links;
    struct sstar_link all[3], *by_rank[SIZE];
    struct link_introduction theirs[SIZE];
    struct cm_connection connections[3 * QPS];
    struct rdmacm cm;
};

static void listener_make(struct listener *l)
{
    static const int peers[] = {0, 1, 3};
    memset(l, 0, sizeof *l);
    l->world.rank = 2;
    l->world.size = SIZE;
    l->links = (struct sstar_links){
        .world = &l->world, .n_links = 3, .all = l->all, .by_rank = l->by_rank};
    for (uint32_t i = 0; i < 3; i++) {
        l->all[i] = (struct sstar_link){.links = &l->links,
                                        .world = &l->world,
                                        .peer = peers[i],
                                        .index = i,
                                        .local = peers[i] == 1};
        l->by_rank[peers[i]] = &l->all[i];
        for (uint32_t q = 0; q < QPS; q++)
            l->theirs[peers[i]].qps[q].number = 0x100 * (uint32_t)peers[i] + q;
    }
    l->cm = (struct rdmacm){.links = &l->links,
                            .token = 11,
                            .key = 22,
                            .theirs = l->theirs,
                            .connections = l->connections,
                            .qps_per_link = QPS};
}

static struct cm_hello hello_of_rank_0(uint32_t qp)
{
    return (struct cm_hello){.magic = htole32(CM_MAGIC),
                             .version = htole16(CM_VERSION),
                             .size = htole16(sizeof(struct cm_hello)),
                             .token = htole64(11),
                             .key = htole64(22),
                             .from = htole32(0),
                             .to = htole32(2),
                             .qp = htole32(qp),
                             .number = htole32(qp)};
}

static enum cm_refusal check(struct listener *l, struct cm_hello hello, size_t bytes)
{
    struct cm_connection *found = NULL;
    uint8_t padded[56] = {0}; /* the wire brings all 56 */
    memcpy(padded, &hello, sizeof hello);
    enum cm_refusal refusal = cm_hello_check(&l->cm, padded, bytes, &found);
    assert_true((refusal == CM_WELCOME) == (found != NULL));
    assert_non_null(cm_refusal_text(refusal));
    return refusal;
}

static void test_welcome(void **state)
{
    (void)state;
    struct listener l;
    listener_make(&l);
    for (uint32_t q = 0; q < QPS; q++) {
        struct cm_hello hello = hello_of_rank_0(q);
        struct cm_connection *found = NULL;
        assert_int_equal(cm_hello_check(&l.cm, &hello, sizeof hello, &found), CM_WELCOME);
        assert_ptr_equal(found, &l.connections[q]);
        assert_int_equal(check(&l, hello, 56), CM_WELCOME);
        found->state = CM_ANSWERING;
        assert_int_equal(check(&l, hello, 56), CM_TAKEN);
        found->state = CM_CONNECTED;
        assert_int_equal(check(&l, hello, 56), CM_TAKEN);
    }
}

static void test_strangers(void **state)
{
    (void)state;
    struct listener l;
    struct cm_connection *found = NULL;
    const struct cm_hello good = hello_of_rank_0(1);
    struct cm_hello h;
    listener_make(&l);
#define REFUSED(change, refusal)                                                                   \
    h = good;                                                                                      \
    h.change;                                                                                      \
    assert_int_equal(check(&l, h, 56), refusal)
    assert_int_equal(cm_hello_check(&l.cm, NULL, 0, &found), CM_NO_HELLO);
    assert_int_equal(check(&l, (struct cm_hello){0}, 56), CM_NO_HELLO);
    assert_int_equal(check(&l, good, 3), CM_NO_HELLO);
    assert_int_equal(check(&l, good, sizeof good - 1), CM_OTHER_VERSION);
    REFUSED(magic = htole32(CM_MAGIC + 1), CM_NO_HELLO);
    REFUSED(version = htole16(CM_VERSION + 1), CM_OTHER_VERSION);
    REFUSED(size = htole16(sizeof h + 8), CM_OTHER_VERSION);
    REFUSED(token = htole64(12), CM_OTHER_JOB);
    REFUSED(key = htole64(23), CM_OTHER_SET);
    REFUSED(to = htole32(3), CM_OTHER_RANK);
    REFUSED(from = htole32(1), CM_UNKNOWN_RANK);          /* inside the node */
    REFUSED(from = htole32(2), CM_UNKNOWN_RANK);          /* we ourselves */
    REFUSED(from = htole32(3), CM_UNKNOWN_RANK);          /* we ask that one */
    REFUSED(from = htole32(0x80000000), CM_UNKNOWN_RANK); /* no such rank */
    REFUSED(qp = htole32(QPS), CM_UNKNOWN_QP);
    REFUSED(qp = htole32(0xffffffff), CM_UNKNOWN_QP);
    REFUSED(qp = htole32(2), CM_OTHER_QP); /* with the number of the first */
    REFUSED(number = htole32(7), CM_OTHER_QP);
#undef REFUSED
    assert_int_equal(check(&l, good, 56), CM_WELCOME); /* nothing of all that took its place */
    l.cm.theirs = NULL;                                /* all are connected: nobody is awaited */
    assert_int_equal(check(&l, good, 56), CM_UNKNOWN_RANK);
}

static void test_farewell(void **state)
{
    (void)state;
    struct cm_farewell farewell;
    for (int r = CM_WELCOME; r < CM_REFUSALS; r++) {
        cm_farewell_fill((enum cm_refusal)r, &farewell);
        assert_int_equal(cm_farewell_read(&farewell, sizeof farewell), r);
        assert_int_equal(cm_farewell_read(&farewell, sizeof farewell - 1), CM_WELCOME);
    }
    farewell.refusal = htole16(CM_REFUSALS);
    assert_int_equal(cm_farewell_read(&farewell, sizeof farewell), CM_WELCOME);
    cm_farewell_fill(CM_TAKEN, &farewell);
    farewell.magic = 0;
    assert_int_equal(cm_farewell_read(&farewell, sizeof farewell), CM_WELCOME);
    assert_int_equal(cm_farewell_read(NULL, 148), CM_WELCOME);
}

/* ---- strangers at a real listener ----------------------------------------------------------- */

enum { EVENT_DEADLINE_MS = 20000 };

/* The next event is of this type; of a rejection, the reason. */
static bool next_is(struct rdma_event_channel *channel, enum rdma_cm_event_type type,
                    enum cm_refusal *refusal)
{
    struct pollfd poll_fd = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    if (poll(&poll_fd, 1, EVENT_DEADLINE_MS) != 1 || rdma_get_cm_event(channel, &event) != 0)
        return false;
    bool is = event->event == type;
    if (!is)
        fprintf(stderr, "a stranger sees %s, status %d\n", rdma_event_str(event->event),
                event->status);
    if (is && refusal)
        *refusal =
            cm_farewell_read(event->param.conn.private_data, event->param.conn.private_data_len);
    rdma_ack_cm_event(event);
    return is;
}

/* Ask as the connection c would, but with this hello; -1, or why it was refused. */
static int refused_for(const struct cm_connection *c, const struct cm_hello *hello)
{
    struct sockaddr_in from, to;
    struct rdma_cm_id *id = NULL;
    enum cm_refusal refusal = CM_WELCOME;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = {.private_data = hello,
                                    .private_data_len = hello ? sizeof *hello : 0,
                                    .responder_resources = 1,
                                    .initiator_depth = 1,
                                    .qp_num = 0x4321};
    cm_addresses(c, &from, &to);
    bool ok = channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 &&
              rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&to, 4000) == 0 &&
              next_is(channel, RDMA_CM_EVENT_ADDR_RESOLVED, NULL) &&
              rdma_resolve_route(id, 4000) == 0 &&
              next_is(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL) &&
              rdma_connect(id, &param) == 0 && next_is(channel, RDMA_CM_EVENT_REJECTED, &refusal);
    if (id)
        rdma_destroy_id(id);
    if (channel)
        rdma_destroy_event_channel(channel);
    return ok ? (int)refusal : -1;
}

static int strangers(struct sstar_links *links)
{
    struct sstar_world *world = links->world;
    const struct cm_connection *c = cm_connection_of(links->cm, &links->all[0], 0);
    struct cm_hello good, h;
    cm_hello_fill(c, &good);
    CHECK(refused_for(c, NULL) == CM_NO_HELLO);
    h = good;
    h.version = htole16(CM_VERSION + 1);
    CHECK(refused_for(c, &h) == CM_OTHER_VERSION);
    h = good;
    h.token ^= 1;
    CHECK(refused_for(c, &h) == CM_OTHER_JOB);
    h = good;
    h.key ^= 1;
    CHECK(refused_for(c, &h) == CM_OTHER_SET);
    h = good;
    h.from = htole32(1);
    CHECK(refused_for(c, &h) == CM_UNKNOWN_RANK);
    h = good;
    h.qp = htole32(17);
    CHECK(refused_for(c, &h) == CM_UNKNOWN_QP);
    return 0;
}
enum { STRANGERS = 6 };

static int connect_after_strangers(struct sstar_links *links,
                                   const struct link_introduction *theirs)
{
    if (links->world->rank == 0) {
        links->cm->theirs = theirs;
        int failed = strangers(links);
        links->cm->theirs = NULL;
        if (failed)
            return world_fail(links->world, -EPROTO, "the strangers were not refused");
    }
    return connector_rdmacm.connect(links, theirs);
}

static int body_strangers(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = !sstar_rank(world);
    struct connector with_strangers = connector_rdmacm;
    struct sstar_links *links;
    struct device *device;
    with_strangers.connect = connect_after_strangers;
    CHECK(device_get(world, &device) == 0);
    device->connector = &with_strangers;
    CHECK(sstar_links_open(world, &peer, 1, &(struct sstar_link_attr){.slot_bytes = 64}, &links) ==
          0);
    sstar_links_close(links);
    device->connector = &connector_rdmacm;
    CHECK(world->failed == 0);
    return 0;
}

/* The log names the address that each of them came from. */
static void test_strangers_at_the_door(void **state)
{
    (void)state;
    char name[] = "/tmp/sstar-strangers-XXXXXX", line[1024];
    int refused = 0, fd = mkstemp(name);
    assert_true(fd >= 0);
    setenv("SSTAR_LOG_FILE", name, 1);
    int failed = ranks_run(&(struct ranks){.size = 2, .ranks_per_node = 1, .body = body_strangers});
    unsetenv("SSTAR_LOG_FILE");
    FILE *log = fdopen(fd, "r");
    while (log && fgets(line, sizeof line, log))
        refused += strstr(line, "rank 1 refused a connection through librdmacm from 1") != NULL;
    fclose(log);
    unlink(name);
    assert_int_equal(failed, 0);
    assert_int_equal(refused, STRANGERS);
}

/* ---- the end of a connection ---------------------------------------------------------------- */

/* Rank 1 drops its links without a word and lives on: rank 0 must say that. */
static int body_dropped(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = !sstar_rank(world), err = 0;
    struct sstar_links *links;
    CHECK(sstar_links_open(world, &peer, 1, &(struct sstar_link_attr){.slot_bytes = 64}, &links) ==
          0);
    CHECK(sstar_barrier(world) == 0);
    if (sstar_rank(world) == 1) {
        links_abandon_all(world);
        CHECK(sstar_barrier(world) == -ECONNRESET);
    } else {
        struct waiter w = wait_begin(world, "news of an end", peer, 0);
        while (err >= 0) {
            err = sstar_links_progress(links);
            if (err >= 0)
                err = wait_step(&w);
        }
        CHECK(err == -ECONNRESET);
    }
    CHECK(strstr(sstar_last_error(world), "rank 0, queue pair 0x"));
    CHECK(strstr(sstar_last_error(world), "ended the connection without leaving"));
    CHECK(strstr(sstar_last_error(world), "RDMA_CM_EVENT_DISCONNECTED"));
    return 0;
}

static void test_dropped(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 2, .ranks_per_node = 1, .body = body_dropped});
}

/* ---- nobody there --------------------------------------------------------------------------- */

/* Rank 0 is told a wrong place of rank 1, and must say what is wrong with it. */
struct misled {
    bool wrong_address; /* else the wrong port */
    const char *says[3];
};
static _Thread_local const struct misled *misled;

static int connect_misled(struct sstar_links *links, const struct link_introduction *theirs)
{
    if (links->world->rank != 0)
        return connector_rdmacm.connect(links, theirs);
    struct link_introduction wrong[2] = {theirs[0], theirs[1]};
    for (uint32_t i = 0; i < wrong[1].n_gids; i++)
        wrong[1].gids[i].port = 1; /* nobody has that one */
    if (misled->wrong_address)     /* 192.0.2.0/24 is for examples in texts (RFC 5737) */
        memcpy(links->all[0].peer_gid.gid.raw + 12, (uint8_t[]){192, 0, 2, 1}, 4);
    return connector_rdmacm.connect(links, wrong);
}

static int body_misled(struct sstar_world *world, void *arg)
{
    int peer = !sstar_rank(world);
    struct connector misleading = connector_rdmacm;
    struct sstar_links *links;
    struct device *device;
    misled = arg;
    misleading.connect = connect_misled;
    CHECK(device_get(world, &device) == 0);
    device->connector = &misleading;
    CHECK(sstar_links_open(world, &peer, 1, &(struct sstar_link_attr){.slot_bytes = 64}, &links) <
          0);
    device->connector = &connector_rdmacm;
    CHECK(strstr(sstar_last_error(world), "rank 0, queue pair 0x"));
    for (int i = 0; i < 3; i++)
        CHECK(strstr(sstar_last_error(world), misled->says[i]));
    return 0;
}

static void test_misled(void **state)
{
    (void)state;
    struct misled port = {
        false, {"of the link to rank 1", "nobody listens there", "RDMA_CM_EVENT_REJECTED"}};
    struct misled address = {true, {"librdmacm from ", " to 192.0.2.1", "look at"}};
    ranks_expect_both(
        (struct ranks){.size = 2, .ranks_per_node = 1, .body = body_misled, .arg = &port});
    ranks_expect_both(
        (struct ranks){.size = 2, .ranks_per_node = 1, .body = body_misled, .arg = &address});
}

/* Again and again over the same device: nothing is left of those before. */
static int body_again(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peers[8], n = 0;
    for (int rank = 0; rank < sstar_size(world); rank++)
        if (rank != sstar_rank(world))
            peers[n++] = rank;
    for (int i = 0; i < 8; i++) {
        struct sstar_links *links;
        CHECK(sstar_links_open(world, peers, n, &(struct sstar_link_attr){.slot_bytes = 64},
                               &links) == 0);
        sstar_links_close(links);
        CHECK(world->failed == 0);
    }
    return 0;
}

static void test_again(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 3, .ranks_per_node = 1, .body = body_again});
}

int main(void)
{
    const struct CMUnitTest made_up[] = {
        cmocka_unit_test(test_welcome),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_farewell),
    };
    const struct CMUnitTest on_a_device[] = {
        cmocka_unit_test(test_strangers_at_the_door),
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_misled),
        cmocka_unit_test(test_again),
    };
    int failed = cmocka_run_group_tests(made_up, NULL, NULL);
    if (ranks_can_shape())
        return failed;
    setenv("SSTAR_TEST_CONNECT", "rdmacm", 1);
    return failed + cmocka_run_group_tests(on_a_device, NULL, NULL);
}
