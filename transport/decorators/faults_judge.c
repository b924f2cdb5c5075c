/* SPDX-License-Identifier: MIT */
/* What the plan does to one work request. */
#include "transport/decorators/faults_private.h"

static unsigned op_of(enum ibv_wr_opcode opcode)
{
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return FAULT_OP_WRITE;
    case IBV_WR_RDMA_READ:
        return FAULT_OP_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return FAULT_OP_ATOMIC;
    default:
        return FAULT_OP_SEND;
    }
}

static void sentence(struct fault_verdict *v, const struct fault_rule *rule)
{
    v->hold = true;
    switch (rule->kind) {
    case FAULT_DROP:
    case FAULT_RNR:
        v->tries = rule->tries;
        v->rnr = rule->kind == FAULT_RNR;
        v->interval_ns = rule->time_ns;
        break;
    case FAULT_DELAY:
        v->delay_ns += rule->time_ns;
        break;
    case FAULT_ERROR:
        v->fail = rule->status;
        break;
    case FAULT_FATAL:
        v->fatal = true;
        break;
    default:
        break;
    }
}

static void take_down(struct faults *f, int i, uint64_t now)
{
    uint64_t length = f->plan.rule[i].time_ns;
    f->outage[i] = (struct outage){now, length ? now + length : UINT64_MAX};
    faults_port_look(f, now);
}

struct fault_verdict faults_judge(struct faults *f, struct fault_qp *q,
                                  const struct ibv_send_wr *wr, uint64_t now)
{
    const uint32_t here = 1u << FAULT_DROP | 1u << FAULT_RNR | 1u << FAULT_DELAY |
                          1u << FAULT_ERROR | 1u << FAULT_FATAL | 1u << FAULT_DOWN;
    struct fault_verdict v = {.fail = IBV_WC_SUCCESS};
    unsigned op = op_of(wr->opcode);
    for (int i = 0; i < f->plan.n_rules; i++) {
        const struct fault_rule *rule = &f->plan.rule[i];
        if (!f->applies[i] || !(here & 1u << rule->kind) || !(rule->ops & op) ||
            q->number < rule->qp.first || q->number > rule->qp.last ||
            now < f->opened_ns + rule->after_ns ||
            (rule->kind == FAULT_DOWN && !fault_rule_counts(rule)))
            continue;
        /* Only a reliable connection says again what was lost. */
        if ((rule->kind == FAULT_DROP || rule->kind == FAULT_RNR) && q->qp->qp_type != IBV_QPT_RC)
            continue;
        if (!fault_rule_strikes(&f->plan, i, f->rank, q->number, &q->count[i]))
            continue;
        faults_say(f, "%s, queue pair %llu (0x%x), operation %llu", fault_kind_name(rule->kind),
                   (unsigned long long)q->number, q->qp->qp_num,
                   (unsigned long long)q->count[i].met);
        if (rule->kind == FAULT_DOWN)
            take_down(f, i, now);
        else
            sentence(&v, rule);
    }
    return v;
}
