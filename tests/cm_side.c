/* SPDX-License-Identifier: MIT */
#include "tests/cm_side.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEADLINE_MS = 20000 };

void cm_own_port(const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "test-cm-%s-%d", what, (int)getpid());
    setenv("SOFTNIC_PORT", name, 1);
}

struct cm_heard cm_hear(struct rdma_event_channel *channel)
{
    struct pollfd ask = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    struct cm_heard heard = {0};
    assert_int_equal(poll(&ask, 1, DEADLINE_MS), 1);
    assert_int_equal(rdma_get_cm_event(channel, &event), 0);
    heard.event = *event;
    if (event->id->qp_type == IBV_QPT_UD && event->param.ud.private_data_len != 0)
        memcpy(heard.data, event->param.ud.private_data, event->param.ud.private_data_len);
    else if (event->id->qp_type != IBV_QPT_UD && event->param.conn.private_data_len != 0)
        memcpy(heard.data, event->param.conn.private_data, event->param.conn.private_data_len);
    assert_int_equal(rdma_ack_cm_event(event), 0);
    return heard;
}

struct cm_heard cm_expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type,
                          int status)
{
    struct cm_heard heard = cm_hear(channel);
    assert_string_equal(rdma_event_str(heard.event.event), rdma_event_str(type));
    assert_int_equal(heard.event.status, status);
    return heard;
}

/* Nothing to hear now: a channel that does not wait says so. */
void cm_expect_silence(struct rdma_event_channel *channel)
{
    struct rdma_cm_event *event;
    int flags = fcntl(channel->fd, F_GETFL);
    assert_int_equal(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
    errno = 0;
    assert_int_equal(rdma_get_cm_event(channel, &event), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(channel->fd, F_SETFL, flags), 0);
}

struct sockaddr_in cm_loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

uint16_t cm_listen(struct cm_side *s, enum rdma_port_space ps, int backlog)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    s->channel = rdma_create_event_channel();
    assert_non_null(s->channel);
    assert_int_equal(rdma_create_id(s->channel, &s->id, s, ps), 0);
    assert_int_equal(rdma_bind_addr(s->id, (struct sockaddr *)&any), 0);
    assert_int_equal(rdma_listen(s->id, backlog), 0);
    assert_int_not_equal(rdma_get_src_port(s->id), 0);
    return ntohs(rdma_get_src_port(s->id));
}

void cm_resolve(struct cm_side *s, enum rdma_port_space ps, uint16_t port)
{
    struct sockaddr_in to = cm_loopback(port);
    s->channel = rdma_create_event_channel();
    assert_non_null(s->channel);
    assert_int_equal(rdma_create_id(s->channel, &s->id, s, ps), 0);
    assert_int_equal(rdma_resolve_addr(s->id, NULL, (struct sockaddr *)&to, 2000), 0);
    cm_expect(s->channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    assert_int_equal(rdma_resolve_route(s->id, 2000), 0);
    cm_expect(s->channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

void cm_give_qp(struct cm_side *s, enum ibv_qp_type type)
{
    s->cq = softnic_create_cq(s->id->verbs, 16, NULL, NULL, 0);
    assert_non_null(s->cq);
    struct ibv_qp_init_attr attr = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = type,
        .sq_sig_all = 1};
    assert_int_equal(rdma_create_qp(s->id, NULL, &attr), 0);
    assert_non_null(s->id->qp);
    s->mr = softnic_reg_mr(s->id->pd, s->memory, sizeof s->memory,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    assert_non_null(s->mr);
}

void cm_close_side(struct cm_side *s)
{
    if (s->id != NULL && s->id->qp != NULL)
        rdma_destroy_qp(s->id);
    if (s->mr != NULL)
        assert_int_equal(softnic_dereg_mr(s->mr), 0);
    if (s->cq != NULL)
        assert_int_equal(softnic_destroy_cq(s->cq), 0);
    if (s->id != NULL)
        assert_int_equal(rdma_destroy_id(s->id), 0);
    if (s->channel != NULL)
        rdma_destroy_event_channel(s->channel);
    memset(s, 0, sizeof *s);
}

void cm_connect_pair(struct cm_side *client, struct cm_side *server, struct cm_side *listener,
                     uint16_t port)
{
    cm_resolve(client, RDMA_PS_TCP, port);
    cm_give_qp(client, IBV_QPT_RC);
    assert_int_equal(rdma_connect(client->id, NULL), 0);
    memset(server, 0, sizeof *server);
    server->id = cm_expect(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0).event.id;
    cm_give_qp(server, IBV_QPT_RC);
    assert_int_equal(rdma_accept(server->id, NULL), 0);
    cm_expect(client->channel, RDMA_CM_EVENT_ESTABLISHED, 0);
    cm_expect(listener->channel, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void poll_one(struct cm_side *s, enum ibv_wc_opcode opcode, uint32_t bytes)
{
    struct ibv_wc wc;
    int n;
    while ((n = softnic_poll_cq(s->cq, 1, &wc)) == 0)
        usleep(10);
    assert_int_equal(n, 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, opcode);
    if (opcode == IBV_WC_RECV)
        assert_int_equal(wc.byte_len, bytes);
}

void cm_send(struct cm_side *from, struct cm_side *to, uint32_t bytes)
{
    struct ibv_sge out = {(uint64_t)(uintptr_t)from->memory, bytes, from->mr->lkey};
    struct ibv_sge in = {(uint64_t)(uintptr_t)to->memory, sizeof to->memory, to->mr->lkey};
    struct ibv_recv_wr recv = {.sg_list = &in, .num_sge = 1}, *bad_recv;
    struct ibv_send_wr send = {.sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    for (uint32_t i = 0; i < bytes; i++)
        from->memory[i] = (uint8_t)(i * 7 + bytes);
    assert_int_equal(softnic_post_recv(to->id->qp, &recv, &bad_recv), 0);
    assert_int_equal(softnic_post_send(from->id->qp, &send, &bad_send), 0);
    poll_one(from, IBV_WC_SEND, bytes);
    poll_one(to, IBV_WC_RECV, bytes);
    assert_memory_equal(from->memory, to->memory, bytes);
}
