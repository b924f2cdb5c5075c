/* SPDX-License-Identifier: MIT */
/* What a plan decides: from its seed, who asks and how often it was asked, and nothing else. */
#include "transport/decorators/faults_plan.h"

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

bool fault_rule_counts(const struct fault_rule *rule)
{
    return rule->ops != FAULT_OP_ANY || rule->nth.last != UINT64_MAX || rule->every != 1 ||
           rule->p < 1 || rule->qp.last != UINT64_MAX;
}

bool fault_rule_strikes(const struct fault_plan *plan, int i, int rank, uint64_t object,
                        struct fault_count *count)
{
    const struct fault_rule *rule = &plan->rule[i];
    uint64_t n = ++count->met;
    bool strikes = n >= rule->nth.first && n <= rule->nth.last && n % rule->every == 0;
    if (strikes && rule->p < 1) {
        uint64_t draw =
            mix(mix(mix(mix(plan->seed) ^ (uint64_t)i) ^ (uint64_t)(rank + 1)) ^ object);
        draw = mix(draw ^ n);
        strikes = (double)(draw >> 11) * 0x1p-53 < rule->p;
    }
    if (!strikes || count->struck == rule->times)
        return false;
    count->struck++;
    return true;
}
