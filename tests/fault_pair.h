/* SPDX-License-Identifier: MIT */
/* Two connected queue pairs on softnic ports of one process, the first under a plan of faults. */
#ifndef SSTAR_TESTS_FAULT_PAIR_H
#define SSTAR_TESTS_FAULT_PAIR_H

#include "transport/verbs.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* CMocka needs the ones above first. */
#include <cmocka.h>

enum { PAIR_BYTES = 1 << 16, PAIR_LINES = 512, PAIR_TIMEOUT = 8, PAIR_RETRIES = 3 };

struct fault_side {
    const struct verbs *verbs;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *memory;
};

/* What was said of faults, without the queue pair's number, which differs from run to run. */
struct fault_lines {
    int n;
    char line[PAIR_LINES][96];
};

struct fault_pair {
    struct fault_side a, b;
    struct fault_lines lines;
    bool wr_calls; /* post by ibv_wr_* */
};

/* Opened only, under the plan: for calls that are to fail. */
void fault_side_open(struct fault_side *s, const char *port, const char *plan,
                     struct fault_lines *lines);
void fault_pair_open(struct fault_pair *p, const char *plan, bool wr_calls);
void fault_pair_close(struct fault_pair *p);
/* a writes (or sends) its bytes at `at` to the same place of b. 0 or an errno. */
int fault_pair_write(struct fault_pair *p, uint64_t id, size_t at, uint32_t bytes);
int fault_pair_send(struct fault_pair *p, uint64_t id, uint32_t bytes);
void fault_pair_receive(struct fault_pair *p, uint64_t id);
/* The next completion of a side, within 30 s. */
struct ibv_wc fault_side_poll(struct fault_side *s);
void fault_expect(struct fault_side *s, uint64_t id, enum ibv_wc_status status);

#endif
