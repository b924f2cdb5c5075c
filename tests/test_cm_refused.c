/* SPDX-License-Identifier: MIT */
/* librdmacm's calls on softnic: what is refused, by whom, and with what answer. */
#include "tests/cm_side.h"
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define ASSERT_REFUSED(call, why)                                                                  \
    do {                                                                                           \
        errno = 0;                                                                                 \
        assert_int_equal(call, -1);                                                                \
        assert_int_equal(errno, why);                                                              \
    } while (0)

/* A client that has asked, and the request at the server. */
static void ask(struct cm_side *listener, struct cm_side *client, struct cm_side *server,
                uint16_t port)
{
    struct rdma_conn_param param = {.qp_num = 5};
    cm_resolve(client, RDMA_PS_TCP, port);
    assert_int_equal(rdma_connect(client->id, &param), 0);
    memset(server, 0, sizeof *server);
    server->id = cm_expect(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0).event.id;
}

static void test_private_lengths(void **state)
{
    struct cm_side listener = {0}, client = {0}, server = {0};
    uint8_t data[255] = {1};
    struct rdma_conn_param param = {.private_data = data, .private_data_len = 57};
    (void)state;
    uint16_t port = cm_listen(&listener, RDMA_PS_TCP, 4);
    cm_resolve(&client, RDMA_PS_TCP, port);
    ASSERT_REFUSED(rdma_connect(client.id, &param), EINVAL);
    cm_expect_silence(listener.channel);
    param.private_data_len = 56;
    assert_int_equal(rdma_connect(client.id, &param), 0);
    server.id = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0).event.id;
    param.private_data_len = 197;
    ASSERT_REFUSED(rdma_accept(server.id, &param), EINVAL);
    ASSERT_REFUSED(rdma_reject(server.id, data, 149), EINVAL);
    param.private_data_len = 0;
    param.initiator_depth = 200; /* more than the device has */
    ASSERT_REFUSED(rdma_accept(server.id, &param), EINVAL);
    assert_int_equal(rdma_reject(server.id, data, 148), 0);
    struct cm_heard heard = cm_expect(client.channel, RDMA_CM_EVENT_REJECTED, 28);
    assert_int_equal(heard.event.param.conn.private_data_len, 148);
    assert_memory_equal(heard.data, data, 148);
    ASSERT_REFUSED(rdma_connect(client.id, &param), EINVAL);
    cm_close_side(&client);
    cm_close_side(&server);
    ask(&listener, &client, &server, port);
    assert_int_equal(rdma_reject_ece(server.id, NULL, 0), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_REJECTED, 35);
    cm_close_side(&client);
    cm_close_side(&server);
    cm_close_side(&listener);
}

static void test_nobody(void **state)
{
    struct cm_side client = {0}, other = {0};
    struct rdma_conn_param param = {.qp_num = 5};
    (void)state;
    uint16_t port = cm_listen(&other, RDMA_PS_TCP, 4);
    /* A number of datagram services is another. */
    cm_resolve(&client, RDMA_PS_UDP, port);
    assert_int_equal(rdma_connect(client.id, &param), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_UNREACHABLE, 1);
    cm_close_side(&client);
    cm_close_side(&other);
    cm_resolve(&client, RDMA_PS_TCP, port);
    assert_int_equal(rdma_connect(client.id, &param), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_REJECTED, 8);
    cm_close_side(&client);
}

static struct rdma_cm_id *make(struct cm_side *s)
{
    s->channel = rdma_create_event_channel();
    assert_non_null(s->channel);
    assert_int_equal(rdma_create_id(s->channel, &s->id, NULL, RDMA_PS_TCP), 0);
    return s->id;
}

static void test_addresses(void **state)
{
    struct cm_side a = {0}, b = {0};
    struct sockaddr_in foreign = {.sin_family = AF_INET, .sin_port = htons(7)}, own;
    struct sockaddr odd = {.sa_family = AF_UNIX};
    (void)state;
    inet_pton(AF_INET, "192.0.2.1", &foreign.sin_addr);
    make(&a);
    ASSERT_REFUSED(rdma_bind_addr(a.id, &odd), EINVAL);
    ASSERT_REFUSED(rdma_bind_addr(a.id, (struct sockaddr *)&foreign), EADDRNOTAVAIL);
    assert_int_equal(rdma_resolve_addr(a.id, NULL, (struct sockaddr *)&foreign, 2000), 0);
    cm_expect(a.channel, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
    cm_close_side(&a);
    /* A number is taken from when it is bound, on whatever address. */
    own = cm_loopback(0);
    assert_int_equal(rdma_bind_addr(make(&a), (struct sockaddr *)&own), 0);
    assert_non_null(a.id->verbs);
    own = cm_loopback(ntohs(rdma_get_src_port(a.id)));
    ASSERT_REFUSED(rdma_bind_addr(make(&b), (struct sockaddr *)&own), EADDRINUSE);
    cm_close_side(&a);
    assert_int_equal(rdma_bind_addr(b.id, (struct sockaddr *)&own), 0);
    cm_close_side(&b);
}

/* With REUSEADDR several may have a number, until one listens. */
static void test_reuse(void **state)
{
    struct cm_side a = {0}, b = {0};
    struct sockaddr_in own;
    int yes = 1;
    (void)state;
    own = cm_loopback(0);
    assert_int_equal(rdma_bind_addr(make(&a), (struct sockaddr *)&own), 0);
    own = cm_loopback(ntohs(rdma_get_src_port(a.id)));
    cm_close_side(&a);
    make(&a);
    make(&b);
    ASSERT_REFUSED(rdma_set_option(a.id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, 1),
                   EINVAL);
    assert_int_equal(
        rdma_set_option(a.id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
    assert_int_equal(
        rdma_set_option(b.id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
    assert_int_equal(rdma_bind_addr(a.id, (struct sockaddr *)&own), 0);
    assert_int_equal(rdma_bind_addr(b.id, (struct sockaddr *)&own), 0);
    assert_int_equal(rdma_listen(a.id, 1), 0);
    ASSERT_REFUSED(rdma_listen(b.id, 1), EADDRINUSE);
    cm_close_side(&a);
    assert_int_equal(rdma_listen(b.id, 1), 0);
    cm_close_side(&b);
}

/* Who listens at one address is not there at another. */
static void test_listener_address(void **state)
{
    struct cm_side listener = {0}, client = {0};
    struct sockaddr_in own, other;
    struct rdma_conn_param param = {.qp_num = 5};
    (void)state;
    own = cm_loopback(0);
    assert_int_equal(rdma_bind_addr(make(&listener), (struct sockaddr *)&own), 0);
    assert_int_equal(rdma_listen(listener.id, 4), 0);
    other = cm_loopback(ntohs(rdma_get_src_port(listener.id)));
    other.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    assert_int_equal(rdma_resolve_addr(make(&client), NULL, (struct sockaddr *)&other, 2000), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    assert_int_equal(rdma_resolve_route(client.id, 2000), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    assert_int_equal(rdma_connect(client.id, &param), 0);
    cm_expect_silence(listener.channel);
    cm_expect(client.channel, RDMA_CM_EVENT_REJECTED, 8);
    cm_close_side(&client);
    cm_close_side(&listener);
}

/* Calls at the wrong time. */
static void test_states(void **state)
{
    struct cm_side listener = {0}, client = {0};
    struct rdma_conn_param param = {.qp_num = 5};
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};
    struct rdma_cm_id *id, *got;
    struct sockaddr_in to;
    (void)state;
    to = cm_loopback(cm_listen(&listener, RDMA_PS_TCP, 4));
    id = make(&client);
    ASSERT_REFUSED(rdma_resolve_route(id, 100), EINVAL);
    ASSERT_REFUSED(rdma_connect(id, &param), EINVAL);
    ASSERT_REFUSED(rdma_accept(id, &param), EINVAL);
    ASSERT_REFUSED(rdma_reject(id, NULL, 0), EINVAL);
    ASSERT_REFUSED(rdma_disconnect(id), EINVAL);
    ASSERT_REFUSED(rdma_establish(id), EINVAL);
    ASSERT_REFUSED(rdma_create_qp(id, NULL, &attr), EINVAL);
    ASSERT_REFUSED(rdma_get_request(id, &got), EINVAL); /* for synchronous ids */
    ASSERT_REFUSED(rdma_listen(listener.id, 4), EINVAL);
    ASSERT_REFUSED(rdma_resolve_addr(listener.id, NULL, (struct sockaddr *)&to, 100), EINVAL);
    ASSERT_REFUSED(rdma_ack_cm_event(NULL), EINVAL);
    ASSERT_REFUSED(rdma_create_id(client.channel, &id, NULL, (enum rdma_port_space)3),
                   EPROTONOSUPPORT);
    ASSERT_REFUSED(rdma_join_multicast(client.id, (struct sockaddr *)&to, NULL), EOPNOTSUPP);
    ASSERT_REFUSED(rdma_leave_multicast(client.id, (struct sockaddr *)&to), EOPNOTSUPP);
    ASSERT_REFUSED(rdma_set_option(client.id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &to, 4),
                   EOPNOTSUPP);
    ASSERT_REFUSED(rdma_set_option(client.id, RDMA_OPTION_ID, 99, &(int){1}, sizeof(int)),
                   EOPNOTSUPP);
    assert_string_equal(rdma_event_str((enum rdma_cm_event_type)99), "UNKNOWN EVENT");
    cm_close_side(&client);
    cm_close_side(&listener);
}

/* Nobody answers: the client is told in time, and so is a server whose client does not. */
static void test_silence(void **state)
{
    struct cm_side listener = {0}, client = {0}, server = {0};
    struct rdma_conn_param param = {.qp_num = 5};
    (void)state;
    setenv("SOFTNIC_CM_TIMEOUT_MS", "50", 1);
    uint16_t port = cm_listen(&listener, RDMA_PS_TCP, 4);
    cm_resolve(&client, RDMA_PS_TCP, port);
    assert_int_equal(rdma_connect(client.id, &param), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
    server.id = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0).event.id;
    cm_expect(listener.channel, RDMA_CM_EVENT_REJECTED, 4);
    ASSERT_REFUSED(rdma_accept(server.id, &param), EINVAL);
    cm_close_side(&client);
    cm_close_side(&server);
    setenv("SOFTNIC_CM_TIMEOUT_MS", "2000", 1);
    ask(&listener, &client, &server, port);
    setenv("SOFTNIC_CM_TIMEOUT_MS", "50", 1);
    assert_int_equal(rdma_accept(server.id, &param), 0);
    cm_expect(listener.channel, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
    cm_close_side(&client);
    cm_close_side(&server);
    cm_close_side(&listener);
    unsetenv("SOFTNIC_CM_TIMEOUT_MS");
}

static void test_garbage_in_patience(void **state)
{
    static const char *const bad[] = {"0", "-1", "soon", "5s", "1e3", "99999999999999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct rdma_cm_id *id;
        setenv("SOFTNIC_CM_TIMEOUT_MS", bad[i], 1);
        ASSERT_REFUSED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), EINVAL);
    }
    unsetenv("SOFTNIC_CM_TIMEOUT_MS");
}

/* One side goes, at each step of the way. */
static void test_departures(void **state)
{
    struct cm_side listener = {0}, client = {0}, server = {0};
    struct rdma_conn_param param = {.qp_num = 5};
    (void)state;
    uint16_t port = cm_listen(&listener, RDMA_PS_TCP, 4);
    ask(&listener, &client, &server, port); /* the server, not having answered */
    cm_close_side(&server);
    cm_expect(client.channel, RDMA_CM_EVENT_REJECTED, 28);
    cm_close_side(&client);
    ask(&listener, &client, &server, port); /* the client, before the answer */
    cm_close_side(&client);
    ASSERT_REFUSED(rdma_accept(server.id, &param), EINVAL);
    cm_expect(listener.channel, RDMA_CM_EVENT_REJECTED, 4);
    cm_close_side(&server);
    ask(&listener, &client, &server, port); /* the client, having heard it */
    assert_int_equal(rdma_accept(server.id, &param), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    cm_close_side(&client);
    cm_expect(listener.channel, RDMA_CM_EVENT_REJECTED, 28);
    cm_close_side(&server);
    cm_connect_pair(&client, &server, &listener, port); /* the server, connected */
    cm_close_side(&server);
    cm_expect(client.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    assert_int_equal(rdma_disconnect(client.id), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    cm_close_side(&client);
    cm_resolve(&client, RDMA_PS_TCP, port); /* the listener, with a request unseen */
    assert_int_equal(rdma_connect(client.id, &param), 0);
    cm_close_side(&listener);
    cm_expect(client.channel, RDMA_CM_EVENT_REJECTED, 28);
    cm_close_side(&client);
}

/* A listener has room for so many requests that its user has not seen. */
static void test_backlog(void **state)
{
    enum { CLIENTS = 4 };
    struct cm_side listener = {0}, client[CLIENTS] = {0}, server = {0};
    struct rdma_conn_param param = {.qp_num = 5};
    (void)state;
    uint16_t port = cm_listen(&listener, RDMA_PS_TCP, 1);
    for (int i = 0; i < CLIENTS; i++) {
        cm_resolve(&client[i], RDMA_PS_TCP, port);
        assert_int_equal(rdma_connect(client[i].id, &param), 0);
    }
    /* Linux takes one more than it was told. */
    cm_expect(client[2].channel, RDMA_CM_EVENT_REJECTED, 28);
    cm_expect(client[3].channel, RDMA_CM_EVENT_REJECTED, 28);
    server.id = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0).event.id;
    assert_int_equal(rdma_reject(server.id, NULL, 0), 0);
    cm_close_side(&server);
    for (int i = 0; i < CLIENTS; i++)
        cm_close_side(&client[i]);
    cm_close_side(&listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_private_lengths),  cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_addresses),        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_listener_address), cmocka_unit_test(test_states),
        cmocka_unit_test(test_silence),          cmocka_unit_test(test_garbage_in_patience),
        cmocka_unit_test(test_departures),       cmocka_unit_test(test_backlog),
    };
    cm_own_port("refused");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
