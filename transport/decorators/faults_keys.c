/* SPDX-License-Identifier: MIT */
/* The keys of a plan's rules: what each takes, and the reading of it. */
#include "transport/decorators/faults_plan.h"
#include "transport/softnic/real.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const fault_call_names[FAULT_CALLS] = {
    [FAULT_CALL_NONE] = "",
    [FAULT_CALL_POST_SEND] = "post_send",
    [FAULT_CALL_POST_RECV] = "post_recv",
    [FAULT_CALL_REG_MR] = "reg_mr",
    [FAULT_CALL_ALLOC_PD] = "alloc_pd",
    [FAULT_CALL_CREATE_QP] = "create_qp",
    [FAULT_CALL_CREATE_CQ] = "create_cq",
    [FAULT_CALL_CREATE_COMP_CHANNEL] = "create_comp_channel",
    [FAULT_CALL_CREATE_AH] = "create_ah",
    [FAULT_CALL_CREATE_SRQ] = "create_srq",
    [FAULT_CALL_MODIFY_QP] = "modify_qp",
};

/* ---- values: false if it cannot be meant ----------------------------------------------------- */

bool fault_read_whole(const char *text, uint64_t low, uint64_t *value)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*text))
        return false;
    unsigned long long v = strtoull(text, &end, 0);
    if (errno || *end || v < low)
        return false;
    *value = v;
    return true;
}

/* N or N-M */
static bool read_range(const char *text, uint64_t low, struct fault_range *range)
{
    char first[FAULT_WORD_MAX + 1];
    const char *dash = strchr(text, '-');
    struct fault_range r;
    if (!dash) {
        if (!fault_read_whole(text, low, &r.first))
            return false;
        r.last = r.first;
    } else {
        snprintf(first, sizeof first, "%.*s", (int)(dash - text), text);
        if (!fault_read_whole(first, low, &r.first) ||
            !fault_read_whole(dash + 1, r.first, &r.last))
            return false;
    }
    *range = r;
    return true;
}

static bool read_real(const char *text, double *value, const char **rest)
{
    char *end;
    errno = 0;
    double v = real_from(text, &end);
    if (errno || end == text || !isfinite(v) || v < 0)
        return false;
    *value = v;
    *rest = end;
    return true;
}

/* A number with its unit. */
static bool read_time(const char *text, uint64_t *ns)
{
    double v;
    const char *unit;
    if (!read_real(text, &v, &unit))
        return false;
    double factor = !strcmp(unit, "us")   ? 1e3
                    : !strcmp(unit, "ms") ? 1e6
                    : !strcmp(unit, "s")  ? 1e9
                    : !strcmp(unit, "ns") ? 1
                                          : 0;
    if (factor <= 0 || v * factor > 1e18)
        return false;
    *ns = (uint64_t)(v * factor + 0.5);
    return true;
}

static bool read_rank(struct fault_rule *r, const char *text)
{
    return read_range(text, 0, &r->rank);
}

static bool read_qp(struct fault_rule *r, const char *text)
{
    return read_range(text, 0, &r->qp);
}

static bool read_nth(struct fault_rule *r, const char *text)
{
    return read_range(text, 1, &r->nth);
}

static bool read_port(struct fault_rule *r, const char *text)
{
    size_t length = strlen(text);
    if (length == 0 || length > FAULT_PORT_MAX)
        return false;
    memcpy(r->port, text, length + 1);
    return true;
}

static bool read_ops(struct fault_rule *r, const char *text)
{
    static const char *const names[] = {"send", "write", "read", "atomic", "recv"};
    unsigned ops = 0;
    for (const char *at = text;;) {
        size_t length = strcspn(at, "+"), i = 0;
        while (i < 5 && (strlen(names[i]) != length || strncmp(names[i], at, length) != 0))
            i++;
        if (i == 5 || (i == 4 && r->kind != FAULT_LATE))
            return false;
        ops |= 1u << i;
        if (at[length] == '\0')
            break;
        at += length + 1;
    }
    r->ops = ops;
    return true;
}

static bool read_every(struct fault_rule *r, const char *text)
{
    return fault_read_whole(text, 1, &r->every);
}

static bool read_times(struct fault_rule *r, const char *text)
{
    return fault_read_whole(text, 1, &r->times);
}

static bool read_p(struct fault_rule *r, const char *text)
{
    const char *rest;
    return read_real(text, &r->p, &rest) && !*rest && r->p <= 1;
}

static bool read_after(struct fault_rule *r, const char *text)
{
    return read_time(text, &r->after_ns);
}

static bool read_tries(struct fault_rule *r, const char *text)
{
    uint64_t tries = FAULT_ALL;
    if (strcmp(text, "all") != 0 && (!fault_read_whole(text, 1, &tries) || tries > 1000))
        return false;
    r->tries = (uint32_t)tries;
    return true;
}

static bool read_a_time(struct fault_rule *r, const char *text)
{
    return read_time(text, &r->time_ns) && r->time_ns > 0;
}

static bool read_status(struct fault_rule *r, const char *text)
{
    static const struct {
        const char *name;
        enum ibv_wc_status status;
    } names[] = {
        {"LOC_LEN_ERR", IBV_WC_LOC_LEN_ERR},
        {"LOC_QP_OP_ERR", IBV_WC_LOC_QP_OP_ERR},
        {"LOC_PROT_ERR", IBV_WC_LOC_PROT_ERR},
        {"WR_FLUSH_ERR", IBV_WC_WR_FLUSH_ERR},
        {"BAD_RESP_ERR", IBV_WC_BAD_RESP_ERR},
        {"LOC_ACCESS_ERR", IBV_WC_LOC_ACCESS_ERR},
        {"REM_INV_REQ_ERR", IBV_WC_REM_INV_REQ_ERR},
        {"REM_ACCESS_ERR", IBV_WC_REM_ACCESS_ERR},
        {"REM_OP_ERR", IBV_WC_REM_OP_ERR},
        {"RETRY_EXC_ERR", IBV_WC_RETRY_EXC_ERR},
        {"RNR_RETRY_EXC_ERR", IBV_WC_RNR_RETRY_EXC_ERR},
        {"REM_ABORT_ERR", IBV_WC_REM_ABORT_ERR},
        {"FATAL_ERR", IBV_WC_FATAL_ERR},
        {"RESP_TIMEOUT_ERR", IBV_WC_RESP_TIMEOUT_ERR},
        {"GENERAL_ERR", IBV_WC_GENERAL_ERR},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, text)) {
            r->status = names[i].status;
            return true;
        }
    return false;
}

static bool read_call(struct fault_rule *r, const char *text)
{
    for (int i = 1; i < FAULT_CALLS; i++)
        if (!strcmp(fault_call_names[i], text)) {
            r->call = (enum fault_call)i;
            return true;
        }
    return false;
}

static bool read_errno(struct fault_rule *r, const char *text)
{
    for (int e = 1; e < 134; e++) {
        const char *name = strerrorname_np(e);
        if (name && !strcmp(name, text)) {
            r->error = e;
            return true;
        }
    }
    return false;
}

static bool read_gap(struct fault_rule *r, const char *text)
{
    uint64_t ns;
    if (!read_time(text, &ns))
        return false;
    r->gap_us = (double)ns / 1e3;
    return true;
}

static bool read_gbps(struct fault_rule *r, const char *text)
{
    const char *rest;
    return read_real(text, &r->beta_gbps, &rest) && !*rest && r->beta_gbps > 0;
}

/* ---- keys ---------------------------------------------------------------------------------------
 */

enum {
    ON_OPERATION = 1 << FAULT_DROP | 1 << FAULT_RNR | 1 << FAULT_DELAY | 1 << FAULT_LATE |
                   1 << FAULT_ERROR | 1 << FAULT_FATAL | 1 << FAULT_DOWN,
    COUNTED = ON_OPERATION | 1 << FAULT_FAIL,
    ALL_KINDS = COUNTED | 1 << FAULT_SLOW,
};

const struct fault_key fault_keys[FAULT_KEYS] = {
    {"rank", ALL_KINDS, read_rank, "a rank or a range of them, as 1 or 0-3"},
    {"port", ALL_KINDS, read_port,
     "the name of a device or port, * and ? in it match as in a shell"},
    {"qp", ON_OPERATION, read_qp,
     "the number of a queue pair in the order of making, from 0, or a range"},
    {"op", ON_OPERATION, read_ops,
     "send, write, read or atomic, several joined by + (late: recv, too)"},
    {"nth", COUNTED, read_nth, "a count from 1, or a range as 3-5"},
    {"every", COUNTED, read_every, "a whole number from 1"},
    {"times", COUNTED, read_times, "a whole number from 1"},
    {"p", COUNTED, read_p, "a probability from 0 to 1"},
    {"after", ALL_KINDS, read_after, "a time with its unit, as 2s, 5ms or 10us"},
    {"tries", 1 << FAULT_DROP | 1 << FAULT_RNR, read_tries,
     "how many transmissions are lost, 1 to 1000, or all"},
    {"timer", 1 << FAULT_RNR, read_a_time, "a time with its unit, above 0"},
    {"by", 1 << FAULT_DELAY | 1 << FAULT_LATE, read_a_time, "a time with its unit, above 0"},
    {"for", 1 << FAULT_DOWN, read_a_time, "a time with its unit, above 0"},
    {"status", 1 << FAULT_ERROR, read_status, "a status of a completion, as REM_ACCESS_ERR"},
    {"call", 1 << FAULT_FAIL, read_call,
     "post_send, post_recv, reg_mr, alloc_pd, create_qp, create_cq, create_comp_channel, "
     "create_ah, create_srq or modify_qp"},
    {"errno", 1 << FAULT_FAIL, read_errno, "the name of an error, as ENOMEM"},
    {"gap", 1 << FAULT_SLOW, read_gap, "a time with its unit"},
    {"gbps", 1 << FAULT_SLOW, read_gbps, "1e9 bytes per second, above 0"},
};
