/* SPDX-License-Identifier: MIT */
/* One side of a connection on softnic, for its own tests. */
#ifndef SSTAR_TESTS_SOFTNIC_SIDE_H
#define SSTAR_TESTS_SOFTNIC_SIDE_H

#include "transport/softnic/softnic.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* CMocka needs the ones above first. */
#include <cmocka.h>

enum { BYTES = 1 << 16 };

struct nic_side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *memory;
};

/* What the other side must know. */
struct nic_address {
    union ibv_gid gid;
    uint32_t qpn, rkey;
    uint64_t memory;
};

uint64_t nic_hand_ns(void *clock);
const char *nic_test_port(char *name, size_t size, const char *what);
void nic_test_file(struct ibv_context *context, char *path, size_t size);
void nic_side_open(struct nic_side *s, const struct softnic_attr *attr, uint8_t *memory);
struct ibv_qp *nic_side_qp(const struct nic_side *s); /* one more, for a second connection */
void nic_side_close(struct nic_side *s);
struct nic_address nic_side_address(const struct nic_side *s);
void nic_side_connect(struct nic_side *s, const struct nic_address *to);
int nic_side_write(struct nic_side *s, const struct nic_address *to, uint64_t wr_id, size_t bytes);
struct ibv_wc nic_side_poll(struct nic_side *s);

#endif
