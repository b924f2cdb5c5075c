/* SPDX-License-Identifier: MIT */
/*
 * The shaped wire. A message of S bytes posted at `now`:
 *     start  = max(now, tx_busy)             tx_busy = start + gap + S/beta      (sender's port)
 *     arrive = max(start + alpha, rx_busy)   done = rx_busy = arrive + S/beta    (receiver's port)
 * A READ or an atomic costs the sender's port the gap alone and comes back after 2*alpha + S/beta,
 * through the sender's own rx. A request enters only when start <= now + alpha, so that a lone
 * message need not wait behind all that a deep queue will ever send.
 */
#include "transport/softnic/nic.h"
#include "transport/softnic/real.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int nic_wire_check(const struct softnic_wire *wire)
{
    const double values[] = {wire->alpha_us, wire->gap_us, wire->beta_gbps};
    for (unsigned i = 0; i < 3; i++) {
        if (!isfinite(values[i]) || values[i] < 0 || values[i] > 1e9)
            return EINVAL;
    }
    return 0;
}

/* From the environment; `given` if any of it is set. */
int nic_wire_env(struct softnic_wire *wire, bool *given)
{
    const char *const names[] = {"SOFTNIC_ALPHA_US", "SOFTNIC_GAP_US", "SOFTNIC_BETA_GBPS"};
    double *const values[] = {&wire->alpha_us, &wire->gap_us, &wire->beta_gbps};
    *given = false;
    for (unsigned i = 0; i < 3; i++) {
        const char *text = getenv(names[i]);
        char *end;
        if (text == NULL || *text == '\0')
            continue;
        *values[i] = real_from(text, &end);
        if (end == text || *end != '\0')
            return EINVAL;
        *given = true;
    }
    return 0;
}

void nic_wire_store(struct meeting *meeting, const struct softnic_wire *wire)
{
    atomic_store(&meeting->alpha_us, bits_of(wire->alpha_us));
    atomic_store(&meeting->gap_us, bits_of(wire->gap_us));
    atomic_store(&meeting->beta_gbps, bits_of(wire->beta_gbps));
    /* What was queued under the old shape keeps its times; the new wire starts idle. */
    atomic_store(&meeting->tx_busy_ns, 0);
    atomic_store(&meeting->rx_busy_ns, 0);
    if (wire->alpha_us > 0 || wire->gap_us > 0 || wire->beta_gbps > 0)
        atomic_fetch_or(&meeting->mode, PORT_SHAPED);
    else
        atomic_fetch_and(&meeting->mode, ~(uint32_t)PORT_SHAPED);
}

void nic_wire_load(const struct meeting *meeting, struct softnic_wire *wire)
{
    wire->alpha_us = double_of(atomic_load(&meeting->alpha_us));
    wire->gap_us = double_of(atomic_load(&meeting->gap_us));
    wire->beta_gbps = double_of(atomic_load(&meeting->beta_gbps));
    if (__builtin_expect(nic_wire_check(wire) != 0, 0)) /* somebody wrote there */
        *wire = (struct softnic_wire){0};
}

int softnic_set_wire(struct ibv_context *context, const struct softnic_wire *wire)
{
    struct ctx *ctx = to_ctx(context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    if (wire == NULL || nic_wire_check(wire) != 0)
        return EINVAL;
    nic_wire_store(ctx->meeting, wire);
    return 0;
}

int softnic_get_wire(struct ibv_context *context, struct softnic_wire *wire)
{
    struct ctx *ctx = to_ctx(context);
    if (nic_after_fork(ctx))
        return nic_refuse_child(ctx);
    nic_wire_load(ctx->meeting, wire);
    return 0;
}

static uint64_t ns_of(double us)
{
    return (uint64_t)(us * 1e3 + 0.5);
}

static uint64_t ns_of_bytes(uint64_t bytes, double beta_gbps)
{
    double ns = beta_gbps > 0 ? (double)bytes / beta_gbps + 0.5 : 0;
    return ns < (double)SPOILT_NS ? (uint64_t)ns : SPOILT_NS;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Until when a side of a port is taken. No queue is that long: somebody wrote there. */
static uint64_t sane(uint64_t busy_ns, uint64_t now_ns)
{
    return busy_ns > now_ns && busy_ns - now_ns > SPOILT_NS ? now_ns : busy_ns;
}

/* Reserve `length_ns` of a side of a port, not before `from`. Start of the reservation. */
static uint64_t reserve(_Atomic uint64_t *busy, uint64_t now, uint64_t from, uint64_t length_ns)
{
    uint64_t old = atomic_load(busy), start;
    do {
        start = later(from, sane(old, now));
    } while (!atomic_compare_exchange_weak(busy, &old, start + length_ns));
    return start;
}

uint64_t nic_wire_opens(struct ctx *ctx)
{
    struct softnic_wire wire;
    uint64_t busy = sane(atomic_load(&ctx->meeting->tx_busy_ns), nic_now(ctx));
    nic_wire_load(ctx->meeting, &wire);
    uint64_t alpha = ns_of(wire.alpha_us);
    return busy > alpha ? busy - alpha : 0;
}

bool nic_wire_enter(struct qp *qp, bool round_trip, uint64_t bytes, uint64_t *due_ns,
                    uint64_t *wake_ns)
{
    struct meeting *own = qp->ctx->meeting, *far = qp->peer != NULL ? qp->peer->meeting : NULL;
    struct softnic_wire wire, far_wire;
    nic_wire_load(own, &wire);
    uint64_t alpha = ns_of(wire.alpha_us);
    uint64_t occupied = ns_of(wire.gap_us) + (round_trip ? 0 : ns_of_bytes(bytes, wire.beta_gbps));
    uint64_t now = nic_now(qp->ctx);
    uint64_t busy = atomic_load(&own->tx_busy_ns), start;
    do {
        start = later(now, sane(busy, now));
        if (start > now + alpha) {
            *wake_ns = start - alpha;
            return false;
        }
    } while (!atomic_compare_exchange_weak(&own->tx_busy_ns, &busy, start + occupied));
    struct meeting *receiver = round_trip ? own : far;
    if (receiver == NULL) { /* it goes out to nobody */
        *due_ns = start + alpha + ns_of_bytes(bytes, wire.beta_gbps);
        return true;
    }
    nic_wire_load(receiver, &far_wire);
    uint64_t through = ns_of_bytes(bytes, far_wire.beta_gbps);
    uint64_t arrive = start + (round_trip ? 2 * alpha : alpha);
    *due_ns = reserve(&receiver->rx_busy_ns, now, arrive, through) + through;
    return true;
}
