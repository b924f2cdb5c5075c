/* SPDX-License-Identifier: MIT */
/* librdmacm's synchronous calls on softnic: endpoints, and two threads that talk through them. */
#include "tests/cm_side.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 20, BYTES = 100 };

struct ends {
    struct rdma_cm_id *listener;
    char port[8];
};

static struct ibv_qp_init_attr want_qp(void)
{
    return (struct ibv_qp_init_attr){
        .cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1},
        .sq_sig_all = 1};
}

static void wait_one(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n;
    while ((n = softnic_poll_cq(cq, 1, &wc)) == 0)
        usleep(10);
    assert_int_equal(n, 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
}

static void post(struct rdma_cm_id *id, struct ibv_mr *mr, bool receive)
{
    struct ibv_sge sge = {(uint64_t)(uintptr_t)mr->addr, BYTES, mr->lkey};
    struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    if (receive)
        assert_int_equal(softnic_post_recv(id->qp, &recv, &bad_recv), 0);
    else
        assert_int_equal(softnic_post_send(id->qp, &send, &bad_send), 0);
}

/* Takes what comes and sends each byte back, greater by one. */
static void *serve(void *argument)
{
    struct ends *ends = argument;
    uint8_t memory[BYTES];
    for (int round = 0; round < ROUNDS; round++) {
        struct rdma_cm_id *id;
        assert_int_equal(rdma_get_request(ends->listener, &id), 0);
        assert_non_null(id->qp);
        assert_ptr_not_equal(id->channel, ends->listener->channel);
        struct ibv_mr *mr = softnic_reg_mr(id->pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
        assert_non_null(mr);
        post(id, mr, true);
        assert_int_equal(rdma_accept(id, NULL), 0);
        wait_one(id->recv_cq);
        for (int i = 0; i < BYTES; i++)
            memory[i]++;
        post(id, mr, false);
        wait_one(id->send_cq);
        assert_int_equal(rdma_disconnect(id), 0);
        assert_int_equal(softnic_dereg_mr(mr), 0);
        rdma_destroy_ep(id);
    }
    return NULL;
}

static struct rdma_addrinfo *look_up(const char *port, int flags)
{
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;
    assert_int_equal(rdma_getaddrinfo("127.0.0.1", port, &hints, &found), 0);
    return found;
}

static void visit(const char *port, int round)
{
    struct rdma_addrinfo *to = look_up(port, 0);
    struct ibv_qp_init_attr attr = want_qp();
    struct rdma_cm_id *id;
    uint8_t memory[BYTES];
    assert_int_equal(to->ai_qp_type, IBV_QPT_RC);
    assert_int_equal(rdma_create_ep(&id, to, NULL, &attr), 0);
    rdma_freeaddrinfo(to);
    assert_non_null(id->send_cq_channel);
    struct ibv_mr *mr = softnic_reg_mr(id->pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
    assert_non_null(mr);
    memset(memory, round, BYTES);
    assert_int_equal(rdma_connect(id, NULL), 0);
    assert_int_equal(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
    post(id, mr, false);
    wait_one(id->send_cq);
    post(id, mr, true);
    wait_one(id->recv_cq);
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(memory[i], round + 1);
    assert_int_equal(rdma_disconnect(id), 0);
    assert_int_equal(softnic_dereg_mr(mr), 0);
    rdma_destroy_ep(id);
}

static void listen_at_endpoint(struct ends *ends)
{
    struct rdma_addrinfo *at = look_up("0", RAI_PASSIVE);
    struct ibv_qp_init_attr attr = want_qp();
    assert_int_equal(rdma_create_ep(&ends->listener, at, NULL, &attr), 0);
    rdma_freeaddrinfo(at);
    assert_int_equal(rdma_listen(ends->listener, 4), 0);
    snprintf(ends->port, sizeof ends->port, "%u", ntohs(rdma_get_src_port(ends->listener)));
}

static void test_visits(void **state)
{
    struct ends ends;
    pthread_t server;
    (void)state;
    listen_at_endpoint(&ends);
    assert_int_equal(pthread_create(&server, NULL, serve, &ends), 0);
    for (int round = 0; round < ROUNDS; round++)
        visit(ends.port, round);
    pthread_join(server, NULL);
    rdma_destroy_ep(ends.listener);
}

/* Errors come from the call itself. */
static void test_errors(void **state)
{
    struct ends ends;
    struct ibv_qp_init_attr attr = want_qp();
    struct rdma_cm_id *id;
    (void)state;
    listen_at_endpoint(&ends);
    rdma_destroy_ep(ends.listener);
    struct rdma_addrinfo *to = look_up(ends.port, 0);
    assert_int_equal(rdma_create_ep(&id, to, NULL, &attr), 0);
    assert_int_equal(rdma_connect(id, NULL), -1);
    assert_int_equal(errno, ECONNREFUSED);
    assert_int_equal(rdma_migrate_id(id, NULL), -1);
    rdma_destroy_ep(id);
    inet_pton(AF_INET, "192.0.2.1", &((struct sockaddr_in *)to->ai_dst_addr)->sin_addr);
    assert_int_equal(rdma_create_ep(&id, to, NULL, &attr), -1);
    assert_int_equal(errno, ENODEV);
    rdma_freeaddrinfo(to);
    assert_int_equal(rdma_getaddrinfo(NULL, NULL, NULL, &to), -1);
    struct rdma_addrinfo numeric = {.ai_flags = RAI_NUMERICHOST};
    assert_int_equal(rdma_getaddrinfo("no.number", "1", &numeric, &to), EAI_NONAME);
}

static void test_devices(void **state)
{
    int n;
    struct ibv_context **list = rdma_get_devices(&n);
    struct ibv_port_attr port;
    (void)state;
    assert_non_null(list);
    assert_int_equal(n, 1);
    assert_int_equal(softnic_query_port(list[0], 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_ACTIVE);
    assert_null(list[1]);
    rdma_free_devices(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_visits),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_devices),
    };
    cm_own_port("endpoint");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
