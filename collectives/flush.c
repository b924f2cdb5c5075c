/* SPDX-License-Identifier: MIT */
/*
 * When what is held for a link is sent before it is full: the table of rules.
 *
 * `marginal`: a wire message costs the port the gap g whatever it carries. Of a buffer that has
 * gathered S bytes in the time t, each of its bytes pays g/S. Waiting dt longer brings S/t*dt bytes
 * and saves g/S for each of them: g/t*dt. It costs dt, for all that is held, unless the port is
 * still busy with the wire message before, for g + S'/beta from its doorbell: then waiting is free.
 * So send when the port is free and g/t < 1. A lone message leaves after g; on a busy wire
 * buffers fill.
 */
#include "collectives/strategy.h"

static bool never(const struct sstar_aggregator *a, const struct flush_view *view)
{
    (void)a;
    (void)view;
    return false;
}
static const struct flush_rule rule_bytes = {.name = "bytes", .due = never};

static bool marginal(const struct sstar_aggregator *a, const struct flush_view *view)
{
    double gap_ns = a->cost.gap_us * 1e3;
    double byte_ns = a->cost.beta_gbps > 0 ? 1 / a->cost.beta_gbps : 0;
    double busy_ns = gap_ns + (double)view->before_bytes * byte_ns;
    return (double)view->since_ns >= busy_ns && (double)view->age_ns >= gap_ns;
}
static const struct flush_rule rule_marginal = {
    .name = "marginal", .needs_clock = true, .due = marginal};

const struct flush_rule *const flush_rules[SSTAR_FLUSH_RULES] = {
    [SSTAR_FLUSH_BYTES] = &rule_bytes,
    [SSTAR_FLUSH_MARGINAL] = &rule_marginal,
};

bool flush_due(const struct sstar_aggregator *a, const struct flush_view *view)
{
    return view->fill_bytes >= a->flush_bytes || view->age_ns >= a->max_age_ns ||
           a->flush->due(a, view);
}
