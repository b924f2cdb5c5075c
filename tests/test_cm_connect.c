/* SPDX-License-Identifier: MIT */
/* Connections through librdmacm's calls on softnic: what each side is told, with values. */
#include "tests/cm_side.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void fill(uint8_t *data, size_t size, uint8_t from)
{
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)(from + i);
}

static void check_qp(struct rdma_cm_id *id, const struct rdma_cm_id *other, uint8_t reads,
                     uint8_t answers, uint8_t rnr)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    assert_int_equal(softnic_query_qp(id->qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN, &init), 0);
    assert_int_equal(attr.qp_state, IBV_QPS_RTS);
    assert_int_equal(attr.dest_qp_num, other->qp->qp_num);
    assert_int_equal(attr.max_rd_atomic, reads);
    assert_int_equal(attr.max_dest_rd_atomic, answers);
    assert_int_equal(attr.rnr_retry, rnr);
    assert_int_equal(attr.retry_cnt, 5);
    assert_true((attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) != 0);
    assert_int_equal(((struct sockaddr_in *)&id->route.addr.dst_addr)->sin_port,
                     rdma_get_src_port((struct rdma_cm_id *)other));
}

/* The request as the listener hears it. */
static void check_request(const struct cm_heard *heard, const struct cm_side *listener,
                          const struct cm_side *client, uint16_t port)
{
    const struct rdma_conn_param *conn = &heard->event.param.conn;
    uint8_t expected[56];
    fill(expected, sizeof expected, 3);
    assert_ptr_equal(heard->event.listen_id, listener->id);
    assert_ptr_not_equal(heard->event.id, listener->id);
    assert_ptr_equal(heard->event.id->context, listener->id->context);
    assert_ptr_equal(heard->event.id->channel, listener->channel);
    assert_int_equal(conn->private_data_len, sizeof expected);
    assert_memory_equal(heard->data, expected, sizeof expected);
    /* What the client may start, the server must answer. */
    assert_int_equal(conn->responder_resources, 6);
    assert_int_equal(conn->initiator_depth, 4);
    assert_int_equal(conn->retry_count, 5);
    assert_int_equal(conn->rnr_retry_count, 2);
    assert_int_equal(conn->flow_control, 1);
    assert_int_equal(conn->qp_num, client->id->qp->qp_num);
    assert_int_equal(ntohs(rdma_get_src_port(heard->event.id)), port);
    assert_int_equal(rdma_get_dst_port(heard->event.id), rdma_get_src_port(client->id));
    assert_int_equal(heard->event.id->port_num, 1);
    assert_ptr_equal(heard->event.id->verbs, client->id->verbs);
    assert_non_null(heard->event.id->pd);
}

static void test_values(void **state)
{
    struct cm_side listener = {0}, client = {0}, server = {0};
    uint8_t request[56], reply[20], zeros[196] = {0};
    struct rdma_conn_param ask = {.private_data = request,
                                  .private_data_len = sizeof request,
                                  .responder_resources = 4,
                                  .initiator_depth = 6,
                                  .flow_control = 1,
                                  .retry_count = 5,
                                  .rnr_retry_count = 2};
    struct rdma_conn_param answer = {.private_data = reply,
                                     .private_data_len = sizeof reply,
                                     .responder_resources = 3,
                                     .initiator_depth = 2,
                                     .rnr_retry_count = 6};
    (void)state;
    fill(request, sizeof request, 3);
    fill(reply, sizeof reply, 100);
    uint16_t port = cm_listen(&listener, RDMA_PS_TCP, 4);
    cm_resolve(&client, RDMA_PS_TCP, port);
    assert_int_equal(client.id->route.num_paths, 1);
    assert_int_equal(client.id->route.path_rec->mtu, IBV_MTU_4096);
    cm_give_qp(&client, IBV_QPT_RC);
    assert_int_equal(rdma_connect(client.id, &ask), 0);
    cm_expect_silence(client.channel);
    struct cm_heard heard = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    check_request(&heard, &listener, &client, port);
    server.id = heard.event.id;
    cm_give_qp(&server, IBV_QPT_RC);
    assert_int_equal(rdma_accept(server.id, &answer), 0);
    heard = cm_expect(client.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
    assert_ptr_equal(heard.event.id, client.id);
    assert_int_equal(heard.event.param.conn.private_data_len, 196);
    assert_memory_equal(heard.data, reply, sizeof reply);
    assert_memory_equal(heard.data + sizeof reply, zeros, 196 - sizeof reply);
    assert_int_equal(heard.event.param.conn.responder_resources, 2);
    assert_int_equal(heard.event.param.conn.initiator_depth, 3);
    assert_int_equal(heard.event.param.conn.qp_num, server.id->qp->qp_num);
    heard = cm_expect(listener.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
    assert_ptr_equal(heard.event.id, server.id);
    /* Each side's queue pair reads as deep as the other answers, and retries as the other asked. */
    check_qp(client.id, server.id, 3, 2, 6);
    check_qp(server.id, client.id, 2, 3, 2);
    cm_send(&client, &server, 200);
    cm_send(&server, &client, 13);
    cm_close_side(&client);
    cm_expect(listener.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    cm_close_side(&server);
    cm_close_side(&listener);
}

/* One asks to part, the other agrees. */
static void test_disconnect(void **state)
{
    struct cm_side listener = {0}, client = {0}, server = {0};
    (void)state;
    uint16_t port = cm_listen(&listener, RDMA_PS_TCP, 4);
    cm_connect_pair(&client, &server, &listener, port);
    assert_int_equal(rdma_disconnect(client.id), 0);
    cm_expect_silence(client.channel);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    assert_int_equal(softnic_query_qp(client.id->qp, &attr, IBV_QP_STATE, &init), 0);
    assert_int_equal(attr.qp_state, IBV_QPS_ERR);
    struct cm_heard heard = cm_expect(listener.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    assert_ptr_equal(heard.event.id, server.id);
    assert_int_equal(rdma_disconnect(server.id), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    cm_expect(client.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    cm_expect(listener.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    assert_int_equal(rdma_disconnect(client.id), -1);
    assert_int_equal(errno, EINVAL);
    cm_close_side(&client);
    cm_close_side(&server);

    /* Both at once. */
    cm_connect_pair(&client, &server, &listener, port);
    assert_int_equal(rdma_disconnect(client.id), 0);
    assert_int_equal(rdma_disconnect(server.id), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    cm_expect(listener.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    cm_close_side(&client);
    cm_close_side(&server);
    cm_close_side(&listener);
}

static int attr_of(struct rdma_cm_id *id, enum ibv_qp_state state, struct ibv_qp_attr *attr)
{
    int mask = 0;
    *attr = (struct ibv_qp_attr){.qp_state = state};
    assert_int_equal(rdma_init_qp_attr(id, attr, &mask), 0);
    assert_true((mask & IBV_QP_STATE) != 0);
    return mask;
}

/* Without a queue pair of librdmacm's: CONNECT_RESPONSE, rdma_init_qp_attr, rdma_establish. */
static void test_establish(void **state)
{
    struct cm_side listener = {0}, client = {0}, server = {0};
    struct rdma_conn_param ask = {
        .qp_num = 0x123456, .srq = 1, .initiator_depth = 3, .retry_count = 1};
    struct rdma_conn_param answer = {.qp_num = 0x654321, .responder_resources = 2};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int mask;
    (void)state;
    cm_resolve(&client, RDMA_PS_TCP, cm_listen(&listener, RDMA_PS_TCP, 4));
    assert_int_equal(rdma_connect(client.id, NULL), -1); /* whose queue pair? */
    assert_int_equal(errno, EINVAL);
    assert_int_equal(rdma_init_qp_attr(client.id, &attr, &mask), -1);
    assert_int_equal(rdma_connect(client.id, &ask), 0);
    struct cm_heard heard = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    server.id = heard.event.id;
    assert_int_equal(heard.event.param.conn.qp_num, 0x123456);
    assert_int_equal(heard.event.param.conn.srq, 1);
    assert_int_equal(rdma_establish(server.id), -1);
    assert_int_equal(rdma_accept(server.id, &answer), 0);
    heard = cm_expect(client.channel, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    assert_int_equal(heard.event.param.conn.qp_num, 0x654321);
    attr_of(client.id, IBV_QPS_INIT, &attr);
    assert_int_equal(attr.port_num, 1);
    mask = attr_of(client.id, IBV_QPS_RTR, &attr);
    assert_true((mask & IBV_QP_AV) != 0 && (mask & IBV_QP_DEST_QPN) != 0);
    assert_int_equal(attr.dest_qp_num, 0x654321);
    assert_true(attr.ah_attr.is_global);
    uint32_t rq_psn = attr.rq_psn;
    attr_of(client.id, IBV_QPS_RTS, &attr);
    assert_int_equal(attr.max_rd_atomic, 2); /* as deep as the server answers */
    attr_of(server.id, IBV_QPS_RTS, &attr);
    assert_int_equal(attr.sq_psn, rq_psn);
    assert_int_equal(attr.retry_cnt, 1);
    cm_expect_silence(listener.channel);
    assert_int_equal(rdma_establish(client.id), 0);
    cm_expect(listener.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
    assert_int_equal(rdma_establish(client.id), -1);
    cm_close_side(&server);
    cm_expect(client.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    cm_close_side(&client);
    cm_close_side(&listener);
}

/* Data came before the last message of the handshake. */
static void test_notify(void **state)
{
    struct cm_side listener = {0}, client = {0}, server = {0};
    struct rdma_conn_param param = {.qp_num = 5};
    (void)state;
    cm_resolve(&client, RDMA_PS_TCP, cm_listen(&listener, RDMA_PS_TCP, 4));
    assert_int_equal(rdma_connect(client.id, &param), 0);
    server.id = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0).event.id;
    assert_int_equal(rdma_notify(server.id, IBV_EVENT_COMM_EST), -1);
    assert_int_equal(rdma_accept(server.id, &param), 0);
    assert_int_equal(rdma_notify(server.id, IBV_EVENT_COMM_EST), 0);
    cm_expect(listener.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
    assert_int_equal(rdma_notify(server.id, IBV_EVENT_COMM_EST), 0);
    cm_expect(client.channel, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    assert_int_equal(rdma_establish(client.id), 0);
    cm_expect_silence(listener.channel); /* it has been told */
    cm_close_side(&client);
    cm_expect(listener.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    cm_close_side(&server);
    cm_close_side(&listener);
}

/* An id takes along its events, and a listener those who have come to it. */
static void test_migrate(void **state)
{
    struct cm_side listener = {0}, client = {0}, server = {0};
    struct rdma_conn_param param = {.qp_num = 5};
    struct rdma_event_channel *other = rdma_create_event_channel(), *old;
    struct sockaddr_in to;
    (void)state;
    to = cm_loopback(cm_listen(&listener, RDMA_PS_TCP, 4));
    client.channel = rdma_create_event_channel();
    assert_int_equal(rdma_create_id(client.channel, &client.id, NULL, RDMA_PS_TCP), 0);
    assert_int_equal(rdma_resolve_addr(client.id, NULL, (struct sockaddr *)&to, 2000), 0);
    assert_int_equal(rdma_migrate_id(client.id, other), 0);
    assert_ptr_equal(client.id->channel, other);
    cm_expect_silence(client.channel);
    cm_expect(other, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    assert_int_equal(rdma_resolve_route(client.id, 2000), 0);
    cm_expect(other, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    assert_int_equal(rdma_connect(client.id, &param), 0);
    old = listener.channel;
    listener.channel = rdma_create_event_channel();
    assert_int_equal(rdma_migrate_id(listener.id, listener.channel), 0);
    cm_expect_silence(old);
    server.id = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0).event.id;
    assert_int_equal(rdma_migrate_id(server.id, old), 0);
    assert_int_equal(rdma_accept(server.id, &param), 0);
    cm_expect(other, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    assert_int_equal(rdma_establish(client.id), 0);
    cm_expect(old, RDMA_CM_EVENT_ESTABLISHED, 0);
    cm_close_side(&client);
    cm_expect(old, RDMA_CM_EVENT_DISCONNECTED, 0);
    cm_close_side(&server);
    cm_close_side(&listener);
    rdma_destroy_event_channel(old);
    rdma_destroy_event_channel(other);
}

/* Which queue pair gives a datagram service, and a datagram to it. */
static void test_datagram(void **state)
{
    struct cm_side listener = {0}, client = {0}, server = {0};
    struct rdma_conn_param ask = {.private_data = "who", .private_data_len = 4};
    struct rdma_conn_param answer = {.private_data = "me", .private_data_len = 3};
    (void)state;
    cm_resolve(&client, RDMA_PS_UDP, cm_listen(&listener, RDMA_PS_UDP, 4));
    cm_give_qp(&client, IBV_QPT_UD);
    assert_int_equal(rdma_connect(client.id, &ask), 0);
    struct cm_heard heard = cm_expect(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    assert_int_equal(heard.event.param.ud.private_data_len, 180);
    assert_string_equal((char *)heard.data, "who");
    server.id = heard.event.id;
    cm_give_qp(&server, IBV_QPT_UD);
    assert_int_equal(rdma_accept(server.id, &answer), 0);
    heard = cm_expect(client.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
    const struct rdma_ud_param *ud = &heard.event.param.ud;
    assert_int_equal(ud->private_data_len, 136);
    assert_string_equal((char *)heard.data, "me");
    assert_int_equal(ud->qp_num, server.id->qp->qp_num);
    assert_int_equal(ud->qkey, RDMA_UDP_QKEY);
    struct ibv_ah_attr to = ud->ah_attr;
    struct ibv_ah *ah = softnic_create_ah(client.id->pd, &to);
    assert_non_null(ah);
    struct ibv_sge out = {(uint64_t)(uintptr_t)client.memory, 32, client.mr->lkey};
    struct ibv_sge in = {(uint64_t)(uintptr_t)server.memory, 256, server.mr->lkey};
    struct ibv_recv_wr recv = {.sg_list = &in, .num_sge = 1}, *bad_recv;
    struct ibv_send_wr send = {.sg_list = &out,
                               .num_sge = 1,
                               .opcode = IBV_WR_SEND,
                               .wr.ud = {ah, ud->qp_num, ud->qkey}},
                       *bad_send;
    memset(client.memory, 0x5a, 32);
    assert_int_equal(softnic_post_recv(server.id->qp, &recv, &bad_recv), 0);
    assert_int_equal(softnic_post_send(client.id->qp, &send, &bad_send), 0);
    struct ibv_wc wc;
    int n;
    while ((n = softnic_poll_cq(server.cq, 1, &wc)) == 0)
        usleep(10);
    assert_int_equal(n, 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_int_equal(wc.byte_len, 40 + 32);
    assert_memory_equal(server.memory + 40, client.memory, 32);
    assert_int_equal(softnic_destroy_ah(ah), 0);
    cm_close_side(&client);
    cm_close_side(&server);
    cm_close_side(&listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),    cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_establish), cmocka_unit_test(test_notify),
        cmocka_unit_test(test_migrate),   cmocka_unit_test(test_datagram),
    };
    cm_own_port("connect");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
