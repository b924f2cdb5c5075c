/* SPDX-License-Identifier: MIT */
/* Counters of softnic's ports and queue pairs: exact for a known traffic, and readable by another
 * process. */
#include "tests/fault_pair.h"
#include "transport/softnic/softnic.h"
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct seen {
    const char *port;
    uint32_t qpn;
    struct softnic_port_counters ports;
    struct softnic_qp_counters qps;
    int n_ports, n_qps;
};

static void see_qp(void *arg, const struct softnic_port_counters *port,
                   const struct softnic_qp_counters *qp)
{
    struct seen *seen = arg;
    if (strcmp(port->name, seen->port) != 0 || qp->qp_num != seen->qpn)
        return;
    seen->qps = *qp;
    seen->n_qps++;
}

static void see_port(void *arg, const struct softnic_port_counters *port)
{
    struct seen *seen = arg;
    if (strcmp(port->name, seen->port) != 0)
        return;
    seen->ports = *port;
    seen->n_ports++;
}

static struct seen look(const struct fault_side *s)
{
    struct seen seen = {.port = s->context->device->name, .qpn = s->qp->qp_num};
    const struct softnic_counters_visitor visitor = {see_qp, see_port, &seen};
    assert_int_equal(softnic_visit_counters(&visitor), 0);
    assert_int_equal(seen.n_ports, 1);
    return seen;
}

static void expect(const struct softnic_counters *c, const struct softnic_counters *want)
{
    assert_int_equal(c->wqes, want->wqes);
    assert_int_equal(c->doorbells, want->doorbells);
    assert_int_equal(c->bytes, want->bytes);
    assert_int_equal(c->cqes, want->cqes);
    assert_int_equal(c->rnr, want->rnr);
    assert_int_equal(c->errors, want->errors);
    assert_int_equal(c->drops, want->drops);
    assert_int_equal(c->received_cqes, want->received_cqes);
    assert_int_equal(c->received_bytes, want->received_bytes);
}

/* Three writes by one doorbell, of which the last is signalled; two sends, one of them before there
 * is a receive for it; a READ. */
static void run_traffic(struct fault_pair *p)
{
    struct ibv_sge sge = {(uintptr_t)p->a.memory, 1000, p->a.mr->lkey};
    struct ibv_send_wr wr[3], *bad;
    for (int i = 0; i < 3; i++)
        wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i,
                                     .next = i < 2 ? &wr[i + 1] : NULL,
                                     .sg_list = &sge,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_RDMA_WRITE,
                                     .send_flags = i == 2 ? IBV_SEND_SIGNALED : 0,
                                     .wr.rdma = {(uintptr_t)p->b.memory, p->b.mr->rkey}};
    assert_int_equal(p->a.verbs->post_send(p->a.qp, wr, &bad), 0);
    fault_expect(&p->a, 2, IBV_WC_SUCCESS);
    fault_pair_receive(p, 1);
    assert_int_equal(fault_pair_send(p, 3, 100), 0);
    fault_expect(&p->a, 3, IBV_WC_SUCCESS);
    assert_int_equal(fault_pair_send(p, 4, 200), 0);
    fault_pair_receive(p, 2);
    fault_expect(&p->a, 4, IBV_WC_SUCCESS);
    wr[0].next = NULL;
    wr[0].opcode = IBV_WR_RDMA_READ;
    wr[0].send_flags = IBV_SEND_SIGNALED;
    sge.length = 5000;
    assert_int_equal(p->a.verbs->post_send(p->a.qp, wr, &bad), 0);
    fault_expect(&p->a, 0, IBV_WC_SUCCESS);
}

static const struct softnic_counters sent = {
    .wqes = 6, .doorbells = 4, .bytes = 3 * 1000 + 100 + 200 + 5000, .cqes = 4, .rnr = 1};
static const struct softnic_counters came = {.received_cqes = 2, .received_bytes = 8300};

static void expect_all(const struct fault_pair *p)
{
    struct seen a = look(&p->a), b = look(&p->b);
    assert_true(a.n_qps == 1 && b.n_qps == 1);
    expect(&a.qps.counters, &sent);
    expect(&b.qps.counters, &came);
    expect(&a.ports.counters, &sent);
    expect(&b.ports.counters, &came);
    assert_int_equal(a.qps.dest_qp_num, p->b.qp->qp_num);
    assert_true(a.qps.type == IBV_QPT_RC && a.qps.state == IBV_QPS_RTS);
    assert_int_equal(a.qps.pid, getpid());
    assert_true(a.ports.processes == 1 && a.ports.queue_pairs == 1);
}

static void test_exact(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, NULL, false);
    run_traffic(&p);
    expect_all(&p);
    /* What was destroyed counts for its port still. */
    struct seen before = look(&p.a);
    struct ibv_qp_init_attr init = {.send_cq = p.a.cq,
                                    .recv_cq = p.a.cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1}};
    assert_int_equal(p.a.verbs->destroy_qp(p.a.qp), 0);
    p.a.qp = p.a.verbs->create_qp(p.a.pd, &init);
    assert_non_null(p.a.qp);
    struct seen after = look(&p.a);
    expect(&after.ports.counters, &before.ports.counters);
    expect(&after.qps.counters, &(struct softnic_counters){.wqes = 0});
    fault_pair_close(&p);
}

static void test_errors(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, NULL, false);
    p.b.mr->rkey++;
    assert_int_equal(fault_pair_write(&p, 1, 0, 10), 0);
    assert_int_equal(fault_pair_write(&p, 2, 0, 10), 0);
    fault_expect(&p.a, 1, IBV_WC_REM_ACCESS_ERR);
    fault_expect(&p.a, 2, IBV_WC_WR_FLUSH_ERR);
    struct seen a = look(&p.a);
    assert_true(a.qps.counters.errors == 1 && a.qps.counters.cqes == 2 &&
                a.qps.counters.bytes == 0 && a.qps.state == IBV_QPS_ERR);
    fault_pair_close(&p);
}

/* In a child, which has none of our objects. */
static void test_other_process(void **state)
{
    (void)state;
    struct fault_pair p;
    fault_pair_open(&p, NULL, false);
    run_traffic(&p);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct seen seen = {.port = p.a.context->device->name, .qpn = p.a.qp->qp_num};
        const struct softnic_counters_visitor visitor = {see_qp, see_port, &seen};
        bool well = softnic_visit_counters(&visitor) == 0 && seen.n_qps == 1 &&
                    seen.qps.counters.bytes == sent.bytes && seen.qps.pid == getppid();
        _exit(well ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fault_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exact), cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_other_process)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
