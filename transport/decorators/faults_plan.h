/* SPDX-License-Identifier: MIT */
/* A plan of faults, parsed, and what it decides. Private to the faults decorator. */
#ifndef SSTAR_DECORATORS_FAULTS_PLAN_H
#define SSTAR_DECORATORS_FAULTS_PLAN_H

#include "transport/decorators/faults.h"

enum { FAULT_RULES_MAX = 32, FAULT_PORT_MAX = 63 };
#define FAULT_ALL UINT32_MAX

enum fault_kind {
    FAULT_DROP,
    FAULT_RNR,
    FAULT_DELAY,
    FAULT_LATE,
    FAULT_ERROR,
    FAULT_FATAL,
    FAULT_DOWN,
    FAULT_SLOW,
    FAULT_FAIL,
    FAULT_KINDS,
};

/* What a work request or a completion is; as bits of a mask. */
enum fault_op {
    FAULT_OP_SEND = 1,
    FAULT_OP_WRITE = 2,
    FAULT_OP_READ = 4,
    FAULT_OP_ATOMIC = 8,
    FAULT_OP_RECV = 16,
    FAULT_OP_ANY = 31,
};

enum fault_call {
    FAULT_CALL_NONE,
    FAULT_CALL_POST_SEND,
    FAULT_CALL_POST_RECV,
    FAULT_CALL_REG_MR,
    FAULT_CALL_ALLOC_PD,
    FAULT_CALL_CREATE_QP,
    FAULT_CALL_CREATE_CQ,
    FAULT_CALL_CREATE_COMP_CHANNEL,
    FAULT_CALL_CREATE_AH,
    FAULT_CALL_CREATE_SRQ,
    FAULT_CALL_MODIFY_QP,
    FAULT_CALLS,
};
extern const char *const fault_call_names[FAULT_CALLS];

struct fault_range {
    uint64_t first, last; /* both in it */
};

struct fault_rule {
    enum fault_kind kind;
    uint32_t given; /* bits of the keys that were there */
    struct fault_range rank, qp, nth;
    char port[FAULT_PORT_MAX + 1]; /* a pattern; "": all */
    unsigned ops;
    uint64_t every, times;
    double p;
    uint64_t after_ns;
    uint32_t tries;   /* transmissions lost */
    uint64_t time_ns; /* by, for or timer */
    enum ibv_wc_status status;
    enum fault_call call;
    int error;
    double gap_us, beta_gbps;
};

struct fault_plan {
    uint64_t seed;
    int n_rules;
    struct fault_rule rule[FAULT_RULES_MAX];
};

/* faults_keys.c: what may stand in a rule. `read` is false for a value that cannot be meant. */
enum { FAULT_KEYS = 18, FAULT_WORD_MAX = 127 };
struct fault_key {
    const char *name;
    int kinds; /* bits of those that take it */
    bool (*read)(struct fault_rule *rule, const char *text);
    const char *takes;
};
extern const struct fault_key fault_keys[FAULT_KEYS];
bool fault_read_whole(const char *text, uint64_t low, uint64_t *value);

/* How often a rule's object (a queue pair, or the context for calls) met it. */
struct fault_count {
    uint64_t met, struck;
};

/* Does the rule strike the object's next matching event? Counts it. `object`: number of the queue
 * pair in order of making, 0 for calls. */
bool fault_rule_strikes(const struct fault_plan *plan, int rule, int rank, uint64_t object,
                        struct fault_count *count);
/* Whether it is triggered by operations (else by time alone). */
bool fault_rule_counts(const struct fault_rule *rule);
const char *fault_kind_name(enum fault_kind kind);

#endif
